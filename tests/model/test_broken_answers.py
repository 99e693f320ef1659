"""Answers that break at any byte, in the middle of a body or in a stream's framing: none is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from each_case import each
from model_server import CHAT, MESSAGES, ModelServer, Say, written

from stateline.model.protocol import Model, ModelCallError, ModelRequest, Reply, ToolSpec
from stateline.model.providers.selection import PROVIDERS

Opened = Callable[[str, ModelServer], Model]

SEARCH = ToolSpec("search", "Searches.", {"type": "object", "properties": {"q": {"type": "string"}}})
EVENTS = {"content-type": "text/event-stream"}
TEXT = Say("All of it, é.")
CALL = Say("", calls=[("search", {"q": "all of it"})], ids=["a"])


def body(provider: str, said: Say, *, stream: bool) -> bytes:
    """The whole body of an answer."""
    return written(said, CHAT if provider == "openai" else MESSAGES, stream=stream)


def came(opened: Opened, provider: str, said: list[Say], streamed: bool) -> list[Reply | str]:
    """Return the reply of each provider, or the kind of the failure; streamed text is a prefix of the reply."""
    outcomes: list[Reply | str] = []
    with ModelServer(*said) as server:
        model = opened(provider, server)
        for _ in said:
            heard: list[str] = []
            request = ModelRequest(model="m", messages=[{"role": "user", "content": "Hi"}], tools=[SEARCH])
            try:
                outcomes.append(model.reply(request, heard.append if streamed else None))
            except ModelCallError as failed:
                outcomes.append(failed.kind)
            assert TEXT.text.startswith("".join(heard))
        assert server.count == len(said)
    return outcomes


@each("provider", PROVIDERS)
@each("said", [TEXT, CALL])
def test_a_stream_that_ends_at_any_byte_is_no_reply_or_the_whole_one(opened: Opened, provider: str, said: Say) -> None:
    whole = body(provider, said, stream=True)
    cuts = [*range(0, len(whole), 29), *range(len(whole) - 40, len(whole) + 1, 3), len(whole)]
    outcomes = came(opened, provider, [Say(body=whole[:cut], headers=EVENTS) for cut in cuts], True)
    good = outcomes[-1]
    assert isinstance(good, Reply)
    assert good.content == said.text
    assert [call.arguments for call in good.tool_calls] == [value for _, value in said.calls]
    # The reply is whole once its end was told; counts may come after that, and be lost.
    told = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
    assert {(reply.content, str(reply.tool_calls), reply.finish) for reply in told} == {
        (good.content, str(good.tool_calls), good.finish)
    }
    end = whole.index(b'"finish_reason": "' if provider == "openai" else b"event: message_stop")
    assert all(outcome == "reply" for cut, outcome in zip(cuts, outcomes, strict=True) if cut <= end)
    assert "reply" in outcomes


@each("provider", PROVIDERS)
@each("said", [TEXT, CALL])
@each("streamed", [False, True])
def test_json_that_ends_at_any_byte_is_no_reply(opened: Opened, provider: str, said: Say, streamed: bool) -> None:
    """Also where a stream was asked for, of a server that knows none."""
    whole = body(provider, said, stream=False)
    cuts = [*range(0, len(whole), 29), *range(len(whole) - 12, len(whole))]
    outcomes = came(opened, provider, [Say(body=whole[:cut]) for cut in cuts], streamed)
    assert set(outcomes) == {"reply"}


FRAMINGS: dict[str, Callable[[bytes], bytes]] = {
    "lines that end as on Windows": lambda whole: whole.replace(b"\n", b"\r\n"),
    "comments between": lambda whole: b": hold on\n\n" + whole.replace(b"\n\n", b"\n\n: ping\n\n"),
    "no space after the colon": lambda whole: whole.replace(b"data: ", b"data:").replace(b"event: ", b"event:"),
    "ids and times": lambda whole: whole.replace(b"data: ", b"id: 7\nretry: 10\ndata: "),
}


@each("provider", PROVIDERS)
@each("framing", FRAMINGS)
def test_a_stream_may_be_framed_in_every_way_that_events_allow(opened: Opened, provider: str, framing: str) -> None:
    sent = FRAMINGS[framing](body(provider, TEXT, stream=True))
    (reply,) = came(opened, provider, [Say(body=sent, headers=EVENTS)], True)
    assert isinstance(reply, Reply)
    assert reply.content == TEXT.text


def _without_an_end(whole: bytes) -> bytes:
    return whole.replace(b"\n\n", b"\n")


def _doubled_brace(whole: bytes) -> bytes:
    return whole.replace(b"data: {", b"data: {{", 3)


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "events that never end": _without_an_end,
    "json with a brace too many": _doubled_brace,
    "json cut in an event": lambda whole: whole.replace(b'"}', b'"', 1),
    "bytes that are no text": lambda whole: whole.replace(b"All", b"\xff\xfe\xfd", 1),
    "a page instead": lambda whole: b"<html><body>Bad gateway</body></html>",
    "json instead of events": lambda whole: b'{"detail": "no"}\n\n',
}


@each("provider", PROVIDERS)
@each("fault", BROKEN)
def test_a_stream_that_is_malformed_is_no_reply(opened: Opened, provider: str, fault: str) -> None:
    sent = BROKEN[fault](body(provider, TEXT, stream=True))
    assert came(opened, provider, [Say(body=sent, headers=EVENTS)], True) == ["reply"]


@each("provider", PROVIDERS)
def test_a_body_that_stalls_in_the_middle_ends_with_the_time_of_the_call(opened: Opened, provider: str) -> None:
    request = ModelRequest(model="m", messages=[{"role": "user", "content": "Hi"}], timeout=0.3)
    with ModelServer(Say("Half of it", pause=20)) as server:
        with pytest.raises(ModelCallError) as raised:
            opened(provider, server).reply(request)
        assert server.count == 1
    assert (raised.value.kind, raised.value.sent) == ("timeout", True)


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each("fault", [Say(status=500), Say("Half", cut=3), Say(status=429, headers={"retry-after": "0.05"})])
def test_each_attempt_of_a_call_bears_the_same_key_and_asks_the_same(
    opened: Opened, provider: str, streamed: bool, fault: Any
) -> None:
    request = ModelRequest(model="m", messages=[{"role": "user", "content": "Hi"}], key="run:1:0:aa")
    cut = streamed and fault.cut is not None
    with ModelServer(fault, Say("Yes.")) as server:
        model = opened(provider, server)
        if cut:  # words were heard already: the run makes the next attempt, with the same key
            with pytest.raises(ModelCallError):
                model.reply(request, lambda text: None)
        assert model.reply(request, (lambda text: None) if streamed else None).content == "Yes."
        (key,) = {headers["idempotency-key"] for headers in server.headers}
        assert key.startswith("run:1:0:aa")
        assert server.requests[0] == server.requests[1]
