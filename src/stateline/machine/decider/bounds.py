"""The limits of a run: one function per bound, each with the reason for its number.

A bound of N allows N and refuses the next, so every rule reads "after this step the count would be above N". Limits
stand before what comes next, never after what was done: a run that finishes exactly at its limit is complete.

Four bounds count transitions and are asked about every one of them, those of ``error_next`` included. Four are meters
that the engine keeps (:class:`~stateline.machine.decider.run.Facts`) and are asked before an effect is dispatched; a human or
an end stage dispatches none, so reaching it costs neither time nor calls. Whether a model is there or a person answers
for it makes no difference: both are calls.

No message holds a meter's reading: failures are part of the run's ``state``, which must not depend on a clock.
"""

from __future__ import annotations

from stateline.machine.decider.run import Facts, Failure, RunState
from stateline.machine.spec import Machine, Stage

_WAY_OUT = "Raise it in the machine file, then call `execute --accept-change` and `exec resume --retry`."

_MODEL_CALLS = {"task": 0, "agent": 1}
"""Model calls that dispatching a stage of this kind makes at once. A kind that is not here dispatches no effect."""


def refusal(machine: Machine, state: RunState, target: str, facts: Facts) -> Failure | None:
    """The limit that forbids going from the current stage to ``target``, or None. Of several, the first in the order
    max_visits, edge_limits, max_iterations, max_agent_hops, timeout, max_llm_calls, max_tokens."""
    stage = machine.stages[target]
    return (
        _visits(state, stage)
        or _edge(machine, state, stage)
        or _iterations(machine, state, stage)
        or _hops(machine, state, stage)
        or dispatch_refusal(machine, state, target, facts)
    )


def dispatch_refusal(machine: Machine, state: RunState, target: str, facts: Facts) -> Failure | None:
    """The meter that forbids performing ``target``'s effect (again), or None: timeout, then max_llm_calls, then
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
    """The meter that forbids performing the tool calls of a reply, or None: max_tool_rounds, then timeout. The calls of
    one reply are one round, those that are refused for their arguments included: a model that never calls rightly must
    come to an end too."""
    allowed = machine.bounds.max_tool_rounds
    if allowed and facts.tool_rounds + 1 > allowed:
        return _limit(state, "max_tool_rounds", f"models may have their tool calls performed {_times(allowed)}")
    return time_refusal(machine, state, facts)


def is_backward(machine: Machine, source: str, target: str) -> bool:
    """Whether this edge begins a new iteration: ``target`` stands at or before ``source`` in ``order``."""
    return machine.order.index(target) <= machine.order.index(source)


def _visits(state: RunState, stage: Stage) -> Failure | None:
    """Counted at the target, the first visit included, so 1 means: never come back. It bounds one stage whatever
    way leads there, an end stage too: who declares it there means it."""
    if not stage.max_visits or state.visits.get(stage.name, 0) + 1 <= stage.max_visits:
        return None
    return _limit(state, "max_visits", f"stage {stage.name!r} may be visited {_times(stage.max_visits)}")


def _edge(machine: Machine, state: RunState, stage: Stage) -> Failure | None:
    """Counted per pair of stages, by whatever reason the edge was taken. Two entries for one edge: the lower rules."""
    source = state.tree.stage
    taken = state.edges.get(source, {}).get(stage.name, 0)
    limits = [e.max_count for e in machine.edge_limits if (e.source, e.target) == (source, stage.name) and e.max_count]
    if not limits or taken + 1 <= min(limits):
        return None
    return _limit(state, "edge_limits", f"the edge {source!r} -> {stage.name!r} may be taken {_times(min(limits))}")


def _iterations(machine: Machine, state: RunState, stage: Stage) -> Failure | None:
    """Only backward edges count, since only they can make a run endless. An end stage may stand anywhere in the file,
    and a run is never kept from ending by a bound that is there to make it end."""
    allowed = machine.bounds.max_iterations
    if not allowed or stage.kind == "end" or not is_backward(machine, state.tree.stage, stage.name):
        return None
    if state.iteration + 1 <= allowed:
        return None
    return _limit(state, "max_iterations", f"the run may go back {_times(allowed)} (now to stage {stage.name!r})")


def _hops(machine: Machine, state: RunState, stage: Stage) -> Failure | None:
    """Every transition between two stages is a hop, entering the first stage is none. An end stage is let through as
    with iterations. The sum is over the machine's edges, not over the run's history."""
    allowed = machine.bounds.max_agent_hops
    if not allowed or stage.kind == "end":
        return None
    taken = sum(count for targets in state.edges.values() for count in targets.values())
    if taken + 1 <= allowed:
        return None
    return _limit(state, "max_agent_hops", f"the run may go from stage to stage {_times(allowed)}")


def time_refusal(machine: Machine, state: RunState, facts: Facts) -> Failure | None:
    """The limit of active time, or None. An effect may start while its first instant is still within the bound:
    exactly N seconds used is allowed, as with every bound. A model's call gets no more time than is left, and ends by
    this limit; what else is under way is not cut short by it, a stage's own ``timeout`` does that."""
    allowed = machine.bounds.timeout
    return None if not allowed or facts.active <= allowed else time_over(machine, state)


def time_over(machine: Machine, state: RunState) -> Failure:
    """What is said of the bound on active time, of a machine that has one, where it strikes."""
    return _limit(state, "timeout", f"the run may be active for {machine.bounds.timeout:g} s")


def _llm_calls(machine: Machine, state: RunState, stage: Stage, facts: Facts) -> Failure | None:
    """N calls made leave none, so a stage that needs one is refused. A task needs none and may run after the last
    call; it is refused only when the meter is above the bound (a lower one was accepted during the run)."""
    allowed = machine.bounds.max_llm_calls
    if not allowed or facts.llm_calls + _MODEL_CALLS[stage.kind] <= allowed:
        return None
    return _limit(state, "max_llm_calls", f"the run may call a model {_times(allowed)}")


def _tokens(machine: Machine, state: RunState, stage: Stage, facts: Facts) -> Failure | None:
    """Nobody knows what the next call will use, so a call may go over the bound; none is made once it is reached."""
    allowed = machine.bounds.max_tokens
    if not allowed or not _MODEL_CALLS[stage.kind] or facts.tokens < allowed:
        return None
    return _limit(state, "max_tokens", f"models may use {allowed} tokens")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _limit(state: RunState, bound: str, rule: str) -> Failure:
    return Failure(
        stage=state.tree.stage,
        kind="limit",
        bound=bound,
        message=f"limit {bound}: {rule}; that is used up",
        hint=_WAY_OUT,
    )
