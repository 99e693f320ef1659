"""How one file comes to its name: written (and synced) under another name first, never over what is there.

The order of a commit and the reason for each step are written at the step. What is ``durable`` is synced; the caller
syncs the directory afterwards, since only it knows what to do when that fails.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from stateline.bundle import naming
from stateline.store.local.filesystem import Directory, Filesystem, FileTooLargeError, Stat
from stateline.store.protocol import BlobExistsError


class SweptError(OSError):
    """A temporary file is gone before it got its name, although its writer holds a lock."""


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def holds(fs: Filesystem, directory: Directory, base: str, data: bytes) -> Stat | None:
    """What the file is that is there with these bytes, or None if none is. Raises BlobExistsError if it holds others,
    ``NotRegularFileError``."""
    try:
        found, seen = fs.read(directory, base, len(data))
    except FileNotFoundError:
        return None
    except FileTooLargeError:
        raise BlobExistsError(base) from None
    if found != data:
        raise BlobExistsError(base)
    return seen


def put_file(fs: Filesystem, way: tuple[Directory, Directory], base: str, data: bytes, *, durable: bool) -> bool:
    """Make a file with ``data``, by ``way`` of a temporary file in the first directory, in the second. False if it was
    there with the same bytes, which somebody else may not have synced.

    Raises BlobExistsError if the name is taken by other bytes; then, and after an OSError, what was there is untouched.
    """
    room, directory = way
    temporary = write_temporary(fs, room, data, durable=durable)
    try:
        try:
            # The name appears at once and whole, and never replaces anything, not even a planted symlink.
            fs.link(room, temporary, directory, base)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # FAT and some network mounts have no hard links. The scope's lock, the microsecond and the digest in
            # the name make a clash there a matter of equal content.
            if holds(fs, directory, base, data) is not None:
                return False
            fs.rename(room, temporary, directory, base)
    except FileExistsError:
        if holds(fs, directory, base, data) is None:
            raise
        return False
    except FileNotFoundError as error:
        require_there(fs, room, temporary, error)
        raise
    finally:
        discard(fs, room, temporary)
    return True


def write_temporary(fs: Filesystem, directory: Directory, data: bytes, *, durable: bool) -> str:
    """A new file with ``data``, closed; its name. Nothing is left behind on failure."""
    name = f"{naming.TEMPORARY}{os.urandom(8).hex()}"
    # Before it is there: an interrupt may come between any two steps, and what may lie there is to be swept.
    directory.unfinished += 1
    try:
        fd = fs.create(directory, name)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[fs.write(fd, rest) :]
            # Before the name that counts exists: a name must never lead to bytes that are not there. After a
            # failed sync the kernel may have dropped the pages, so this file is given up, never synced again.
            if durable:
                fs.sync_file(fd)
        finally:
            fs.close_file(fd)
    except BaseException:
        discard(fs, directory, name)
        raise
    return name


def require_there(fs: Filesystem, directory: Directory, name: str, error: Exception) -> None:
    """Raise ``SweptError`` if ``error`` came of it that another writer took the temporary file ``name`` away."""
    if isinstance(error, FileNotFoundError):
        try:
            fs.stat(directory, name)
        except FileNotFoundError:
            raise SweptError(errno.ENOENT, "another writer removed what was being written") from error
        except OSError:
            pass


def discard(fs: Filesystem, directory: Directory, name: str) -> None:
    """Remove a temporary file, unless it got another name. What cannot be removed stays unfinished."""
    with suppress(OSError):
        with suppress(FileNotFoundError):
            fs.unlink(directory, name)
        directory.unfinished -= 1
