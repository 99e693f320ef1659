"""Who reads an old snapshot may come upon what a repair has recorded as lost."""

from __future__ import annotations

from stateline.bundle.repairs import MEMBER, Losses
from stateline.errors import IntegrityError, StatelineError
from stateline.store.store import Snapshot, Store


def explained(store: Store, snapshot: Snapshot, error: IntegrityError) -> IntegrityError:
    """The error that reading the objects of ``snapshot`` raised, saying which repair knows of the loss, or else what to
    do about it. Walks from the head to that repair."""
    scope = store.scope(snapshot.envelope.scope)
    if error.finding != "missing":
        return scope.with_way_out(error)
    try:
        for newer in scope.walk():
            if newer.seq <= snapshot.seq:
                break
            losses = Losses()
            losses.heed(newer.event)
            if any(sha in error.message for sha in losses.objects):
                return IntegrityError(
                    f"{error.message}: it is lost, as the repair {scope.key}@{newer.seq} has recorded",
                    finding=error.finding,
                    hint=f"{scope.key}@{_resumed_from(newer)} is the newest state of that time that was whole",
                )
    except StatelineError:
        # Then there is damage that no repair knows of.
        pass
    return scope.with_way_out(error)


def _resumed_from(repair: Snapshot) -> int:
    """The number of the snapshot whose state a repair took over."""
    said = repair.event.get(MEMBER)
    origin = said.get("from") if isinstance(said, dict) else None
    seq = origin.get("seq") if isinstance(origin, dict) else None
    return seq if isinstance(seq, int) else repair.seq
