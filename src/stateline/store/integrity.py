"""Integrity: check the objects that snapshots name, tell kinds of damage apart, and hint at what is still intact."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Ref
from stateline.bundle.objects import references
from stateline.errors import IntegrityError, NewerVersionError, StatelineError, UnsafePathError
from stateline.store.objects import read_object
from stateline.store.protocol import Backend, BlobMissingError, Inspectable
from stateline.store.snapshot import Snapshot, parse_snapshot

Cause = Literal["lost", "mislabelled", "unreadable", "newer"]
"""Why an object is of no use: its bytes are missing or altered; its bytes are good, but the Ref gives another size or
type; the system refused to read it, which may pass; a newer version wrote it."""


class ObjectFault(msgspec.Struct, frozen=True):
    """One object that cannot be used as it is named. ``code`` is the code that ``verify`` reports."""

    cause: Cause
    sha256: str
    code: str
    message: str


class ObjectChecker:
    """Checks objects of a backend. Memory grows with their number, not with their sizes."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._seen: dict[Ref, tuple[ObjectFault | None, tuple[Ref, ...]]] = {}
        self._good: set[Ref] = set()

    def faults(self, refs: Iterable[Ref]) -> list[ObjectFault]:
        """Return the faults of these objects and of all that they name in turn, sorted; empty if all are intact.

        Raises ``UnsafePathError`` for a file that others may change: a writer must not trust its content.
        """
        found: list[ObjectFault] = []
        reached: set[Ref] = set()
        waiting = [*refs]
        while waiting:
            ref = waiting.pop()
            if ref in reached or ref in self._good:
                continue
            reached.add(ref)
            if ref not in self._seen:
                self._seen[ref] = self._check(ref)
            fault, inner = self._seen[ref]
            if fault is not None:
                found.append(fault)
            waiting += inner
        if not found:
            self._good |= reached
        return sorted(found, key=lambda fault: (fault.sha256, fault.code))

    def _check(self, ref: Ref) -> tuple[ObjectFault | None, tuple[Ref, ...]]:
        path = naming.object_path(ref.sha256)
        try:
            return None, tuple(references(read_object(self.backend, ref), ref))
        except NewerVersionError as error:
            return ObjectFault("newer", ref.sha256, "newer_version", error.message), ()
        except IntegrityError as error:
            good = error.finding != "missing" and is_intact_object(self.backend, path)
            return ObjectFault("mislabelled" if good else "lost", ref.sha256, error.finding, error.message), ()
        except UnsafePathError as error:
            if wrong_kind(self.backend, path) is None:
                raise
            return ObjectFault("lost", ref.sha256, "not_regular", error.message), ()
        except StatelineError as error:
            return ObjectFault("unreadable", ref.sha256, "unreadable", error.message), ()


def digest_of(backend: Backend, path: str) -> str:
    """Return the SHA-256 of an object's bytes, in bounded memory where the backend supports it: anybody may have put a
    huge file there. Raises as ``Blobs.get``."""
    if isinstance(backend, Inspectable):
        return backend.digest(path, canonical.OBJECT_LIMIT)
    return canonical.sha256(backend.get(path, canonical.OBJECT_LIMIT))


def is_intact_object(backend: Backend, path: str) -> bool:
    """Return True if ``path`` is an object's, and its bytes have the digest in the name."""
    sha = path.rpartition("/")[2]
    try:
        return naming.is_sha256(sha) and naming.object_path(sha) == path and digest_of(backend, path) == sha
    except (StatelineError, BlobMissingError):
        return False


def wrong_kind(backend: Backend, path: str) -> str | None:
    """Return the first path on the way to ``path`` that is a link, FIFO or another kind of file than it must be.

    ``path`` names a file, or a directory if it ends with a slash. None if nothing is in the way; open modes are not.
    """
    if not isinstance(backend, Inspectable):
        return None
    parts = path.rstrip("/").split("/")
    steps = ["/".join(parts[:end]) + "/" for end in range(1, len(parts))]
    for step in [*steps, path]:
        found = backend.inspect(step)
        if found is not None and found.code in ("symlink", "not_regular"):
            return step.rstrip("/")
    return None


def with_recovery_hint(backend: Backend, key: str, error: IntegrityError) -> IntegrityError:
    """Return ``error`` of the scope ``key`` with its newest intact snapshot and the commands that help."""
    import shlex

    newest = newest_intact(backend, naming.scope_hash(key))
    found = f"the newest intact snapshot is {newest.path} (seq {newest.seq})" if newest else "no snapshot is intact"
    argument = shlex.quote(key)
    return IntegrityError(
        f"{error.message}. Nothing was changed; {found}.",
        finding=error.finding,
        hint=f"`stateline verify {argument}` lists all damage; `stateline repair {argument}` plans a repair",
    )


def newest_intact(backend: Backend, scope: str) -> Snapshot | None:
    """Return the newest snapshot of the scope with this hash that is intact, its objects included, or None.

    The pointer is not used. Reads from the newest, and stops at the first intact one.
    """
    objects = ObjectChecker(backend)
    names = sorted((name for name in backend.list(scope) if naming.snapshot_parts(name)), reverse=True)
    for name in names:
        with suppress(StatelineError, BlobMissingError):
            snapshot = parse_snapshot(scope, name, backend.get(f"{scope}/{name}", canonical.SNAPSHOT_LIMIT))
            if not objects.faults(snapshot.envelope.objects.values()):
                return snapshot
    return None
