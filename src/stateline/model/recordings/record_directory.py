"""Write to the directory of a recording: check it, create it, and add files that never replace others."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from contextlib import suppress

from stateline.errors import RequestError, StorageError, UnsafePathError
from stateline.model.recordings.exchange import INVALID_FILE_HINT, file_name
from stateline.model.recordings.recording import HIGHEST, checked_path, exchange_numbers
from stateline.store.local import atomic_write, permissions
from stateline.store.local.filesystem import Directory, Filesystem, Stat

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def check_directory(directory: str | os.PathLike[str], *, files: bool = True) -> None:
    """Raise what a recorder would raise before a call; change nothing. A missing directory is accepted.

    Raises ``UnsafePathError`` for a directory that others may write to, ``StorageError`` if it cannot be read, created
    or written to, ``RequestError`` for an invalid file with the name of an exchange (only with ``files``).
    """
    path = os.path.abspath(checked_path(os.fspath(directory)))
    fs = Filesystem()
    try:
        if not is_present(fs, path) or not files:
            return
        opened = fs.open_root(path)
    except OSError as error:
        raise cannot_record(path, error) from None
    try:
        used_numbers(fs, opened, path)
    finally:
        fs.close_directory(opened)


def open_directory(fs: Filesystem, name: str) -> Directory:
    """Open the directory, created if it is missing, and check that it is safe. Raises as :func:`check_directory`."""
    path = os.path.abspath(checked_path(name))
    try:
        if not is_present(fs, path):
            _create_directories(fs, path)
        directory = fs.open_root(path)
    except OSError as error:
        raise cannot_record(name, error) from None
    try:
        # Check what was opened: the path may name another directory by now.
        _require_safe(fs.stat(directory), path)
    except BaseException:
        fs.close_directory(directory)
        raise
    return directory


def is_present(fs: Filesystem, path: str) -> bool:
    """Return whether the directory exists; it is then safe and writable, else it can be created. Raises
    ``UnsafePathError`` and ``OSError``."""
    try:
        _require_safe(fs.stat_path(path), path)
    except FileNotFoundError:
        _require_writable(fs, _missing(fs, path)[1])
        return False
    _require_writable(fs, path)
    return True


def used_numbers(fs: Filesystem, directory: Directory, path: str, known: Collection[int] = ()) -> list[int]:
    """Return the numbers in use. Raises ``RequestError`` if none is free, and for files that no playback could read;
    files with ``known`` numbers were checked before."""
    try:
        numbers = exchange_numbers(fs, directory, path)
        for number in numbers:
            if number not in known:
                _require_file(fs, directory, os.path.join(path, file_name(number)))
    except OSError as error:
        raise cannot_record(path, error) from None
    if numbers and numbers[-1] == HIGHEST:
        raise RequestError(f"{path} holds the last number, {HIGHEST}", hint="record to another directory")
    return numbers


def publish(fs: Filesystem, directory: Directory, data: bytes, number: int) -> int:
    """Add a file under ``number`` or the next free number, also while others record there; return the number. The
    directory is not synced yet."""
    temporary = atomic_write.write_temporary(fs, directory, data, durable=True)
    try:
        while True:
            try:
                # A link appears at once with the whole content, and never replaces a file.
                fs.link(directory, temporary, directory, file_name(number))
                return number
            except FileExistsError:
                number += 1
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return _create_file(fs, directory, number, data)
    finally:
        atomic_write.discard(fs, directory, temporary)


def cannot_record(path: str, error: OSError) -> StorageError:
    """Return the error for a directory that cannot be written to."""
    return StorageError(
        f"cannot record to {path}: {error.strerror}; nothing was sent to the model",
        hint="choose another directory with --record",
    )


def _create_file(fs: Filesystem, directory: Directory, number: int, data: bytes) -> int:
    """Add a file without hard links (FAT, some network mounts): a crash may leave a part of it."""
    while True:
        try:
            fd = fs.create(directory, file_name(number))
            break
        except FileExistsError:
            number += 1
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[fs.write(fd, rest) :]
            fs.sync_file(fd)
        finally:
            fs.close_file(fd)
    except BaseException:
        with suppress(OSError):
            fs.unlink(directory, file_name(number))
        raise
    return number


def _require_writable(fs: Filesystem, path: str) -> None:
    if not fs.may_change(path):
        number = errno.EROFS if fs.is_read_only(path) else errno.EACCES
        raise OSError(number, os.strerror(number), path)


def _require_file(fs: Filesystem, directory: Directory, path: str) -> None:
    with suppress(FileNotFoundError):  # removed meanwhile
        if fs.stat(directory, os.path.basename(path)).kind != "file":
            raise RequestError(
                f"{path}: not a regular file; nothing was recorded or sent to the model", hint=INVALID_FILE_HINT
            )


def _require_safe(found: Stat, path: str) -> None:
    danger = permissions.path_problem(found, path, "directory")
    if danger is None or (danger.code == "open_mode" and not found.mode & 0o022):
        return  # others may read the names of the files, but not the files
    fix = f"chmod go-w {path}" if danger.code == "open_mode" else "name a directory of your own"
    raise UnsafePathError(
        f"{danger.reason}; nothing was recorded or sent to the model", hint=f"{fix}, or record elsewhere"
    )


def _create_directories(fs: Filesystem, path: str) -> None:
    """Create the directory and missing parents durably, with mode 0700."""
    for created in reversed(_missing(fs, path)[0]):
        with suppress(FileExistsError):
            fs.make_root(created)
        parent = fs.open_parent(created)
        try:
            # Directories of others may not be syncable; that does not prevent recording.
            with suppress(OSError):
                fs.sync_directory(parent)
        finally:
            fs.close_directory(parent)


def _missing(fs: Filesystem, path: str) -> tuple[list[str], str]:
    """Return the missing directories from ``path`` upwards, and the first parent that exists."""
    missing: list[str] = []
    while True:
        try:
            fs.stat_path(path)
            return missing, path
        except FileNotFoundError:
            missing.append(path)
            path = os.path.dirname(path)
