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
    UnsafePathError,
)
from stateline.store.objects import ObjectStore
from stateline.store.protocol import BlobMissingError
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot, parse_snapshot, read_head

SHORTEST = 4
"""Fewest digits of a sha that name a snapshot; fewer are mostly typing mistakes."""
_LISTED = 8
"""Most candidates listed for an ambiguous prefix."""

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
        key, name = match[1], match[2]
        snapshot = _known(store, key)
        if not _digits.fullmatch(name):
            raise NotFoundError(
                f"{key} has no checkpoint {name[:64]!a}",
                hint=f"{key}@SEQ names a snapshot by its number; `stateline log {key}` lists them",
            )
        if int(name) > snapshot.seq:
            hint = f"`stateline log {key}` lists them"
            raise NotFoundError(f"{key} has no snapshot {name}; its head is {snapshot.seq}", hint=hint)
        return _steps_back(store, snapshot, snapshot.seq - int(name))
    raise _not_found(store, text)


def _head(store: ObjectStore, key: str) -> Snapshot | None:
    # A key with a lone surrogate (a command line that is not UTF-8) has no hash, so it has no scope either.
    if ":" not in key or not key.isprintable():
        return None
    return read_head(store.backend, naming.scope_hash(key))


def _known(store: ObjectStore, key: str) -> Snapshot:
    snapshot = _head(store, key)
    if snapshot is None:
        raise _not_found(store, key)
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


def _not_found(store: ObjectStore, text: str) -> NotFoundError:
    shown = ascii(text[:80]) if not text.isprintable() or len(text) > 80 else text
    if ":" in text:
        return NotFoundError(f"there is no scope {shown} in {store.backend.describe()}", hint=_LIST)
    return NotFoundError(f"{shown} is neither a scope's key (KIND:NAME) nor the first digits of a sha", hint=_LIST)


def _by_sha(store: ObjectStore, text: str) -> Snapshot:
    prefix = text.lower()
    if not _hex.fullmatch(prefix):
        raise _not_found(store, text)
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
