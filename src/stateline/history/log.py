"""Log of one scope, and the list of scopes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.errors import IntegrityError, NewerVersionError, StorageError, UnsafePathError
from stateline.store.snapshot import Snapshot, read_head
from stateline.store.store import Store
from stateline.verify.findings import Document, Finding

if TYPE_CHECKING:
    from stateline.history.declared_losses import RepairHistory
    from stateline.history.diff import Change


class LogRow(msgspec.Struct, frozen=True):
    """One snapshot of a log. ``path`` is the file's name in the scope's directory."""

    sha: str
    seq: int
    created_at: str
    kind: str
    prev_sha: str | None
    path: str
    event: dict[str, Json]

    @classmethod
    def of(cls, snapshot: Snapshot) -> LogRow:
        """Return the row of a snapshot."""
        envelope = snapshot.envelope
        return cls(
            sha=snapshot.sha256,
            seq=envelope.seq,
            created_at=envelope.created_at,
            kind=envelope.kind,
            prev_sha=envelope.prev_sha,
            path=snapshot.path,
            event=envelope.event,
        )

    def document(self) -> dict[str, Json]:
        """Return the row as in ``--format json``."""
        return msgspec.structs.asdict(self)


def entries(
    store: Store, snapshot: Snapshot, limit: int | None, *, with_changes: bool
) -> Iterator[tuple[Snapshot, list[Change] | str | None]]:
    """Yield at most ``limit`` snapshots from ``snapshot`` back, each with None as soon as it is read.

    With ``with_changes`` each is yielded once more, with the changes from the one before it (for the first of a chain:
    from an empty state), or with the reason if a repair has declared lost what they need. Nothing older than the last
    one is read, with ``with_changes`` one more.

    Raises ``IntegrityError`` where the chain is broken, and as ``diff.compare`` for losses that no repair has declared.
    """
    if limit is not None and limit <= 0:
        return
    repairs = repair_history(store, snapshot) if with_changes else None
    child: Snapshot | None = None
    for number, item in enumerate(store.scope(snapshot.envelope.scope).walk(snapshot)):
        if child is not None and with_changes:
            yield child, _changes(store, item.state, child, repairs)
        if number == limit:
            return
        yield item, None
        if number + 1 == limit and not with_changes:
            return
        child = item
    if child is not None and with_changes:
        yield child, _changes(store, {}, child, repairs)


def repair_history(store: Store, snapshot: Snapshot) -> RepairHistory:
    """Return the repairs of the scope of ``snapshot``. Nothing is read yet."""
    from stateline.history.declared_losses import RepairHistory

    return RepairHistory(store.scope(snapshot.envelope.scope))


def _changes(store: Store, before: Json, snapshot: Snapshot, repairs: RepairHistory | None) -> list[Change] | str:
    from stateline.history.diff import compare

    try:
        return compare(store, before, snapshot.state)
    except IntegrityError as error:
        if repairs is None:
            raise
        return repairs.reason(snapshot, error)


class ScopeRow(Document, frozen=True):
    """One scope. ``head`` is the full sha of its head, ``seq`` its number, ``hash`` the directory's name."""

    scope: str
    hash: str
    head: str
    seq: int


class ScopeList(Document, frozen=True):
    """Scopes with a readable head, by key; ``findings`` are about those whose head cannot be read."""

    scopes: tuple[ScopeRow, ...]
    findings: tuple[Finding, ...]


def list_scopes(store: Store) -> ScopeList:
    """List all scopes that have a head, with two small reads for each.

    A scope that is damaged or of a newer version becomes a finding and does not hide the others.
    """
    rows: list[ScopeRow] = []
    findings: list[Finding] = []
    for scope in store.backend.scopes():
        try:
            head = read_head(store.backend, scope)
        except (IntegrityError, NewerVersionError, UnsafePathError, StorageError) as error:
            findings.append(Finding.of(error, None, f"{scope}/{naming.POINTER}"))
            continue
        if head is not None:
            rows.append(ScopeRow(head.envelope.scope, scope, head.sha256, head.seq))
    return ScopeList(tuple(sorted(rows, key=lambda row: row.scope)), tuple(sorted(findings, key=lambda f: f.path)))
