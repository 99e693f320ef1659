"""Messages of Anthropic: the request, and the rules of this provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from each_case import each
from model_server import ModelServer, Say

from stateline.model.protocol import Model, ModelCallError, ModelRequest, ToolSpec, Usage
from stateline.model.providers.selection import Choice, open_model

Opened = Callable[[str, ModelServer], Model]

HI = {"role": "user", "content": "Hi"}
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}}
CLOSED = {**OPEN, "additionalProperties": False}


def asked(*messages: Any, **changes: Any) -> ModelRequest:
    """A request of these messages."""
    return ModelRequest(model="model-1", messages=list(messages) or [HI], **changes)


def test_a_conversation_is_sent_with_all_results_of_one_reply_together(opened: Opened) -> None:
    calls = [{"id": "a", "name": "f", "arguments": {"n": 1}}, {"id": "b:2", "name": "f", "arguments": {}}]
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Say please."},
        HI,
        {"role": "assistant", "content": "Well", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": {"b": 2, "a": None}},
        {"role": "tool", "tool_call_id": "b:2", "name": "f", "content": {"error": {"kind": "exit", "message": "no"}}},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "f", "arguments": {}}]},
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": ""},
    ]
    with ModelServer(Say("Done.")) as server:
        opened("anthropic", server).reply(asked(*talk, tools=[ToolSpec("f", "Does it.", OPEN)]))
        sent = server.requests[0]
    assert sent == {
        "model": "model-1",
        "max_tokens": 4096,
        "system": "Be brief.\n\nSay please.",
        "tools": [{"name": "f", "description": "Does it.", "input_schema": OPEN}],
        "messages": [
            HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Well"},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}},
                    {"type": "tool_use", "id": "renamed_1", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": '{"a":null,"b":2}'},
                    {
                        "type": "tool_result",
                        "tool_use_id": "renamed_1",
                        "content": '{"error":{"kind":"exit","message":"no"}}',
                        "is_error": True,
                    },
                ],
            },
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
        ],
    }


def test_a_closed_schema_is_sent_as_such(opened: Opened) -> None:
    with ModelServer(Say('{"n": 1}')) as server:
        request = asked(output_schema=CLOSED, settings={"output_config": {"effort": "low"}})
        assert opened("anthropic", server).reply(request).content == '{"n": 1}'
        sent = server.requests[0]
    assert sent["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": CLOSED}}
    assert "system" not in sent


def test_an_open_schema_is_told_in_words(opened: Opened) -> None:
    with ModelServer(Say('```\n{"n": 1}\n```\n')) as server:
        request = asked({"role": "system", "content": "Be brief."}, HI, output_schema=OPEN)
        assert opened("anthropic", server).reply(request).content == '{"n": 1}'
        sent = server.requests[0]
    assert "output_config" not in sent
    assert sent["system"].startswith("Be brief.\n\nAnswer with exactly one JSON value")
    assert sent["system"].endswith('{"properties":{"n":{"type":"integer"}},"type":"object"}')


def test_a_refused_schema_is_told_in_words_from_then_on(opened: Opened) -> None:
    refused = Say("output_config.format.schema: keyword not supported", status=400)
    with ModelServer(refused, otherwise=Say('{"n": 1}')) as server:
        model = opened("anthropic", server)
        for _ in range(2):
            assert model.reply(asked(output_schema=CLOSED, key="k")).content == '{"n": 1}'
        assert ["output_config" in sent for sent in server.requests] == [True, False, False]
        first, second, third = (headers["idempotency-key"] for headers in server.headers)
        assert {key.split(":")[0] for key in (first, second, third)} == {"k"}
        assert first != second == third  # another body is another request


def test_fences_are_left_where_no_schema_was_asked_for(opened: Opened) -> None:
    with ModelServer(Say("```\ncode\n```")) as server:
        assert opened("anthropic", server).reply(asked()).content == "```\ncode\n```"


def test_thoughts_are_passed_over_and_other_parts_are_refused(opened: Opened) -> None:
    def said(*blocks: dict[str, Any]) -> Say:
        body = {"type": "message", "content": list(blocks), "stop_reason": "end_turn"}
        return Say(body=json.dumps(body).encode())

    text = {"type": "text", "text": "Hello"}
    thought = {"type": "thinking", "thinking": "Hm", "signature": "s"}
    with ModelServer(said(thought, text), said(text, {"type": "server_tool_use"})) as server:
        model = opened("anthropic", server)
        assert model.reply(asked()).content == "Hello"
        with pytest.raises(ModelCallError, match="a part of an unknown type"):
            model.reply(asked())


@each("kind", ["enabled", "between_tools"])
@each("streamed", [False, True])
def test_thinking_whose_blocks_would_be_demanded_back_is_refused_with_tools_before_anything_is_paid(
    opened: Opened, kind: str, streamed: bool
) -> None:
    settings = {"thinking": {"type": kind, "budget_tokens": 1024}}
    tools = [ToolSpec("f", "Does it.", OPEN)]
    with ModelServer(otherwise=Say("Hello.")) as server:
        model = opened("anthropic", server)
        with pytest.raises(ModelCallError, match="cannot be used with tools") as raised:
            model.reply(asked(tools=tools, settings=settings), (lambda text: None) if streamed else None)
        assert (server.count, raised.value.sent) == (0, False)
        assert "adaptive" in raised.value.hint
        # Without tools nothing has to be sent back.
        assert model.reply(asked(settings=settings)).content == "Hello."
        assert server.requests[0]["thinking"] == settings["thinking"]


@each("streamed", [False, True])
def test_a_conversation_with_tools_goes_on_without_the_blocks_of_adaptive_thinking(
    opened: Opened, streamed: bool
) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}
    hidden = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}}
    whole = Say(body=json.dumps({"content": [thought, hidden, call], "stop_reason": "tool_use"}).encode())
    pieces = events(
        start(0, "thinking", thinking="", signature=""),
        piece(0, "thinking_delta", thinking="Hm."),
        piece(0, "signature_delta", signature="c2lnbmVk"),
        start(1, "redacted_thinking", data="b3BhcXVl"),
        start(2, "tool_use", id="a", name="f", input={}),
        piece(2, "input_json_delta", partial_json='{"n": 1}'),
    )
    request = asked(tools=[ToolSpec("f", "Does it.", OPEN)], settings={"thinking": {"type": "adaptive"}})
    heard: list[str] = []
    with ModelServer(pieces if streamed else whole) as server:
        reply = opened("anthropic", server).reply(request, heard.append if streamed else None)
        assert server.requests[0]["thinking"] == {"type": "adaptive"}
    assert (reply.content, heard) == ("", [])
    assert [(each.name, each.arguments) for each in reply.tool_calls] == [("f", {"n": 1})]


def test_what_went_through_the_provider_s_cache_counts_as_input(opened: Opened) -> None:
    usage = {"input_tokens": 1, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 5}
    body = {"content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn", "usage": usage}
    with ModelServer(Say(body=json.dumps(body).encode())) as server:
        assert opened("anthropic", server).reply(asked()).usage == Usage(111, 5)


def test_a_stream_without_its_last_event_is_no_reply(opened: Opened) -> None:
    # Ten events: the ninth says why it ended, the tenth that it did.
    said = Say("Half a reply, and some", cut=9, silent=True)
    with ModelServer(said) as server, pytest.raises(ModelCallError, match="without a reason"):
        opened("anthropic", server).reply(asked(), lambda text: None)


def events(*pieces: dict[str, Any]) -> Say:
    """A stream of exactly these events within a message."""
    end = [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    all = [{"type": "message_start", "message": {}}, *pieces, *end]
    body = b"".join(b"event: %s\ndata: %s\n\n" % (str(p["type"]).encode(), json.dumps(p).encode()) for p in all)
    return Say(body=body, headers={"content-type": "text/event-stream"})


def start(index: Any, kind: str, **block: Any) -> dict[str, Any]:
    """The event that begins a block."""
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **block}}


def piece(index: Any, kind: str, **delta: Any) -> dict[str, Any]:
    """The event that goes on with a block."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}


TEXT, CALL = start(0, "text", text=""), start(1, "tool_use", id="a", name="f")


def test_the_blocks_of_a_stream_are_told_apart_by_their_index(opened: Opened) -> None:
    said = events(
        TEXT,
        CALL,
        start(2, "tool_use", id="b", name="g"),
        piece(1, "input_json_delta", partial_json='{"x": '),
        piece(0, "text_delta", text="Both "),
        piece(2, "input_json_delta", partial_json='{"y": 2}'),
        piece(0, "text_delta", text="at once."),
        piece(1, "input_json_delta", partial_json="1}"),
    )
    with ModelServer(said) as server:
        reply = opened("anthropic", server).reply(asked(), lambda text: None)
    assert reply.content == "Both at once."
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("f", {"x": 1}), ("g", {"y": 2})]


@each(
    "pieces",
    [
        [TEXT, CALL, piece(7, "input_json_delta", partial_json="{}")],
        [TEXT, CALL, piece(7, "text_delta", text="Whose?")],
        [TEXT, CALL, piece(None, "text_delta", text="Whose?")],
        [TEXT, CALL, piece([], "text_delta", text="Whose?")],
        [TEXT, CALL, piece(0, "input_json_delta", partial_json="{}")],
        [TEXT, CALL, piece(1, "text_delta", text="No call.")],
        [TEXT, CALL, start(1, "tool_use", id="b", name="g")],
        [TEXT, CALL, start("2", "text", text="")],
        [TEXT, CALL, start(2, "text", text="Second."), piece(0, "text_delta", text="First.")],
    ],
)
def test_a_piece_of_no_block_that_was_begun_makes_no_reply(opened: Opened, pieces: list[dict[str, Any]]) -> None:
    with ModelServer(events(*pieces)) as server, pytest.raises(ModelCallError) as raised:
        opened("anthropic", server).reply(asked(), lambda text: None)
    assert raised.value.kind == "reply"


def test_counts_that_are_too_large_together_are_no_usage(opened: Opened) -> None:
    usage = {"input_tokens": 2**53 - 1, "cache_read_input_tokens": 1, "output_tokens": 5}
    body = {"content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn", "usage": usage}
    with ModelServer(Say(body=json.dumps(body).encode())) as server:
        assert opened("anthropic", server).reply(asked()).usage is None


def test_long_replies_are_asked_for_without_a_stream(opened: Opened) -> None:
    # The SDK refuses that by itself unless it is given a time.
    with ModelServer(Say("Hi.")) as server:
        assert opened("anthropic", server).reply(asked(settings={"max_tokens": 128_000})).content == "Hi."


def test_a_token_in_the_key_s_place_is_sent_as_one() -> None:
    with ModelServer(Say("Hi.")) as server:
        choice = Choice("anthropic", "model-1", server.origin)
        open_model(choice, environ={"ANTHROPIC_AUTH_TOKEN": "token-12345678"}).reply(asked())
        assert server.headers[0]["authorization"] == "Bearer token-12345678"
