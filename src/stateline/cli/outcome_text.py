"""The outcome of a run, or the plan of ``--dry-run``, for people: status, request, and commands that continue it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stateline.cli.layout import DIGITS, command_lines, hanging, labelled, short_name
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, columns, counted, one_line, plain, pretty, was_just_streamed

if TYPE_CHECKING:
    from stateline.service.dry_run import Plan
    from stateline.service.run_document import Outcome

_COLOUR = {"advanced": "bold", "complete": "green", "waiting": "yellow", "error": "red", "cancelled": "yellow"}
_FIXED_IN_THE_FILE = ("set", "condition", "state_schema", "limit")
"""Kinds of failure that come back until the machine file is changed."""
_SHOWN_LINES = 10
"""Most lines of a failure's message; the document has all of them."""
_DONE = {"derive": "derived", "refine": "refined", "restore": "restored"}
_ACTIONS = {
    "start": "start a run",
    "restart": "start the run {run} again",
    "advance": "continue the run {run}",
    "answer": "answer the run {run}",
    "retry": "retry the run {run}",
    "wait": "leave the run {run} waiting",
    "report": "only report the status of the run {run}",
    "derive": "derive {scope}",
    "refine": "refine {scope}",
    "restore": "leave {scope} as it is",
    "remove": "remove {runs}",
    "refuse": "be refused",
}
"""Words for the actions of a plan."""


def outcome_output(settings: Settings, outcome: Outcome, *, flags: str) -> Output:
    """The output of a run. ``flags`` are those that a command which continues the run has to repeat."""
    kept = outcome.kept and not settings.ephemeral
    if not kept and outcome.status != "complete":
        why = "--ephemeral" if settings.ephemeral else "--no-transcript"
        lost = f"nothing of the run {outcome.run} was kept ({why}); no call can continue it"
        outcome = replace(outcome, warnings=[*outcome.warnings, lost])
    return Output(
        document=outcome.document(),
        lines=[] if settings.json else _lines(settings, outcome, kept, flags),
        warnings=outcome.warnings,
        closing=[] if outcome.status == "cancelled" else totals_lines(outcome),
        exit_code=outcome.exit_code,
    )


def used_text(counters: dict[str, Any]) -> str:
    """Return the use of a run so far, in words."""
    calls = counted(counters["model_calls"], "model call")
    tokens = f"{counters['tokens']:,} token{'' if counters['tokens'] == 1 else 's'}"
    return f"{counted(counters['turns'], 'turn')}, {calls}, {tokens}, {counters['seconds']:.1f} s"


def totals_lines(outcome: Outcome) -> list[str]:
    """Return the use of the run, and what this call did with the context; on one line if that fits."""
    used = [] if outcome.counters is None else [used_text(outcome.counters)]
    if outcome.context is None:
        return used
    context = outcome.context
    calls, tokens = context["model_calls"], context["tokens"]
    how = f"{counted(calls, 'model call')}, {tokens:,} tokens" if calls else "no model call"
    place = "" if context["seq"] is None else f" at {context['seq']}"
    rest = f" {_DONE[context['action']]}{place}, {how}"
    name = short_name(context["scope"].partition(":")[2])
    name = one_line(name, max(columns() - len(f"context {rest}"), DIGITS))
    both = "; ".join([*used, f"context {name}{rest}"])
    return [both] if len(both) <= columns() else [f"context {name}{rest}", *used]


def _lines(settings: Settings, outcome: Outcome, kept: bool, flags: str) -> list[str]:
    """The status; of a complete run of ``run`` with the whole answer below, and with ``--quiet`` the answer alone."""
    if not outcome.built_in or outcome.status != "complete" or outcome.output is None:
        return outcome_lines(outcome, kept=kept, flags=flags)
    answer = plain(outcome.output).split("\n") if isinstance(outcome.output, str) else pretty(outcome.output)
    if settings.quiet:
        return answer
    lines = outcome_lines(outcome, kept=kept, output=False)
    # An answer that was just streamed to this terminal is not printed twice.
    return lines if was_just_streamed("\n".join(answer)) else [*lines, "", *answer]


def outcome_lines(outcome: Outcome, *, kept: bool = True, output: bool = True, flags: str = "") -> list[str]:
    """The status; of this turn the tool calls and (with ``output``) the output, each on a line; of a complete run its
    output. If the run was ``kept``, commands to continue it, and its head."""
    path = outcome.stage if outcome.source in (None, outcome.stage) else f"{outcome.source} -> {outcome.stage}"
    status, room = coloured(outcome.status, _COLOUR[outcome.status]), columns()
    first, *lines = hanging(
        f"run {outcome.run}: {outcome.status} (turn {outcome.turn}: {path}, {outcome.reason})", room
    )
    lines.insert(0, first.replace(f": {outcome.status} ", f": {status} ", 1))
    # A model's request shows the results itself.
    if outcome.tools and not (outcome.waiting and outcome.waiting["type"] == "llm_request"):
        from stateline.cli.step_text import call_lines

        lines += [f"  tool:   {line}" for call in outcome.tools for line in call_lines(call, room - 10)]
    if output and outcome.output is not None and (outcome.fresh or outcome.status == "complete"):
        lines += labelled("  output: ", one_line(outcome.output), room)
    if outcome.error:
        lines += _failure_lines(outcome)
    if outcome.status == "error" and kept:
        lines += _next_lines(outcome, flags)
    if outcome.waiting:
        lines += waiting_lines(str(outcome.run), outcome.waiting, kept=kept)
    return [*lines, f"  head:   {outcome.head[:DIGITS]}"] if kept else lines


def waiting_lines(run: str, waiting: dict[str, Any], *, kept: bool = True) -> list[str]:
    """The request that a run waits for; if the run was ``kept``, how to answer it."""
    from stateline.cli.requests import answer_lines, interrupt_lines, request_lines

    if waiting["type"] == "llm_request":
        return request_lines(run, waiting, kept)
    if waiting["type"] != "human":
        lines = labelled("  waits:  ", plain(waiting["message"]), columns())
        return [*lines, *interrupt_lines(run, waiting)] if kept else lines
    lines = labelled("  asks:   ", plain(waiting["prompt"]), columns())
    if waiting["schema"] is not None:
        lines += labelled("  schema: ", one_line(waiting["schema"]), columns())
    return [*lines, *answer_lines(run, waiting)] if kept else lines


def _failure_lines(outcome: Outcome) -> list[str]:
    error = outcome.error
    message = plain(error["message"]).split("\n")
    hidden = len(message) - _SHOWN_LINES
    more = [f"({hidden} lines before that)"] if hidden > 0 else []
    message = [f"{error['stage']}: {message[-_SHOWN_LINES:][0]}", *message[-_SHOWN_LINES:][1:], *more]
    lines = labelled("  failed: ", "\n".join(message), columns())
    if error.get("hint") and not (outcome.built_in and _comes_back(outcome)):
        lines += labelled("  hint:   ", plain(error["hint"]), columns())
    return lines


def _comes_back(outcome: Outcome) -> bool:
    return outcome.error["kind"] in _FIXED_IN_THE_FILE


def _next_lines(outcome: Outcome, flags: str) -> list[str]:
    """Commands that continue a failed run, or start again."""
    retry = f"stateline exec resume {outcome.run} --retry{flags}"
    if outcome.built_in:
        restart = f"stateline run --id {outcome.run} --force -p TEXT{flags}"
        # There is no file to fix.
        return _commands(next=restart) if _comes_back(outcome) else _commands(next=retry, **{"or": restart})
    execute = f"stateline execute {plain(shlex.quote(outcome.machine_path))}"
    again = f"{execute} --id {outcome.run} --force{' --input JSON' if outcome.takes_input else ''}"
    if not _comes_back(outcome):
        return _commands(next=retry, **{"or": again})
    return [
        "  next:   fix the machine file, then both of these:",
        *command_lines(" " * 10, f"{execute} --id {outcome.run} --accept-change", columns()),
        *command_lines(" " * 10, retry, columns()),
        *_commands(**{"or": again}),
    ]


def _commands(**commands: str) -> list[str]:
    """Commands beside their labels."""
    return [
        line
        for label, command in commands.items()
        for line in command_lines(f"  {label + ':':<7} ", command, columns())
    ]


def plan_output(plan: Plan) -> Output:
    """The output of a plan. The dry run itself exits 0; the plan has the exit code of the real call."""
    action = _ACTIONS[plan.action].format(run=plan.run, scope=plan.scope, runs=counted(len(plan.effects), "run"))
    lines = [f"would {action} and exit {plan.exit}"]
    lines += [f"  effect: {_effect(effect)}" for effect in plan.effects]
    lines += [f"  kept {run}: {plain(why)}" for run, why in (plan.kept or {}).items()]
    if plan.reason:
        lines.append(f"  because: {plain(plan.reason)}")
    if plan.head:
        lines.append(f"  head:   {plan.head[:DIGITS]}")
    lines = [part for line in lines for part in hanging(line, columns())]
    return Output(document=plan.document(), lines=lines, warnings=plan.warnings)


def _effect(effect: dict[str, object]) -> str:
    if effect["type"] == "task":
        argv = effect["argv"]
        return f"task of stage {effect['stage']}: {plain(' '.join(argv) if isinstance(argv, list) else '')}"
    if effect["type"] == "tool":
        return f"tool {plain(str(effect['tool']))} of stage {effect['stage']}"
    if effect["type"] == "remove":
        return f"remove {effect['run']}"
    if effect["type"] == "context":
        return f"{effect['action']} {plain(str(effect['scope']))}"
    call = {"playback": "a reply, played back, of", "record": "a recorded call of"}
    of = call.get(str(effect.get("exchanges")), "a call of")
    if effect["type"] == "model" and "stage" in effect:
        tools = effect.get("tools")
        named = f", with the tools {plain(', '.join(tools))}" if isinstance(tools, list) and tools else ""
        return f"{of} {plain(str(effect['model']))} at stage {effect['stage']}{named}"
    if "purpose" in effect:
        return f"{of} {plain(str(effect['model']))} to {effect['purpose']} the context"
    return f"a snapshot ({effect['event']})"
