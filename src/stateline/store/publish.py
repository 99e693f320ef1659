"""How one file comes to its name: written and synced under another name first, never over what is there.

The order of a commit and the reason for each step are written at the step.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from stateline.bundle import naming
from stateline.store.fs import Directory, HandleFs, NotRegular, TooLarge
from stateline.store.protocol import BlobExists

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def holds(fs: HandleFs, directory: Directory, base: str, data: bytes) -> bool:
    """Whether the file is there with these bytes. Raises BlobExists if it holds others."""
    try:
        found = fs.read(directory, base, len(data))
    except FileNotFoundError:
        return False
    except (NotRegular, TooLarge):
        raise BlobExists(base) from None
    if found != data:
        raise BlobExists(base)
    return True


def put_file(fs: HandleFs, directory: Directory, base: str, data: bytes) -> None:
    """Make a file with ``data``; on return it survives a power loss. The same bytes under the name are fine.

    Raises BlobExists if the name is taken by other bytes; then, and after an OSError, what was there is untouched.
    """
    temporary = write_temporary(fs, directory, data)
    try:
        try:
            # The name appears at once and whole, and never replaces anything, not even a planted symlink.
            fs.link(directory, temporary, base)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # FAT and some network mounts have no hard links. The scope's lock, the microsecond and the digest in
            # the name make a clash there a matter of equal content.
            if not holds(fs, directory, base, data):
                fs.rename(directory, temporary, base)
    except FileExistsError:
        if not holds(fs, directory, base, data):
            raise
    finally:
        with suppress(OSError):
            fs.unlink(directory, temporary)
    # Without this the name, and with it the file, may be gone after a power loss.
    fs.sync_directory(directory)


def write_temporary(fs: HandleFs, directory: Directory, data: bytes) -> str:
    """A new file with ``data``, synced; its name. Nothing is left behind on failure."""
    name = f"{naming.TEMPORARY}{os.urandom(8).hex()}"
    fd = fs.create(directory, name)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[fs.write(fd, rest) :]
            # Before the name that counts exists: a name must never lead to bytes that are not there. After a
            # failed sync the kernel may have dropped the pages, so this file is given up, never synced again.
            fs.sync_file(fd)
        finally:
            fs.close_file(fd)
    except BaseException:
        with suppress(OSError):
            fs.unlink(directory, name)
        raise
    return name
