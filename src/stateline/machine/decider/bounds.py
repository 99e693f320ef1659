"""The limits of a run: one function per bound, each with the reason for its number.

A bound of N allows N and refuses the next, so every rule reads "after this step the count would be above N". Limits
are checked before the next step, never after a finished one: a run that finishes exactly at its limit is complete.

Four bounds count transitions and are checked for each of them, including ``error_next``. Four are meters of the engine
(:class:`~stateline.machine.decider.run.Facts`) and are checked before an effect is dispatched; a human or an end stage
dispatches none, so reaching it costs neither time nor calls. An answer by a caller instead of a model counts as a call.

A new bound also needs a field of ``spec.Bounds``, a line in ``definition/check.py`` and in
``definition/editor_schema.py``, its count in ``service/runs.py``, and a row in ``docs/machines.md``. One on a meter
needs a field of ``Facts`` too, which ``engine/record.py`` fills.

No message contains a meter's value: failures are part of the run's ``state``, which must not depend on a clock.
"""

from __future__ import annotations

from stateline.machine.decider.run import Facts, Failure, RunState
from stateline.machine.spec import Machine, Stage

_HINT = "Raise it in the machine file, then call `execute --accept-change` and `exec resume --retry`."

_MODEL_CALLS = {"task": 0, "agent": 1}
"""Model calls made by dispatching a stage of each kind. A kind that is missing here dispatches no effect."""


def refusal(machine: Machine, state: RunState, target: str, facts: Facts) -> Failure | None:
    """Return the limit that forbids going from the current stage to ``target``, or None. The first of several, in the
    order max_visits, edge_limits, max_iterations, max_agent_hops, timeout, max_llm_calls, max_tokens."""
    stage = machine.stages[target]
    return (
        _visits(state, stage)
        or _edge(machine, state, stage)
        or _iterations(machine, state, stage)
        or _hops(machine, state, stage)
        or dispatch_refusal(machine, state, target, facts)
    )


def dispatch_refusal(machine: Machine, state: RunState, target: str, facts: Facts) -> Failure | None:
    """Return the meter that forbids performing ``target``'s effect (again), or None. Order: timeout, max_llm_calls,
    max_tokens."""
    stage = machine.stages[target]
    if stage.kind not in _MODEL_CALLS:
        return None
    return (
        time_refusal(machine, state, facts)
        or _llm_calls(machine, state, stage, facts)
        or _tokens(machine, state, stage, facts)
    )


def calls_refusal(machine: Machine, state: RunState, facts: Facts) -> Failure | None:
    """Return the meter that forbids performing the tool calls of a reply, or None. Order: max_tool_rounds, timeout. All
    calls of one reply are one round, including rejected ones: a model that makes only wrong calls must end too."""
    allowed = machine.bounds.max_tool_rounds
    if allowed and facts.tool_rounds + 1 > allowed:
        return _limit(state, "max_tool_rounds", f"tool calls may be performed {_times(allowed)}")
    return time_refusal(machine, state, facts)


def is_backward(machine: Machine, source: str, target: str) -> bool:
    """Return True if this edge begins a new iteration: ``target`` is at or before ``source`` in ``order``."""
    return machine.order.index(target) <= machine.order.index(source)


def _visits(state: RunState, stage: Stage) -> Failure | None:
    """Count visits of the target, including the first, so 1 means: never return. It applies to all edges to the stage,
    and to end stages too, since it is declared on the stage."""
    if not stage.max_visits or state.visits.get(stage.name, 0) + 1 <= stage.max_visits:
        return None
    return _limit(state, "max_visits", f"stage {stage.name!r} may be visited {_times(stage.max_visits)}")


def _edge(machine: Machine, state: RunState, stage: Stage) -> Failure | None:
    """Count an edge for every reason of taking it. Of two entries for one edge, the lower one applies."""
    source = state.tree.stage
    taken = state.edges.get(source, {}).get(stage.name, 0)
    limits = [e.max_count for e in machine.edge_limits if (e.source, e.target) == (source, stage.name) and e.max_count]
    if not limits or taken + 1 <= min(limits):
        return None
    return _limit(state, "edge_limits", f"the edge {source!r} -> {stage.name!r} may be taken {_times(min(limits))}")


def _iterations(machine: Machine, state: RunState, stage: Stage) -> Failure | None:
    """Count backward edges only, since only they can make a run endless. An end stage may be anywhere in the file, and
    a bound that makes runs end must not keep one from ending."""
    allowed = machine.bounds.max_iterations
    if not allowed or stage.kind == "end" or not is_backward(machine, state.tree.stage, stage.name):
        return None
    if state.iteration + 1 <= allowed:
        return None
    return _limit(state, "max_iterations", f"the run may go back {_times(allowed)} (now to stage {stage.name!r})")


def _hops(machine: Machine, state: RunState, stage: Stage) -> Failure | None:
    """Count every transition between two stages, not entering the first stage. End stages are exempt, as for
    iterations. The sum is over the machine's edges, not over the run's history."""
    allowed = machine.bounds.max_agent_hops
    if not allowed or stage.kind == "end":
        return None
    taken = sum(count for targets in state.edges.values() for count in targets.values())
    if taken + 1 <= allowed:
        return None
    return _limit(state, "max_agent_hops", f"the run may go from stage to stage {_times(allowed)}")


def time_refusal(machine: Machine, state: RunState, facts: Facts) -> Failure | None:
    """Return the limit on active time, or None. An effect may start at exactly N seconds, as with every bound. A model
    call gets only the time that is left and ends by this limit; other effects end by their stage's ``timeout``."""
    allowed = machine.bounds.timeout
    return None if not allowed or facts.active <= allowed else time_over(machine, state)


def time_over(machine: Machine, state: RunState) -> Failure:
    """Return the failure for reaching the machine's bound on active time."""
    return _limit(state, "timeout", f"the run may be active for {machine.bounds.timeout:g} s")


def _llm_calls(machine: Machine, state: RunState, stage: Stage, facts: Facts) -> Failure | None:
    """Refuse a stage that needs a call when all are used. A task needs none and may run after the last call; it is
    refused only when the meter is above the bound (after a lower bound was accepted during the run)."""
    allowed = machine.bounds.max_llm_calls
    if not allowed or facts.llm_calls + _MODEL_CALLS[stage.kind] <= allowed:
        return None
    return _limit(state, "max_llm_calls", f"the run may call a model {_times(allowed)}")


def _tokens(machine: Machine, state: RunState, stage: Stage, facts: Facts) -> Failure | None:
    """Refuse calls once the bound is reached. The usage of a call is unknown before it, so one call may exceed it."""
    allowed = machine.bounds.max_tokens
    if not allowed or not _MODEL_CALLS[stage.kind] or facts.tokens < allowed:
        return None
    return _limit(state, "max_tokens", f"models may use {allowed} tokens")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _limit(state: RunState, bound: str, rule: str) -> Failure:
    return Failure(
        stage=state.tree.stage, kind="limit", bound=bound, message=f"limit {bound}: {rule}; that is used up", hint=_HINT
    )
