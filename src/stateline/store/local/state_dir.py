"""The state dir itself: opened, examined, made ready for writing, or refused.

Readers open it, and get warnings about what a writer would refuse. A writer calls :meth:`StateDir.prepare` first, once.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from stateline.bundle import naming
from stateline.errors import NotFoundError, StatelineError, StorageError, UnsafePathError
from stateline.store.local.filesystem import Directory, Filesystem, Stat
from stateline.store.local.os_errors import storage, storage_error, unsafe
from stateline.store.local.permissions import network_warning, open_parents, path_problem
from stateline.store.local.store_file import make_store_file, read_store_file, require_empty
from stateline.store.protocol import BlobExistsError, PathProblem


class StateDir:
    """The directory ``path`` (absolute). ``trust_parent``: the directories above it are not checked."""

    def __init__(self, path: str, fs: Filesystem, *, trust_parent: bool = False) -> None:
        self.path = path
        self.fs = fs
        self.warnings: list[str] = []
        self.strict = False
        """True if readers must meet a writer's rules, although nothing is written (a dry run)."""
        self._trust_parent = trust_parent
        self._root: Directory | None = None
        self._examined = False
        self._prepared = False
        self._poisoned = False
        self._warned: set[str] = set()
        self._parent_problems: tuple[PathProblem, ...] | None = None

    # -- reading ---------------------------------------------------------------------------------------------------

    def open(self) -> Directory | None:
        """Return the state dir, its store file checked once, or None for a store that does not exist."""
        root = self.open_unexamined()
        if root is not None and not self._examined:
            with storage(f"read {self.path}/{naming.STORE_FILE}"), suppress(FileNotFoundError):
                self._check_store_file(root)
            self._examined = True
        return root

    def require(self) -> Directory:
        """Return the state dir. Raises FileNotFoundError for a store that does not exist."""
        root = self.open()
        if root is None:
            raise FileNotFoundError(errno.ENOENT, "no such store", self.path)
        return root

    def open_unexamined(self) -> Directory | None:
        """Return the state dir, its store file unchecked, or None. Unsafe paths become warnings."""
        if self._root is None:
            try:
                root = self.fs.open_root(self.path)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self._not_a_directory(error) from None
            with storage(f"open {self.path}"):
                self.check_access(self.fs.stat(root), self.path, "directory")
                with suppress(OSError):
                    for problem in self.parent_problems():
                        self._warn(problem)
            self._root = root
        return self._root

    def check_store_file(self) -> StatelineError | None:
        """Return the problem of the store file, or None; afterwards the rest is read regardless of it."""
        root = self.open_unexamined()
        self._examined = True
        path = f"{self.path}/{naming.STORE_FILE}"
        try:
            with storage(f"read {path}"):
                if root is not None:
                    self._check_store_file(root)
                    return None
        except StatelineError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                return error
        return NotFoundError(f"{path} is missing")

    def _check_store_file(self, root: Directory, *, writing: bool = False) -> None:
        stat = read_store_file(self.fs, root)
        self.check_access(stat, f"{self.path}/{naming.STORE_FILE}", "file", writing=writing)

    def _not_a_directory(self, error: OSError) -> StatelineError:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return UnsafePathError(
                f"{self.path} is a symbolic link, not a directory, or below a file; nothing was changed",
                hint="name a real directory with --state-dir",
            )
        return storage_error(error, f"open {self.path}")

    # -- permissions -----------------------------------------------------------------------------------------------

    def parent_problems(self) -> tuple[PathProblem, ...]:
        """Return the problems of directories above, where others may replace the state dir; none if they are trusted.
        They are looked at once."""
        if self._parent_problems is None:
            self._parent_problems = () if self._trust_parent else tuple(open_parents(self.fs, self.path))
        return self._parent_problems

    def check_access(self, stat: Stat, path: str, kind: str, *, writing: bool = False) -> None:
        """Check an opened path that others may change: ``UnsafePathError`` for a writer, a warning for a reader."""
        problem = path_problem(stat, path, kind)
        if problem is None:
            return
        if writing or self.strict:
            raise unsafe(problem)
        self._warn(problem)

    def _warn(self, problem: PathProblem) -> None:
        # One of each code: in a copy of another user's store every file has the same problem.
        if problem.code not in self._warned:
            self._warned.add(problem.code)
            self.warnings.append(f"{problem.reason}; reading it anyway ({problem.fix})")

    def require_safe(self, directory: Directory) -> None:
        """For writers: raise ``UnsafePathError`` for a directory that others may change, and note its identity."""
        stat = self.fs.stat(directory)
        self.check_access(stat, directory.path, "directory", writing=True)
        directory.identity = stat.identity

    def require_safe_parents(self) -> None:
        """For writers: raise ``UnsafePathError`` if others may replace the state dir, OSError."""
        for problem in self.parent_problems():
            raise unsafe(problem)

    def open_inside(self, parent: Directory, name: str) -> Directory:
        """Open a directory in ``parent``. Raises FileNotFoundError, ``UnsafePathError`` for a symlink or file."""
        try:
            return self.fs.open_directory(parent, name)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise UnsafePathError(
                    f"{parent.path}/{name} is a symbolic link or not a directory; it was not opened",
                    hint="inspect it by hand; move it away",
                ) from None
            raise

    # -- writing ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the state dir ready for writing; see ``Backend.prepare``."""
        if self._prepared:
            return
        self.require_not_poisoned()
        with storage(f"look at the directories above {self.path}"):
            self.require_safe_parents()
        with storage(f"create the state dir {self.path}"):
            try:
                missing = self._make()
            except NotADirectoryError as error:
                raise self._not_a_directory(error) from None
        root = self.open()
        if root is None:
            raise StorageError(f"{self.path} vanished while it was opened", hint="call again")
        with storage(f"write {self.path}/{naming.STORE_FILE}"):
            stat = self.fs.stat(root)
            self.check_access(stat, self.path, "directory", writing=True)
            warning = network_warning(self.path, stat.identity)
            try:
                self._check_store_file(root, writing=True)
            except FileNotFoundError:
                self._sync_above(missing)
                require_empty(self.fs, root)
                with suppress(BlobExistsError):  # another process made its store file at the same moment
                    make_store_file(self.fs, root)
                    self.sync(root)
        if warning:
            self.warnings.append(warning)
        self._prepared = True

    def require_writable(self) -> None:
        """Raise what a writer would raise, as far as reading can tell.

        Afterwards readers must meet a writer's rules.
        """
        self.strict = True
        with storage(f"look at {self.path}"):
            self.require_safe_parents()
            root = self.open()
            place = os.path.dirname(missing[-1]) if (missing := self._missing()) else self.path
            if root is not None:
                self.require_safe(root)
                try:
                    self._check_store_file(root, writing=True)
                except FileNotFoundError:
                    require_empty(self.fs, root)
            if self.fs.is_read_only(place):
                raise OSError(errno.EROFS, "read-only", place)
            if not self.fs.may_change(place):
                raise PermissionError(errno.EACCES, "not writable", place)

    def require_not_poisoned(self) -> None:
        """Raise ``StorageError`` after :meth:`poison`, for writers that do not call :meth:`prepare`."""
        if self._poisoned:
            raise StorageError(
                "a sync of this store, or a look at its head, failed earlier in this process; nothing more is written "
                "through it",
                hint="open the store again, and run `stateline verify`",
            )

    def sync(self, directory: Directory) -> None:
        """Sync a directory; after a failure this process writes nothing more here.

        The kernel may have dropped what it could not write, and would report success the next time.
        """
        try:
            self.fs.sync_directory(directory)
        except OSError:
            self.poison()
            raise

    def sync_file(self, directory: Directory, name: str) -> None:
        """Sync an existing file, which its writer may not have done. A failure is as in :meth:`sync`."""
        fd = self.fs.open_to_sync(directory, name)
        try:
            self.fs.sync_file(fd)
        except OSError:
            self.poison()
            raise
        finally:
            self.fs.close_file(fd)

    def poison(self) -> None:
        """Refuse all further writes of this process here: the content of the disk is not known any more."""
        self._poisoned, self._prepared = True, False

    def _make(self) -> list[str]:
        """Make the state dir and missing directories above it; return those that were missing."""
        missing = self._missing()
        for path in reversed(missing):
            with suppress(FileExistsError):
                self.fs.make_root(path)
            # A new directory is only durable once its parent has been synced.
            self._sync_parent(path)
        return missing

    def _missing(self) -> list[str]:
        """Return the state dir and the directories above it that do not exist; the state dir first."""
        missing: list[str] = []
        path = self.path
        while True:
            try:
                self.fs.stat_path(path)
                return missing
            except (FileNotFoundError, NotADirectoryError):
                above = os.path.dirname(path)
                if above == path:
                    raise
                missing.append(path)
                path = above

    def _sync_parent(self, path: str) -> None:
        parent = self.fs.open_parent(path)
        try:
            self.sync(parent)
        finally:
            self.fs.close_directory(parent)

    def _sync_above(self, made: list[str]) -> None:
        """Make the name of the lowest directory durable that existed before: the state dir, or the one it was made in.
        Its maker may have died before that was done, and no other process does it later."""
        existing = os.path.dirname(made[-1]) if made else self.path
        try:
            self._sync_parent(existing)
        except OSError as error:
            # It belongs to another user, or cannot be synced; its maker knew that.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
                raise
            self._poisoned = False
