"""The limits of one call, set by ``STATELINE_MAX_…``, and the errors that name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli, Task
from each_case import Failures
from model_server import ModelServer, Say


def test_a_limit_of_the_environment_is_named_by_what_it_refuses(cli: Cli, task: Task) -> None:
    ask = {"human": {"prompt": "ok?"}}
    long = json.dumps("x" * 100)
    (cli.home / "long.json").write_text(long)
    (cli.home / "long").write_text(long)
    machine = cli.machine(a=task(f"echo '{long}'"))
    waiting = cli.machine("w", ask=ask)
    cli.machine("deep", a=task("echo 1"))
    calls: list[tuple[str, int, int, list[str], bytes]] = [
        ("OUTPUT", 50, 1, ["execute", machine], b""),
        ("INPUT", 50, 64, ["execute", machine, "--input", long], b""),
        ("INPUT", 50, 64, ["execute", machine, "--input", f"@{cli.home}/long.json"], b""),
        ("INPUT", 50, 64, ["exec", "resume", "r", "--answer", long], b""),
        ("INPUT", 50, 1, ["exec", "resume", "r"], long.encode()),
        ("INPUT", 50, 1, ["exec", "resume", "r", "--input-format", "text"], long.encode()),
        ("INPUT", 50, 64, ["run", "-p", long], b""),
        ("INPUT", 50, 64, ["run", "--prompt-file", f"{cli.home}/long"], b""),
        ("INPUT", 50, 64, ["run", "-"], long.encode()),
        ("MANIFEST", 50, 1, ["execute", machine], b""),
        ("MANIFEST", 50, 1, ["machine", "check", machine], b""),
        ("MANIFEST", 50, 1, ["run", "-p", "x", "--tools", f"{cli.home}/long.json"], b""),
        ("SNAPSHOT", 500, 1, ["execute", machine], b""),
        ("OBJECT", 50, 1, ["execute", machine], b""),
        ("DEPTH", 10, 64, ["execute", machine, "--input", "[" * 9 + "]" * 9], b""),
        ("DEPTH", 10, 1, ["exec", "resume", "r"], b"[" * 9 + b"]" * 9),
    ]
    failures = Failures()
    assert cli("execute", waiting, "--id", "r").code == 3
    for name, value, code, words, stdin in calls:
        with failures.case(name, words), pytest.MonkeyPatch.context() as patch:
            patch.setenv(f"STATELINE_MAX_{name}", str(value))
            document = cli.json(*words, exits=code, stdin=stdin)
            message = document["error"]["message"]
            assert f"limit `{name.lower()}`" in message
            assert f"set by STATELINE_MAX_{name})" in message
            assert cli.json("exec", "status", "r")["status"] == "waiting"
            patch.undo()
            for row in cli.json("exec", "list")["runs"]:
                if row["run"] != "r":
                    cli("exec", "rm", row["run"])
    failures.check()
    assert cli("exec", "resume", "r", "--answer", long).code == 0


def test_the_output_of_a_tool_is_limited_too(cli: Cli) -> None:
    tool = {"name": "dump", "description": "d", "schema": {"type": "object"}, "argv": ["seq", "99"]}
    path = Path(cli.home, "tools.json")
    path.write_text(json.dumps({"tools": [tool]}))
    cli.monkeypatch.setenv("STATELINE_MAX_OUTPUT", "50")
    machine = cli.machine(_tools="tools.json", a={"agent": {"prompt": "go", "tools": ["dump"]}})
    with ModelServer(Say(calls=[("dump", {})]), Say("done")) as server:
        cli.json("execute", machine, "--id", "r", "-m", "openai/m", "--base-url", server.url)
    history = cli("exec", "history", "r", "--format", "json").out.decode()
    assert "limit `output`, set by STATELINE_MAX_OUTPUT" in history


def test_a_reply_over_a_limit_fails_the_stage_and_is_paid_for_once(cli: Cli) -> None:
    cli.monkeypatch.setenv("STATELINE_MAX_OBJECT", "5000")
    machine = cli.machine(_bounds={"max_llm_calls": 2}, a={"agent": {"prompt": "go"}})
    with ModelServer(Say("x" * 6000), Say("short")) as server:
        line = ["execute", machine, "--id", "r", "-m", "openai/m", "--base-url", server.url]
        for _ in range(2):
            document = cli.json(*line, exits=1)
            assert (document["status"], document["reason"]) == ("error", "reply")
            assert "limit `object`" in document["error"]["message"]
        assert server.count == 1
        (*_, failed) = cli.json("exec", "history", "r")["history"]
        assert failed["refused"]["content"] == "x" * 6000
        retry = ["exec", "resume", "r", "--retry", "-m", "openai/m", "--base-url", server.url]
        assert cli.json(*retry)["output"] == "short"
        assert cli.json("exec", "status", "r")["counters"]["max_llm_calls"] == 2


def test_limits_hold_without_a_transcript(cli: Cli) -> None:
    cli.monkeypatch.setenv("STATELINE_MAX_OBJECT", "5000")
    error = cli.refused("run", "-p", "x" * 6000, "--no-transcript", exits=1)
    assert "limit `object`" in error["message"]


def test_a_malformed_or_higher_limit_is_a_usage_error(cli: Cli) -> None:
    failures = Failures()
    for name, value in [
        ("INPUT", "many"),
        ("INPUT", "-1"),
        ("OBJECT", str(2**31)),
        ("DEPTH", "129"),
        ("OUTPUT", "1e3"),
    ]:
        with failures.case(name, value), pytest.MonkeyPatch.context() as patch:
            patch.setenv(f"STATELINE_MAX_{name}", value)
            error = cli.refused("exec", "list", exits=64)
            assert f"STATELINE_MAX_{name}" in error["message"]
    failures.check()
