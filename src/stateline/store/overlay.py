"""The overlay backend: reads come from another backend, writes stay in memory. ``--dry-run`` runs a verb over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer
from stateline.errors import IntegrityError, UnsafePathError
from stateline.store.memory import MemoryBackend
from stateline.store.protocol import Backend, BlobExistsError, BlobMissingError, Inspectable


class OverlayBackend(MemoryBackend):
    """A backend over ``base`` that never writes to it and takes none of its locks.

    It refuses what ``base`` would refuse to write, as far as reading can tell. ``swaps`` lists the heads that were set,
    as (scope hash, pointer), oldest first. For one thread.
    """

    def __init__(self, base: Backend) -> None:
        super().__init__()
        self._base = base
        self.durability = base.durability
        self.warnings = base.warnings
        self.swaps: list[tuple[str, Pointer]] = []
        self._removed: set[str] = set()

    def describe(self) -> str:
        return self._base.describe()

    def prepare(self) -> None:
        self._base.require_writable()

    def require_writable(self) -> None:
        self._base.require_writable()

    def put(self, name: str, data: bytes) -> None:
        place, _ = naming.blob_parts(name)
        self._require_writable_directory(place)
        try:
            there = self.get(name, max(len(data), 1))
        except BlobMissingError:
            super().put(name, data)
            return
        except IntegrityError as error:
            if error.finding != "too_large":
                raise
            raise BlobExistsError(name) from None
        if there != data:
            raise BlobExistsError(name)

    def get(self, name: str, limit: int) -> bytes:
        place, _ = naming.blob_parts(name)
        if name in self._blobs or place in self._removed:
            return super().get(name, limit)
        return self._base.get(name, limit)

    def has(self, name: str, size: int) -> bool:
        place, _ = naming.blob_parts(name)
        if name in self._blobs or place in self._removed:
            return super().has(name, size)
        return self._base.has(name, size)

    def list(self, prefix: str) -> Iterator[str]:
        own = set(super().list(prefix))
        yield from own
        if prefix not in self._removed:
            yield from (name for name in self._base.list(prefix) if name not in own)

    def settle(self, names: Iterable[str]) -> None:
        for name in names:
            place, base = naming.blob_parts(name)
            if name not in self._blobs and base not in self._base.list(place):
                raise BlobMissingError(name)

    def read(self, scope: str) -> Pointer | None:
        own = super().read(scope)
        return own if own is not None or scope in self._removed else self._base.read(scope)

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        with self.lock(scope, 0.0):
            head = self.read(scope)
            if head is not None:
                self._heads[scope] = head
            super().swap(scope, expected, new)
            self.swaps.append((scope, new))

    def scopes(self) -> Iterator[str]:
        return iter(sorted({*super().scopes(), *(set(self._base.scopes()) - self._removed)}))

    @contextmanager
    def lock(self, scope: str, wait: float) -> Iterator[None]:
        """Take no lock; raise what a writer that takes it would raise."""
        naming.checked_scope(scope)
        self._require_writable_directory(scope)
        self._require_safe(f"{scope}/{naming.POINTER}")
        self._require_safe(f"{scope}/{naming.LOCK}")
        yield

    def is_locked(self, scope: str) -> bool | None:
        return self._base.is_locked(scope)

    def remove(self, scope: str) -> None:
        self._base.require_writable()
        super().remove(scope)
        self._removed.add(scope)

    def _require_writable_directory(self, place: str) -> None:
        self._base.require_writable()
        path = ""
        for part in place.split("/"):
            path += f"{part}/"
            self._require_safe(path)

    def _require_safe(self, path: str) -> None:
        """Raise ``UnsafePathError`` for a file, or a directory with a trailing slash, that a writer would refuse."""
        if isinstance(self._base, Inspectable):
            danger = self._base.inspect(path)
            if danger is not None:
                raise UnsafePathError(f"{danger.reason}; nothing was changed", hint=danger.fix)
