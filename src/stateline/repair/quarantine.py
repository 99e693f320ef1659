"""Quarantine of a repair: move damaged files out of the way, and replace a pointer without a compare-and-swap.

Nothing is deleted. Files in the way are renamed into one directory for each repair, ``ext-repair-…`` in the state dir,
and never opened or followed. Every step is durable before the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import singledispatch

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer
from stateline.errors import RequestError
from stateline.store.local.atomic_write import discard, write_temporary
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory
from stateline.store.local.os_errors import storage
from stateline.store.local.store_file import make_store_file
from stateline.store.protocol import Backend

_LONGEST_NAME = 255
"""[bytes] that common file systems allow in a name."""


class LocalQuarantine:
    """Operations of a repair that writers do not have. Paths are relative to the state dir.

    Safe beside writers, as long as the caller holds the lock of the scope concerned. ``aside`` is the directory of this
    repair; None as long as nothing was set aside.
    """

    def __init__(self, backend: LocalBackend, stamp: str) -> None:
        self.backend = backend
        self.fs = backend.fs
        self.aside: str | None = None
        self._name = f"{naming.EXTENSION}repair-{stamp}-{os.urandom(2).hex()}"
        self._taken: set[bytes] = set()

    def set_aside(self, path: str) -> str | None:
        """Rename ``path`` into the directory of this repair; return its new path, or None if it does not exist.

        Durable on return. Raises ``UnsafePathError`` or ``StorageError``.
        """
        with self._root() as root, storage(f"set {self.backend.path}/{path} aside"):
            try:
                return self._set_aside(root, path)
            except FileNotFoundError:
                return None

    def _set_aside(self, root: Directory, path: str) -> str:
        place, _, base = path.rpartition("/")
        with self._open(root, place) as source:
            self.fs.stat(source, base)  # before a directory is made or a name is used up
            with self._aside(root) as target:
                name = self._free_name(path)
                self.fs.rename(source, base, target, name)
                # The target is synced first: after a power loss the file may be in both places, never in neither.
                self.backend.state_dir.sync(target)
            self.backend.state_dir.sync(source)
            return f"{self._name}/{name}"

    def renew_store_file(self) -> None:
        """Make a new ``stateline.json`` after setting the old one aside. Durable on return."""
        with self._root() as root, storage(f"write {self.backend.path}/{naming.STORE_FILE}"):
            with suppress(FileNotFoundError):
                self._set_aside(root, naming.STORE_FILE)
            make_store_file(self.fs, root)
            self.backend.state_dir.sync(root)

    def replace_pointer(self, scope: str, new: Pointer) -> str | None:
        """Make ``new`` the head without comparing; return where the old pointer is kept, if there was one.

        At no moment is there no pointer, except where the old one is a directory. The scope's lock must be held, and
        ``new`` must be durable. Durable on return.
        """
        kept: str | None = None
        path = f"{naming.checked_scope(scope)}/{naming.POINTER}"
        doing = f"write {self.backend.path}/{path}"
        with self._root() as root, storage(doing), self._open(root, scope) as directory:
            with suppress(FileNotFoundError):
                if self.fs.stat(directory, naming.POINTER).kind == "directory":
                    kept = self._set_aside(root, path)
                else:
                    kept = self._keep(root, directory, path)
            self._replace(directory, naming.POINTER, new.encode())
        return kept

    def _keep(self, root: Directory, directory: Directory, path: str) -> str:
        """Link the pointer into the directory of this repair, or move it where there are no hard links."""
        with self._aside(root) as target:
            name = self._free_name(path)
            try:
                self.fs.link(directory, naming.POINTER, target, name)
            except FileNotFoundError:
                raise
            except OSError:
                # The new head is published by now, so the scope does not look like an unfinished first save.
                return self._set_aside(root, path)
            self.backend.state_dir.sync(target)
            return f"{self._name}/{name}"

    def _replace(self, directory: Directory, name: str, data: bytes) -> None:
        """Replace ``name`` atomically with a whole and durable file."""
        temporary = write_temporary(self.fs, directory, data, durable=True)
        try:
            self.fs.rename(directory, temporary, directory, name)
        except BaseException:
            discard(self.fs, directory, temporary)
            raise
        self.backend.state_dir.sync(directory)

    @contextmanager
    def _root(self) -> Iterator[Directory]:
        """Open the state dir, checked for writing except for its store file, which may be damaged."""
        self.backend.state_dir.require_not_poisoned()
        with storage(f"open {self.backend.path}"):
            self.backend.state_dir.require_safe_parents()
            root = self.fs.open_root(self.backend.path)
            try:
                self.backend.state_dir.require_safe(root)
                yield root
            finally:
                self.fs.close_directory(root)

    @contextmanager
    def _open(self, root: Directory, place: str) -> Iterator[Directory]:
        """Open a directory below the root; yield the root itself for ""."""
        directory, opened = root, []
        try:
            for part in place.split("/") if place else []:
                directory = self.fs.open_directory(directory, part)
                opened.append(directory)
            yield directory
        finally:
            for each in opened:
                self.fs.close_directory(each)

    @contextmanager
    def _aside(self, root: Directory) -> Iterator[Directory]:
        """Open the directory of this repair; make it first if necessary."""
        if self.aside is None:
            with suppress(FileExistsError):
                self.fs.make_directory(root, self._name)
            self.backend.state_dir.sync(root)
            self.aside = self._name
        with self._open(root, self._name) as directory:
            yield directory

    def _free_name(self, path: str) -> str:
        """Return an unused name in the directory of this repair: the flattened path, cut if too long."""
        flat = os.fsencode(path.replace("/", "__"))
        name, number = flat[:_LONGEST_NAME], 1
        while name in self._taken:
            number += 1
            end = f"-{number}".encode()
            name = flat[: _LONGEST_NAME - len(end)] + end
        self._taken.add(name)
        return os.fsdecode(name)


@singledispatch
def quarantine_for(backend: Backend, stamp: str) -> LocalQuarantine:
    """Return the quarantine of a repair that began at the time ``stamp`` (RFC 3339 without colons).

    Raises ``RequestError`` for a backend that has none registered.
    """
    raise RequestError(
        f"a store in {backend.describe()} cannot be repaired; nothing was changed",
        hint="`repair` works on a state dir; repair this store where its data is kept",
    )


@quarantine_for.register
def _local(backend: LocalBackend, stamp: str) -> LocalQuarantine:
    return LocalQuarantine(backend, stamp)
