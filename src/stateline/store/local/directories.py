"""Directories of a state dir: opened and checked, made durably, held under the lock of a scope, removed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from stateline.bundle import naming
from stateline.errors import DurabilityUnknownError
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.local.lock import HeldLock, acquire, sweep
from stateline.store.local.os_errors import storage
from stateline.store.local.state_dir import StateDir

_REMEMBERED = 1000
"""Most directories that are remembered as checked: there may be a hundred thousand."""
STALE_AFTER = 3600.0
"""Age from which a temporary file that no lock covers is removed [s]: no write of one file takes that long."""


class Directories:
    """Directories below the state dir, and the locks that this process holds on them."""

    def __init__(self, state_dir: StateDir, fs: Filesystem) -> None:
        self.state_dir = state_dir
        self.fs = fs
        self._held: dict[tuple[str, int], HeldLock] = {}
        self._nonempty: set[str] = set()
        self._checked: set[str] = set()
        self._swept = False

    # -- opening ---------------------------------------------------------------------------------------------------

    def open(self, place: str) -> AbstractContextManager[Directory]:
        """Open a directory below the root for a block: the handle that the lock holds, or a new one.

        Raises FileNotFoundError if it does not exist.
        """
        held = self.held(place)
        return nullcontext(held.directory) if held is not None else self._opened(place, self._open)

    @contextmanager
    def _opened(self, place: str, step: Callable[[Directory, str], Directory]) -> Iterator[Directory]:
        directory, opened = self.state_dir.require(), []
        try:
            for part in place.split("/"):
                directory = step(directory, part)
                opened.append(directory)
            yield directory
        finally:
            for directory in opened:
                self.fs.close_directory(directory)

    def _open(self, parent: Directory, name: str) -> Directory:
        directory = self.state_dir.open_inside(parent, name)
        writing = self.holds_any()
        if writing or directory.path not in self._checked:
            try:
                self.state_dir.check_access(self.fs.stat(directory), directory.path, "directory", writing=writing)
            except BaseException:
                self.fs.close_directory(directory)
                raise
            if len(self._checked) > _REMEMBERED:
                self._checked.clear()
            self._checked.add(directory.path)
        return directory

    def open_for_writing(self, place: str) -> AbstractContextManager[Directory]:
        """Open a directory for a block: made if it is missing, durable in its parent, and not open to others."""
        held = self.held(place)
        if held is None:
            return self._opened(place, self._open_or_make)
        directory = held.directory
        if not directory.durable:
            if not self._in_use(directory, place):
                self.state_dir.sync(self.state_dir.require())
            directory.durable = True
        return nullcontext(directory)

    def _open_or_make(self, parent: Directory, name: str) -> Directory:
        made = False
        try:
            directory = self.state_dir.open_inside(parent, name)
        except FileNotFoundError:
            with suppress(FileExistsError):
                self.fs.make_directory(parent, name)
            made = True
            directory = self.state_dir.open_inside(parent, name)
        try:
            self.state_dir.require_safe(directory)
            # With either durability: a power loss that takes a directory away takes everything in it. For a scope this
            # is decided when something is written; by then its pointer was read in most cases.
            if made or not (naming.is_sha256(name) or self._in_use(directory, name)):
                self.state_dir.sync(parent)
                directory.durable = True
        except BaseException:
            self.fs.close_directory(directory)
            raise
        return directory

    def _in_use(self, directory: Directory, name: str) -> bool:
        """Return True if something was published in a directory: its writer had synced the parent before. A directory
        that another writer has just made may not be durable yet."""
        if naming.is_sha256(name):
            try:
                self.fs.stat(directory, naming.POINTER)
            except FileNotFoundError:
                return False
            return True
        if directory.path not in self._nonempty:
            if all(found.startswith(naming.TEMPORARY) for found in self.fs.names(directory)):
                return False
            self._nonempty.add(directory.path)
        return True

    def sync(self, directory: Directory, visible: str) -> None:
        """Sync a directory in which a change is ``visible`` now. Raises ``DurabilityUnknownError``."""
        try:
            self.state_dir.sync(directory)
        except OSError as error:
            raise DurabilityUnknownError(
                f"{visible}, but syncing {directory.path} failed ({error.strerror}): a power loss may undo it; "
                "what was acknowledged before is untouched",
                hint="check the disk, then run `stateline verify`",
            ) from error

    @contextmanager
    def temporary(self, place: str) -> Iterator[Directory]:
        """Open the directory for a temporary file of ``place``.

        That is the directory of a scope whose lock is held, so that the next holder removes what a crash leaves; else
        ``objects`` for an object, and the state dir for anything else.
        """
        held = self.held(place) or self._last_held()
        if held is not None:
            held.mark()
            yield held.directory
        elif place.startswith(naming.OBJECTS):
            with self.open(naming.OBJECTS) as objects:
                if not self._swept:
                    self._swept = True
                    sweep(self.fs, objects, before=time.time() - STALE_AFTER)
                yield objects
        else:
            yield self.state_dir.require()

    # -- locks -----------------------------------------------------------------------------------------------------

    def held(self, scope: str) -> HeldLock | None:
        """Return the lock of that scope if this thread of this process holds it."""
        held = self._held.get((scope, threading.get_ident()))
        return None if held is None or held.inherited else held

    def current(self, scope: str) -> HeldLock:
        """Return the lock of that scope, which this thread holds."""
        return self._held[scope, threading.get_ident()]

    def _last_held(self) -> HeldLock | None:
        """Return the lock that this thread took last and still holds."""
        thread = threading.get_ident()
        mine = [held for (_, holder), held in tuple(self._held.items()) if holder == thread and not held.inherited]
        return mine[-1] if mine else None

    def holds_any(self) -> bool:
        """Return True if this thread holds a lock: it then acts on what it reads."""
        return self._last_held() is not None

    @contextmanager
    def lock(self, scope: str, wait: float) -> Iterator[None]:
        """Hold the lock of a scope for a block; inside another block of the same thread it is held already."""
        held = self._acquire(scope, wait)
        try:
            yield
        finally:
            self._release(held)

    def _acquire(self, scope: str, wait: float) -> HeldLock:
        held = self.held(scope)
        if held is None:
            self.state_dir.prepare()
            with storage(f"lock {self.state_dir.path}/{scope}"):
                root = self.state_dir.require()
                held = acquire(self.fs, root, scope, lambda: self._open_or_make(root, scope), wait)
            key = scope, threading.get_ident()
            inherited = self._held.pop(key, None)
            self._held[key] = held
            if inherited is not None:
                inherited.release()
        held.depth += 1
        return held

    def _release(self, held: HeldLock) -> None:
        held.depth -= 1
        if held.depth:
            return
        for key in [key for key, other in tuple(self._held.items()) if other is held]:
            del self._held[key]
            held.release()

    # -- removal ---------------------------------------------------------------------------------------------------

    def remove(self, scope: str) -> None:
        """Remove the directory of a scope and everything in it, if it exists."""
        root = self.state_dir.open()
        if root is None:
            return
        removed = f"{naming.REMOVED}{scope[:16]}-{os.urandom(4).hex()}"
        with suppress(FileNotFoundError):
            # One rename removes the scope at once; deleting its files one by one could stop half-way.
            self.fs.rename(root, scope, root, removed)
            self.sync(root, "the scope is removed")
            self._remove_tree(root, removed)

    def _remove_tree(self, parent: Directory, name: str) -> None:
        """Delete a directory and everything below it. Follows no symlink."""
        directory = self.fs.open_directory(parent, name)
        try:
            for below in list(self.fs.names(directory)):
                if self.fs.stat(directory, below).kind == "directory":
                    self._remove_tree(directory, below)
                else:
                    self.fs.unlink(directory, below)
        finally:
            self.fs.close_directory(directory)
        self.fs.remove_directory(parent, name)
