"""``stateline log``: the past of a scope, one line a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateline.cli.audit import Revision
from stateline.cli.options import settings
from stateline.cli.output import emit, stream, warn

if TYPE_CHECKING:
    from stateline.store.store import Snapshot, Store


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
    from stateline.cli.story import line
    from stateline.history.log import told

    for snapshot, changes in told(store, start, number, patched=patched):
        if changes is None:
            yield line(snapshot)
        else:
            from stateline.cli.changes import lines

            for text in lines(store, changes, snapshot):
                yield f"    {text}"
            yield ""


def _documents(store: Store, start: Snapshot, number: int | None, patched: bool) -> list[Any]:
    """The rows, each as the bytes of its document: a long chain takes no more memory than what is printed."""
    import msgspec

    from stateline.history.diff import patch
    from stateline.history.log import LogRow, told

    return [
        msgspec.Raw(
            msgspec.json.encode(
                LogRow.of(snapshot).document() | ({} if changes is None else {"patch": patch(store, changes)})
            )
        )
        for snapshot, changes in told(store, start, number, patched=patched)
        if patched == (changes is not None)
    ]
