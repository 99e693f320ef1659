"""Handlers of events in the table of ``advance``, except those of model replies and tool calls (``rounds``). Pure.

Each takes the machine, the run's state, the event and the facts, and returns a decision. ``advance`` has checked that
the event is legal and that the machine has the current stage. A handler that raises has changed nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from stateline.errors import InvalidAnswerError, InvalidValueError, RequestError
from stateline.machine.decider import bounds, routing, run
from stateline.machine.decider.evaluate_outputs import example_of, violations_of, violations_text
from stateline.machine.decider.run import Decision, Facts, Failure, Instance, RunState
from stateline.machine.spec import Json, Machine


def begin(machine: Machine, state: RunState | None, event: run.Started, facts: Facts) -> Decision:
    """Begin a run; a restart keeps nothing of the old ``state``."""
    found = violations_of(machine.input, event.input)
    if found:
        raise InvalidValueError(
            f"the input does not fit the machine's input schema: {violations_text(found)}{example_of(machine.input)}",
            where="/input",
            hint="see `input` in the machine file; pass the input with --input",
        )
    fresh = RunState(
        status="running",
        input=event.input,
        state=machine.state,
        tree=Instance(stage=machine.start, phase="ready"),
        context=event.context,
        labels=event.labels,
    )
    return routing.begin(machine, fresh, facts)


def intend(machine: Machine, state: RunState, event: run.Intended, facts: Facts) -> Decision:
    """Start an effect. A model call may also start while a caller's answer is awaited: a model is available now."""
    effect = routing.effect(machine.stages[state.tree.stage])
    tree = replace(state.tree, phase="started", pending=[effect])
    return Decision(state=replace(state, status="running", tree=tree, interrupts=[]))


def succeed(machine: Machine, state: RunState, event: run.Succeeded, facts: Facts) -> Decision:
    return settle(machine, state, event.output, facts)


def fail(machine: Machine, state: RunState, event: run.Failed, facts: Facts) -> Decision:
    """Retry within the budget, or fail the stage. The side effects before a timeout are unknown, so it is retried only
    if the stage is repeatable. A permanent failure is not retried."""
    stage, tree = machine.stages[state.tree.stage], state.tree
    failure = Failure(stage=stage.name, kind=event.kind, message=event.message, hint=event.hint)
    if event.bound == "timeout" and machine.bounds.timeout:
        # Taken from the event, not the clock: a recorded call takes no time when played back.
        over = bounds.time_over(machine, state)
        over = replace(over, message=f"{over.message} (which ended this: {failure.message})")
        return routing.fail(machine, state, over, "ready", facts)
    budget_left = tree.attempt - tree.first_attempt + 1 < stage.retry.max_attempts
    if not budget_left or event.permanent or (event.kind == "timeout" and not stage.repeatable):
        return routing.fail(machine, state, failure, "ready", facts)
    refused = bounds.dispatch_refusal(machine, state, stage.name, facts)
    if refused is not None:
        refused = replace(refused, message=f"{refused.message} (before a retry after: {failure.message})")
        return routing.fail(machine, state, refused, "ready", facts)
    return routing.again(machine, state, failure, facts, new_budget=False)


def lose(machine: Machine, state: RunState, event: run.Lost, facts: Facts) -> Decision:
    interrupts: list[Json] = [{"kind": "unknown_outcome", "stage": state.tree.stage}]
    tree = replace(state.tree, phase="unknown")
    return Decision(state=replace(state, status="waiting", tree=tree, interrupts=interrupts))


def lose_again(machine: Machine, state: RunState, event: run.Lost, facts: Facts) -> Decision:
    """Repeat a lost model call that is repeatable, in the same attempt, unless a limit forbids it: the lost call
    counts."""
    stage = machine.stages[state.tree.stage]
    refused = bounds.dispatch_refusal(machine, state, stage.name, facts)
    if refused is None:
        return Decision(state=routing.to_perform(stage, state, facts, state.tree.error))
    why = event.message or "a call was made, and its outcome is unknown"
    refused = replace(refused, message=f"{refused.message} (before another attempt after: {why})")
    return routing.fail(machine, state, refused, "ready", facts)


def take_back(machine: Machine, state: RunState, event: run.Unsent, facts: Facts) -> Decision:
    """Take back an intent: a call that was never sent uses neither an attempt nor a retry."""
    return Decision(state=replace(state, tree=replace(state.tree, phase="ready")))


def answer(machine: Machine, state: RunState, event: run.Answered, facts: Facts) -> Decision:
    """Take a person's answer, or the result of a lost effect. A task has no schema, so any result is accepted."""
    stage = machine.stages[state.tree.stage]
    found = violations_of(stage.schema, event.value)
    if found:
        raise InvalidAnswerError(
            f"the answer does not fit what stage {stage.name!r} asks for: {violations_text(found)}"
            f"{example_of(stage.schema)}; the run still waits",
        )
    return settle(machine, state, event.value, facts)


def rerun(machine: Machine, state: RunState, event: run.Retried, facts: Facts) -> Decision:
    """Run a lost effect again. A limit that forbids it must not turn "unknown" into "failed": giving the effect's
    result must stay possible."""
    refused = bounds.dispatch_refusal(machine, state, state.tree.stage, facts)
    if refused is not None:
        raise RequestError(
            f"the lost effect of stage {state.tree.stage!r} cannot run again: {refused.message}; nothing changed",
            hint=f"{refused.hint} Or give the effect's result with --answer.",
        )
    return routing.again(machine, state, None, facts, new_budget=True)


def retry(machine: Machine, state: RunState, event: run.Retried, facts: Facts) -> Decision:
    refused = bounds.dispatch_refusal(machine, state, state.tree.stage, facts)
    if refused is not None:
        return routing.fail(machine, state, refused, "ready", facts)
    return routing.again(machine, state, None, facts, new_budget=True)


def settle_again(machine: Machine, state: RunState, event: run.Retried, facts: Facts) -> Decision:
    return routing.settle(machine, state, facts)


def route_again(machine: Machine, state: RunState, event: run.Retried, facts: Facts) -> Decision:
    return routing.route(machine, state, facts)


def accept(machine: Machine, state: RunState, event: run.Replaced, facts: Facts) -> Decision:
    """Accept a changed machine, which ``_require_stage`` has checked. Counters, outputs and the user's state stay."""
    return Decision(state=state)


def cancel(machine: Machine, state: RunState, event: run.Cancelled, facts: Facts) -> Decision:
    """End the run where it is. What it waits for and what it was about to do is dropped; all else stays to be read."""
    tree = replace(state.tree, phase="cancelled", resume="ready", pending=[])
    return Decision(state=replace(state, status="cancelled", tree=tree, interrupts=[]))


def keep_unsettled(machine: Machine, state: RunState, output: Json, message: str, facts: Facts) -> Decision:
    """Keep the output after a crash of the decider, and fail so that a retry only evaluates it again."""
    kept = replace(state, outputs=state.outputs | {state.tree.stage: output})
    return routing.fail(machine, kept, internal(state, message), "settling", facts)


def internal(state: RunState, message: str) -> Failure:
    """Return the failure for a crash of the decider."""
    hint = "this is a bug in stateline, or memory ran out; the output is kept, and --retry continues with it"
    return Failure(stage=state.tree.stage, kind="internal", message=message, hint=hint)


def settle(machine: Machine, state: RunState, output: Json, facts: Facts) -> Decision:
    """Keep the output before evaluating anything that may fail, so that it is never lost and never computed twice."""
    kept = replace(state, outputs=state.outputs | {state.tree.stage: output})
    return routing.settle(machine, kept, facts)
