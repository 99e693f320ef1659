"""The bounds of a run hold for calls of models, however often the process dies and whatever a server leaves unsaid."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from typing import Any

import pytest
from command_line import Cli
from each_case import Failures
from model_server import ModelServer, Say

from stateline import Store
from stateline.bundle.naming import scope_hash

KEY = "sk-not-a-real-key-0123456789abcdef"
HELD = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}


def make_model(cli: Cli) -> list[str]:
    """The words that name the model; its key is in the environment."""
    cli.monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("OPENAI_BASE_URL", "STATELINE_MODEL", "STATELINE_BASE_URL"):
        cli.monkeypatch.delenv(name, raising=False)
    return ["-m", "openai/model-1"]


@pytest.fixture
def model(cli: Cli) -> list[str]:
    return make_model(cli)


def machine(cli: Cli, bounds: dict[str, Any], **stage: Any) -> str:
    think = {"agent": {"prompt": "Go on."}, "default_next": "end", **stage}
    return str(cli.machine("m", _bounds=bounds, think=think, end={"end": {}}))


def events(cli: Cli, run: str) -> list[dict[str, Any]]:
    """Oldest first."""
    store = Store.open(os.environ["STATELINE_STATE_DIR"])
    return [snapshot.event for snapshot in store.scope(f"run:{run}").walk()][::-1]


def state(cli: Cli, run: str) -> Any:
    store = Store.open(os.environ["STATELINE_STATE_DIR"])
    return store.resolve(store.scope(f"run:{run}").load().state)


def cut_off(cli: Cli, server: ModelServer, words: list[str], signum: int) -> None:
    """A process of its own that calls the model, and is ended in the middle of that."""
    before = server.count
    process: subprocess.Popen[bytes] = cli.start(*words, env=dict(os.environ))
    server.wait(before + 1)
    process.send_signal(signum)
    out = process.communicate(timeout=30)
    assert process.returncode == HELD[signal.Signals(signum)], out


def test_a_bound_of_calls_holds_however_often_the_process_dies(cli: Cli) -> None:
    failures = Failures()
    for signum in HELD:
        with failures.case(signum), cli.fresh():
            model = make_model(cli)
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
    failures.check()


def test_a_lost_call_is_made_again_unasked_and_leaves_no_trace_in_the_state(cli: Cli, model: list[str]) -> None:
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


def test_without_that_bound_no_call_is_counted_before(cli: Cli, model: list[str]) -> None:
    path = machine(cli, {"max_tokens": 1000})
    with ModelServer(Say("Done.")) as server:
        cli.json("execute", path, "--id", "r", *model, "--base-url", server.url)
    assert [event["type"] for event in events(cli, "r")] == ["started", "replied"]


def test_a_lost_call_that_must_not_be_repeated_counts_once_when_its_reply_is_given(cli: Cli, model: list[str]) -> None:
    path = machine(cli, {"max_llm_calls": 1}, repeatable=False)
    with ModelServer(otherwise=Say("never", until=threading.Event())) as server:
        words = ["execute", path, "--id", "r", *model, "--base-url", server.url]
        cut_off(cli, server, words, signal.SIGKILL)
        assert cli.json(*words, exits=3)["reason"] == "unknown_outcome"
        cli.refused("exec", "resume", "r", "--retry", *model, "--base-url", server.url, exits=1)
        assert cli.json("exec", "resume", "r", "--answer", '"Found."')["output"] == "Found."
        assert server.count == 1
    assert events(cli, "r")[-1]["meters"]["llm_calls"] == 1


def test_a_call_whose_answer_was_cut_is_made_again_as_far_as_the_bound_allows(cli: Cli) -> None:
    failures = Failures()
    for allowed, made in [(1, 1), (2, 2), (9, 3)]:
        with failures.case(allowed, made), cli.fresh():
            model = make_model(cli)
            path = machine(cli, {"max_llm_calls": allowed})
            with ModelServer(otherwise=Say("A whole answer", cut=20)) as server:
                document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, exits=1)
                assert server.count == made
            assert document["reason"] == ("limit" if allowed < 3 else "reply")
            assert "before the reply was complete" in document["error"]["message"]
            assert events(cli, "r")[-1]["meters"]["llm_calls"] == made
    failures.check()


def test_attempts_that_a_server_refuses_use_up_no_call(cli: Cli, model: list[str]) -> None:
    path = machine(cli, {"max_llm_calls": 1})
    busy = Say(status=429, headers={"retry-after-ms": "5"})
    with ModelServer(busy, busy, busy, Say("Done.")) as server:
        words = [*model, "--base-url", server.url]
        cli.json("execute", path, "--id", "r", *words, exits=1)
        assert events(cli, "r")[-1]["meters"]["llm_calls"] == 0
        assert cli.json("exec", "resume", "r", "--retry", *words)["output"] == "Done."
        assert server.count == 4
    assert events(cli, "r")[-1]["meters"]["llm_calls"] == 1


def test_a_call_that_could_not_be_made_is_given_back(cli: Cli) -> None:
    failures = Failures()
    for repeatable in [True, False]:
        with failures.case(repeatable), cli.fresh():
            model = make_model(cli)
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
    failures.check()


def test_a_bound_of_tokens_counts_replies_that_were_refused(cli: Cli, model: list[str]) -> None:
    path = machine(cli, {"max_tokens": 2000}, retry={"max_attempts": 8, "backoff": 0.0})
    with ModelServer(otherwise=Say("half", finish="length", usage=(1000, 500))) as server:
        document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, exits=1)
        assert (document["error"]["bound"], server.count) == ("max_tokens", 2)
        # A server that keeps what it answered by a key would give the same half again.
        assert len({headers["idempotency-key"] for headers in server.headers}) == 2
    assert events(cli, "r")[-1]["meters"]["tokens"] == {"input": 2000, "output": 1000}


def test_a_bound_of_tokens_holds_where_the_server_reports_none(cli: Cli, model: list[str]) -> None:
    path = machine(cli, {"max_tokens": 300}, retry={"max_attempts": 20, "backoff": 0.0})
    with ModelServer(otherwise=Say("half " * 10, finish="length", usage=None)) as server:
        result = cli("execute", path, "--id", "r", *model, "--base-url", server.url, "--format", "json")
        assert (result.code, server.count <= 2) == (1, True)
    document = result.document
    assert document["error"]["bound"] == "max_tokens"
    assert [warning for warning in document["warnings"] if "does not say how many tokens" in warning] != []
    assert len([warning for warning in document["warnings"] if "tokens" in warning]) == 1
    assert events(cli, "r")[-1]["meters"]["tokens"]["input"] >= len(json.dumps("Go on."))


def test_without_a_bound_of_tokens_nothing_is_guessed(cli: Cli, model: list[str]) -> None:
    path = machine(cli, {})
    with ModelServer(Say("Done.", usage=None)) as server:
        document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url)
    assert (document["warnings"], "tokens" in events(cli, "r")[-1]["meters"]) == ([], False)


def test_a_bound_of_time_ends_a_call_and_the_run_by_its_name(cli: Cli, model: list[str]) -> None:
    path = machine(cli, {"timeout": 1.0}, retry={"max_attempts": 5, "backoff": 0.0}, timeout=60)
    with ModelServer(otherwise=Say("never", until=threading.Event())) as server:
        document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, exits=1)
        assert (document["reason"], document["error"]["bound"], server.count) == ("limit", "timeout", 1)
    assert "gave no complete reply" in document["error"]["message"]


# -- recorded, and played back -----------------------------------------------------------------------------------------


def steps(cli: Cli, run: str) -> list[tuple[str, int, Any]]:
    """The events of a run: type, turn and failure."""
    return [(event["type"], event["turn"], event.get("error")) for event in events(cli, run)]


def played(cli: Cli, path: str, place: Any) -> list[Any]:
    """The state after playing a recording back in one call, and in calls of one turn each."""
    cli("execute", path, "--id", "played", "--playback", str(place))
    words = ["--playback", str(place)]
    for _ in range(9):
        if cli("execute", "-i", path, "--id", "alone", *words).code != 0:
            break
        words = []
    return [state(cli, run) for run in ("played", "alone")]


def test_recording_does_not_change_how_a_counted_call_ends_that_was_lost_on_its_way(cli: Cli) -> None:
    failures = Failures()
    for lost in [1, 2, 3]:
        with failures.case(lost), cli.fresh():
            model = make_model(cli)
            path = machine(cli, {"max_llm_calls": 9})
            for run, more in (("plain", []), ("kept", ["--record", str(cli.home / "kept")])):
                with ModelServer(*[Say("A whole answer", cut=20)] * lost, otherwise=Say("Done.")) as server:
                    result = cli(
                        "execute", path, "--id", run, *model, "--base-url", server.url, *more, "--format", "json"
                    )
                assert result.code == (0 if lost < 3 else 1)
            assert steps(cli, "kept") == steps(cli, "plain")
            assert [event["meters"]["llm_calls"] for event in events(cli, "kept")] == [
                event["meters"]["llm_calls"] for event in events(cli, "plain")
            ]
            assert [event.get("effect", {}).get("refused") for event in events(cli, "kept")] == [
                event.get("effect", {}).get("refused") for event in events(cli, "plain")
            ]
            assert played(cli, path, cli.home / "kept") == [state(cli, "plain")] * 2
            assert [(kind, error) for kind, _, error in steps(cli, "played")] == [
                (kind, error) for kind, _, error in steps(cli, "plain")
            ]
    failures.check()


def test_a_call_that_the_bound_of_time_ended_is_played_back_as_ended_by_it(cli: Cli, model: list[str]) -> None:
    ways: dict[str, Any] = {"retry": {"max_attempts": 3, "backoff": 0.0}, "error_next": "end", "timeout": 60}
    path = machine(cli, {"timeout": 1.0}, **ways)
    with ModelServer(otherwise=Say("never", until=threading.Event())) as server:
        cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, "--record", str(cli.home / "kept"))
        assert server.count == 1
    error = json.loads((cli.home / "kept" / "0001.json").read_text())["error"]
    assert (error["kind"], error["bound"]) == ("timeout", "timeout")
    assert [way["reason"] for way in events(cli, "r")[-1]["transitions"]] == ["limit", "complete"]
    assert played(cli, path, cli.home / "kept") == [state(cli, "r")] * 2


def test_a_stage_that_took_all_its_own_time_has_not_used_up_the_run_s(cli: Cli, model: list[str]) -> None:
    path = machine(cli, {"timeout": 60}, timeout=0.5)
    with ModelServer(otherwise=Say("never", until=threading.Event())) as server:
        words = ["--record", str(cli.home / "kept")]
        document = cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, *words, exits=1)
    assert document["reason"] == "timeout"
    assert "bound" not in json.loads((cli.home / "kept" / "0001.json").read_text())["error"]
    assert played(cli, path, cli.home / "kept") == [state(cli, "r")] * 2


def unsaved(cli: Cli, server: ModelServer, words: list[str], held: threading.Event) -> None:
    """A call whose reply is recorded, and whose process dies before the run is saved: the store is put back."""
    before = server.count
    process = cli.start(*words, env=dict(os.environ))
    server.wait(before + 1)
    scope = Store.open(cli.state).scope("run:r")
    deadline = time.monotonic() + 30
    while scope.load().event["type"] != "intended" and time.monotonic() < deadline:
        time.sleep(0.01)
    shutil.copytree(cli.state, cli.home / "before")
    held.set()
    process.communicate(timeout=60)
    shutil.rmtree(cli.state)
    shutil.move(cli.home / "before", cli.state)


def test_what_was_recorded_and_not_saved_is_used_and_counts_once(cli: Cli) -> None:
    failures = Failures()
    for said in ["Done.", "cut"]:
        with failures.case(said), cli.fresh():
            model = make_model(cli)
            path = machine(cli, {"max_llm_calls": 1}, error_next="end")
            held, place = threading.Event(), cli.home / "kept"
            with ModelServer(Say(said, until=held, finish="stop" if said == "Done." else "length")) as server:
                words = ["execute", path, "--id", "r", *model, "--base-url", server.url, "--record", str(place)]
                unsaved(cli, server, words, held)
                assert [found.name for found in sorted(place.iterdir())] == ["0001.json"]
                plan = cli.json(*words, "--dry-run")["plan"]
                assert (plan["action"], plan["effects"]) == ("advance", [])
                document = cli.json(*words)
                assert (server.count, len(list(place.iterdir()))) == (1, 1)
            assert document["output"] == ("Done." if said == "Done." else None)
            assert [event["type"] for event in events(cli, "r")] == [
                "started", "intended", "replied" if said == "Done." else "failed"
            ]  # fmt: skip
            assert events(cli, "r")[-1]["meters"]["llm_calls"] == 1
    failures.check()


# -- what a dry run says of a call that was lost -----------------------------------------------------------------------


def agrees(cli: Cli, words: list[str], reason: str = "") -> Any:
    """The plan; the real call exits like it."""
    document = cli.json(*words, "--dry-run", exits=cli(*words, "--dry-run").code)
    plan = document["plan"]
    result = cli(*words, "--format", "json")
    assert result.code == document["exit"], (plan, result)
    assert reason in plan["reason"]
    return {**plan, "exit": document["exit"]}


@pytest.fixture
def lost_call(cli: Cli, model: list[str]) -> Any:
    """The words of a call of the run ``r`` whose process was killed in its call of a model."""

    def killed(**bounds: Any) -> list[str]:
        path = machine(cli, bounds)
        with ModelServer(otherwise=Say("never", until=threading.Event())) as server:
            words = ["execute", path, "--id", "r", *model, "--base-url", server.url]
            cut_off(cli, server, words, signal.SIGKILL)
        return words

    return killed


def test_a_lost_call_that_will_be_made_again_takes_no_answer(cli: Cli, lost_call: Any) -> None:
    lost_call(max_llm_calls=3)
    plan = agrees(cli, ["exec", "resume", "r", "-m", "manual", "--answer", '"A"'], "waits for no answer")
    assert (plan["action"], plan["exit"], len(events(cli, "r"))) == ("refuse", 1, 2)


def test_a_lost_call_that_a_bound_forbids_to_repeat_is_saved_as_lost(cli: Cli, lost_call: Any) -> None:
    words = lost_call(max_llm_calls=1)
    plan = agrees(cli, words)
    assert (plan["action"], plan["exit"], plan["effects"]) == ("advance", 1, [])
    assert [event["type"] for event in events(cli, "r")] == ["started", "intended", "lost"]


def test_a_lost_call_in_a_store_that_cannot_be_written_is_not_a_plan_to_go_on(cli: Cli, lost_call: Any) -> None:
    words = lost_call(max_llm_calls=1)
    (cli.state / scope_hash("run:r") / "latest.json").chmod(0o666)
    plan = agrees(cli, words, "latest.json")
    assert plan["action"] == "refuse"


def test_what_keeps_a_model_from_being_called_is_reported_before_a_lost_call_is_saved(
    cli: Cli, lost_call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = lost_call(max_llm_calls=3)
    monkeypatch.delenv("OPENAI_API_KEY")
    for name in ("--base-url", words[-1]):
        words.remove(name)
    plan = agrees(cli, words, "OPENAI_API_KEY")
    assert (plan["action"], [event["type"] for event in events(cli, "r")]) == ("refuse", ["started", "intended"])


def test_a_lost_call_without_a_model_waits_for_an_answer(cli: Cli, lost_call: Any) -> None:
    lost_call(max_llm_calls=3)
    plan = agrees(cli, ["exec", "resume", "r", "-m", "manual"])
    assert (plan["action"], plan["exit"]) == ("advance", 3)


def test_a_retry_of_a_call_that_is_made_again_anyway_is_refused_in_words_for_operators(
    cli: Cli, lost_call: Any, model: list[str]
) -> None:
    lost_call(max_llm_calls=3)
    error = cli.refused("exec", "resume", "r", "--retry", *model, exits=1)
    assert "was cut off, it needs no retry; nothing changed" in error["message"]
    assert "`exec resume RUN`" in error["hint"]
    assert len(events(cli, "r")) == 2


# -- replies that were of no use ---------------------------------------------------------------------------------------


def test_a_reply_is_of_no_use_only_where_it_is_not_what_the_stage_asks_for(cli: Cli, model: list[str]) -> None:
    schema = {"type": "object"}
    think = {"agent": {"prompt": "Go on.", "output_schema": schema}, "retry": {"max_attempts": 2}}
    path = cli.machine("m", think={**think, "set": {"n": "output.missing"}, "default_next": "end"}, end={"end": {}})
    with ModelServer(Say("no JSON"), Say("{}")) as server:
        cli.json("execute", path, "--id", "r", *model, "--base-url", server.url, exits=1)
    found = [(event["type"], event["effect"].get("refused")) for event in events(cli, "r")]
    assert found == [("started", None), ("replied", 1), ("replied", 1)]


def test_a_good_reply_leaves_no_mark_on_the_call_that_follows(cli: Cli, model: list[str]) -> None:
    ask: dict[str, Any] = {"agent": {"prompt": "Go on."}}
    path = cli.machine("m", one={**ask, "default_next": "two"}, two={**ask, "default_next": "end"}, end={"end": {}})
    with ModelServer(Say("One."), Say("Two.")) as server:
        cli.json("execute", path, "--id", "r", *model, "--base-url", server.url)
    assert [event["effect"].get("refused") for event in events(cli, "r")[:-1]] == [None, None]
