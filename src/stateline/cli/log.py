"""``stateline log``: the past of a scope, one line a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateline.cli.audit import Revision
from stateline.cli.options import settings
from stateline.cli.output import emit, stream, warn

if TYPE_CHECKING:
    from stateline.history.declared_losses import RepairHistory
    from stateline.history.diff import Change
    from stateline.history.log import UnknownChanges
    from stateline.store.snapshot import Snapshot
    from stateline.store.store import Store


def log(
    ctx: typer.Context,
    revision: Revision,
    number: Annotated[int | None, typer.Option("-n", min=0, metavar="N", help="At most N snapshots.")] = None,
    patch: Annotated[
        bool, typer.Option("-p", "--patch", help="With each snapshot's diff from the one before.")
    ] = False,
) -> int:
    """Show the snapshots from REV back to the first, newest first: what changed, and why."""
    from stateline.history.revision import find

    said = settings(ctx)
    store = said.store()
    snapshot = find(store, revision)
    warn(said, store.warnings)
    if said.json:
        emit(said, {"snapshots": _documents(store, snapshot, number, patch)}, [])
    else:
        stream(_lines(store, snapshot, number, patch))
    return 0


def _lines(store: Store, start: Snapshot, number: int | None, patched: bool) -> Iterator[str]:
    from stateline.cli.snapshot_summary import line
    from stateline.history.log import entries, repair_history

    repairs = repair_history(store, start)
    last: Snapshot | None = None
    count = 0
    for snapshot, changes in entries(store, start, number, with_changes=patched):
        if changes is None:
            if last is not None and last.seq - snapshot.seq > 1:
                yield _lost(snapshot.seq + 1, last.seq - 1)
            yield line(snapshot)
            last, count = snapshot, count + 1
        else:
            for text in _patch_lines(store, snapshot, changes, repairs):
                yield f"    {text}"
            yield ""
    # Nobody asked for less, and it does not end with a first one: what is older is lost.
    if last is not None and last.envelope.prev is not None and count != number:
        yield _lost(0, last.seq - 1)


def _patch_lines(
    store: Store, snapshot: Snapshot, changes: list[Change] | UnknownChanges, repairs: RepairHistory
) -> Iterator[str]:
    from stateline.cli.output import coloured, plain
    from stateline.cli.state_changes import lines
    from stateline.errors import IntegrityError
    from stateline.history.log import UnknownChanges, unknown_changes

    if not isinstance(changes, UnknownChanges):
        try:
            yield from lines(store, changes, snapshot)
            return
        except IntegrityError as error:
            changes = unknown_changes(repairs, snapshot, error)
    yield coloured(plain(f"cannot be shown: {changes.why}"), "red")


def _lost(first: int, last: int) -> str:
    from stateline.cli.output import coloured

    what = f"snapshot {first}" if first == last else f"snapshots {first} to {last}"
    return coloured(f"{'':14}lost: {what}", "red")


def _documents(store: Store, start: Snapshot, number: int | None, patched: bool) -> list[Any]:
    """The rows, each as the bytes of its document: a long chain takes no more memory than what is printed."""
    import msgspec

    from stateline.history.log import LogRow, entries, repair_history

    repairs = repair_history(store, start)
    return [
        msgspec.Raw(
            msgspec.json.encode(
                LogRow.of(snapshot).document() | ({} if changes is None else _patch(store, snapshot, changes, repairs))
            )
        )
        for snapshot, changes in entries(store, start, number, with_changes=patched)
        if patched == (changes is not None)
    ]


def _patch(
    store: Store, snapshot: Snapshot, changes: list[Change] | UnknownChanges, repairs: RepairHistory
) -> dict[str, Any]:
    """The member ``patch`` of a row; null, with ``unshown`` that says why, where what it needs is lost."""
    from stateline.errors import IntegrityError
    from stateline.history.diff import patch
    from stateline.history.log import UnknownChanges, unknown_changes

    if not isinstance(changes, UnknownChanges):
        try:
            return {"patch": patch(store, changes)}
        except IntegrityError as error:
            changes = unknown_changes(repairs, snapshot, error)
    return {"patch": None, "unshown": changes.why}
