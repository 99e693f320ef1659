"""The state dir itself: opened, examined, made ready for writing, or refused.

Readers open it and are told what a writer would refuse. A writer calls :meth:`StateDir.prepare` first, once.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import FORMAT
from stateline.errors import (
    IntegrityError,
    NewerVersionError,
    NotFoundError,
    RequestError,
    StatelineError,
    StorageError,
    UnsafePathError,
)
from stateline.store.local.atomic_write import put_file
from stateline.store.local.filesystem import Directory, Filesystem, FileTooLargeError, NotRegularFileError, Stat
from stateline.store.local.os_errors import REPAIR, storage, storage_error, unsafe
from stateline.store.local.permissions import network_warning, open_parents, path_problem
from stateline.store.protocol import BlobExistsError, PathProblem

SMALL_FILE = 4096
"""Largest pointer or store file that is read [bytes]."""


class StateDir:
    """The directory ``path`` (absolute). ``trust_parent``: what is above it is not looked at."""

    def __init__(self, path: str, fs: Filesystem, *, trust_parent: bool = False) -> None:
        self.path = path
        self.fs = fs
        self.warnings: list[str] = []
        self.careful = False
        """Whether what is opened is held to a writer's rules, although nothing is written (a dry run)."""
        self._trust_parent = trust_parent
        self._root: Directory | None = None
        self._examined = False
        self._prepared = False
        self._poisoned = False
        self._warned: set[str] = set()
        self._above: tuple[PathProblem, ...] | None = None

    # -- reading ---------------------------------------------------------------------------------------------------

    def open(self) -> Directory | None:
        """The state dir, its store file checked once, or None for a store that does not exist."""
        root = self.open_unexamined()
        if root is not None and not self._examined:
            with storage(f"read {self.path}/{naming.STORE_FILE}"), suppress(FileNotFoundError):
                self._check_store_file(root)
            self._examined = True
        return root

    def require(self) -> Directory:
        """The state dir. Raises FileNotFoundError for a store that does not exist."""
        root = self.open()
        if root is None:
            raise FileNotFoundError(errno.ENOENT, "no such store", self.path)
        return root

    def open_unexamined(self) -> Directory | None:
        """The state dir, whatever its store file says, or None. What is unsafe becomes a warning."""
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
                    for found in self.parent_problems():
                        self._warn(found)
            self._root = root
        return self._root

    def check_store_file(self) -> StatelineError | None:
        """What is wrong with the store file; afterwards everything here is read whatever the answer was."""
        root = self.open_unexamined()
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
        return NotFoundError(f"{what} is missing")

    def _not_a_directory(self, error: OSError) -> StatelineError:
        with suppress(OSError):
            missing = self._missing() if error.errno == errno.ENOTDIR else []
            if missing:
                return UnsafePathError(
                    f"{os.path.dirname(missing[-1])} is not a directory, and the state dir would be below it "
                    f"({self.path}); nothing was changed",
                    hint="name another directory with --state-dir",
                )
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return UnsafePathError(
                f"{self.path} is a symbolic link or not a directory; nothing was changed",
                hint="name the real directory with --state-dir",
            )
        return storage_error(error, f"open {self.path}")

    # -- what may be trusted ---------------------------------------------------------------------------------------

    def parent_problems(self) -> tuple[PathProblem, ...]:
        """Directories above in which others may put something else in the state dir's place; none if trusted. They
        are looked at once."""
        if self._above is None:
            self._above = () if self._trust_parent else tuple(open_parents(self.fs, self.path))
        return self._above

    def own_problem(self) -> PathProblem | None:
        """Why a writer would refuse the state dir itself, which is not opened; None if it is not there."""
        with storage(f"look at {self.path}"), suppress(FileNotFoundError, NotADirectoryError):
            return path_problem(self.fs.stat_path(self.path), self.path, "directory")
        return None

    def check_access(self, seen: Stat, path: str, kind: str, *, writing: bool = False) -> None:
        """What was opened must not be in others' hands: ``UnsafePathError`` for a writer, a warning for a reader."""
        found = path_problem(seen, path, kind)
        if found is None:
            return
        if writing or self.careful:
            raise unsafe(found)
        self._warn(found)

    def _warn(self, found: PathProblem) -> None:
        # One of each sort: a copy of somebody else's store has one for every file.
        if found.code not in self._warned:
            self._warned.add(found.code)
            self.warnings.append(f"{found.reason}; reading all the same ({found.fix})")

    def require_safe(self, directory: Directory, name: str = "") -> None:
        """For writers. Raises ``UnsafePathError``, or FileNotFoundError."""
        path = f"{directory.path}/{name}" if name else directory.path
        seen = self.fs.stat(directory, name)
        self.check_access(seen, path, "file" if name else "directory", writing=True)
        if not name:
            directory.identity = seen.identity

    def require_safe_parents(self) -> None:
        """For writers. Raises ``UnsafePathError`` if others may put something else in the state dir's place, OSError."""
        for found in self.parent_problems():
            raise unsafe(found)

    def open_inside(self, parent: Directory, name: str) -> Directory:
        """A directory in ``parent``. Raises FileNotFoundError, ``UnsafePathError`` for what is no directory."""
        try:
            return self.fs.open_directory(parent, name)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise UnsafePathError(
                    f"{parent.path}/{name} is a symbolic link or not a directory; it was not opened",
                    hint="look at it by hand; move it away",
                ) from None
            raise

    # -- writing ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the state dir ready for writing; see ``Backend.prepare``."""
        if self._prepared:
            return
        self.require_sound()
        with storage(f"look at what is above {self.path}"):
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
            seen = self.fs.stat(root)
            self.check_access(seen, self.path, "directory", writing=True)
            warning = network_warning(self.path, seen.identity)
            try:
                self._check_store_file(root, writing=True)
            except FileNotFoundError:
                self._settle_above(missing)
                self._make_store_file(root)
        if warning:
            self.warnings.append(warning)
        self._prepared = True

    def require_writable(self) -> None:
        """Raise what a writer would raise, as far as reading can tell; from then on reading is held to its rules."""
        self.careful = True
        with storage(f"look at {self.path}"):
            self.require_safe_parents()
            root = self.open()
            place = os.path.dirname(missing[-1]) if (missing := self._missing()) else self.path
            if root is not None:
                self.require_safe(root)
                try:
                    self._check_store_file(root, writing=True)
                except FileNotFoundError:
                    self._require_empty(root)
            if self.fs.is_read_only(place):
                raise OSError(errno.EROFS, "read-only", place)
            if not self.fs.may_change(place):
                raise PermissionError(errno.EACCES, "not writable", place)

    def require_sound(self) -> None:
        """Raise ``StorageError`` if the place was poisoned: for writers that do without :meth:`prepare`."""
        if self._poisoned:
            raise StorageError(
                "a sync of this store, or a look at its head, failed earlier in this process; nothing more is written "
                "through it",
                hint="open the store anew, and run `stateline verify`",
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
        """Sync a file that is there: whoever put it may not have waited for that. A failure is as in :meth:`sync`."""
        fd = self.fs.open_to_sync(directory, name)
        try:
            self.fs.sync_file(fd)
        except OSError:
            self.poison()
            raise
        finally:
            self.fs.close_file(fd)

    def poison(self) -> None:
        """What is on the disk is not known any more: this process writes nothing more here."""
        self._poisoned, self._prepared = True, False

    def _make(self) -> list[str]:
        """Make the state dir and what is missing above it; which those were."""
        missing = self._missing()
        for path in reversed(missing):
            with suppress(FileExistsError):
                self.fs.make_root(path)
            # A directory that was made is only there for good when its parent has been synced.
            self._sync_parent(path)
        return missing

    def _missing(self) -> list[str]:
        """The state dir and what is above it, as far as it is not there; the state dir first."""
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

    def _settle_above(self, made: list[str]) -> None:
        """Make the name of the lowest directory durable that was there before: the state dir's, or that of what it was
        made in. Who made it may have died before that was done, and nobody will come here again."""
        there = os.path.dirname(made[-1]) if made else self.path
        try:
            self._sync_parent(there)
        except OSError as error:
            # It is in others' hands, or on something that cannot be synced; whoever made it there knew that.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
                raise
            self._poisoned = False

    # -- the store file --------------------------------------------------------------------------------------------

    def _check_store_file(self, root: Directory, *, writing: bool = False) -> None:
        """Raises FileNotFoundError if there is none, else what is wrong with it."""
        what = f"{self.path}/{naming.STORE_FILE}"
        try:
            data, seen = self.fs.read(root, naming.STORE_FILE, SMALL_FILE)
            document = canonical.decode(data)
        except NotRegularFileError as error:
            raise UnsafePathError(
                f"{what} is {error.strerror}; nothing was changed", hint="look at it by hand"
            ) from None
        except FileTooLargeError as error:
            raise IntegrityError(f"{what} is too large: {error.strerror}", finding="too_large", hint=REPAIR) from None
        except IntegrityError as error:
            raise IntegrityError(f"{what}: {error.message}", finding=error.finding, hint=REPAIR) from None
        name = document.get("format") if isinstance(document, dict) else None
        if name != FORMAT:
            if isinstance(name, str) and naming.is_format(name):
                raise NewerVersionError(
                    f"{self.path} is of format {name}; this Stateline reads {FORMAT}. It was left untouched.",
                    hint="upgrade stateline",
                )
            raise IntegrityError(f"{what} does not say that this is a state dir", finding="malformed", hint=REPAIR)
        if not naming.is_store_id(document.get("store_id")):
            raise IntegrityError(f"{what} has no `store_id`", finding="malformed", hint=REPAIR)
        self.check_access(seen, what, "file", writing=writing)

    def _require_empty(self, root: Directory) -> None:
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
            raise IntegrityError(f"{naming.STORE_FILE} is missing in {self.path}", finding="missing", hint=REPAIR)
        raise RequestError(
            f"{self.path} is not a state dir and is not empty (it holds {foreign[0]!r}); nothing was written",
            hint="choose a directory of its own with --state-dir",
        )

    def _make_store_file(self, root: Directory) -> None:
        self._require_empty(root)
        data = canonical.encode({"format": FORMAT, "store_id": os.urandom(16).hex()})
        try:
            # Synced whatever the durability: it is made once, and a store without it is damaged.
            put_file(self.fs, (root, root), naming.STORE_FILE, data, durable=True)
            self.sync(root)
        except BlobExistsError:
            # Somebody else's store file, made in the same moment, is as good.
            pass
