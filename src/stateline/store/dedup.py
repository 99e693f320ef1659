"""Deduplication: objects of a new snapshot that its parent holds already are neither read nor written again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from stateline.bundle.envelope import Ref
from stateline.bundle.objects import PARENT_TYPES, Split, references
from stateline.errors import StatelineError


def objects_in_parent(
    table: Iterable[Ref], parts: Split, wanted: Collection[Ref], get: Callable[[Ref], bytes]
) -> set[Ref]:
    """Return objects that a parent with this ``table`` of objects holds, among them the ``wanted`` ones it finds.

    An object that ``parts`` holds too is known with everything below it, without reading. Only nodes and chunks that
    changed are read, each once with ``get``, at most as many as are wanted, and only until all wanted ones are found.
    An unreadable one is skipped: the new snapshot does not depend on it.
    """
    known: set[Ref] = set()
    missing = set(wanted)
    named = parts.all_refs()
    reads = len(missing)
    met, changed = list(table), deque[Ref]()
    while met or (changed and missing and reads):
        if met:
            ref = met.pop()
            if ref not in known:
                known.add(ref)
                missing.discard(ref)
                met += parts.children.get(ref, ())
                if ref not in named and ref.media_type in PARENT_TYPES:
                    changed.append(ref)
            continue
        reads -= 1
        ref = changed.popleft()
        try:
            met += references(get(ref), ref)
        except StatelineError:
            continue
    return known
