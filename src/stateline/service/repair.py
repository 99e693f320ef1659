"""The verb ``repair``: a plan, or its execution, with what the engine knows about runs."""

from __future__ import annotations

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.event_codec import after_repair, read_event
from stateline.errors import IntegrityError
from stateline.process.signals import Signals, shield
from stateline.repair.apply import Repair, carry_all, plan, repair
from stateline.store.store import WAIT, Snapshot, Store


def plan_repair(store: Store, key: str | None) -> Repair:
    """What ``repair`` would do to the store, or to the one scope ``key``. Reads only.

    Raises ``UsageError`` for a malformed key, ``NotFoundError`` for a scope that does not exist.
    """
    return plan(store, None if key is None else naming.checked_key(key))


def apply_repair(store: Store, key: str | None, *, wait: float = WAIT) -> Repair:
    """Repair the store, or the one scope ``key``; ``wait`` [s] bounds the wait for each scope's lock.

    Raises as :func:`plan_repair`, and ``UnsafePathError``, ``StorageError`` or ``RequestError`` for a place where nothing
    can be mended. What keeps one scope from being repaired is in the result.
    """
    with Signals(), shield():
        return repair(store, None if key is None else naming.checked_key(key), carry=_carried, wait=wait)


def _carried(content: Snapshot, newer_lost: bool) -> dict[str, Json]:
    """What the event of a repair's snapshot repeats: of a run's, what the engine needs to go on."""
    if content.envelope.kind == "run" and content.envelope.scope.startswith("run:"):
        try:
            read_event(content)
            return after_repair(content, newer_lost)
        except IntegrityError:
            # Not as the engine writes it; whoever wrote it knows what it needs.
            pass
    return carry_all(content, newer_lost)
