"""Are the objects that a snapshot names there, and what they must be? Each is read once, however many name it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Ref
from stateline.bundle.objects import references
from stateline.errors import IntegrityError, NewerVersionError, StatelineError, UnsafePathError
from stateline.store.protocol import Backend, BlobMissingError, Places

if TYPE_CHECKING:
    from stateline.store.store import Store

Ground = Literal["lost", "lie", "unreadable", "newer"]
"""Why an object is of no use: its bytes are not there any more; whoever names it says of good bytes what is not so;
the system refused to read it, which may pass; a newer version wrote it."""


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with an object as it is named. ``code`` is that of ``verify``."""

    ground: Ground
    sha256: str
    code: str
    message: str


class Objects:
    """The objects of a store while it is looked through. Memory grows with their number, not with their sizes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._seen: dict[Ref, tuple[Fault | None, tuple[Ref, ...]]] = {}
        self._good: set[Ref] = set()

    def faults(self, refs: Iterable[Ref]) -> list[Fault]:
        """What is wrong with these objects and with all that they name in turn; nothing, if all is well.

        Raises ``UnsafePathError`` for a file that others may use, where a writer must not believe what it says.
        """
        found: list[Fault] = []
        reached: set[Ref] = set()
        waiting = [*refs]
        while waiting:
            ref = waiting.pop()
            if ref in reached or ref in self._good:
                continue
            reached.add(ref)
            if ref not in self._seen:
                self._seen[ref] = self._look(ref)
            fault, inner = self._seen[ref]
            if fault is not None:
                found.append(fault)
            waiting += inner
        if not found:
            self._good |= reached
        return sorted(found, key=lambda fault: (fault.sha256, fault.code))

    def _look(self, ref: Ref) -> tuple[Fault | None, tuple[Ref, ...]]:
        try:
            return None, tuple(references(self.store.get(ref), ref))
        except NewerVersionError as error:
            return Fault("newer", ref.sha256, "newer_version", error.message), ()
        except IntegrityError as error:
            lied = error.finding != "missing" and is_good_object(self.store.backend, naming.object_path(ref.sha256))
            return Fault("lie" if lied else "lost", ref.sha256, error.finding, error.message), ()
        except UnsafePathError as error:
            if out_of_kind(self.store.backend, naming.object_path(ref.sha256)) is None:
                raise
            return Fault("lost", ref.sha256, "not_regular", error.message), ()
        except StatelineError as error:
            return Fault("unreadable", ref.sha256, "unreadable", error.message), ()


def digest_of(backend: Backend, path: str) -> str:
    """The SHA-256 of an object's bytes, which are not held together where the backend can help it: whoever put the file
    there may have chosen its size. Raises as ``Blobs.get``."""
    if isinstance(backend, Places):
        return backend.digest(path, canonical.OBJECT_LIMIT)
    return canonical.sha256(backend.get(path, canonical.OBJECT_LIMIT))


def is_good_object(backend: Backend, path: str) -> bool:
    """Whether ``path`` is that of an object whose bytes are those of its name, whatever somebody says of its size and
    type."""
    sha = path.rpartition("/")[2]
    try:
        return naming.is_sha256(sha) and naming.object_path(sha) == path and digest_of(backend, path) == sha
    except (StatelineError, BlobMissingError):
        return False


def out_of_kind(backend: Backend, path: str) -> str | None:
    """What stands in the way of a file at ``path``, or of a directory if it ends with a slash: a link, FIFO, directory
    ... where a file must be, or anything else where a directory must be. None for what is merely open to others."""
    if not isinstance(backend, Places):
        return None
    parts = path.rstrip("/").split("/")
    steps = ["/".join(parts[:end]) + "/" for end in range(1, len(parts))]
    for step in [*steps, path]:
        found = backend.look(step)
        if found is not None and found.code in ("symlink", "not_regular"):
            return step.rstrip("/")
    return None
