"""The overlay backend: reads come from another backend, writes stay in memory. ``--dry-run`` runs a verb over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer
from stateline.errors import ConflictError, IntegrityError, UnsafePathError
from stateline.store.protocol import Backend, BlobExistsError, BlobMissingError, Durability, Inspectable


class OverlayBackend:
    """A backend over ``base`` that never writes to it and takes none of its locks.

    It refuses what ``base`` would refuse to write, as far as reading can tell. ``swaps`` lists the heads that were set,
    as (scope hash, pointer), oldest first. For one thread.
    """

    def __init__(self, base: Backend) -> None:
        self._base = base
        self.durability: Durability = base.durability
        self.warnings: list[str] = base.warnings
        self.swaps: list[tuple[str, Pointer]] = []
        self._blobs: dict[str, bytes] = {}
        self._heads: dict[str, Pointer] = {}
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
            self._blobs[name] = bytes(data)
            return
        except IntegrityError as error:
            if error.finding != "too_large":
                raise
            raise BlobExistsError(name) from None
        if there != data:
            raise BlobExistsError(name)

    def get(self, name: str, limit: int) -> bytes:
        place, _ = naming.blob_parts(name)
        data = self._blobs.get(name)
        if data is None:
            if place in self._removed:
                raise BlobMissingError(name)
            return self._base.get(name, limit)
        if len(data) > limit:
            raise IntegrityError(f"{name} is too large: {len(data)} bytes", finding="too_large")
        return data

    def has(self, name: str, size: int) -> bool:
        place, _ = naming.blob_parts(name)
        data = self._blobs.get(name)
        if data is not None:
            return len(data) == size
        return place not in self._removed and self._base.has(name, size)

    def list(self, prefix: str) -> Iterator[str]:
        naming.checked_directory(prefix)
        own = {name.rpartition("/")[2] for name in self._blobs if name.rpartition("/")[0] == prefix}
        yield from own
        if prefix not in self._removed:
            yield from (name for name in self._base.list(prefix) if name not in own)

    def settle(self, names: Iterable[str]) -> None:
        """Nothing is made durable. Raises ``BlobMissingError`` as the protocol demands."""
        for name in names:
            place, base = naming.blob_parts(name)
            if name not in self._blobs and base not in self._base.list(place):
                raise BlobMissingError(name)

    def read(self, scope: str) -> Pointer | None:
        own = self._heads.get(naming.checked_scope(scope))
        return own if own is not None or scope in self._removed else self._base.read(scope)

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        with self.lock(scope, 0.0):
            if self.read(scope) != expected:
                raise ConflictError(
                    "the head moved while this change was made; the other change was kept",
                    hint="load the head again and repeat the change",
                )
            self._heads[scope] = new
            self.swaps.append((scope, new))

    def scopes(self) -> Iterator[str]:
        own = {name.partition("/")[0] for name in self._blobs if not name.startswith("objects/")} | set(self._heads)
        return iter(sorted(own | (set(self._base.scopes()) - self._removed)))

    @contextmanager
    def lock(self, scope: str, wait: float) -> Iterator[None]:
        """Take no lock; raise what a writer that takes it would raise."""
        naming.checked_scope(scope)
        self._require_writable_directory(scope)
        self._require_safe(f"{scope}/{naming.POINTER}")
        yield

    def remove(self, scope: str) -> None:
        naming.checked_scope(scope)
        self._base.require_writable()
        self._removed.add(scope)
        self._heads.pop(scope, None)
        for name in [name for name in self._blobs if name.startswith(f"{scope}/")]:
            del self._blobs[name]

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
