"""Chat completions: the request, and the variants of compatible servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from each_case import each
from model_server import ModelServer, Say

from stateline.model.protocol import Model, ModelCallError, ModelRequest, ToolCall, ToolSpec, Usage
from stateline.model.providers.openai import OpenAIModel

Opened = Callable[[str, ModelServer], Model]

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
PROMPTS = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Say please."},
    {"role": "developer", "content": "Say thanks."},
]
HI = {"role": "user", "content": "Hi"}
TALK = [
    HI,
    {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "name": "f", "arguments": {"é": [1, "x"]}}]},
    {"role": "tool", "tool_call_id": "a", "name": "f", "content": {"b": 2, "a": None}},
    {"role": "assistant", "content": "So", "tool_calls": [{"id": "b", "name": "f", "arguments": {}}]},
    {"role": "tool", "tool_call_id": "b", "name": "f", "content": "plain text"},
]


def asked(*messages: Any, **changes: Any) -> ModelRequest:
    """A request of these messages."""
    return ModelRequest(model="model-1", messages=list(messages) or [HI], **changes)


def own(server: ModelServer) -> OpenAIModel:
    """The model that believes that the server is OpenAI itself."""
    model = OpenAIModel("model-1", "", "sk-key-of-a-test", str)
    model._base_url = server.url
    return model


def stream(*pieces: Any) -> Say:
    """A stream of exactly these pieces."""
    body = b"".join(b"data: %s\n\n" % json.dumps(piece).encode() for piece in pieces)
    return Say(body=body, headers={"content-type": "text/event-stream"})


def delta(finish: str | None = None, **content: Any) -> dict[str, Any]:
    """One piece of a stream."""
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


def test_a_conversation_is_sent_with_its_calls_and_their_results(opened: Opened) -> None:
    tool = ToolSpec("f", "Does it.", SCHEMA)
    with ModelServer(Say("Done.")) as server:
        opened("openai", server).reply(asked(*TALK, tools=[tool]))
        sent = server.requests[0]
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"é":[1,"x"]}'}}
    again = {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert sent == {
        "model": "model-1",
        "messages": [
            HI,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": '{"a":null,"b":2}'},
            {"role": "assistant", "content": "So", "tool_calls": [again]},
            {"role": "tool", "tool_call_id": "b", "content": "plain text"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "Does it.", "parameters": SCHEMA}}],
    }


def test_openai_itself_is_sent_the_developer_s_role_and_its_name_of_the_limit() -> None:
    with ModelServer(otherwise=Say("Hi.")) as server:
        own(server).reply(asked(*PROMPTS, HI, settings={"max_tokens": 9}))
        own(server).reply(asked(HI, settings={"max_tokens": 9, "max_completion_tokens": 8}))
        first, second = server.requests
    assert first["messages"] == [*PROMPTS, HI]
    assert first["max_completion_tokens"] == 9
    assert "max_tokens" not in first
    assert second["max_completion_tokens"] == 8


def test_other_servers_are_sent_one_system_message(opened: Opened) -> None:
    with ModelServer(Say("Hi.")) as server:
        opened("openai", server).reply(asked(*PROMPTS, HI))
        sent = server.requests[0]["messages"]
    assert sent == [{"role": "system", "content": "Be brief.\n\nSay please.\n\nSay thanks."}, HI]


def test_a_schema_is_sent_as_response_format(opened: Opened) -> None:
    with ModelServer(Say('{"n": 1}')) as server:
        assert opened("openai", server).reply(asked(output_schema=SCHEMA)).content == '{"n": 1}'
        sent = server.requests[0]["response_format"]
    assert sent == {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}


@each(
    "words",
    ["'response_format' of type 'json_schema' is not supported", "This response_format type is unavailable now"],
)
def test_an_endpoint_without_response_format_is_told_the_schema_in_words(opened: Opened, words: str) -> None:
    with ModelServer(Say(words, status=400), otherwise=Say('```json\n{"n": 1}\n```')) as server:
        model = opened("openai", server)
        request = asked(*PROMPTS, HI, output_schema=SCHEMA, key="k")
        assert model.reply(request).content == '{"n": 1}'
        assert model.reply(request).content == '{"n": 1}'
        # It is asked in vain only once.
        assert server.count == 3
        refused, taken, again = server.requests
        first, second, third = (headers["idempotency-key"] for headers in server.headers)
        assert {key.split(":")[0] for key in (first, second, third)} == {"k"}
        assert first != second == third  # another body is another request
    assert "response_format" in refused
    assert "response_format" not in taken
    assert taken["messages"][0]["content"].endswith('{"properties":{"n":{"type":"integer"}},"type":"object"}')
    assert again == taken


def test_an_endpoint_without_stream_options_is_asked_without(opened: Opened) -> None:
    with ModelServer(Say("Unrecognized request argument: stream_options", status=400), Say("Hi.")) as server:
        reply = opened("openai", server).reply(asked(), lambda text: None)
        first, second = server.requests
    assert (reply.content, reply.usage) == ("Hi.", None)
    assert first["stream_options"] == {"include_usage": True}
    assert "stream_options" not in second


def test_a_refusal_for_another_reason_is_final(opened: Opened) -> None:
    with ModelServer(otherwise=Say("response_format is bad", status=400)) as server:
        with pytest.raises(ModelCallError):
            opened("openai", server).reply(asked())
        assert server.count == 1
        with pytest.raises(ModelCallError):
            opened("openai", server).reply(asked(output_schema=SCHEMA))
        assert server.count == 3


def test_an_option_that_the_user_set_is_not_taken_away(opened: Opened) -> None:
    form = {"type": "json_object"}
    with ModelServer(otherwise=Say("response_format is not supported", status=400)) as server:
        model = opened("openai", server)
        with pytest.raises(ModelCallError, match="response_format is not supported"):
            model.reply(asked(settings={"response_format": form}))
        assert server.count == 1
        # Ours stood in its place, and was taken away.
        with pytest.raises(ModelCallError):
            model.reply(asked(settings={"response_format": form}, output_schema=SCHEMA))
        assert [sent["response_format"]["type"] for sent in server.requests[1:]] == ["json_schema", "json_object"]


def test_text_in_parts_is_text(opened: Opened) -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    body = {"choices": [{"message": {"role": "assistant", "content": parts}, "finish_reason": "stop"}]}
    with ModelServer(Say(body=json.dumps(body).encode())) as server:
        assert opened("openai", server).reply(asked()).content == "Hello"


def test_a_refusal_by_the_model_is_no_reply(opened: Opened) -> None:
    message = {"role": "assistant", "content": None, "refusal": "I will not."}
    body = {"choices": [{"message": message, "finish_reason": "stop"}]}
    with ModelServer(Say(body=json.dumps(body).encode())) as server, pytest.raises(ModelCallError, match="refusal"):
        opened("openai", server).reply(asked())


def test_a_second_choice_is_not_mixed_in(opened: Opened) -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "stop"}]}
    with ModelServer(stream(delta(content="A"), other, delta("stop"))) as server:
        assert opened("openai", server).reply(asked(), lambda text: None).content == "A"


def test_a_stream_that_told_its_end_is_whole_without_its_mark(opened: Opened) -> None:
    with ModelServer(stream(delta(content="A"), delta("stop"))) as server:
        assert opened("openai", server).reply(asked(), lambda text: None).content == "A"


def test_counts_may_come_with_any_piece(opened: Opened) -> None:
    last = {**delta("stop"), "usage": {"prompt_tokens": 5, "completion_tokens": 6}}
    with ModelServer(stream({**delta(content="A"), "usage": None}, last)) as server:
        assert opened("openai", server).reply(asked(), lambda text: None).usage == Usage(5, 6)


def test_calls_whose_pieces_have_no_index_are_told_apart_by_their_ids(opened: Opened) -> None:
    def piece(**call: Any) -> dict[str, Any]:
        return delta(tool_calls=[call])

    pieces = [
        piece(id="a", function={"name": "f", "arguments": '{"n"'}),
        piece(function={"arguments": ": 1}"}),
        piece(id="b", function={"name": "g", "arguments": '{"n": 2}'}),
    ]
    zeros = [delta(tool_calls=[{"index": 0, **p["choices"][0]["delta"]["tool_calls"][0]}]) for p in pieces]
    expected = [ToolCall("a", "f", {"n": 1}), ToolCall("b", "g", {"n": 2})]
    with ModelServer(stream(*pieces, delta("tool_calls")), stream(*zeros, delta("tool_calls"))) as server:
        model = opened("openai", server)
        assert model.reply(asked(), lambda text: None).tool_calls == expected
        assert model.reply(asked(), lambda text: None).tool_calls == expected


def test_an_id_that_comes_with_every_piece_begins_no_new_call(opened: Opened) -> None:
    pieces = [
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": part}}])
        for part in ('{"n"', ": 1}")
    ]
    with ModelServer(stream(*pieces, delta("tool_calls"))) as server:
        reply = opened("openai", server).reply(asked(), lambda text: None)
    assert reply.tool_calls == [ToolCall("a", "f", {"n": 1})]


def test_arguments_that_are_an_object_already_are_taken(opened: Opened) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"n": 1}}}
    body = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    with ModelServer(Say(body=json.dumps(body).encode())) as server:
        assert opened("openai", server).reply(asked()).tool_calls == [ToolCall("a", "f", {"n": 1})]
