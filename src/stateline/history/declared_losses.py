"""Who reads an old snapshot may come upon what a repair has recorded as lost."""

from __future__ import annotations

from stateline.bundle.repair_record import MEMBER, DeclaredLosses
from stateline.errors import IntegrityError, StatelineError
from stateline.store.store import Scope, Snapshot, Store


class Recorded:
    """What the repairs of a scope recorded as lost. Reads from the head down, at most to the snapshot that is asked
    about and nothing twice."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._walk = scope.walk()
        self._next: Snapshot | None = None
        self._ended = False
        self._repairs: list[tuple[Snapshot, set[str]]] = []

    def loss(self, snapshot: Snapshot, error: IntegrityError) -> IntegrityError | None:
        """The error that reading the objects of ``snapshot`` raised, saying which repair knows of the loss; None if
        none does."""
        if error.finding != "missing":
            return None
        self._read(snapshot.seq)
        for repair, objects in self._repairs:
            if repair.seq > snapshot.seq and any(sha in error.message for sha in objects):
                return IntegrityError(
                    f"{error.message}: it is lost, as the repair {self.scope.key}@{repair.seq} has recorded",
                    finding=error.finding,
                    hint=f"{self.scope.key}@{_resumed_from(repair)} is the newest state of that time that was whole",
                )
        return None

    def _read(self, seq: int) -> None:
        """Read all that is newer than ``seq``."""
        try:
            while not self._ended and (self._next is None or self._next.seq > seq):
                self._next = next(self._walk, None)
                self._ended = self._next is None
                if self._next is not None and MEMBER in self._next.event:
                    losses = DeclaredLosses()
                    losses.add(self._next.event)
                    self._repairs.append((self._next, losses.objects))
        except StatelineError:
            # Then there is damage that no repair knows of.
            self._ended = True


def explained(store: Store, snapshot: Snapshot, error: IntegrityError) -> IntegrityError:
    """The error that reading the objects of ``snapshot`` raised, saying which repair knows of the loss, or else what to
    do about it. Walks from the head to that repair."""
    scope = store.scope(snapshot.envelope.scope)
    return Recorded(scope).loss(snapshot, error) or scope.with_way_out(error)


def _resumed_from(repair: Snapshot) -> int:
    """The number of the snapshot whose state a repair took over."""
    said = repair.event.get(MEMBER)
    origin = said.get("from") if isinstance(said, dict) else None
    seq = origin.get("seq") if isinstance(origin, dict) else None
    return seq if isinstance(seq, int) else repair.seq
