"""All system calls of a save, made bare in the same order: what is left of a save's time is Python's own.

``tests/test_bench.py`` holds the calls here against those that strace sees of a save.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable

_SCOPE = "scope"
_POINTER = b"x" * 163
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = _OPEN | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def replayed(place: str, size: int, durability: str = "full") -> Callable[[int], object]:
    """Save number N of ``size`` bytes; N-1, if it was saved, is the parent that is read."""
    os.makedirs(f"{place}/{_SCOPE}", mode=0o700, exist_ok=True)
    root = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    data, synced = b"x" * size, durability == "full"
    os.close(os.open(f"{place}/{_SCOPE}/scope.lock", os.O_WRONLY | os.O_CREAT, 0o600))

    def save(number: int) -> None:
        directory, lock = _locked(root)
        os.close(_new(directory, ".tmp-held"))
        _read(directory, "latest.json")
        _read(directory, f"state-{number - 1:08}")
        temporary = _temporary(directory, data, synced)
        os.link(temporary, f"state-{number:08}", src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        os.unlink(temporary, dir_fd=directory)
        if synced:
            _sync(directory)
        temporary = _temporary(directory, _POINTER, synced)
        _read(directory, "latest.json")
        os.rename(temporary, "latest.json", src_dir_fd=directory, dst_dir_fd=directory)
        os.unlink(".tmp-held", dir_fd=directory)
        if synced:
            _sync(directory)
        os.close(directory)
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)

    return save


def _locked(root: int) -> tuple[int, int]:
    """The scope's directory and its lock, both looked at."""
    directory = os.open(_SCOPE, _OPEN | os.O_DIRECTORY, dir_fd=root)
    os.fstat(directory)
    os.geteuid()
    lock = os.open("scope.lock", _LOCK, dir_fd=directory)
    os.fstat(lock)
    os.geteuid()
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.stat(_SCOPE, dir_fd=root, follow_symlinks=False)
    os.stat("scope.lock", dir_fd=directory, follow_symlinks=False)
    return directory, lock


def _new(directory: int, name: str) -> int:
    """A new file, with a look at the mode that the umask left it."""
    fd = os.open(name, _NEW, 0o600, dir_fd=directory)
    os.fstat(fd)
    return fd


def _read(directory: int, name: str) -> None:
    try:
        fd = os.open(name, _READ, dir_fd=directory)
    except FileNotFoundError:
        return
    os.read(fd, os.fstat(fd).st_size + 1)
    os.close(fd)
    os.geteuid()


def _temporary(directory: int, data: bytes, synced: bool) -> str:
    """A new file under a random name with ``data``; the name."""
    name = f".tmp-{os.urandom(8).hex()}"
    fd = _new(directory, name)
    os.write(fd, data)
    if synced:
        os.fsync(fd)
    os.close(fd)
    return name


def _sync(directory: int) -> None:
    os.fsync(directory)
    os.fstat(directory)
