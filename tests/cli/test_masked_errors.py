"""Secrets that are spelled like words of the format, and secrets in the names that are stored as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from command_line import Cli, Task
from each_case import Failures

END: dict[str, Any] = {"end": {}}
SECRET = "abcdef-123456-secret"
WORDS = ["state", "event", "developer", "settings", "prompts", "started_at", "transitions",
    "iterations", "outputs", "machine",
         "meters", "status", "running", "complete", "idempotency_key", "requestId", "run_started", "default",
         "refinements", "base_url", "active", "attempt", "succeeded", "answered",
         "context", "transition"]  # fmt: skip


def held(cli: Cli) -> bytes:
    return b"".join(path.read_bytes() for path in cli.state.rglob("*") if path.is_file())


def test_a_secret_spelled_like_a_word_of_the_format_takes_nothing_apart(cli: Cli, task: Task) -> None:
    failures = Failures()
    for word in WORDS:
        with failures.case(word), cli.fresh():
            cli.monkeypatch.setenv("SOME_API_KEY", word)
            cli.json("run", "--state-scope", "demo", "--system", "S", "--developer", "D", "--set", "x=1")
            cli.json("run", "--state-scope", "demo", "--refine-text", "R")
            context = cli.json("show", "context:demo")
            assert context["state"]["prompts"] == {"system": "S", "developer": ["D", "R"]}
            assert context["state"]["settings"] == {"x": 1}
            machine = cli.machine(
                a=task("echo 1", default_next="question", set={"n": "output"}),
                question={"human": {"prompt": "?"}, "default_next": "b"},
                b=task("echo 2", routes=[{"when": "state.n == 1", "to": "d"}], default_next="a"),
                d=END,
            )
            cli.json("execute", machine, "--id", "r1", "--state-scope", "demo", exits=3)
            document = cli.json("execute", machine, "--answer", "5")
            assert (document["status"], document["outputs"]) == ("complete", {"a": 1, "question": 5, "b": 2})
            assert [row["status"] for row in cli.json("exec", "list")["runs"]] == ["complete"]
            assert cli.json("exec", "status")["stage"] == "d"
            assert [row["stage"] for row in cli.json("exec", "history")["history"]] == ["a", "a", "question", "b"]
            assert cli.json("verify")["ok"]
            assert b"REDACTED" not in held(cli)
    failures.check()


def test_a_secret_in_a_name_is_refused_before_anything_is_stored(cli: Cli, task: Task) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", SECRET)
    machine = cli.machine(a=task("echo a >> ran; echo 1"))
    secret = Path(cli.home / SECRET)
    secret.mkdir()
    (secret / "m.json").write_text(Path(machine).read_text())
    for words in (
        ["execute", machine, "--id", f"x-{SECRET}"],
        ["execute", machine, "--label", f"{SECRET}=1"],
        ["execute", str(secret / "m.json")],
        ["execute", machine, "--state-scope", SECRET],
        ["run", "--state-scope", SECRET],
        ["run", "--base-url", f"https://x/?key={SECRET}"],
        ["run", "--base-url", "https://user:password@example.org/v1"],
        ["run", "--base-url", "https://token@example.org/v1", "--state-scope", "demo"],
    ):
        assert cli.json(*words, "--dry-run")["exit"] == 1, words
        error = cli.refused(*words, exits=1)
        assert SECRET not in error["message"] + error["hint"] or words[-2] == "--state-scope", words
        assert not cli.state.exists(), words
        assert cli.ran() == []


def test_a_machine_that_hides_a_secret_by_escapes_is_refused(cli: Cli) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", SECRET)
    escaped = "".join(f"\\u{ord(char):04x}" for char in SECRET)
    cli.machine("j", a={"task": ["echo", "HERE"]})
    (cli.home / "j.json").write_text((cli.home / "j.json").read_text().replace("HERE", escaped))
    (cli.home / "y.yaml").write_text(f'stateline: 1\nname: m\nstages:\n  a:\n    task: [echo, "{escaped}"]\n')
    (cli.home / "f.yaml").write_text(
        'stateline: 1\nname: m\nstages:\n  a:\n    task: [echo, "abcdef-123\\\n      456-secret"]\n'
    )
    for name in ("j.json", "y.yaml", "f.yaml"):
        error = cli.refused("execute", str(cli.home / name), exits=1)
        assert (error["code"], "env" in error["hint"]) == ("refused", True), name
        assert SECRET not in str(error)
        assert not cli.state.exists()


def test_an_input_that_its_schema_refuses_never_shows_a_secret(cli: Cli, task: Task) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", SECRET)
    machine = cli.machine(_input={"type": "object", "properties": {"x": {"type": "integer"}}}, a=task("echo 1"))
    for value in (SECRET, {"x": SECRET}, {"x": {"password": "hunter2-hunter2"}}):
        error = cli.refused("execute", machine, "--input", json.dumps(value), exits=1)
        assert error["code"] == "value_refused"
        assert SECRET not in str(error)
        assert "hunter2" not in str(error)
        plan = cli("execute", machine, "--input", json.dumps(value), "--dry-run", "--format", "json")
        assert SECRET.encode() not in plan.out
        assert not cli.state.exists()


def test_a_stage_that_is_named_like_a_secret_keeps_its_output(cli: Cli, task: Task) -> None:
    machine = cli.machine(
        get_token=task("echo '\"abc\"'", routes=[{"when": "output == 'abc'", "to": "b"}], default_next="c"),
        b=task("""grep -q '"outputs":{"get_token":"abc"}' && echo true"""),
        c=task("false"),
    )
    document = cli.json("execute", machine)
    assert document["outputs"] == {"get_token": "abc", "b": True}
    assert cli.json("exec", "show")["outputs"] == document["outputs"]


def test_routes_see_the_value_that_is_stored(cli: Cli, task: Task) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", SECRET)
    machine = cli.machine(
        a={"task": ["sh", "-c", 'echo "\\"$SOME_API_KEY\\""'], "env": ["SOME_API_KEY"], "set": {"seen": "output"},
           "routes": [{"when": "output == '[REDACTED]'", "to": "b"}], "default_next": "c"},
        b=task("echo 1"),
        c=task("false"),
    )  # fmt: skip
    document = cli.json("execute", "-i", machine)
    assert document["stage"] == "b"
    assert any("masked" in warning for warning in document["warnings"])
    shown = cli.json("exec", "show")
    assert (shown["outputs"], shown["state"]) == ({"a": "[REDACTED]"}, {"seen": "[REDACTED]"})
    assert SECRET.encode() not in held(cli)


def test_what_was_masked_is_counted_in_a_warning(cli: Cli, task: Task) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", SECRET)
    machine = cli.machine(ask={"human": {"prompt": "?"}}, d=END)
    cli.json("execute", machine, exits=3)
    document = cli.json("execute", machine, "--answer", json.dumps([SECRET, "fine", SECRET]))
    assert document["output"] == ["[REDACTED]", "fine", "[REDACTED]"]
    assert [
        warning
        for warning in document["warnings"]
        if warning.startswith("values masked as secrets") and warning.endswith(": 2")
    ]
