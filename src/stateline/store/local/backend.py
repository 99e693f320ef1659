"""The local backend: one directory, plain files, POSIX calls.

Acknowledged data survives a power loss; with ``fast`` durability, the death of every process. The order of a commit and
the reason for each step are written at the step. Readers open, read and close; they create nothing, change no mode and
hold no lock (``is_locked`` tries one for an instant). ``docs/format.md`` describes the tree, ADR 0002 the commit
protocol, ADR 0010 ``full`` and ``fast``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer, read_pointer
from stateline.errors import (
    DurabilityUnknownError,
    IntegrityError,
    StatelineError,
    UnsafePathError,
    UsageError,
)
from stateline.store.local.atomic_write import holds, put_file, require_not_swept
from stateline.store.local.directories import Directories
from stateline.store.local.filesystem import Directory, Filesystem, FileTooLargeError, NotRegularFileError, Stat
from stateline.store.local.os_errors import storage
from stateline.store.local.permissions import path_problem
from stateline.store.local.state_dir import StateDir
from stateline.store.local.store_file import SMALL_FILE
from stateline.store.protocol import DAMAGE_HINT, FAST, FULL, BlobMissingError, Durability, PathProblem, moved_head

SWAP_WAIT = 10.0
"""Limit of the wait of a swap outside the lock [s]."""

T = TypeVar("T")


class LocalBackend:
    """A state dir on a local file system. ``path`` need not exist; the first writer creates it, 0700.

    Safe for several threads and processes at once. ``fs`` is the seam through which all system calls go.
    ``trust_parent``: write even if others may write to a directory above the state dir.
    """

    def __init__(
        self, path: str, fs: Filesystem | None = None, *, durability: Durability = FULL, trust_parent: bool = False
    ) -> None:
        if durability not in (FULL, FAST):
            raise UsageError(f"{durability!r} is not a durability; nothing was changed", hint="use full or fast")
        self.path = os.path.abspath(path)
        self.fs = fs or Filesystem()
        self.durability: Durability = durability
        self.state_dir = StateDir(self.path, self.fs, trust_parent=trust_parent)
        self.directories = Directories(self.state_dir, self.fs)
        self.warnings = self.state_dir.warnings

    def describe(self) -> str:
        return self.path

    def prepare(self) -> None:
        self.state_dir.prepare()

    def require_writable(self) -> None:
        self.state_dir.require_writable()

    # -- blobs -----------------------------------------------------------------------------------------------------

    def get(self, name: str, limit: int) -> bytes:
        return self._read(name, limit, self.fs.read)

    def digest(self, name: str, limit: int) -> str:
        return self._read(name, limit, self.fs.digest)

    def _read(self, name: str, limit: int, read: Callable[[Directory, str, int], tuple[T, Stat]]) -> T:
        place, base = naming.blob_parts(name)
        path = f"{self.path}/{name}"
        with storage(f"read {path}"):
            try:
                with self.directories.open(place) as directory:
                    found, stat = read(directory, base, limit)
                    self.state_dir.check_access(stat, path, "file", writing=self.directories.holds_any())
                    return found
            except FileNotFoundError:
                raise BlobMissingError(name) from None
            except NotRegularFileError:
                raise _not_regular(path) from None
            except FileTooLargeError as error:
                message = f"{path} is too large: {error.strerror}"
                raise IntegrityError(message, finding="too_large", hint=DAMAGE_HINT) from None

    def has(self, name: str, size: int) -> bool:
        naming.blob_parts(name)
        root = self.state_dir.open()
        with storage(f"look at {self.path}/{name}"), suppress(FileNotFoundError, NotADirectoryError):
            # By the whole path, in one call: nothing is opened that could be another user's.
            stat = self.fs.stat(root, name) if root is not None else None
            return stat is not None and stat.kind == "file" and stat.size == size
        return False

    def list(self, prefix: str) -> Iterator[str]:
        naming.checked_directory(prefix)
        with (
            storage(f"list {self.path}/{prefix}"),
            suppress(FileNotFoundError),
            self.directories.open(prefix) as directory,
        ):
            yield from self.fs.names(directory)

    def put(self, name: str, data: bytes) -> None:
        place, base = naming.blob_parts(name)
        self.prepare()
        path = f"{self.path}/{name}"
        durable = self.durability == FULL
        with storage(f"write {path}"), self.directories.open_for_writing(place) as directory:
            made = False
            try:
                if not self._exists(directory, place, base, data):
                    with self.directories.temporary(place) as temporary:
                        made = put_file(self.fs, (temporary, directory), base, data, durable=durable)
            except NotRegularFileError:
                raise _not_regular(path) from None
            if durable:
                if not made:
                    # Another writer may have put it just now, or with ``fast``, and not synced it.
                    self.state_dir.sync_file(directory, base)
                # Without this the name, and with it the file, may be gone after a power loss.
                self.directories.sync(directory, f"{path} is there")

    def _exists(self, directory: Directory, place: str, base: str, data: bytes) -> bool:
        # A snapshot's name is new unless the clock is broken; an object often exists, and is not written again.
        if not place.startswith(naming.OBJECTS):
            return False
        stat = holds(self.fs, directory, base, data)
        if stat is not None:
            self.state_dir.check_access(stat, os.path.join(directory.path, base), "file", writing=True)
        return stat is not None

    def settle(self, names: Iterable[str]) -> None:
        places: dict[str, list[str]] = {}
        for name in names:
            place, base = naming.blob_parts(name)
            places.setdefault(place, []).append(base)
        if not places:
            return
        self.prepare()
        # Objects first, as in a commit.
        for place, files in sorted(places.items(), key=lambda item: not item[0].startswith(naming.OBJECTS)):
            with storage(f"sync {self.path}/{place}"):
                self._settle(place, files)

    def _settle(self, place: str, files: Sequence[str]) -> None:
        base = files[0]
        try:
            with self.directories.open(place) as directory:
                for base in files:
                    self.state_dir.sync_file(directory, base)
                if naming.is_sha256(place):
                    with suppress(FileNotFoundError):
                        self.state_dir.sync_file(directory, naming.POINTER)
                self.state_dir.sync(directory)
        except FileNotFoundError:
            raise BlobMissingError(f"{place}/{base}") from None

    # -- heads -----------------------------------------------------------------------------------------------------

    def read(self, scope: str) -> Pointer | None:
        path = f"{self.path}/{naming.checked_scope(scope)}/{naming.POINTER}"
        try:
            data = self.get(f"{scope}/{naming.POINTER}", SMALL_FILE)
        except BlobMissingError:
            return None
        held = self.directories.held(scope)
        if held is not None:
            held.directory.durable = True
        try:
            return read_pointer(data, path)
        except IntegrityError as error:
            raise IntegrityError(error.message, finding=error.finding, hint=DAMAGE_HINT) from None

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        durable = self.durability == FULL
        doing = f"write {self.path}/{scope}/{naming.POINTER}"
        with self.lock(scope, SWAP_WAIT), storage(doing), self.directories.open_for_writing(scope) as directory:
            held = self.directories.current(scope)
            temporary = held.write(new.encode(), durable=durable)
            try:
                # After the file is synced, which takes long: where the lock does not hold, the head may move in
                # the meantime.
                if self.read(scope) != expected:
                    raise moved_head()
                self.fs.rename(directory, temporary, directory, naming.POINTER)
            except (OSError, StatelineError) as error:
                # A network mount may rename and lose the answer.
                if isinstance(error, StatelineError) or not self._is_head(scope, new, error):
                    try:
                        require_not_swept(self.fs, directory, temporary, error)
                        raise
                    finally:
                        held.discard(temporary)
            held.renamed()
            if durable:
                # Only now is the commit durable; only after this may it be acknowledged.
                self.directories.sync(directory, "the new head is visible")

    def _is_head(self, scope: str, pointer: Pointer, failed: OSError) -> bool:
        """Return True if it is the head although the rename ``failed``. Raises ``DurabilityUnknownError`` if that
        cannot be read."""
        try:
            return self.read(scope) == pointer
        except StatelineError as error:
            self.state_dir.poison()
            # The temporary file stays, and so does the mark beside it: the next holder sweeps.
            raise DurabilityUnknownError(
                f"it is not known whether the head moved: making the new one visible failed ({failed.strerror}), and "
                f"the pointer could not be read: {error.message}",
                hint="check the disk, then run `stateline verify`",
            ) from failed

    def scopes(self) -> Iterator[str]:
        root = self.state_dir.open()
        if root is not None:
            with storage(f"list {self.path}"):
                yield from (name for name in self.fs.names(root) if naming.is_sha256(name))

    def lock(self, scope: str, wait: float) -> AbstractContextManager[None]:
        return self.directories.lock(naming.checked_scope(scope), wait)

    def is_locked(self, scope: str) -> bool | None:
        naming.checked_scope(scope)
        try:
            with self.directories.open(scope) as directory:
                return self.fs.is_locked(directory, naming.LOCK)
        except FileNotFoundError:
            return False
        except (OSError, StatelineError):
            return None

    def remove(self, scope: str) -> None:
        naming.checked_scope(scope)
        self.prepare()
        with storage(f"remove {self.path}/{scope}"):
            self.directories.remove(scope)

    # -- for verify ------------------------------------------------------------------------------------------------

    def check_store_file(self) -> StatelineError | None:
        return self.state_dir.check_store_file()

    def top_names(self) -> Iterator[str]:
        root = self.state_dir.open_unexamined()
        if root is not None:
            with storage(f"list {self.path}"):
                yield from self.fs.names(root)

    def inspect(self, name: str) -> PathProblem | None:
        if not name:
            with storage(f"look at {self.path}"), suppress(FileNotFoundError, NotADirectoryError):
                return path_problem(self.fs.stat_path(self.path), self.path, "directory")
            return None
        kind = "directory" if name.endswith("/") else "file"
        place, _, base = name.rstrip("/").rpartition("/")
        root = self.state_dir.open_unexamined()
        if root is None:
            return None
        with storage(f"look at {self.path}/{name}"), suppress(FileNotFoundError):
            if not place:
                return path_problem(self.fs.stat(root, base), os.path.join(self.path, base), kind)
            with self.directories.open(place) as directory:
                return path_problem(self.fs.stat(directory, base), os.path.join(directory.path, base), kind)
        return None

    def parent_problems(self) -> tuple[PathProblem, ...]:
        with storage(f"look at the directories above {self.path}"):
            return self.state_dir.parent_problems()


def _not_regular(path: str) -> UnsafePathError:
    return UnsafePathError(f"{path} is not a regular file; it was not opened", hint="inspect it by hand; move it away")
