"""``stateline exec list``, ``status``, ``show``, ``cancel``, ``clean`` and ``rm``."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import msgspec

from stateline.cli.command import Command, fields_of
from stateline.cli.inputs import pairs
from stateline.cli.layout import DIGITS, ago, command_lines, labelled, table, wrapped
from stateline.cli.options import Settings
from stateline.cli.outcome_text import outcome_output, plan_output, used_text, waiting_lines
from stateline.cli.output import Output, columns, counted, is_confirmed, one_line, plain, pretty
from stateline.cli.parser import argument, repeatable, switch
from stateline.cli.snapshot_summary import actor_text
from stateline.errors import RequestError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stateline.service.runs import Confirm, Removal, RunFilter
    from stateline.store.store import Store

_STATUSES = ("running", "ready", "interrupted", "waiting", "error", "complete", "cancelled")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LABEL = len("max_tool_rounds:")
_RM_WAIT = 1.0
"""Default of ``--wait`` for ``exec rm`` [s]: a run that is in use is not worth waiting for."""
_REMAINS = """Large values stay in objects/, and the record of a run's machine file stays in its machine: scope. To get
rid of these too, for a secret or for privacy, remove the whole state dir."""


class RunOptions(msgspec.Struct, frozen=True):
    """Options of a command about one run; None is the run used last."""

    settings: Settings
    run: str | None


_REMOVAL = [
    switch("--dry-run", help="Print what would be removed; change nothing."),
    switch("--yes", help="Do not ask, on a terminal."),
]
RUN_OF_STORE = argument("run", nargs="?", metavar="RUN", help="The run's id (default: the run used last).")


class ListOptions(msgspec.Struct, frozen=True):
    """Options of ``exec list``."""

    settings: Settings
    wanted: RunFilter


def list_options(flags: Namespace, settings: Settings) -> ListOptions:
    """Turn the flags of ``exec list`` into options. Raises ``UsageError``."""
    from stateline.service.runs import RunFilter

    if flags.number is not None and flags.number < 0:
        raise UsageError(f"-n is {flags.number}; it must be 0 or more", hint="for example -n 10")
    labels = pairs(flags.label, "--label", parsed=False)
    return ListOptions(
        settings, RunFilter(statuses=flags.status, labels=labels, machine=flags.machine, limit=flags.number)
    )


def _list(options: ListOptions) -> Output:
    from stateline.service.runs import EVERY, list_runs

    store = options.settings.store()
    rows, unread = list_runs(store, options.wanted)
    findings = [found.finding() for found in unread]
    which = "runs" if options.wanted == EVERY else "matching runs"
    lines = list_lines(rows) if rows else wrapped(plain(f"no {which} in {store.backend.describe()}"), columns())
    if unread and not rows:
        lines = []
    for found in findings:
        lines += labelled("cannot be read: ", plain(f"{found.path}: {found.message}"), columns())
    warnings = [*store.warnings, *(found.message for found in findings)]
    return Output(
        document={"runs": rows, "findings": [found.document() for found in findings], "warnings": warnings},
        lines=lines,
        warnings=store.warnings,
        exit_code=max((found.error.exit_code for found in unread), default=0),
    )


def status_text(row: dict[str, Any]) -> str:
    """The status of a run for people: of an unfinished run ``running``, ``ready`` or ``interrupted``."""
    return str(row["activity"] or row["status"])


def list_lines(rows: list[dict[str, Any]]) -> list[str]:
    """A table of runs. Failures have a column if there are any."""
    failed = any(row["failures"] for row in rows)
    heading = ["run", "status", *(["fails"] if failed else []), "ago", "about"]
    cells = [
        [
            one_line(row["run"]),
            status_text(row),
            *([str(row["failures"] or "")] if failed else []),
            ago(row["updated_at"]).removesuffix(" ago"),
            _about(row),
        ]
        for row in rows
    ]
    return table(heading, cells, columns())


def _about(row: dict[str, Any]) -> str:
    """Model and prompt of a prompt's run; machine, and stage unless it is over, of any other; labels."""
    if row["prompt"] is not None:
        model = "no model" if row["model"] in (None, "manual") else row["model"].rpartition("/")[2]
        about = f"{model}: {row['prompt']}"
    else:
        over = row["status"] in ("complete", "cancelled")
        about = row["machine"] if over else f"{row['machine']}: {row['stage']}"
    return one_line(" ".join([about, *(f"{name}={one_line(value)}" for name, value in row["labels"].items())]))


def _status(options: RunOptions) -> Output:
    from stateline.service.runs import status

    store = options.settings.store()
    document = status(store, options.run)
    shown = ("run", "machine", "machine_path", "status", "stage", "turn", "started_at", "updated_at", "head")
    values = {name: str(document[name]) for name in shown}
    values |= {"status": status_text(document)} | {name: ago(document[name]) for name in ("started_at", "updated_at")}
    values["head"] = document["head"][:DIGITS]
    labels = {"machine_path": "file", "started_at": "started", "updated_at": "changed"}
    lines = [line for name, value in values.items() if value for line in _field(labels.get(name, name), value)]
    if actor := actor_text(document["actor"]):
        lines += _field("last actor", actor)
    lines += _field("used", used_text(document["counters"]))
    if document["failures"]:
        lines += _field("failures", str(document["failures"]))
    if document["model"]:
        lines += _field("model", document["model"])
    if document["labels"]:
        lines += _field("labels", ", ".join(f"{name}={value}" for name, value in document["labels"].items()))
    if document["mode"]:
        lines += _field("mode", _mode_text(document["mode"], document["exchanges"]))
    for name, bound in document["bounds"].items():
        if bound["limit"]:
            unit = " s" if name == "timeout" else ""
            lines += _field(name, f"{document['counters'][name]:.6g} of {bound['limit']:.6g}{unit}")
    for waiting in document["interrupts"]:
        # Of a recording, the next call plays the answer, or says how to give one.
        played = document["mode"] == "playback" and waiting["type"] in ("human", "llm_request")
        lines += _field("request", str(waiting["requestId"]))
        lines += waiting_lines(document["run"], waiting, kept=not played)
        if played:
            lines += command_lines("  next:   ", f"stateline exec resume {document['run']}", columns())
    if document["error"]:
        lines += _field("error", document["error"]["message"])
    return Output(document=document, lines=lines, warnings=store.warnings)


def _mode_text(mode: str, exchanges: dict[str, Any]) -> str:
    where = exchanges["dir"] if exchanges["last"] is None else f"{exchanges['dir']}, last exchange {exchanges['last']}"
    return f"{mode} to {where}" if mode == "record" else f"{mode} ({exchanges['playback']}) of {where}"


def _field(name: str, value: str) -> list[str]:
    return labelled(f"{name + ':':<{_LABEL}} ", plain(value), columns())


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
    yes: bool = False
    dry_run: bool = False


def clean_options(flags: Namespace, settings: Settings) -> CleanOptions:
    """Turn the flags of ``exec clean`` into options. Raises ``UsageError``."""
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", flags.older_than)
    if match is None:
        message = f"--older-than {flags.older_than!r} is not an age; nothing was removed"
        raise UsageError(message, hint="for example 30d, 12h or 90m")
    return CleanOptions(settings, flags.all, int(match[1]) * _UNITS[match[2]], flags.yes, flags.dry_run)


def _clean(options: CleanOptions) -> Output:
    from stateline.service.runs import clean

    def verb(store: Store, confirm: Confirm | None) -> Removal:
        return clean(store, unfinished=options.unfinished, older_than=options.older_than, confirm=confirm)

    return _removal(options, verb)


class RmOptions(msgspec.Struct, frozen=True):
    """Options of ``exec rm``."""

    settings: Settings
    runs: list[str]
    yes: bool = False
    dry_run: bool = False


def _rm(options: RmOptions) -> Output:
    from stateline.service.runs import remove

    runs = list(dict.fromkeys(options.runs))
    wait = _RM_WAIT if options.settings.wait is None else options.settings.wait
    return _removal(options, lambda store, confirm: remove(store, runs, wait=wait, confirm=confirm))


def _confirm(runs: list[str]) -> None:
    if not is_confirmed(f"Remove {counted(len(runs), 'run')}: {one_line(', '.join(runs))}?"):
        raise RequestError("nothing was removed: the answer was not yes", hint="--yes removes without a question")


def _removal(options: CleanOptions | RmOptions, verb: Callable[[Store, Confirm | None], Removal]) -> Output:
    """Plan the removal, or ask on a terminal and carry it out."""
    store = options.settings.store()
    if options.dry_run:
        from stateline.service.dry_run import dry_run

        return plan_output(dry_run(store, lambda store: verb(store, None)))
    result = verb(store, None if options.yes else _confirm)
    lines = [f"removed {run}" for run in result.removed] + [f"kept {run}: {why}" for run, why in result.kept.items()]
    return Output(
        document=result.document(),
        lines=lines or ["nothing to remove"],
        warnings=result.warnings,
        exit_code=result.exit_code,
    )


LIST = Command(
    help="""List runs, the one used last first.

running: a process is running it. ready: it is not finished, and its next turn can begin; this is also the status
after a crash in a task that is repeatable. interrupted: the process ended after it started a model call, or a task or
tool that is not repeatable, and before it saved the result.""",
    arguments=[
        argument("-n", dest="number", type=int, metavar="N", help="List at most N runs."),
        argument(
            "--status",
            action="append",
            default=[],
            choices=_STATUSES,
            metavar="STATUS",
            help=f"Only runs in that status: {', '.join(_STATUSES)} (repeatable).",
        ),
        repeatable("--label", "K=V", "Only runs with that label"),
        argument("--machine", metavar="NAME|FILE", help="Only runs of that machine."),
    ],
    options=list_options,
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

Asks first on a terminal. Runs that others originate from, or that are in use, are kept.

{_REMAINS}""",
    arguments=[
        *_REMOVAL,
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

Asks first on a terminal. A run that is in use is kept (exit 4), and so is one that another run originates from.

{_REMAINS}""",
    arguments=[argument("runs", nargs="+", metavar="RUN", help="Ids of runs."), *_REMOVAL],
    options=fields_of(RmOptions),
    run=_rm,
)
