"""What follows once a stage's effect has ended: ``set``, the way on, and entering the next stage. Pure.

:mod:`~stateline.machine.decider.advance` decides which event is legal when; the functions here carry out what the legal ones
have in common. Each takes a run's state and gives a :class:`~stateline.machine.decider.run.Decision`; nothing is changed in
place. One event moves an instance over at most one edge, and on over ``error_next`` past stages that cannot be entered.

The order (contract, section 5): failed -> ``error_next`` or the run fails; then ``routes``, first match; then
``default_next``; then the run is complete.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from stateline.machine.decider import agents, bounds
from stateline.machine.decider.evaluate_outputs import EvaluationError, apply_set, choose
from stateline.machine.decider.run import Decision, Facts, Failure, Instance, Resume, RunState, Transition
from stateline.machine.spec import Json, Machine, Stage


def settle(machine: Machine, state: RunState, facts: Facts) -> Decision:
    """Go on from a stage whose output is kept: apply ``set``, then choose the way on.

    Both or neither: where a condition fails, ``set`` is not applied, so that evaluating both again later gives what
    it would have given now. The stage then failed with kind ``set``, ``state_schema`` or ``condition``.
    """
    stage = machine.stages[state.tree.stage]
    try:
        changed = apply_set(machine, stage, state, facts)
        target, reason = choose(stage, changed, facts)
    except EvaluationError as broken:
        return fail(machine, state, _failure(stage, broken), "settling", facts)
    return _go_on(machine, changed, target, reason, facts)


def route(machine: Machine, state: RunState, facts: Facts) -> Decision:
    """Go on from a stage whose ``set`` was applied: choose the way on again and check the limits anew."""
    stage = machine.stages[state.tree.stage]
    try:
        target, reason = choose(stage, state, facts)
    except EvaluationError as broken:
        return fail(machine, state, _failure(stage, broken), "routing", facts)
    return _go_on(machine, state, target, reason, facts)


def fail(machine: Machine, state: RunState, failure: Failure, resume: Resume, facts: Facts) -> Decision:
    """The current stage failed for good: go to its ``error_next``, or the run fails and can be resumed at ``resume``.

    A limit that refuses ``error_next`` as well fails the run. The failure is then of kind ``limit`` and names the
    limit that was met first; its message tells what happened before or after.
    """
    handler, failure = _handler(machine, state, failure, facts)
    if handler is None:
        return Decision(state=_stopped(state, failure, resume))
    return _enter(machine, state, handler, _reason(failure), failure, facts)


def begin(machine: Machine, state: RunState, facts: Facts) -> Decision:
    """Enter the first stage. No limit can refuse it: nothing is used up yet, and meters begin with the run."""
    step = Transition(source=None, target=machine.start, reason="start", iteration=0, count=0)
    return _arrive(machine, state, step, None, facts)


def again(machine: Machine, state: RunState, error: Failure | None, facts: Facts, *, new_budget: bool) -> Decision:
    """The current stage's effect shall be performed once more, in the same visit. ``error`` is kept for the record.

    An agent's conversation goes on where it is. Where its prompt could not be rendered nothing has been attempted: it
    is rendered now, or the stage fails again.
    """
    stage, tree = machine.stages[state.tree.stage], state.tree
    if stage.kind == "agent" and not tree.conversation:
        try:
            state = _with_prompt(stage, state, facts)
        except EvaluationError as broken:
            return fail(machine, state, _failure(stage, broken), "ready", facts)
        return Decision(state=to_perform(stage, state, facts, error))
    attempt = tree.attempt + 1
    first = attempt if new_budget else tree.first_attempt
    conversation = tree.conversation if stage.kind == "agent" else []
    tree = replace(tree, attempt=attempt, first_attempt=first, conversation=conversation)
    return Decision(state=to_perform(stage, replace(state, tree=tree), facts, error))


def to_perform(stage: Stage, state: RunState, facts: Facts, error: Failure | None = None) -> RunState:
    """The run about to perform the effect of ``stage``, where it stands; waiting, if that needs a model and there is
    none."""
    if stage.kind == "agent" and facts.manual:
        tree = replace(state.tree, phase="waiting", error=error, pending=[])
        return replace(state, status="waiting", tree=tree, interrupts=[{"kind": "llm_request", "stage": stage.name}])
    tree = replace(state.tree, phase="ready", error=error, pending=[effect(stage)])
    return replace(state, status="running", tree=tree, interrupts=[])


def effect(stage: Stage) -> Json:
    """A stage's own effect, as it stands in ``pending``."""
    return {"type": "model" if stage.kind == "agent" else "task", "stage": stage.name, "position": 0}


def _failure(stage: Stage, broken: EvaluationError) -> Failure:
    return Failure(stage=stage.name, kind=broken.kind, message=broken.message, hint=broken.hint)


def _reason(failure: Failure) -> Literal["limit", "error"]:
    return "limit" if failure.kind == "limit" else "error"


def _handler(machine: Machine, state: RunState, failure: Failure, facts: Facts) -> tuple[str | None, Failure]:
    """The stage that is to handle ``failure``, if there is one and no limit refuses it; and the failure, which says so
    where one does."""
    handler = machine.stages[state.tree.stage].error_next
    if handler is None:
        return None, failure
    refused = bounds.refusal(machine, state, handler, facts)
    if refused is None:
        return handler, failure
    if failure.kind == "limit":
        return None, replace(failure, message=f"{failure.message}; error_next was refused too: {refused.message}")
    return None, replace(refused, message=f"{refused.message} (error_next was to handle: {failure.message})")


def _stopped(state: RunState, failure: Failure, resume: Resume) -> RunState:
    pending = state.tree.pending if resume == "calling" else []
    tree = replace(state.tree, phase="failed", resume=resume, error=failure, pending=pending)
    return replace(state, status="error", tree=tree, interrupts=[])


def _go_on(machine: Machine, state: RunState, target: str | None, reason: str, facts: Facts) -> Decision:
    if target is None:
        tree = replace(state.tree, phase="done", resume="ready", error=None, cause=None, pending=[])
        done = replace(state, status="complete", tree=tree, interrupts=[])
        return Decision(state=done, transitions=(_completion(done),))
    refused = bounds.refusal(machine, state, target, facts)
    if refused is not None:
        return fail(machine, state, refused, "routing", facts)
    return _enter(machine, state, target, reason, None, facts)


def _enter(
    machine: Machine, state: RunState, target: str, reason: str, cause: Failure | None, facts: Facts
) -> Decision:
    """Take the edge from the current stage to ``target``, whose limits were checked. ``cause`` is the failure that
    ``target`` is to handle; None when the stage is left by success."""
    step, moved = _step(machine, state, target, reason)
    return _arrive(machine, moved, step, cause, facts)


def _step(machine: Machine, state: RunState, target: str, reason: str) -> tuple[Transition, RunState]:
    """The edge to ``target``, and the state with it counted."""
    source = state.tree.stage
    taken = state.edges.get(source, {})
    count = taken.get(target, 0) + 1
    iteration = state.iteration + bounds.is_backward(machine, source, target)
    step = Transition(source=source, target=target, reason=reason, iteration=iteration, count=count)
    return step, replace(state, edges=state.edges | {source: taken | {target: count}})


def _arrive(machine: Machine, state: RunState, step: Transition, cause: Failure | None, facts: Facts) -> Decision:
    """Enter ``step``'s target, and where its prompt cannot be rendered the stage that handles that; a stage which this
    event has entered already is not entered for that again, so that nothing goes round without an end."""
    steps: list[Transition] = []
    while True:
        steps.append(step)
        stage = machine.stages[str(step.target)]
        state = _entered(stage, state, step, cause)
        try:
            state = _standing(stage, state, facts)
        except EvaluationError as broken:
            handler, cause = _handler(machine, state, _failure(stage, broken), facts)
            if handler is None or any(earlier.target == handler for earlier in steps):
                return Decision(state=_stopped(state, cause, "ready"), transitions=tuple(steps))
            step, state = _step(machine, state, handler, "error")
            continue
        if stage.kind == "end":
            steps.append(_completion(state))
        return Decision(state=state, transitions=tuple(steps))


def _entered(stage: Stage, state: RunState, step: Transition, cause: Failure | None) -> RunState:
    """The state in ``stage``, with nothing left of the stage before, and not yet in the phase of its kind."""
    tree: Instance = replace(
        state.tree,
        stage=stage.name,
        attempt=1,
        first_attempt=1,
        resume="ready",
        error=None,
        cause=cause,
        conversation=[],
        pending=[],
    )
    visits = state.visits | {stage.name: state.visits.get(stage.name, 0) + 1}
    return replace(state, visits=visits, iteration=step.iteration, tree=tree, interrupts=[])


def _standing(stage: Stage, state: RunState, facts: Facts) -> RunState:
    """How an instance stands in a stage it has just entered, by the stage's kind. Raises :class:`EvaluationError` for a prompt
    that cannot be rendered."""
    if stage.kind == "human":
        waiting = replace(state.tree, phase="waiting")
        return replace(state, status="waiting", tree=waiting, interrupts=[{"kind": "human", "stage": stage.name}])
    if stage.kind == "end":
        return replace(state, status="complete", tree=replace(state.tree, phase="done"))
    return to_perform(stage, _with_prompt(stage, state, facts) if stage.kind == "agent" else state, facts)


def _with_prompt(stage: Stage, state: RunState, facts: Facts) -> RunState:
    message = {"role": "user", "content": agents.prompt(stage, state, facts)}
    return replace(state, tree=replace(state.tree, conversation=[message]))


def _completion(state: RunState) -> Transition:
    return Transition(source=state.tree.stage, target=None, reason="complete", iteration=state.iteration, count=0)
