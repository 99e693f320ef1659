"""The past of one scope as a list, and the list of scopes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.errors import IntegrityError, NewerVersionError, StorageError, UnsafePathError
from stateline.store.store import Snapshot, Store
from stateline.verify.findings import Finding

if TYPE_CHECKING:
    from stateline.history.declared_losses import Recorded
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
        """The row of a snapshot."""
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
        """As it stands in ``--format json``."""
        return msgspec.structs.asdict(self)


def walk(store: Store, snapshot: Snapshot) -> Iterator[LogRow]:
    """Rows from ``snapshot`` back to the first of its scope, one read each; the directory is never listed.

    Raises ``IntegrityError`` where the chain is broken; the rows before it have been given then.
    """
    for item in store.scope(snapshot.envelope.scope).walk(snapshot):
        yield LogRow.of(item)


class Unshown(msgspec.Struct, frozen=True):
    """Changes that nobody can tell any more, and why: a repair has recorded that what they need is lost."""

    why: str


def told(
    store: Store, snapshot: Snapshot, limit: int | None, *, patched: bool
) -> Iterator[tuple[Snapshot, list[Change] | Unshown | None]]:
    """At most ``limit`` snapshots from ``snapshot`` back, each with None as soon as it is read; with ``patched`` then
    once more with the steps from the one before it (of the first of a chain: from an empty state).

    Nothing older than the last one is read, with ``patched`` one more. Raises ``IntegrityError`` where the chain is
    broken, and as ``diff.compare`` for what no repair has recorded as lost.
    """
    if limit is not None and limit <= 0:
        return
    recorded = losses_of(store, snapshot) if patched else None
    child: Snapshot | None = None
    for number, item in enumerate(store.scope(snapshot.envelope.scope).walk(snapshot)):
        if child is not None and patched:
            yield child, _changes(store, item.state, child, recorded)
        if number == limit:
            return
        yield item, None
        if number + 1 == limit and not patched:
            return
        child = item
    if child is not None and patched:
        yield child, _changes(store, {}, child, recorded)


def losses_of(store: Store, snapshot: Snapshot) -> Recorded:
    """What was recorded as lost in the scope of ``snapshot``, for :func:`unshown`. Nothing is read for it yet."""
    from stateline.history.declared_losses import Recorded

    return Recorded(store.scope(snapshot.envelope.scope))


def unshown(recorded: Recorded, snapshot: Snapshot, error: IntegrityError) -> Unshown:
    """What stands for the changes up to ``snapshot``, whose telling raised ``error``. Raises that, unless a repair of
    the scope has recorded it."""
    loss = recorded.loss(snapshot, error)
    if loss is None:
        raise error
    return Unshown(loss.message)


def _changes(store: Store, before: Json, snapshot: Snapshot, recorded: Recorded | None) -> list[Change] | Unshown:
    from stateline.history.diff import compare

    try:
        return compare(store, before, snapshot.state)
    except IntegrityError as error:
        if recorded is None:
            raise
        return unshown(recorded, snapshot, error)


def rows(store: Store, snapshot: Snapshot, limit: int | None = None) -> list[LogRow]:
    """At most ``limit`` rows from ``snapshot`` back, newest first. Nothing older than the last row is read.

    Raises ``IntegrityError`` where the chain is broken before that.
    """
    return [LogRow.of(item) for item, _ in told(store, snapshot, limit, patched=False)]


class ScopeRow(msgspec.Struct, frozen=True):
    """One scope. ``head`` is the full sha of its head, ``seq`` its number, ``hash`` the directory's name."""

    scope: str
    hash: str
    head: str
    seq: int

    def document(self) -> dict[str, Json]:
        """As it stands in ``--format json``."""
        return msgspec.structs.asdict(self)


class Scopes(msgspec.Struct, frozen=True):
    """Scopes with a readable head, by key; ``findings`` names those whose head cannot be read, and why."""

    scopes: tuple[ScopeRow, ...]
    findings: tuple[Finding, ...]

    def document(self) -> dict[str, Json]:
        """As it stands in ``--format json``."""
        return {
            "scopes": [row.document() for row in self.scopes],
            "findings": [finding.document() for finding in self.findings],
        }


def scopes(store: Store) -> Scopes:
    """All scopes that have a head. Two small reads for each, whatever the length of its chain.

    A scope that is damaged or of a newer version becomes a finding and does not hide the others.
    """
    listed: list[ScopeRow] = []
    findings: list[Finding] = []
    for scope in store.backend.scopes():
        try:
            newest = store.read_head(scope)
        except (IntegrityError, NewerVersionError, UnsafePathError, StorageError) as error:
            findings.append(Finding.of(error, None, f"{scope}/{naming.POINTER}"))
            continue
        if newest is not None:
            listed.append(ScopeRow(newest.envelope.scope, scope, newest.sha256, newest.seq))
    return Scopes(tuple(sorted(listed, key=lambda row: row.scope)), tuple(sorted(findings, key=lambda f: f.path)))
