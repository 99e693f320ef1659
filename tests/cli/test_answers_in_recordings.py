"""Recordings of replies that were given in a model's place, and of answers by people: made by hand, played without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task

END: dict[str, Any] = {"end": {}}


@pytest.fixture
def machine(cli: Cli, task: Task) -> str:
    """A question, an agent with a tool that must not be repeated, and another question."""
    tool = {"name": "look", "description": "Looks.", "schema": {"type": "object"}}
    tool["argv"] = ["sh", "-c", "echo looked >> ran; cat"]
    (cli.home / "tools.json").write_text(json.dumps({"tools": [tool]}))
    return cli.machine(
        _tools="tools.json",
        _model="openai/never-called",
        first={"human": {"prompt": "Which {{ input.what }}?"}, "default_next": "think"},
        think={"agent": {"prompt": "Look at {{ outputs.first }}.", "tools": ["look"]}, "default_next": "second"},
        second={"human": {"prompt": "Sure?", "schema": {"type": "boolean"}}, "default_next": "act"},
        act=task("echo acted >> ran; echo 1", default_next="done"),
        done=END,
    )


ANSWERS = ['{"id": 7}', '{"tools": [{"name": "look", "params": {"at": "x"}}]}', '{"response": "Good."}', "true"]
STARTS = ["--input", '{"what": "one"}']


def recorded(cli: Cli, machine: str) -> tuple[str, Any]:
    """The directory of a recording that was made by hand, and the document of the complete run."""
    directory = str(cli.home / "kept")
    document = cli.json("execute", machine, "--id", "r1", "-m", "manual", "--record", directory, *STARTS, exits=3)
    for answer in ANSWERS:
        request = ["--request", document["waiting"]["requestId"], "--answer", answer]
        words = ["exec", "resume", "r1", "-m", "manual", *request]
        code = 0 if answer == "true" else 3
        document = cli.json(*words, exits=code)
        assert cli.json(*words, exits=code) == document, "given twice, recorded once"
    return directory, document


def exchanges(directory: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(Path(directory).glob("0*.json"))]


def state(cli: Cli, run: str) -> Any:
    return cli.json("show", f"run:{run}", "--resolve")["state"]


def test_a_recording_made_by_hand_plays_without_the_answers(cli: Cli, machine: str) -> None:
    directory, done = recorded(cli, machine)
    assert done["warnings"] == []
    kept = exchanges(directory)
    assert [exchange["purpose"] for exchange in kept] == ["answer", "turn", "turn", "answer"]
    assert json.loads(kept[0]["reply"]["content"]) == {"id": 7}
    assert kept[0]["request"]["messages"] == [{"role": "user", "content": "Which one?"}]
    for mode in ("strict", "sequential", "hybrid"):
        words = ["execute", machine, "--id", mode, "--playback", directory, "--playback-mode", mode, *STARTS]
        plan = cli.json(*words, "--dry-run")
        assert (plan["exit"], plan["warnings"]) == (0, [])
        played = cli.json(*words, stdin=b"never read")
        assert (played["status"], played["outputs"], played["warnings"]) == ("complete", done["outputs"], [])
        assert state(cli, mode) == state(cli, "r1")
    assert cli.ran() == ["looked", "acted"] * 4
    assert cli.json("verify")["findings"] == []


def test_a_playback_in_single_turns_never_waits(cli: Cli, machine: str) -> None:
    directory, _ = recorded(cli, machine)
    words = ["execute", "-i", machine, "--id", "turns"]
    document = cli.json(*words, "--playback", directory, *STARTS)
    assert cli.refused(*words, "--answer", "8", exits=1)["code"] == "no_open_request"
    for _ in range(8):
        assert (document["status"], document["waiting"]) == ("advanced", None)
        plan = cli.json(*words, "--dry-run")
        result = cli(*words, "--format", "json")
        assert plan["exit"] == result.code
        document = result.document
        if result.code == 2:
            break
    assert document["status"] == "complete"
    assert state(cli, "turns") == state(cli, "r1")


def test_a_refused_or_planned_answer_is_not_recorded(cli: Cli, machine: str) -> None:
    directory = str(cli.home / "kept")
    cli.json("execute", machine, "--id", "r1", "-m", "manual", "--record", directory, *STARTS, exits=3)
    resume = ["exec", "resume", "r1", "-m", "manual", "--answer"]
    cli.json(*resume, ANSWERS[0], "--dry-run")
    assert not Path(directory).exists() or exchanges(directory) == []
    cli.json(*resume, ANSWERS[0], exits=3)
    cli.refused(*resume, '{"tools": [{"name": "nobody", "params": {}}]}', exits=1)
    cli.json(*resume, ANSWERS[2], exits=3)
    cli.refused(*resume, '"perhaps"', exits=1)
    assert [exchange["purpose"] for exchange in exchanges(directory)] == ["answer", "turn"]


def test_an_answer_that_was_recorded_before_a_crash_is_recorded_once(cli: Cli, machine: str) -> None:
    directory = str(cli.home / "kept")
    cli.json("execute", machine, "--id", "r1", "-m", "manual", "--record", directory, *STARTS, exits=3)
    head = cli.json("scopes")["scopes"]
    with pytest.MonkeyPatch.context() as patch:
        from stateline.store.local.backend import LocalBackend

        def dies(*words: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(LocalBackend, "swap", dies)
        assert cli("exec", "resume", "r1", "-m", "manual", "--answer", ANSWERS[0]).code == 130
    assert cli.json("scopes")["scopes"] == head
    assert len(exchanges(directory)) == 1
    error = cli.refused("exec", "resume", "r1", "-m", "manual", "--answer", "8", exits=1)
    assert error["code"] == "answer_refused"
    cli.json("exec", "resume", "r1", "-m", "manual", "--answer", ANSWERS[0], exits=3)
    assert len(exchanges(directory)) == 1


def test_secrets_in_a_recorded_answer_are_masked(cli: Cli) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    directory = cli.home / "kept"
    machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
    cli.json("execute", machine, "--record", str(directory), exits=3)
    document = cli.json("execute", machine, "--answer", '"abcdef-123456-secret!"')
    assert (document["output"], b"abcdef" in (directory / "0001.json").read_bytes()) == ("[REDACTED]!", False)
    played = cli.json("execute", machine, "--id", "again", "--playback", str(directory))
    assert played["output"] == "[REDACTED]!"


def test_a_recording_without_answers_still_waits_for_people(cli: Cli, machine: str) -> None:
    directory, _ = recorded(cli, machine)
    for number in (1, 4):
        (Path(directory) / f"000{number}.json").unlink()
    cli.json("execute", machine, "--id", "r2", "--playback", directory, *STARTS, exits=3)
    cli.json("exec", "resume", "r2", "--answer", ANSWERS[0], exits=3)
    assert cli.json("exec", "resume", "r2", stdin=b"true")["status"] == "complete"


def test_a_prompt_that_was_answered_by_hand_plays_in_another_store(cli: Cli) -> None:
    directory = str(cli.home / "kept")
    words = ["run", "-p", "Which city?", "--id", "r1", "--system", "Be brief.", "--state-scope", "c"]
    cli.json(*words, "--record", directory, exits=3)
    done = cli.json("exec", "resume", "r1", "--answer", '"Paris."')
    elsewhere = ["--state-dir", str(cli.home / "elsewhere")]
    played = cli.json(*words, "--playback", directory, "--playback-mode", "strict", *elsewhere)
    assert (played["output"], played["warnings"]) == (done["output"], [])
