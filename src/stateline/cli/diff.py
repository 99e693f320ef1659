"""``stateline diff``: the difference between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stateline.cli.audit import REVISION
from stateline.cli.command import Command, fields_of
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, plain
from stateline.cli.parser import Parser
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


class _Difference(msgspec.Struct, frozen=True):
    """Two snapshots and the changes from one to the other."""

    store: Store
    before: Snapshot
    after: Snapshot
    changes: list[Change]


def _arguments(parser: Parser) -> None:
    parser.add_argument("old", metavar="OLD", help=REVISION)
    parser.add_argument("new", metavar="NEW", help="The same.")


def _run(options: DiffOptions) -> _Difference:
    from stateline.history.diff import compare
    from stateline.history.revision import find

    store = options.settings.store()
    before, after = find(store, options.old), find(store, options.new)
    try:
        return _Difference(store, before, after, compare(store, before.state, after.state))
    except IntegrityError as error:
        raise _explained(store, error, before, after) from None


def _explained(store: Store, error: IntegrityError, *snapshots: Snapshot) -> IntegrityError:
    """The error of the repair that recorded the loss; else ``error``."""
    from stateline.history.declared_losses import RepairHistory

    for snapshot in snapshots:
        loss = RepairHistory(store.scope(snapshot.envelope.scope)).explain(snapshot, error)
        if loss is not None:
            return loss
    return error


def _output(options: DiffOptions, found: _Difference) -> Output:
    if not options.settings.json:
        return Output(lines=_lines(found), warnings=found.store.warnings)
    from stateline.history.diff import patch

    try:
        return Output(document=patch(found.store, found.changes), warnings=found.store.warnings)
    except IntegrityError as error:
        raise _explained(found.store, error, found.before, found.after) from None


def _lines(found: _Difference) -> Iterator[str]:
    from stateline.cli.state_changes import lines

    yield _headline("---", "red", found.before)
    yield _headline("+++", "green", found.after)
    if found.before.sha256 == found.after.sha256:
        yield "no difference: both are the same snapshot"
        return
    try:
        yield from lines(found.store, found.changes, found.after)
    except IntegrityError as error:
        raise _explained(found.store, error, found.before, found.after) from None


def _headline(sign: str, colour: str, snapshot: Snapshot) -> str:
    from stateline.cli.snapshot_summary import created_at, summary

    name = coloured(f"{sign} {plain(snapshot.envelope.scope)}@{snapshot.seq}", colour)
    return f"{name}  {coloured(snapshot.sha256[:8], 'yellow')}  {created_at(snapshot)}  {summary(snapshot)}"


DIFF = Command(
    help="""Show what changed between two snapshots, of the same scope or not.

Exits 0 in any case. With --format json it prints a JSON Patch (RFC 6902) that turns the resolved state of the first
snapshot into that of the second.""",
    arguments=_arguments,
    options=fields_of(DiffOptions),
    run=_run,
    output=_output,
)
