"""Every way to harm a store that the campaign of damage knows, each with what a check must say about it afterwards.

What is expected is taken from docs/format.md, never from what the code says.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from random import Random

import msgspec
from stress.corruption.sample_store import Place, SampleStore, clear, fill

DAMAGE = frozenset({"damage"})
TOLD = frozenset({"told"})
"""The store is ok, and a finding says what was done: residue, an unsafe place, an extension, a newer version."""
SILENT = frozenset({"silent"})
"""A blind spot that docs/format.md lists, or nothing that anybody was promised."""
ANY = DAMAGE | TOLD | SILENT

_HELD = ("store file", "pointer", "snapshot", "object", "unacknowledged", "unreferenced")
"""Roles of files whose bytes something vouches for."""


class Corruption(msgspec.Struct, frozen=True):
    """One thing done to a store: its ``kind``, what it was ``done`` to in words, the hash of the ``scope`` that must
    show it ("" for the store as a whole), what a check may ``expect``, and the ``act``, which takes the state dir."""

    kind: str
    done: str
    scope: str
    expect: frozenset[str]
    act: Callable[[Path], object]


def flipped(place: Place, data: bytes, at: int, value: int) -> Corruption:
    """The byte at ``at`` of a file that holds ``data`` becomes ``value``."""

    def act(root: Path) -> None:
        fill(root / place.path, data[:at] + bytes([value]) + data[at + 1 :])

    done = f"{place.path}[{at}] = {value:#04x}"
    return Corruption(f"{place.role}: byte changed", done, place.scope, _flip(place, data, at, value), act)


def _flip(place: Place, data: bytes, at: int, value: int) -> frozenset[str]:
    if place.role not in _HELD:
        return SILENT
    if place.role in ("store file", "pointer", "unacknowledged"):
        # No digest leads to these, so a newer version may well have written them.
        mark = b"stateline/" if place.role == "store file" else b'"version":"'
        digits = b"023456789" if place.role == "store file" else b"23456789"
        if at == data.rindex(mark) + len(mark) and value in digits:
            return TOLD
    if place.role == "store file":
        # The store's own id is random, and nothing else holds it.
        begin = data.index(b'"store_id":"') + len(b'"store_id":"')
        return SILENT if begin <= at < begin + 32 and value in b"0123456789abcdef" else DAMAGE
    return DAMAGE


def every_flip(sample: SampleStore, rng: Random, *, small: int, most: int, bits: bool = False) -> Iterator[Corruption]:
    """Every byte of every file changed: to one other value, and with ``bits`` also in one bit; to all 255 in files of
    up to ``small`` bytes that something vouches for. Of a file of more than ``most`` bytes: its first and last 512,
    what separates its values, and ``most`` of the rest."""
    for place in sample.places:
        data = sample.read(place.path)
        if place.role == "store file":
            # It is looked at with each scope, and that is quicker than the whole store.
            place = msgspec.structs.replace(place, scope=min(sample.chains))
        for at in _positions(data, rng, most):
            if len(data) <= small and place.role in _HELD:
                yield from (flipped(place, data, at, value) for value in range(256) if value != data[at])
                continue
            yield flipped(place, data, at, data[at] ^ rng.randrange(1, 256))
            if bits:
                yield flipped(place, data, at, data[at] ^ 1 << rng.randrange(8))


def _positions(data: bytes, rng: Random, most: int) -> list[int]:
    if len(data) <= most:
        return list(range(len(data)))
    structure = {at for at, byte in enumerate(data) if byte in b'{}[]:,"\\'}
    edges = {at for at in range(len(data)) if at < 512 or at >= len(data) - 512}
    return sorted(structure | edges | set(rng.sample(range(len(data)), most)))


# -- one file ----------------------------------------------------------------------------------------------------------


def _overwrite(path: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: fill(root / path, data)


def truncated(sample: SampleStore, rng: Random, most: int = 64) -> Iterator[Corruption]:
    """Every file cut: to nothing, by one byte, in half, and to ``most`` other lengths; and made longer."""
    for place in sample.places:
        data = sample.read(place.path)
        lengths = {0, 1, 2, len(data) // 2, len(data) - 2, len(data) - 1, *(4096 * n for n in range(1, 4))}
        lengths |= set(rng.sample(range(len(data)), min(most, len(data))))
        expect = DAMAGE if place.role in _HELD else SILENT
        for length in sorted(lengths):
            if 0 <= length < len(data):
                act = _overwrite(place.path, data[:length])
                yield Corruption(f"{place.role}: truncated", f"{place.path} to {length}", place.scope, expect, act)
        for more in (b"\n", b"\0", b" ", b"}", b'{"a":1}', data or b"x", b"\0" * 4096):
            act = _overwrite(place.path, data + more)
            yield Corruption(f"{place.role}: made longer", f"{place.path} + {more[:8]!r}", place.scope, expect, act)


def removed(sample: SampleStore) -> Iterator[Corruption]:
    """Every file removed."""
    for place in sample.places:
        expect = DAMAGE if place.role in ("store file", "snapshot", "object") else SILENT
        if place.role == "unacknowledged":
            # Objects that only it named are named by nothing then.
            expect = ANY - DAMAGE
        if place.role == "pointer":
            # First snapshots without a pointer are what crashes leave of first saves.
            here = [one.path for one in sample.of("snapshot", "unacknowledged") if one.scope == place.scope]
            expect = DAMAGE if any(sample.document(path)["seq"] for path in here) else TOLD
        yield Corruption(
            f"{place.role}: removed", place.path, place.scope, expect, lambda root, p=place.path: (root / p).unlink()
        )


def _socket(path: Path) -> None:
    here = os.getcwd()
    try:
        os.chdir(path.parent)  # the path of a socket may only be short, and so may its name
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
        os.rename("socket", path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "symlink to itself": lambda path: os.symlink(path.name, path),
    "symlink to nowhere": lambda path: os.symlink("/nowhere/at/all", path),
    "symlink to a device": lambda path: os.symlink("/dev/zero", path),
    "FIFO": lambda path: os.mkfifo(path, 0o600),
    "socket": _socket,
    "directory": lambda path: path.mkdir(mode=0o700),
}
"""File types that may replace a regular file. Each function creates one at a free path."""


def replaced(sample: SampleStore) -> Iterator[Corruption]:
    """Every file made something that is no file, or a symlink to its own bytes elsewhere."""
    for place in sample.places:
        expect = SILENT if place.role in ("temporary", "removed", "set aside") else DAMAGE
        for kind, make in KINDS.items():
            yield Corruption(
                f"{place.role}: made a {kind}", place.path, place.scope, expect, _final_state(place.path, make)
            )
        act = _final_state(place.path, lambda path, good=sample.elsewhere / place.path: os.symlink(good, path))
        yield Corruption(f"{place.role}: made a symlink to its bytes", place.path, place.scope, expect, act)


def _final_state(path: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def act(root: Path) -> None:
        clear(root / path)
        make(root / path)

    return act


# -- several files -----------------------------------------------------------------------------------------------------


def swapped(sample: SampleStore) -> Iterator[Corruption]:
    """Each two files exchange their bytes."""
    for one, other in combinations(sample.places, 2):
        first, second = sample.read(one.path), sample.read(other.path)
        if first == second:
            continue
        held = next((place for place in (one, other) if place.role in _HELD), None)

        def act(
            root: Path, one: str = one.path, other: str = other.path, both: tuple[bytes, bytes] = (first, second)
        ) -> None:
            fill(root / one, both[1])
            fill(root / other, both[0])

        expect = DAMAGE if held else SILENT
        scope = "" if held is None or "unreferenced" in (one.role, other.role) else held.scope
        yield Corruption("two files exchanged", f"{one.path} and {other.path}", scope, expect, act)


def cut(sample: SampleStore) -> Iterator[Corruption]:
    """The newest snapshots of each chain removed, one after the other, and the pointer left as it was."""
    for scope, chain in sample.chains.items():
        for count in range(1, len(chain) + 1):
            gone = [f"{scope}/{name}" for name in chain[-count:]]
            yield Corruption(
                "tail cut", f"{scope} by {count}", scope, DAMAGE, lambda root, gone=gone: _unlink(root, gone)
            )


def _unlink(root: Path, paths: list[str]) -> None:
    for path in paths:
        (root / path).unlink()


def overwritten(sample: SampleStore, rng: Random, most: int = 4) -> Iterator[Corruption]:
    """Files filled with the bytes of up to ``most`` others of their kind: an older snapshot under a newer name, the
    pointer of another scope, an object in the place of another."""
    for place in sample.of("pointer", "snapshot", "object", "unacknowledged", "unreferenced"):
        data = sample.read(place.path)
        others = [one for one in sample.of(place.role) if sample.read(one.path) != data]
        for other in rng.sample(others, min(most, len(others))):
            done = f"{place.path} by {other.path}"
            act = _overwrite(place.path, sample.read(other.path))
            yield Corruption(f"{place.role}: overwritten", done, place.scope, DAMAGE, act)


def moved(sample: SampleStore) -> Iterator[Corruption]:
    """Snapshots and pointers copied or moved into each other scope; scopes moved, exchanged and taken away."""
    for place in sample.of("snapshot", "unacknowledged", "pointer"):
        for scope in sorted(sample.keys.keys() - {place.scope}):
            target = f"{scope}/{os.path.basename(place.path)}"
            copy = _copy(place.path, target)
            yield Corruption(f"{place.role}: copied to another scope", f"{place.path} to {scope}", scope, DAMAGE, copy)
            move = _move(place.path, target)
            expect = DAMAGE
            yield Corruption(f"{place.role}: moved to another scope", f"{place.path} to {scope}", scope, expect, move)
    for one, other in combinations(sorted(sample.chains), 2):
        yield Corruption("scopes exchanged", f"{one} and {other}", one, DAMAGE, _exchange(one, other))
    for scope in sorted(sample.chains):
        other = "0" * 64
        yield Corruption("scope under another hash", scope, "", DAMAGE, _move(scope, other))
        # The tree of a removed scope is no damage: `exec rm` leaves the same.
        yield Corruption("scope taken away", scope, "", ANY - DAMAGE, lambda root, s=scope: shutil.rmtree(root / s))
    expect = DAMAGE if sample.of("object") else ANY - DAMAGE
    yield Corruption("objects taken away", "objects", "", expect, lambda root: shutil.rmtree(root / "objects"))


def _copy(source: str, target: str) -> Callable[[Path], object]:
    return lambda root: shutil.copy(root / source, root / target)


def _move(source: str, target: str) -> Callable[[Path], object]:
    return lambda root: os.replace(root / source, root / target)


def _exchange(one: str, other: str) -> Callable[[Path], object]:
    def act(root: Path) -> None:
        (root / one).rename(root / "aside")
        (root / other).rename(root / one)
        (root / "aside").rename(root / other)

    return act
