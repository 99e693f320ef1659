"""Leave a stage whose effect has ended, and enter the next one. Pure.

Handlers of events share the functions here. Each takes a run's state and returns a
:class:`~stateline.machine.decider.run.Decision`; nothing is modified in place. One event moves an instance over at most
one edge, and further over ``error_next`` past stages that cannot be entered.

The order (docs/machines.md): failed -> ``error_next`` or the run fails; then ``routes``, first match; then
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
    """Continue from a stage whose output is kept: apply ``set``, then choose the next stage.

    Both or neither: if a condition fails, ``set`` is not applied, so that evaluating both again later gives the same
    result. The stage then fails with kind ``set``, ``state_schema`` or ``condition``.
    """
    stage = machine.stages[state.tree.stage]
    try:
        changed = apply_set(machine, stage, state, facts)
        target, reason = choose(stage, changed, facts)
    except EvaluationError as broken:
        return fail(machine, state, _failure(stage, broken), "settling", facts)
    return _go_on(machine, changed, target, reason, facts)


def route(machine: Machine, state: RunState, facts: Facts) -> Decision:
    """Continue from a stage whose ``set`` was applied: choose the next stage and check the limits again."""
    stage = machine.stages[state.tree.stage]
    try:
        target, reason = choose(stage, state, facts)
    except EvaluationError as broken:
        return fail(machine, state, _failure(stage, broken), "routing", facts)
    return _go_on(machine, state, target, reason, facts)


def fail(machine: Machine, state: RunState, failure: Failure, resume: Resume, facts: Facts) -> Decision:
    """Fail the current stage: go to its ``error_next``, or fail the run, which can be resumed at ``resume``.

    A limit that refuses ``error_next`` as well fails the run. The failure then has kind ``limit`` and names the first
    limit; its message has both causes.
    """
    handler, failure = _handler(machine, state, failure, facts)
    if handler is None:
        return Decision(state=_stopped(state, failure, resume))
    return _enter(machine, state, handler, _reason(failure), failure, facts)


def begin(machine: Machine, state: RunState, facts: Facts) -> Decision:
    """Enter the first stage. No limit can refuse it: nothing is used yet, and meters begin with the run."""
    step = Transition(source=None, target=machine.start, reason="start", iteration=0, count=0)
    return _arrive(machine, state, step, None, facts)


def again(machine: Machine, state: RunState, error: Failure | None, facts: Facts, *, new_budget: bool) -> Decision:
    """Perform the current stage's effect once more, in the same visit. ``error`` is kept in the state.

    An agent's conversation continues. If its prompt could not be rendered, nothing was attempted: it is rendered now,
    or the stage fails again.
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
    """Return the state about to perform the effect of ``stage``; waiting, if that needs a model and there is none."""
    if stage.kind == "agent" and facts.manual:
        tree = replace(state.tree, phase="waiting", error=error, pending=[])
        return replace(state, status="waiting", tree=tree, interrupts=[{"kind": "llm_request", "stage": stage.name}])
    tree = replace(state.tree, phase="ready", error=error, pending=[effect(stage)])
    return replace(state, status="running", tree=tree, interrupts=[])


def effect(stage: Stage) -> Json:
    """Return a stage's effect for ``pending``."""
    return {"type": "model" if stage.kind == "agent" else "task", "stage": stage.name, "position": 0}


def _failure(stage: Stage, broken: EvaluationError) -> Failure:
    return Failure(stage=stage.name, kind=broken.kind, message=broken.message, hint=broken.hint)


def _reason(failure: Failure) -> Literal["limit", "error"]:
    return "limit" if failure.kind == "limit" else "error"


def _handler(machine: Machine, state: RunState, failure: Failure, facts: Facts) -> tuple[str | None, Failure]:
    """Return the stage that handles ``failure``, or None without one or if a limit refuses it; and the failure, with
    the limit added in that case."""
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
    ``target`` handles; None after success."""
    step, moved = _step(machine, state, target, reason)
    return _arrive(machine, moved, step, cause, facts)


def _step(machine: Machine, state: RunState, target: str, reason: str) -> tuple[Transition, RunState]:
    """Return the transition to ``target``, and the state with its counts."""
    source = state.tree.stage
    taken = state.edges.get(source, {})
    count = taken.get(target, 0) + 1
    iteration = state.iteration + bounds.is_backward(machine, source, target)
    step = Transition(source=source, target=target, reason=reason, iteration=iteration, count=count)
    return step, replace(state, edges=state.edges | {source: taken | {target: count}})


def _arrive(machine: Machine, state: RunState, step: Transition, cause: Failure | None, facts: Facts) -> Decision:
    """Enter the target of ``step``; if its prompt cannot be rendered, enter the stage that handles that. A stage is
    entered once per event for that reason, which excludes endless loops."""
    steps: list[Transition] = []
    while True:
        steps.append(step)
        stage = machine.stages[str(step.target)]
        state = _entered(stage, state, step, cause)
        try:
            state = _with_phase(stage, state, facts)
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
    """Return the state in ``stage``, without anything of the previous stage, before the phase of its kind is set."""
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


def _with_phase(stage: Stage, state: RunState, facts: Facts) -> RunState:
    """Return the state with the first phase of ``stage``, by its kind. Raises :class:`EvaluationError` for a prompt
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
