"""The verb ``repair``: a plan or its execution, with the engine's rules for the events of runs."""

from __future__ import annotations

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.event_codec import read_event
from stateline.engine.next_event import after_repair
from stateline.errors import IntegrityError
from stateline.process.signals import Signals, shield
from stateline.repair.apply import plan, repair
from stateline.repair.report import RepairReport
from stateline.repair.republish import carry_all
from stateline.store.scope import WAIT
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store


def plan_repair(store: Store, key: str | None) -> RepairReport:
    """Return what ``repair`` would do to the store, or to the one scope ``key``. Only reads.

    Raises ``UsageError`` for a malformed key, ``NotFoundError`` for a scope that does not exist.
    """
    return plan(store, None if key is None else naming.checked_key(key))


def apply_repair(store: Store, key: str | None, *, wait: float = WAIT) -> RepairReport:
    """Repair the store, or the one scope ``key``; ``wait`` [s] bounds the wait for each scope's lock.

    Raises as :func:`plan_repair`, and ``UnsafePathError``, ``StorageError`` or ``RequestError`` for a place that cannot
    be repaired. Obstacles in one scope are in the result.
    """
    with Signals(), shield():
        return repair(store, None if key is None else naming.checked_key(key), carry=_carried, wait=wait)


def _carried(content: Snapshot, newer_lost: bool) -> dict[str, Json]:
    """Return what the event of a repair's snapshot repeats: for a run, what the engine needs to continue."""
    if content.envelope.kind == "run" and content.envelope.scope.startswith("run:"):
        try:
            read_event(content)
            return after_repair(content, newer_lost)
        except IntegrityError:
            # The engine did not write it, so keep all members.
            pass
    return carry_all(content, newer_lost)
