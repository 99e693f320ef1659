"""The memory backend: the same promises for the life of the process, and nothing on disk."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer
from stateline.errors import IntegrityError
from stateline.store.protocol import FULL, BlobExistsError, BlobMissingError, Durability, lock_timeout, moved_head


class MemoryBackend:
    """Blobs and heads in dictionaries. Safe for threads."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.durability: Durability = FULL
        self._blobs: dict[str, bytes] = {}
        self._heads: dict[str, Pointer] = {}
        self._guard = threading.Lock()
        self._held: list[str] = []
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)

    def describe(self) -> str:
        return "memory"

    def prepare(self) -> None:
        """Memory is always ready."""

    def require_writable(self) -> None:
        """Memory is always ready."""

    def put(self, name: str, data: bytes) -> None:
        naming.blob_parts(name)
        with self._guard:
            if self._blobs.setdefault(name, bytes(data)) != data:
                raise BlobExistsError(name)

    def get(self, name: str, limit: int) -> bytes:
        naming.blob_parts(name)
        data = self._blobs.get(name)
        if data is None:
            raise BlobMissingError(name)
        if len(data) > limit:
            raise IntegrityError(f"{name} is too large: {len(data)} bytes", finding="too_large")
        return data

    def has(self, name: str, size: int) -> bool:
        naming.blob_parts(name)
        return len(self._blobs.get(name, b"")) == size and name in self._blobs

    def list(self, prefix: str) -> Iterator[str]:
        naming.checked_directory(prefix)
        with self._guard:
            names = [name for name in self._blobs if name.rpartition("/")[0] == prefix]
        return (name.rpartition("/")[2] for name in names)

    def settle(self, names: Iterable[str]) -> None:
        for name in names:
            naming.blob_parts(name)
            if name not in self._blobs:
                raise BlobMissingError(name)

    def read(self, scope: str) -> Pointer | None:
        return self._heads.get(naming.checked_scope(scope))

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        naming.checked_scope(scope)
        with self._guard:
            if self._heads.get(scope) != expected:
                raise moved_head()
            self._heads[scope] = new

    def scopes(self) -> Iterator[str]:
        with self._guard:
            names = {name.partition("/")[0] for name in self._blobs if not name.startswith("objects/")}
        return iter(sorted(names | set(self._heads)))

    @contextmanager
    def lock(self, scope: str, wait: float) -> Iterator[None]:
        naming.checked_scope(scope)
        with self._guard:
            lock = self._locks[scope]
        if not lock.acquire(timeout=wait):
            raise lock_timeout("another thread", wait)
        self._held.append(scope)
        try:
            yield
        finally:
            self._held.remove(scope)
            lock.release()

    def is_locked(self, scope: str) -> bool | None:
        return naming.checked_scope(scope) in self._held

    def remove(self, scope: str) -> None:
        naming.checked_scope(scope)
        with self._guard:
            self._heads.pop(scope, None)
            for name in [name for name in self._blobs if name.startswith(f"{scope}/")]:
                del self._blobs[name]
