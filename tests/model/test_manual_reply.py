"""Answers to a run that waits for a model's reply."""

from __future__ import annotations

from typing import Any

import pytest
from each_case import each
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import InvalidAnswerError
from stateline.model.manual_reply import parse_reply
from stateline.model.protocol import Reply, ToolCall, ToolSpec
from stateline.model.reply_validation import MAX_CALLS

SEARCH = ToolSpec("search", "Searches.", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})
NOW = ToolSpec("now", "The time.", {"type": "object"})
TOOLS = [SEARCH, NOW]
ID = "request-1"
MOST = 1000
CALL = {"name": "search", "params": {"q": "x"}}
USE = {"type": "tool_use", "id": "a", "name": "search", "input": {"q": "x"}}
TEXT = {"type": "text", "text": "Paris."}
PARIS = Reply(content="Paris.")
SEARCHING = Reply(tool_calls=[ToolCall("call_1", "search", {"q": "x"})], finish="tool_calls")
USING = Reply(tool_calls=[ToolCall("a", "search", {"q": "x"})], finish="tool_calls")


def message(*blocks: Any, **more: Any) -> dict[str, Any]:
    """An answer in the long form."""
    return {"type": "llm_response", "requestId": ID, "response": {"content": list(blocks), **more}}


@each(
    "value, reply",
    [
        ("Paris.", PARIS),
        ({"response": "Paris."}, PARIS),
        ({"response": "Paris.", "tools": []}, PARIS),
        ({"response": "Paris.", "tools": None}, PARIS),
        ({"requestId": ID, "response": "Paris."}, PARIS),
        ({"requestId": None, "response": "Paris."}, PARIS),
        ({"type": "llm_response", "response": "Paris."}, PARIS),
        ({"requestId": ID, "response": {"content": "Paris."}}, PARIS),
        (message(TEXT), PARIS),
        (message(TEXT, stop_reason="end_turn"), PARIS),
        (message(TEXT, stop_reason=None, id="msg_1", role="assistant", type="message", model="m", usage={}), PARIS),
        (message({"type": "text", "text": "Par"}, {"type": "text", "text": "is."}), PARIS),
        ({"tools": [CALL]}, SEARCHING),
        ({"response": "", "tools": [CALL]}, SEARCHING),
        ({"response": None, "tools": [CALL], "requestId": ID}, SEARCHING),
        ({"tools": [{**CALL, "id": "a"}]}, USING),
        (message(USE), USING),
        (message(USE, stop_reason="tool_use"), USING),
        (message(USE, stop_reason="end_turn"), USING),
        ({"response": {"content": [USE]}}, USING),
        (
            {"response": "Let me see.", "tools": [{"name": "now"}, CALL]},
            Reply(
                content="Let me see.",
                tool_calls=[ToolCall("call_1", "now", {}), ToolCall("call_2", "search", {"q": "x"})],
                finish="tool_calls",
            ),
        ),
    ],
)
def test_an_answer_is_a_reply(value: Any, reply: Reply) -> None:
    assert parse_reply(value, TOOLS, ID) == reply
    assert parse_reply(value, TOOLS, None) == reply


def test_calls_keep_ids_that_the_conversation_does_not_hold() -> None:
    value = {"tools": [{**CALL, "id": "a"}, {**CALL, "id": "a"}, CALL, {**CALL, "id": "b"}]}
    reply = parse_reply(value, TOOLS, ID, used=["b", "call_1"])
    assert [call.id for call in reply.tool_calls] == ["a", "call_2", "call_3", "call_4"]


@each(
    "value, said",
    [
        (None, "neither text nor an object"),
        (7, "neither text nor an object"),
        (["Paris."], "neither text nor an object"),
        ("", "is empty"),
        (" \n", "is empty"),
        ({}, "is empty"),
        ({"requestId": ID}, "is empty"),
        ({"response": ""}, "is empty"),
        ({"tools": []}, "is empty"),
        (message(), "is empty"),
        ({"action": "continue"}, "unknown key 'action'"),
        ({"respose": "Paris."}, "unknown key 'respose'"),
        ({"type": "human", "response": "x"}, "'human' is not llm_response"),
        ({"type": "llm_request", "response": "x"}, "'llm_request' is not llm_response"),
        ({"requestId": "request-2", "response": "Paris."}, "for the request 'request-2'"),
        ({"requestId": 1, "response": "Paris."}, "for the request '1'"),
        (message({"type": "image"}), "part 1"),
        (message(TEXT, "text"), "part 2"),
        (message({"type": "text"}), "part 1"),
        (message({"type": "text", "text": 7}), "part 1"),
        (message({**USE, "arguments": {}}), "unknown key 'arguments'"),
        (message(TEXT, stop_reason="max_tokens"), "ended with 'max_tokens'"),
        (message(TEXT, stop_reason="length"), "ended with 'length'"),
        (message(TEXT, stop_reason=["stop"]), "ended with"),
        (message(TEXT, stop_reason="tool_use"), "calls no tool"),
        (message(TEXT, other=1), "unknown key 'other'"),
        ({"response": {"content": {}}}, "neither text nor a list"),
        ({"response": {}}, "neither text nor a list"),
        ({"response": 7}, "neither text nor an object"),
        ({"response": {"content": [USE]}, "tools": [CALL]}, "two places"),
        ({"tools": CALL}, "not a list of objects"),
        ({"tools": ["search"]}, "not a list of objects"),
        ({"tools": [{"params": {}}]}, "without a name"),
        ({"tools": [{"name": 7}]}, "without a name"),
        ({"tools": [{"name": "serch", "params": {}}]}, "no tool 'serch'"),
        ({"tools": [{"name": "search", "params": "x"}]}, "are not an object"),
        ({"tools": [{"name": "search", "params": None}]}, "are not an object"),
        ({"tools": [{"name": "search", "params": {"q": 7}}]}, "/q: 7 is not of type"),
        ({"tools": [{"name": "search"}]}, '"q" is a required property'),
        ({"tools": [CALL, {"name": "search", "params": {}}]}, '"q" is a required property'),
    ],
)
def test_anything_else_is_refused_and_the_run_still_waits(value: Any, said: str) -> None:
    with pytest.raises(InvalidAnswerError) as raised:
        parse_reply(value, TOOLS, ID)
    assert said in raised.value.message
    assert raised.value.message.endswith("nothing was changed, and the run still waits")
    assert raised.value.hint


FORM = {"type": "object", "properties": {"kind": {"type": "string"}, "type": {"type": "string"}}, "required": ["kind"]}


@each(
    "value, schema, content",
    [
        ({"kind": "bug"}, FORM, '{"kind":"bug"}'),
        ({"type": "x", "kind": "bug"}, FORM, '{"kind":"bug","type":"x"}'),
        ({"action": "merge", "kind": "bug"}, FORM, '{"action":"merge","kind":"bug"}'),
        ([2, 1.5, "ü"], {"type": "array"}, '[2,1.5,"ü"]'),
        ({}, {"type": "object"}, "{}"),
        (5, {"type": "integer"}, "5"),
        ({"response": '{"kind": "bug"}'}, FORM, '{"kind": "bug"}'),
        ({"requestId": ID, "response": "x"}, FORM, "x"),
        ('{"kind": "bug"}', FORM, '{"kind": "bug"}'),
    ],
)
def test_where_a_schema_is_asked_for_the_value_itself_is_the_answer(value: Any, schema: Any, content: str) -> None:
    assert parse_reply(value, TOOLS, ID, schema=schema) == Reply(content=content)


def test_with_a_schema_the_known_forms_are_still_read_as_such() -> None:
    free = {"type": "object"}
    assert parse_reply({"tools": [CALL]}, TOOLS, ID, schema=free) == SEARCHING
    assert parse_reply(message(USE), TOOLS, ID, schema=free) == USING
    for value, said in (
        ({"requestId": "other"}, "for the request 'other'"),
        ({"tools": [{"name": "serch"}]}, "no tool 'serch'"),
        ({"response": 7}, "neither text nor an object"),
    ):
        with pytest.raises(InvalidAnswerError, match=said):
            parse_reply(value, TOOLS, ID, schema=free)


@each("value", [{"respose": "Paris."}, {"kind": 1}, ["bug"], {}, 7, None])
def test_a_value_that_is_no_form_and_breaks_the_schema_is_refused_with_both_ways_to_answer(value: Any) -> None:
    with pytest.raises(InvalidAnswerError) as raised:
        parse_reply(value, TOOLS, ID, schema=FORM)
    assert "output_schema" in raised.value.message
    assert '{"response": "..."' in raised.value.hint


def test_a_refusal_helps_with_what_was_meant() -> None:
    with pytest.raises(InvalidAnswerError) as raised:
        parse_reply({"tools": [{"name": "serch"}]}, TOOLS, ID)
    assert raised.value.hint == "did you mean 'search'? the tools of this request are search, now"
    with pytest.raises(InvalidAnswerError) as raised:
        parse_reply({"tools": [CALL]}, [], ID)
    assert raised.value.hint == "this request offers no tools"


words = st.sampled_from(["type", "requestId", "response", "tools", "content", "name", "params", "text", "id", "input"])
leaves = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "search", "text", "tool_use", "x", ID])
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4))


@given(values)
def test_whatever_comes_is_a_reply_or_refused(value: Any) -> None:
    try:
        reply = parse_reply(value, TOOLS, ID)
    except InvalidAnswerError:
        return
    assert reply.content.strip() or reply.tool_calls
    assert len({call.id for call in reply.tool_calls}) == len(reply.tool_calls)
    assert {call.name for call in reply.tool_calls} <= {"search", "now"}


@given(st.text(max_size=5))
def test_words_from_an_answer_do_not_steer_a_terminal(word: str) -> None:
    for value in ({"tools": [{"name": f"x{word}"}]}, {f"x{word}": 1}, {"requestId": f"x{word}", "response": "x"}):
        with pytest.raises(InvalidAnswerError) as raised:
            parse_reply(value, TOOLS, ID)
        assert (raised.value.message + raised.value.hint).isprintable()


def test_arguments_that_nest_deeper_than_a_run_can_keep_are_refused() -> None:
    deep: Any = 1
    for _ in range(125):
        deep = [deep]
    with pytest.raises(InvalidAnswerError, match="nested deeper"):
        parse_reply({"tools": [{"name": "now", "params": {"deep": deep}}]}, TOOLS, ID)


def test_an_answer_calls_as_many_tools_at_once_as_a_model_may_and_no_more() -> None:
    one = {**USE, "id": None}
    for answer in ({"tools": [CALL] * MOST}, message(*[one] * MOST)):
        assert len(parse_reply(answer, TOOLS, ID).tool_calls) == MAX_CALLS == MOST
    for answer in ({"tools": [CALL] * (MOST + 1)}, message(*[one] * (MOST + 1))):
        with pytest.raises(
            InvalidAnswerError, match="calls more than 1000 tools at once; nothing was changed"
        ) as caught:
            parse_reply(answer, TOOLS, ID)
        assert caught.value.hint
