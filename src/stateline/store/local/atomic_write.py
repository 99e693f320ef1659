"""Atomic writes: a file is written (and synced) under a temporary name, then published without replacing anything.

The order of a commit and the reason for each step are written at the step. A ``durable`` file is synced; the caller
syncs the directory afterwards, since only the caller knows what to do when that fails.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from stateline.bundle import naming
from stateline.store.local.filesystem import Directory, Filesystem, FileTooLargeError, Stat
from stateline.store.protocol import BlobExistsError


class SweptError(OSError):
    """A temporary file was removed before it was published, although its writer holds a lock."""


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def holds(fs: Filesystem, directory: Directory, base: str, data: bytes) -> Stat | None:
    """Return the attributes of the file if it exists with these bytes, or None if it does not exist.

    Raises BlobExistsError if it has other bytes, NotRegularFileError.
    """
    try:
        found, stat = fs.read(directory, base, len(data))
    except FileNotFoundError:
        return None
    except FileTooLargeError:
        raise BlobExistsError(base) from None
    if found != data:
        raise BlobExistsError(base)
    return stat


def put_file(
    fs: Filesystem, directories: tuple[Directory, Directory], base: str, data: bytes, *, durable: bool
) -> bool:
    """Create a file with ``data`` in the second directory, by way of a temporary file in the first.

    Returns False if it existed with the same bytes, which may not be synced. Raises BlobExistsError if the name is
    taken by other bytes; then, and after an OSError, the existing file is untouched.
    """
    scratch, directory = directories
    temporary = write_temporary(fs, scratch, data, durable=durable)
    try:
        try:
            # The name appears at once with all bytes, and never replaces anything, not even a planted symlink.
            fs.link(scratch, temporary, directory, base)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # FAT and some network mounts have no hard links. The scope's lock, the microsecond and the digest in
            # the name make a clash there a matter of equal content.
            if holds(fs, directory, base, data) is not None:
                return False
            fs.rename(scratch, temporary, directory, base)
    except FileExistsError:
        if holds(fs, directory, base, data) is None:
            raise
        return False
    except FileNotFoundError as error:
        require_not_swept(fs, scratch, temporary, error)
        raise
    finally:
        discard(fs, scratch, temporary)
    return True


def write_temporary(fs: Filesystem, directory: Directory, data: bytes, *, durable: bool) -> str:
    """Write a new file with ``data``, close it, and return its name. Nothing is left behind on failure."""
    name = f"{naming.TEMPORARY}{os.urandom(8).hex()}"
    # Counted before it exists: an interrupt may come between any two steps, and the file must then be swept.
    directory.unfinished += 1
    try:
        fd = fs.create(directory, name)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[fs.write(fd, rest) :]
            # Before the final name exists: a name must never lead to bytes that are not there. After a failed sync
            # the kernel may have dropped the pages, so this file is given up, never synced again.
            if durable:
                fs.sync_file(fd)
        finally:
            fs.close_file(fd)
    except BaseException:
        discard(fs, directory, name)
        raise
    return name


def require_not_swept(fs: Filesystem, directory: Directory, name: str, error: Exception) -> None:
    """Raise ``SweptError`` if ``error`` was raised because another writer removed the temporary file ``name``."""
    if isinstance(error, FileNotFoundError):
        try:
            fs.stat(directory, name)
        except FileNotFoundError:
            raise SweptError(errno.ENOENT, "another writer removed what was being written") from error
        except OSError:
            pass


def discard(fs: Filesystem, directory: Directory, name: str) -> None:
    """Remove a temporary file, unless it was renamed. A file that cannot be removed still counts as unfinished."""
    with suppress(OSError):
        with suppress(FileNotFoundError):
            fs.unlink(directory, name)
        directory.unfinished -= 1
