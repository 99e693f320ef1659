"""The plan of ``--dry-run`` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stateline.cli.output import Output, plain

if TYPE_CHECKING:
    from stateline.service.dry_run import Plan

_WORDS = {
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
    "refuse": "be refused",
}
"""Words for the action of a plan."""


def plan_output(plan: Plan) -> Output:
    """The output of a plan. The dry run itself exits 0; the plan has the exit code of the real call."""
    lines = [f"would {_WORDS[plan.action].format(run=plan.run, scope=plan.scope)} and exit {plan.exit}"]
    lines += [f"  effect: {_effect(effect)}" for effect in plan.effects]
    if plan.reason:
        lines.append(f"  because: {plain(plan.reason)}")
    if plan.head:
        lines.append(f"  head:   {plan.head}")
    return Output(document=plan.document(), lines=lines, warnings=plan.warnings)


def _effect(effect: dict[str, object]) -> str:
    if effect["type"] == "task":
        argv = effect["argv"]
        return f"task of stage {effect['stage']}: {plain(' '.join(argv) if isinstance(argv, list) else '')}"
    if effect["type"] == "tool":
        return f"tool {plain(str(effect['tool']))} of stage {effect['stage']}"
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
