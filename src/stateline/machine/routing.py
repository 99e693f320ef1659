"""What follows once a stage's effect has ended: ``set``, the way on, and entering the next stage. Pure.

:mod:`~stateline.machine.advance` decides which event is legal when; the functions here carry out what the legal ones
have in common. Each takes a run's state and gives a :class:`~stateline.machine.run.Decision`; nothing is changed in
place. One event moves an instance over at most one edge.

The order (contract, section 5): failed -> ``error_next`` or the run fails; then ``routes``, first match; then
``default_next``; then the run is complete.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from stateline.machine import bounds
from stateline.machine.run import Decision, Facts, Failure, Instance, Phase, Resume, RunState, Status, Transition
from stateline.machine.settling import Broken, apply_set, choose
from stateline.machine.spec import Json, Machine


class _Arrival(NamedTuple):
    """How an instance stands in a stage it has just entered, by the stage's kind."""

    phase: Phase
    status: Status
    pending: bool
    interrupt: str


_ARRIVALS: dict[str, _Arrival] = {
    "task": _Arrival("ready", "running", True, ""),
    "human": _Arrival("waiting", "waiting", False, "human"),
    "end": _Arrival("done", "complete", False, ""),
}


def settle(machine: Machine, state: RunState, facts: Facts) -> Decision:
    """Go on from a stage whose output is kept: apply ``set``, then choose the way on.

    Both or neither: where a condition fails, ``set`` is not applied, so that evaluating both again later gives what
    it would have given now. The stage then failed with kind ``set``, ``state_schema`` or ``condition``.
    """
    stage = machine.stages[state.tree.stage]
    try:
        changed = apply_set(machine, stage, state, facts)
        target, reason = choose(stage, changed, facts)
    except Broken as broken:
        failure = Failure(stage=stage.name, kind=broken.kind, message=broken.message, hint=broken.hint)
        return fail(machine, state, failure, "settling", facts)
    return _go_on(machine, changed, target, reason, facts)


def route(machine: Machine, state: RunState, facts: Facts) -> Decision:
    """Go on from a stage whose ``set`` was applied: choose the way on again and check the limits anew."""
    stage = machine.stages[state.tree.stage]
    try:
        target, reason = choose(stage, state, facts)
    except Broken as broken:
        failure = Failure(stage=stage.name, kind=broken.kind, message=broken.message, hint=broken.hint)
        return fail(machine, state, failure, "routing", facts)
    return _go_on(machine, state, target, reason, facts)


def fail(machine: Machine, state: RunState, failure: Failure, resume: Resume, facts: Facts) -> Decision:
    """The current stage failed for good: go to its ``error_next``, or the run fails and can be resumed at ``resume``.

    A limit that refuses ``error_next`` as well fails the run. The failure is then of kind ``limit`` and names the
    limit that was met first; its message tells what happened before or after.
    """
    handler = machine.stages[state.tree.stage].error_next
    if handler is not None:
        refused = bounds.refusal(machine, state, handler, facts)
        if refused is None:
            return enter(machine, state, handler, "limit" if failure.kind == "limit" else "error", failure)
        if failure.kind == "limit":
            failure = replace(failure, message=f"{failure.message}; error_next was refused too: {refused.message}")
        else:
            failure = replace(refused, message=f"{refused.message} (error_next was to handle: {failure.message})")
    tree = replace(state.tree, phase="failed", resume=resume, error=failure, pending=[])
    return Decision(state=replace(state, status="error", tree=tree, interrupts=[]))


def begin(machine: Machine, state: RunState) -> Decision:
    """Enter the first stage. No limit can refuse it: nothing is used up yet, and meters begin with the run."""
    return _arrive(machine, state, Transition(source=None, target=machine.start, reason="start", iteration=0, count=0))


def enter(machine: Machine, state: RunState, target: str, reason: str, cause: Failure | None) -> Decision:
    """Take the edge from the current stage to ``target``, whose limits were checked. ``cause`` is the failure that
    ``target`` is to handle; None when the stage is left by success."""
    source = state.tree.stage
    taken = state.edges.get(source, {})
    count = taken.get(target, 0) + 1
    step = Transition(
        source=source,
        target=target,
        reason=reason,
        iteration=state.iteration + bounds.is_backward(machine, source, target),
        count=count,
    )
    return _arrive(machine, replace(state, edges=state.edges | {source: taken | {target: count}}), step, cause)


def again(state: RunState, error: Failure | None, *, new_budget: bool) -> Decision:
    """The current stage's effect shall be performed once more, in the same visit. ``error`` is kept for the record."""
    tree = state.tree
    attempt = tree.attempt + 1
    tree = replace(
        tree,
        phase="ready",
        attempt=attempt,
        first_attempt=attempt if new_budget else tree.first_attempt,
        error=error,
        pending=[_effect(tree.stage)],
    )
    return Decision(state=replace(state, status="running", tree=tree, interrupts=[]))


def _go_on(machine: Machine, state: RunState, target: str | None, reason: str, facts: Facts) -> Decision:
    if target is None:
        tree = replace(state.tree, phase="done", resume="ready", error=None, cause=None, pending=[])
        done = replace(state, status="complete", tree=tree, interrupts=[])
        return Decision(state=done, transitions=(_completion(done),))
    refused = bounds.refusal(machine, state, target, facts)
    if refused is not None:
        return fail(machine, state, refused, "routing", facts)
    return enter(machine, state, target, reason, None)


def _arrive(machine: Machine, state: RunState, step: Transition, cause: Failure | None = None) -> Decision:
    stage = machine.stages[str(step.target)]
    arrival = _ARRIVALS[stage.kind]
    tree: Instance = replace(
        state.tree,
        stage=stage.name,
        phase=arrival.phase,
        attempt=1,
        first_attempt=1,
        resume="ready",
        error=None,
        cause=cause,
        pending=[_effect(stage.name)] if arrival.pending else [],
    )
    entered = replace(
        state,
        status=arrival.status,
        visits=state.visits | {stage.name: state.visits.get(stage.name, 0) + 1},
        iteration=step.iteration,
        tree=tree,
        interrupts=[{"kind": arrival.interrupt, "stage": stage.name}] if arrival.interrupt else [],
    )
    steps = (step, _completion(entered)) if arrival.phase == "done" else (step,)
    return Decision(state=entered, transitions=steps)


def _completion(state: RunState) -> Transition:
    return Transition(source=state.tree.stage, target=None, reason="complete", iteration=state.iteration, count=0)


def _effect(stage: str) -> Json:
    return {"type": "task", "stage": stage, "position": 0}
