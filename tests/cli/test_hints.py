"""Flags in a hint exist in its command, or in the whole command that the hint quotes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures

AGENT: dict[str, Any] = {"think": {"agent": {"prompt": "x"}}}


def flags(cli: Cli, command: list[str]) -> set[str]:
    """The options of a command, and the common ones, which only the top-level help lists."""
    texts = (cli(*words, "--help").out.decode() for words in (command, []))
    return {name for text in texts for name in re.findall(r"--[a-z-]+", text)}


def require_possible(cli: Cli, command: list[str], hint: str) -> None:
    """Require that each flag in ``hint`` is one of ``command``, or of the whole command around it."""
    for whole in re.findall(r"`stateline ([^`]*)`", hint):
        words = whole.split()
        named = words[:2] if words[0] in ("exec", "machine") else words[:1]
        assert set(re.findall(r"--[a-z-]+", whole)) <= flags(cli, named), whole
    bare = re.sub(r"`[^`]*`", "", hint)
    assert set(re.findall(r"--[a-z-]+", bare)) <= flags(cli, command), bare


def recorded(cli: Cli, name: str) -> str:
    """A recording of nothing that this run asks."""
    example = Path(__file__).parents[2] / "examples" / "conversation" / "recording"
    place = cli.home / name
    place.mkdir(mode=0o700)
    for path in sorted(example.glob("*.json"))[:1]:
        (place / path.name).write_bytes(path.read_bytes())
    return str(place)


def waiting(cli: Cli, verb: str) -> list[str]:
    begin = ["run", "-p", "x"] if verb == "run" else ["execute", cli.machine("m", **AGENT)]
    cli.json("run", "--state-scope", "demo", "--system", "S")
    cli.json(*begin, "--id", "r1", "--state-scope", "demo", exits=3)
    return begin


def test_a_command_line_as_one_word_is_answered_with_a_shell(cli: Cli) -> None:
    failures = Failures()
    for argv, shell in [
        ("echo 1 > out", '["sh", "-c", "echo 1 > out"]'),
        (["echo 1 > out"], '["sh", "-c", "echo 1 > out"]'),
        (["./say it", "twice"], '["sh", "-c", "./say it twice"]'),
    ]:
        with failures.case(argv), cli.fresh():
            machine = cli.machine(a={"task": argv})
            (problem,) = cli.json("machine", "check", machine, exits=1)["problems"]
            assert problem["hint"].endswith(shell)
            if isinstance(argv, list):
                error = cli.json("execute", machine, exits=1)["error"]
                assert (error["kind"], error["hint"].endswith(shell)) == ("spawn", True)
    failures.check()


def test_a_refused_answer_comes_with_an_example_that_is_taken(cli: Cli) -> None:
    schema = {"type": "object", "required": ["ship"], "properties": {"ship": {"type": "boolean"}}}
    asked: dict[str, Any] = {
        "human": {"prompt": "Ship it?", "schema": schema},
        "agent": {"prompt": "Ship it?", "output_schema": schema},
    }
    failures = Failures()
    for kind, stage in asked.items():
        with failures.case(kind), cli.fresh():
            machine = cli.machine(ask={kind: stage})
            waiting = cli.json("execute", machine, "--id", "r1", exits=3)["waiting"]
            words = ["exec", "resume", "r1", "--request", waiting["requestId"], "--answer"]
            error = cli.refused(*words, '{"ship": "yes"}', exits=1)
            assert error["code"] == "answer_refused"
            (example,) = re.findall(r"for example: (\{.*?\})", error["message"])
            assert cli.json(*words, example)["output"] == {"ship": False}
    failures.check()


def test_hints_name_the_machine_file(cli: Cli, task: Task) -> None:
    """Its path, ready to be pasted."""
    machine = cli.machine(a=task("echo 1", routes=[{"when": "output", "to": "a"}]))
    path = f"'{machine}'"
    failed = cli("execute", machine, "--id", "r1")
    assert failed.code == 1
    text = failed.out.decode().replace(" \\\n           ", "")
    assert f"stateline execute {path} --id r1 --accept-change\n" in text
    assert f"stateline execute {path} --id r1 --force\n" in text
    assert (
        f"stateline execute {path} --id r1 --force"
        in cli.refused("exec", "resume", "r1", "--input", "1", exits=64)["hint"]
    )
    cli.machine(a=task("echo 1", default_next="nowhere"))
    assert f"`stateline machine check {path}`" in cli.refused("execute", machine, "--id", "r2", exits=1)["hint"]


def test_hints_of_another_recording_are_there(cli: Cli) -> None:
    failures = Failures()
    for command in ["exec resume", "own"]:
        for verb in ["run", "execute"]:
            with failures.case(verb, command), cli.fresh():
                begin = waiting(cli, verb)
                words = ["exec", "resume", "r1"] if command == "exec resume" else [*begin, "--id", "r1"]
                error = cli.refused(*words, "--playback", recorded(cli, "rec"), exits=1)
                assert "--record" in error["hint"]
                require_possible(cli, words[:2] if words[0] == "exec" else words[:1], error["hint"])
                assert f"stateline {verb}" in error["hint"]
    failures.check()


def test_hints_of_a_lost_context_are_there(cli: Cli) -> None:
    failures = Failures()
    for command in ["exec resume", "own"]:
        for verb in ["run", "execute"]:
            with failures.case(verb, command), cli.fresh():
                begin = waiting(cli, verb)
                place = cli.state / hashlib.sha256(b"context:demo").hexdigest()
                next(place.glob("state-*")).unlink()
                words = ["exec", "resume", "r1"] if command == "exec resume" else [*begin, "--id", "r1"]
                error = cli.refused(*words, "--answer", '"x"', exits=5)
                require_possible(cli, words[:2] if words[0] == "exec" else words[:1], error["hint"])
                assert "stateline repair context:demo" in error["hint"]
    failures.check()


def test_hints_of_a_recording_that_is_over_are_there(cli: Cli) -> None:
    machine = cli.machine("m", **AGENT)
    playback = recorded(cli, "rec")
    for path in Path(playback).glob("*.json"):
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document))
    first = cli.refused("execute", machine, "--id", "r1", "--playback", playback, exits=1)
    assert first["code"] == "playback_miss"
    require_possible(cli, ["execute"], first["hint"])
    again = cli.refused("exec", "resume", "r1", exits=1)
    require_possible(cli, ["exec", "resume"], again["hint"])


def test_the_check_is_not_blind(cli: Cli) -> None:
    for hint in ("try another --id", "`stateline exec resume r1 --force`", "give --nothing"):
        with pytest.raises(AssertionError):
            require_possible(cli, ["exec", "resume"], hint)
