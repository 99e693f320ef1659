"""Cost of a call in attempts, tokens and time; idempotency keys; errors of the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from each_case import each
from model.provider_requests import QUICK, SEARCH, Opened, ask, asked, refusal
from model.recording_samples import Scripted
from model_server import CHAT, MESSAGES, ModelServer, Say, written

from stateline.errors import RequestError
from stateline.model.protocol import CallCost, ModelCallError, ModelRequest, Reply, Usage
from stateline.model.providers import http
from stateline.model.providers.selection import PROVIDERS
from stateline.model.recordings.playback import Playback
from stateline.model.recordings.recorder import Recorder

CUT = {"openai": "length", "anthropic": "max_tokens"}
HELD = {"openai": "content_filter", "anthropic": "refusal"}
GOOD = {"openai": "stop", "anthropic": "end_turn"}


# -- what was paid -----------------------------------------------------------------------------------------------------


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each("said", ["cut", "held back", "empty", "malformed"])
def test_a_reply_that_was_refused_tells_what_was_paid_for_it(
    opened: Opened, provider: str, streamed: bool, said: str
) -> None:
    script = {
        "cut": Say("half", finish=CUT[provider]),
        "held back": Say("half", finish=HELD[provider]),
        "empty": Say(""),
        "malformed": Say(calls=[("search", '["no object"]')]),
    }
    with ModelServer(script[said]) as server:
        failure = refusal(opened(provider, server), asked(tools=[SEARCH]), streamed)
    assert (failure.kind, failure.usage, failure.cost.calls) == ("reply", Usage(7, 3), 1)


@each("provider", PROVIDERS)
def test_a_stream_that_breaks_after_its_usage_tells_what_was_paid(opened: Opened, provider: str) -> None:
    # OpenAI's usage is the piece before the end; Anthropic's begins with the message, and is a total all through.
    pieces = {"openai": 4, "anthropic": 2}
    with ModelServer(Say("Hi", cut=pieces[provider])) as server:
        failure = refusal(opened(provider, server), asked(), True)
    assert (failure.usage or Usage()).input == 7
    assert failure.cost.calls == 1


@each("provider", PROVIDERS)
def test_a_reply_without_usage_that_is_refused_tells_how_much_came(opened: Opened, provider: str) -> None:
    with ModelServer(Say("half", finish=CUT[provider], usage=None)) as server:
        failure = refusal(opened(provider, server), asked(), False)
    assert failure.usage is None
    assert failure.cost.received > len("half")


# -- which attempts count ----------------------------------------------------------------------------------------------


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_attempts_that_the_server_refused_are_no_calls(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer(Say(status=429, headers=QUICK), Say(status=500, headers=QUICK), Say("Yes.")) as server:
        assert ask(opened(provider, server), asked(), streamed).calls == 1
    with ModelServer(otherwise=Say(status=500, headers=QUICK)) as server:
        failure = refusal(opened(provider, server), asked(), streamed)
        assert (server.count, failure.cost) == (3, CallCost(calls=0))


@each("provider", PROVIDERS)
def test_an_attempt_whose_answer_was_lost_is_a_call(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Half an answer", cut=20), Say("Yes.")) as server:
        assert opened(provider, server).reply(asked()).calls == 2
    with ModelServer(otherwise=Say("Half an answer", cut=20)) as server:
        assert refusal(opened(provider, server), asked(), False).cost.calls == 3


@each("provider", PROVIDERS)
def test_a_server_that_is_not_there_was_not_called(provider: str, opened: Opened) -> None:
    with ModelServer() as server:
        model = opened(provider, server)
    assert refusal(model, asked(), False).cost == CallCost(calls=0)


@each("provider", PROVIDERS)
def test_a_single_call_is_not_made_again_by_itself_once_it_counts(opened: Opened, provider: str) -> None:
    with ModelServer(Say(status=429, headers=QUICK), Say("Half an answer", cut=20), Say("Yes.")) as server:
        failure = refusal(opened(provider, server), asked(single=True), False)
        assert (server.count, failure.cost.calls, failure.retryable) == (2, 1, True)
        assert opened(provider, server).reply(asked(single=True)).calls == 1


@each("provider", PROVIDERS)
def test_a_single_call_that_must_not_be_repeated_is_not_said_to_be_lost(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Half an answer", cut=20)) as server:
        failure = refusal(opened(provider, server), asked(single=True, repeatable=False), False)
    assert (failure.cost.calls, failure.retryable) == (1, False)


def test_what_a_call_has_used_plays_back_as_it_was(tmp_path: Path) -> None:
    lost = ModelCallError("reply", "half", sent=True, cost=CallCost(calls=3, usage=Usage(1, 2), received=0))
    bare = ModelCallError("reply", "half", sent=True, cost=CallCost(calls=0, received=9))
    replies: list[Any] = [lost, bare, Reply(content="x", calls=2), Reply(content="y")]
    for came in replies:
        try:
            Recorder(Scripted([came]), tmp_path).reply(asked())
        except ModelCallError:
            pass
    kept = [json.loads((tmp_path / f"000{n}.json").read_text()) for n in (1, 2, 3, 4)]
    assert [kept[0]["error"][name] for name in ("calls", "usage")] == [3, {"input": 1, "output": 2}]
    assert ("calls" in kept[2]["reply"], "calls" in kept[3]["reply"]) == (True, False)
    played = Playback(tmp_path, "sequential")
    for failed in (lost, bare):
        with pytest.raises(ModelCallError) as raised:
            played.reply(asked())
        assert raised.value.cost == failed.cost
    assert [played.reply(asked()).calls, played.reply(asked()).calls] == [2, 1]


# -- bad ends ----------------------------------------------------------------------------------------------------------


@each("provider", PROVIDERS)
@each("first", [CUT, HELD])
def test_a_bad_end_of_a_stream_stays_whatever_is_said_after_it(
    opened: Opened, provider: str, first: dict[str, str]
) -> None:
    path = CHAT if provider == "openai" else MESSAGES
    good = written(Say("half of"), path, stream=True).decode().split("\n\n")
    bad = written(Say("half of", finish=first[provider]), path, stream=True).decode().split("\n\n")
    said = next(index for index, piece in enumerate(bad) if first[provider] in piece)
    body = "\n\n".join([*bad[: said + 1], good[said], *good[said + 1 :]]).encode()
    stream = Say(body=body, headers={"content-type": "text/event-stream"})
    with ModelServer(stream) as server:
        failure = refusal(opened(provider, server), asked(), True)
    assert failure.kind == "reply"
    assert "limit of tokens" in failure.message or "filter" in failure.message


# -- time --------------------------------------------------------------------------------------------------------------


@each("provider", PROVIDERS)
@each("value", ["nan", "-inf", "-5", "soon"])
def test_a_wait_that_cannot_be_is_none(opened: Opened, provider: str, value: str) -> None:
    with ModelServer(Say(status=429, headers={"retry-after": value}), Say("Yes.")) as server:
        assert opened(provider, server).reply(asked()).content == "Yes."
        assert server.count == 2


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_call_without_a_time_of_its_own_ends_all_the_same(
    opened: Opened, provider: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something comes all the time, so that no wait for anything is long."""
    monkeypatch.setattr(http, "CALL_TIMEOUT", 1.0)
    drip = Say("drip " * 200, pause=0.1)
    if not streamed:
        drip = Say(body=b" " * 4000, drip=0.1)
    with ModelServer(otherwise=drip) as server:
        failure = refusal(opened(provider, server), asked(timeout=0.0), streamed)
        assert server.count == 1
    assert failure.kind == "timeout"
    assert "within 1 s" in failure.message


# -- keys --------------------------------------------------------------------------------------------------------------


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_server_that_keeps_keys_is_asked_for_something_new_where_something_is_new(
    opened: Opened, provider: str, streamed: bool
) -> None:
    request = asked(key="r:1:0:aa")
    others = [asked(key="r:1:0:aa", mark="1"), asked(key="r:1:0:aa", settings={"top_k": 3}), asked(key="r:2:0:aa")]
    with ModelServer(otherwise=Say("Hi.")) as server:
        for one in (request, request, *others):
            ask(opened(provider, server), one, streamed)
        keys = [headers["idempotency-key"] for headers in server.headers]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert all(key.startswith(request.key.split(":")[0]) for key in keys)


@each("provider", PROVIDERS)
def test_another_model_is_asked_by_another_key(provider: str) -> None:
    from stateline.model.providers.selection import Choice, open_model

    with ModelServer(otherwise=Say("Hi.")) as server:
        url = server.url if provider == "openai" else server.origin
        for name in ("one", "two"):
            choice = Choice(provider, name, url)
            open_model(choice, environ={f"{provider.upper()}_API_KEY": "sk-x-0123456789"}).reply(asked(key="k"))
        first, second = (headers["idempotency-key"] for headers in server.headers)
    assert first != second


def test_the_mark_of_a_request_decides_nothing_of_its_reply() -> None:
    one, other = asked(key="a", mark="x", single=True), asked(key="b")
    assert isinstance(one, ModelRequest)
    assert one.digest() == other.digest()


# -- the environment ---------------------------------------------------------------------------------------------------

MISTAKES = [
    ("SSL_CERT_FILE", "/nope/certificates", "FileNotFoundError"),
    ("SSLKEYLOGFILE", "/nope/keys", "FileNotFoundError"),
    ("HTTP_PROXY", "ftp://127.0.0.1:9", "ValueError"),
    ("ALL_PROXY", "socks5://127.0.0.1:9", "ImportError"),
]


@each("provider", PROVIDERS)
@each("name, value, cause", MISTAKES)
def test_a_mistake_in_the_environment_is_told_and_nothing_is_sent(
    opened: Opened, provider: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str, cause: str, tmp_path: Path
) -> None:
    for other in ("NO_PROXY", "no_proxy", "SSL_CERT_FILE"):
        monkeypatch.delenv(other, raising=False)
    # Keys are logged only where certificates come from the environment.
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv(name, value)
    http._certificates.cache_clear()
    try:
        with ModelServer(otherwise=Say("Hi.")) as server:
            with pytest.raises(RequestError, match="nothing was sent") as raised:
                opened(provider, server).reply(asked())
            assert server.count == 0
    finally:
        monkeypatch.undo()
        http._certificates.cache_clear()
    assert cause in raised.value.message


def test_a_header_of_the_environment_that_cannot_be_written_is_told(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "OPENAI_ORG_ID", "é")
    with ModelServer(otherwise=Say("Hi.")) as server:
        with pytest.raises(RequestError, match="nothing was sent"):
            opened("openai", server).reply(asked())
        assert server.count == 0
