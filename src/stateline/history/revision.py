"""Revisions, the names of snapshots: ``KEY``, ``KEY~N``, ``KEY@SEQ``, ``KEY@NAME``, or a sha's first digits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stateline.bundle import canonical, naming
from stateline.errors import (
    AmbiguousRevisionError,
    IntegrityError,
    NotFoundError,
    RequestError,
    StatelineError,
    UnsafePathError,
)
from stateline.store.objects import ObjectStore
from stateline.store.protocol import BlobMissingError
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot, parse_snapshot, read_head, read_snapshot

SHORTEST = 4
"""Fewest digits of a sha that name a snapshot; fewer are mostly typing mistakes."""
_LISTED = 8
"""Most candidates listed for an ambiguous prefix."""
_SUGGESTIONS = 256
"""Most scopes whose keys are read for a suggestion."""

_back = re.compile(r"(.+)~([0-9]{1,18})", re.DOTALL)
_at = re.compile(r"(.+)@([^@]*)", re.DOTALL)
_digits = re.compile(r"[0-9]{1,18}")
_hex = re.compile(r"[0-9a-f]{1,64}")

_LIST = "`stateline scopes` lists the scopes there are"


def find(store: ObjectStore, text: str) -> Snapshot:
    """Return the snapshot that ``text`` names. Never writes; ``KEY~N`` and ``KEY@SEQ`` walk the chain and list nothing.

    A scope whose key is exactly ``text`` wins over every other reading. Raises ``NotFoundError``,
    ``AmbiguousRevisionError``, ``RequestError`` for a prefix under ``SHORTEST`` digits, and ``IntegrityError`` when a
    snapshot between the head and the wanted one is damaged.
    """
    snapshot = _head(store, text)
    if snapshot is not None:
        return snapshot
    if ":" not in text:
        return _by_sha(store, text)
    match = _back.fullmatch(text)
    if match:
        return _steps_back(store, _known(store, match[1]), int(match[2]))
    match = _at.fullmatch(text)
    if match:
        snapshot = _known(store, match[1])
        return _by_seq(store, snapshot, int(match[2])) if _digits.fullmatch(match[2]) else _by_name(snapshot, match[2])
    raise _no_scope(store, text)


def _head(store: ObjectStore, key: str) -> Snapshot | None:
    # A key with a lone surrogate (a command line that is not UTF-8) has no hash, so it has no scope either.
    if ":" not in key or not key.isprintable():
        return None
    return read_head(store.backend, naming.scope_hash(key))


def _known(store: ObjectStore, key: str) -> Snapshot:
    snapshot = _head(store, key)
    if snapshot is None:
        raise _no_scope(store, key)
    return snapshot


def _steps_back(store: ObjectStore, snapshot: Snapshot, steps: int) -> Snapshot:
    key, newest = snapshot.envelope.scope, snapshot.seq
    if steps > newest:
        raise NotFoundError(
            f"{key} has {newest + 1} snapshots; none is {steps} before its head",
            hint=f"{key}~{newest} is the first, {key} the head",
        )
    wanted = newest - steps
    below = next((item for item in Scope(store, key).walk(snapshot) if item.seq <= wanted), None)
    if below is None or below.seq != wanted:
        raise NotFoundError(
            f"the snapshot {wanted} of {key} is lost, as a repair has recorded",
            hint=f"`stateline log {key}` lists the others",
        )
    return below


def _by_seq(store: ObjectStore, snapshot: Snapshot, seq: int) -> Snapshot:
    if seq > snapshot.seq:
        key = snapshot.envelope.scope
        raise NotFoundError(
            f"{key} has no snapshot {seq}; its head is {snapshot.seq}", hint=f"`stateline log {key}` lists them"
        )
    return _steps_back(store, snapshot, snapshot.seq - seq)


def _by_name(snapshot: Snapshot, name: str) -> Snapshot:
    key = snapshot.envelope.scope
    raise NotFoundError(
        f"{key} has no checkpoint {name[:64]!a}",
        hint=f"{key}@SEQ names a snapshot by its number; `stateline log {key}` lists them",
    )


def _no_scope(store: ObjectStore, key: str) -> NotFoundError:
    import difflib

    near = difflib.get_close_matches(key, [*_keys(store)], n=1)
    shown = ascii(key[:80]) if not key.isprintable() or len(key) > 80 else key
    return NotFoundError(f"there is no scope {shown}", hint=f"did you mean {near[0]}?" if near else _LIST)


def _keys(store: ObjectStore) -> Iterator[str]:
    """Yield the keys of some scopes, skipping damaged ones."""
    for number, scope in enumerate(store.backend.scopes()):
        if number == _SUGGESTIONS:
            return
        try:
            pointer = store.backend.read(scope)
            if pointer is not None:
                yield read_snapshot(store.backend, scope, pointer).envelope.scope
        except StatelineError:
            continue


def _by_sha(store: ObjectStore, text: str) -> Snapshot:
    prefix = text.lower()
    if not _hex.fullmatch(prefix):
        raise _not_a_revision(store, text)
    if len(prefix) < SHORTEST:
        raise RequestError(
            f"{prefix} is too short to name a snapshot",
            hint=f"give {SHORTEST} or more digits of its sha, or a scope's key; {_LIST}",
        )
    found: list[Snapshot] = []
    damaged: list[IntegrityError | UnsafePathError] = []
    for scope, path in _labelled(store, prefix):
        try:
            data = store.backend.get(f"{scope}/{path}", canonical.SNAPSHOT_LIMIT)
            snapshot = parse_snapshot(scope, path, data)
        except BlobMissingError:
            continue
        except (IntegrityError, UnsafePathError) as error:
            damaged.append(error)
            continue
        if snapshot.sha256.startswith(prefix):
            found.append(snapshot)
    if len(found) > 1:
        raise _ambiguous(prefix, found)
    if not found:
        raise damaged[0] if damaged else NotFoundError(f"no snapshot has a sha that begins with {prefix}", hint=_LIST)
    return found[0]


def _not_a_revision(store: ObjectStore, text: str) -> NotFoundError:
    import difflib

    # People often leave out the kind.
    names = {key.partition(":")[2]: key for key in _keys(store)}
    near = difflib.get_close_matches(text, [*names], n=1)
    shown = ascii(text[:80]) if not text.isprintable() or len(text) > 80 else text
    return NotFoundError(
        f"{shown} is neither a scope's key (KIND:NAME) nor the first digits of a sha",
        hint=f"did you mean {names[near[0]]}?" if near else _LIST,
    )


def _labelled(store: ObjectStore, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (scope's hash, file name) of each snapshot whose label does not contradict the prefix."""
    for scope in store.backend.scopes():
        try:
            names = [*store.backend.list(scope)]
        except UnsafePathError:
            continue
        for name in names:
            parts = naming.snapshot_parts(name)
            if parts and (parts[1].startswith(prefix) or prefix.startswith(parts[1])):
                yield scope, name


def _ambiguous(prefix: str, found: list[Snapshot]) -> AmbiguousRevisionError:
    found.sort(key=lambda snapshot: (snapshot.envelope.scope, snapshot.seq))
    lines = [f"{s.sha256} ({s.envelope.scope}@{s.seq})" for s in found[:_LISTED]]
    if len(found) > _LISTED:
        lines.append(f"and {len(found) - _LISTED} more")
    return AmbiguousRevisionError(
        f"{prefix} is the beginning of {len(found)} snapshots: {', '.join(lines)}", hint="give more digits"
    )
