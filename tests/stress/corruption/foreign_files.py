"""Files an attacker may add to a store or write into its pointers: names of all kinds, copies, replays."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stress.corruption.corruptions import ANY, DAMAGE, KINDS, SILENT, TOLD, Corruption
from stress.corruption.sample_store import SampleStore, fill

from stateline.bundle import canonical, naming

_JUNK = {"empty": b"", "text": b"text\n", "an empty object": b"{}", "zeros": b"\0" * 64}
_SNAPSHOT = "state-2026-11-20T092659.123456Z-00000000.json"


def added(sample: SampleStore) -> Iterator[Corruption]:
    """Names that do not belong, names that nearly do, and names that do, in each directory."""
    yield from _in_the_root()
    for scope in sorted(sample.keys):
        yield from _in_a_scope(scope)
    yield from _among_objects(sample)


def _write(path: str, data: bytes) -> Callable[[Path], object]:
    def act(root: Path) -> None:
        (root / path).parent.mkdir(mode=0o700, exist_ok=True)
        fill(root / path, data)

    return act


def _make(path: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda root: make(root / path)


def _files(place: str, scope: str, names: dict[str, frozenset[str]]) -> Iterator[Corruption]:
    """Each name as a file of each kind of junk, and as everything that is no file."""
    for name, expect in names.items():
        path = os.path.join(place, name)
        for what, data in _JUNK.items():
            yield Corruption("added: a file", f"{path}: {what}", scope, expect, _write(path, data))
        for kind, make in KINDS.items():
            yield Corruption(f"added: a {kind}", path, scope, expect, _make(path, make))


def _in_the_root() -> Iterator[Corruption]:
    names = dict.fromkeys(
        ("foreign", ".hidden", "stateline.json.bak", "STATELINE.JSON", "latest.json", "object", "objects ", "A" * 64,
         "0" * 63, "0" * 65, "x-ext-1", "ext", "naïve", "a\nb", "\x1b[31m", _SNAPSHOT),
        DAMAGE,
    )  # fmt: skip
    yield from _files("", "", names | {".tmp-x": TOLD, ".rm-x": TOLD, "ext-x": TOLD, "lost+found": SILENT})
    for kind, make in KINDS.items():
        # A directory that holds nothing is a scope without a pointer: empty.
        expect = SILENT if kind == "directory" else DAMAGE
        yield Corruption(f"added: a {kind}", "0" * 64, "", expect, _make("0" * 64, make))
    yield Corruption("added: a file", "0" * 64, "", DAMAGE, _write("0" * 64, b""))
    for name in ("foreign", "latest.json", _SNAPSHOT, "state-x.json"):
        yield Corruption("added: a scope with junk", name, "", DAMAGE, _write(f"{'0' * 64}/{name}", b"{}"))


def _in_a_scope(scope: str) -> Iterator[Corruption]:
    names = dict.fromkeys(
        ("foreign", ".hidden", "latest.json.bak", "LATEST.JSON", "scope.lock.bak", "stateline.json", "objects",
         "0" * 64, "state-x.json", _SNAPSHOT, _SNAPSHOT.upper(), _SNAPSHOT + " ", " " + _SNAPSHOT, _SNAPSHOT + "\n",
         _SNAPSHOT.replace("2026", "\uff12\uff10\uff12\uff16"), _SNAPSHOT.replace("00000000", "0" * 16),
         _SNAPSHOT.replace("00000000", "0" * 9), "x-ext-1", "a b", "a\nb", "*", "-n"),
        DAMAGE,
    )  # fmt: skip
    yield from _files(scope, scope, names | {".tmp-x": TOLD, "ext-x": TOLD})


def _among_objects(sample: SampleStore) -> Iterator[Corruption]:
    sha = canonical.sha256(b"new")
    names = dict.fromkeys(("foreign", ".hidden", "0", "000", "AB", "zz", sha), DAMAGE)
    yield from _files("objects", "", names)
    used = sample.of("object")[0].path
    shelf = os.path.dirname(used)
    names = dict.fromkeys(("foreign", ".hidden", os.path.basename(used)[:-1], os.path.basename(used).upper()), DAMAGE)
    yield from _files(shelf, "", names | {shelf[-2:] + "0" * 62: DAMAGE, ".tmp-x": TOLD})
    free = next(f"{number:02x}" for number in range(256) if not (sample.pristine / f"objects/{number:02x}").exists())
    for kind, make in KINDS.items():
        expect = SILENT if kind == "directory" else DAMAGE
        yield Corruption(f"added: a {kind}", f"objects/{free}", "", expect, _make(f"objects/{free}", make))
    yield Corruption("added: a file", f"objects/{free}", "", DAMAGE, _write(f"objects/{free}", b""))
    yield Corruption("added: an object", "that nobody names", "", TOLD, _object(b"new"))
    for place in sample.of("object", "unreferenced"):
        wrong = f"objects/{free}/{os.path.basename(place.path)}"
        yield Corruption(
            "added: an object", f"{place.path} in {free}", "", DAMAGE, _write(wrong, sample.read(place.path))
        )


def _object(data: bytes) -> Callable[[Path], object]:
    return _write(naming.object_path(canonical.sha256(data)), data)


# -- copies and replays ------------------------------------------------------------------------------------------------


def replayed(sample: SampleStore) -> Iterator[Corruption]:
    """Snapshots under their other legal labels, and under illegal ones."""
    for place in sample.of("snapshot", "unacknowledged"):
        scope, name = place.path.split("/")
        data = sample.read(place.path)
        sha = canonical.sha256(data)
        for label, what in (
            (sha[:16], "16 digits"),
            (sha, "64 digits"),
            (sha[:12], "12 digits"),
            (sha[:8][::-1], "none"),
        ):
            path = f"{scope}/{name.rpartition('-')[0]}-{label}.json"
            # The same bytes twice: nothing is lost, but no writer leaves that behind.
            yield Corruption("snapshot twice", f"{place.path}: {what}", scope, DAMAGE, _write(path, data))
        later = f"{scope}/state-2031-01-01T000000.000000Z-{sha[:8]}.json"
        yield Corruption("snapshot under another time", place.path, scope, DAMAGE, _write(later, data))


def pointed(sample: SampleStore) -> Iterator[Corruption]:
    """Pointers set back, set forward, mixed, and of other shapes; and pointers where there was none."""
    for scope, chain in sample.chains.items():
        path = f"{scope}/latest.json"
        shas = {name: canonical.sha256(sample.read(f"{scope}/{name}")) for name in chain}
        loose = dict(_loose(sample, scope))
        for steps, name in enumerate(reversed(chain[:-1]), 1):
            expect = TOLD if steps == 1 and _looks_like_a_crash(sample, scope, [*loose.values()]) else DAMAGE
            act = _write(path, _pointer(name, shas[name]))
            yield Corruption("pointer set back", f"{scope} by {steps}", scope, expect, act)
        for sha, document in loose.items():
            expect = _forward(sample, scope, document, [*loose.values()])
            act = _write(path, _pointer(document["name"], sha))
            yield Corruption("pointer set forward", f"{scope} to {document['name']}", scope, expect, act)
        for name in chain:
            for other in chain:
                if name != other:
                    act = _write(path, _pointer(name, shas[other]))
                    yield Corruption("pointer mixed", f"{name} with the sha of {other}", scope, DAMAGE, act)
        yield from _shapes(scope, path, chain[-1], shas[chain[-1]])
    for scope in sample.bare:
        firsts = list(_loose(sample, scope))
        for sha, document in firsts:
            # The end of a first save whose pointer was never written. Of another one it may be said that it is beside.
            expect = SILENT if len(firsts) == 1 else ANY - DAMAGE
            act = _write(f"{scope}/latest.json", _pointer(document["name"], sha))
            yield Corruption("pointer added", f"{scope} to {document['name']}", scope, expect, act)


def _loose(sample: SampleStore, scope: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Digests and content of the snapshots of a scope that were never acknowledged, with their ``name``."""
    for place in sample.of("unacknowledged"):
        if place.scope == scope:
            yield canonical.sha256(sample.read(place.path)), sample.document(place.path) | {"name": _name(place.path)}


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _looks_like_a_crash(sample: SampleStore, scope: str, loose: list[dict[str, Any]]) -> bool:
    """Return whether a pointer that names the snapshot before the head is what a crash leaves: the head follows it,
    nothing follows the head, and what is below needs no word of the head's about what is lost."""
    before, head = sample.chains[scope][-2:]
    document = sample.document(f"{scope}/{head}")
    declared = document["event"].get("repaired", {})
    follows = document["prev"] == before
    return follows and not any(one["prev"] == head for one in loose) and not any(map(declared.get, ("gaps", "objects")))


def _forward(sample: SampleStore, scope: str, document: dict[str, Any], loose: list[dict[str, Any]]) -> frozenset[str]:
    """Expected finding for a pointer to a snapshot that was never acknowledged: nothing if that follows the head,
    else that the head is now what it was."""
    chain = sample.chains[scope]
    if document["prev"] == chain[-1]:
        return SILENT if sum(one["prev"] == chain[-1] for one in loose) == 1 else ANY - DAMAGE
    head = sample.document(f"{scope}/{chain[-1]}")
    beside = document["prev"] == head["prev"] and document["prev_sha"] == head["prev_sha"]
    declared = head["event"].get("repaired", {})
    lonely = not any(one["prev"] == chain[-1] for one in loose) and not any(map(declared.get, ("gaps", "objects")))
    return TOLD if beside and lonely else DAMAGE


def _pointer(path: Any, sha: Any, version: Any = "1", **more: Any) -> bytes:
    document = {"path": path, "sha256": sha, "version": version} | more
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _shapes(scope: str, path: str, name: str, sha: str) -> Iterator[Corruption]:
    good = _pointer(name, sha)
    damage = {
        "an unknown member": _pointer(name, sha, more=1),
        "an absolute path": _pointer(f"/tmp/{name}", sha),
        "a path upwards": _pointer(f"../{scope}/{name}", sha),
        "a path with a NUL": _pointer(f"{name}\0", sha),
        "a path that is a number": _pointer(7, sha),
        "a digest in capitals": _pointer(name, sha.upper()),
        "a digest cut": _pointer(name, sha[:-1]),
        "a digest that is null": _pointer(name, None),
        "a version that is a number": _pointer(name, sha, 1),
        "a version without a digit": _pointer(name, sha, ""),
        "a version with three parts": _pointer(name, sha, "1.0.0"),
        "another time": _pointer("state-2031-01-01T000000.000000Z" + name[-14:], sha),
        "an array": b"[" + good + b"]",
        "keys in another order": b'{"version":"1",' + good[1:].rpartition(b",")[0] + b"}",
        "white space": good.replace(b",", b", "),
        "a byte order mark": b"\xef\xbb\xbf" + good,
        "a key twice": good[:-1] + b',"version":"1"}',
        "5,000 digits": _pointer(name, sha, "1" * 5000),
        "deep nesting": b"[" * 2000 + b"]" * 2000,
    }
    for what, data in damage.items():
        yield Corruption("pointer of another shape", f"{scope}: {what}", scope, DAMAGE, _write(path, data))
    for version, expect in (("2", TOLD), ("10", TOLD), ("1.1", ANY - DAMAGE)):
        act = _write(path, _pointer(name, sha, version))
        yield Corruption("pointer of another version", f"{scope}: {version}", scope, expect, act)


def store_files(sample: SampleStore) -> Iterator[Corruption]:
    """``stateline.json`` of other shapes."""
    name = "stateline.json"
    good = sample.read(name)
    shapes = {
        "no id": (b'{"format":"stateline/1"}', DAMAGE),
        "an id that is null": (b'{"format":"stateline/1","store_id":null}', DAMAGE),
        "a short id": (b'{"format":"stateline/1","store_id":"00"}', DAMAGE),
        "an id in capitals": (b'{"format":"stateline/1","store_id":"' + b"A" * 32 + b'"}', DAMAGE),
        "another id": (b'{"format":"stateline/1","store_id":"' + b"0" * 32 + b'"}', SILENT),
        "a member more": (good[:-1] + b',"z":1}', SILENT),
        "another format": (good.replace(b"stateline/1", b"tateline/1"), DAMAGE),
        "a newer format": (good.replace(b"stateline/1", b"stateline/2"), TOLD),
        "no format": (b'{"store_id":"' + b"0" * 32 + b'"}', DAMAGE),
        "an array": (b"[]", DAMAGE),
        "5,000 bytes": (good[:-1] + b',"z":"' + b"z" * 5000 + b'"}', DAMAGE),
    }
    for what, (data, expect) in shapes.items():
        yield Corruption("store file of another shape", what, "", expect, _write(name, data))


def opened(sample: SampleStore) -> Iterator[Corruption]:
    """Files and directories that others may use."""
    places = [place.path for place in sample.places if place.role not in ("temporary", "removed", "set aside")]
    directories = sorted({os.path.dirname(path) for path in places} | {"objects"})
    for path in [*places, *directories]:
        yield Corruption(
            "opened to others", path or "the state dir", "", TOLD, lambda root, p=path: (root / p).chmod(0o755)
        )


def directories_replaced(sample: SampleStore) -> Iterator[Corruption]:
    """Scopes, ``objects`` and its shelves made something that is no directory."""
    shelves = sorted({os.path.dirname(place.path) for place in sample.of("object")})
    for path in [*sorted(sample.keys), "objects", *shelves]:
        for kind, make in KINDS.items():
            if kind != "directory":
                yield Corruption(f"directory made a {kind}", path, "", DAMAGE, _instead(path, make))
        act = _instead(path, lambda made, good=sample.elsewhere / path: os.symlink(good, made))
        yield Corruption("directory made a symlink to its content", path, "", DAMAGE, act)


def _instead(path: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def act(root: Path) -> None:
        shutil.rmtree(root / path)
        make(root / path)

    return act
