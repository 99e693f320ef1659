"""What each legal event does: the functions that ``machine.advance`` has in its table. Pure. Those of models' replies
and tool calls are in ``machine.rounds``.

Each takes the machine, the run's state, the event and the facts, and gives a decision. That the event is legal where
the run stands, and that the machine has the current stage, was checked before. A handler that raises has changed
nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from stateline.errors import InvalidAnswerError, InvalidValueError, RequestError
from stateline.machine.decider import bounds, routing
from stateline.machine.decider.evaluate_outputs import violations_of, violations_text
from stateline.machine.decider.run import (
    Answered,
    Decision,
    Facts,
    Failed,
    Failure,
    Instance,
    Intended,
    Lost,
    Replaced,
    Retried,
    RunState,
    Started,
    Succeeded,
    Unsent,
)
from stateline.machine.spec import Json, Machine


def begin(machine: Machine, state: RunState | None, event: Started, facts: Facts) -> Decision:
    """A restart keeps nothing: whatever ``state`` was, the run is new."""
    found = violations_of(machine.input, event.input)
    if found:
        raise InvalidValueError(
            f"the input does not fit the machine's input schema: {violations_text(found)}",
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


def intend(machine: Machine, state: RunState, event: Intended, facts: Facts) -> Decision:
    """A model's effect may start where an answer was awaited in its stead: a model is there now."""
    effect = routing.effect(machine.stages[state.tree.stage])
    tree = replace(state.tree, phase="started", pending=[effect])
    return Decision(state=replace(state, status="running", tree=tree, interrupts=[]))


def succeed(machine: Machine, state: RunState, event: Succeeded, facts: Facts) -> Decision:
    return settle(machine, state, event.output, facts)


def fail(machine: Machine, state: RunState, event: Failed, facts: Facts) -> Decision:
    """Try again while the retry budget lasts, else the stage has failed. A timeout leaves open what the effect did
    before it was ended, so it is tried again only where repeating is harmless."""
    stage, tree = machine.stages[state.tree.stage], state.tree
    failure = Failure(stage=stage.name, kind=event.kind, message=event.message, hint=event.hint)
    if event.bound == "timeout" and machine.bounds.timeout:
        # Said by the event, and not by the clock: played back, the call takes no time at all.
        over = bounds.time_over(machine, state)
        over = replace(over, message=f"{over.message} (which ended this: {failure.message})")
        return routing.fail(machine, state, over, "ready", facts)
    budget_left = tree.attempt - tree.first_attempt + 1 < stage.retry.max_attempts
    if not budget_left or (event.kind == "timeout" and not stage.repeatable):
        return routing.fail(machine, state, failure, "ready", facts)
    refused = bounds.dispatch_refusal(machine, state, stage.name, facts)
    if refused is not None:
        refused = replace(refused, message=f"{refused.message} (before a retry after: {failure.message})")
        return routing.fail(machine, state, refused, "ready", facts)
    return routing.again(machine, state, failure, facts, new_budget=False)


def lose(machine: Machine, state: RunState, event: Lost, facts: Facts) -> Decision:
    interrupts: list[Json] = [{"kind": "unknown_outcome", "stage": state.tree.stage}]
    tree = replace(state.tree, phase="unknown")
    return Decision(state=replace(state, status="waiting", tree=tree, interrupts=interrupts))


def lose_again(machine: Machine, state: RunState, event: Lost, facts: Facts) -> Decision:
    """A model's call that may be repeated is made once more without asking anybody, in the same attempt, unless a limit
    forbids it: the lost one has counted."""
    stage = machine.stages[state.tree.stage]
    refused = bounds.dispatch_refusal(machine, state, stage.name, facts)
    if refused is None:
        return Decision(state=routing.to_perform(stage, state, facts, state.tree.error))
    why = event.message or "a call was made whose outcome is not known"
    refused = replace(refused, message=f"{refused.message} (before another attempt after: {why})")
    return routing.fail(machine, state, refused, "ready", facts)


def take_back(machine: Machine, state: RunState, event: Unsent, facts: Facts) -> Decision:
    """The intent counts for nothing: neither an attempt nor a retry is used up by what was never sent."""
    return Decision(state=replace(state, tree=replace(state.tree, phase="ready")))


def answer(machine: Machine, state: RunState, event: Answered, facts: Facts) -> Decision:
    """A person's answer, or what became of a lost effect: a task has no schema, so its result is taken as it is."""
    stage = machine.stages[state.tree.stage]
    found = violations_of(stage.schema, event.value)
    if found:
        raise InvalidAnswerError(
            f"the answer does not fit what stage {stage.name!r} asks for: {violations_text(found)}; "
            "the run still waits",
            hint="give an answer that fits the stage's schema with --input",
        )
    return settle(machine, state, event.value, facts)


def rerun(machine: Machine, state: RunState, event: Retried, facts: Facts) -> Decision:
    """Run a lost effect again. A limit that forbids it must not turn "unknown" into "failed": the way of giving the
    effect's result stays open."""
    refused = bounds.dispatch_refusal(machine, state, state.tree.stage, facts)
    if refused is not None:
        raise RequestError(
            f"the lost effect of stage {state.tree.stage!r} cannot run again: {refused.message}; nothing changed",
            hint=f"{refused.hint} Or give the effect's result with --input.",
        )
    return routing.again(machine, state, None, facts, new_budget=True)


def retry(machine: Machine, state: RunState, event: Retried, facts: Facts) -> Decision:
    refused = bounds.dispatch_refusal(machine, state, state.tree.stage, facts)
    if refused is not None:
        return routing.fail(machine, state, refused, "ready", facts)
    return routing.again(machine, state, None, facts, new_budget=True)


def settle_again(machine: Machine, state: RunState, event: Retried, facts: Facts) -> Decision:
    return routing.settle(machine, state, facts)


def route_again(machine: Machine, state: RunState, event: Retried, facts: Facts) -> Decision:
    return routing.route(machine, state, facts)


def accept(machine: Machine, state: RunState, event: Replaced, facts: Facts) -> Decision:
    """``_require_stage`` has checked the new machine; counters, outputs and the user's state stay as they are."""
    return Decision(state=state)


def keep_unsettled(machine: Machine, state: RunState, output: Json, message: str, facts: Facts) -> Decision:
    """For the engine, when deciding itself broke: keep the output, and fail so that a retry only settles again."""
    kept = replace(state, outputs=state.outputs | {state.tree.stage: output})
    return routing.fail(machine, kept, internal(state, message), "settling", facts)


def internal(state: RunState, message: str) -> Failure:
    """What is said where deciding itself broke."""
    hint = "this is a bug in stateline, or memory ran out; the output is kept, --retry goes on with it"
    return Failure(stage=state.tree.stage, kind="internal", message=message, hint=hint)


def settle(machine: Machine, state: RunState, output: Json, facts: Facts) -> Decision:
    """Keep the output before anything that may fail is evaluated, so that it is never lost and never earned twice."""
    kept = replace(state, outputs=state.outputs | {state.tree.stage: output})
    return routing.settle(machine, kept, facts)
