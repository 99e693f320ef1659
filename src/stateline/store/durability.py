"""Make durable what was saved ``fast``, before a ``full`` snapshot or list is built on it.

A ``full`` snapshot promises that it and its whole past survive a power loss, so the walk into the past ends at one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stateline.bundle import naming
from stateline.bundle.envelope import OWN_TYPES, Ref
from stateline.bundle.objects import references
from stateline.bundle.repair_record import DeclaredLosses
from stateline.errors import IntegrityError
from stateline.store.protocol import DAMAGE_HINT, FAST, FULL, Backend, BlobMissingError
from stateline.store.snapshot import Snapshot

Read = Callable[[Ref], bytes]
"""Returns an object's bytes, checked."""


def sync_past(backend: Backend, head: Snapshot, past: Callable[[Snapshot], Iterable[Snapshot]], read: Read) -> None:
    """Make ``head`` and its ``past`` (from the head back) durable, if it was saved fast and this store promises more.

    The past is read, so that nothing damaged is declared durable. Raises ``IntegrityError``, ``StorageError``.
    """
    if backend.durability != FULL or head.event.get("durability") != FAST:
        return
    names: list[str] = []
    refs: set[Ref] = set()
    durable: set[Ref] = set()
    losses = DeclaredLosses()
    for snapshot in past(head):
        if snapshot.event.get("durability") != FAST:
            durable.update(snapshot.envelope.objects.values())
            break
        names.append(f"{snapshot.scope}/{snapshot.path}")
        refs.update(snapshot.envelope.objects.values())
        losses.add(snapshot.event)
    _sync(backend, [*_blobs(refs - durable, durable, losses.objects, read), *names])


def sync_objects(backend: Backend, refs: Iterable[Ref], read: Read) -> None:
    """Make objects and all that they name durable, if this store promises that.

    Raises ``IntegrityError``, ``StorageError``.
    """
    if backend.durability == FULL:
        _sync(backend, _blobs(refs, set(), set(), read))


def _sync(backend: Backend, names: list[str]) -> None:
    try:
        backend.settle(names)
    except BlobMissingError as error:
        raise IntegrityError(f"{error} is missing", finding="missing", hint=DAMAGE_HINT) from None


def _blobs(refs: Iterable[Ref], durable: set[Ref], lost: set[str], read: Read) -> list[str]:
    """Return the blobs of ``refs`` and of all that they name, each once, without ``durable`` ones and all below them
    and without those that a repair declared ``lost`` (digests)."""
    reached = set(durable)
    names: dict[str, None] = {}
    waiting = sorted(refs)
    while waiting:
        ref = waiting.pop()
        if ref in reached or ref.sha256 in lost:
            continue
        reached.add(ref)
        names[naming.object_path(ref.sha256)] = None
        if ref.media_type.startswith(OWN_TYPES):
            waiting += references(read(ref), ref)
    return list(names)
