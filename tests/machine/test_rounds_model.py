"""Random agents and random events, against a second interpreter that shares no code with the first.

The oracle below knows one agent stage. It keeps messages as short words, tool calls in a dict, and counts retries
down instead of up: written to be obvious, so that a disagreement is a finding.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.bundle import canonical
from stateline.errors import IllegalEventError, InvalidAnswerError, RequestError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.conversation import conversation_problem
from stateline.machine.decider.run import (
    Answered,
    Asked,
    CallEnded,
    CallsIntended,
    Event,
    Facts,
    Failed,
    Intended,
    Lost,
    Replaced,
    Replied,
    Retried,
    RunState,
    Started,
    Unsent,
)
from stateline.machine.spec import Agent, Bounds, Json, Machine, Retry, Stage, Tool, Toolset

TOKENS = 10
"""Usage of each model call."""


class Refused(Exception):
    """The oracle says that the event must be refused."""


class Oracle:
    """One agent, as a person with pencil and paper would follow it. A reply is a text, or a list of names of tools:
    `look` may be repeated, `push` may not, `nope` is not there, `wrong` is called with wrong arguments."""

    def __init__(self, spec: dict[str, Any], manual: bool) -> None:
        self.spec, self.manual = spec, manual
        self.made = self.rounds = 0
        self.reserved = False
        self.said: list[Any] = ["prompt"]
        self.asked: dict[str, list[Any]] = {}
        self.tries_left, self.attempt = spec["tries"], 1
        self.why = self.output = None
        self.ask_model()

    def happen(self, event: str, what: Any, manual: bool) -> None:
        self.manual = manual
        if event == "replace" and self.mode != "done":
            return
        method = getattr(self, f"{self.mode}_{event}", None)
        if method is None:
            raise Refused
        method(what)

    # the model

    def ready_ask(self, what: Any) -> None:
        self.mode = "waiting"

    def ready_intend(self, what: Any) -> None:
        if self.spec["max_llm_calls"] > 0:
            self.made += 1
            self.reserved = True
        self.mode = "started"

    waiting_intend = ready_intend

    def ready_reply(self, what: Any) -> None:
        if not self.spec["repeatable"]:
            raise Refused
        self.started_reply(what)

    waiting_reply = ready_reply

    def started_reply(self, what: Any) -> None:
        self.count()
        if self.is_bad(what):
            self.try_failed(self.is_bad(what))
        else:
            self.hear(what)

    def ready_fail(self, what: Any) -> None:
        if not self.spec["repeatable"]:
            raise Refused
        self.started_fail(what)

    waiting_fail = ready_fail

    def started_fail(self, what: Any) -> None:
        self.count()
        self.try_failed("timeout" if what == [] else "model")

    def started_lose(self, what: Any) -> None:
        if not self.spec["repeatable"]:
            self.mode = "lost"
            return
        self.reserved = False
        if self.used_up():
            self.break_down(self.used_up(), "failed_ready")
        else:
            self.ask_model()

    def started_unsend(self, what: Any) -> None:
        self.made -= self.reserved
        self.reserved = False
        self.mode = "ready"

    def waiting_answer(self, what: Any) -> None:
        if self.is_bad(what) or (isinstance(what, list) and {"nope", "wrong"} & set(what)):
            raise Refused
        self.count()
        self.hear(what)

    lost_answer = waiting_answer

    def lost_retry(self, what: Any) -> None:
        if self.used_up():
            raise Refused
        self.failed_ready_retry(what)

    def failed_ready_retry(self, what: Any) -> None:
        if self.used_up():
            self.break_down(self.used_up(), "failed_ready")
            return
        self.reserved = False
        self.tries_left = self.spec["tries"]
        self.attempt += 1
        self.ask_model()

    def count(self) -> None:
        self.made += not self.reserved
        self.reserved = False

    # tool calls

    def calling_intend_calls(self, what: Any) -> None:
        pushes = [number for number, (name, stands, _) in self.asked.items() if name == "push" and stands == "ready"]
        if not pushes:
            raise Refused
        for number in pushes[: 1 + len(what)]:
            self.asked[number][1] = "started"

    def calling_end_call(self, what: Any) -> None:
        for call in self.last_first() if len(what) % 2 else self.asked.values():
            if call[1] == "started" or (call[0] == "look" and call[1] == "ready"):
                call[1:] = ["done", "fine"]
                break
        else:
            raise Refused
        self.look_for_end()

    def calling_lose(self, what: Any) -> None:
        if "started" not in [stands for _, stands, _ in self.asked.values()]:
            raise Refused
        self.mode = "lost_call"

    def lost_call_answer(self, what: Any) -> None:
        first = next(call for call in self.asked.values() if call[1] == "started")
        first[1:] = ["done", "given"]
        if "started" not in [stands for _, stands, _ in self.asked.values()]:
            self.look_for_end()

    def lost_call_retry(self, what: Any) -> None:
        for call in self.asked.values():
            if call[1] == "started":
                call[1] = "ready"
        self.mode = "calling"

    def failed_calling_retry(self, what: Any) -> None:
        self.begin_calls()

    # what follows

    def last_first(self) -> list[list[Any]]:
        return list(self.asked.values())[::-1]

    def is_bad(self, what: Any) -> str:
        if what in ("", " "):
            return "reply"
        return "output" if self.spec["json"] and isinstance(what, str) and what != "7" else ""

    def hear(self, what: Any) -> None:
        self.said.append(what)
        if isinstance(what, str):
            self.output = 7 if self.spec["json"] else what
            self.mode = "done"
            return
        stands = {"nope": ["done", "unknown_tool"], "wrong": ["done", "arguments"]}
        self.asked = {
            str(number): [name, *stands.get(name, ["ready", None])] for number, name in enumerate(what, start=1)
        }
        self.begin_calls()

    def begin_calls(self) -> None:
        if 0 < self.spec["max_tool_rounds"] <= self.rounds:
            self.break_down("limit:max_tool_rounds", "failed_calling")
            return
        self.rounds += 1
        self.look_for_end()

    def look_for_end(self) -> None:
        self.mode = "calling"
        if all(stands == "done" for _, stands, _ in self.asked.values()):
            self.said += [("told", name, result) for name, _, result in self.asked.values()]
            self.asked = {}
            self.tries_left, self.attempt = self.spec["tries"], 1
            if self.used_up():
                self.break_down(self.used_up(), "failed_ready")
            else:
                self.ask_model()

    def try_failed(self, why: str) -> None:
        self.tries_left -= 1
        if self.tries_left < 1 or (why == "timeout" and not self.spec["repeatable"]):
            self.break_down(why, "failed_ready")
        elif self.used_up():
            self.break_down(self.used_up(), "failed_ready")
        else:
            self.attempt += 1
            self.ask_model()

    def used_up(self) -> str:
        if 0 < self.spec["max_llm_calls"] <= self.made:
            return "limit:max_llm_calls"
        return "limit:max_tokens" if 0 < self.spec["max_tokens"] <= self.made * TOKENS else ""

    def ask_model(self) -> None:
        self.mode = "waiting" if self.manual else "ready"

    def break_down(self, why: str, mode: str) -> None:
        self.mode, self.why = mode, why

    def picture(self) -> dict[str, Any]:
        lost = next((number for number, call in self.asked.items() if call[1] == "started"), None)
        interrupts = {"waiting": ["llm_request"], "lost": ["unknown_outcome"], "lost_call": [f"unknown_outcome:{lost}"]}
        running = self.mode in ("ready", "started", "calling")
        broken = self.mode.startswith("failed")
        return {
            "mode": self.mode,
            "status": "running" if running else "error" if broken else "complete" if self.mode == "done" else "waiting",
            "said": self.said,
            "asked": self.asked,
            "rounds": self.rounds,
            "attempt": self.attempt,
            "why": self.why if broken else None,
            "output": self.output,
            "interrupts": interrupts.get(self.mode, []),
        }


def picture(state: RunState, rounds: int) -> dict[str, Any]:
    tree = state.tree
    calls = [effect for effect in tree.pending if effect["type"] == "tool"]
    mode: str = {"unknown": "lost_call" if calls else "lost"}.get(tree.phase, tree.phase)
    error = tree.error if tree.phase == "failed" else None

    def word(result: Any) -> Any:
        return result["error"]["kind"] if isinstance(result, dict) else result

    def short(message: dict[str, Any]) -> Any:
        if message["role"] == "tool":
            return ("told", message["name"].partition(":")[0], word(message["content"]))
        return [call["name"] for call in message["tool_calls"]] if "tool_calls" in message else message["content"]

    return {
        "mode": f"failed_{tree.resume}" if error else mode,
        "status": state.status,
        "said": [short(message) for message in tree.conversation],
        "asked": {call["id"]: [call["name"], call["status"], word(call.get("result"))] for call in calls},
        "rounds": rounds,
        "attempt": tree.attempt,
        "why": error and (f"limit:{error.bound}" if error.kind == "limit" else error.kind),
        "output": state.outputs.get("think"),
        "interrupts": [found["kind"] + (f":{found['call']}" if "call" in found else "") for found in state.interrupts],
    }


def built(spec: dict[str, Any]) -> Machine:
    schema: dict[str, Json] = {"type": "object", "maxProperties": 0}
    tools = {
        name: Tool(name=name, description="", schema=schema, argv=["x"], repeatable=name == "look")
        for name in ("push", "look", "wrong", "nope")
    }
    agent = Agent(
        prompt="prompt", tools=["look", "push", "wrong"], output_schema={"type": "integer"} if spec["json"] else None
    )
    stage = Stage(
        name="think",
        kind="agent",
        agent=agent,
        repeatable=spec["repeatable"],
        retry=Retry(max_attempts=spec["tries"]),
    )
    bounds = {name: spec[name] for name in ("max_tool_rounds", "max_llm_calls", "max_tokens")}
    return Machine(
        name="random",
        start="think",
        order=["think"],
        stages={"think": stage},
        bounds=Bounds(**bounds),
        toolset=Toolset(sha256="0" * 64, tools=tools),
    )


SPECS = st.fixed_dictionaries(
    {
        "repeatable": st.sampled_from([True, True, False]),
        "tries": st.integers(1, 3),
        "json": st.booleans(),
        "max_tool_rounds": st.sampled_from([0, 0, 1, 2]),
        "max_llm_calls": st.sampled_from([0, 0, 1, 3]),
        "max_tokens": st.sampled_from([0, 0, 10, 25]),
    }
)
WHAT = st.one_of(
    st.sampled_from(["7", "x", "", " "]),
    st.lists(st.sampled_from(["look", "push", "look", "push", "nope", "wrong"]), min_size=1, max_size=4),
    st.just([]),
)
LIKELY = {
    "ready": ["intend", "reply", "reply", "fail", "ask"],
    "started": ["reply", "reply", "fail", "lose", "unsend"],
    "waiting": ["answer", "reply"],
    "lost": ["answer", "retry"],
    "calling": ["intend_calls", "end_call", "end_call", "end_call", "lose"],
    "lost_call": ["answer", "retry"],
    "failed_ready": ["retry"],
    "failed_calling": ["retry"],
    "done": ["ask"],
}
ALL = ["intend", "reply", "fail", "ask", "lose", "unsend", "answer", "retry", "intend_calls", "end_call", "replace"]


def said_of(what: Any) -> dict[str, Any]:
    if isinstance(what, str):
        return {"content": what, "tool_calls": []}
    calls = [
        {"id": str(number), "name": name, "arguments": {"x": 1} if name == "wrong" else {}}
        for number, name in enumerate(what, start=1)
    ]
    return {"content": "", "tool_calls": calls}


def event_of(name: str, what: Any, oracle: Oracle) -> Event:
    if name == "intend_calls":
        pushes = [number for number, (tool, stands, _) in oracle.asked.items() if tool == "push" and stands == "ready"]
        return CallsIntended(ids=pushes[: 1 + len(what)])
    if name == "end_call":
        numbers = list(oracle.asked)[::-1] if len(what) % 2 else list(oracle.asked)
        ends = [n for n in numbers if oracle.asked[n][1] == "started" or oracle.asked[n][:2] == ["look", "ready"]]
        return CallEnded(id=(ends or numbers or ["none"])[0], result="fine")
    if name == "answer":
        return Answered(value="given" if oracle.mode == "lost_call" else said_of(what))
    events: dict[str, Event] = {
        "intend": Intended(),
        "reply": Replied(**said_of(what)),
        "fail": Failed(kind="timeout" if what == [] else "model", message="no"),
        "ask": Asked(),
        "lose": Lost(),
        "unsend": Unsent(),
        "retry": Retried(),
        "replace": Replaced(),
    }
    return events[name]


def image(*values: Any) -> bytes:
    return canonical.encode(msgspec.json.decode(msgspec.json.encode(values)))


def require_invariants(before: RunState, after: RunState) -> None:
    """Check the invariants: messages are never removed, and every call has its result in order."""
    assert conversation_problem(after) == ""
    said = after.tree.conversation
    assert said[: len(before.tree.conversation)] == before.tree.conversation
    wanted: list[str] = []
    for message in said:
        if message["role"] == "tool":
            assert message["tool_call_id"] == wanted.pop(0)
        else:
            assert wanted == []
            wanted = [call["id"] for call in message.get("tool_calls", [])]
    calls = [effect["id"] for effect in after.tree.pending if effect["type"] == "tool"]
    assert calls == wanted
    # A failure is kept during its retry, and removed once a reply was kept.
    assert after.tree.error is None or (calls == [] and after.tree.phase != "done") or after.tree.phase == "failed"


@settings(max_examples=400)
@given(spec=SPECS, data=st.data())
def test_any_agent_under_any_events_does_what_the_oracle_does(spec: dict[str, Any], data: st.DataObject) -> None:
    manual = data.draw(st.booleans(), label="manual")
    machine, oracle = built(spec), Oracle(spec, manual)
    state, rounds = advance(machine, None, Started(), Facts(manual=manual)).state, 0
    for _ in range(data.draw(st.integers(1, 20), label="events")):
        name = data.draw(st.sampled_from(LIKELY[oracle.mode] * 4 + ALL), label="event")
        what, manual = data.draw(WHAT, label="what"), data.draw(st.sampled_from([False, False, True]), label="manual")
        if name in ("reply", "answer") and what == []:
            what = "x"
        event, previous, before = event_of(name, what, oracle), state, image(machine, state)
        mode, used = oracle.mode, name in ("reply", "fail") or (name == "answer" and oracle.mode != "lost_call")
        # A call counts when it is intended, or when it has ended.
        made = oracle.made + (used and not oracle.reserved)
        facts = Facts(llm_calls=made, tokens=made * TOKENS, tool_rounds=rounds, manual=manual)
        try:
            oracle.happen(name, what, manual)
            assert oracle.spec["max_llm_calls"] == 0 or oracle.made <= oracle.spec["max_llm_calls"]
        except Refused:
            with pytest.raises(RequestError, match=r"nothing changed|still waits") as caught:
                advance(machine, state, event, facts)
            refused = InvalidAnswerError if name == "answer" and mode in ("waiting", "lost") else RequestError
            assert isinstance(caught.value, IllegalEventError | refused)
        else:
            decision = advance(machine, state, event, facts)
            assert image(advance(machine, state, event, facts)) == image(decision)
            require_invariants(state, decision.state)
            state, rounds = decision.state, rounds + decision.tool_rounds
            assert (oracle.mode == "done") is bool(decision.transitions)
        assert image(machine, previous) == before
        assert picture(state, rounds) == oracle.picture()
        # What is kept is all there is: a run that was saved and loaded continues in the same way.
        state = msgspec.json.decode(image(state)[1:-1], type=RunState)
        if oracle.mode == "done":
            return


@settings(max_examples=150)
@given(
    names=st.lists(st.sampled_from(["look", "push", "nope"]), min_size=1, max_size=5).filter(
        lambda n: set(n) != {"nope"}
    ),
    data=st.data(),
)
def test_the_order_in_which_calls_end_leaves_no_trace(names: list[str], data: st.DataObject) -> None:
    machine = built({**dict.fromkeys(("max_tool_rounds", "max_llm_calls", "max_tokens"), 0), "json": False,
                     "repeatable": True, "tries": 1})  # fmt: skip
    facts = Facts(manual=False)
    begun = advance(machine, advance(machine, None, Started(), facts).state, Replied(**said_of(names)), facts).state
    performed = [call["id"] for call in begun.tree.pending if call["status"] == "ready"]
    pushes = [number for number in performed if names[int(number) - 1] == "push"]

    def ended(order: list[str], together: bool) -> RunState:
        state = begun
        if together and pushes:
            state = advance(machine, state, CallsIntended(ids=pushes), facts).state
        for number in order:
            if number in pushes and not together:
                state = advance(machine, state, CallsIntended(ids=[number]), facts).state
            state = advance(machine, state, CallEnded(id=number, result={"of": number}), facts).state
        return state

    order = data.draw(st.permutations(performed), label="order")
    assert image(ended(order, data.draw(st.booleans(), label="together"))) == image(ended(performed, True))
