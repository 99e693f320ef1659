"""Making durable what was saved ``fast``, before something is built on it that has to last.

A ``full`` snapshot promises that it and all its past survive a power loss. What is behind one keeps that promise
already, so the way back ends there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stateline.bundle import naming
from stateline.bundle.envelope import OWN_TYPES, Ref
from stateline.bundle.objects import references
from stateline.errors import IntegrityError, NotFoundError
from stateline.store.protocol import FAST, FULL, BlobMissingError

if TYPE_CHECKING:
    from stateline.store.store import Scope, Snapshot, Store


def settle_past(scope: Scope, head: Snapshot) -> None:
    """Make ``head`` and its past durable, if it was saved fast and this store promises more. Else nothing is done.

    The past is read, so that nothing damaged is vouched for. Raises ``IntegrityError``, ``StorageError``.
    """
    store = scope.store
    if store.backend.durability != FULL or head.event.get("durability") != FAST:
        return
    from stateline.bundle.repair_record import DeclaredLosses

    names: list[str] = []
    refs: set[Ref] = set()
    settled: set[Ref] = set()
    losses = DeclaredLosses()
    for snapshot in scope.walk(head):
        if snapshot.event.get("durability") != FAST:
            settled.update(snapshot.envelope.objects.values())
            break
        names.append(f"{scope.hash}/{snapshot.path}")
        refs.update(snapshot.envelope.objects.values())
        losses.add(snapshot.event)
    _settle(store, [*_names(store, refs - settled, settled, losses.objects), *names])


def rest_on(store: Store, refs: list[Ref]) -> None:
    """Demand objects that something new shall name, and make them durable as :func:`settle_objects` does.

    Raises ``NotFoundError`` for one that is not there, ``IntegrityError``, ``StorageError``.
    """
    for ref in refs:
        try:
            store.get(ref)
        except IntegrityError as error:
            if error.finding != "missing":
                raise
            raise NotFoundError(
                f"there is no object {ref.sha256} in this store; nothing was written",
                hint="put the content into this store first (Store.put), or save the value itself",
            ) from None
    settle_objects(store, refs)


def settle_objects(store: Store, refs: Iterable[Ref]) -> None:
    """Make objects and all that they name durable, if this store promises that: whoever put them may not have.

    Raises ``IntegrityError``, ``StorageError``.
    """
    if store.backend.durability == FULL:
        _settle(store, _names(store, refs, set(), set()))


def _settle(store: Store, names: list[str]) -> None:
    try:
        store.backend.settle(names)
    except BlobMissingError as error:
        raise IntegrityError(f"{error} is missing", finding="missing", hint=_DAMAGE) from None


def _names(store: Store, refs: Iterable[Ref], settled: set[Ref], lost: set[str]) -> list[str]:
    """The blobs of ``refs`` and of all that they name, each once; what is below a ``settled`` one is settled, and what
    a repair declared ``lost`` (digests) is not asked for."""
    reached = set(settled)
    names: dict[str, None] = {}
    waiting = sorted(refs)
    while waiting:
        ref = waiting.pop()
        if ref in reached or ref.sha256 in lost:
            continue
        reached.add(ref)
        names[naming.object_path(ref.sha256)] = None
        if ref.media_type.startswith(OWN_TYPES):
            waiting += references(store.get(ref), ref)
    return list(names)


_DAMAGE = "nothing was changed; `stateline verify` lists all damage"
