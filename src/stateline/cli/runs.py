"""``stateline exec list``, ``status``, ``show``, ``clean`` and ``rm``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from stateline.cli.execute import waiting_lines
from stateline.cli.options import settings
from stateline.cli.output import emit, plain, pretty, table, warn
from stateline.errors import UsageError

RunId = Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's id (default: the one used last).")]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def list_runs(ctx: typer.Context) -> int:
    """List all runs, the one used last first."""
    from stateline.service.runs import list_runs as verb

    said = settings(ctx)
    store = said.store()
    rows, unread = verb(store)
    findings = [found.finding() for found in unread]
    warn(said, store.warnings)
    columns = ["run", "machine", "status", "stage", "turn", "updated_at"]
    lines = table(rows, columns) if rows or unread else ["no runs"]
    lines += [f"cannot be read: {found.path}: {plain(found.message)}" for found in findings]
    warnings = [*store.warnings, *(found.message for found in findings)]
    emit(said, {"runs": rows, "findings": [found.document() for found in findings], "warnings": warnings}, lines)
    return max((found.error.exit_code for found in unread), default=0)


def status(ctx: typer.Context, run: RunId = None) -> int:
    """Show where a run stands, what is left of its bounds, and what it waits for."""
    from stateline.service.runs import status as verb

    said = settings(ctx)
    store = said.store()
    document = verb(store, run)
    warn(said, store.warnings)
    shown = ("run", "machine", "machine_path", "status", "stage", "turn", "started_at", "updated_at", "head")
    lines = [f"{name + ':':<17}{plain(str(document[name]))}" for name in shown]
    for name, bound in document["bounds"].items():
        if bound["limit"]:
            unit = " s" if name == "timeout" else ""
            lines.append(f"{name + ':':<17}{document['counters'][name]:.6g} of {bound['limit']:.6g}{unit}")
    for waiting in document["interrupts"]:
        lines += [*waiting_lines(document["run"], waiting), f"  request: {plain(str(waiting['requestId']))}"]
    if document["error"]:
        lines.append(f"{'error:':<17}{plain(document['error']['message'])}")
    emit(said, document, lines)
    return 0


def show(ctx: typer.Context, run: RunId = None) -> int:
    """Show a run whole as it stands: input, state, outputs, counters."""
    from stateline.service.runs import show as verb

    said = settings(ctx)
    store = said.store()
    document = verb(store, run)
    warn(said, store.warnings)
    emit(said, document, pretty(document))
    return 0


def clean(
    ctx: typer.Context,
    all: Annotated[bool, typer.Option("--all", help="Unfinished and failed runs too.")] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only runs unchanged for this long, as 30d, 12h, 90m.")
    ] = "0s",
) -> int:
    """Remove complete runs. Runs that others originate from, or that are being used, are kept.

    Large values stay behind in objects/, and so does what a run's machine file was recorded by (machine: scopes). Who
    must be rid of them, for a secret or for privacy, removes the whole state dir.
    """
    from stateline.service.runs import clean as verb

    said = settings(ctx)
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", older_than)
    if match is None:
        raise UsageError(f"--older-than {older_than!r} is not an age; nothing was removed", hint="as 30d, 12h, 90m")
    result = verb(said.store(), unfinished=all, older_than=int(match[1]) * _UNITS[match[2]])
    warn(said, result.warnings)
    lines = [f"removed {run}" for run in result.removed] + [f"kept {run}: {why}" for run, why in result.kept.items()]
    emit(said, result.document(), lines or ["nothing to remove"])
    return result.exit_code


def rm(ctx: typer.Context, runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs.")]) -> int:
    """Remove runs whole, whatever their status.

    Large values stay behind in objects/, and so does what a run's machine file was recorded by (machine: scopes). Who
    must be rid of them, for a secret or for privacy, removes the whole state dir.
    """
    from stateline.service.runs import remove

    said = settings(ctx)
    result = remove(said.store(), list(dict.fromkeys(runs)), wait=said.patience)
    warn(said, result.warnings)
    emit(said, result.document(), [f"removed {run}" for run in result.removed])
    return 0
