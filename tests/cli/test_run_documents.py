"""``exec list``, ``status``, ``show``, ``history``, ``clean`` and ``rm``: their documents, and what they refuse."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
import pytest
from command_line import Cli, Task
from each_case import Failures

from stateline.store.timestamps import next_timestamp

END: dict[str, Any] = {"end": {}}
ROW = {"run", "machine", "status", "stage", "turn", "failures", "model", "prompt", "labels", "head", "started_at"} | {
    "updated_at"
}
SHA = re.compile(r"[0-9a-f]{64}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
HOSTILE = ["../../x", "a\0b", "x" * 300, "", ".", "-", "a/b", "ü", "a b", "\n"]


def make_three(cli: Cli, task: Task) -> Cli:
    """Runs ``done``, ``broken`` and ``open``, in this order."""
    cli.json("execute", cli.machine("one", a=task("echo 1", default_next="b"), b=task("echo 2")), "--id", "done")
    cli.json("execute", cli.machine("two", a=task("echo why >&2; false")), "--id", "broken", exits=1)
    machine = cli.machine("three", _bounds={"max_iterations": 5}, ask={"human": {"prompt": "Go?"}}, done=END)
    cli.json("execute", machine, "--id", "open", exits=3)
    return cli


@pytest.fixture
def three(cli: Cli, task: Task) -> Cli:
    return make_three(cli, task)


def files(cli: Cli) -> dict[str, bytes]:
    return {path: row[4] for path, row in cli.tree().items() if row[4]}


def test_list_has_a_row_for_each_run_the_last_used_first(three: Cli) -> None:
    rows = three.json("exec", "list")["runs"]
    assert [(row["run"], row["machine"], row["status"], row["stage"], row["turn"]) for row in rows] == [
        ("open", "three", "waiting", "ask", 0),
        ("broken", "two", "error", "a", 1),
        ("done", "one", "complete", "b", 2),
    ]
    for row in rows:
        assert row.keys() >= ROW
        assert SHA.fullmatch(row["head"])
        assert TIME.fullmatch(row["started_at"])
        assert TIME.fullmatch(row["updated_at"])
    assert rows[2]["started_at"] < rows[2]["updated_at"]


def test_an_absent_store_is_an_empty_one_and_stays_absent(cli: Cli) -> None:
    assert cli.json("exec", "list") == {"runs": [], "findings": [], "warnings": []}
    assert cli.json("scopes")["scopes"] == []
    assert cli.json("exec", "clean") == {"removed": [], "kept": {}, "warnings": []}
    assert not cli.state.exists()


def test_a_run_that_cannot_be_read_is_reported_and_the_others_are_listed(three: Cli) -> None:
    (three.state / hashlib.sha256(b"run:open").hexdigest() / "latest.json").write_bytes(b"")
    document = three.json("exec", "list", exits=5)
    assert [row["run"] for row in document["runs"]] == ["broken", "done"]
    assert len(document["warnings"]) == 1
    result = three("exec", "status")
    assert result.code == 0
    assert "latest.json" in result.err
    assert three.json("exec", "clean", exits=5)["removed"] == ["done"]


def test_a_store_whose_only_run_cannot_be_read_is_not_empty(cli: Cli, task: Task) -> None:
    cli.json("execute", cli.machine(a=task("echo 1")), "--id", "r1")
    (cli.state / hashlib.sha256(b"run:r1").hexdigest() / "latest.json").write_bytes(b"")
    assert cli.refused("exec", "status", exits=5)["code"] == "integrity"


def test_status_has_a_row_mode_bounds_counters_and_interrupts(three: Cli) -> None:
    document = three.json("exec", "status", "open")
    assert document.keys() >= ROW | {"mode", "bounds", "counters", "interrupts"}
    assert document["mode"] is None
    assert document["bounds"]["max_iterations"] == {"limit": 5, "left": 5}
    assert document["bounds"]["max_llm_calls"] == {"limit": 0, "left": None}
    assert document["counters"]["max_iterations"] == 0
    assert [each["type"] for each in document["interrupts"]] == ["human"]
    assert document["interrupts"][0]["requestId"]
    broken = three.json("exec", "status", "broken")
    assert broken["interrupts"] == []
    assert broken["error"]["message"] == "why"


def test_show_is_a_run_whole(three: Cli) -> None:
    document = three.json("exec", "show", "done")
    assert document["outputs"] == {"a": 1, "b": 2}
    assert (document["visits"], document["edges"]) == ({"a": 1, "b": 1}, {"a": {"b": 1}})
    assert document.keys() >= {"run", "head", "input", "state", "iteration", "context", "labels", "machine", "waiting"}
    assert three.json("exec", "show", "open")["waiting"]["prompt"] == "Go?"


def test_history_is_the_turns_oldest_first(three: Cli) -> None:
    rows = three.json("exec", "history", "done")["history"]
    assert [(row["turn"], row["stage"], row["reason"], row["output"]) for row in rows] == [
        (0, "a", "start", None),
        (1, "a", "default", 1),
        (2, "b", "complete", 2),
    ]
    for row in rows:
        assert row.keys() >= {"turn", "at", "stage", "reason", "tools", "output"}
        assert TIME.fullmatch(row["at"])
    (failed,) = three.json("exec", "history", "broken")["history"][1:]
    assert (failed["stage"], failed["output"], failed["error"]["message"]) == ("a", None, "why")


def test_without_a_run_the_last_used_is_meant(three: Cli) -> None:
    failures = Failures()
    for command in ["status", "show", "history"]:
        with failures.case(command):
            assert three.json("exec", command) == three.json("exec", command, "open")
    three.json("exec", "resume", "broken", "--retry", exits=1)
    for command in ["status", "show", "history"]:
        with failures.case(command):
            assert three.json("exec", command) == three.json("exec", command, "broken")
    failures.check()


def test_reading_commands_leave_no_trace(three: Cli) -> None:
    before = three.tree()
    for words in (
        ["exec", "list"],
        ["exec", "status"],
        ["exec", "show"],
        ["exec", "history"],
        ["scopes"],
        ["log", "run:done"],
        ["log", "-p", "run:done"],
        ["diff", "run:done@0", "run:done"],
        ["show", "run:done"],
        ["verify"],
    ):
        three.json(*words)
    assert three.tree() == before


def test_text_output_says_the_same(three: Cli) -> None:
    assert three("exec", "list").out.decode().split("\n")[1].split()[:2] == ["open", "waiting"]
    text = three("exec", "status", "open").out.decode()
    assert "Go?" in text
    assert "max_iterations: 0 of 5" in " ".join(text.split())
    text = three("exec", "history", "broken").out.decode()
    assert "why" in text
    assert b'"status": "complete"' in three("exec", "show", "done").out


def test_a_hostile_id_is_a_usage_error_and_nothing_is_written(cli: Cli, task: Task) -> None:
    failures = Failures()
    for name in HOSTILE:
        with failures.case(name), cli.fresh():
            machine = cli.machine(a=task("echo 1"))
            for words in (
                ["execute", machine, f"--id={name}"],
                ["execute", machine, f"--id={name}", "--dry-run"],
                ["execute", machine, f"--id={name}", "--force"],
                ["execute", machine, f"--state-scope={name}"],
                ["execute", machine, f"--state-scope={name}", "--dry-run"],
                ["run", f"--state-scope={name}", "--set", "x=1"],
                ["run", f"--state-scope={name}", "--dry-run"],
                ["exec", "status", "--", name],
                ["exec", "show", "--", name],
                ["exec", "history", "--", name],
                ["exec", "resume", "--", name],
                ["exec", "resume", "--retry", "--", name],
                ["exec", "rm", "--", name],
            ):
                cli.monkeypatch.setenv("STATELINE_FORMAT", "json")
                result = cli(*words)
                assert (result.code, result.error["code"]) == (64, "usage"), words
            assert not cli.state.exists()
            assert not (cli.home / "x").exists()
    failures.check()


def test_rm_removes_runs_whole_and_nothing_else(three: Cli) -> None:
    assert three.json("exec", "rm", "open", "done", "open")["removed"] == ["open", "done"]
    assert [row["run"] for row in three.json("exec", "list")["runs"]] == ["broken"]
    for run in ("open", "done"):
        assert not (three.state / hashlib.sha256(f"run:{run}".encode()).hexdigest()).exists()
    assert not [finding for finding in three.json("verify")["findings"] if finding["severity"] == "damage"]


def test_rm_of_an_unknown_run_removes_none(three: Cli) -> None:
    before = files(three)
    assert three.refused("exec", "rm", "done", "nobody", exits=1)["code"] == "not_found"
    assert files(three) == before


def test_rm_of_a_run_that_is_being_used_is_a_conflict(three: Cli) -> None:
    from stateline import Store

    with Store.open(three.state).scope("run:open").locked():
        assert three.refused("exec", "rm", "open", "--wait", "0.05", exits=4)["code"] == "locked"
        assert three.json("exec", "clean", "--all")["kept"].keys() == {"open"}
    assert [row["run"] for row in three.json("exec", "list")["runs"]] == ["open"]


def fork(cli: Cli, origin: str, run: str) -> None:
    """A scope that originates from another one, through the envelope alone: ``fork`` comes in a later version."""
    from stateline import Store
    from stateline.bundle.canonical import FILE_DEPTH, encode, sha256
    from stateline.bundle.envelope import Link, Pointer
    from stateline.bundle.naming import scope_hash, snapshot_name

    store = Store.open(cli.state)
    head = store.scope(f"run:{origin}").load()
    link = Link(head.envelope.scope, head.seq, head.sha256)
    envelope = msgspec.structs.replace(
        head.envelope, seq=0, scope=f"run:{run}", prev=None, prev_sha=head.sha256, origin=link,
        created_at=next_timestamp(store.clock(), head.envelope.created_at),
    )  # fmt: skip
    data = encode(envelope.document(), depth=FILE_DEPTH)
    scope, path = scope_hash(f"run:{run}"), snapshot_name(envelope.created_at, sha256(data))
    store.backend.put(f"{scope}/{path}", data)
    store.backend.swap(scope, None, Pointer(path, sha256(data)))


def test_rm_and_clean_keep_a_run_that_another_one_originates_from(three: Cli) -> None:
    fork(three, "done", "branch")
    before = files(three)
    error = three.refused("exec", "rm", "open", "done", exits=1)
    assert error["code"] == "refused"
    assert "run:branch" in error["message"] + error["hint"]
    assert files(three) == before
    document = three.json("exec", "clean", "--all")
    assert sorted(document["removed"]) == ["branch", "broken", "open"]
    assert "run:branch" in document["kept"]["done"]


def test_an_origin_can_go_once_nobody_needs_it(three: Cli) -> None:
    fork(three, "done", "branch")
    three.json("exec", "rm", "branch")
    assert three.json("exec", "rm", "done")["removed"] == ["done"]


def test_clean_removes_complete_runs_only(three: Cli) -> None:
    assert three.json("exec", "clean") == {"removed": ["done"], "kept": {}, "warnings": []}
    assert sorted(three.json("exec", "clean", "--all")["removed"]) == ["broken", "open"]
    assert three.json("exec", "list")["runs"] == []


def test_clean_keeps_what_is_younger(cli: Cli, task: Task) -> None:
    failures = Failures()
    for age in ["1h", "30d", "2w", "90m", "3600s"]:
        with failures.case(age), cli.fresh():
            three = make_three(cli, task)
            before = files(three)
            assert three.json("exec", "clean", "--all", "--older-than", age)["removed"] == []
            assert files(three) == before
    failures.check()


def test_clean_removes_what_is_older(three: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    later = time.time_ns() + 3 * 86400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert three.json("exec", "clean", "--older-than", "4d")["removed"] == []
    assert three.json("exec", "clean", "--older-than", "2d")["removed"] == ["done"]


def test_an_age_that_is_invalid_removes_nothing(three: Cli) -> None:
    failures = Failures()
    for age in ["", "30", "d", "-1d", "1.5h", "30y", "1d ", "٣d"]:
        with failures.case(age):
            before = files(three)
            three.refused("exec", "clean", f"--older-than={age}", exits=64)
            assert files(three) == before
    failures.check()


def test_every_command_on_an_unsafe_state_dir(three: Cli) -> None:
    three.state.chmod(0o755)
    before = files(three)
    for words in (["exec", "rm", "done"], ["exec", "clean"], ["run", "--set", "x=1"]):
        assert three.refused(*words, exits=6)["code"] == "unsafe"
    result = three("exec", "list", "--format", "json")
    assert result.code == 0
    assert "0755" in result.document["warnings"][0]
    assert "0755" in result.err
    assert files(three) == before
