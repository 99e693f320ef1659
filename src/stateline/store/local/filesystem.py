"""The one seam: every system call of the local backend passes a method of this file.

Each method that changes something is one system call, so that a recorder, a power-loss model or a fault injector can
stand in for :class:`Filesystem` and see or break each of them. Everything is relative to a directory handle and nothing
follows a symlink. Two things are not here: the lock itself, which ``locking`` takes on a file that was opened here, and
the closing of a directory's handle that nobody closed (:class:`Directory`).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)
# O_NONBLOCK: opening a FIFO that somebody planted must not wait for a writer.
_READ = os.O_RDONLY | _NOFOLLOW | _CLOEXEC | _BINARY | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC | _BINARY
_LOCK = os.O_RDWR | _NOFOLLOW | _CLOEXEC | _BINARY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW | _CLOEXEC
_CHUNK = 1 << 20


class NotRegular(OSError):
    """What should be a file is a symlink, a FIFO, a directory or a device. It was not opened for reading."""


class TooLarge(OSError):
    """A file over the limit its reader allows. It was not read."""


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class Stat(msgspec.Struct, frozen=True):
    """What the store asks of a file: ``kind`` is file, directory, symlink or other; ``mode`` the permission bits;
    ``changed`` when its content last changed [s since 1970]."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    identity: tuple[int, int]
    changed: float

    @classmethod
    def of(cls, raw: os.stat_result) -> Stat:
        """From ``os.stat``."""
        kind = _KINDS.get(stat.S_IFMT(raw.st_mode), "other")
        mode = stat.S_IMODE(raw.st_mode)
        return cls(kind, mode, raw.st_uid, raw.st_gid, raw.st_size, (raw.st_dev, raw.st_ino), raw.st_mtime)


class Directory:
    """An open directory: a descriptor where the platform has them, else a path. ``path`` is for messages and locks,
    ``identity`` what it was when a writer looked at it, or None; ``durable`` whether it is known to be in its parent
    for good; ``unfinished`` how many temporary files were made through this handle and are not known to be gone."""

    __slots__ = ("durable", "fd", "identity", "path", "unfinished")

    def __init__(self, path: str, fd: int = -1) -> None:
        self.path = path
        self.fd = fd
        self.identity: tuple[int, int] | None = None
        self.durable = False
        self.unfinished = 0

    def __del__(self) -> None:
        # A state dir's own handle lives as long as its backend, which nobody has to close.
        if self.fd >= 0:
            _close(self.fd)


class Filesystem:
    """System calls relative to directory descriptors (Linux, macOS)."""

    def open_root(self, path: str) -> Directory:
        """Open the state dir itself. A symlink as the last component is refused (OSError ELOOP or ENOTDIR)."""
        return Directory(path, os.open(path, _DIRECTORY))

    def open_parent(self, path: str) -> Directory:
        """Open the directory in which the directory at an absolute path really is, whatever symlinks lead to it."""
        return Directory(os.path.dirname(path), os.open(os.path.join(path, os.pardir), _DIRECTORY))

    def open_directory(self, parent: Directory, name: str) -> Directory:
        return Directory(os.path.join(parent.path, name), os.open(name, _DIRECTORY, dir_fd=parent.fd))

    def close_directory(self, directory: Directory) -> None:
        """Never fails: nothing was written through the handle, and whatever closing says it is gone."""
        fd, directory.fd = directory.fd, -1
        if fd >= 0:
            _close(fd)

    def make_root(self, path: str) -> None:
        """Create the state dir, 0700; its parent must exist."""
        _make_private(path)

    def make_directory(self, parent: Directory, name: str) -> None:
        """A new directory, 0700 whatever the umask; FileExistsError if the name is taken."""
        _make_private(name, parent.fd)

    def stat(self, directory: Directory, name: str = "") -> Stat:
        """Of the directory itself, or of an entry, symlinks not followed."""
        if not name:
            return Stat.of(os.fstat(directory.fd))
        return Stat.of(os.stat(name, dir_fd=directory.fd, follow_symlinks=False))

    def stat_path(self, path: str) -> Stat:
        """Of what lies at an absolute path, not followed if it is a symlink: for the state dir itself before it is
        opened, and what is above it."""
        return Stat.of(os.lstat(path))

    def is_read_only(self, path: str) -> bool:
        """Whether what lies at an absolute path is on a file system that takes no changes; False where none can
        tell."""
        return sys.platform != "win32" and bool(os.statvfs(path).f_flag & os.ST_RDONLY)

    def may_change(self, path: str) -> bool:
        """Whether this user may put something into the directory at an absolute path, as far as its mode says."""
        return os.access(path, os.W_OK | os.X_OK)

    def read_link(self, path: str) -> str:
        """Where the symlink at an absolute path leads, as it says so itself."""
        return os.readlink(path)

    def names(self, directory: Directory) -> Iterator[str]:
        """Names in the directory, in no order."""
        # A descriptor of its own: the position in a listing belongs to the open file, and would be shared by everybody
        # who lists through the same handle.
        fd = os.open(".", _DIRECTORY, dir_fd=directory.fd)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    yield entry.name
        finally:
            _close(fd)

    def create(self, directory: Directory, name: str) -> int:
        """A new file, 0600 whatever the umask; FileExistsError if the name is taken."""
        fd = os.open(name, _CREATE, FILE_MODE, dir_fd=directory.fd)
        # A umask can only take bits away; one that takes the owner's would leave a file its owner cannot read. Any
        # part of the process may change it at any time.
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != FILE_MODE:
                os.fchmod(fd, FILE_MODE)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """One write; the number of bytes taken, which may be fewer."""
        return os.write(fd, data)

    def sync_file(self, fd: int) -> None:
        """Return when the file's bytes are on the medium, not in a drive's cache."""
        _full_sync(fd)

    def sync_directory(self, directory: Directory) -> None:
        """Return when the directory's entries are on the medium."""
        _full_sync(directory.fd)
        # XFS syncs a directory with success after it has shut down, and what was new in it is lost. This it refuses.
        os.fstat(directory.fd)

    def close_file(self, fd: int) -> None:
        os.close(fd)

    def link(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        """Give a file a second name; FileExistsError if that name is taken, even by a symlink."""
        os.link(source, target, src_dir_fd=source_dir.fd, dst_dir_fd=target_dir.fd, follow_symlinks=False)

    def unlink(self, directory: Directory, name: str) -> None:
        os.unlink(name, dir_fd=directory.fd)

    def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        """Rename over whatever has the target's name, at once."""
        os.rename(source, target, src_dir_fd=source_dir.fd, dst_dir_fd=target_dir.fd)

    def remove_directory(self, parent: Directory, name: str) -> None:
        os.rmdir(name, dir_fd=parent.fd)

    def open_file(self, directory: Directory, name: str) -> int:
        """Open for reading; never blocks, never follows a symlink (OSError ELOOP)."""
        return os.open(name, _READ, dir_fd=directory.fd)

    def open_lock(self, directory: Directory, name: str) -> int:
        """Open a file to be locked, made 0600 if it is missing; never blocks, never follows a symlink."""
        try:
            return os.open(name, _LOCK, dir_fd=directory.fd)
        except FileNotFoundError:
            fd = os.open(name, _LOCK | os.O_CREAT, FILE_MODE, dir_fd=directory.fd)
            try:
                os.fchmod(fd, FILE_MODE)
            except BaseException:
                os.close(fd)
                raise
            return fd

    def close_lock(self, fd: int) -> None:
        os.close(fd)

    def stat_file(self, fd: int) -> Stat:
        """Of an open file."""
        return Stat.of(os.fstat(fd))

    def open_to_sync(self, directory: Directory, name: str) -> int:
        """Open a file that is there so that :meth:`sync_file` takes it; never blocks, never follows a symlink."""
        return self.open_file(directory, name)

    def read(self, directory: Directory, name: str, limit: int) -> tuple[bytes, Stat]:
        """The whole file, and what it was when it was read.

        Raises FileNotFoundError, :class:`NotRegular`, :class:`TooLarge` or another OSError.
        """
        fd, raw = self._open_checked(directory, name, limit)
        try:
            return _read_all(fd, raw.st_size, limit, name), Stat.of(raw)
        finally:
            os.close(fd)

    def digest(self, directory: Directory, name: str, limit: int) -> tuple[str, Stat]:
        """The SHA-256 of the whole file in hex, whose bytes are never held together, and what it was. Raises as
        :meth:`read`."""
        import hashlib

        fd, raw = self._open_checked(directory, name, limit)
        try:
            digest, total = hashlib.sha256(), 0
            while data := os.read(fd, _CHUNK):
                digest.update(data)
                total += len(data)
                if total > limit:
                    raise TooLarge(errno.EFBIG, f"grew over the limit of {limit} bytes", name)
            return digest.hexdigest(), Stat.of(raw)
        finally:
            os.close(fd)

    def _open_checked(self, directory: Directory, name: str, limit: int) -> tuple[int, os.stat_result]:
        try:
            fd = self.open_file(directory, name)
        except OSError as error:
            # ELOOP: a symlink; ENXIO: a socket; EMLINK: FreeBSD's word for a symlink.
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EMLINK):
                raise NotRegular(error.errno, "not a regular file", name) from None
            raise
        try:
            raw = os.fstat(fd)
            if not stat.S_ISREG(raw.st_mode):
                raise NotRegular(errno.EINVAL, "not a regular file", name)
            if raw.st_size > limit:
                raise TooLarge(errno.EFBIG, f"{raw.st_size} bytes, over the limit of {limit}", name)
        except BaseException:
            os.close(fd)
            raise
        return fd, raw


class PathFs(Filesystem):
    """The same by path, for platforms without directory descriptors (Windows). What is lost there: a directory that is
    swapped between two calls is not noticed, and entries cannot be synced (NTFS orders them in its journal)."""

    _ATTEMPTS = 10
    _PAUSE = 0.05
    """[s] between attempts: a reader or a virus scanner may hold a file open for a moment."""

    def open_root(self, path: str) -> Directory:
        if Stat.of(os.lstat(path)).kind != "directory":
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return Directory(path)

    def open_parent(self, path: str) -> Directory:
        return self.open_root(os.path.dirname(os.path.realpath(path)))

    def open_directory(self, parent: Directory, name: str) -> Directory:
        return self.open_root(os.path.join(parent.path, name))

    def make_directory(self, parent: Directory, name: str) -> None:
        _make_private(os.path.join(parent.path, name))

    def stat(self, directory: Directory, name: str = "") -> Stat:
        return Stat.of(os.lstat(os.path.join(directory.path, name) if name else directory.path))

    def names(self, directory: Directory) -> Iterator[str]:
        yield from os.listdir(directory.path)

    def create(self, directory: Directory, name: str) -> int:
        return os.open(os.path.join(directory.path, name), _CREATE, FILE_MODE)

    def open_lock(self, directory: Directory, name: str) -> int:
        path = os.path.join(directory.path, name)
        if os.path.lexists(path) and Stat.of(os.lstat(path)).kind != "file":
            raise NotRegular(errno.EINVAL, "not a regular file", name)
        return os.open(path, _LOCK | os.O_CREAT, FILE_MODE)

    def sync_directory(self, directory: Directory) -> None:
        """Nothing to do: such platforms give no handle to sync."""

    def link(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        os.link(os.path.join(source_dir.path, source), os.path.join(target_dir.path, target))

    def unlink(self, directory: Directory, name: str) -> None:
        self._again(os.unlink, os.path.join(directory.path, name))

    def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        self._again(os.replace, os.path.join(source_dir.path, source), os.path.join(target_dir.path, target))

    def remove_directory(self, parent: Directory, name: str) -> None:
        self._again(os.rmdir, os.path.join(parent.path, name))

    def open_file(self, directory: Directory, name: str) -> int:
        path = os.path.join(directory.path, name)
        if Stat.of(os.lstat(path)).kind != "file":
            raise NotRegular(errno.EINVAL, "not a regular file", name)
        return os.open(path, _READ)

    def open_to_sync(self, directory: Directory, name: str) -> int:
        os.close(self.open_file(directory, name))
        # Windows syncs only what is open for writing.
        return os.open(os.path.join(directory.path, name), os.O_RDWR | _CLOEXEC | _BINARY)

    def _again(self, call: Any, *paths: str) -> None:
        for attempt in range(self._ATTEMPTS):
            try:
                call(*paths)
                return
            except PermissionError as error:
                # 5 access denied, 32 sharing violation, 33 lock violation: somebody has the file open just now.
                if attempt + 1 == self._ATTEMPTS or getattr(error, "winerror", None) not in (5, 32, 33):
                    raise
                import time

                time.sleep(self._PAUSE)


def default_fs() -> Filesystem:
    """The seam for this platform."""
    return Filesystem() if os.open in os.supports_dir_fd and os.scandir in os.supports_fd else PathFs()


def _close(fd: int) -> None:
    """Close what nothing was written through: whatever the system says of that, it is closed, and nothing is lost."""
    with suppress(OSError):
        os.close(fd)


def _make_private(name: str, dir_fd: int | None = None) -> None:
    os.mkdir(name, DIRECTORY_MODE, dir_fd=dir_fd)
    # A umask can only take bits away; one that takes the owner's would leave a directory its owner cannot enter.
    if os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode & DIRECTORY_MODE != DIRECTORY_MODE:
        os.chmod(name, DIRECTORY_MODE, dir_fd=dir_fd)


def _full_sync(fd: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        try:
            # Apple's fsync stops at the drive's cache.
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            # ExFAT and some network mounts do not know it; a real I/O error must not be hidden by trying again.
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(fd)


def _read_all(fd: int, size: int, limit: int, name: str) -> bytes:
    # A buffer of the right size: os.read allocates what it is asked for. In one piece, so that a large file is held
    # once; only one that grows meanwhile, or that the system gives in pieces, is put together.
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    total = len(data)
    while data:
        data = os.read(fd, _CHUNK)
        parts.append(data)
        total += len(data)
        if total > limit:
            raise TooLarge(errno.EFBIG, f"grew over the limit of {limit} bytes", name)
    return b"".join(parts)
