"""``stateline log``: the past of a scope, one line for each snapshot."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from stateline.cli.audit import REVISION
from stateline.cli.command import Command
from stateline.cli.layout import wrapped
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, columns, plain
from stateline.cli.parser import argument, switch
from stateline.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from stateline.history.declared_losses import RepairHistory
    from stateline.history.diff import Change
    from stateline.store.snapshot import Snapshot
    from stateline.store.store import Store


class LogOptions(msgspec.Struct, frozen=True):
    """Options of ``log``. ``number`` is the most snapshots to show; None for all."""

    settings: Settings
    revision: str
    number: int | None
    patch: bool


def log_options(flags: Namespace, settings: Settings) -> LogOptions:
    """Turn the flags of ``log`` into options. Raises ``UsageError``."""
    if flags.number is not None and flags.number < 0:
        raise UsageError(f"-n is {flags.number}; it must be 0 or more", hint="for example -n 10")
    return LogOptions(settings, flags.revision, flags.number, flags.patch)


def _run(options: LogOptions) -> Output:
    """The log. It is read while it is printed, so that `log KEY | head` reads no more than it prints."""
    from stateline.history.revision import find

    store = options.settings.store()
    start = find(store, options.revision)
    if options.settings.json:
        return Output(document={"snapshots": _documents(store, start, options)}, warnings=store.warnings)
    return Output(lines=_lines(store, start, options), warnings=store.warnings)


def _lines(store: Store, start: Snapshot, options: LogOptions) -> Iterator[str]:
    from stateline.cli.snapshot_summary import actor_text, log_lines
    from stateline.history.log import entries, repair_history

    repairs = repair_history(store, start)
    last: Snapshot | None = None
    count = 0
    for snapshot, changes in entries(store, start, options.number, with_changes=options.patch):
        if changes is None:
            if last is not None and last.seq - snapshot.seq > 1:
                yield _lost(snapshot.seq + 1, last.seq - 1)
            yield from log_lines(snapshot)
            last, count = snapshot, count + 1
        else:
            if actor := actor_text(snapshot.event.get("actor")):
                yield coloured(f"    by {actor}", "dim")
            for text in _patch_lines(store, snapshot, changes, repairs):
                yield f"    {text}"
            yield ""
    # The log ended before -n, and not with a first snapshot: older ones are lost.
    if last is not None and last.envelope.prev is not None and count != options.number:
        yield _lost(0, last.seq - 1)


def _patch_lines(
    store: Store, snapshot: Snapshot, changes: list[Change] | str, repairs: RepairHistory
) -> Iterator[str]:
    from stateline.cli.state_changes import lines

    if not isinstance(changes, str):
        try:
            yield from lines(store, changes, snapshot)
            return
        except IntegrityError as error:
            changes = repairs.reason(snapshot, error)
    for line in wrapped(plain(f"cannot be shown: {changes}"), columns() - 4):
        yield coloured(line, "red")


def _lost(first: int, last: int) -> str:
    numbers = f"snapshot {first}" if first == last else f"snapshots {first} to {last}"
    return coloured(f"{'':18}lost: {numbers}", "red")


def _documents(store: Store, start: Snapshot, options: LogOptions) -> list[Any]:
    """The rows as encoded JSON: a long chain takes no more memory than its text."""
    from stateline.history.log import LogRow, entries, repair_history

    repairs = repair_history(store, start)
    return [
        msgspec.Raw(
            msgspec.json.encode(
                LogRow.of(snapshot).document() | ({} if changes is None else _patch(store, snapshot, changes, repairs))
            )
        )
        for snapshot, changes in entries(store, start, options.number, with_changes=options.patch)
        if options.patch == (changes is not None)
    ]


def _patch(store: Store, snapshot: Snapshot, changes: list[Change] | str, repairs: RepairHistory) -> dict[str, Any]:
    """The member ``patch`` of a row; null, with the reason in ``unshown``, if something it needs is lost."""
    from stateline.history.diff import patch

    if not isinstance(changes, str):
        try:
            return {"patch": patch(store, changes)}
        except IntegrityError as error:
            changes = repairs.reason(snapshot, error)
    return {"patch": None, "unshown": changes}


LOG = Command(
    help="""Show the snapshots from REV back to the first, newest first.

Each line says what changed and why.""",
    arguments=[
        argument("revision", metavar="REV", help=REVISION),
        argument("-n", dest="number", type=int, metavar="N", help="Show at most N snapshots."),
        switch("-p", "--patch", help="With each snapshot, show the changes from the one before."),
    ],
    options=log_options,
    run=_run,
)
