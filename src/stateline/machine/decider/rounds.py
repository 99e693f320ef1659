"""Handlers of model replies and tool calls, for agent stages in the table of ``advance``. Pure.

A round is one reply with its tool calls. Calls may end in any order: each result is kept with its call, and the
messages are appended in the order of the calls once all are done.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from stateline.errors import IllegalEventError, InvalidAnswerError, MachineChangedError, RequestError
from stateline.machine.decider import agents, bounds, handlers, routing, run
from stateline.machine.decider.agents import ReplyError
from stateline.machine.decider.run import Decision, Facts, RunState
from stateline.machine.spec import Agent, Json, Machine, Stage


def ask(machine: Machine, state: RunState, event: run.Asked, facts: Facts) -> Decision:
    """Wait for a caller's answer, regardless of ``facts.manual``: this call has no model."""
    waiting = routing.to_perform(_stage(machine, state), state, replace(facts, manual=True), state.tree.error)
    return Decision(state=waiting)


def reply(machine: Machine, state: RunState, event: run.Replied, facts: Facts) -> Decision:
    """Keep the reply, then perform its calls or continue with its answer. A reply that the stage cannot use is not kept
    and is an ordinary failure: a retry may fix it. A wrong call is reported to the model instead."""
    try:
        agents.require_reply(event.content, event.tool_calls)
        output = None if event.tool_calls else agents.output_of(_agent(machine, state), event.content)
    except ReplyError as unfit:
        failed = run.Failed(kind=unfit.kind, message=unfit.message, hint=unfit.hint)
        return replace(handlers.fail(machine, state, failed, facts), refused=True)
    return _take(machine, state, event, output, facts)


def answer(machine: Machine, state: RunState, event: run.Answered, facts: Facts) -> Decision:
    """Take a caller's reply instead of the model's. One that the stage cannot use is refused: the caller can send
    another."""
    stage, value = _stage(machine, state), event.value
    try:
        if not isinstance(value, dict) or not {"content"} <= value.keys() <= {"content", "tool_calls"}:
            raise ReplyError("reply", "the reply must be an object with `content` and optional `tool_calls`", "")
        content, calls = value["content"], value.get("tool_calls", [])
        agents.require_reply(content, calls)
        for call in calls:
            if problem := agents.call_problem(machine, stage, call):
                raise ReplyError(problem[0], problem[1], "")
        output = None if calls else agents.output_of(_agent(machine, state), content)
    except ReplyError as unfit:
        raise InvalidAnswerError(
            f"the answer does not fit what stage {stage.name!r} asks for: {unfit.message}; the run still waits",
            hint=unfit.hint or "answer with text, or with calls of the offered tools",
        ) from None
    return _take(machine, state, run.Replied(content=content, tool_calls=calls), output, facts)


def intend_calls(machine: Machine, state: RunState, event: run.CallsIntended, facts: Facts) -> Decision:
    """Mark calls as about to start. Each must be ready and not repeatable."""
    wanted, repeatable = set(event.ids), _repeatable(machine, state)
    for call in _calls(state):
        if call["id"] in wanted and call["status"] == "ready" and call["name"] not in repeatable:
            wanted.discard(call["id"])
    if wanted or not event.ids or len(set(event.ids)) < len(event.ids):
        raise _illegal(state, "callsintended", "name calls that are ready and not repeatable, each once")
    pending = [call | {"status": "started"} if call["id"] in event.ids else call for call in _calls(state)]
    return Decision(state=_calling(state, pending))


def end_call(machine: Machine, state: RunState, event: run.CallEnded, facts: Facts) -> Decision:
    """Keep the result of a call; the last one ends the round."""
    call = next((call for call in _calls(state) if call["id"] == event.id), None)
    if call is None or call["status"] == "done":
        raise _illegal(state, "callended", "name a call that is not done")
    if call["status"] == "ready" and call["name"] not in _repeatable(machine, state):
        raise _illegal(state, "callended", "save the call's intent first, then perform it")
    return _with_result(machine, state, event.id, event.result, facts)


def lose_calls(machine: Machine, state: RunState, event: run.Lost, facts: Facts) -> Decision:
    """Mark the outcome of the started calls as unknown; a person is asked about them one by one."""
    if not any(call["status"] == "started" for call in _calls(state)):
        raise _illegal(state, "lost", "perform the calls that are ready: none has started")
    return Decision(state=_waiting_for_outcome(state, _calls(state)))


def answer_call(machine: Machine, state: RunState, event: run.Answered, facts: Facts) -> Decision:
    """Take the result of the lost call in question; any value is accepted."""
    lost = next(call["id"] for call in _calls(state) if call["status"] == "started")
    return _with_result(machine, state, lost, event.value, facts)


def rerun_calls(machine: Machine, state: RunState, event: run.Retried, facts: Facts) -> Decision:
    """Run all lost calls again. As with a lost task, giving their results must stay possible despite a limit."""
    refused = bounds.time_refusal(machine, state, facts)
    if refused is not None:
        raise RequestError(
            f"the lost tool calls of stage {state.tree.stage!r} cannot run again: {refused.message}; nothing changed",
            hint=f"{refused.hint} Or give the call's result with --answer.",
        )
    pending = [call | {"status": "ready"} if call["status"] == "started" else call for call in _calls(state)]
    return Decision(state=_calling(state, pending))


def call_again(machine: Machine, state: RunState, event: run.Retried, facts: Facts) -> Decision:
    """Perform calls that a limit refused, checked against the machine as it is now."""
    stage = _stage(machine, state)
    calls = [{name: call[name] for name in ("id", "name", "arguments")} for call in _calls(state)]
    tree = replace(state.tree, error=None, pending=_checked(machine, stage, calls))
    return _begin_round(machine, replace(state, tree=tree), facts)


def accept_calls(machine: Machine, state: RunState, event: run.Replaced, facts: Facts) -> Decision:
    """Accept a changed machine if it allows the calls that are not done, which the old one had checked."""
    for call in _calls(state):
        problem = None if call["status"] == "done" else agents.call_problem(machine, _stage(machine, state), call)
        if problem is not None:
            raise MachineChangedError(
                f"the run is at tool calls of stage {state.tree.stage!r} which the changed machine does not allow: "
                f"{problem[1]}; nothing changed",
                hint="keep the stage's tools until the calls are done, or start another run with --id",
            )
    return Decision(state=state)


def keep_undecided(machine: Machine, state: RunState, event: run.Replied, message: str, facts: Facts) -> Decision:
    """Keep a reply after a crash of the decider, and fail so that a retry continues with it. Raises :class:`ReplyError`
    for a reply that the stage cannot use."""
    agents.require_reply(event.content, event.tool_calls)
    kept = _with_reply(state, event)
    if not event.tool_calls:
        output = agents.output_of(_agent(machine, state), event.content)
        return handlers.keep_unsettled(machine, kept, output, message, facts)
    ready = [_entry(position, call) | {"status": "ready"} for position, call in enumerate(event.tool_calls)]
    kept = replace(kept, tree=replace(kept.tree, pending=ready))
    return routing.fail(machine, kept, handlers.internal(state, message), "calling", facts)


def _take(machine: Machine, state: RunState, reply: run.Replied, output: Json, facts: Facts) -> Decision:
    """Append a checked reply to the conversation and continue with its calls, or with the answer's ``output``."""
    state = _with_reply(state, reply)
    if not reply.tool_calls:
        return handlers.settle(machine, state, output, facts)
    return _begin_round(machine, _calling(state, _checked(machine, _stage(machine, state), reply.tool_calls)), facts)


def _with_reply(state: RunState, reply: run.Replied) -> RunState:
    conversation = [*state.tree.conversation, agents.assistant(reply.content, reply.tool_calls)]
    return replace(state, interrupts=[], tree=replace(state.tree, conversation=conversation, error=None, pending=[]))


def _checked(machine: Machine, stage: Stage, calls: list[Json]) -> list[Json]:
    """Return the calls of a reply for ``pending``: those that must not be performed have an error result."""
    pending = []
    for position, call in enumerate(calls):
        problem = agents.call_problem(machine, stage, call)
        status = {"status": "done", "result": agents.error_result(*problem)} if problem else {"status": "ready"}
        pending.append(_entry(position, call) | status)
    return pending


def _entry(position: int, call: dict[str, Json]) -> dict[str, Json]:
    return {"type": "tool", **call, "position": position}


def _begin_round(machine: Machine, state: RunState, facts: Facts) -> Decision:
    refused = bounds.calls_refusal(machine, state, facts)
    if refused is not None:
        return routing.fail(machine, state, refused, "calling", facts)
    return replace(_go_on(machine, state, _calls(state), facts), tool_rounds=1)


def _with_result(machine: Machine, state: RunState, identity: str, result: Json, facts: Facts) -> Decision:
    done = {"status": "done", "result": agents.kept_result(result)}
    pending = [call | done if call["id"] == identity else call for call in _calls(state)]
    if state.tree.phase == "unknown" and any(call["status"] == "started" for call in pending):
        return Decision(state=_waiting_for_outcome(state, pending))
    return _go_on(machine, state, pending, facts)


def _go_on(machine: Machine, state: RunState, pending: list[Json], facts: Facts) -> Decision:
    """Perform the rest of ``pending``; when all are done, call the model, unless a limit forbids it."""
    if any(call["status"] != "done" for call in pending):
        return Decision(state=_calling(state, pending))
    conversation = [*state.tree.conversation, *map(agents.result_message, pending)]
    tree = replace(
        state.tree, conversation=conversation, pending=[], attempt=1, first_attempt=1, resume="ready", error=None
    )
    state, stage = replace(state, tree=tree), _stage(machine, state)
    refused = bounds.dispatch_refusal(machine, state, stage.name, facts)
    if refused is not None:
        return routing.fail(machine, state, refused, "ready", facts)
    return Decision(state=routing.to_perform(stage, state, facts))


def _calling(state: RunState, pending: list[Json]) -> RunState:
    tree = replace(state.tree, phase="calling", resume="ready", pending=pending)
    return replace(state, status="running", tree=tree, interrupts=[])


def _waiting_for_outcome(state: RunState, pending: list[Json]) -> RunState:
    lost = next(call for call in pending if call["status"] == "started")
    interrupt = {"kind": "unknown_outcome", "stage": state.tree.stage, "call": lost["id"], "tool": lost["name"]}
    tree = replace(state.tree, phase="unknown", pending=pending)
    return replace(state, status="waiting", tree=tree, interrupts=[interrupt])


def _calls(state: RunState) -> list[Json]:
    return state.tree.pending


def _repeatable(machine: Machine, state: RunState) -> Iterable[str]:
    return {tool.name for tool in agents.offered(machine, _stage(machine, state)) if tool.repeatable}


def _stage(machine: Machine, state: RunState) -> Stage:
    return machine.stages[state.tree.stage]


def _agent(machine: Machine, state: RunState) -> Agent:
    agent = _stage(machine, state).agent
    return agent if agent is not None else Agent(prompt="")


def _illegal(state: RunState, name: str, hint: str) -> IllegalEventError:
    return IllegalEventError(
        f"the event {name!r} is not legal for these calls at stage {state.tree.stage!r}; nothing changed", hint=hint
    )
