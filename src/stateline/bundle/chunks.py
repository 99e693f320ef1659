"""Boundaries of the chunks of a long list. Pure.

A boundary depends only on the items in front of it. So equal lists have equal chunks, whatever their history, and a
list that grows keeps all its chunks but the last. The rule is in ``docs/format.md``.
"""

from __future__ import annotations

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Chunk, Ref

CONTAINERS = 64
"""Most arrays and objects in a chunk. Scalars do not count: 64 small numbers are not worth a file."""

_encoder = msgspec.json.Encoder(order="sorted")


class ChunkBuilder:
    """A chunk that takes items until it is full, at ``limit`` [bytes] of items and table."""

    def __init__(self, before: Ref | None, limit: int) -> None:
        self.before = before
        self.limit = limit
        self.items: list[Json] = []
        self.objects: dict[str, Ref] = {}
        self._size = 1  # two brackets, and one comma less than items
        self._containers = 0

    @property
    def full(self) -> bool:
        """True if the next item begins a new chunk."""
        return self._size >= self.limit or self._containers >= CONTAINERS

    def add(self, item: Json, table: dict[str, Ref]) -> None:
        """Add an item as it stands inline, with the table of the objects taken out of it (pointer "" for all of it)."""
        if table and not self.objects:
            self._size += 1  # two braces, and one comma less than entries
        for pointer, ref in table.items():
            place = f"/{len(self.items)}{pointer}"
            self.objects[place] = ref
            self._size += _length(place) + _length(ref.document()) + 2
        self.items.append(item)
        self._size += _length(item) + 1
        self._containers += isinstance(item, (dict, list))

    def chunk(self) -> Chunk:
        """Return the chunk with the items so far."""
        return Chunk(self.before, self.items, self.objects)


def reopen(chunk: Chunk, limit: int) -> ChunkBuilder:
    """Return a builder for the last chunk of a list."""
    tables: list[dict[str, Ref]] = [{} for _ in chunk.items]
    for whole, ref in chunk.objects.items():
        index, slash, rest = whole[1:].partition("/")
        tables[int(index)][slash + rest] = ref
    builder = ChunkBuilder(chunk.before, limit)
    for item, table in zip(chunk.items, tables, strict=True):
        builder.add(item, table)
    return builder


def _length(item: Json) -> int:
    """Return the size of the canonical form [bytes]. Raises ``InvalidValueError`` for a value without one."""
    try:
        return len(_encoder.encode(item))
    except (TypeError, ValueError, RecursionError):
        return len(canonical.encode(item))
