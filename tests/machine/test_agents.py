"""Agent stages: prompts, messages, and the replies that they accept and refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from each_case import for_each
from machine import building
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.errors import IllegalEventError, InvalidAnswerError, MachineChangedError
from stateline.machine.decider import agents
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import (
    Answered,
    Asked,
    Event,
    Facts,
    Failed,
    Failure,
    Intended,
    Lost,
    Replaced,
    Replied,
    Retried,
    RunState,
    Started,
    Succeeded,
)
from stateline.machine.spec import Agent, Bounds, Json, Machine, Retry, Route, Stage, Tool, Toolset

MODEL = Facts(manual=False)
NOBODY = Facts(manual=True)
TOOLS = Toolset(
    sha256="0" * 64,
    tools={
        name: Tool(name=name, description="", schema={"type": "object", "maxProperties": 1}, argv=["x"])
        for name in ("find", "hide", "seek")
    },
)


def agent(name: str = "think", prompt: str = "Think.", **fields: Any) -> Stage:
    part = {key: fields.pop(key) for key in ("tools", "output_schema", "model") if key in fields}
    fields.setdefault("repeatable", True)
    return Stage(name=name, kind="agent", agent=Agent(prompt=prompt, **part), **fields)


def machine(*stages: Stage, **fields: Any) -> Machine:
    return building.machine(*stages, **{"toolset": TOOLS, **fields})


def play(spec: Machine, *events: Event, facts: Facts = MODEL, **start: Any) -> RunState:
    state = advance(spec, None, Started(**start), facts).state
    for event in events:
        state = advance(spec, state, event, facts).state
    return state


def error_of(state: RunState) -> Failure:
    assert (state.status, state.tree.phase) == ("error", "failed")
    assert state.tree.error is not None
    return state.tree.error


def image(state: RunState) -> bytes:
    return canonical.encode(msgspec.json.decode(msgspec.json.encode(state)))


USER: Json = {"role": "user", "content": "Think."}
TASK = Stage(name="work", kind="task", argv=["x"], repeatable=True)


# Entering


def test_an_agent_is_ready_with_its_prompt_as_the_first_message() -> None:
    state = play(machine(agent(prompt="Rank {{ input.n }}, {{ visits.think }}.")), input={"n": [1, 2]})
    assert (state.status, state.tree.phase, state.interrupts) == ("running", "ready", [])
    assert state.tree.conversation == [{"role": "user", "content": "Rank [1,2], 1."}]
    assert state.tree.pending == [{"type": "model", "stage": "think", "position": 0}]


def test_without_a_model_an_agent_waits_for_a_caller() -> None:
    state = play(machine(agent()), facts=NOBODY)
    assert (state.status, state.tree.phase, state.tree.pending) == ("waiting", "waiting", [])
    assert state.interrupts == [{"kind": "llm_request", "stage": "think"}]
    assert image(state) == image(play(machine(agent()), Asked()))


def test_a_prompt_sees_the_context_and_the_failure_that_led_to_it() -> None:
    spec = machine(replace(TASK, error_next="think"), agent(prompt="{{ context.settings.t }} {{ error.message }}"))
    facts = Facts(manual=False, context={"settings": {"t": 1}})
    state = play(spec, Failed(kind="exit", message="exit code 3"), facts=facts)
    assert state.tree.conversation == [{"role": "user", "content": "1 exit code 3"}]


def test_a_prompt_that_cannot_be_rendered_fails_the_stage_and_a_retry_renders_again() -> None:
    def one_case(prompt: str, words: str) -> None:
        spec = machine(agent(prompt=prompt))
        state = play(spec, input={"empty": " "})
        failure = error_of(state)
        assert (failure.kind, failure.stage, state.tree.resume) == ("prompt", "think", "ready")
        assert re.search(words, failure.message)
        assert (state.tree.conversation, state.tree.pending, state.visits) == ([], [], {"think": 1})
        assert advance(spec, state, Retried(), MODEL).state == state
        corrected = machine(agent())
        state = advance(corrected, advance(corrected, state, Replaced()).state, Retried(), MODEL).state
        assert (state.tree.phase, state.tree.attempt, state.tree.error) == ("ready", 1, None)
        assert state.tree.conversation == [USER]

    for_each(
        one_case,
        [
            ("{{ input.missing }}", "cannot be rendered.*missing"),
            ("{{ input.empty }}", "is empty"),
            ("{{", "not closed"),
        ],
    )


def test_a_prompt_that_cannot_be_rendered_takes_error_next_in_the_same_event() -> None:
    spec = machine(
        replace(TASK, default_next="think"),
        agent(prompt="{{ input.x }}", error_next="ask"),
        Stage(name="ask", kind="human"),
    )
    decision = advance(spec, play(spec), Succeeded(output=1), MODEL)
    assert [(step.source, step.target, step.reason) for step in decision.transitions] == [
        ("work", "think", "default"),
        ("think", "ask", "error"),
    ]
    state = decision.state
    assert (state.tree.stage, state.tree.phase, state.visits) == ("ask", "waiting", {"work": 1, "think": 1, "ask": 1})
    assert state.edges == {"work": {"think": 1}, "think": {"ask": 1}}
    assert state.tree.cause is not None
    assert (state.tree.cause.kind, state.tree.cause.stage) == ("prompt", "think")


def test_prompts_that_fail_in_a_circle_end_the_event_and_the_run_can_be_resumed() -> None:
    def one_case(ways: tuple[str, ...]) -> None:
        names = ["a", "b", "c"][: len(ways)]
        stages = [agent(name, "{{ input.x }}", error_next=way) for name, way in zip(names, ways, strict=True)]
        decision = advance(machine(*stages), None, Started(), MODEL)
        assert error_of(decision.state).kind == "prompt"
        assert [step.target for step in decision.transitions] == names
        assert decision.state.visits == dict.fromkeys(names, 1)

    for_each(one_case, [(case,) for case in [("a",), ("b", "a"), ("b", "c", "b")]])


def test_a_thousand_agents_whose_prompts_fail_are_gone_through_without_recursion() -> None:
    stages = [agent(f"s{i}", "{{ input.x }}", error_next=f"s{i + 1}") for i in range(1000)]
    decision = advance(machine(*stages, Stage(name="s1000", kind="end")), None, Started(), MODEL)
    assert decision.state.status == "complete"
    assert [step.reason for step in decision.transitions] == ["start", *["error"] * 1000, "complete"]


def test_a_limit_may_refuse_the_way_out_of_a_prompt_that_cannot_be_rendered() -> None:
    spec = machine(agent(prompt="{{ input.x }}", error_next="work"), TASK, bounds=Bounds(timeout=1.0))
    state = advance(spec, None, Started(), Facts(active=2.0, manual=False)).state
    failure = error_of(state)
    assert (failure.kind, failure.bound, state.tree.resume) == ("limit", "timeout", "ready")
    assert "cannot be rendered" in failure.message


def test_a_prompt_without_braces_loads_no_cel() -> None:
    code = (
        "import sys; from stateline.machine.decider.advance import advance;"
        "from stateline.machine.decider.run import *;"
        "from stateline.machine.spec import *;"
        "stage = Stage(name='a', kind='agent', agent=Agent(prompt='Think.'), repeatable=True);"
        "spec = Machine(name='m', start='a', order=['a'], stages={'a': stage});"
        "state = advance(spec, None, Started(), Facts(manual=False)).state;"
        "state = advance(spec, state, Replied(content='Yes.'), Facts()).state;"
        "print(state.outputs, {'cel_expr_python', 'jsonschema_rs', 'stateline.machine.expressions.cel'}"
        " & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "{'a': 'Yes.'} set()\n"


# Answers


def test_a_text_is_the_output_and_the_run_continues() -> None:
    spec = machine(agent(set={"said": "output"}, default_next="work"), TASK)
    decision = advance(spec, play(spec), Replied(content=" Yes.\n"), MODEL)
    state = decision.state
    assert (state.outputs, state.state, state.tree.stage) == ({"think": " Yes.\n"}, {"said": " Yes.\n"}, "work")
    assert [step.reason for step in decision.transitions] == ["default"]
    assert decision.tool_rounds == 0


def test_leaving_an_agent_empties_the_conversation_and_completing_at_it_keeps_it() -> None:
    leaves = machine(agent(default_next="work"), TASK)
    ends = machine(agent(default_next="fin"), Stage(name="fin", kind="end"))
    stays = machine(agent())
    reply = Replied(content="Yes.")
    assert play(leaves, reply).tree.conversation == []
    assert play(ends, reply).tree.conversation == []
    state = play(stays, reply)
    assert (state.status, state.tree.phase, state.tree.pending) == ("complete", "done", [])
    assert state.tree.conversation == [USER, {"role": "assistant", "content": "Yes."}]


def test_coming_back_to_an_agent_begins_another_conversation() -> None:
    spec = machine(agent(prompt="{{ visits.think }}", routes=[Route(when="visits.think < 3", to="think")]))
    state = play(spec, Replied(content="x"), Replied(content="y"))
    assert state.tree.conversation == [{"role": "user", "content": "3"}]


def test_with_an_output_schema_the_output_is_the_json_in_the_text() -> None:
    def one_case(schema: Json, content: str, output: Json) -> None:
        state = play(machine(agent(output_schema=schema)), Replied(content=content))
        assert state.outputs == {"think": output}
        assert state.tree.conversation[-1]["content"] == content

    for_each(
        one_case,
        [
            ({"type": "object"}, ' {"a": 1.0}\n', {"a": 1.0}),
            ({"type": "integer"}, "7", 7),
            (True, "null", None),
            ({"type": "string"}, '"x"', "x"),
        ],
    )


BAD_OUTPUTS = ["x", "{}}", "NaN", '{"a": 1, "a": 2}', "7", "```json\n{}\n```", "[" * 200 + "]" * 200, '"\\ud800"']


def test_an_answer_that_breaks_the_output_schema_fails_and_is_not_kept() -> None:
    def one_case(content: str) -> None:
        state = play(machine(agent(output_schema={"type": "object"})), Replied(content=content))
        failure = error_of(state)
        assert (failure.kind, state.tree.resume) == ("output", "ready")
        assert "output_schema" in failure.message + failure.hint
        assert (state.tree.conversation, state.outputs) == ([USER], {})

    for_each(one_case, [(case,) for case in BAD_OUTPUTS])


CALL = {"id": "1", "name": "find", "arguments": {}}
BAD_REPLIES: list[tuple[Json, Json, str]] = [
    ("", [], "it is empty"),
    (" \n\t", [], "it is empty"),
    (None, [], "`content` must be text"),
    ("x", {}, "`tool_calls` a list"),
    ("x", ["find"], "tool call 0"),
    ("x", [CALL, {"id": "2", "name": "find"}], "tool call 1 must have exactly"),
    ("x", [CALL | {"more": 1}], "exactly"),
    ("x", [CALL | {"id": ""}], "the id not empty"),
    ("x", [CALL | {"id": 1}], "must be text"),
    ("x", [CALL | {"name": None}], "must be text"),
    ("x", [CALL | {"arguments": "{}"}], "must be an object"),
    ("x", [CALL, CALL | {"name": "hide"}], "the id of an earlier one"),
    ("\ud800", [], "cannot be stored"),
    ("x", [CALL | {"name": "\ud800"}], "cannot be stored"),
    ("x", [CALL | {"arguments": {"n": 2**64}}], "cannot be stored"),
    ("x", [CALL | {"arguments": {"n": float("nan")}}], "cannot be stored"),
]


def test_a_malformed_reply_fails_the_attempt_and_is_not_kept() -> None:
    def one_case(content: Json, calls: Json, words: str) -> None:
        state = play(machine(agent(tools=["find"])), Replied(content=content, tool_calls=calls))
        failure = error_of(state)
        assert (failure.kind, state.tree.conversation) == ("reply", [USER])
        assert words in failure.message
        image(state)

    for_each(one_case, BAD_REPLIES)


def test_arguments_may_nest_as_deep_as_a_run_can_keep() -> None:
    def nested(depth: int) -> Json:
        value: Json = {}
        for _ in range(depth - 1):
            value = {"a": value}
        return value

    spec = machine(agent(tools=["find"]))
    deepest = CALL | {"arguments": nested(agents.ARGUMENTS_DEPTH)}
    state = play(spec, Replied(content="", tool_calls=[deepest]))
    assert state.tree.phase == "calling"
    image(state)
    deeper = CALL | {"arguments": nested(agents.ARGUMENTS_DEPTH + 1)}
    assert error_of(play(spec, Replied(content="", tool_calls=[deeper]))).kind == "reply"


# Failures and retries


def test_a_failed_call_is_tried_again_in_the_same_conversation_while_the_budget_lasts() -> None:
    def one_case(failed: Event) -> None:
        spec = machine(agent(retry=Retry(max_attempts=2)))
        state = play(spec, failed)
        tree = state.tree
        assert (state.status, tree.phase, tree.attempt, tree.conversation) == ("running", "ready", 2, [USER])
        assert tree.error is not None
        state = advance(spec, state, failed, MODEL).state
        assert (state.tree.phase, state.tree.attempt, state.tree.conversation) == ("failed", 2, [USER])
        state = advance(spec, state, Retried(), MODEL).state
        assert (state.tree.phase, state.tree.attempt, state.tree.first_attempt) == ("ready", 3, 3)
        assert advance(spec, state, Replied(content="Yes."), MODEL).state.outputs == {"think": "Yes."}

    for_each(
        one_case,
        [
            (case,)
            for case in [
                Failed(kind="model", message="503"),
                Failed(kind="timeout", message="slow"),
                Replied(content=""),
            ]
        ],
    )


def test_a_failed_call_goes_to_error_next_with_its_cause() -> None:
    spec = machine(agent(error_next="work"), TASK)
    state = play(spec, Failed(kind="model", message="503"))
    assert (state.tree.stage, state.tree.conversation) == ("work", [])
    assert state.tree.cause is not None
    assert (state.tree.cause.kind, state.tree.cause.message) == ("model", "503")


def test_a_retry_without_a_model_waits() -> None:
    spec = machine(agent(retry=Retry(max_attempts=2)))
    state = advance(spec, play(spec), Failed(kind="model", message="no"), NOBODY).state
    assert (state.status, state.tree.phase, state.tree.attempt) == ("waiting", "waiting", 2)
    assert state.interrupts == [{"kind": "llm_request", "stage": "think"}]


def test_a_failed_set_keeps_the_answer_and_a_retry_calls_no_model() -> None:
    broken = machine(agent(set={"n": "output.n"}, output_schema=True))
    state = play(broken, Replied(content="{}"))
    assert (error_of(state).kind, state.tree.resume, state.outputs) == ("set", "settling", {"think": {}})
    assert len(state.tree.conversation) == 2
    corrected = machine(agent(output_schema=True))
    assert advance(corrected, state, Retried()).state.status == "complete"


def test_at_a_task_that_took_the_place_of_an_agent_a_retry_forgets_the_conversation() -> None:
    state = play(machine(agent()), Failed(kind="model", message="no"))
    changed = machine(replace(TASK, name="think"))
    state = advance(changed, advance(changed, state, Replaced()).state, Retried()).state
    assert (state.tree.phase, state.tree.conversation) == ("ready", [])
    assert state.tree.pending == [{"type": "task", "stage": "think", "position": 0}]
    assert advance(changed, state, Succeeded(output=1)).state.status == "complete"


def test_a_started_agent_cannot_become_another_kind_of_stage() -> None:
    def one_case(facts: Facts, kind: Any) -> None:
        state = play(machine(agent()), facts=facts)
        with pytest.raises(MachineChangedError, match=kind):
            advance(machine(Stage(name="think", kind=kind, argv=["x"])), state, Replaced())

    for_each(one_case, [(facts, kind) for facts in [MODEL, NOBODY] for kind in ["task", "human"]])


# Not repeatable


def test_the_intent_of_a_call_that_is_not_repeatable_is_saved_first_and_a_lost_one_waits() -> None:
    spec = machine(agent(repeatable=False))
    for event in (Replied(content="Yes."), Failed(kind="model", message="no")):
        with pytest.raises(IllegalEventError):
            advance(spec, play(spec), event, MODEL)
    assert play(spec, Intended(), Replied(content="Yes.")).outputs == {"think": "Yes."}
    state = play(spec, Intended(), Lost())
    assert (state.status, state.tree.phase) == ("waiting", "unknown")
    assert state.interrupts == [{"kind": "unknown_outcome", "stage": "think"}]
    assert advance(spec, state, Answered(value={"content": "Yes."})).state.outputs == {"think": "Yes."}
    state = advance(spec, state, Retried(), MODEL).state
    assert (state.tree.phase, state.tree.attempt, state.tree.conversation) == ("ready", 2, [USER])


def test_a_model_may_be_called_while_the_run_waits_and_not_without_intent_if_not_repeatable() -> None:
    assert play(machine(agent()), Asked(), Replied(content="Yes.")).outputs == {"think": "Yes."}
    spec = machine(agent(repeatable=False))
    state = play(spec, Asked())
    with pytest.raises(IllegalEventError):
        advance(spec, state, Replied(content="Yes."), MODEL)
    state = advance(spec, state, Intended(), MODEL).state
    assert (state.status, state.tree.phase, state.interrupts) == ("running", "started", [])
    assert state.tree.pending == [{"type": "model", "stage": "think", "position": 0}]


def test_a_timeout_of_a_call_that_is_not_repeatable_is_not_tried_again() -> None:
    spec = machine(agent(repeatable=False, retry=Retry(max_attempts=3)))
    assert play(spec, Intended(), Failed(kind="timeout", message="slow")).tree.phase == "failed"
    assert play(spec, Intended(), Failed(kind="model", message="503")).tree.phase == "ready"


# Whoever stands in


def test_a_callers_answer_ends_in_the_same_state_as_the_models() -> None:
    spec = machine(agent(tools=["find"], default_next="work"), TASK)
    call: Json = {"content": "Let me look.", "tool_calls": [CALL]}
    for value in ({"content": "Yes."}, {"content": "Yes.", "tool_calls": []}, call):
        replied = play(spec, Replied(content=value["content"], tool_calls=value.get("tool_calls", [])))
        assert image(play(spec, Answered(value=value), facts=NOBODY)) == image(replied)


BAD_ANSWERS: list[tuple[Json, str]] = [
    ("Yes.", "must be an object"),
    ({"tool_calls": []}, "`content`"),
    ({"content": "x", "finish": "stop"}, "`content`"),
    ({"content": "", "tool_calls": []}, "empty"),
    ({"content": "", "tool_calls": [CALL | {"name": "nope"}]}, "no tool 'nope'; the tools here are: find, hide"),
    ({"content": "", "tool_calls": [CALL | {"name": "seek"}]}, "no tool 'seek'"),
    ({"content": "", "tool_calls": [CALL | {"arguments": {"a": 1, "b": 2}}]}, "arguments do not fit.*'find'"),
    ({"content": "", "tool_calls": [CALL | {"arguments": None}]}, "must be an object"),
    ({"content": "Yes."}, "output_schema|JSON document"),
    ({"content": "[]"}, "does not fit output_schema"),
]


def test_an_answer_that_cannot_be_used_is_refused_and_the_run_still_waits() -> None:
    def one_case(value: Json, words: str, place: str) -> None:
        spec = machine(agent(tools=["find", "hide"], output_schema={"type": "object"}, repeatable=False))
        state = play(spec, *([Asked()] if place == "waiting" else [Intended(), Lost()]))
        before = image(state)
        with pytest.raises(InvalidAnswerError, match=words) as caught:
            advance(spec, state, Answered(value=value))
        assert "still waits" in caught.value.message
        assert caught.value.hint
        assert image(state) == before
        good = advance(spec, state, Answered(value={"content": "{}"})).state
        assert good.outputs == {"think": {}}

    for_each(one_case, [(value, words, place) for value, words in BAD_ANSWERS for place in ["waiting", "unknown"]])


# What is shown and sent


def test_messages_are_the_contexts_prompts_and_then_the_conversation() -> None:
    state = play(machine(agent()))
    prompts = {"system": "Be brief.", "developer": ["One.", "Two."]}
    assert agents.messages(state, Facts(context={"prompts": prompts, "settings": {}})) == [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "One."},
        {"role": "developer", "content": "Two."},
        USER,
    ]
    for system in ("", None):
        empty = Facts(context={"prompts": {"system": system, "developer": []}, "settings": {}})
        assert agents.messages(state, empty) == [USER]
    assert agents.messages(state, Facts()) == [USER]


def test_tools_are_offered_in_the_stages_order_and_none_by_default() -> None:
    spec = machine(agent("a", tools=["seek", "find"]), agent("b"), TASK)
    assert [tool.name for tool in agents.offered(spec, spec.stages["a"])] == ["seek", "find"]
    assert agents.offered(spec, spec.stages["b"]) == []
    assert agents.offered(spec, spec.stages["work"]) == []
    assert agents.offered(replace(spec, toolset=None), spec.stages["a"]) == []


def test_a_caller_asked_after_a_failed_attempt_gets_its_reason() -> None:
    spec = machine(agent(retry=Retry(max_attempts=3)))
    failed = play(spec, Failed(kind="model", message="it is down"))
    asked = advance(spec, failed, Asked(), MODEL).state
    assert (asked.status, asked.tree.phase, asked.tree.attempt) == ("waiting", "waiting", 2)
    assert asked.tree.error == failed.tree.error
    assert failed.tree.error == Failure(stage="think", kind="model", message="it is down", hint="")


def test_of_many_tools_the_first_twenty_are_named_to_a_model_that_calls_another() -> None:
    def one_case(count: int, end: str) -> None:
        names = [f"t{number}" for number in range(count)]
        tools = {name: Tool(name=name, description="", schema={}, argv=["x"]) for name in names}
        spec = machine(agent(tools=names), toolset=Toolset(sha256="0" * 64, tools=tools))
        problem = agents.call_problem(spec, spec.stages["think"], {"id": "a", "name": "nope", "arguments": {}})
        listed = ", ".join([*names[: min(count, 20) - 1], end])
        assert problem == ("unknown_tool", f"there is no tool 'nope'; the tools here are: {listed}")

    for_each(one_case, [(19, "t18"), (20, "t19"), (21, "t19, ...")])


def test_the_name_of_a_tool_that_is_not_there_is_shown_up_to_64_letters() -> None:
    def one_case(length: int, shown: str) -> None:
        spec = machine(agent())
        problem = agents.call_problem(spec, spec.stages["think"], {"id": "a", "name": "n" * length, "arguments": {}})
        assert problem == ("unknown_tool", f"there is no tool {shown!r}; there are no tools here")

    for_each(one_case, [(64, "n" * 64), (65, "n" * 63 + "…")])


def test_a_result_may_nest_as_deep_as_a_run_can_keep_and_no_deeper() -> None:
    def nested(levels: int) -> Json:
        value: Json = []
        for _ in range(levels - 1):
            value = [value]
        return value

    deepest = nested(canonical.DEPTH - 4)
    assert agents.kept_result(deepest) == deepest
    message = agents.result_message({"id": "a", "name": "find", "result": deepest})
    canonical.encode({"tree": {"conversation": [message]}})
    assert agents.kept_result(nested(canonical.DEPTH - 3))["error"]["kind"] == "output"
