"""Explain objects that are missing because a repair declared them lost."""

from __future__ import annotations

from stateline.bundle.repair_record import MEMBER, DeclaredLosses
from stateline.errors import IntegrityError, StatelineError
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store


class RepairHistory:
    """Losses declared by the repairs of one scope.

    Reads from the head down, at most to the snapshot in question, and nothing twice.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._walk = scope.walk()
        self._next: Snapshot | None = None
        self._ended = False
        self._repairs: list[tuple[Snapshot, set[str]]] = []

    def explain(self, snapshot: Snapshot, error: IntegrityError) -> IntegrityError | None:
        """Return ``error``, raised when the objects of ``snapshot`` were read, with the repair that declared the loss.

        None if no repair did.
        """
        if error.finding != "missing":
            return None
        self._read(snapshot.seq)
        for repair, objects in self._repairs:
            if repair.seq > snapshot.seq and any(sha in error.message for sha in objects):
                key = self.scope.key
                return IntegrityError(
                    f"{error.message}: it is lost, as the repair {key}@{repair.seq} has recorded",
                    finding=error.finding,
                    hint=f"{key}@{_resumed_from(repair)} is the newest state of that time without losses",
                )
        return None

    def reason(self, snapshot: Snapshot, error: IntegrityError) -> str:
        """Return the message of :meth:`explain`; raise ``error`` if no repair has declared the loss."""
        loss = self.explain(snapshot, error)
        if loss is None:
            raise error
        return loss.message

    def _read(self, seq: int) -> None:
        """Read the snapshots newer than ``seq``."""
        try:
            while not self._ended and (self._next is None or self._next.seq > seq):
                self._next = next(self._walk, None)
                self._ended = self._next is None
                if self._next is not None and MEMBER in self._next.event:
                    losses = DeclaredLosses()
                    losses.add(self._next.event)
                    self._repairs.append((self._next, losses.objects))
        except StatelineError:
            # The chain is damaged in a way that no repair has recorded.
            self._ended = True


def explain_loss(store: Store, snapshot: Snapshot, error: IntegrityError) -> IntegrityError:
    """Return ``error``, raised when the objects of ``snapshot`` were read, with the repair that declared the loss.

    If no repair did, the error says how to recover. Walks from the head to that repair.
    """
    scope = store.scope(snapshot.envelope.scope)
    from stateline.store.integrity import with_recovery_hint

    return RepairHistory(scope).explain(snapshot, error) or with_recovery_hint(scope.store.backend, scope.key, error)


def _resumed_from(repair: Snapshot) -> int:
    """Return the ``seq`` of the snapshot whose state a repair took over."""
    record = repair.event.get(MEMBER)
    origin = record.get("from") if isinstance(record, dict) else None
    seq = origin.get("seq") if isinstance(origin, dict) else None
    return seq if isinstance(seq, int) else repair.seq
