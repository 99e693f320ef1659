"""Where a chunk of a long list ends. Pure.

Boundaries are a function of the items in front of them alone. So equal lists have equal chunks, whatever their history,
and a list that grows keeps all its chunks but the last. ``docs/format.md`` has the rule.
"""

from __future__ import annotations

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Chunk, Ref

CONTAINERS = 64
"""How many arrays and objects a chunk holds at most. Scalars do not count: 64 small numbers are not worth a file."""

_encoder = msgspec.json.Encoder(order="sorted")


class Filling:
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
        """Whether the next item begins a new chunk."""
        return self._size >= self.limit or self._containers >= CONTAINERS

    def add(self, item: Json, table: dict[str, Ref]) -> None:
        """Take an item as it stands inline, and the table of what was taken out of it (pointer "" for all of it)."""
        if table:
            self._enter(f"/{len(self.items)}", table)
        self.items.append(item)
        self._size += _length(item) + 1
        self._containers += isinstance(item, (dict, list))

    def _enter(self, place: str, table: dict[str, Ref]) -> None:
        if not self.objects:
            self._size += 1  # two braces, and one comma less than entries
        for pointer, ref in table.items():
            self.objects[place + pointer] = ref
            self._size += _length(place + pointer) + _length(ref.document()) + 2

    def chunk(self) -> Chunk:
        """What was filled so far."""
        return Chunk(self.before, self.items, self.objects)


def resumed(chunk: Chunk, limit: int) -> Filling:
    """The last chunk of a list, taken up again."""
    tables: list[dict[str, Ref]] = [{} for _ in chunk.items]
    for whole, ref in chunk.objects.items():
        index, slash, rest = whole[1:].partition("/")
        tables[int(index)][slash + rest] = ref
    filling = Filling(chunk.before, limit)
    for item, table in zip(chunk.items, tables, strict=True):
        filling.add(item, table)
    return filling


def _length(item: Json) -> int:
    """Bytes of the canonical form. Raises ``InvalidValueError`` for what has none."""
    try:
        return len(_encoder.encode(item))
    except (TypeError, ValueError, RecursionError):
        return len(canonical.encode(item))
