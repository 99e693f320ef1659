"""The local backend: one directory, plain files, POSIX calls. What is acknowledged survives a power loss.

The order of a commit and the reason for each step are written at the step. Readers open, read and close; they create
nothing, change no mode and leave no lock. ``docs/format.md`` describes the tree, ADR 0002 the protocol.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import FORMAT, Pointer, read_pointer
from stateline.errors import (
    ConflictError,
    DurabilityUnknown,
    IntegrityError,
    LockTimeout,
    NewerVersion,
    NotFound,
    RequestError,
    StatelineError,
    StorageError,
    UnsafePlace,
)
from stateline.store.fs import Directory, HandleFs, NotRegular, TooLarge, default_fs
from stateline.store.places import Danger, danger, network_warning
from stateline.store.protocol import BlobExists, BlobMissing
from stateline.store.publish import holds, put_file, write_temporary
from stateline.store.refusals import storage, storage_error, unsafe

if TYPE_CHECKING:
    from filelock import BaseFileLock

SMALL_FILE = 4096
"""Largest pointer or store file that is read [bytes]."""
POLL = 0.005
"""[s] between attempts at a lock that is held."""


class LocalBackend:
    """A state dir on a local file system. ``path`` need not exist; writers create it, 0700.

    Safe for several threads and processes at once. ``fs`` is the seam through which all system calls go.
    """

    def __init__(self, path: str, fs: HandleFs | None = None) -> None:
        self.path = os.path.abspath(path)
        self.fs = fs or default_fs()
        self.warnings: list[str] = []
        self._root: Directory | None = None
        self._examined = False
        self._prepared = False
        self._poisoned = False
        self._held: dict[tuple[str, int], Directory] = {}

    def describe(self) -> str:
        return self.path

    # -- opening ---------------------------------------------------------------------------------------------------

    def _open_for_reading(self) -> Directory | None:
        """The root, its store file checked once, or None for a store that does not exist."""
        root = self._open_root()
        if root is not None and not self._examined:
            with storage(f"read {self.path}/{naming.STORE_FILE}"), suppress(FileNotFoundError):
                self._check_store_file(root)
            self._examined = True
        return root

    def _open_root(self) -> Directory | None:
        """The root, whatever its store file says, or None. What is unsafe becomes a warning."""
        if self._root is None:
            try:
                root = self.fs.open_root(self.path)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self._not_a_directory(error) from None
            with storage(f"open {self.path}"):
                found = danger(self.fs.stat(root), self.path, "directory")
            if found:
                self.warnings.append(f"{found.reason}; reading all the same ({found.fix})")
            self._root = root
        return self._root

    def examine(self) -> StatelineError | None:
        root = self._open_root()
        self._examined = True
        what = f"{self.path}/{naming.STORE_FILE}"
        try:
            with storage(f"read {what}"):
                if root is not None:
                    self._check_store_file(root)
                    return None
        except StatelineError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                return error
        return NotFound(f"{what} is missing")

    def _not_a_directory(self, error: OSError) -> StatelineError:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return UnsafePlace(
                f"{self.path} is a symbolic link or not a directory; nothing was changed",
                hint="name the real directory with --state-dir",
            )
        return storage_error(error, f"open {self.path}")

    def prepare(self) -> None:
        if self._prepared:
            return
        if self._poisoned:
            raise StorageError(
                "a sync of this store failed earlier in this process; nothing more is written through it",
                hint="open the store anew, and run `stateline verify`",
            )
        with storage(f"create the state dir {self.path}"):
            self._make_root()
        root = self._open_for_reading()
        if root is None:
            raise StorageError(f"{self.path} vanished while it was opened", hint="call again")
        with storage(f"write {self.path}/{naming.STORE_FILE}"):
            self._demand_safe(root)
            warning = network_warning(self.path, self.fs.stat(root).identity)
            try:
                self._check_store_file(root)
                self._demand_safe(root, naming.STORE_FILE)
            except FileNotFoundError:
                self._make_store_file(root)
        if warning:
            self.warnings.append(warning)
        self._prepared = True

    def _demand_safe(self, directory: Directory, name: str = "") -> None:
        """What a writer opens must not be in others' hands: raises ``UnsafePlace``, or FileNotFoundError."""
        path = os.path.join(directory.path, name) if name else directory.path
        found = danger(self.fs.stat(directory, name), path, "file" if name else "directory")
        if found:
            raise unsafe(found)

    def demand_writable(self) -> None:
        with storage(f"look at {self.path}"):
            root = self._open_for_reading()
            place = self.path
            while not os.path.lexists(place):
                place = os.path.dirname(place)
            if root is not None:
                self._demand_safe(root)
                try:
                    self._check_store_file(root)
                    self._demand_safe(root, naming.STORE_FILE)
                except FileNotFoundError:
                    self._demand_empty(root)
            if not os.access(place, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "not writable", place)

    def _make_root(self) -> None:
        missing = []
        path = self.path
        while not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            with suppress(FileExistsError):
                self.fs.make_root(path)
            # A directory that was made is only there for good when its parent has been synced.
            parent = self.fs.open_root(os.path.realpath(os.path.dirname(path)))
            try:
                self.fs.sync_directory(parent)
            finally:
                self.fs.close_directory(parent)

    def _check_store_file(self, root: Directory) -> None:
        """Raises FileNotFoundError if there is none, else what is wrong with it."""
        what = f"{self.path}/{naming.STORE_FILE}"
        try:
            document = canonical.decode(self.fs.read(root, naming.STORE_FILE, SMALL_FILE))
        except (NotRegular, TooLarge) as error:
            raise UnsafePlace(f"{what} is {error.strerror}; nothing was changed", hint="look at it by hand") from None
        except IntegrityError as error:
            raise IntegrityError(f"{what}: {error.message}", finding=error.finding, hint=_REPAIR) from None
        name = document.get("format") if isinstance(document, dict) else None
        if name != FORMAT:
            if isinstance(name, str) and name.startswith("stateline/"):
                raise NewerVersion(
                    f"{self.path} is of format {name}; this Stateline reads {FORMAT}. It was left untouched.",
                    hint="upgrade stateline",
                )
            raise IntegrityError(f"{what} does not say that this is a state dir", finding="malformed", hint=_REPAIR)

    def _demand_empty(self, root: Directory) -> None:
        """Raise unless the directory may become a state dir: a lost store file is damage, foreign files are a mistake.

        Returns when there is a good store file after all.
        """
        names = (name for name in self.fs.names(root) if not name.startswith((naming.TEMPORARY, "lost+found")))
        foreign = sorted(names)
        if not foreign:
            return
        with suppress(FileNotFoundError):
            # Somebody else made the store between the look for its file and the listing.
            self._check_store_file(root)
            return
        if any(naming.is_sha256(name) for name in foreign):
            raise IntegrityError(f"{naming.STORE_FILE} is missing in {self.path}", finding="missing", hint=_REPAIR)
        raise RequestError(
            f"{self.path} is not a state dir and is not empty (it holds {foreign[0]!r}); nothing was written",
            hint="choose a directory of its own with --state-dir",
        )

    def _make_store_file(self, root: Directory) -> None:
        self._demand_empty(root)
        data = canonical.encode({"format": FORMAT, "store_id": os.urandom(16).hex()})
        with suppress(BlobExists):
            # Somebody else's store file, made in the same moment, is as good.
            put_file(self.fs, root, naming.STORE_FILE, data)

    @contextmanager
    def _directory(self, name: str) -> Iterator[Directory]:
        """A directory below the root: the handle that the lock holds, or one opened for the moment.

        Raises FileNotFoundError if it is not there.
        """
        held = self._held.get((name, threading.get_ident()))
        if held is not None:
            yield held
            return
        directory = self._open_for_reading()
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such store", self.path)
        opened = []
        try:
            for part in name.split("/"):
                directory = self._open_directory(directory, part)
                opened.append(directory)
            yield directory
        finally:
            for directory in opened:
                self.fs.close_directory(directory)

    def _open_directory(self, parent: Directory, name: str) -> Directory:
        try:
            return self.fs.open_directory(parent, name)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise UnsafePlace(
                    f"{parent.path}/{name} is a symbolic link or not a directory; it was not opened",
                    hint="look at it by hand; move it away",
                ) from None
            raise

    # -- blobs -----------------------------------------------------------------------------------------------------

    def get(self, name: str, limit: int) -> bytes:
        place, base = naming.blob_parts(name)
        with storage(f"read {self.path}/{name}"):
            try:
                with self._directory(place) as directory:
                    if self._holds_lock(place):
                        self._demand_safe(directory, base)
                    return self.fs.read(directory, base, limit)
            except FileNotFoundError:
                raise BlobMissing(name) from None
            except NotRegular:
                raise UnsafePlace(
                    f"{self.path}/{name} is not a regular file; it was not opened",
                    hint="look at it by hand; move it away",
                ) from None
            except TooLarge as error:
                raise IntegrityError(
                    f"{self.path}/{name} is too large: {error.strerror}", finding="too_large", hint=_REPAIR
                ) from None

    def list(self, prefix: str) -> Iterator[str]:
        naming.checked_place(prefix)
        with storage(f"list {self.path}/{prefix}"), suppress(FileNotFoundError), self._directory(prefix) as directory:
            yield from self.fs.names(directory)

    def put(self, name: str, data: bytes) -> None:
        place, base = naming.blob_parts(name)
        self.prepare()
        with storage(f"write {self.path}/{name}"):
            self._make_directories(place)
            with self._directory(place) as directory:
                if place.startswith(naming.OBJECTS) and holds(self.fs, directory, base, data):
                    # Another writer may have linked it a moment ago without having synced the directory yet.
                    self.fs.sync_directory(directory)
                    return
                put_file(self.fs, directory, base, data)

    def _make_directories(self, place: str) -> None:
        """Make what is missing of a path below the root, each durable before anything is put into it."""
        if self._holds_lock(place):
            return
        root = self._open_for_reading()
        if root is None:
            raise FileNotFoundError(errno.ENOENT, "no such store", self.path)
        parent, opened = root, []
        try:
            for part in place.split("/"):
                made = self._make_directory(parent, part)
                directory = self._open_directory(parent, part)
                opened.append(directory)
                if made or not self._in_use(directory):
                    self.fs.sync_directory(parent)
                parent = directory
                self._demand_safe(parent)
        finally:
            for directory in opened:
                self.fs.close_directory(directory)

    def _make_directory(self, parent: Directory, name: str) -> bool:
        """Whether it was made; False if it was there."""
        try:
            self.fs.make_directory(parent, name)
        except FileExistsError:
            return False
        return True

    def _in_use(self, directory: Directory) -> bool:
        """Whether something was published in a directory: whoever did that had synced its parent before. A directory
        that another writer made a moment ago may not be durable yet."""
        names = self.fs.names(directory)
        return any(not name.startswith(naming.TEMPORARY) and name != naming.LOCK for name in names)

    # -- heads -----------------------------------------------------------------------------------------------------

    def read(self, scope: str) -> Pointer | None:
        what = f"{self.path}/{naming.checked_scope(scope)}/{naming.POINTER}"
        try:
            data = self.get(f"{scope}/{naming.POINTER}", SMALL_FILE)
        except BlobMissing:
            return None
        try:
            return read_pointer(data, what)
        except IntegrityError as error:
            raise IntegrityError(error.message, finding=error.finding, hint=_REPAIR) from None

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        with self.lock(scope, wait=10.0), storage(f"write {self.path}/{scope}/{naming.POINTER}"):
            current = self.read(scope)
            if current != expected:
                raise ConflictError(
                    "the head moved while this change was made; the other's change was kept, this one is not the head",
                    hint="load the head again and repeat the change",
                )
            with self._directory(scope) as directory:
                temporary = write_temporary(self.fs, directory, new.encode())
                try:
                    self.fs.rename(directory, temporary, naming.POINTER)
                except OSError:
                    with suppress(OSError):
                        self.fs.unlink(directory, temporary)
                    raise
                try:
                    # Only now is the commit durable; only after this may it be acknowledged.
                    self.fs.sync_directory(directory)
                except OSError as error:
                    self._poisoned, self._prepared = True, False
                    raise DurabilityUnknown(
                        f"the new head is visible, but syncing {directory.path} failed ({error.strerror}): a power "
                        "loss may undo it",
                        hint="check the disk, then run `stateline verify`",
                    ) from None

    def scopes(self) -> Iterator[str]:
        root = self._open_for_reading()
        if root is not None:
            with storage(f"list {self.path}"):
                yield from (name for name in self.fs.names(root) if naming.is_sha256(name))

    def top(self) -> Iterator[str]:
        root = self._open_root()
        if root is not None:
            with storage(f"list {self.path}"):
                yield from self.fs.names(root)

    @contextmanager
    def lock(self, scope: str, wait: float) -> Iterator[None]:
        if self._holds_lock(naming.checked_scope(scope)):
            yield
            return
        self.prepare()
        with storage(f"lock {self.path}/{scope}"):
            directory, release = self._acquire(scope, time.monotonic() + wait, wait)
        key = (scope, threading.get_ident())
        self._held[key] = directory
        try:
            yield
        finally:
            del self._held[key]
            self.fs.close_directory(directory)
            release.release()

    def _holds_lock(self, place: str) -> bool:
        return (place, threading.get_ident()) in self._held

    def _acquire(self, scope: str, deadline: float, wait: float) -> tuple[Directory, BaseFileLock]:
        import filelock

        while True:
            self._make_directories(scope)
            root = self._open_for_reading()
            if root is None:
                raise FileNotFoundError(errno.ENOENT, "no such store", self.path)
            directory = self._open_directory(root, scope)
            # Mode 0600, an OS lock that dies with its holder, never a lock file that lingers.
            lock = filelock.FileLock(
                os.path.join(directory.path, naming.LOCK), mode=0o600, fallback_to_soft=False, poll_interval=POLL
            )
            try:
                with suppress(FileNotFoundError):
                    self._demand_safe(directory, naming.LOCK)
                lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
                if self._same_place(root, scope, directory):
                    return directory, lock
                lock.release()
            except filelock.Timeout:
                self.fs.close_directory(directory)
                raise LockTimeout(
                    f"another process holds the lock of this scope; waited {wait:g} s, nothing was changed",
                    hint="call again, or wait longer with --wait SECONDS",
                ) from None
            except FileNotFoundError:
                # The directory went away under the lock file's feet; below it is made anew, while there is time.
                if time.monotonic() >= deadline:
                    self.fs.close_directory(directory)
                    raise
            except BaseException:
                self.fs.close_directory(directory)
                lock.release()
                raise
            # The scope was removed, or its directory swapped, while we waited: what we locked is not what is there.
            self.fs.close_directory(directory)

    def _same_place(self, root: Directory, scope: str, directory: Directory) -> bool:
        """filelock opens by path; what it locked must be what the handles lead to."""
        try:
            by_path = os.lstat(os.path.join(directory.path, naming.LOCK))
            return self.fs.stat(root, scope).identity == self.fs.stat(directory).identity and self.fs.stat(
                directory, naming.LOCK
            ).identity == (by_path.st_dev, by_path.st_ino)
        except FileNotFoundError:
            return False

    def remove(self, scope: str) -> None:
        naming.checked_scope(scope)
        self.prepare()
        root = self._open_for_reading()
        if root is None:
            return
        gone = f"{naming.REMOVED}{scope[:16]}-{os.urandom(4).hex()}"
        with storage(f"remove {self.path}/{scope}"), suppress(FileNotFoundError):
            # One rename takes the scope away whole; deleting its files one by one could stop half-way.
            self.fs.rename(root, scope, gone)
            self.fs.sync_directory(root)
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

    def look(self, name: str) -> Danger | None:
        kind = "directory" if not name or name.endswith("/") else "file"
        place, _, base = name.rstrip("/").rpartition("/")
        root = self._open_root()
        if root is None:
            return None
        with storage(f"look at {self.path}/{name}"), suppress(FileNotFoundError):
            if not place:
                return danger(self.fs.stat(root, base), os.path.join(self.path, base), kind)
            with self._directory(place) as directory:
                return danger(self.fs.stat(directory, base), os.path.join(directory.path, base), kind)
        return None


_REPAIR = "nothing was changed; `stateline verify` lists all damage"
