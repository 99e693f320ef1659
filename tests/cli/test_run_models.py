"""``stateline run`` with a model behind a real HTTP server that counts its calls."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import COUNTED, Cli, log_summaries
from each_case import Failures
from model_server import ModelServer, Say

KEY = "sk-not-a-real-key-0123456789abcdef"


def context(system: str = "Be exact.", *developer: str, **settings: Any) -> str:
    """A model's reply that derives or refines a context."""
    return json.dumps({"prompts": {"system": system, "developer": list(developer)}, "settings": settings})


@pytest.fixture
def model(cli: Cli) -> list[str]:
    """The words that name the model; its key is in the environment."""
    cli.monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"):
        cli.monkeypatch.delenv(name, raising=False)
    return ["-m", "openai/model-1"]


def tools(cli: Cli, script: str, *, repeatable: bool = False) -> str:
    """A manifest with one tool, ``work``."""
    path = cli.home / "tools.json"
    work = {"name": "work", "description": "Works.", "schema": {"type": "object"}, "argv": ["sh", "-c", script]}
    path.write_text(json.dumps({"tools": [{**work, "repeatable": repeatable}]}))
    return str(path)


def contents(server: ModelServer) -> list[list[tuple[str, Any]]]:
    """The messages of each request, by role."""
    return [[(said["role"], said["content"]) for said in request["messages"]] for request in server.requests]


def test_row_d1_a_second_run_restores_its_context_and_makes_no_pre_stage_call(cli: Cli, model: list[str]) -> None:
    said = context("Be exact.", "Cite.", temperature=0.5)
    with ModelServer(Say(said), Say("One."), Say("Two."), Say("Three.")) as server:
        words = ["run", *model, "--base-url", server.url]
        first = cli.json(*words, "-p", "First?")
        assert (first["status"], first["output"], server.count) == ("complete", "One.", 2)
        second = cli.json(*words, "-p", "Second?")
        assert (second["output"], server.count) == ("Two.", 3)
        third = cli.process(*words, "-p", "Third?", "--format", "json")
        assert (third.document["output"], server.count) == ("Three.", 4)
    for asked, question in zip(contents(server)[1:], ("First?", "Second?", "Third?"), strict=True):
        # An endpoint that is not the provider's own may not know the role `developer`: it gets one system message.
        assert asked == [("system", "Be exact.\n\nCite."), ("user", question)]
    assert [request.get("temperature") for request in server.requests[1:]] == [0.5] * 3
    scopes = [row for row in cli.json("scopes")["scopes"] if row["scope"].startswith("context:")]
    assert [row["seq"] for row in scopes] == [0]


def test_a_refinement_is_exactly_one_call_and_a_snapshot_that_names_the_head(cli: Cli, model: list[str]) -> None:
    script = [Say(context(temperature=0.9)), Say("One."), Say(context("Be brief.", temperature=0.2)), Say("Two.")]
    with ModelServer(*script, otherwise=Say("More.")) as server:
        words = ["run", *model, "--base-url", server.url, "--state-scope", "demo"]
        cli.json(*words, "-p", "First?")
        head = cli.json("log", "context:demo")["snapshots"][0]["sha"]
        cli.json(*words, "-p", "Second?", "--refine-text", "Shorter, and tighten temperature to 0.2.")
        assert server.count == 4
        cli.json(*words, "-p", "Third?")
        assert server.count == 5
    rows = cli.json("log", "context:demo")["snapshots"]
    assert [row["event"]["type"] for row in rows] == ["refine", "derive"]
    assert rows[0]["prev_sha"] == head
    asked = json.dumps(server.requests[2])
    assert "tighten temperature" in asked
    assert [request.get("temperature") for request in server.requests[3:]] == [0.2, 0.2]
    assert contents(server)[3][0][1] == contents(server)[4][0][1] == "Be brief."


def test_what_the_user_asks_never_moves_into_a_stronger_role(cli: Cli, model: list[str]) -> None:
    with ModelServer(Say(context()), Say(context()), Say("Done.")) as server:
        words = ["run", *model, "--base-url", server.url, "-p", "USER SAYS", "--refine-text", "OPERATOR SAYS"]
        cli.json(*words)
    for asked in contents(server):
        roles = {role for role, text in asked if "USER SAYS" in json.dumps(text)}
        assert roles == {"user"}
    assert {role for role, text in contents(server)[1] if "OPERATOR SAYS" in text} <= {"system", "developer"}


def test_a_context_that_a_model_derives_badly_is_refused_and_no_run_starts(cli: Cli, model: list[str]) -> None:
    for reply in (Say("I would say"), Say('{"prompts": {}}'), Say(context(), finish="length"), Say("", status=400)):
        with ModelServer(reply) as server:
            cli.refused("run", *model, "--base-url", server.url, "-p", "x", exits=1)
            assert server.count == 1
    assert cli.json("exec", "list")["runs"] == []


def test_tool_calls_of_a_reply_run_together_and_are_reported_in_order(cli: Cli, model: list[str]) -> None:
    script = "read -r line; case $line in *slow*) sleep 0.5;; esac; printf '%s' \"$line\""
    manifest = tools(cli, script, repeatable=True)
    calls = [("work", {"n": "slow"}), ("work", {"n": "fast"}), ("nothing", {}), ("work", {"n": "last"})]
    with ModelServer(Say(context()), Say("Wait.", calls=calls), Say("Done.")) as server:
        document = cli.json("run", *model, "--base-url", server.url, "-p", "x", "--tools", manifest, "--id", "r1")
    assert (document["output"], document["turn"]) == ("Done.", 2)
    told = server.requests[2]["messages"][-4:]
    assert [message["role"] for message in told] == ["tool"] * 4
    assert [message["tool_call_id"] for message in told] == ["call_1", "call_2", "call_3", "call_4"]
    assert "slow" in told[0]["content"]
    assert "fast" in told[1]["content"]
    assert "unknown_tool" in told[2]["content"]
    assert server.requests[1]["tools"][0]["function"]["name"] == "work"
    counters = cli.json("exec", "status", "r1")["counters"]
    assert counters["max_llm_calls"] == 2


def test_row_6_a_model_that_fails_leaves_a_failed_run_that_says_so_everywhere(cli: Cli, model: list[str]) -> None:
    with ModelServer(Say(context()), otherwise=Say("no such luck", status=400)) as server:
        words = ["run", *model, "--base-url", server.url, "-p", "x", "--id", "r1"]
        failed = cli.json(*words, exits=1)
        assert (failed["status"], failed["reason"], failed["error"]["kind"]) == ("error", "model", "model")
        assert cli.json("exec", "list")["runs"][0]["status"] == "error"
        assert cli.json("run", "--id", "r1", exits=1)["error"] == failed["error"]
        text = re.sub(r" \\\n +", " ", cli("run", "--id", "r1", *words[1:5]).out.decode())
        assert f"stateline exec resume r1 --retry {' '.join(words[1:5])}" in text
        assert f"stateline run --id r1 --force -p TEXT {' '.join(words[1:5])}" in text
        assert "MACHINE" not in text
        assert "stateline exec resume r1 --retry\n" in cli("run", "--id", "r1").out.decode()
        count = server.count
        cli.json("run", "--id", "r1", exits=1)
        assert server.count == count
    with ModelServer(Say("Now.")) as server:
        words = ["exec", "resume", "r1", "--retry", *model, "--base-url", server.url]
        assert cli.json(*words)["output"] == "Now."


def test_what_is_an_incomplete_reply_is_never_an_answer(cli: Cli, model: list[str]) -> None:
    failures = Failures()
    for reply in [Say(""), Say("Half of it", finish="length"), Say("cut", cut=20), Say(calls=[("work", "{broken")])]:
        with failures.case(reply):
            manifest = tools(cli, "echo called >> ran")
            with ModelServer(Say(context()), otherwise=reply) as server:
                words = ["run", *model, "--base-url", server.url, "-p", "x", "--tools", manifest]
                document = cli.json(*words, exits=1)
            assert document["error"]["kind"] in ("reply", "model")
            assert (document["output"], cli.ran()) == (None, [])
    failures.check()


def test_row_14_bounds_hold_over_isolated_calls(cli: Cli, model: list[str]) -> None:
    tools(cli, "echo 1", repeatable=True)
    machine = cli.machine(
        _tools="tools.json", _bounds={"max_llm_calls": 3}, think={"agent": {"prompt": "Go on.", "tools": ["work"]}}
    )
    with ModelServer(otherwise=Say(calls=[("work", {})])) as server:
        words = ["execute", "-i", machine, *model, "--base-url", server.url]
        exits = [cli(*words).code for _ in range(6)]
        assert server.count == 3
    assert exits[:2] == [0, 0]
    assert set(exits[3:]) == {1}
    assert cli.json("exec", "list")["runs"][0]["status"] == "error"
    (error,) = {cli.json("exec", "status")["error"]["bound"]}
    assert error == "max_llm_calls"


def test_row_3_a_condition_on_an_answer_that_cannot_be_decided_fails(cli: Cli, model: list[str]) -> None:
    machine = cli.machine(
        think={"agent": {"prompt": "?"}, "routes": [{"when": "output.verdict == 'yes'", "to": "done"}],
               "default_next": "done"},
        done={"end": {}},
    )  # fmt: skip
    with ModelServer(Say("yes")) as server:
        document = cli.json("execute", machine, *model, "--base-url", server.url, exits=1)
    assert document["error"]["kind"] == "condition"
    assert document["outputs"] == {"think": "yes"}


def test_precedence_is_flag_environment_context_machine_default(cli: Cli, model: list[str]) -> None:
    def asked(machine: str, *words: str) -> str:
        with ModelServer(otherwise=Say("x")) as server:
            cli.json("execute", machine, "--force", *words, "--base-url", server.url)
            return str(server.requests[0]["model"])

    machine = cli.machine(_model="openai/of-machine", think={"agent": {"prompt": "?"}})
    own = cli.machine("own", _model="openai/of-machine", think={"agent": {"prompt": "?", "model": "openai/of-stage"}})
    with ModelServer(Say(context())) as server:
        cli.json("run", "--state-scope", "demo", "-m", "openai/of-context", "--base-url", server.url)
    assert asked(machine) == "of-machine"
    assert asked(own) == "of-stage"
    assert asked(own, "--state-scope", "demo") == "of-context"
    cli.monkeypatch.setenv("STATELINE_MODEL", "openai/of-environment")
    assert asked(own, "--state-scope", "demo") == "of-environment"
    assert asked(own, "--state-scope", "demo", "-m", "openai/of-flag") == "of-flag"
    cli.monkeypatch.delenv("STATELINE_MODEL")
    waits = cli.json("execute", cli.machine("bare", think={"agent": {"prompt": "?"}}), exits=3)
    assert waits["waiting"]["type"] == "llm_request"


def test_the_providers_own_variable_counts_as_environment(cli: Cli, model: list[str]) -> None:
    with ModelServer(Say(context()), Say("One.")) as server:
        cli.monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert cli.json("run", *model, "-p", "x")["output"] == "One."
        assert server.count == 2


def test_a_key_never_goes_to_another_providers_endpoint_out_of_a_context(cli: Cli, model: list[str]) -> None:
    cli.monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-" + "x" * 30)
    with ModelServer(Say(context()), otherwise=Say("x")) as server:
        cli.json("run", "--state-scope", "demo", *model, "--base-url", server.url)
        plan = cli.json("run", "--state-scope", "demo", "-m", "anthropic/model-2", "-p", "x", "--dry-run")
        assert plan["exit"] == 0
        assert server.count == 1
    from stateline import Store
    from stateline.service.exchanges import ModelOptions
    from stateline.service.model_setup import Models

    store = Store.open(cli.state)
    head = store.scope("context:demo").head()
    assert Models(store, ModelOptions(model="anthropic/model-2")).choose(head).base_url == ""
    assert Models(store, ModelOptions(model="openai/model-2")).choose(head).base_url == server.url


def test_a_key_is_asked_for_only_when_a_call_is_made(cli: Cli, model: list[str]) -> None:
    cli.monkeypatch.delenv("OPENAI_API_KEY")
    error = cli.refused("run", *model, "-p", "x", "--id", "r1", exits=1)
    assert "OPENAI_API_KEY" in error["message"] + error["hint"]
    plan = cli.json("run", *model, "-p", "x", "--dry-run")
    assert (plan["plan"]["action"], plan["exit"]) == ("refuse", 1)
    assert error["message"] in plan["plan"]["reason"]
    cli.json("run", "-p", "x", "--id", "r2", exits=3)
    assert cli.json("exec", "resume", "r2", "--answer", '"Done."', *model)["status"] == "complete"
    assert cli.json("run", "--id", "r2", *model)["output"] == "Done."


def test_a_key_is_in_no_byte_that_is_written(cli: Cli, model: list[str]) -> None:
    manifest = tools(cli, "env", repeatable=True)
    said = Say(f"You sent {KEY}.", calls=[("work", {"key": KEY})])
    with ModelServer(Say(context(f"Use {KEY}.")), said, Say(KEY, status=400)) as server:
        words = ["run", *model, "--base-url", server.url, "-p", f"Mine is {KEY}.", "--tools", manifest, "--system", KEY]
        result = cli.process(*words, "--record", str(cli.home / "rec"), "-v", "--debug")
        again = cli.process("exec", "history")
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    written = [path.read_bytes() for path in Path(cli.home).rglob("*") if path.is_file()]
    assert len(written) > 6
    everything = [*written, result.out, result.err.encode(), again.out, again.err.encode()]
    for place in everything:
        assert KEY.encode() not in place
    for request in server.requests:
        assert KEY not in json.dumps(request)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def test_a_reply_that_was_saved_is_never_paid_for_twice(cli: Cli, model: list[str]) -> None:
    manifest = tools(cli, "echo worked >> ran; echo 1")
    held = threading.Event()
    script = [Say(context()), Say("Let me.", calls=[("work", {})]), Say("never", until=held), Say("Done.")]
    with ModelServer(*script) as server:
        words = ["run", *model, "--base-url", server.url, "-p", "x", "--tools", manifest, "--id", "r1"]
        process = cli.start(*words, env=environment())
        server.wait(3)
        kill(process)
        document = cli.json("exec", "resume", "r1", *model, "--base-url", server.url)
        assert (document["output"], server.count) == ("Done.", 4)
        held.set()
    assert server.requests[3] == server.requests[2]
    assert cli.ran() == ["worked"]
    assert server.headers[3].get("idempotency-key") == server.headers[2].get("idempotency-key")


def test_a_tool_that_was_cut_and_must_not_be_repeated_is_asked_about_and_its_reply_not_paid_twice(
    cli: Cli, model: list[str]
) -> None:
    manifest = tools(cli, "echo worked >> ran; sleep 60")
    with ModelServer(Say(context()), Say(calls=[("work", {})]), Say("Done.")) as server:
        words = ["run", *model, "--base-url", server.url, "-p", "x", "--tools", manifest, "--id", "r1"]
        process = cli.start(*words, env=environment())
        for _ in range(600):
            if cli.ran():
                break
            time.sleep(0.05)
        kill(process)
        resume = ["exec", "resume", "r1", *model, "--base-url", server.url]
        waits = cli.json(*resume, exits=3)
        assert (waits["waiting"]["kind"], waits["waiting"]["tool"]) == ("unknown_outcome", "work")
        assert (cli.ran(), server.count) == (["worked"], 2)
        document = cli.json(*resume, "--answer", '{"result": 5}')
        assert (document["output"], server.count) == ("Done.", 3)
    assert '"result":5' in server.requests[2]["messages"][-1]["content"].replace(" ", "")
    assert cli.ran() == ["worked"]


def test_an_interrupted_call_says_so_and_the_next_one_continues(cli: Cli, model: list[str]) -> None:
    held = threading.Event()
    with ModelServer(Say(context()), Say("never", until=held), Say("Done.")) as server:
        words = ["run", *model, "--base-url", server.url, "-p", "x", "--id", "r1", "--format", "json"]
        process = cli.start(*words, env=environment())
        server.wait(2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 130
        assert json.loads(out)["error"]["run"] == "r1"
        assert cli.json("exec", "resume", "r1", *model, "--base-url", server.url)["output"] == "Done."
        held.set()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_text_is_streamed_to_a_terminal_on_stderr_only(cli: Cli, model: list[str]) -> None:
    import pty

    def call(server: ModelServer, *words: str) -> tuple[bytes, bytes]:
        master, slave = pty.openpty()
        command = ["run", *model, "--base-url", server.url, "-p", "x", *words]
        process = cli.start(*command, stderr=slave, env=environment())
        os.close(slave)
        out, _ = process.communicate(timeout=30)
        err = b""
        try:
            while part := os.read(master, 4096):
                err += part
        except OSError:
            pass
        os.close(master)
        return out, COUNTED.sub("", err.decode()).encode()

    with ModelServer(Say(context()), Say("Hel\x1b[2Jlo there."), Say("Quiet.")) as server:
        out, err = call(server)
        assert b"lo there." in err
        assert b"\x1b[2J" not in err
        assert out.endswith(b"lo there.\n")
        out, err = call(server, "-q")
        assert (out, err) == (b"Quiet.\n", b"")
    manifest = tools(cli, "echo 1", repeatable=True)
    script = [Say(context()), Say("Let me see.", calls=[("work", {})]), Say("It is 1.")]
    with ModelServer(*script) as server:
        _, err = call(server, "--tools", manifest, "--id", "r1", "--base-url", server.url)
    assert err.decode().replace("\r\n", "\n").split("\n")[1:6] == [
        "r1: turn 1: agent ...",
        "Let me see.",
        "r1: turn 1: agent, tools work ...",
        "r1: turn 2: agent ...",
        "It is 1.",
    ]


def test_two_refiners_at_once_make_two_calls_on_one_chain(cli: Cli, model: list[str]) -> None:
    with ModelServer(Say(context()), otherwise=Say(context("Refined."), delay=0.3)) as server:
        words = ["run", *model, "--base-url", server.url, "--state-scope", "demo"]
        cli.json(*words)
        head = cli.json("log", "context:demo")["snapshots"][0]["sha"]
        both = [cli.start(*words, "--refine-text", text, env=environment()) for text in ("a", "b")]
        codes = [process.wait(timeout=60) for process in both]
        for process in both:
            process.communicate()
        assert (codes, server.count) == ([0, 0], 3)
        assert cli.refused(*words, "--refine-text", "c", "--parent", head, exits=4)["code"] == "conflict"
        assert server.count == 3
    assert [row["seq"] for row in cli.json("log", "context:demo")["snapshots"]] == [2, 1, 0]


def test_flags_that_do_nothing_without_a_model_are_reported(cli: Cli) -> None:
    cli.monkeypatch.delenv("STATELINE_MODEL", raising=False)
    words = ["run", "-p", "x", "--id", "r1", "--base-url", "http://127.0.0.1:9/v1", "--record", str(cli.home / "rec")]
    warnings = cli.json(*words, exits=3)["warnings"]
    assert [warning.split(" ")[0] for warning in warnings] == ["--base-url"]
    assert "-m PROVIDER/NAME" in warnings[0]
    assert cli.json("run", "--id", "r1", "--answer", '"Done."')["warnings"] == []


def test_a_context_that_was_made_without_a_model_fits_any(cli: Cli, model: list[str]) -> None:
    cli.json("run", "--state-scope", "demo", "--system", "Be exact.")
    with ModelServer(Say("One.")) as server:
        document = cli.json("run", "--state-scope", "demo", *model, "--base-url", server.url, "-p", "x")
        assert (document["output"], document["warnings"], server.count) == ("One.", [], 1)


def test_the_log_of_a_conversation_names_tools_and_shows_replies(cli: Cli, model: list[str]) -> None:
    manifest = tools(cli, "test -e ran && exit 3; echo 1 >> ran")
    asks = Say("Let me see.", calls=[("work", {}), ("play", {})])
    with ModelServer(Say(context()), asks, Say(calls=[("work", {})]), Say("It is 1.")) as server:
        words = ["run", *model, "--base-url", server.url, "-p", "x", "--tools", manifest, "--id", "r1"]
        cli.json(*words)
    assert log_summaries(cli("log", "run:r1").out.decode())[::-1] == [
        "turn 0  run started -> agent",
        "turn 1  agent replied; it calls work, play (unknown_tool)",
        "turn 1  agent: tools are about to run; not all may run twice",
        "turn 1  agent: work ended",
        "turn 2  agent replied; it calls work",
        "turn 2  agent: tools are about to run; not all may run twice",
        "turn 2  agent: work failed (exit)",
        "turn 3  agent replied  complete  It is 1.",
    ]


def test_a_turn_that_asked_for_tools_says_so_in_one_word(cli: Cli, model: list[str]) -> None:
    (cli.home / "tools.json").write_text((Path(tools(cli, "echo 1", repeatable=True))).read_text())
    machine = cli.machine(_tools="tools.json", think={"agent": {"prompt": "?", "tools": ["work"]}})
    with ModelServer(Say(calls=[("work", {})]), Say(calls=[("play", {})]), Say("Done.")) as server:
        words = ["execute", "-i", machine, *model, "--base-url", server.url]
        said = [cli.json(*words, exits=code)["reason"] for code in (0, 0, 2)]
    assert said == ["tools", "tools", "complete"]


def test_no_event_speaks_of_exchanges_where_none_are_recorded_or_played(cli: Cli) -> None:
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    machine = cli.machine(a={"agent": {"prompt": "hi"}, "default_next": "b"}, b={"agent": {"prompt": "ho"}})
    with ModelServer(Say(status=400), otherwise=Say("ok")) as server:
        model = ["-m", "openai/m", "--base-url", server.url]
        cli.json("execute", machine, "--id", "r", *model, exits=1)
        cli.json("exec", "resume", "r", "--retry", *model)
    cli.json("execute", machine, "--id", "s", "-m", "manual", exits=3)
    cli.json("exec", "resume", "s", "--answer", '"ok"', exits=3)
    for run in ("r", "s"):
        rows = cli.json("log", f"run:{run}")["snapshots"]
        assert len(rows) > 1
        assert [row["event"] for row in rows if "exchanges" in row["event"]] == []
