"""Conversations and pending effects of other writers: anything that would break the decider is reported."""

from __future__ import annotations

from typing import Any

import msgspec
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import StatelineError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.conversation import conversation_problem
from stateline.machine.decider.run import (
    Answered,
    CallEnded,
    CallsIntended,
    Facts,
    Instance,
    Lost,
    Replaced,
    Replied,
    Retried,
    RunState,
    Started,
)
from stateline.machine.spec import Agent, Machine, Stage, Tool, Toolset

USER = {"role": "user", "content": "Think."}
READY = {"type": "tool", "id": "1", "name": "look", "arguments": {}, "position": 0, "status": "ready"}
STARTED = READY | {"id": "2", "status": "started"}
DONE = READY | {"id": "3", "status": "done", "result": None}
TASK = {"type": "task", "stage": "a", "position": 0}


def state(phase: Any, pending: Any, conversation: Any = (USER,), resume: Any = "ready") -> RunState:
    tree = Instance(stage="think", phase=phase, resume=resume, pending=list(pending), conversation=list(conversation))
    return RunState(status="running", tree=tree)


SOUND = [
    state("ready", [TASK], []),
    state("ready", [{"type": "model", "stage": "think", "position": 0}]),
    state("waiting", []),
    state("unknown", [TASK], []),
    state("unknown", [{"type": "model", "stage": "think", "position": 0}]),
    state("unknown", [READY, STARTED, DONE]),
    state("calling", [READY, DONE]),
    state("calling", [READY | {"more": 1}]),
    state("failed", [DONE], resume="calling"),
    state("failed", []),
    state("done", [], [USER, {"role": "assistant", "content": "x"}]),
    state(
        "ready",
        [],
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "look", "arguments": {}}]},
            {"role": "tool", "tool_call_id": "1", "name": "look", "content": [None]},
        ],
    ),
]
UNSOUND = [
    state("calling", []),
    state("calling", [DONE]),
    state("calling", [READY], []),
    state("calling", [TASK]),
    state("calling", ["x"]),
    state("calling", [READY, READY]),
    state("calling", [READY | {"result": 1}]),
    state("calling", [READY | {"status": "done"}]),
    state("calling", [READY | {"status": "lost"}]),
    state("calling", [READY | {"arguments": []}]),
    state("calling", [READY | {"id": 1}]),
    state("unknown", [READY, DONE]),
    state("unknown", [READY], []),
    state("failed", [], resume="calling"),
    state("ready", [READY]),
    state("ready", ["x"]),
    state("ready", [{}]),
    state("waiting", [], ["x"]),
    state("waiting", [], [{"role": "system", "content": "x"}]),
    state("waiting", [], [{"role": "user", "content": None}]),
    state("waiting", [], [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]),
    state("waiting", [], [{"role": "tool", "name": "look", "content": 1}]),
]


def test_states_that_the_decider_writes_are_accepted() -> None:
    def one_case(number: int) -> None:
        assert conversation_problem(SOUND[number]) == ""

    for_each(one_case, [(case,) for case in range(len(SOUND))])


def test_states_that_the_decider_never_writes_are_reported() -> None:
    def one_case(number: int) -> None:
        assert conversation_problem(UNSOUND[number])

    for_each(one_case, [(case,) for case in range(len(UNSOUND))])


MACHINE = Machine(
    name="m",
    start="think",
    order=["think"],
    stages={
        "think": Stage(name="think", kind="agent", agent=Agent(prompt="Think.", tools=["look"]), repeatable=True),
    },
    toolset=Toolset(
        sha256="0" * 64, tools={"look": Tool(name="look", description="", schema={"type": "object"}, argv=["x"])}
    ),
)
JUNK = st.recursive(
    st.sampled_from([None, 1, "1", "look", "tool", "ready", "started", "done", {}, USER, READY, STARTED, DONE, TASK]),
    lambda part: (
        st.lists(part, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "id", "name", "arguments", "status", "result", "role"]), part, max_size=5
        )
    ),
    max_leaves=5,
)
EVENTS = [
    Started(),
    Replied(content="x"),
    Replied(content="", tool_calls=[{"id": "1", "name": "look", "arguments": {}}]),
    CallsIntended(ids=["1"]),
    CallEnded(id="2", result=1),
    Lost(),
    Answered(value=1),
    Answered(value={"content": "x"}),
    Retried(),
    Replaced(),
]


@given(
    phase=st.sampled_from(["ready", "started", "calling", "waiting", "unknown", "failed", "done", "cancelled"]),
    resume=st.sampled_from(["ready", "calling", "settling", "routing"]),
    pending=st.lists(JUNK, max_size=3),
    conversation=st.lists(JUNK | st.just(USER), max_size=2),
    event=st.sampled_from(EVENTS),
)
def test_the_decider_handles_every_accepted_state(
    phase: Any, resume: Any, pending: Any, conversation: Any, event: Any
) -> None:
    found = state(phase, pending, conversation, resume)
    if conversation_problem(found):
        return
    try:
        after = advance(MACHINE, found, event, Facts(manual=False)).state
    except StatelineError:
        return
    assert conversation_problem(after) == ""
    assert conversation_problem(msgspec.json.decode(msgspec.json.encode(after), type=RunState)) == ""
