"""Every name in a state dir, made and parsed in this one file. Pure.

Names come from data that others may have written, so parsing is strict: what does not match is not ours, and no key,
id or pointer ever becomes a path unhashed or unchecked.
"""

from __future__ import annotations

import re
from functools import lru_cache

from stateline.bundle.canonical import sha256
from stateline.errors import UsageError

STORE_FILE = "stateline.json"
POINTER = "latest.json"
LOCK = "scope.lock"
OBJECTS = "objects"
TEMPORARY = ".tmp-"
"""Prefix of files being written; what a crash leaves under it is residue."""
HELD = ".tmp-held"
"""The mark in a scope's directory: there while something half written may lie here. Where it is there and nobody holds
the lock, the last holder died or could not clear up."""
REMOVED = ".rm-"
"""Prefix of a scope's directory on its way out; what a crash leaves under it is residue."""
EXTENSION = "ext-"
"""Names that begin with this, in the state dir or a scope's directory, are kept for newer minor versions: not looked
into, and no damage."""
LABEL = 8
"""Hex digits of the sha in a snapshot's name: a label for people. Every link carries all 64."""

KINDS = ("context", "run", "session", "machine")
"""Kinds of scopes that Stateline itself writes. Embedders may use others."""

_hash = re.compile(r"[0-9a-f]{64}")
_place = re.compile(r"[0-9a-f]{64}|objects(?:/[0-9a-f]{2})?")
_shelf = re.compile(r"[0-9a-f]{2}")
_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_store_id = re.compile(r"[0-9a-f]{32}")
_format = re.compile(r"stateline/[0-9]+")
_kind = re.compile(r"[a-z][a-z0-9-]{0,31}")
_snapshot = re.compile(
    r"state-(\d{4}-\d{2}-\d{2}T\d{6}\.\d{6}Z)-([0-9a-f]{8}|[0-9a-f]{16}|[0-9a-f]{64})\.json", re.ASCII
)
_created = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}Z", re.ASCII)


def is_sha256(text: object) -> bool:
    """Whether ``text`` is a full SHA-256 in lower-case hex."""
    return isinstance(text, str) and _hash.fullmatch(text) is not None


def is_store_id(text: object) -> bool:
    """Whether ``text`` can be the random id of a store: 32 digits in lower-case hex."""
    return isinstance(text, str) and _store_id.fullmatch(text) is not None


def is_format(text: str) -> bool:
    """Whether ``text`` names a format of state dirs, ours or a newer one: ``stateline/`` and a number."""
    return _format.fullmatch(text) is not None


def is_id(text: str) -> bool:
    """Whether ``text`` can be the id of a run, a context or a checkpoint."""
    return _id.fullmatch(text) is not None


def checked_id(text: str, what: str = "id") -> str:
    """``text`` if it is an id. Raises :class:`UsageError` otherwise (``../../x``, NUL, 300 characters ...)."""
    if not is_id(text):
        shown = ascii(text[:40]) + ("..." if len(text) > 40 else "")
        raise UsageError(
            f"{shown} is not a valid {what}; nothing was read or written",
            hint="1 to 64 characters: letters, digits, '.', '_', '-'; the first a letter or digit",
        )
    return text


def checked_key(key: str) -> str:
    """``key`` if it is a scope key: a kind, a colon, and 1 to 1,024 printable characters.

    Raises :class:`UsageError` otherwise. Keys are hashed before they become a path, so the rest may hold anything
    that can be shown.
    """
    kind, colon, name = key.partition(":")
    if not colon or not _kind.fullmatch(kind) or not 0 < len(name) <= 1024 or not name.isprintable():
        shown = ascii(key[:60]) + ("..." if len(key) > 60 else "")
        raise UsageError(
            f"{shown} is not a scope key; nothing was read or written",
            hint="a key is KIND:NAME, for example context:docs-demo or run:exec-1",
        )
    return key


@lru_cache(16)
def scope_hash(key: str) -> str:
    """The directory name of a scope: the SHA-256 of its key."""
    return sha256(key.encode("utf-8"))


def is_created_at(text: str) -> bool:
    """Whether ``text`` is RFC 3339 UTC with microseconds, as envelopes hold it."""
    return _created.fullmatch(text) is not None


def snapshot_name(created_at: str, sha: str, label: int = LABEL) -> str:
    """The file name of a snapshot. Colons are left out: they are illegal on Windows and awkward in archives."""
    return f"state-{created_at.replace(':', '')}-{sha[:label]}.json"


def snapshot_parts(name: str) -> tuple[str, str] | None:
    """(time without colons, sha label) of a snapshot's file name, or None if it is not one."""
    match = _snapshot.fullmatch(name)
    return (match[1], match[2]) if match else None


def name_fits(name: str, created_at: str, sha: str) -> bool:
    """Whether ``name`` is a name that this snapshot may have."""
    if name == snapshot_name(created_at, sha):
        return True
    parts = snapshot_parts(name)
    return parts is not None and parts[0] == created_at.replace(":", "") and sha.startswith(parts[1])


def object_path(sha: str) -> str:
    """Where an object lies, relative to the state dir."""
    return f"{OBJECTS}/{sha[:2]}/{sha}"


def is_shelf(name: str) -> bool:
    """Whether ``name`` is a directory of ``objects``: the first two digits of the digests in it."""
    return _shelf.fullmatch(name) is not None


def checked_scope(scope: str) -> str:
    """``scope`` if it is a scope's hash. Raises :class:`UsageError` otherwise: it becomes a directory's name."""
    if not is_sha256(scope):
        raise UsageError(f"{scope[:80]!a} is not a scope's hash; nothing was read or written")
    return scope


def checked_place(place: str) -> str:
    """``place`` if it is a directory of a state dir: a scope's hash, ``objects`` or ``objects/<2 hex>``.

    Raises :class:`UsageError` otherwise.
    """
    if not _place.fullmatch(place):
        raise UsageError(f"{place[:80]!a} is not a place in a state dir; nothing was read or written")
    return place


def blob_parts(name: str) -> tuple[str, str]:
    """(place, file name) of a blob. Raises :class:`UsageError` for what could lead out of its place."""
    place, _, file = name.rpartition("/")
    if file in ("", ".", "..") or "\0" in file or "\\" in file:
        raise UsageError(f"{name[:120]!a} is not a name in a state dir; nothing was read or written")
    return checked_place(place), file
