"""The tool calls of a reply: what is performed, what is refused, what is kept, and what the limits and operators do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from each_case import for_each
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.errors import IllegalEventError, MachineChangedError, RequestError
from stateline.machine.decider import agents
from stateline.machine.decider.advance import advance, place_of
from stateline.machine.decider.rounds import keep_undecided
from stateline.machine.decider.run import (
    Answered,
    CallEnded,
    CallsIntended,
    Event,
    Facts,
    Lost,
    Replaced,
    Replied,
    Retried,
    RunState,
    Started,
)
from stateline.machine.spec import Agent, Bounds, Json, Machine, Retry, Stage, Tool, Toolset

MODEL = Facts(manual=False)


def toolset(*repeatable: str) -> Toolset:
    schema: dict[str, Json] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = {
        name: Tool(name=name, description="", schema=schema, argv=["x"], repeatable=name in repeatable)
        for name in ("look", "push", "hidden")
    }
    return Toolset(sha256="0" * 64, tools=tools)


THINK = Stage(
    name="think",
    kind="agent",
    agent=Agent(prompt="Think.", tools=["look", "push"]),
    repeatable=True,
    retry=Retry(max_attempts=2),
)
RESCUE = Stage(name="rescue", kind="task", argv=["x"], repeatable=True)


def machine(**fields: Any) -> Machine:
    think = replace(THINK, **{key: fields.pop(key) for key in ("error_next", "agent") if key in fields})
    fields.setdefault("toolset", toolset("look"))
    return Machine(
        name="m", start="think", order=["think", "rescue"], stages={"think": think, "rescue": RESCUE}, **fields
    )


def calls(*names: str, **arguments: Json) -> list[Json]:
    return [{"id": f"c{i}", "name": name, "arguments": arguments} for i, name in enumerate(names)]


def asks(*names: str, **arguments: Json) -> Replied:
    return Replied(content="I look.", tool_calls=calls(*names, **arguments))


def go(spec: Machine, state: RunState, *events: Event, facts: Facts = MODEL) -> RunState:
    for event in events:
        state = advance(spec, state, event, facts).state
    return state


def play(spec: Machine, *events: Event, facts: Facts = MODEL) -> RunState:
    return go(spec, advance(spec, None, Started(), facts).state, *events, facts=facts)


def image(state: RunState) -> bytes:
    return canonical.encode(msgspec.json.decode(msgspec.json.encode(state)))


def statuses(state: RunState) -> list[str]:
    return [call["status"] for call in state.tree.pending]


def ended(number: int, result: Json = "fine") -> CallEnded:
    return CallEnded(id=f"c{number}", result=result)


def intended(*numbers: int) -> CallsIntended:
    return CallsIntended(ids=[f"c{number}" for number in numbers])


# The round


def test_a_reply_with_calls_is_kept_and_its_calls_are_pending_in_its_order() -> None:
    decision = advance(machine(), play(machine()), asks("push", "look", n=1), MODEL)
    state = decision.state
    assert (state.status, state.tree.phase, state.interrupts) == ("running", "calling", [])
    assert state.tree.conversation[1:] == [
        {"role": "assistant", "content": "I look.", "tool_calls": calls("push", "look", n=1)}
    ]
    assert state.tree.pending == [
        {"type": "tool", "id": "c0", "name": "push", "arguments": {"n": 1}, "position": 0, "status": "ready"},
        {"type": "tool", "id": "c1", "name": "look", "arguments": {"n": 1}, "position": 1, "status": "ready"},
    ]
    assert (decision.transitions, decision.tool_rounds, state.outputs) == ((), 1, {})


def test_when_all_calls_are_done_their_messages_follow_in_the_order_asked_and_the_model_is_asked_again() -> None:
    state = play(machine(), asks("look", "push", "look"), ended(2, [3]), intended(1), ended(1, None), ended(0, "text"))
    assert state.tree.conversation[2:] == [
        {"role": "tool", "tool_call_id": "c0", "name": "look", "content": "text"},
        {"role": "tool", "tool_call_id": "c1", "name": "push", "content": None},
        {"role": "tool", "tool_call_id": "c2", "name": "look", "content": [3]},
    ]
    tree = state.tree
    assert (state.status, tree.phase, tree.attempt, tree.first_attempt) == ("running", "ready", 1, 1)
    assert tree.pending == [{"type": "model", "stage": "think", "position": 0}]


def test_the_next_round_waits_without_a_model() -> None:
    state = play(machine(), asks("look"))
    state = advance(machine(), state, ended(0), Facts(manual=True)).state
    assert (state.status, state.tree.phase, state.tree.pending) == ("waiting", "waiting", [])
    assert state.interrupts == [{"kind": "llm_request", "stage": "think"}]


def test_each_round_has_a_separate_retry_budget() -> None:
    empty = Replied(content="")
    state = play(machine(), empty, asks("look"), ended(0), empty)
    assert (state.tree.phase, state.tree.attempt) == ("ready", 2)
    assert advance(machine(), state, empty, MODEL).state.tree.phase == "failed"


def test_a_kept_reply_forgets_the_failure_of_the_attempt_before() -> None:
    state = play(machine(), Replied(content=""))
    assert state.tree.error is not None
    assert go(machine(), state, asks("look")).tree.error is None


def test_ids_may_come_again_in_another_round() -> None:
    state = play(machine(), asks("look"), ended(0), asks("look"), ended(0, "again"))
    assert [message["content"] for message in state.tree.conversation] == [
        "Think.",
        *["I look.", "fine"],
        "I look.",
        "again",
    ]


def test_a_wrong_call_is_done_at_once_with_an_error_for_the_model() -> None:
    def one_case(name: str, arguments: Json, kind: str, words: str) -> None:
        wrong = {"id": "c1", "name": name, "arguments": arguments}
        state = play(machine(), Replied(content="", tool_calls=[*calls("look"), wrong]))
        assert statuses(state) == ["ready", "done"]
        error = state.tree.pending[1]["result"]["error"]
        assert error["kind"] == kind
        assert words in error["message"]
        assert len(error["message"]) < 200
        state = go(machine(), state, ended(0))
        assert state.tree.conversation[-1]["content"] == {"error": error}

    for_each(
        one_case,
        [
            ("nope", {}, "unknown_tool", "there is no tool 'nope'; the tools here are: look, push"),
            ("hidden", {}, "unknown_tool", "there is no tool 'hidden'"),
            ("n" * 500, {}, "unknown_tool", "n…'"),
            ("\x1b[2J", {}, "unknown_tool", r"'\x1b[2J'"),
            ("look", {"n": "x"}, "arguments", "the arguments do not fit the schema of the tool 'look': /n"),
        ],
    )


def test_a_reply_with_only_wrong_calls_is_a_round_and_the_model_gets_the_errors() -> None:
    decision = advance(machine(), play(machine()), asks("nope", "hidden"), MODEL)
    assert (decision.state.tree.phase, decision.tool_rounds) == ("ready", 1)
    assert [message["role"] for message in decision.state.tree.conversation] == ["user", "assistant", "tool", "tool"]


def test_an_agent_without_tools_has_none_to_call() -> None:
    spec = machine(agent=Agent(prompt="Think."))
    state = play(spec, asks("look"))
    assert "there are no tools here" in state.tree.conversation[-1]["content"]["error"]["message"]


def test_a_result_that_cannot_be_stored_becomes_an_error_and_the_run_continues() -> None:
    def one_case(result: Any) -> None:
        if result == "deep":
            result = []
            for _ in range(agents.RESULT_DEPTH):
                result = [result]
        state = play(machine(), asks("look"), ended(0, result))
        assert state.tree.conversation[-1]["content"]["error"]["kind"] == "output"
        image(state)
        if isinstance(result, list):
            state = play(machine(), asks("look"), ended(0, result[0]))
            assert state.tree.conversation[-1]["content"] == result[0]
            image(state)

    for_each(one_case, [(case,) for case in [float("nan"), 2**64, "\ud800", {1: 2}, "deep"]])


# Intents and lost calls


def test_a_call_that_is_not_repeatable_cannot_end_before_its_intent() -> None:
    state = play(machine(), asks("look", "push"))
    with pytest.raises(IllegalEventError, match="nothing changed") as caught:
        advance(machine(), state, ended(1), MODEL)
    assert "intent" in caught.value.hint
    assert statuses(go(machine(), state, intended(1), ended(1))) == ["ready", "done"]


def test_only_calls_that_are_ready_and_not_repeatable_can_be_intended_each_once() -> None:
    def one_case(ids: list[str]) -> None:
        state = play(machine(), asks("look", "push", "push", "nope"), intended(2))
        before = image(state)
        with pytest.raises(IllegalEventError, match=r"callsintended.*nothing changed"):
            advance(machine(), state, CallsIntended(ids=ids), MODEL)
        assert image(state) == before
        assert statuses(state) == ["ready", "ready", "started", "done"]

    for_each(one_case, [[], ["c0"], ["c1", "c1"], ["c1", "c0"], ["c9"], ["c2"], ["c3"]])


def test_a_call_that_is_done_or_unknown_cannot_end() -> None:
    def one_case(number: int) -> None:
        state = play(machine(), asks("look", "nope"))
        with pytest.raises(IllegalEventError, match=r"callended.*nothing changed"):
            advance(machine(), state, ended(number), MODEL)

    for_each(one_case, [1, 7])


def test_a_person_is_asked_about_lost_calls_one_after_the_other() -> None:
    state = play(machine(), asks("push", "look", "push", "push"), intended(0, 2), ended(1), Lost())
    assert (state.status, state.tree.phase) == ("waiting", "unknown")
    assert state.interrupts == [{"kind": "unknown_outcome", "stage": "think", "call": "c0", "tool": "push"}]
    state = go(machine(), state, Answered(value={"first": 1}))
    assert state.interrupts == [{"kind": "unknown_outcome", "stage": "think", "call": "c2", "tool": "push"}]
    assert statuses(state) == ["done", "done", "started", "ready"]
    state = go(machine(), state, Answered(value=None))
    assert (state.status, state.tree.phase, state.interrupts) == ("running", "calling", [])
    state = go(machine(), state, intended(3), ended(3, "third"))
    assert [message["content"] for message in state.tree.conversation[2:]] == [{"first": 1}, "fine", None, "third"]


def test_lost_calls_can_be_run_again_all_at_once_with_new_intents() -> None:
    state = play(machine(), asks("push", "push", "look"), intended(0, 1), ended(0), Lost(), Retried())
    assert (state.status, state.tree.phase, state.interrupts) == ("running", "calling", [])
    assert statuses(state) == ["done", "ready", "ready"]
    with pytest.raises(IllegalEventError):
        advance(machine(), state, ended(1), MODEL)


def test_a_loss_is_illegal_before_a_call_has_started() -> None:
    state = play(machine(), asks("look", "push"))
    with pytest.raises(IllegalEventError, match="nothing changed"):
        advance(machine(), state, Lost())


def test_a_limit_of_time_leaves_the_way_of_giving_a_lost_calls_result() -> None:
    spec = machine(bounds=Bounds(timeout=5.0))
    state = play(spec, asks("push"), intended(0), Lost())
    with pytest.raises(RequestError, match=r"timeout.*nothing changed") as caught:
        advance(spec, state, Retried(), Facts(active=6.0))
    assert "--answer" in caught.value.hint
    assert advance(spec, state, Answered(value=1), Facts(active=6.0)).state.tree.conversation[-1]["content"] == 1


# Limits


def test_max_tool_rounds_allows_that_many_and_refuses_the_next() -> None:
    def one_case(allowed: int) -> None:
        spec = machine(bounds=Bounds(max_tool_rounds=allowed))
        state, rounds = play(spec), 0
        for _ in range(allowed):
            decision = advance(spec, state, asks("look"), Facts(manual=False, tool_rounds=rounds))
            rounds += decision.tool_rounds
            state = go(spec, decision.state, ended(0))
        assert rounds == allowed
        decision = advance(spec, state, asks("look"), Facts(manual=False, tool_rounds=rounds))
        error = decision.state.tree.error
        assert error is not None
        assert (error.kind, error.bound, decision.tool_rounds) == ("limit", "max_tool_rounds", 0)
        answer = advance(spec, state, Replied(content="Yes."), Facts(tool_rounds=rounds)).state
        assert answer.status == "complete"

    for_each(one_case, [1, 2, 5])


def refused(spec: Machine) -> RunState:
    return play(spec, asks("look", "push", "nope"), facts=Facts(manual=False, tool_rounds=1))


def test_a_refused_round_keeps_the_reply_and_a_retry_after_a_raised_limit_performs_its_calls() -> None:
    spec = machine(bounds=Bounds(max_tool_rounds=1))
    state, facts = refused(spec), Facts(manual=False, tool_rounds=1)
    assert (state.status, state.tree.phase, state.tree.resume) == ("error", "failed", "calling")
    assert (len(state.tree.conversation), statuses(state)) == (2, ["ready", "ready", "done"])
    assert place_of(spec, state) == "failed, calling"
    assert advance(spec, state, Retried(), facts).state == state
    raised = machine(bounds=Bounds(max_tool_rounds=2))
    decision = advance(raised, go(raised, state, Replaced()), Retried(), facts)
    state = decision.state
    assert (state.status, state.tree.phase, state.tree.error, decision.tool_rounds) == ("running", "calling", None, 1)
    assert (len(state.tree.conversation), statuses(state)) == (2, ["ready", "ready", "done"])
    assert image(state) == image(play(machine(), asks("look", "push", "nope")))


def test_a_refused_round_takes_error_next() -> None:
    spec = machine(error_next="rescue", bounds=Bounds(max_tool_rounds=1))
    decision = advance(spec, play(spec), asks("look"), Facts(manual=False, tool_rounds=1))
    tree = decision.state.tree
    assert (tree.stage, tree.conversation, [step.reason for step in decision.transitions]) == ("rescue", [], ["limit"])
    assert tree.pending == [{"type": "task", "stage": "rescue", "position": 0}]
    assert decision.tool_rounds == 0


def test_after_a_refusal_the_machine_in_force_decides_which_calls_are_allowed() -> None:
    state = refused(machine(bounds=Bounds(max_tool_rounds=1)))
    changed = machine(agent=Agent(prompt="Think.", tools=["look"]))
    state = go(changed, state, Replaced(), Retried())
    assert statuses(state) == ["ready", "done", "done"]
    assert state.tree.pending[1]["result"]["error"]["kind"] == "unknown_tool"


def test_time_that_is_used_up_refuses_the_calls_of_a_reply() -> None:
    spec = machine(bounds=Bounds(timeout=5.0))
    state = play(spec, asks("look"), facts=Facts(active=6.0, manual=False))
    assert state.tree.error is not None
    assert (state.tree.error.bound, state.tree.resume) == ("timeout", "calling")


def test_a_meter_may_refuse_the_next_round_and_a_retry_asks_with_the_results_at_hand() -> None:
    def one_case(bounds: Bounds, facts: Facts, bound: str) -> None:
        spec = machine(bounds=bounds)
        state = advance(spec, play(spec, asks("look")), ended(0), facts).state
        assert state.tree.error is not None
        assert (state.tree.error.bound, state.tree.phase, state.tree.resume) == (bound, "failed", "ready")
        assert (state.tree.conversation[-1]["content"], state.tree.pending) == ("fine", [])
        assert advance(spec, state, Retried(), facts).state == state
        state = go(machine(), state, Replaced(), Retried())
        assert (state.tree.phase, state.tree.conversation[-1]["content"]) == ("ready", "fine")

    for_each(
        one_case,
        [
            (Bounds(max_llm_calls=2), Facts(llm_calls=2), "max_llm_calls"),
            (Bounds(max_tokens=100), Facts(tokens=100), "max_tokens"),
            (Bounds(timeout=5.0), Facts(active=5.5), "timeout"),
        ],
    )


# A changed machine


def test_a_machine_that_does_not_allow_a_call_under_way_is_refused() -> None:
    def one_case(lost: bool) -> None:
        state = play(machine(), asks("look", "push"), intended(1), ended(0), *([Lost()] if lost else []))
        before = image(state)
        for agent in (Agent(prompt="Think."), Agent(prompt="Think.", tools=["look"])):
            with pytest.raises(MachineChangedError, match=r"'push'.*nothing changed") as caught:
                advance(machine(agent=agent), state, Replaced())
            assert caught.value.hint
        assert image(state) == before
        only_push = machine(agent=Agent(prompt="Other.", tools=["push"]))
        assert advance(only_push, state, Replaced()).state == state

    for_each(one_case, [False, True])


def test_a_started_call_may_end_after_its_tool_became_repeatable() -> None:
    state = play(machine(), asks("push"), intended(0))
    assert go(machine(toolset=toolset("push")), state, Replaced(), ended(0)).tree.phase == "ready"


# When deciding itself broke


def test_a_reply_that_crashed_the_decider_is_kept_and_a_retry_continues_with_it() -> None:
    state = play(machine())
    reply = asks("look", "nope")
    kept = keep_undecided(machine(), state, reply, "MemoryError: ", MODEL).state
    assert kept.tree.error is not None
    assert (kept.tree.error.kind, kept.tree.resume, len(kept.tree.conversation)) == ("internal", "calling", 2)
    assert image(go(machine(), kept, Retried())) == image(go(machine(), state, reply))
    reply = Replied(content="Yes.")
    kept = keep_undecided(machine(), state, reply, "MemoryError: ", MODEL).state
    assert (kept.tree.resume, kept.outputs) == ("settling", {"think": "Yes."})
    assert image(go(machine(), kept, Retried())) == image(go(machine(), state, reply))


def test_a_malformed_reply_is_not_kept() -> None:
    with pytest.raises(agents.ReplyError, match="empty"):
        keep_undecided(machine(), play(machine()), Replied(content=""), "MemoryError: ", MODEL)
