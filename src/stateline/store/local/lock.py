"""The lock of a scope, and the removal of what a holder that died left behind.

A holder marks the scope's directory before anything half written can lie there. A holder that finds the mark knows that
the one before it died: only then is the directory listed, and half-written files are removed.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from stateline.bundle import naming
from stateline.errors import LockTimeoutError
from stateline.store.local.atomic_write import discard, write_temporary
from stateline.store.local.filesystem import Directory, Filesystem, Stat
from stateline.store.local.os_errors import unsafe
from stateline.store.local.permissions import path_problem
from stateline.store.protocol import lock_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

POLL = 0.005
"""[s] between attempts at a lock that is held."""
TRIES = 10
"""Fewest attempts at a lock, so that no writer fails because of :meth:`Filesystem.is_locked`, which holds it for an
instant."""
_BEFORE = 5
"""Most words of a command line in which the program is looked for: ``python -I -m stateline``."""
_PERMANENT = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
"""Errors after which another attempt to remove a temporary name is useless: it is gone, or a non-empty directory."""


class HeldLock:
    """A scope's lock that is held, with the handle of its directory. ``depth`` is the number of blocks it covers.

    It belongs to this process alone. A child forked meanwhile has the same files open, but no part in the lock.
    """

    __slots__ = ("_fs", "_lock", "_marked", "_process", "depth", "directory")

    forks = 0
    """Number of forks that led to this process; asking for the process id would cost a system call each time."""

    def __init__(self, fs: Filesystem, directory: Directory, lock: int) -> None:
        self._fs = fs
        self.directory = directory
        self._lock = lock
        self._marked = False
        self._process = HeldLock.forks
        self.depth = 0

    @property
    def inherited(self) -> bool:
        """True in a child of the process that holds the lock."""
        return self._process != HeldLock.forks

    def mark(self) -> None:
        """Mark the directory if it is not marked. Call this before anything half written can lie in it."""
        if self._marked:
            return
        try:
            made = self._fs.create(self.directory, naming.HELD)
            self._marked = True
            self._fs.close_file(made)
        except FileExistsError:
            self._marked = True
            if not sweep(self._fs, self.directory, spare=naming.HELD):
                # The mark stays, so that the next holder tries again.
                self.directory.unfinished += 1
        except OSError as error:
            # On a full disk a scope can still be read under its lock, and removed.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def write(self, data: bytes, *, durable: bool) -> str:
        """Write a temporary file with ``data`` and return its name; then rename it and call :meth:`renamed`, or call
        :meth:`discard`. Nothing is left behind on failure.

        The name is random: where locks do not hold (a network mount), the file that is renamed must still be the one
        written here, although the mark may be another process's by then.
        """
        self.mark()
        return write_temporary(self._fs, self.directory, data, durable=durable)

    def renamed(self) -> None:
        """Record that the temporary file has its final name. The mark is removed before the directory is synced, so
        that no power loss brings it back; it is made again before the next write."""
        self.directory.unfinished -= 1
        self._unmark()

    def discard(self, name: str) -> None:
        """Remove a temporary file that got no final name."""
        discard(self._fs, self.directory, name)

    def _unmark(self) -> None:
        """Remove the mark, unless something half written lies beside it."""
        if self._marked and not self.directory.unfinished and not self.inherited:
            self._marked = not _remove(self._fs, self.directory, naming.HELD)

    def release(self) -> None:
        """Release the lock and remove the mark, unless half-written files lie beside it (this holder was interrupted,
        or could not remove them). In a forked child only its copies of the open files are closed."""
        try:
            self._unmark()
            self._fs.close_directory(self.directory)
        finally:
            if self.inherited:
                with suppress(OSError):
                    self._fs.close_lock(self._lock)
            else:
                _unlock(self._fs, self._lock)


def _count_fork() -> None:
    HeldLock.forks += 1


os.register_at_fork(after_in_child=_count_fork)


def acquire(fs: Filesystem, root: Directory, scope: str, open_scope: Callable[[], Directory], wait: float) -> HeldLock:
    """Take the lock of ``scope`` within ``wait`` [s]. ``open_scope`` opens its directory, made if need be.

    Raises ``LockTimeoutError``, ``UnsafePathError`` for a lock file that others may change, OSError.
    """
    deadline = time.monotonic() + wait
    while True:
        directory = open_scope()
        try:
            lock, stat = _lock(fs, directory, deadline, wait)
        except FileNotFoundError:
            fs.close_directory(directory)
            # The directory was removed meanwhile; the next attempt makes it, while there is time.
            if time.monotonic() >= deadline:
                raise
            continue
        except BaseException:
            fs.close_directory(directory)
            raise
        try:
            if _is_current(fs, root, scope, directory, stat):
                held = HeldLock(fs, directory, lock)
                held.mark()
                return held
        except BaseException:
            fs.close_directory(directory)
            _unlock(fs, lock)
            raise
        # The scope was removed or its directory swapped during the wait: this lock is not the scope's any more.
        fs.close_directory(directory)
        _unlock(fs, lock)
        if time.monotonic() >= deadline:
            raise LockTimeoutError(
                f"this scope was removed and made again repeatedly; waited {wait:g} s, nothing was changed",
                hint="call again, or wait longer with --wait SECONDS",
            )


def _holder(fs: Filesystem, lock: Stat) -> str:
    """Return the process that holds the lock, in words."""
    found = None
    with suppress(OSError):
        found = fs.lock_holder(lock.identity)
    if found is None:
        return "another process"
    pid, words = found
    if pid == os.getpid():
        return "another thread of this process"
    program = _program(words)
    return f"process {pid} ({program})" if program else f"process {pid}"


def _program(words: list[str]) -> str:
    """Return the program of a command line, of ``stateline`` with its command. Nothing else: it may hold secrets."""
    names = [os.path.basename(word) for word in words]
    if "stateline" not in names[:_BEFORE]:
        return names[0] if names else ""
    command = "".join(words[names.index("stateline") + 1 :][:1])
    return f"stateline {command}" if command.isalpha() else "stateline"


def _lock(fs: Filesystem, directory: Directory, deadline: float, wait: float) -> tuple[int, Stat]:
    """Open and lock the lock file; return its descriptor and attributes. Raises ``LockTimeoutError`` if it is still
    held at ``deadline`` [monotonic s], the end of ``wait`` [s]."""
    # An OS lock that dies with its holder, never a lock file that lingers. By descriptor: a lock by path costs a look
    # at every directory above, and could be another file's than the one that the handles lead to.
    from filelock import lock_descriptor

    lock = _open_lock(fs, directory)
    try:
        stat = fs.stat_file(lock)
        _require_safe(stat, directory)
        tries = 1
        while not lock_descriptor(lock, blocking=False):
            tries += 1
            if tries > TRIES and time.monotonic() >= deadline:
                raise lock_timeout(_holder(fs, stat), wait)
            time.sleep(POLL)
    except BaseException:
        fs.close_lock(lock)
        raise
    return lock, stat


def _unlock(fs: Filesystem, lock: int) -> None:
    from filelock import unlock_descriptor

    with suppress(OSError):
        # Closing alone would leave the lock to a child that was forked meanwhile and has the file open too.
        unlock_descriptor(lock)
    # An error of close changes nothing: what was done under the lock is done, and the lock is released.
    with suppress(OSError):
        fs.close_lock(lock)


def _open_lock(fs: Filesystem, directory: Directory) -> int:
    try:
        return fs.open_lock(directory, naming.LOCK)
    except FileNotFoundError:
        raise
    except OSError:
        # A symlink, a directory, another user's file: that reason is clearer than "cannot open".
        with suppress(FileNotFoundError):
            _require_safe(fs.stat(directory, naming.LOCK), directory)
        raise


def _require_safe(lock: Stat, directory: Directory) -> None:
    problem = path_problem(lock, f"{directory.path}/{naming.LOCK}", "file")
    if problem:
        raise unsafe(problem)


def _is_current(fs: Filesystem, root: Directory, scope: str, directory: Directory, lock: Stat) -> bool:
    """Return True if the locked file is still the lock of the directory that the scope's name leads to."""
    try:
        return (
            fs.stat(root, scope).identity == (directory.identity or fs.stat(directory).identity)
            and fs.stat(directory, naming.LOCK).identity == lock.identity
        )
    except FileNotFoundError:
        return False


def sweep(fs: Filesystem, directory: Directory, *, spare: str = "", before: float | None = None) -> bool:
    """Remove temporary files: all but ``spare``, or those whose content last changed ``before`` [s since 1970].

    What cannot be removed stays as harmless residue. Returns False if another attempt may remove more.
    """
    done = False
    with suppress(OSError):
        names = [name for name in fs.names(directory) if name.startswith(naming.TEMPORARY) and name != spare]
        done = True
        for name in names:
            try:
                if before is None or fs.stat(directory, name).changed < before:
                    done = _remove(fs, directory, name) and done
            except OSError:
                done = False
    return done


def _remove(fs: Filesystem, directory: Directory, name: str) -> bool:
    """Remove a temporary file, or an empty directory in its place, if possible. Returns False if another attempt may
    succeed."""
    try:
        try:
            fs.unlink(directory, name)
        except (IsADirectoryError, PermissionError):
            # Linux raises the first, POSIX the second.
            fs.remove_directory(directory, name)
    except OSError as error:
        return error.errno in _PERMANENT
    return True
