"""Behaviour of all providers against a real server on loopback, plain and streamed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from each_case import each
from model.provider_requests import SEARCH, Opened, ask, asked, refusal
from model_server import ModelServer, Say

from stateline.model.protocol import Reply, ToolCall, ToolSpec, Usage
from stateline.model.providers.selection import PROVIDERS


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_text_is_a_reply_with_what_it_cost(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer(Say("Good morning, you.", model="model-1-2026")) as server:
        reply = ask(opened(provider, server), asked(), streamed)
    assert reply == Reply(content="Good morning, you.", usage=Usage(7, 3), model="model-1-2026")


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_tool_calls_come_with_their_ids_in_order(opened: Opened, provider: str, streamed: bool) -> None:
    said = Say("Let me see.", calls=[("search", {"q": "x", "n": [1, 2.5, None]}), ("search", {})], ids=["a-1", "b_2"])
    with ModelServer(said) as server:
        reply = ask(opened(provider, server), asked(tools=[SEARCH]), streamed)
    assert reply.content == "Let me see."
    assert reply.finish == "tool_calls"
    calls = [ToolCall("a-1", "search", {"q": "x", "n": [1, 2.5, None]}), ToolCall("b_2", "search", {})]
    assert reply.tool_calls == calls


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_missing_and_repeated_ids_are_replaced(opened: Opened, provider: str, streamed: bool) -> None:
    before = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "name": "search", "arguments": {}}]},
        {"role": "tool", "tool_call_id": "call_1", "name": "search", "content": None},
    ]
    said = Say(calls=[("search", {"q": str(n)}) for n in range(4)], ids=["", "x", "x", "call_1"])
    with ModelServer(said) as server:
        reply = ask(opened(provider, server), asked(messages=before, tools=[SEARCH]), streamed)
    assert [call.id for call in reply.tool_calls] == ["call_2", "x", "call_3", "call_4"]
    assert [call.arguments["q"] for call in reply.tool_calls] == ["0", "1", "2", "3"]


@each("provider", PROVIDERS)
@each("silent", [False, True])
@each("cut", range(1, 7))
def test_a_cut_stream_is_no_reply_and_is_not_asked_for_again(
    opened: Opened, provider: str, cut: int, silent: bool
) -> None:
    # The seventh of OpenAI's pieces says how it ended, and the tenth of Anthropic's.
    said = Say("Half a reply, and some", cut=cut if provider == "openai" else cut + 3, silent=silent)
    with ModelServer(said) as server:
        failure = refusal(opened(provider, server), asked(), True)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("reply", True)


@each("provider", PROVIDERS)
def test_a_cut_body_is_asked_for_again(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Half a reply", cut=40), Say("All of it.")) as server:
        assert opened(provider, server).reply(asked()).content == "All of it."


@each("provider", PROVIDERS)
def test_a_body_that_is_always_cut_is_no_reply(opened: Opened, provider: str) -> None:
    with ModelServer(otherwise=Say("Half a reply", cut=40)) as server:
        failure = refusal(opened(provider, server), asked(), False)
        assert server.count == 3
    assert (failure.kind, failure.sent) == ("reply", True)
    assert "broke the connection before the reply was complete" in failure.message


@each("provider", PROVIDERS)
@each("size", [0, 1, 40, 120])
def test_json_that_is_cut_without_a_trace_is_no_reply(opened: Opened, provider: str, size: int) -> None:
    with ModelServer(Say("Half a reply", cut=size, silent=True)) as server:
        failure = refusal(opened(provider, server), asked(), False)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("reply", True)
    assert "is not JSON" in failure.message


@each("provider", PROVIDERS)
@each("body", [b"null", b"[]", b'"text"', b"{}", b'{"choices": [], "content": []}', b"<html>", b"\xff"])
def test_a_body_of_another_form_is_no_reply(opened: Opened, provider: str, body: bytes) -> None:
    with ModelServer(Say(body=body)) as server:
        assert refusal(opened(provider, server), asked(), False).kind == "reply"


@each("provider", PROVIDERS)
@each(
    "body",
    [b"data: {oops\n\n", b"data: [1]\n\n", b"data: 7\n\n", b"data: \xff\n\n", b"event: x\ndata: {\n\n", b"", b"hello"],
)
def test_a_stream_of_another_form_is_no_reply(opened: Opened, provider: str, body: bytes) -> None:
    named = body.replace(b"data", b"event: message_start\ndata", 1) if provider == "anthropic" else body
    with ModelServer(Say(body=named, headers={"content-type": "text/event-stream"})) as server:
        assert refusal(opened(provider, server), asked(), True).kind == "reply"


@each("provider", PROVIDERS)
def test_an_error_in_a_reply_s_place_is_one(opened: Opened, provider: str) -> None:
    with ModelServer(Say(body=b'{"type": "error", "error": {"message": "no credits left", "code": 402}}')) as server:
        failure = refusal(opened(provider, server), asked(), False)
    assert (failure.kind, failure.message) == ("model", f"{provider} answered with an error: no credits left")


@each("provider", PROVIDERS)
def test_an_error_within_a_stream_is_one(opened: Opened, provider: str) -> None:
    body = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "too busy"}}\n\n'
    with ModelServer(Say(body=body, headers={"content-type": "text/event-stream"})) as server:
        failure = refusal(opened(provider, server), asked(), True)
    assert (failure.kind, failure.message, failure.sent) == ("model", f"{provider} broke the reply off: too busy", True)


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each(
    "finish, words",
    [
        ("length", "limit of tokens"),
        ("max_tokens", "limit of tokens"),
        ("content_filter", "filter"),
        ("refusal", "filter"),
        ("pause_turn", "unknown reason"),
        ("unheard_of", "unknown reason"),
        ("", "without a reason"),
    ],
)
def test_an_end_that_is_no_good_end_makes_no_reply(
    opened: Opened, provider: str, streamed: bool, finish: str, words: str
) -> None:
    with ModelServer(Say("Half a reply", finish=finish)) as server:
        failure = refusal(opened(provider, server), asked(), streamed)
        assert server.count == 1
    assert failure.kind == "reply"
    assert words in failure.message


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_call_that_was_cut_by_length_is_no_call(opened: Opened, provider: str, streamed: bool) -> None:
    said = Say(calls=[("search", '{"q": "half')], finish="length")
    with ModelServer(said) as server:
        assert refusal(opened(provider, server), asked(tools=[SEARCH]), streamed).kind == "reply"


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each("text", ["", " \n"])
def test_an_empty_reply_is_none(opened: Opened, provider: str, streamed: bool, text: str) -> None:
    with ModelServer(Say(text)) as server:
        failure = refusal(opened(provider, server), asked(), streamed)
    assert (failure.kind, failure.message) == ("reply", "the reply is empty; it was not used")


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_reply_that_ends_to_call_and_calls_nothing_is_none(opened: Opened, provider: str, streamed: bool) -> None:
    finish = "tool_calls" if provider == "openai" else "tool_use"
    with ModelServer(Say("I will search.", finish=finish)) as server:
        assert "calls none" in refusal(opened(provider, server), asked(), streamed).message


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_calls_in_a_reply_that_just_stops_are_calls(opened: Opened, provider: str, streamed: bool) -> None:
    finish = "stop" if provider == "openai" else "end_turn"
    with ModelServer(Say(calls=[("search", {"q": "x"})], finish=finish)) as server:
        reply = ask(opened(provider, server), asked(tools=[SEARCH]), streamed)
    assert reply.finish == "tool_calls"
    assert reply.tool_calls[0].arguments == {"q": "x"}


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each("arguments", ["[1]", "7", '"x"', "null", "{oops", '{"q": "x"'])
def test_arguments_that_are_no_json_object_make_no_reply(
    opened: Opened, provider: str, streamed: bool, arguments: str
) -> None:
    with ModelServer(Say(calls=[("search", arguments)])) as server:
        failure = refusal(opened(provider, server), asked(tools=[SEARCH]), streamed)
    assert failure.kind == "reply"
    assert "'search'" in failure.message


@each("provider", PROVIDERS)
@each("arguments", ['{"q": 1, "q": 2}', '{"q": NaN}', '{"q": 18446744073709551616}'])
def test_arguments_that_a_run_cannot_keep_make_no_reply(opened: Opened, provider: str, arguments: str) -> None:
    with ModelServer(Say(calls=[("search", arguments)])) as server:
        assert "'search'" in refusal(opened(provider, server), asked(tools=[SEARCH]), True).message


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_tool_without_a_name_makes_no_reply(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer(Say(calls=[("", {})])) as server:
        assert "without a name" in refusal(opened(provider, server), asked(tools=[SEARCH]), streamed).message


@each("provider", PROVIDERS)
def test_no_arguments_at_all_are_an_empty_object(opened: Opened, provider: str) -> None:
    with ModelServer(Say(calls=[("search", "")])) as server:
        assert ask(opened(provider, server), asked(tools=[SEARCH]), True).tool_calls[0].arguments == {}


@each("provider", PROVIDERS)
def test_a_reply_without_counts_has_no_usage(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Hi.", usage=None)) as server:
        assert opened(provider, server).reply(asked()).usage is None


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each("count", [True, -1, 1.5, 2**53, 2**64 - 1, 10**30])
@each("which", ["in", "out"])
def test_counts_that_are_none_cost_no_reply(
    opened: Opened, provider: str, streamed: bool, count: Any, which: str
) -> None:
    usage: Any = (count, 3) if which == "in" else (7, count)
    with ModelServer(Say("Paid for.", usage=usage)) as server:
        reply = ask(opened(provider, server), asked(), streamed)
    assert (reply.content, reply.usage) == ("Paid for.", None)


DEEP = b"[" * 100_000 + b"]" * 100_000


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each("value", [DEEP, b"1" * 5000])
def test_json_that_nobody_can_read_is_no_reply(opened: Opened, provider: str, streamed: bool, value: bytes) -> None:
    body = b'{"type": "message_start", "x": ' + value + b"}"
    if streamed:
        body = b"event: message_start\ndata: " + body + b"\n\n"
    headers = {"content-type": "text/event-stream" if streamed else "application/json"}
    with ModelServer(Say(body=body, headers=headers)) as server:
        failure = refusal(opened(provider, server), asked(), streamed)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("reply", True)


@each("provider", PROVIDERS)
@each("depth", [*range(100, 1000, 30), 5000])
def test_an_error_that_nests_deep_is_one(opened: Opened, provider: str, depth: int) -> None:
    value = b"[" * depth + b"1" + b"]" * depth
    body = b'{"error": {"message": ' + value + b"}}"
    request = asked(output_schema={"type": "object", "properties": {"n": {}}, "additionalProperties": False})
    with ModelServer(Say(status=400, body=body), Say(body=body)) as server:
        model = opened(provider, server)
        assert refusal(model, request, False).kind == "model"
        assert refusal(model, request, False).kind in ("model", "reply")
        assert server.count == 2


@each("provider", PROVIDERS)
@each("depth", range(700, 1000, 30))
def test_an_end_that_nests_deep_is_no_end(opened: Opened, provider: str, depth: int) -> None:
    finish = b"[" * depth + b"]" * depth
    choice = b'[{"message": {"content": "Hi"}, "finish_reason": ' + finish + b"}]"
    body = b'{"choices": ' + choice + b', "content": [], "stop_reason": ' + finish + b"}"
    with ModelServer(Say(body=body)) as server:
        assert refusal(opened(provider, server), asked(), False).kind == "reply"


@each("provider", PROVIDERS)
def test_redirects_are_not_followed_so_that_the_key_stays(opened: Opened, provider: str) -> None:
    with ModelServer() as elsewhere, ModelServer(Say(status=307, headers={"location": elsewhere.url})) as server:
        failure = refusal(opened(provider, server), asked(), False)
        assert (server.count, elsewhere.count) == (1, 0)
    assert (failure.kind, failure.sent) == ("model", False)
    assert "status 307" in failure.message
    assert "redirects are not followed" in failure.hint


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_an_answer_that_never_ends_is_cut_off(
    opened: Opened, provider: str, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    monkeypatch.setattr("stateline.model.providers.http.ANSWER_LIMIT", 10_000)
    with ModelServer(Say("flood " * 10_000)) as server:
        failure = refusal(opened(provider, server), asked(), streamed)
        assert server.count == 1
    assert failure.kind == "reply"
    assert "sent more than" in failure.message


@each("provider", PROVIDERS)
def test_a_character_that_was_cut_in_two_is_told_whole(opened: Opened, provider: str) -> None:
    if provider == "openai":
        deltas = [{"content": "\ud83d"}, {"content": "\ude00!"}]
        pieces = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
        pieces.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        body = b"".join(b"data: %s\n\n" % _ascii(piece) for piece in pieces) + b"data: [DONE]\n\n"
    else:
        pieces = [
            {"type": "message_start", "message": {}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "\ud83d"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "\ude00!"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            {"type": "message_stop"},
        ]
        body = b"".join(b"event: %s\ndata: %s\n\n" % (str(p["type"]).encode(), _ascii(p)) for p in pieces)
    half = body.replace(b"\\ude00", b"")
    headers = {"content-type": "text/event-stream"}
    with ModelServer(Say(body=body, headers=headers), Say(body=half, headers=headers)) as server:
        model = opened(provider, server)
        heard: list[str] = []
        assert model.reply(asked(), heard.append).content == "\U0001f600!"
        assert heard == ["\U0001f600!"]
        assert "half a character" in refusal(model, asked(), True).message


class Struck(BaseException):
    """The exception of a signal handler."""


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_signal_ends_a_call_at_once(opened: Opened, provider: str, streamed: bool) -> None:
    def strike(signum: int, frame: FrameType | None) -> None:
        raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    try:
        # The answer never comes: the server waits for an event that nobody sets.
        with ModelServer(Say("Never.", until=threading.Event())) as server:
            model = opened(provider, server)
            signaller = threading.Thread(target=lambda: (server.wait(1), os.kill(os.getpid(), signal.SIGALRM)))
            signaller.start()
            with pytest.raises(Struck):
                ask(model, asked(), streamed)
            signaller.join()
            assert server.count == 1
    finally:
        signal.signal(signal.SIGALRM, before)


@each("provider", PROVIDERS)
@each("error", [ValueError("no"), OSError("gone"), UnicodeEncodeError("ascii", "é", 0, 1, "no")])
def test_what_the_hearer_raises_is_no_failure_of_the_model(opened: Opened, provider: str, error: Exception) -> None:
    def hear(text: str) -> None:
        raise error

    with ModelServer(Say("Hello.")) as server, pytest.raises(type(error)) as raised:
        opened(provider, server).reply(asked(), hear)
    assert raised.value is error


def _ascii(piece: object) -> bytes:
    import json

    return json.dumps(piece).encode()


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_settings_go_out_as_they_are(opened: Opened, provider: str, streamed: bool) -> None:
    settings = {"temperature": 0.2, "top_p": 0.5, "max_tokens": 77, "unheard_of": {"a": [1]}}
    with ModelServer(Say("Hi.")) as server:
        ask(opened(provider, server), asked(settings=settings), streamed)
        sent = server.requests[0]
    assert {name: sent[name] for name in settings} == settings
    assert sent["model"] == "model-1"


@each("provider", PROVIDERS)
@each("name", ["model", "messages", "tools", "stream"])
def test_a_setting_that_would_replace_the_call_is_refused(opened: Opened, provider: str, name: str) -> None:
    with ModelServer() as server:
        failure = refusal(opened(provider, server), asked(settings={name: "x"}), False)
        assert server.count == 0
    assert (failure.kind, failure.sent) == ("model", False)
    assert repr(name) in failure.message


@each("provider", PROVIDERS)
def test_a_call_without_a_key_sends_no_header(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Hi.")) as server:
        opened(provider, server).reply(asked())
        assert "idempotency-key" not in server.headers[0]


@each("provider", PROVIDERS)
def test_tools_without_arguments_are_sent_as_objects(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Hi.")) as server:
        opened(provider, server).reply(asked(tools=[ToolSpec("now", "The time.", {})]))
        tool = server.requests[0]["tools"][0]
    schema = tool["function"]["parameters"] if provider == "openai" else tool["input_schema"]
    assert schema == {"type": "object", "properties": {}}


@each("provider", PROVIDERS)
def test_certificates_are_read_once_for_all_calls_and_checked_in_each(
    opened: Opened, provider: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ssl

    from stateline.model.providers import http

    # Only certificates of the environment are read by the function that is counted here.
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    http._certificates.cache_clear()
    made: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def count(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        made.append(make(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", count)
    with ModelServer(otherwise=Say("Yes.")) as server:
        for _ in range(3):
            opened(provider, server).reply(asked())
    (trust,) = made
    http._certificates.cache_clear()
    assert (trust.verify_mode, trust.check_hostname) == (ssl.CERT_REQUIRED, True)


@each("provider", PROVIDERS)
def test_one_model_serves_several_threads(opened: Opened, provider: str) -> None:
    def echo(document: dict[str, Any]) -> Say:
        return Say(str(document["messages"][-1]["content"]))

    with ModelServer(otherwise=echo) as server:
        model = opened(provider, server)
        replies: dict[int, str] = {}

        def call(number: int) -> None:
            replies[number] = model.reply(asked(messages=[{"role": "user", "content": f"number {number}"}])).content

        threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert replies == {number: f"number {number}" for number in range(6)}


@each("provider", PROVIDERS)
def test_a_server_that_does_not_stream_is_heard_all_the_same(opened: Opened, provider: str) -> None:
    calls = Say("Let me see.", calls=[("search", {"q": "x"})], unstreamed=True)
    with ModelServer(Say("Good morning.", unstreamed=True), calls) as server:
        model = opened(provider, server)
        assert ask(model, asked(), True) == Reply(content="Good morning.", usage=Usage(7, 3), model="model-1")
        assert [call.name for call in ask(model, asked(tools=[SEARCH]), True).tool_calls] == ["search"]
        assert [request["stream"] for request in server.requests] == [True, True]


@each("provider", PROVIDERS)
def test_what_a_server_that_does_not_stream_cut_is_no_reply(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Good morning.", unstreamed=True, cut=40, silent=True)) as server:
        assert refusal(opened(provider, server), asked(), True).kind == "reply"
    with ModelServer(Say("Good morning.", unstreamed=True, finish="")) as server:
        assert "may be truncated" in str(refusal(opened(provider, server), asked(), True))


@each("provider", PROVIDERS)
def test_a_stream_under_another_name_is_still_read_as_one(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Good morning.", headers={"content-type": "application/json"})) as server:
        assert ask(opened(provider, server), asked(), True).content == "Good morning."
