"""``stateline exec list``, ``status``, ``show``, ``cancel``, ``clean`` and ``rm``."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import TYPE_CHECKING

import msgspec

from stateline.cli.command import Command, fields_of, only_settings
from stateline.cli.options import Settings
from stateline.cli.outcome_text import outcome_output, waiting_lines
from stateline.cli.output import Output, plain, pretty, table
from stateline.cli.parser import argument, switch
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.service.runs import Removal

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_REMAINS = """Large values stay in objects/, and the record of a run's machine file stays in its machine: scope. To get
rid of these too, for a secret or for privacy, remove the whole state dir."""


class RunOptions(msgspec.Struct, frozen=True):
    """Options of a command about one run; None is the run used last."""

    settings: Settings
    run: str | None


RUN_OF_STORE = argument("run", nargs="?", metavar="RUN", help="The run's id (default: the run used last).")


def _list(settings: Settings) -> Output:
    from stateline.service.runs import list_runs

    store = settings.store()
    rows, unread = list_runs(store)
    findings = [found.finding() for found in unread]
    columns = ["run", "machine", "status", "stage", "turn", "updated_at"]
    lines = table(rows, columns) if rows or unread else ["no runs"]
    lines += [f"cannot be read: {found.path}: {plain(found.message)}" for found in findings]
    warnings = [*store.warnings, *(found.message for found in findings)]
    return Output(
        document={"runs": rows, "findings": [found.document() for found in findings], "warnings": warnings},
        lines=lines,
        warnings=store.warnings,
        exit_code=max((found.error.exit_code for found in unread), default=0),
    )


def _status(options: RunOptions) -> Output:
    from stateline.service.runs import status

    store = options.settings.store()
    document = status(store, options.run)
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
    return Output(document=document, lines=lines, warnings=store.warnings)


def _show(options: RunOptions) -> Output:
    from stateline.service.runs import show

    store = options.settings.store()
    document = show(store, options.run)
    return Output(document=document, lines=pretty(document), warnings=store.warnings)


class CancelOptions(msgspec.Struct, frozen=True):
    """Options of ``exec cancel``."""

    settings: Settings
    run: str


def _cancel(options: CancelOptions) -> Output:
    from stateline.service.cancel import cancel

    outcome = cancel(options.settings.store(), options.run, wait=options.settings.lock_wait)
    return outcome_output(options.settings, outcome, flags="")


class CleanOptions(msgspec.Struct, frozen=True):
    """Options of ``exec clean``; ``older_than`` [s] is the least time since a run changed."""

    settings: Settings
    unfinished: bool
    older_than: int


def clean_options(flags: Namespace, settings: Settings) -> CleanOptions:
    """Turn the flags of ``exec clean`` into options. Raises ``UsageError``."""
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", flags.older_than)
    if match is None:
        message = f"--older-than {flags.older_than!r} is not an age; nothing was removed"
        raise UsageError(message, hint="for example 30d, 12h or 90m")
    return CleanOptions(settings, flags.all, int(match[1]) * _UNITS[match[2]])


def _clean(options: CleanOptions) -> Output:
    from stateline.service.runs import clean

    return _removed(clean(options.settings.store(), unfinished=options.unfinished, older_than=options.older_than))


class RmOptions(msgspec.Struct, frozen=True):
    """Options of ``exec rm``."""

    settings: Settings
    runs: list[str]


def _rm(options: RmOptions) -> Output:
    from stateline.service.runs import remove

    runs = list(dict.fromkeys(options.runs))
    return _removed(remove(options.settings.store(), runs, wait=options.settings.lock_wait))


def _removed(result: Removal) -> Output:
    lines = [f"removed {run}" for run in result.removed] + [f"kept {run}: {why}" for run, why in result.kept.items()]
    return Output(
        document=result.document(),
        lines=lines or ["nothing to remove"],
        warnings=result.warnings,
        exit_code=result.exit_code,
    )


LIST = Command(
    help="List all runs, the one used last first.",
    options=only_settings,
    run=_list,
)
STATUS = Command(
    help="Show a run's stage, bounds, and what it waits for.",
    arguments=[RUN_OF_STORE],
    options=fields_of(RunOptions),
    run=_status,
)
SHOW = Command(
    help="Show a run's whole state: input, state, outputs, counters.",
    arguments=[RUN_OF_STORE],
    options=fields_of(RunOptions),
    run=_show,
)
CANCEL = Command(
    help="""End an unfinished or failed run for good.

What it waits for is closed, and no call continues it: a later `execute` of its machine starts another run. The run
stays readable until it is removed, and --force with --id restarts it.""",
    arguments=[argument("run", metavar="RUN", help="The run's id.")],
    options=fields_of(CancelOptions),
    run=_cancel,
)
CLEAN = Command(
    help=f"""Remove complete and cancelled runs.

Runs that others originate from, or that are in use, are kept.

{_REMAINS}""",
    arguments=[
        switch("--all", help="Remove unfinished and failed runs too."),
        argument(
            "--older-than",
            metavar="AGE",
            default="0s",
            help="Remove only runs unchanged for this long, for example 30d, 12h or 90m.",
        ),
    ],
    options=clean_options,
    run=_clean,
)
RM = Command(
    help=f"""Remove runs, in any status.

{_REMAINS}""",
    arguments=[argument("runs", nargs="+", metavar="RUN", help="Ids of runs.")],
    options=fields_of(RmOptions),
    run=_rm,
)
