"""The one seam for system calls: every system call of the local backend is a method of :class:`Filesystem`.

Each method that changes something is one system call, so that a recorder, a power-loss model or a fault injector can
replace :class:`Filesystem` and see or break each of them. Everything is relative to a directory handle, and nothing
follows a symlink. Two things are not here: the lock itself, which ``lock`` takes on a file that was opened here, and
the closing of a directory handle that was never closed (:class:`Directory`).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress

import msgspec

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

# O_NONBLOCK: opening a planted FIFO must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_LONGEST_COMMAND = 4096
"""Most bytes read of a command line."""


class NotRegularFileError(OSError):
    """A symlink, FIFO, directory or device where a file must be. It was not opened for reading."""


class FileTooLargeError(OSError):
    """A file over its reader's limit. It was not read."""


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class Stat(msgspec.Struct, frozen=True):
    """Attributes of a file: ``kind`` is file, directory, symlink or other; ``mode`` the permission bits; ``identity``
    (device, inode); ``changed`` when its content last changed [s since 1970]."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    identity: tuple[int, int]
    changed: float

    @classmethod
    def of(cls, raw: os.stat_result) -> Stat:
        """Return the attributes in a result of ``os.stat``."""
        kind = _KINDS.get(stat.S_IFMT(raw.st_mode), "other")
        mode = stat.S_IMODE(raw.st_mode)
        return cls(kind, mode, raw.st_uid, raw.st_gid, raw.st_size, (raw.st_dev, raw.st_ino), raw.st_mtime)


class Directory:
    """An open directory. ``path`` is for messages; ``identity`` (device, inode) is set once a writer has checked it;
    ``durable``: its name is known to be durable in its parent; ``unfinished``: number of temporary files that were made
    through this handle and are not known to be removed."""

    __slots__ = ("durable", "fd", "identity", "path", "unfinished")

    def __init__(self, path: str, fd: int = -1) -> None:
        self.path = path
        self.fd = fd
        self.identity: tuple[int, int] | None = None
        self.durable = False
        self.unfinished = 0

    def __del__(self) -> None:
        # The state dir's handle lives as long as its backend, which need not be closed.
        if self.fd >= 0:
            _close(self.fd)


class Filesystem:
    """System calls relative to directory descriptors (Linux, macOS)."""

    def open_root(self, path: str) -> Directory:
        """Open the state dir itself. A symlink as the last component is refused (OSError ELOOP or ENOTDIR)."""
        return Directory(path, os.open(path, _DIRECTORY))

    def open_parent(self, path: str) -> Directory:
        """Open the real parent of the directory at an absolute path, even if the path leads through symlinks."""
        return Directory(os.path.dirname(path), os.open(os.path.join(path, os.pardir), _DIRECTORY))

    def open_directory(self, parent: Directory, name: str) -> Directory:
        return Directory(os.path.join(parent.path, name), os.open(name, _DIRECTORY, dir_fd=parent.fd))

    def close_directory(self, directory: Directory) -> None:
        """Close a handle. Never fails: nothing was written through it."""
        fd, directory.fd = directory.fd, -1
        if fd >= 0:
            _close(fd)

    def make_root(self, path: str) -> None:
        """Create the state dir, 0700; its parent must exist."""
        _make_private(path)

    def make_directory(self, parent: Directory, name: str) -> None:
        """Create a directory, 0700 regardless of the umask; FileExistsError if the name is taken."""
        _make_private(name, parent.fd)

    def stat(self, directory: Directory, name: str = "") -> Stat:
        """Return the attributes of the directory itself, or of an entry, symlinks not followed."""
        if not name:
            return Stat.of(os.fstat(directory.fd))
        return Stat.of(os.stat(name, dir_fd=directory.fd, follow_symlinks=False))

    def stat_path(self, path: str) -> Stat:
        """Return the attributes at an absolute path, symlinks not followed: for the state dir before it is opened, and
        the directories above it."""
        return Stat.of(os.lstat(path))

    def is_read_only(self, path: str) -> bool:
        """Return True if an absolute path is on a read-only file system."""
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)

    def may_change(self, path: str) -> bool:
        """Return True if this user may create files in the directory at an absolute path, judging by its mode."""
        return os.access(path, os.W_OK | os.X_OK)

    def read_link(self, path: str) -> str:
        """Return the target of the symlink at an absolute path."""
        return os.readlink(path)

    def names(self, directory: Directory) -> Iterator[str]:
        """Yield the names in the directory, in no order."""
        # A new descriptor: the position in a listing belongs to the open file, and would be shared by all listings
        # through the same handle.
        fd = os.open(".", _DIRECTORY, dir_fd=directory.fd)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    yield entry.name
        finally:
            _close(fd)

    def create(self, directory: Directory, name: str) -> int:
        """Create a file, 0600 regardless of the umask; FileExistsError if the name is taken."""
        fd = os.open(name, _CREATE, FILE_MODE, dir_fd=directory.fd)
        # A umask can only clear bits; one that clears the owner's would leave a file its owner cannot read. Any part
        # of the process may change it at any time.
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != FILE_MODE:
                os.fchmod(fd, FILE_MODE)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write once; return the number of bytes written, which may be fewer."""
        return os.write(fd, data)

    def sync_file(self, fd: int) -> None:
        """Return once the file's bytes are on the medium, not in a drive's cache."""
        _full_sync(fd)

    def sync_directory(self, directory: Directory) -> None:
        """Return once the directory's entries are on the medium."""
        _full_sync(directory.fd)
        # After XFS has shut down, syncing a directory still succeeds and its new entries are lost; fstat fails then.
        os.fstat(directory.fd)

    def close_file(self, fd: int) -> None:
        os.close(fd)

    def link(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        """Give a file a second name; FileExistsError if that name is taken, even by a symlink."""
        os.link(source, target, src_dir_fd=source_dir.fd, dst_dir_fd=target_dir.fd, follow_symlinks=False)

    def unlink(self, directory: Directory, name: str) -> None:
        os.unlink(name, dir_fd=directory.fd)

    def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        """Rename atomically over an existing target."""
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

    def is_locked(self, directory: Directory, name: str) -> bool:
        """Return True if a process holds the exclusive lock of a file. Tries a shared one for an instant, never waits.

        Raises FileNotFoundError, :class:`NotRegularFileError` or another OSError.
        """
        import fcntl

        fd, _ = self._open_checked(directory, name, sys.maxsize)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # Closing alone would leave it to a child that was forked in this instant.
            fcntl.flock(fd, fcntl.LOCK_UN)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def lock_holder(self, identity: tuple[int, int]) -> tuple[int, list[str]] | None:
        """Return the process that holds a lock of the file with that identity: its id and its command line, empty if
        that cannot be read. None if the system does not tell; only Linux does. Raises OSError."""
        device, inode = identity
        place = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            pids = [line.split()[4] for line in locks if f" {place} " in line and " FLOCK " in line]
        if not pids or not pids[0].isdigit() or pids[0] == "0":  # a process outside this container has no number
            return None
        words: list[str] = []
        with suppress(OSError), open(f"/proc/{pids[0]}/cmdline", "rb") as file:
            words = os.fsdecode(file.read(_LONGEST_COMMAND)).split("\0")
        return int(pids[0]), words

    def stat_file(self, fd: int) -> Stat:
        """Return the attributes of an open file."""
        return Stat.of(os.fstat(fd))

    def open_to_sync(self, directory: Directory, name: str) -> int:
        """Open an existing file for :meth:`sync_file`; never blocks, never follows a symlink."""
        return self.open_file(directory, name)

    def read(self, directory: Directory, name: str, limit: int) -> tuple[bytes, Stat]:
        """Return the whole file and its attributes.

        Raises FileNotFoundError, :class:`NotRegularFileError`, :class:`FileTooLargeError` or another OSError.
        """
        fd, raw = self._open_checked(directory, name, limit)
        try:
            return _read_all(fd, raw.st_size, limit, name), Stat.of(raw)
        finally:
            os.close(fd)

    def digest(self, directory: Directory, name: str, limit: int) -> tuple[str, Stat]:
        """Return the SHA-256 of the whole file in hex, in bounded memory, and its attributes.

        Raises as :meth:`read`.
        """
        import hashlib

        fd, raw = self._open_checked(directory, name, limit)
        try:
            digest, total = hashlib.sha256(), 0
            while data := os.read(fd, _CHUNK):
                digest.update(data)
                total += len(data)
                if total > limit:
                    raise FileTooLargeError(errno.EFBIG, f"grew over the limit of {limit} bytes", name)
            return digest.hexdigest(), Stat.of(raw)
        finally:
            os.close(fd)

    def _open_checked(self, directory: Directory, name: str, limit: int) -> tuple[int, os.stat_result]:
        try:
            fd = self.open_file(directory, name)
        except OSError as error:
            # ELOOP: a symlink; ENXIO: a socket.
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise NotRegularFileError(error.errno, "not a regular file", name) from None
            raise
        try:
            raw = os.fstat(fd)
            if not stat.S_ISREG(raw.st_mode):
                raise NotRegularFileError(errno.EINVAL, "not a regular file", name)
            if raw.st_size > limit:
                raise FileTooLargeError(errno.EFBIG, f"{raw.st_size} bytes, over the limit of {limit}", name)
        except BaseException:
            os.close(fd)
            raise
        return fd, raw


def _close(fd: int) -> None:
    """Close a descriptor that nothing was written through. Even after an error it is closed, and nothing is lost."""
    with suppress(OSError):
        os.close(fd)


def _make_private(name: str, dir_fd: int | None = None) -> None:
    os.mkdir(name, DIRECTORY_MODE, dir_fd=dir_fd)
    # A umask can only clear bits; one that clears the owner's would leave a directory its owner cannot enter.
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
    # A buffer of the right size, since os.read allocates what it is asked for. One read, so that a large file is held
    # once; only a file that grows meanwhile, or that the system returns in parts, is joined.
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
            raise FileTooLargeError(errno.EFBIG, f"grew over the limit of {limit} bytes", name)
    return b"".join(parts)
