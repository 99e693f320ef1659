"""Request ids and idempotency keys: never shared by two runs, whatever they are called."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from command_line import Cli, Task
from each_case import Failures

END: dict[str, Any] = {"end": {}}


def asking(cli: Cli, task: Task) -> str:
    return str(
        cli.machine(
            a=task("echo a >> ran; cat", default_next="ask"), ask={"human": {"prompt": "?"}, "default_next": "d"}, d=END
        )
    )


def names(document: dict[str, Any]) -> tuple[str, str]:
    return document["waiting"]["requestId"], document["outputs"]["a"]["idempotency_key"]


def test_request_ids_and_keys_are_run_seq_position_and_birth(cli: Cli, task: Task) -> None:
    request, key = names(cli.json("execute", asking(cli, task), "--id", "r1", exits=3))
    assert re.fullmatch(r"r1:1:0:[0-9a-f]{8}", request)
    assert re.fullmatch(r"r1:0:0:[0-9a-f]{8}", key)
    events = [row["event"] for row in cli.json("log", "run:r1")["snapshots"]]
    assert {event["birth"] for event in events} == {key.rpartition(":")[2]} == {request.rpartition(":")[2]}


def test_two_runs_by_one_name_share_no_key_and_no_request(cli: Cli, task: Task) -> None:
    failures = Failures()
    for how in ["removed", "forced", "elsewhere"]:
        with failures.case(how), cli.fresh():
            machine = asking(cli, task)
            first = names(cli.json("execute", machine, "--id", "r1", exits=3))
            if how == "removed":
                cli.json("exec", "rm", "r1")
            words = {"forced": ["--force"], "elsewhere": ["--state-dir", str(cli.home / "elsewhere")]}.get(how, [])
            second = names(cli.json("execute", machine, "--id", "r1", *words, exits=3))
            assert not set(first) & set(second)
            assert first[0].rpartition(":")[2] != second[0].rpartition(":")[2]
            stale = json.dumps({"requestId": first[0], "answer": 1})
            more = words if how == "elsewhere" else []
            assert (
                cli.refused("execute", machine, "--id", "r1", "--answer", stale, *more, exits=1)["code"]
                == "answer_refused"
            )
    failures.check()


def answer(request: str, value: Any) -> str:
    return json.dumps({"requestId": request, "answer": value})


def test_a_named_answer_given_again_never_starts_another_run(cli: Cli, task: Task) -> None:
    machine = asking(cli, task)
    request, _ = names(cli.json("execute", machine, "--id", "r1", exits=3))
    done = cli.json("execute", machine, "--answer", answer(request, "yes"))
    again = cli.json("execute", machine, "--answer", answer(request, "yes"))
    assert (again["run"], again["head"], again["status"]) == ("r1", done["head"], "complete")
    assert cli.ran() == ["a"]
    for stale in ("nobody:1:0:00000000", "", "../../x:1", 5, None):
        assert cli.refused("execute", machine, "--answer", answer(stale, 1), exits=1)["code"] == "answer_refused"
    assert [row["run"] for row in cli.json("exec", "list")["runs"]] == ["r1"]
    assert cli.ran() == ["a"]


def test_a_named_answer_with_another_value_is_refused(cli: Cli, task: Task) -> None:
    machine = asking(cli, task)
    request, _ = names(cli.json("execute", machine, "--id", "r1", exits=3))
    cli.json("execute", machine, "--answer", answer(request, {"x": 1}))
    before = cli.tree()
    for words in (["execute", machine], ["execute", machine, "--id", "r1"], ["exec", "resume", "r1"]):
        error = cli.refused(*words, "--answer", answer(request, {"x": 2}), exits=1)
        assert (error["code"], "answered before" in error["message"]) == ("answer_refused", True)
        assert cli.json(*words, "--answer", answer(request, {"x": 1}))["status"] == "complete"
    assert {path: row[4] for path, row in cli.tree().items()} == {path: row[4] for path, row in before.items()}


def test_a_named_answer_given_again_continues_to_the_end(cli: Cli, task: Task) -> None:
    machine = cli.machine(ask={"human": {"prompt": "?"}, "default_next": "a"}, a=task("echo a >> ran; echo 1"))
    request = cli.json("execute", machine, "--id", "r1", exits=3)["waiting"]["requestId"]
    once = cli.json("execute", "-i", machine, "--answer", answer(request, "yes"))
    assert cli.json("execute", "-i", machine, "--answer", answer(request, "yes")) == once
    assert cli.ran() == []
    document = cli.json("execute", machine, "--answer", answer(request, "yes"))
    assert (document["status"], document["outputs"]) == ("complete", {"ask": "yes", "a": 1})
    assert cli.ran() == ["a"]


def test_an_answer_with_a_secret_given_again_is_the_same_answer(cli: Cli) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
    request = cli.json("execute", machine, "--id", "r1", exits=3)["waiting"]["requestId"]
    once = cli.json("execute", machine, "--answer", answer(request, "abcdef-123456-secret"))
    assert once["output"] == "[REDACTED]"
    assert cli.json("execute", machine, "--answer", answer(request, "abcdef-123456-secret"))["head"] == once["head"]


def beside(cli: Cli, directory: str, word: str) -> Path:
    place = cli.home / directory
    place.mkdir()
    program = place / "say"
    program.write_text(f"#!/bin/sh\necho '\"{word}\"'\n")
    program.chmod(0o755)
    return Path(place)


def test_a_machine_that_was_moved_is_followed_with_the_programs_beside_it(cli: Cli, task: Task) -> None:
    old, new = beside(cli, "old", "old"), beside(cli, "new place", "new")
    source = cli.machine(a={"task": ["./say"], "default_next": "b"}, b={"task": ["./say"], "default_next": "c"},
                         c={"task": ["./say"]})  # fmt: skip
    shutil.move(source, old / "m.json")
    cli.json("execute", "-i", str(old / "m.json"), "--id", "r1")
    shutil.move(old / "m.json", new / "m.json")
    moved = cli.json("execute", "-i", str(new / "m.json"), "--id", "r1")
    assert moved["outputs"] == {"a": "old", "b": "new"}
    assert cli.json("exec", "status", "r1")["machine_path"] == str(new / "m.json")
    document = cli.json("execute", str(new / "m.json"))
    assert (document["run"], document["outputs"]["c"], document["status"]) == ("r1", "new", "complete")
    assert cli.json("verify")["findings"] == []


def test_an_accepted_change_is_reported_and_followed_to_its_place(cli: Cli, task: Task) -> None:
    old, new = beside(cli, "old", "old"), beside(cli, "new", "new")
    source = Path(cli.machine(a={"task": ["./say"], "default_next": "b"}, b={"task": ["./say"]}))
    text = source.read_text()
    (old / "m.json").write_text(text)
    (new / "m.json").write_text(text.replace('"b": {', '"b": {"max_visits": 9, '))
    cli.json("execute", "-i", str(old / "m.json"), "--id", "r1")
    words = ["execute", str(new / "m.json"), "--id", "r1", "--accept-change"]
    planned = cli.json(*words, "--dry-run")["warnings"]
    document = cli.json(*words)
    assert any("is accepted" in warning for warning in document["warnings"])
    assert document["warnings"] == planned
    assert document["outputs"] == {"a": "old", "b": "new"}
    event = next(row["event"] for row in cli.json("log", "run:r1")["snapshots"] if row["event"]["type"] == "replaced")
    assert event["machine"]["path"] == str(new / "m.json")


def test_an_unexpected_input_or_answer_accepts_no_change(cli: Cli, task: Task) -> None:
    failures = Failures()
    for words in [["--accept-change"], ["--accept-change", "-i"]]:
        with failures.case(words), cli.fresh():
            machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo b >> ran; echo 2"))
            cli.json("execute", "-i", machine, "--id", "r1")
            Path(machine).write_text(Path(machine).read_text().replace("echo 2", "echo 22"))
            before = cli.tree()
            cli.refused("execute", machine, *words, "--input", "5", exits=64)
            assert cli.refused("execute", machine, *words, "--answer", "5", exits=1)["code"] == "no_open_request"
            cli.refused("execute", machine, *words, "--answer", answer("r1:9:0:00000000", 5), exits=1)
            assert cli.tree() == before
            assert cli.ran() == []
    failures.check()


def test_the_document_always_says_error_and_from(cli: Cli, task: Task) -> None:
    machine = cli.machine(
        a=task("echo why >&2; exit 3", error_next="ask"), ask={"human": {"prompt": "?"}, "default_next": "b"},
        b=task("echo 1", default_next="c"), c=task("false"),
    )  # fmt: skip
    routed = cli.json("execute", "-i", machine, "--id", "r1", exits=3)
    assert (routed["from"], routed["stage"], routed["reason"]) == ("a", "ask", "error")
    assert (routed["error"]["stage"], routed["error"]["kind"], routed["error"]["message"]) == ("a", "exit", "why")
    assert cli.json("exec", "history", "r1")["history"][-1]["error"] == {"kind": "exit", "message": "why"}
    assert cli.json("execute", machine, exits=3)["error"] == routed["error"]
    answered = cli.json("execute", "-i", machine, "--answer", "1")
    assert (answered["error"], answered["from"], answered["stage"]) == (None, "ask", "b")
    advanced = cli.json("execute", "-i", machine)
    assert (advanced["error"], advanced["from"]) == (None, "b")
    failed = cli.json("execute", machine, exits=1)
    assert (failed["error"]["kind"], failed["from"]) == ("exit", "c")


def test_an_invalid_machine_lists_its_problems_in_the_error(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="nowhere"), b=task("echo 1", error_next="neither"))
    error = cli.refused("execute", machine, exits=1)
    assert error["code"] == "machine_invalid"
    assert error["problems"] == cli.json("machine", "check", machine, exits=1)["problems"]
    assert len([problem for problem in error["problems"] if problem["severity"] == "error"]) >= 2
