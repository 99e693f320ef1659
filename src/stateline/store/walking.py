"""From a snapshot back through its past, also over what a repair declared lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stateline.errors import IntegrityError
from stateline.store.snapshot import Snapshot

if TYPE_CHECKING:
    from stateline.bundle.repair_record import DeclaredLosses
    from stateline.store.store import Scope


def walk(scope: Scope, start: Snapshot | None) -> Iterator[Snapshot]:
    """``Scope.walk``."""
    losses: DeclaredLosses | None = None
    snapshot = start or scope.head()
    while snapshot is not None:
        yield snapshot
        if losses is None and "repaired" in snapshot.event:
            losses = _no_losses()
        if losses is not None:
            losses.add(snapshot.event)
        child = snapshot
        try:
            snapshot = scope.parent(child)
        except IntegrityError as error:
            if error.finding != "missing" or (losses is None and start is None):
                raise
            losses = losses or _no_losses()
            if start is not None and child.envelope.prev_sha not in losses.gaps:
                _heed_newer(scope, start, losses)
            snapshot = _over_the_gap(scope, child, losses, error)


def _no_losses() -> DeclaredLosses:
    # Hardly any chain was ever repaired; the others need not load what reads that.
    from stateline.bundle.repair_record import DeclaredLosses

    return DeclaredLosses()


def _heed_newer(scope: Scope, start: Snapshot, losses: DeclaredLosses) -> None:
    """Who began in the middle has not passed what is newer, which may declare what is missing further down."""
    try:
        for newer in scope.walk():
            if newer.seq <= start.seq:
                return
            losses.add(newer.event)
    except IntegrityError:
        # Whatever is wrong up there, what was declared so far counts.
        return


def _over_the_gap(scope: Scope, child: Snapshot, losses: DeclaredLosses, error: IntegrityError) -> Snapshot | None:
    """The snapshot at which the chain resumes, None if nothing older survives. Raises ``error`` for a snapshot that is
    missing and that nobody declared lost."""
    gap = losses.take_gap(child.envelope.prev_sha or "")
    while gap is not None and gap.resumes is not None:
        resumes = gap.resumes
        try:
            below = scope.store.read_snapshot(scope.hash, resumes.pointer)
        except IntegrityError as other:
            if other.finding != "missing":
                raise
            gap, error = losses.take_gap(resumes.sha256), other
            continue
        if below.seq != resumes.seq or below.envelope.created_at >= child.envelope.created_at:
            raise IntegrityError(
                f"the snapshots {below.path} and {child.path} are not in order",
                finding="misordered",
                hint="nothing was changed; `stateline verify` lists all damage",
            )
        return below
    if gap is None:
        raise error
    return None
