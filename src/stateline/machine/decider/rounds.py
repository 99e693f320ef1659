"""What a model's reply does, and the tool calls in it: what the table of ``advance`` has for agent stages. Pure.

A round is one reply with its tool calls. Calls may end in any order: each result is kept in its own place, and the
messages are appended in the order in which the model asked, once all are there.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from stateline.errors import IllegalEventError, InvalidAnswerError, MachineChangedError, RequestError
from stateline.machine.decider import agents, bounds, handlers, routing
from stateline.machine.decider.agents import ReplyError
from stateline.machine.decider.run import (
    Answered,
    Asked,
    CallEnded,
    CallsIntended,
    Decision,
    Facts,
    Failed,
    Lost,
    Replaced,
    Replied,
    Retried,
    RunState,
)
from stateline.machine.spec import Agent, Json, Machine, Stage


def ask(machine: Machine, state: RunState, event: Asked, facts: Facts) -> Decision:
    """Wait for whoever stands in for the model, whatever ``facts`` say: there is none in this call."""
    waiting = routing.to_perform(_stage(machine, state), state, replace(facts, manual=True), state.tree.error)
    return Decision(state=waiting)


def reply(machine: Machine, state: RunState, event: Replied, facts: Facts) -> Decision:
    """Keep the reply, then perform its calls or go on with its answer. One that is not what the stage asks for is not
    kept, and is a failure like any other: asking again may mend it. A wrong call is told to the model instead."""
    try:
        agents.require_reply(event.content, event.tool_calls)
        output = None if event.tool_calls else agents.output_of(_agent(machine, state), event.content)
    except ReplyError as unfit:
        return handlers.fail(machine, state, Failed(kind=unfit.kind, message=unfit.message, hint=unfit.hint), facts)
    return _take(machine, state, event, output, facts)


def answer(machine: Machine, state: RunState, event: Answered, facts: Facts) -> Decision:
    """The reply of whoever stands in for the model. Nothing is kept of one that the stage cannot use: who gave it can
    give another, so that nothing is lost."""
    stage, value = _stage(machine, state), event.value
    try:
        if not isinstance(value, dict) or not {"content"} <= value.keys() <= {"content", "tool_calls"}:
            raise ReplyError(
                "reply", "the reply must be an object with `content`, and `tool_calls` if there are any", ""
            )
        content, calls = value["content"], value.get("tool_calls", [])
        agents.require_reply(content, calls)
        for call in calls:
            if problem := agents.call_problem(machine, stage, call):
                raise ReplyError(problem[0], problem[1], "")
        output = None if calls else agents.output_of(_agent(machine, state), content)
    except ReplyError as unfit:
        raise InvalidAnswerError(
            f"the answer does not fit what stage {stage.name!r} asks for: {unfit.message}; the run still waits",
            hint=unfit.hint or "answer in the model's stead with a text, or with calls of the tools that are offered",
        ) from None
    return _take(machine, state, Replied(content=content, tool_calls=calls), output, facts)


def intend_calls(machine: Machine, state: RunState, event: CallsIntended, facts: Facts) -> Decision:
    """Note that these calls are about to start. Each must be there, not have started, and not be repeatable."""
    wanted, repeatable = set(event.ids), _repeatable(machine, state)
    for call in _calls(state):
        if call["id"] in wanted and call["status"] == "ready" and call["name"] not in repeatable:
            wanted.discard(call["id"])
    if wanted or not event.ids or len(set(event.ids)) < len(event.ids):
        raise _illegal(state, "callsintended", "name calls that are ready and not repeatable, each once")
    pending = [call | {"status": "started"} if call["id"] in event.ids else call for call in _calls(state)]
    return Decision(state=_calling(state, pending))


def end_call(machine: Machine, state: RunState, event: CallEnded, facts: Facts) -> Decision:
    """Keep the result in the call's place; with the last one, the round is over."""
    call = next((call for call in _calls(state) if call["id"] == event.id), None)
    if call is None or call["status"] == "done":
        raise _illegal(state, "callended", "name a call that is not done")
    if call["status"] == "ready" and call["name"] not in _repeatable(machine, state):
        raise _illegal(state, "callended", "save the call's intent first, then perform it")
    return _resulted(machine, state, event.id, event.result, facts)


def lose_calls(machine: Machine, state: RunState, event: Lost, facts: Facts) -> Decision:
    """What became of the started calls is unknown; a person is asked about one after the other."""
    if not any(call["status"] == "started" for call in _calls(state)):
        raise _illegal(state, "lost", "perform the calls that are ready: none has started")
    return Decision(state=_doubtful(state, _calls(state)))


def answer_call(machine: Machine, state: RunState, event: Answered, facts: Facts) -> Decision:
    """The result of the lost call that is asked about; any value is one."""
    lost = next(call["id"] for call in _calls(state) if call["status"] == "started")
    return _resulted(machine, state, lost, event.value, facts)


def rerun_calls(machine: Machine, state: RunState, event: Retried, facts: Facts) -> Decision:
    """Run all lost calls again. As with a lost task, a limit must not take away the way of giving their results."""
    refused = bounds.time_refusal(machine, state, facts)
    if refused is not None:
        raise RequestError(
            f"the lost tool calls of stage {state.tree.stage!r} cannot run again: {refused.message}; nothing changed",
            hint=f"{refused.hint} Or give the call's result with --input.",
        )
    pending = [call | {"status": "ready"} if call["status"] == "started" else call for call in _calls(state)]
    return Decision(state=_calling(state, pending))


def call_again(machine: Machine, state: RunState, event: Retried, facts: Facts) -> Decision:
    """Perform the calls of a reply that was kept when a limit refused them, as the machine allows them now."""
    stage = _stage(machine, state)
    calls = [{name: call[name] for name in ("id", "name", "arguments")} for call in _calls(state)]
    tree = replace(state.tree, error=None, pending=_checked(machine, stage, calls))
    return _begin_round(machine, replace(state, tree=tree), facts)


def accept_calls(machine: Machine, state: RunState, event: Replaced, facts: Facts) -> Decision:
    """Go on with a changed machine, if it allows the calls that are not done: they were checked by the old one."""
    for call in _calls(state):
        problem = None if call["status"] == "done" else agents.call_problem(machine, _stage(machine, state), call)
        if problem is not None:
            raise MachineChangedError(
                f"the run stands at tool calls of stage {state.tree.stage!r} which the changed machine does not allow: "
                f"{problem[1]}; nothing changed",
                hint="keep the stage's tools until the calls are done, or start another run with --id",
            )
    return Decision(state=state)


def keep_undecided(machine: Machine, state: RunState, event: Replied, message: str, facts: Facts) -> Decision:
    """For the engine, when deciding on a reply itself broke: keep it, and fail so that a retry only goes on with it.
    Raises :class:`ReplyError` for what is no such reply."""
    agents.require_reply(event.content, event.tool_calls)
    kept = _with_reply(state, event)
    if not event.tool_calls:
        output = agents.output_of(_agent(machine, state), event.content)
        return handlers.keep_unsettled(machine, kept, output, message, facts)
    ready = [_entry(position, call) | {"status": "ready"} for position, call in enumerate(event.tool_calls)]
    kept = replace(kept, tree=replace(kept.tree, pending=ready))
    return routing.fail(machine, kept, handlers.internal(state, message), "calling", facts)


def _take(machine: Machine, state: RunState, said: Replied, output: Json, facts: Facts) -> Decision:
    """Append a checked reply to the conversation and go on: with its calls, or with the answer's ``output``."""
    state = _with_reply(state, said)
    if not said.tool_calls:
        return handlers.settle(machine, state, output, facts)
    return _begin_round(machine, _calling(state, _checked(machine, _stage(machine, state), said.tool_calls)), facts)


def _with_reply(state: RunState, said: Replied) -> RunState:
    conversation = [*state.tree.conversation, agents.assistant(said.content, said.tool_calls)]
    return replace(state, interrupts=[], tree=replace(state.tree, conversation=conversation, error=None, pending=[]))


def _checked(machine: Machine, stage: Stage, calls: list[Json]) -> list[Json]:
    """The calls of a reply as they stand in ``pending``: those that must not be performed have their result at once."""
    pending = []
    for position, call in enumerate(calls):
        problem = agents.call_problem(machine, stage, call)
        told = {"status": "done", "result": agents.error_result(*problem)} if problem else {"status": "ready"}
        pending.append(_entry(position, call) | told)
    return pending


def _entry(position: int, call: dict[str, Json]) -> dict[str, Json]:
    return {"type": "tool", **call, "position": position}


def _begin_round(machine: Machine, state: RunState, facts: Facts) -> Decision:
    refused = bounds.calls_refusal(machine, state, facts)
    if refused is not None:
        return routing.fail(machine, state, refused, "calling", facts)
    return replace(_go_on(machine, state, _calls(state), facts), tool_rounds=1)


def _resulted(machine: Machine, state: RunState, identity: str, result: Json, facts: Facts) -> Decision:
    done = {"status": "done", "result": agents.kept_result(result)}
    pending = [call | done if call["id"] == identity else call for call in _calls(state)]
    if state.tree.phase == "unknown" and any(call["status"] == "started" for call in pending):
        return Decision(state=_doubtful(state, pending))
    return _go_on(machine, state, pending, facts)


def _go_on(machine: Machine, state: RunState, pending: list[Json], facts: Facts) -> Decision:
    """Perform what is left of ``pending``; when all is done, tell the model, if a limit does not forbid it."""
    if any(call["status"] != "done" for call in pending):
        return Decision(state=_calling(state, pending))
    told = [*state.tree.conversation, *map(agents.result_message, pending)]
    tree = replace(state.tree, conversation=told, pending=[], attempt=1, first_attempt=1, resume="ready", error=None)
    state, stage = replace(state, tree=tree), _stage(machine, state)
    refused = bounds.dispatch_refusal(machine, state, stage.name, facts)
    if refused is not None:
        return routing.fail(machine, state, refused, "ready", facts)
    return Decision(state=routing.to_perform(stage, state, facts))


def _calling(state: RunState, pending: list[Json]) -> RunState:
    tree = replace(state.tree, phase="calling", resume="ready", pending=pending)
    return replace(state, status="running", tree=tree, interrupts=[])


def _doubtful(state: RunState, pending: list[Json]) -> RunState:
    lost = next(call for call in pending if call["status"] == "started")
    doubt = {"kind": "unknown_outcome", "stage": state.tree.stage, "call": lost["id"], "tool": lost["name"]}
    tree = replace(state.tree, phase="unknown", pending=pending)
    return replace(state, status="waiting", tree=tree, interrupts=[doubt])


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
