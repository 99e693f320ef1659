"""``stateline diff``: what is different between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from stateline.cli.audit import Revision
from stateline.cli.options import settings
from stateline.cli.output import coloured, emit, plain, stream, warn
from stateline.errors import IntegrityError

if TYPE_CHECKING:
    from stateline.history.diff import Change
    from stateline.store.snapshot import Snapshot
    from stateline.store.store import Store


def diff(ctx: typer.Context, old: Revision, new: Revision) -> int:
    """Show what changed from one snapshot to another, of the same scope or of any two; exits 0 either way.

    With --format json it prints a JSON Patch (RFC 6902) that turns the first one's resolved state into the second's.
    """
    from stateline.history.diff import compare, patch
    from stateline.history.revision import find

    said = settings(ctx)
    store = said.store()
    before, after = find(store, old), find(store, new)
    warn(said, store.warnings)
    try:
        changes = compare(store, before.state, after.state)
        if said.json:
            emit(said, patch(store, changes), [])
        else:
            stream(_lines(store, before, after, changes))
    except IntegrityError as error:
        raise _recorded(store, error, before, after) from None
    return 0


def _recorded(store: Store, error: IntegrityError, *snapshots: Snapshot) -> IntegrityError:
    """The error, saying which repair knows of the loss if one does."""
    from stateline.history.declared_losses import RepairHistory

    for snapshot in snapshots:
        loss = RepairHistory(store.scope(snapshot.envelope.scope)).explain(snapshot, error)
        if loss is not None:
            return loss
    return error


def _lines(store: Store, before: Snapshot, after: Snapshot, changes: list[Change]) -> Iterator[str]:
    from stateline.cli.state_changes import lines

    yield _headline("---", "red", before)
    yield _headline("+++", "green", after)
    if before.sha256 == after.sha256:
        yield "no difference: this is one snapshot"
    else:
        yield from lines(store, changes, after)


def _headline(sign: str, colour: str, snapshot: Snapshot) -> str:
    from stateline.cli.snapshot_summary import moment, story

    name = coloured(f"{sign} {plain(snapshot.envelope.scope)}@{snapshot.seq}", colour)
    return f"{name}  {coloured(snapshot.sha256[:8], 'yellow')}  {moment(snapshot)}  {story(snapshot)}"
