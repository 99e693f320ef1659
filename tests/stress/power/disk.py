"""A file system in memory that replaces the seam, and the log of what it was asked to do.

It does what POSIX says for the calls of :class:`~stateline.store.local.filesystem.Filesystem`; nothing of it reaches
the machine but the locks. What a power loss may make of its log is the business of ``stress.power.losses``.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from stress.oracle import sha256

from stateline.store.local.filesystem import (
    DIRECTORY_MODE,
    FILE_MODE,
    Directory,
    Filesystem,
    FileTooLargeError,
    NotRegularFileError,
    Stat,
)

ROOT = 1
"""The inode of the root directory."""
_DEVICE = os.makedev(8, 1)


class Named(msgspec.Struct, frozen=True):
    """Names that changed at once: (directory, name, inode or None if the name is gone), each."""

    call: str
    parts: tuple[tuple[int, str, int | None], ...]


class Written(msgspec.Struct, frozen=True):
    """A file has ``data`` now, where it was something else before."""

    inode: int
    data: bytes


class Synced(msgspec.Struct, frozen=True):
    """A file's bytes, or a directory's names, are on the medium."""

    inode: int


class Acknowledgement(msgspec.Struct, frozen=True):
    """Somebody was told something: what was promised from here on."""

    note: Any


Step = Named | Written | Synced | Acknowledgement


class Image(msgspec.Struct):
    """Contents of a disk: ``directories`` by inode (name to inode), ``files`` by inode, and the ``modes`` of both."""

    directories: dict[int, dict[str, int]]
    files: dict[int, bytes]
    modes: dict[int, int]

    @classmethod
    def empty(cls, path: str) -> Image:
        """A disk with the directories of an absolute path and nothing else."""
        image = cls({ROOT: {}}, {}, {ROOT: 0o755})
        here = ROOT
        for part in filter(None, path.split("/")):
            inode = len(image.directories) + 1
            image.directories[here][part] = inode
            image.directories[inode] = {}
            image.modes[inode] = DIRECTORY_MODE
            here = inode
        return image

    def copy(self) -> Image:
        """One that can be changed without this one."""
        names = {inode: dict(entries) for inode, entries in self.directories.items()}
        return Image(names, dict(self.files), dict(self.modes))

    def find(self, path: str) -> int | None:
        """The inode that an absolute path leads to, or None."""
        here: int | None = ROOT
        for part in filter(None, path.split("/")):
            here = None if here is None else self.directories.get(here, {}).get(part)
        return here

    def tree(self, path: str) -> dict[str, bytes]:
        """All files below an absolute path, by their path from there; a directory ends in a slash and has no bytes."""
        found: dict[str, bytes] = {}
        start = self.find(path)
        waiting = [] if start is None else [("", start)]
        if start is not None:
            found[""] = b""
        while waiting:
            above, inode = waiting.pop()
            for name, below in self.directories[inode].items():
                if below in self.directories:
                    found[f"{above}{name}/"] = b""
                    waiting.append((f"{above}{name}/", below))
                else:
                    found[f"{above}{name}"] = self.files[below]
        return found

    def widest(self, path: str) -> int:
        """All permission bits that anything from ``path`` down has for others than its owner."""
        start = self.find(path)
        waiting = [] if start is None else [start]
        bits = 0
        while waiting:
            inode = waiting.pop()
            bits |= self.modes[inode]
            waiting += self.directories.get(inode, {}).values()
        return bits & 0o077


class _Opened(Directory):
    """An open directory of the model."""

    __slots__ = ("inode",)

    def __init__(self, path: str, inode: int) -> None:
        super().__init__(path, -1)
        self.inode = inode


class ModelFs(Filesystem):
    """The seam over an :class:`Image`, which it changes. ``log`` gets a step for each change and each sync; None keeps
    none."""

    _lock: Any = None

    def __init__(self, image: Image, log: list[Step] | None = None) -> None:
        self.image = image
        self.log = log
        self._open: dict[int, int] = {}
        self._next = max([*image.directories, *image.files])

    # -- finding ---------------------------------------------------------------------------------------------------

    def _at(self, directory: Directory, name: str) -> int:
        here = self._entries(directory)
        if "/" in name:
            # By the whole path in one call, as the system allows it.
            *above, name = name.split("/")
            for part in above:
                if part not in here:
                    raise _absent(name)
                here = self.image.directories[here[part]]
        if name not in here:
            raise _absent(name)
        return here[name]

    def _entries(self, directory: Directory) -> dict[str, int]:
        entries: dict[str, int] = self.image.directories[self._inode(directory)]
        return entries

    def _inode(self, directory: Directory) -> int:
        assert isinstance(directory, _Opened)
        return directory.inode

    def _path(self, path: str) -> int:
        found = self.image.find(path)
        if found is None:
            raise _absent(path)
        return found

    def _stat(self, inode: int) -> Stat:
        kind = "directory" if inode in self.image.directories else "file"
        size = len(self.image.files.get(inode, b""))
        mode = self.image.modes[inode]
        return Stat(kind, mode, os.geteuid(), os.getegid(), size, (_DEVICE, inode), time.time())

    def _record(self, step: Step) -> None:
        if self.log is not None:
            self.log.append(step)

    # -- directories -----------------------------------------------------------------------------------------------

    def open_root(self, path: str) -> Directory:
        return self._opened(path, self._path(path))

    def open_parent(self, path: str) -> Directory:
        return self.open_root(os.path.dirname(path))

    def _opened(self, path: str, inode: int) -> Directory:
        if inode not in self.image.directories:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return _Opened(path, inode)

    def open_directory(self, parent: Directory, name: str) -> Directory:
        inode = self._inode(parent) if name == "." else self._at(parent, name)
        return self._opened(os.path.join(parent.path, name), inode)

    def close_directory(self, directory: Directory) -> None:
        pass

    def make_root(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        self.make_directory(self.open_root(above or "/"), name)

    def make_directory(self, parent: Directory, name: str) -> None:
        if name in self._entries(parent):
            raise _taken(name)
        inode = self._new(DIRECTORY_MODE)
        self.image.directories[inode] = {}
        self._name("mkdir", (self._inode(parent), name, inode))

    def remove_directory(self, parent: Directory, name: str) -> None:
        inode = self._at(parent, name)
        if inode not in self.image.directories:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        if self.image.directories[inode]:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
        self._name("rmdir", (self._inode(parent), name, None))

    def stat(self, directory: Directory, name: str = "") -> Stat:
        return self._stat(self._at(directory, name) if name else self._inode(directory))

    def stat_path(self, path: str) -> Stat:
        return self._stat(self._path(path))

    def read_link(self, path: str) -> str:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    def names(self, directory: Directory) -> Iterator[str]:
        yield from list(self._entries(directory))

    # -- names -----------------------------------------------------------------------------------------------------

    def _new(self, mode: int) -> int:
        self._next += 1
        self.image.modes[self._next] = mode
        return self._next

    def _name(self, call: str, *parts: tuple[int, str, int | None]) -> None:
        for directory, name, inode in parts:
            apply(self.image.directories[directory], name, inode)
        self._record(Named(call, parts))

    def link(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        inode = self._at(source_dir, source)
        if target in self._entries(target_dir):
            raise _taken(target)
        self._name("link", (self._inode(target_dir), target, inode))

    def unlink(self, directory: Directory, name: str) -> None:
        if self._at(directory, name) in self.image.directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        self._name("unlink", (self._inode(directory), name, None))

    def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        inode = self._at(source_dir, source)
        if self._entries(target_dir).get(target) == inode:
            return  # Two names of one file: POSIX does nothing, and says so to nobody.
        if self._entries(target_dir).get(target) in self.image.directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        there = self._inode(target_dir), target, inode
        self._name("rename", there, (self._inode(source_dir), source, None))

    # -- files -----------------------------------------------------------------------------------------------------

    def create(self, directory: Directory, name: str) -> int:
        if name in self._entries(directory):
            raise _taken(name)
        inode = self._new(FILE_MODE)
        self.image.files[inode] = b""
        self._name("create", (self._inode(directory), name, inode))
        return self._descriptor(inode)

    def _descriptor(self, inode: int) -> int:
        fd = 1_000_000 + len(self._open)
        self._open[fd] = inode
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        inode = self._open[fd]
        self.image.files[inode] += data
        self._record(Written(inode, self.image.files[inode]))
        return len(data)

    def sync_file(self, fd: int) -> None:
        self._record(Synced(self._open[fd]))

    def sync_directory(self, directory: Directory) -> None:
        self._record(Synced(self._inode(directory)))

    def close_file(self, fd: int) -> None:
        pass

    def open_file(self, directory: Directory, name: str) -> int:
        return self._descriptor(self._at(directory, name))

    def stat_file(self, fd: int) -> Stat:
        return self._stat(self._open[fd])

    def read(self, directory: Directory, name: str, limit: int) -> tuple[bytes, Stat]:
        inode = self._at(directory, name)
        if inode in self.image.directories:
            raise NotRegularFileError(errno.EINVAL, "not a regular file", name)
        data = self.image.files[inode]
        if len(data) > limit:
            raise FileTooLargeError(errno.EFBIG, f"{len(data)} bytes, over the limit of {limit}", name)
        return data, self._stat(inode)

    def digest(self, directory: Directory, name: str, limit: int) -> tuple[str, Stat]:
        data, seen = self.read(directory, name, limit)
        return sha256(data), seen

    # -- locks -----------------------------------------------------------------------------------------------------

    def open_lock(self, directory: Directory, name: str) -> int:
        if name not in self._entries(directory):
            self.create(directory, name)
        # A real descriptor, since locks are the system's. All of them are one open file: one thread plays all the
        # processes of a scenario, one after the other, and none of them waits.
        if ModelFs._lock is None:
            ModelFs._lock = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        fd = os.dup(ModelFs._lock.fileno())
        self._open[fd] = self._at(directory, name)
        return fd

    def close_lock(self, fd: int) -> None:
        del self._open[fd]
        os.close(fd)


def apply(entries: dict[str, int], name: str, inode: int | None) -> None:
    """Change one name in a directory."""
    if inode is None:
        entries.pop(name, None)
    else:
        entries[name] = inode


def _absent(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _taken(name: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
