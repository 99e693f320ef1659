"""``stateline execute`` and ``stateline exec resume``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateline.cli.model_options import (
    BaseUrl,
    InputFormat,
    Model,
    Playback,
    PlaybackMode,
    Record,
    again,
    input_format,
    model_options,
)
from stateline.cli.options import Settings, pairs, read_input, settings, stdin_reader
from stateline.cli.output import coloured, emit, is_terminal, just_typed, one_line, plain, pretty, say, warn

if TYPE_CHECKING:
    from stateline.engine.loop import Watch
    from stateline.engine.record import Run
    from stateline.machine.decider.run import Failure
    from stateline.service.outcome import Outcome

Interactive = Annotated[bool, typer.Option("-i", "--interactive", help="Do exactly one turn, then stop.")]
Input = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON|@FILE", help="The run's input when it starts, the answer when it waits."),
]
NoInput = Annotated[bool, typer.Option("--no-input", help="Never read standard input.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; touch nothing.")]
Parent = Annotated[
    str | None, typer.Option("--parent", metavar="REV", help="Do it only if this is the run's head (else exit 4).")
]


def execute(
    ctx: typer.Context,
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A machine file (.yaml, .json, .toml, .py).")],
    interactive: Interactive = False,
    id: Annotated[str | None, typer.Option("--id", metavar="RUN", help="This run, new or old.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Begin anew: with --id on the same chain, else as another run.")
    ] = False,
    input: Input = None,
    accept_change: Annotated[
        bool, typer.Option("--accept-change", help="Go on although the machine file changed; this is recorded.")
    ] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="A label for a new run (repeatable).")
    ] = None,
    destination: Annotated[
        str | None,
        typer.Option("-d", "--destination", metavar="DIR", help="Write a complete run's outputs there, as files."),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    input_format_word: InputFormat = "json",
    record: Record = None,
    playback: Playback = None,
    playback_mode: PlaybackMode = None,
    dry_run: DryRun = False,
    no_input: NoInput = False,
    parent: Parent = None,
) -> int:
    """Run a machine: to its end, or (-i) by exactly one turn.

    Goes on with the last unfinished run of this machine file, else starts one. With --state-scope NAME the stages of
    a new run see the context NAME.
    """
    from stateline.service.execute import Call, Options
    from stateline.service.execute import execute as verb
    from stateline.service.model_setup import Models

    said = settings(ctx)
    store = said.store()
    models = Models(store, model_options(said, (model, base_url), record, playback, playback_mode))
    options = Options(
        machine=machine,
        run=id,
        force=force,
        accept_change=accept_change,
        labels=pairs(label, "--label", parsed=False),
        context=said.state_scope,
        call=Call(
            one_turn=interactive,
            input=read_input(input),
            stdin=stdin_reader(no_input),
            parent=parent,
            wait=said.patience,
            watch=watcher(said),
            input_format=input_format(input_format_word),
            dependencies=models.dependencies,
            exchanges=models.begin,
            closing=models.closing,
        ),
    )
    if dry_run:
        from stateline.cli.plans import show_plan
        from stateline.service.dry_run import dry_run as rehearse

        return show_plan(said, rehearse(store, lambda store: verb(store, options), run=id, one_turn=interactive))
    outcome = verb(store, options)
    if destination is not None:
        from stateline.service.destination import write_outputs

        for path in write_outputs(outcome, destination):
            say(said, f"wrote {path}")
    return finish(said, outcome, flags=again(model, base_url))


def resume(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    interactive: Interactive = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Clear an error, or run a lost effect again, then go on.")
    ] = False,
    input: Input = None,
    model: Model = None,
    base_url: BaseUrl = None,
    input_format_word: InputFormat = "json",
    record: Record = None,
    playback: Playback = None,
    playback_mode: PlaybackMode = None,
    dry_run: DryRun = False,
    no_input: NoInput = False,
    parent: Parent = None,
) -> int:
    """Go on with a run, from the machine that the store keeps: to its end, or (-i) by one turn."""
    from stateline.service.execute import Call
    from stateline.service.execute import resume as verb
    from stateline.service.model_setup import Models

    said = settings(ctx)
    store = said.store()
    models = Models(store, model_options(said, (model, base_url), record, playback, playback_mode))
    call = Call(
        one_turn=interactive,
        input=read_input(input),
        stdin=stdin_reader(no_input),
        parent=parent,
        wait=said.patience,
        watch=watcher(said),
        input_format=input_format(input_format_word),
        dependencies=models.dependencies,
        exchanges=models.begin,
        closing=models.closing,
    )
    if dry_run:
        from stateline.cli.plans import show_plan
        from stateline.service.dry_run import dry_run as rehearse

        trial = rehearse(store, lambda store: verb(store, run, call, retry=retry), run=run, one_turn=interactive)
        return show_plan(said, trial)
    return finish(said, verb(store, run, call, retry=retry), flags=again(model, base_url))


def watcher(said: Settings) -> Watch:
    """Progress on a terminal, or with -v anywhere: a task may take minutes."""
    talks = not said.quiet and (said.verbose or is_terminal(sys.stderr))

    def watch(run: Run, what: str) -> None:
        if talks:
            tree = run.state.tree
            # A turn that is not over goes on: with another attempt, or with the tools that a reply asked for.
            turn = run.event["turn"] + (not run.event.get("open"))
            again = f", attempt {tree.attempt}" if tree.attempt > 1 else ""
            if what == "calls":
                calls = [call["name"] for call in tree.pending if call["status"] != "done"]
                again = f", tools {one_line(', '.join(calls), 80)}"
            elif what == "pause":
                again = f" failed{_briefly(tree.error)}; tried again in {_seconds(run):.3g} s"
            say(said, f"{run.id}: turn {turn}: {tree.stage}{again} ...")

    return watch


def _briefly(error: Failure | None) -> str:
    return "" if error is None else f" ({error.kind}: {one_line(error.message, 80)})"


def _seconds(run: Run) -> float:
    from stateline.engine.loop import pause_before

    return pause_before(run)


def finish(said: Settings, outcome: Outcome, *, flags: str) -> int:
    """Print how a run stands; the exit code. ``flags`` are those that a command which goes on has to repeat."""
    kept = not said.ephemeral
    if not kept and outcome.status != "complete":
        from msgspec.structs import replace

        lost = f"nothing of the run {outcome.run} was kept (--ephemeral); no call can go on with it"
        outcome = replace(outcome, warnings=[*outcome.warnings, lost])
    warn(said, outcome.warnings)
    emit(said, outcome.document(), _lines(said, outcome, kept, flags))
    return outcome.exit_code


def _lines(said: Settings, outcome: Outcome, kept: bool, flags: str) -> list[str]:
    """How the run stands; if it is a complete one of ``run``, the whole answer below, and with -q the answer alone."""
    if not outcome.built_in or outcome.status != "complete" or outcome.output is None:
        return outcome_lines(outcome, kept=kept, flags=flags)
    answer = plain(outcome.output).split("\n") if isinstance(outcome.output, str) else pretty(outcome.output)
    if said.quiet:
        return answer
    lines = outcome_lines(outcome, output=False)
    # Whoever has just read it on this very terminal need not read it twice.
    return lines if just_typed("\n".join(answer)) else [*lines, "", *answer]


_COLOUR = {"advanced": "bold", "complete": "green", "waiting": "yellow", "error": "red"}


def outcome_lines(outcome: Outcome, *, kept: bool = True, output: bool = True, flags: str = "") -> list[str]:
    """How a run stands, for people, with its newest ``output`` on a line; and how to go on with it, by a command with
    these ``flags``, if it was ``kept``."""
    way = outcome.stage if outcome.source in (None, outcome.stage) else f"{outcome.source} -> {outcome.stage}"
    status = coloured(outcome.status, _COLOUR[outcome.status])
    lines = [f"run {outcome.run}: {status} (turn {outcome.turn}: {way}, {outcome.reason})"]
    if output and outcome.output is not None:
        lines.append(f"  output: {one_line(outcome.output)}")
    if outcome.error:
        lines += _failure_lines(outcome)
    if outcome.status == "error" and kept:
        lines += _ways_on(outcome, flags)
    if outcome.waiting:
        lines += waiting_lines(str(outcome.run), outcome.waiting, kept=kept)
    lines.append(f"  head:   {outcome.head}")
    return lines


def waiting_lines(run: str, waiting: dict[str, Any], *, kept: bool = True) -> list[str]:
    """What a run waits for; and how to go on with it if it was ``kept``."""
    if waiting["type"] == "llm_request":
        from stateline.cli.requests import request_lines

        return request_lines(run, waiting, kept)
    if waiting["type"] != "human":
        lines = [f"  waits:  {plain(waiting['message'])}", f"  way on: {plain(waiting['hint'])}"]
        return lines if kept else lines[:1]
    lines = [f"  asks:   {plain(waiting['prompt'])}"]
    if waiting["schema"] is not None:
        lines.append(f"  schema: {one_line(waiting['schema'])}")
    return [*lines, f"  answer: stateline exec resume {run} --input JSON   (or pipe it in)"] if kept else lines


_MENDED_IN_THE_FILE = ("set", "condition", "state_schema", "limit")
"""Kinds of failure that come back until the machine file is changed."""
_SHOWN_LINES = 10
"""How many lines of a failure's message are shown; the document has all of them."""


def _failure_lines(outcome: Outcome) -> list[str]:
    error = outcome.error
    said = plain(error["message"]).split("\n")
    more = [f"          ({len(said) - _SHOWN_LINES} lines before that)"] if len(said) > _SHOWN_LINES else []
    said = said[-_SHOWN_LINES:]
    lines = [f"  failed: {error['stage']}: {said[0]}", *(f"          {line}" for line in said[1:]), *more]
    if error.get("hint") and not (outcome.built_in and _comes_back(outcome)):
        lines.append(f"  hint:   {plain(error['hint'])}")
    return lines


def _comes_back(outcome: Outcome) -> bool:
    return outcome.error["kind"] in _MENDED_IN_THE_FILE


def _ways_on(outcome: Outcome, flags: str) -> list[str]:
    """Commands that go on with a failed run, or leave it behind."""
    retry = f"stateline exec resume {outcome.run} --retry{flags}"
    if outcome.built_in:
        anew = f"stateline run --id {outcome.run} --force -p TEXT{flags} begins anew"
        # There is no file to mend.
        return [f"  way on: {anew}"] if _comes_back(outcome) else [f"  way on: {retry}", f"          {anew} instead"]
    mend = "mend the machine file, then stateline execute MACHINE --accept-change; then "
    first = mend if _comes_back(outcome) else ""
    return [f"  way on: {first}{retry}", "          stateline execute MACHINE --force begins anew instead"]
