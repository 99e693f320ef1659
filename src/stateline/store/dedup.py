"""Objects of a new snapshot that its parent holds already: they are neither read nor written again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from stateline.bundle.envelope import Ref
from stateline.bundle.objects import WHOLES, Split, references
from stateline.errors import StatelineError


def held(table: Iterable[Ref], parts: Split, wanted: Collection[Ref], get: Callable[[Ref], bytes]) -> set[Ref]:
    """Objects that a parent with that ``table`` of objects holds, as many of ``wanted`` among them as are found.

    What ``parts`` hold too is known with all below it, without reading. Only nodes and chunks that changed are read, by
    ``get``, each once, as long as something is wanted, and never more of them than there is to find. One that cannot
    be read is passed over: the new snapshot does not rest on it.
    """
    known: set[Ref] = set()
    missing = set(wanted)
    named = parts.named()
    reads = len(missing)
    met, changed = list(table), deque[Ref]()
    while met or (changed and missing and reads):
        if met:
            ref = met.pop()
            if ref not in known:
                known.add(ref)
                missing.discard(ref)
                met += parts.names.get(ref, ())
                if ref not in named and ref.media_type in WHOLES:
                    changed.append(ref)
            continue
        reads -= 1
        ref = changed.popleft()
        try:
            met += references(get(ref), ref)
        except StatelineError:
            continue
    return known
