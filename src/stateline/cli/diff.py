"""``stateline diff``: the difference between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stateline.cli.audit import REVISION
from stateline.cli.command import Command, fields_of
from stateline.cli.layout import DIGITS, ago, cut
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, columns, plain
from stateline.cli.parser import argument
from stateline.errors import IntegrityError

if TYPE_CHECKING:
    from stateline.history.diff import Change
    from stateline.store.snapshot import Snapshot
    from stateline.store.store import Store


class DiffOptions(msgspec.Struct, frozen=True):
    """Options of ``diff``: two revisions."""

    settings: Settings
    old: str
    new: str


def _run(options: DiffOptions) -> Output:
    from stateline.history.diff import compare, patch
    from stateline.history.revision import find

    store = options.settings.store()
    before, after = find(store, options.old), find(store, options.new)
    try:
        changes = compare(store, before.state, after.state)
        if options.settings.json:
            return Output(document=patch(store, changes), warnings=store.warnings)
    except IntegrityError as error:
        raise _explained(store, error, before, after) from None
    return Output(lines=_lines(store, before, after, changes), warnings=store.warnings)


def _explained(store: Store, error: IntegrityError, *snapshots: Snapshot) -> IntegrityError:
    """The error of the repair that recorded the loss; else ``error``."""
    from stateline.history.declared_losses import RepairHistory

    for snapshot in snapshots:
        loss = RepairHistory(store.scope(snapshot.envelope.scope)).explain(snapshot, error)
        if loss is not None:
            return loss
    return error


def _lines(store: Store, before: Snapshot, after: Snapshot, changes: list[Change]) -> Iterator[str]:
    from stateline.cli.state_changes import lines

    yield from _headline("---", "red", before)
    yield from _headline("+++", "green", after)
    if before.sha256 == after.sha256:
        yield "no difference: both are the same snapshot"
        return
    if before.envelope.kind == after.envelope.kind == "run":
        from stateline.cli.run_setup import setup_lines

        yield from setup_lines(store, before, after)
        changes = [change for change in changes if change.path[:1] != ("context",)]
    try:
        yield from lines(store, changes, after)
    except IntegrityError as error:
        raise _explained(store, error, before, after) from None


def _headline(sign: str, colour: str, snapshot: Snapshot) -> Iterator[str]:
    """The snapshot's name, sha and age, and below its summary."""
    from stateline.cli.snapshot_summary import summary

    room, seq = columns(), f"@{snapshot.seq}"
    rest = f"  {ago(snapshot.envelope.created_at)}"
    left = room - len(f"{sign} {seq}  {rest}") - DIGITS
    name = coloured(f"{sign} {cut(plain(snapshot.envelope.scope), left)}{seq}", colour)
    yield f"{name}  {coloured(snapshot.sha256[:DIGITS], 'yellow')}{rest}"
    yield from (f"    {line}" for line in summary(snapshot, room - 4) if line)


DIFF = Command(
    help="""Show what changed between two snapshots, of the same scope or not.

Of two runs it first says which machine, model, recording, context and settings differ. Exits 0 in any case. With
--format json it prints a JSON Patch (RFC 6902) that turns the resolved state of the first snapshot into that of the
second.""",
    arguments=[
        argument("old", metavar="OLD", help=REVISION),
        argument("new", metavar="NEW", help="The same."),
    ],
    options=fields_of(DiffOptions),
    run=_run,
)
