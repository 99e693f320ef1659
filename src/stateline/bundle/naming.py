"""All names in a state dir: built and parsed in this one module. Pure.

Names come from data that others may have written, so parsing is strict: other names are not Stateline's, and every key,
id or pointer is hashed or checked before it becomes a path.
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
"""Prefix of files that are being written; a crash may leave some behind."""
HELD = ".tmp-held"
"""Mark in a scope's directory: it exists while files may be half written. If it exists and the lock is free, the last
holder died or could not clean up."""
REMOVED = ".rm-"
"""Prefix of a scope's directory that is being removed; a crash may leave some behind."""
EXTENSION = "ext-"
"""Prefix of names, in the state dir or a scope's directory, that belong to newer minor versions: they are ignored, and
not damage."""
LABEL = 8
"""Hex digits of the sha in a snapshot's name, for people. Every link has all 64."""

_hash = re.compile(r"[0-9a-f]{64}")
_directory = re.compile(r"[0-9a-f]{64}|objects(?:/[0-9a-f]{2})?")
_object_directory = re.compile(r"[0-9a-f]{2}")
_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_store_id = re.compile(r"[0-9a-f]{32}")
_format = re.compile(r"stateline/[0-9]+")
_kind = re.compile(r"[a-z][a-z0-9-]{0,31}")
_snapshot = re.compile(
    r"state-(\d{4}-\d{2}-\d{2}T\d{6}\.\d{6}Z)-([0-9a-f]{8}|[0-9a-f]{16}|[0-9a-f]{64})\.json", re.ASCII
)
_created = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}Z", re.ASCII)


def is_sha256(text: object) -> bool:
    """Return true for a full SHA-256 in lower-case hex."""
    return isinstance(text, str) and _hash.fullmatch(text) is not None


def is_store_id(text: object) -> bool:
    """Return true for the random id of a store: 32 digits in lower-case hex."""
    return isinstance(text, str) and _store_id.fullmatch(text) is not None


def is_format(text: str) -> bool:
    """Return true for the name of a format of state dirs, this or a newer one: ``stateline/`` and a number."""
    return _format.fullmatch(text) is not None


def is_id(text: str) -> bool:
    """Return true for a valid id of a run, a context or a checkpoint."""
    return _id.fullmatch(text) is not None


def checked_id(text: str, what: str = "id") -> str:
    """Return ``text`` if it is an id. Raises :class:`UsageError` otherwise (``../../x``, NUL, 300 characters ...)."""
    if not is_id(text):
        shown = ascii(text[:40]) + ("..." if len(text) > 40 else "")
        raise UsageError(
            f"{shown} is not a valid {what}; nothing was read or written",
            hint="1 to 64 characters: letters, digits, '.', '_', '-'; the first a letter or digit",
        )
    return text


def checked_key(key: str) -> str:
    """Return ``key`` if it is a scope key: a kind, a colon, and 1 to 1,024 printable characters.

    Raises :class:`UsageError` otherwise. Keys are hashed before they become a path, so all printable characters are
    safe.
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
    """Return the directory name of a scope: the SHA-256 of its key."""
    return sha256(key.encode("utf-8"))


def is_created_at(text: str) -> bool:
    """Return true for RFC 3339 UTC with microseconds, as in envelopes."""
    return _created.fullmatch(text) is not None


def snapshot_name(created_at: str, sha: str, label: int = LABEL) -> str:
    """Return the file name of a snapshot. It has no colons: they are illegal on Windows and awkward in archives."""
    return f"state-{created_at.replace(':', '')}-{sha[:label]}.json"


def snapshot_parts(name: str) -> tuple[str, str] | None:
    """Return (time without colons, sha label) of a snapshot's file name, or None for another name."""
    match = _snapshot.fullmatch(name)
    return (match[1], match[2]) if match else None


def name_fits(name: str, created_at: str, sha: str) -> bool:
    """Return true if this snapshot may have the file name ``name``."""
    if name == snapshot_name(created_at, sha):
        return True
    parts = snapshot_parts(name)
    return parts is not None and parts[0] == created_at.replace(":", "") and sha.startswith(parts[1])


def object_path(sha: str) -> str:
    """Return the path of an object, relative to the state dir."""
    return f"{OBJECTS}/{sha[:2]}/{sha}"


def is_object_directory(name: str) -> bool:
    """Return true for the name of a directory in ``objects``: the first two digits of the digests in it."""
    return _object_directory.fullmatch(name) is not None


def checked_scope(scope: str) -> str:
    """Return ``scope`` if it is a scope's hash. Raises :class:`UsageError` otherwise: it becomes a directory's name."""
    if not is_sha256(scope):
        raise UsageError(f"{scope[:80]!a} is not a scope's hash; nothing was read or written")
    return scope


def checked_directory(place: str) -> str:
    """Return ``place`` if it is a directory of a state dir: a scope's hash, ``objects`` or ``objects/<2 hex>``.

    Raises :class:`UsageError` otherwise.
    """
    if not _directory.fullmatch(place):
        raise UsageError(f"{place[:80]!a} is not a directory in a state dir; nothing was read or written")
    return place


def blob_parts(name: str) -> tuple[str, str]:
    """Return (directory, file name) of a blob. Raises :class:`UsageError` for a name that could lead out of it."""
    place, _, file = name.rpartition("/")
    if file in ("", ".", "..") or "\0" in file or "\\" in file:
        raise UsageError(f"{name[:120]!a} is not a name in a state dir; nothing was read or written")
    return checked_directory(place), file
