"""The bounds of a run hold for calls of models, however often the process dies and whatever a server leaves unsaid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from typing import Any

import pytest
from model_server import ModelServer, Say

from stateline import Store

KEY = "sk-not-a-real-key-0123456789abcdef"
HELD = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.fixture
def model(cli: Any) -> list[str]:
    """The words that name the model; its key is in the environment."""
    cli.monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("OPENAI_BASE_URL", "STATELINE_MODEL", "STATELINE_BASE_URL"):
        cli.monkeypatch.delenv(name, raising=False)
    return ["-m", "openai/model-1"]


def machine(cli: Any, bounds: dict[str, Any], **stage: Any) -> str:
    think = {"agent": {"prompt": "Go on."}, "default_next": "end", **stage}
    return str(cli.machine("m", _bounds=bounds, think=think, end={"end": {}}))


def events(cli: Any, run: str) -> list[dict[str, Any]]:
    """Oldest first."""
    store = Store.open(os.environ["STATELINE_STATE_DIR"])
    return [snapshot.event for snapshot in store.scope(f"run:{run}").walk()][::-1]


def state(cli: Any, run: str) -> Any:
    store = Store.open(os.environ["STATELINE_STATE_DIR"])
    return store.resolve(store.scope(f"run:{run}").load().state)


def cut_off(cli: Any, server: ModelServer, words: list[str], signum: int) -> None:
    """A process of its own that calls the model, and is ended in the middle of that."""
    before = server.count
    process: subprocess.Popen[bytes] = cli.start(*words, env=dict(os.environ))
    server.wait(before + 1)
    process.send_signal(signum)
    out = process.communicate(timeout=30)
    assert process.returncode == HELD[signal.Signals(signum)], out


@pytest.mark.parametrize("signum", HELD)
def test_a_bound_of_calls_holds_however_often_the_process_dies(cli: Any, model: list[str], signum: int) -> None:
    path = machine(cli, {"max_llm_calls": 2})
    with ModelServer(otherwise=Say("never", until=threading.Event())) as server:
        words = ["execute", path, "--id", "r", *model, "--base-url", server.url]
        for _ in range(2):
            cut_off(cli, server, words, signum)
        for _ in range(3):
            document = cli.json(*words, exits=1)
            assert (document["reason"], document["error"]["bound"]) == ("limit", "max_llm_calls")
        assert server.count == 2
        assert len({headers["idempotency-key"] for headers in server.headers}) == 1
    assert events(cli, "r")[-1]["meters"]["llm_calls"] == 2


def test_a_lost_call_is_made_again_unasked_and_leaves_no_trace_in_the_state(cli: Any, model: list[str]) -> None:
    path = machine(cli, {"max_llm_calls": 3})
    held = Say("never", until=threading.Event())
    with ModelServer(held, otherwise=Say("Done.")) as server:
        words = ["execute", path, *model, "--base-url", server.url]
        cut_off(cli, server, [*words, "--id", "killed"], signal.SIGKILL)
        assert cli.json(*words, "--id", "killed")["output"] == "Done."
        assert cli.json(*words, "--id", "whole")["output"] == "Done."
        assert server.count == 3
    assert state(cli, "killed") == state(cli, "whole")
    assert [event["type"] for event in events(cli, "killed")] == ["started", "intended", "lost", "intended", "replied"]
    assert [events(cli, run)[-1]["meters"]["llm_calls"] for run in ("killed", "whole")] == [2, 1]
    assert [event["turn"] for event in events(cli, "killed")] == [0, 1, 1, 1, 1]


def test_without_that_bound_no_call_is_counted_before(cli: Any, model: list[str]) -> None:
    path = machine(cli, {"max_tokens": 1000})
    with ModelServer(Say("Done.")) as server:
        cli.json("execute", path, "--id", "r", *model, "--base-url", server.url)
    assert [event["type"] for event in events(cli, "r")] == ["started", "replied"]


def test_a_lost_call_that_must_not_be_repeated_counts_once_when_its_reply_is_given(cli: Any, model: list[str]) -> None:
    path = machine(cli, {"max_llm_calls": 1}, repeatable=False)
    with ModelServer(otherwise=Say("never", until=threading.Event())) as server:
        words = ["execute", path, "--id", "r", *model, "--base-url", server.url]
        cut_off(cli, server, words, signal.SIGKILL)
        assert cli.json(*words, exits=3)["reason"] == "unknown_outcome"
        cli.refused("exec", "resume", "r", "--retry", *model, "--base-url", server.url, exits=1)
        assert cli.json("exec", "resume", "r", "--input", '"Found."')["output"] == "Found."
        assert server.count == 1
    assert events(cli, "r")[-1]["meters"]["llm_calls"] == 1


@pytest.mark.parametrize(("allowed", "made"), [(1, 1), (2, 2), (9, 3)])
def test_a_call_whose_answer_was_cut_is_made_again_as_far_as_the_bound_allows(
    cli: Any, model: list[str], allowed: int, made: int
) -> None:
    path = machine(cli, {"max_llm_calls": allowed})
    with ModelServer(otherwise=Say("A whole answer", cut=20)) as server:
        document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, exits=1)
        assert server.count == made
    assert document["reason"] == ("limit" if allowed < 3 else "reply")
    assert "before the reply was whole" in document["error"]["message"]
    assert events(cli, "r")[-1]["meters"]["llm_calls"] == made


def test_attempts_that_a_server_refuses_use_up_no_call(cli: Any, model: list[str]) -> None:
    path = machine(cli, {"max_llm_calls": 1})
    busy = Say(status=429, headers={"retry-after-ms": "5"})
    with ModelServer(busy, busy, busy, Say("Done.")) as server:
        words = [*model, "--base-url", server.url]
        cli.json("execute", path, "--id", "r", *words, exits=1)
        assert events(cli, "r")[-1]["meters"]["llm_calls"] == 0
        assert cli.json("exec", "resume", "r", "--retry", *words)["output"] == "Done."
        assert server.count == 4
    assert events(cli, "r")[-1]["meters"]["llm_calls"] == 1


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_call_that_could_not_be_made_is_given_back(cli: Any, model: list[str], repeatable: bool) -> None:
    path = machine(cli, {"max_llm_calls": 1}, repeatable=repeatable)
    with ModelServer(Say("Done.")) as server:
        words = ["execute", path, "--id", "r", *model, "--base-url", server.url]
        wrong = {**os.environ, "HTTP_PROXY": "ftp://127.0.0.1:9", "NO_PROXY": "", "no_proxy": ""}
        process = cli.start(*words, env=wrong)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, b"nothing was sent" in err, server.count) == (1, True, 0)
        assert [event["type"] for event in events(cli, "r")] == ["started", "intended", "unsent"]
        assert events(cli, "r")[-1]["meters"]["llm_calls"] == 0
        assert cli.json(*words)["output"] == "Done."


def test_a_bound_of_tokens_counts_replies_that_were_refused(cli: Any, model: list[str]) -> None:
    path = machine(cli, {"max_tokens": 2000}, retry={"max_attempts": 8, "backoff": 0.0})
    with ModelServer(otherwise=Say("half", finish="length", usage=(1000, 500))) as server:
        document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, exits=1)
        assert (document["error"]["bound"], server.count) == ("max_tokens", 2)
        # A server that keeps what it answered by a key would give the same half again.
        assert len({headers["idempotency-key"] for headers in server.headers}) == 2
    assert events(cli, "r")[-1]["meters"]["tokens"] == {"input": 2000, "output": 1000}


def test_a_bound_of_tokens_holds_where_the_server_reports_none(cli: Any, model: list[str]) -> None:
    path = machine(cli, {"max_tokens": 300}, retry={"max_attempts": 20, "backoff": 0.0})
    with ModelServer(otherwise=Say("half " * 10, finish="length", usage=None)) as server:
        result = cli("execute", path, "--id", "r", *model, "--base-url", server.url, "--format", "json")
        assert (result.code, server.count <= 2) == (1, True)
    document = result.document
    assert document["error"]["bound"] == "max_tokens"
    assert [warning for warning in document["warnings"] if "does not say how many tokens" in warning] != []
    assert len([warning for warning in document["warnings"] if "tokens" in warning]) == 1
    assert events(cli, "r")[-1]["meters"]["tokens"]["input"] >= len(json.dumps("Go on."))


def test_without_a_bound_of_tokens_nothing_is_guessed(cli: Any, model: list[str]) -> None:
    path = machine(cli, {})
    with ModelServer(Say("Done.", usage=None)) as server:
        document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url)
    assert (document["warnings"], "tokens" in events(cli, "r")[-1]["meters"]) == ([], False)


def test_a_bound_of_time_ends_a_call_and_the_run_by_its_name(cli: Any, model: list[str]) -> None:
    path = machine(cli, {"timeout": 1.0}, retry={"max_attempts": 5, "backoff": 0.0}, timeout=60)
    with ModelServer(otherwise=Say("never", until=threading.Event())) as server:
        document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, exits=1)
        assert (document["reason"], document["error"]["bound"], server.count) == ("limit", "timeout", 1)
    assert "gave no whole reply" in document["error"]["message"]
