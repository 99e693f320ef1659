"""The lock of a scope, and what its last holder may have left behind.

A holder marks the scope's directory before anything half written can lie there. Whoever finds the mark knows that the
holder before it died: only then is the directory listed, and what was half written is removed.
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

if TYPE_CHECKING:
    from collections.abc import Callable

POLL = 0.005
"""[s] between attempts at a lock that is held."""
_FOR_GOOD = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
"""Why a temporary name is gone, or stays: somebody made a directory of it and put something there."""


class Held:
    """A scope's lock, held: the handle of its directory, and the way to let go. ``lock`` is the locked file's,
    ``depth`` how many blocks it covers.

    It is this process's alone. A child that is forked meanwhile has the same files open, and no part in the lock.
    """

    __slots__ = ("_fs", "_lock", "_marked", "_process", "depth", "directory")

    forks = 0
    """How many forks led to this process; a process's own id would cost a system call at each look."""

    def __init__(self, fs: Filesystem, directory: Directory, lock: int) -> None:
        self._fs = fs
        self.directory = directory
        self._lock = lock
        self._marked = False
        self._process = Held.forks
        self.depth = 0

    @property
    def inherited(self) -> bool:
        """Whether it is a parent's, who forked this process while it held the lock."""
        return self._process != Held.forks

    def mark(self) -> None:
        """Mark the directory, if it is not marked: to be called before anything half written can lie in it."""
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
        """A temporary file with ``data``, to be renamed and then :meth:`renamed`, or else discarded; its name. Nobody
        else ever gives a file that name: where locks do not hold (a network mount), what is renamed must still be what
        was written here, and the mark may be another's by then. Nothing is left behind on failure."""
        self.mark()
        return write_temporary(self._fs, self.directory, data, durable=durable)

    def renamed(self) -> None:
        """The temporary file has its name. The mark goes before the directory is synced, so that no power loss brings
        it back; it is made again before anything else is written here."""
        self.directory.unfinished -= 1
        self._unmark()

    def discard(self, name: str) -> None:
        """Remove a temporary file that got no name."""
        discard(self._fs, self.directory, name)

    def _unmark(self) -> None:
        """Take the mark away, unless something half written lies beside it."""
        if self._marked and not self.directory.unfinished and not self.inherited:
            self._marked = not _remove(self._fs, self.directory, naming.HELD)

    def release(self) -> None:
        """Let go, and take the mark away; it stays beside what is half written (this holder was interrupted, or could
        not remove it). In a forked child nothing happens but that its copies of the open files are closed."""
        try:
            self._unmark()
            self._fs.close_directory(self.directory)
        finally:
            if self.inherited:
                with suppress(OSError):
                    self._fs.close_lock(self._lock)
            else:
                _unlock(self._fs, self._lock)


def _forked() -> None:
    Held.forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def acquire(fs: Filesystem, root: Directory, scope: str, open_scope: Callable[[], Directory], wait: float) -> Held:
    """Take the lock of ``scope`` within ``wait`` [s]. ``open_scope`` opens its directory, made if need be.

    Raises ``LockTimeoutError``, ``UnsafePathError`` for a lock in others' hands, OSError.
    """
    deadline = time.monotonic() + wait
    while True:
        directory = open_scope()
        try:
            found = _lock(fs, directory, deadline)
        except FileNotFoundError:
            fs.close_directory(directory)
            # The directory went away under the lock file's feet; below it is made anew, while there is time.
            if time.monotonic() >= deadline:
                raise
            continue
        except BaseException:
            fs.close_directory(directory)
            raise
        if found is None:
            fs.close_directory(directory)
            raise _timeout("another process holds the lock of this scope", wait)
        lock, seen = found
        try:
            if _same_place(fs, root, scope, directory, seen):
                held = Held(fs, directory, lock)
                held.mark()
                return held
        except BaseException:
            fs.close_directory(directory)
            _unlock(fs, lock)
            raise
        # The scope was removed, or its directory swapped, while we waited: what we locked is not what is there.
        fs.close_directory(directory)
        _unlock(fs, lock)
        if time.monotonic() >= deadline:
            raise _timeout("this scope was removed and made anew all the while", wait)


def _timeout(reason: str, wait: float) -> LockTimeoutError:
    return LockTimeoutError(
        f"{reason}; waited {wait:g} s, nothing was changed", hint="call again, or wait longer with --wait SECONDS"
    )


def _lock(fs: Filesystem, directory: Directory, deadline: float) -> tuple[int, Stat] | None:
    """The lock's file, open and locked, and what it is; None if somebody else still holds it at ``deadline``
    [monotonic s]."""
    # An OS lock that dies with its holder, never a lock file that lingers. By descriptor: a lock by path costs a look
    # at every directory above, and could be another file's than the one that the handles lead to.
    from filelock import lock_descriptor

    lock = _open_lock(fs, directory)
    try:
        seen = fs.stat_file(lock)
        _require_safe(seen, directory)
        while not lock_descriptor(lock, blocking=False):
            if time.monotonic() >= deadline:
                fs.close_lock(lock)
                return None
            time.sleep(POLL)
    except BaseException:
        fs.close_lock(lock)
        raise
    return lock, seen


def _unlock(fs: Filesystem, lock: int) -> None:
    from filelock import unlock_descriptor

    with suppress(OSError):
        # Closing alone would leave it to a child that was forked meanwhile and has the file open too.
        unlock_descriptor(lock)
    # Whatever closing says: what was done under the lock is done, and it is let go.
    with suppress(OSError):
        fs.close_lock(lock)


def _open_lock(fs: Filesystem, directory: Directory) -> int:
    try:
        return fs.open_lock(directory, naming.LOCK)
    except FileNotFoundError:
        raise
    except OSError:
        # A symlink, a directory, somebody else's file: the reason says more than that it cannot be opened.
        with suppress(FileNotFoundError):
            _require_safe(fs.stat(directory, naming.LOCK), directory)
        raise


def _require_safe(lock: Stat, directory: Directory) -> None:
    found = path_problem(lock, f"{directory.path}/{naming.LOCK}", "file")
    if found:
        raise unsafe(found)


def _same_place(fs: Filesystem, root: Directory, scope: str, directory: Directory, lock: Stat) -> bool:
    """Whether the file that was locked is still the lock of what the scope's name leads to."""
    try:
        return (
            fs.stat(root, scope).identity == (directory.identity or fs.stat(directory).identity)
            and fs.stat(directory, naming.LOCK).identity == lock.identity
        )
    except FileNotFoundError:
        return False


def sweep(fs: Filesystem, directory: Directory, *, spare: str = "", before: float | None = None) -> bool:
    """Remove temporary files: all but ``spare``, or those whose content last changed ``before`` [s since 1970].

    What cannot be removed stays; it is residue, and in nobody's way. False if something may be removed another time.
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
    """Remove a temporary file if that can be done, or an empty directory that somebody made of it. False if that may
    work another time."""
    try:
        try:
            fs.unlink(directory, name)
        except (IsADirectoryError, PermissionError):
            # Linux says the one, POSIX the other.
            fs.remove_directory(directory, name)
    except OSError as error:
        return error.errno in _FOR_GOOD
    return True
