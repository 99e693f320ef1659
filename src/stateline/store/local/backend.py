"""The local backend: one directory, plain files, POSIX calls. What is acknowledged survives a power loss, or with the
durability ``fast`` the death of every process.

The order of a commit and the reason for each step are written at the step. Readers open, read and close; they create
nothing, change no mode and leave no lock. ``docs/format.md`` describes the tree, ADR 0002 the protocol, ADR 0010 what
``full`` and ``fast`` promise.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer, read_pointer
from stateline.errors import (
    ConflictError,
    DurabilityUnknownError,
    IntegrityError,
    StatelineError,
    UnsafePathError,
    UsageError,
)
from stateline.store.local.atomic_write import SweptError, holds, put_file, require_there
from stateline.store.local.filesystem import Directory, Filesystem, FileTooLargeError, NotRegularFileError, Stat
from stateline.store.local.lock import Held, acquire, sweep
from stateline.store.local.os_errors import REPAIR, storage
from stateline.store.local.permissions import path_problem
from stateline.store.local.state_dir import SMALL_FILE, StateDir
from stateline.store.protocol import FAST, FULL, BlobMissingError, Durability, PathProblem

WAIT = 10.0
"""[s] that a swap outside the lock waits for it."""
_REMEMBERED = 1000
"""How many directories a reader looks at once only: there may be a hundred thousand."""
OLD = 3600.0
"""Age from which a temporary file that no lock covers is litter [s]: no write of one file takes so long."""


class LocalBackend:
    """A state dir on a local file system. ``path`` need not exist; writers create it, 0700.

    Safe for several threads and processes at once. ``fs`` is the seam through which all system calls go.
    ``trust_parent``: write although others may write above the state dir.
    """

    def __init__(
        self, path: str, fs: Filesystem | None = None, *, durability: Durability = FULL, trust_parent: bool = False
    ) -> None:
        self.path = os.path.abspath(path)
        self.fs = fs or Filesystem()
        if durability not in (FULL, FAST):
            # Taken for the weaker one it would be a promise broken in silence.
            raise UsageError(f"{durability!r} is no durability; nothing was done", hint="say full or fast")
        self.durability: Durability = durability
        self.state_dir = StateDir(self.path, self.fs, trust_parent=trust_parent)
        self.warnings = self.state_dir.warnings
        self._held: dict[tuple[str, int], Held] = {}
        self._nonempty: set[str] = set()
        self._checked: set[str] = set()
        self._swept = False

    def describe(self) -> str:
        return self.path

    def check_store_file(self) -> StatelineError | None:
        return self.state_dir.check_store_file()

    def prepare(self) -> None:
        self.state_dir.prepare()

    def require_writable(self) -> None:
        self.state_dir.require_writable()

    # -- directories -----------------------------------------------------------------------------------------------

    def _directory(self, place: str) -> AbstractContextManager[Directory]:
        """A directory below the root: the handle that the lock holds, or one opened for the moment.

        Raises FileNotFoundError if it is not there.
        """
        held = self._holding(place)
        return nullcontext(held.directory) if held is not None else self._opened(place)

    def _holding(self, scope: str) -> Held | None:
        """The lock of that scope if this thread of this process holds it."""
        held = self._held.get((scope, threading.get_ident()))
        return None if held is None or held.inherited else held

    @contextmanager
    def _opened(self, place: str) -> Iterator[Directory]:
        directory = self.state_dir.require()
        opened = []
        try:
            for part in place.split("/"):
                directory = self.state_dir.open_inside(directory, part)
                opened.append(directory)
                self._check_directory(directory)
            yield directory
        finally:
            for directory in opened:
                self.fs.close_directory(directory)

    def _check_directory(self, directory: Directory) -> None:
        writing = self._writes()
        if writing or directory.path not in self._checked:
            self.state_dir.check_access(self.fs.stat(directory), directory.path, "directory", writing=writing)
            if len(self._checked) > _REMEMBERED:
                self._checked.clear()
            self._checked.add(directory.path)

    def _made(self, place: str) -> AbstractContextManager[Directory]:
        """A directory below the root to write into: made if it is missing, durable in its parent, and nobody else's."""
        held = self._holding(place)
        if held is None:
            return self._opened_or_made(place)
        self._require_durable(held.directory, place)
        return nullcontext(held.directory)

    @contextmanager
    def _opened_or_made(self, place: str) -> Iterator[Directory]:
        parent, opened = self.state_dir.require(), []
        try:
            for part in place.split("/"):
                parent = self._open_or_make(parent, part)
                opened.append(parent)
            yield parent
        finally:
            for directory in opened:
                self.fs.close_directory(directory)

    def _require_durable(self, directory: Directory, scope: str) -> None:
        """A scope's directory is durable in its parent before something is published in it."""
        if not directory.durable:
            if not self._in_use(directory, scope):
                self.state_dir.sync(self.state_dir.require())
            directory.durable = True

    def _open_or_make(self, parent: Directory, name: str) -> Directory:
        made = False
        try:
            directory = self.state_dir.open_inside(parent, name)
        except FileNotFoundError:
            with suppress(FileExistsError):
                self.fs.make_directory(parent, name)
            made = True
            directory = self.state_dir.open_inside(parent, name)
        try:
            self.state_dir.require_safe(directory)
            # Whatever the durability: what is put into a directory that a power loss takes away is lost as a whole.
            # Of a scope it is asked when something is written; by then a pointer was read in most cases.
            if made or not (naming.is_sha256(name) or self._in_use(directory, name)):
                self.state_dir.sync(parent)
                directory.durable = True
        except BaseException:
            self.fs.close_directory(directory)
            raise
        return directory

    def _in_use(self, directory: Directory, name: str) -> bool:
        """Whether something was published in a directory: whoever did that had synced its parent before. A directory
        that another writer made a moment ago may not be durable yet."""
        if naming.is_sha256(name):
            try:
                self.fs.stat(directory, naming.POINTER)
            except FileNotFoundError:
                return False
            return True
        if directory.path not in self._nonempty:
            if all(found.startswith(naming.TEMPORARY) for found in self.fs.names(directory)):
                return False
            self._nonempty.add(directory.path)
        return True

    def _sync(self, directory: Directory, what: str) -> None:
        """Sync a directory in which ``what`` is visible now. Raises ``DurabilityUnknownError``."""
        try:
            self.state_dir.sync(directory)
        except OSError as error:
            raise DurabilityUnknownError(
                f"{what}, but syncing {directory.path} failed ({error.strerror}): a power loss may undo it; what was "
                "acknowledged before is untouched",
                hint="check the disk, then run `stateline verify`",
            ) from error

    # -- blobs -----------------------------------------------------------------------------------------------------

    def get(self, name: str, limit: int) -> bytes:
        data: bytes = self._read(name, limit, self.fs.read)
        return data

    def digest(self, name: str, limit: int) -> str:
        digest: str = self._read(name, limit, self.fs.digest)
        return digest

    def _read(self, name: str, limit: int, read: Callable[[Directory, str, int], tuple[Any, Stat]]) -> Any:
        place, base = naming.blob_parts(name)
        path = f"{self.path}/{name}"
        with storage(f"read {path}"):
            try:
                with self._directory(place) as directory:
                    found, seen = read(directory, base, limit)
                    self.state_dir.check_access(seen, path, "file", writing=self._writes())
                    return found
            except FileNotFoundError:
                raise BlobMissingError(name) from None
            except NotRegularFileError:
                raise _not_regular(path) from None
            except FileTooLargeError as error:
                raise IntegrityError(
                    f"{path} is too large: {error.strerror}", finding="too_large", hint=REPAIR
                ) from None

    def has(self, name: str, size: int) -> bool:
        naming.blob_parts(name)
        root = self.state_dir.open()
        with storage(f"look at {self.path}/{name}"), suppress(FileNotFoundError, NotADirectoryError):
            # By the whole path, in one call: nothing is opened that could be somebody else's.
            seen = self.fs.stat(root, name) if root is not None else None
            return seen is not None and seen.kind == "file" and seen.size == size
        return False

    def list(self, prefix: str) -> Iterator[str]:
        naming.checked_place(prefix)
        with storage(f"list {self.path}/{prefix}"), suppress(FileNotFoundError), self._directory(prefix) as directory:
            yield from self.fs.names(directory)

    def put(self, name: str, data: bytes) -> None:
        place, base = naming.blob_parts(name)
        self.prepare()
        path = f"{self.path}/{name}"
        durable = self.durability == FULL
        with storage(f"write {path}"), self._made(place) as directory:
            try:
                made = False
                if not self._is_there(directory, place, base, data):
                    with self._room(place) as room:
                        made = put_file(self.fs, (room, directory), base, data, durable=durable)
            except NotRegularFileError:
                raise _not_regular(path) from None
            if durable:
                if not made:
                    # Another writer may have put it a moment ago, or fast, and have synced nothing yet.
                    self.state_dir.sync_file(directory, base)
                # Without this the name, and with it the file, may be gone after a power loss.
                self._sync(directory, f"{path} is there")

    def _is_there(self, directory: Directory, place: str, base: str, data: bytes) -> bool:
        # A snapshot's name is new but for a broken clock; an object may well be there, and is not written for nothing.
        if not place.startswith(naming.OBJECTS):
            return False
        seen = holds(self.fs, directory, base, data)
        if seen is not None:
            self.state_dir.check_access(seen, os.path.join(directory.path, base), "file", writing=True)
        return seen is not None

    @contextmanager
    def _room(self, place: str) -> Iterator[Directory]:
        """Where a temporary file lies: in the directory of a scope whose lock is held, so that the next holder finds
        what a crash leaves; else in ``objects`` for an object, and in the state dir for what has no lock at all."""
        held = self._holding(place) or self._any_held()
        if held is not None:
            held.mark()
            yield held.directory
        elif place.startswith(naming.OBJECTS):
            with self._directory(naming.OBJECTS) as objects:
                if not self._swept:
                    self._swept = True
                    sweep(self.fs, objects, before=time.time() - OLD)
                try:
                    yield objects
                except SweptError as error:
                    # No lock covers it, so none is to be blamed.
                    said = f"it was not done within {OLD:g} s, and another writer took it for litter"
                    raise FileNotFoundError(error.errno, said) from error
        else:
            yield self.state_dir.require()

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
            with self._directory(place) as directory:
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
        what = f"{self.path}/{naming.checked_scope(scope)}/{naming.POINTER}"
        try:
            data = self.get(f"{scope}/{naming.POINTER}", SMALL_FILE)
        except BlobMissingError:
            return None
        held = self._holding(scope)
        if held is not None:
            held.directory.durable = True
        try:
            return read_pointer(data, what)
        except IntegrityError as error:
            raise IntegrityError(error.message, finding=error.finding, hint=REPAIR) from None

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        durable = self.durability == FULL
        what = f"write {self.path}/{scope}/{naming.POINTER}"
        with self.lock(scope, wait=WAIT), storage(what), self._made(scope) as directory:
            held = self._held[scope, threading.get_ident()]
            temporary = held.write(new.encode(), durable=durable)
            try:
                # After the file is synced, which takes long: where the lock does not hold, the head may move in
                # the meantime.
                self._require_head(scope, expected)
                self.fs.rename(directory, temporary, directory, naming.POINTER)
            except (OSError, StatelineError) as error:
                # A network mount may do it and lose the answer.
                if isinstance(error, StatelineError) or not self._is_head(scope, new, error):
                    try:
                        require_there(self.fs, directory, temporary, error)
                        raise
                    finally:
                        held.discard(temporary)
            held.renamed()
            if durable:
                # Only now is the commit durable; only after this may it be acknowledged.
                self._sync(directory, "the new head is visible")

    def _require_head(self, scope: str, expected: Pointer | None) -> None:
        if self.read(scope) != expected:
            raise ConflictError(
                "the head moved while this change was made; the other's change was kept, this one is not the head",
                hint="load the head again and repeat the change",
            )

    def _is_head(self, scope: str, pointer: Pointer, failed: OSError) -> bool:
        """Whether it is the head, although the rename ``failed``. Raises ``DurabilityUnknownError`` if nobody can tell."""
        try:
            return self.read(scope) == pointer
        except StatelineError as error:
            self.state_dir.poison()
            # The temporary file is left as it is: the mark stays beside it, and the next holder sweeps.
            raise DurabilityUnknownError(
                f"whether the head moved is not known; making the new one visible failed ({failed.strerror}), and it "
                f"could not be looked at: {error.message}",
                hint="look at the disk, then run `stateline verify`",
            ) from failed

    def scopes(self) -> Iterator[str]:
        root = self.state_dir.open()
        if root is not None:
            with storage(f"list {self.path}"):
                yield from (name for name in self.fs.names(root) if naming.is_sha256(name))

    def lock(self, scope: str, wait: float) -> AbstractContextManager[None]:
        return Lock(self, naming.checked_scope(scope), wait)

    def hold(self, scope: str, wait: float) -> Held:
        """Take the lock, or take part in it if this thread has it; to be given to :meth:`let_go`."""
        held = self._holding(scope)
        if held is None:
            self.prepare()
            with storage(f"lock {self.path}/{scope}"):
                root = self.state_dir.require()
                held = acquire(self.fs, root, scope, lambda: self._open_or_make(root, scope), wait)
            key = scope, threading.get_ident()
            inherited = self._held.pop(key, None)
            self._held[key] = held
            if inherited is not None:
                inherited.release()
        held.depth += 1
        return held

    def let_go(self, held: Held) -> None:
        """End one part in a lock; after the last it is free."""
        held.depth -= 1
        if held.depth:
            return
        for key in [key for key, other in tuple(self._held.items()) if other is held]:
            del self._held[key]
            held.release()

    def _any_held(self) -> Held | None:
        """The lock that this thread took last and still holds."""
        thread = threading.get_ident()
        mine = [held for (_, holder), held in tuple(self._held.items()) if holder == thread and not held.inherited]
        return mine[-1] if mine else None

    def _writes(self) -> bool:
        """Whether this thread holds a lock: then it acts on what it reads."""
        return self._any_held() is not None

    def remove(self, scope: str) -> None:
        naming.checked_scope(scope)
        self.prepare()
        root = self.state_dir.open()
        if root is None:
            return
        gone = f"{naming.REMOVED}{scope[:16]}-{os.urandom(4).hex()}"
        with storage(f"remove {self.path}/{scope}"), suppress(FileNotFoundError):
            # One rename takes the scope away whole; deleting its files one by one could stop half-way.
            self.fs.rename(root, scope, root, gone)
            self._sync(root, "the scope is removed")
            directory = self.fs.open_directory(root, gone)
            try:
                for name in list(self.fs.names(directory)):
                    self._unlink_all(directory, name)
            finally:
                self.fs.close_directory(directory)
            self.fs.remove_directory(root, gone)

    def _unlink_all(self, parent: Directory, name: str) -> None:
        """Delete an entry, and what is below it if a newer version made it a directory. Follows no symlink."""
        if self.fs.stat(parent, name).kind != "directory":
            self.fs.unlink(parent, name)
            return
        directory = self.fs.open_directory(parent, name)
        try:
            for below in list(self.fs.names(directory)):
                self._unlink_all(directory, below)
        finally:
            self.fs.close_directory(directory)
        self.fs.remove_directory(parent, name)

    # -- for verify ------------------------------------------------------------------------------------------------

    def top_names(self) -> Iterator[str]:
        root = self.state_dir.open_unexamined()
        if root is not None:
            with storage(f"list {self.path}"):
                yield from self.fs.names(root)

    def inspect(self, name: str) -> PathProblem | None:
        if not name:
            return self.state_dir.own_problem()
        kind = "directory" if name.endswith("/") else "file"
        place, _, base = name.rstrip("/").rpartition("/")
        root = self.state_dir.open_unexamined()
        if root is None:
            return None
        with storage(f"look at {self.path}/{name}"), suppress(FileNotFoundError):
            if not place:
                return path_problem(self.fs.stat(root, base), os.path.join(self.path, base), kind)
            with self._directory(place) as directory:
                return path_problem(self.fs.stat(directory, base), os.path.join(directory.path, base), kind)
        return None

    def parent_problems(self) -> tuple[PathProblem, ...]:
        with storage(f"look at what is above {self.path}"):
            return self.state_dir.parent_problems()


class Lock:
    """A scope's lock for a block. Whether it is taken is decided where the block begins: inside another block of the
    same thread it is held already."""

    __slots__ = ("_backend", "_held", "_scope", "_wait")

    def __init__(self, backend: LocalBackend, scope: str, wait: float) -> None:
        self._backend = backend
        self._scope = scope
        self._wait = wait
        self._held: list[Held] = []

    def __enter__(self) -> None:
        self._held.append(self._backend.hold(self._scope, self._wait))

    def __exit__(self, *error: object) -> None:
        self._backend.let_go(self._held.pop())


def _not_regular(path: str) -> UnsafePathError:
    return UnsafePathError(f"{path} is not a regular file; it was not opened", hint="look at it by hand; move it away")
