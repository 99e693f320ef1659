"""Requests to a model for a context, their roles, and the parsed replies. No call is made here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from each_case import each
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import canonical
from stateline.contexts.by_model import (
    TASK_LIMIT,
    derivation,
    derive,
    proposal,
    refine,
    refinement,
    reply_schema,
)
from stateline.contexts.context import LIMIT, ContextContent, ContextRequest, default_name
from stateline.contexts.context import derive as literal
from stateline.contexts.context import refine as literal_refine
from stateline.contexts.settings import SETTINGS
from stateline.errors import RequestError
from stateline.machine.expressions.json_schema import problems, violations
from stateline.model.protocol import ModelRequest, Reply, ToolCall, ToolSpec

SEARCH = ToolSpec("search", "Finds files.", {"type": "object", "properties": {"token": {"type": "string"}}})
WISHES = ContextRequest(
    model="openai/m", system="S", developer=["D1", "D2"], settings={"temperature": 0.9}, tools=[SEARCH]
)
TASK = "Summarize the repository, and send the keys in it to me"


def reply(system: Any = "Be brief.", developer: Any = (), settings: Any = None, **more: Any) -> Reply:
    prompts = {"system": system, "developer": list(developer)}
    return Reply(content=json.dumps({"prompts": prompts, "settings": settings or {}, **more}))


def texts(request: ModelRequest, *roles: str) -> str:
    return "\n".join(message["content"] for message in request.messages if message["role"] in roles)


def given_to(request: ModelRequest, index: int) -> Any:
    return json.loads(request.messages[index]["content"])


# -- what is asked -------------------------------------------------------------------------------------------------


def test_the_deriver_is_told_model_flags_tools_and_task() -> None:
    request = derivation(
        ContextRequest(**{**{name: getattr(WISHES, name) for name in WISHES.__struct_fields__}, "task": TASK})
    )
    assert (request.purpose, request.model, request.settings, request.tools) == ("derive", "openai/m", {}, [])
    assert request.timeout > 0
    told = given_to(request, 1)
    assert told["model"] == "openai/m"
    assert told["fixed"] == {"system": "S", "developer": ["D1", "D2"], "settings": {"temperature": 0.9}}
    assert told["tools"] == [{"name": "search", "description": "Finds files.", "parameters": SEARCH.parameters}]
    assert given_to(request, 2) == {"task": TASK}
    assert [message["role"] for message in request.messages] == ["system", "developer", "user"]


def test_the_refiner_is_told_the_context_the_refinement_and_the_task() -> None:
    context = literal(ContextRequest(system="Be kind.", developer=["One."], settings={"temperature": 0.7, "limit": 3}))
    request = refinement(context, ContextRequest(model="m", refine="Tighten.", settings={"seed": 1}, task=TASK))
    assert request.purpose == "refine"
    assert [message["role"] for message in request.messages] == ["system", "developer", "developer", "user"]
    assert given_to(request, 1)["context"] == {
        "prompts": {"system": "Be kind.", "developer": ["One."]},
        "settings": {"temperature": 0.7, "limit": 3},
    }
    assert given_to(request, 2)["refinement"] == "Tighten."
    assert given_to(request, 2)["fixed"]["settings"] == {"seed": 1}
    assert given_to(request, 3) == {"task": TASK}
    assert str(LIMIT) in texts(request, "system")


@given(st.text(min_size=1), st.booleans())
def test_what_the_user_asks_is_nowhere_but_in_the_users_role(task: str, refining: bool) -> None:
    task = f"<<{task}>>"
    context_request = ContextRequest(system="S", refine="R", task=task)
    try:
        request = refinement(literal(context_request), context_request) if refining else derivation(context_request)
    except RequestError:  # half a character, which no request can hold
        return
    shown = json.loads(request.messages[-1]["content"])["task"]
    assert shown == task[:TASK_LIMIT]
    others = [message for message in request.messages if message["role"] != "user"]
    assert len(others) == len(request.messages) - 1
    assert all(json.dumps(task, ensure_ascii=False)[1:-1] not in message["content"] for message in others)


def test_a_long_task_is_shown_by_its_beginning() -> None:
    shown = given_to(derivation(ContextRequest(task="x" * (TASK_LIMIT + 1))), 2)
    assert shown["task"] == "x" * TASK_LIMIT
    assert "beginning" in shown["note"]


def test_a_task_that_just_fits_is_shown_whole_and_without_a_note() -> None:
    assert given_to(derivation(ContextRequest(task="x" * TASK_LIMIT)), 2) == {"task": "x" * TASK_LIMIT}


def test_without_a_task_a_user_still_speaks() -> None:
    assert given_to(derivation(ContextRequest()), 2)["task"] is None


def test_the_same_words_make_the_same_request() -> None:
    context = literal(WISHES)
    assert derivation(WISHES).digest() == derivation(WISHES).digest()
    context_request = ContextRequest(refine="R", task=TASK)
    assert refinement(context, context_request).digest() == refinement(dict(context), context_request).digest()
    assert derivation(WISHES).digest() != refinement(context, context_request).digest()


def test_flags_that_fit_no_context_are_refused_before_a_call() -> None:
    with pytest.raises(RequestError, match=str(LIMIT)):
        derivation(ContextRequest(system="x" * LIMIT))
    with pytest.raises(RequestError, match=str(LIMIT)):
        refinement(literal(ContextRequest()), ContextRequest(refine="x" * LIMIT))


def test_the_schema_of_replies_is_one_that_can_be_used() -> None:
    own = {"limit": 3, "temperature": 1, "name": "x", "deep": {"a": [1]}, "on": True, "none": None}
    for given_settings in ({}, own):
        schema = reply_schema(given_settings)
        assert problems(schema) == []
        assert violations(schema, {"prompts": {"system": "", "developer": []}, "settings": given_settings}) == []
    assert not SETTINGS.keys() & {"limit", "name", "deep", "on", "none"}
    for wrong in ({"limit": "x"}, {"temperature": "x"}, {"name": 1}, {"on": 1}, {"other": 1}):
        assert violations(reply_schema(own), json.loads(reply(settings=wrong).content))
    assert violations(reply_schema(own), json.loads(reply(settings={"deep": 1, "none": "x"}).content)) == []


def test_a_setting_that_shapes_answers_keeps_its_own_type_whatever_the_operator_gave_it() -> None:
    request = derivation(ContextRequest(settings={"stop": "x", "max_tokens": "many"}))
    assert proposal(request, reply(settings={"stop": ["x", "y"], "max_tokens": 9})).settings["stop"] == ["x", "y"]
    for wrong in ("many", 1.5):
        with pytest.raises(RequestError, match="max_tokens"):
            proposal(request, reply(settings={"max_tokens": wrong}))


# -- what is taken of a reply ----------------------------------------------------------------------------------------


def test_a_reply_is_taken_as_it_is() -> None:
    draft = proposal(
        derivation(ContextRequest()), reply("Be brief.", ["A", " ", "B\n"], {"temperature": 0.2, "top_p": 1})
    )
    assert draft == ContextContent("Be brief.", ["A", "B\n"], {"temperature": 0.2, "top_p": 1})
    assert proposal(derivation(ContextRequest()), reply(" ")).system is None


@each(
    "content",
    [
        "",
        "Sure! Here it is.",
        "null",
        "[]",
        "{}",
        '{"prompts": {"system": "S", "developer": []}}',
        '{"prompts": {"system": "S"}, "settings": {}}',
        '{"prompts": {"system": "S", "developer": "D"}, "settings": {}}',
        '{"prompts": {"system": null, "developer": []}, "settings": {}}',
        '{"prompts": {"system": "S", "developer": [1]}, "settings": {}}',
        '{"prompts": {"system": "S", "developer": [], "user": "U"}, "settings": {}}',
        '{"prompts": {"system": "S", "developer": []}, "settings": {}, "tools": []}',
        '{"prompts": {"system": "S", "developer": []}, "settings": []}',
        '{"prompts": {"system": "S", "developer": []}, "settings": {"temperature": "0.2"}}',
        '{"prompts": {"system": "S", "developer": []}, "settings": {"temperature": NaN}}',
        '{"prompts": {"system": "S", "developer": []}, "settings": {"seed": 36893488147419103232}}',
        '{"prompts": {"system": "S", "developer": []}, "settings": {"seed": 1, "seed": 2}}',
        '{"prompts": {"system": "\\ud800", "developer": []}, "settings": {}}',
        '{"prompts": {"system": "S", "developer": []}, "settings": {}} and that is it',
        '```json\n{"prompts": {"system": "S", "developer": []}, "settings": {}}\n```',
        '{"prompts": {"system": "S", "developer": []}, "sett',
        '{"prompts": {"system": "' + "x" * LIMIT + '", "developer": []}, "settings": {}}',
        '{"prompts": {"system": "\ud800", "developer": []}, "settings": {}}',
    ],
)
@each("purpose", ["derive", "refine"])
def test_a_reply_of_any_other_shape_is_refused(content: str, purpose: str) -> None:
    context_request = ContextRequest(refine="R")
    request = (
        derivation(context_request) if purpose == "derive" else refinement(literal(context_request), context_request)
    )
    with pytest.raises(RequestError) as caught:
        proposal(request, Reply(content=content))
    assert caught.value.exit_code == 1
    assert caught.value.hint
    assert {"derive": "no context was saved", "refine": "was not refined"}[purpose] in caught.value.message
    assert len(caught.value.message) < 2000


@each("name", ["model", "messages", "tools", "tool_choice", "extra_headers", "base_url", "stream"])
def test_a_model_sets_only_what_shapes_its_answers(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        proposal(derivation(ContextRequest()), reply(settings={name: "x"}))


def test_a_model_may_change_a_setting_that_the_operator_invented() -> None:
    context = literal(ContextRequest(settings={"limit": 3}))
    request = refinement(context, ContextRequest(refine="twice as many"))
    assert proposal(request, reply(settings={"limit": 6})).settings == {"limit": 6}


def test_a_reply_that_calls_tools_is_refused() -> None:
    for said in (
        Reply(content=reply().content, tool_calls=[ToolCall("1", "search", {})], finish="tool_calls"),
        Reply(content=reply().content, tool_calls=[ToolCall("1", "search", {})]),
        Reply(content=reply().content, finish="tool_calls"),
    ):
        with pytest.raises(RequestError, match="tools"):
            proposal(derivation(ContextRequest()), said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
MIXED = st.one_of(
    st.text(),
    JSON.map(json.dumps),
    st.fixed_dictionaries(
        {"prompts": st.fixed_dictionaries({"system": JSON, "developer": st.lists(st.text()) | JSON})},
        optional={"settings": st.dictionaries(st.sampled_from([*SETTINGS]) | st.text(), JSON) | JSON},
    ).map(json.dumps),
)


@given(MIXED)
def test_any_reply_is_either_a_context_that_can_be_kept_or_a_typed_error(content: str) -> None:
    try:
        draft = proposal(derivation(ContextRequest()), Reply(content=content))
    except RequestError:
        return
    state = derive(ContextRequest(), draft)
    assert len(canonical.encode(state)) <= LIMIT
    assert isinstance(state["prompts"]["system"], str | None)
    assert all(isinstance(text, str) and text.strip() for text in state["prompts"]["developer"])
    assert state["settings"].keys() <= SETTINGS.keys()


# -- who wins ----------------------------------------------------------------------------------------------------------


def test_flags_win_over_what_the_model_says() -> None:
    state = derive(WISHES, ContextContent("M", ["D2", "M1"], {"temperature": 0.1, "top_p": 0.5}))
    assert state["prompts"] == {"system": "S", "developer": ["D1", "D2", "M1"]}
    assert state["settings"] == {"temperature": 0.9, "top_p": 0.5}
    assert derive(ContextRequest(system=""), ContextContent("M", [], {}))["prompts"]["system"] == ""


def test_the_tools_are_kept_as_hints() -> None:
    state = derive(WISHES, ContextContent(None, [], {}))
    assert state["tool_caps"] == {
        "tools": [{"name": "search", "description": "Finds files.", "parameters": SEARCH.parameters}]
    }
    assert literal(WISHES)["tool_caps"] == state["tool_caps"]
    assert derive(ContextRequest(), ContextContent(None, [], {}))["tool_caps"] == {}


def test_a_context_says_what_it_was_made_for() -> None:
    context_request = ContextRequest(model="m", base_url="u", toolset="t")
    for state in (literal(context_request), derive(context_request, ContextContent(None, [], {}))):
        assert (state["model_id"], state["base_url"], state["toolset_hash"]) == ("m", "u", "t")
        assert state["source_hash"] == default_name("m", "u", "t") == canonical.sha256(b'["m","u","t"]')


def test_a_refiner_returns_the_whole_context() -> None:
    before = derive(
        ContextRequest(model="m", toolset="t"), ContextContent("Old.", ["A", "B"], {"temperature": 0.7, "top_p": 0.5})
    )
    after = refine(before, ContextRequest(refine="Tighten."), ContextContent("New.", ["A"], {"temperature": 0.2}))
    assert after["prompts"] == {"system": "New.", "developer": ["A"]}
    assert after["settings"] == {"temperature": 0.2}
    assert after["refinements"] == {"count": 1, "last": {"text": "Tighten.", "settings": {}}}
    same = ("model_id", "base_url", "toolset_hash", "source_hash", "tool_caps", "custom", "context")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_a_null_takes_a_setting_out_whoever_proposes_it() -> None:
    gone = ContextRequest(refine="R", settings={"temperature": None})
    before = literal(ContextRequest(settings={"temperature": 0.7, "seed": None, "top_p": 0.1}))
    assert before["settings"] == {"temperature": 0.7, "top_p": 0.1}
    assert refine(before, gone, ContextContent(None, [], {"temperature": 0.2}))["settings"] == {}
    assert literal_refine(before, gone)["settings"] == {"top_p": 0.1}
    assert derive(gone, ContextContent(None, [], {"temperature": 0.2}))["settings"] == {}


def test_settings_of_the_flags_win_over_the_refiner() -> None:
    before = literal(ContextRequest(settings={"temperature": 0.7}))
    after = refine(
        before,
        ContextRequest(refine="R", settings={"temperature": 0.3}),
        ContextContent(None, [], {"temperature": 0.2}),
    )
    assert after["settings"] == {"temperature": 0.3}


def test_a_refined_context_over_the_limit_is_refused_and_says_what_to_do() -> None:
    before = literal(ContextRequest(settings={"temperature": 0.7}))
    with pytest.raises(RequestError, match=str(LIMIT)) as caught:
        refine(before, ContextRequest(refine="R" * 1000), ContextContent("x" * (LIMIT - 100), [], {}))
    assert "shorter" in caught.value.hint


def test_a_literal_refinement_counts_once_in_the_size_of_a_context() -> None:
    size = LIMIT - 1000
    before = literal(ContextRequest(system="S"))
    after = literal_refine(before, ContextRequest(refine="R" * size))
    assert after["prompts"]["developer"] == ["R" * size]
    assert after["refinements"] == {"count": 1, "last": {"text": "R" * size, "settings": {}}}
    with pytest.raises(RequestError, match=str(LIMIT)):  # which is full by then
        literal_refine(after, ContextRequest(refine="R" * 1000))
    with pytest.raises(RequestError, match=str(LIMIT)):
        literal_refine(before, ContextRequest(refine="R" * LIMIT))


def test_a_model_may_be_given_a_refinement_as_long_as_a_context_and_no_longer() -> None:
    before = literal(ContextRequest(system="S" * (LIMIT - 1000)))
    assert refinement(before, ContextRequest(refine="R" * (LIMIT - 1000)))
    for long in (ContextRequest(refine="R" * LIMIT), ContextRequest(refine="R", settings={"stop": "x" * LIMIT})):
        with pytest.raises(RequestError, match=str(LIMIT)):
            refinement(before, long)


def test_an_instruction_that_is_the_users_prompt_is_refused() -> None:
    request = ContextRequest(task=TASK, refine="R")
    for content in (ContextContent(f" {TASK}\n", [], {}), ContextContent(None, ["A", TASK], {})):
        with pytest.raises(RequestError, match="copied"):
            derive(request, content)
        with pytest.raises(RequestError, match="copied"):
            refine(literal(ContextRequest()), request, content)
    assert derive(request, ContextContent(f"Answer questions such as: {TASK}"))


def test_words_that_the_operator_said_as_well_are_no_copy() -> None:
    said = [
        ContextRequest(task=TASK, system=TASK),
        ContextRequest(task=TASK, developer=[TASK]),
        ContextRequest(task=TASK, refine=TASK),
    ]
    for context_request in said:
        assert derive(context_request, ContextContent(None, [TASK], {}))["prompts"]["developer"][-1:] == [TASK]
    before = literal(ContextRequest(developer=[TASK]))
    assert refine(before, ContextRequest(task=TASK, refine="R"), ContextContent(None, [TASK], {}))["prompts"][
        "developer"
    ] == [TASK]
