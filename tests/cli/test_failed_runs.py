"""Runs that fail, are tried again, lose an effect, or hit a bound."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures
from process.waiting import number_in, wait_for

END: dict[str, Any] = {"end": {}}


def events(cli: Cli, run: str) -> list[Any]:
    return [row["event"] for row in cli.json("log", f"run:{run}")["snapshots"]][::-1]


def test_a_retry_performs_the_failed_effect_and_no_finished_one(cli: Cli, task: Task) -> None:
    machine = cli.machine(
        a=task("echo a >> ran; echo 1", default_next="b"),
        b=task("echo b >> ran; test -e ok && echo 2", default_next="c"),
        c=task("echo c >> ran; echo 3"),
    )
    document = cli.json("execute", machine, "--id", "r1", exits=1)
    assert (document["stage"], document["reason"], document["outputs"]) == ("b", "exit", {"a": 1})
    (cli.home / "ok").touch()
    document = cli.json("exec", "resume", "-i", "r1", "--retry")
    assert (document["stage"], document["status"]) == ("c", "advanced")
    assert cli.json("exec", "resume", "r1")["outputs"] == {"a": 1, "b": 2, "c": 3}
    assert cli.ran() == ["a", "b", "b", "c"]


def test_a_retry_of_nothing_is_refused(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="ask"), ask={"human": {"prompt": "?"}}, d=END)
    cli.json("execute", machine, "--id", "r1", exits=3)
    before = cli.tree()
    assert cli.refused("exec", "resume", "r1", "--retry", exits=1)["code"] == "illegal_event"
    assert cli.refused("exec", "resume", "r1", "--retry", "--answer", "1", exits=64)["code"] == "usage"
    assert {path: row[4] for path, row in cli.tree().items()} == {path: row[4] for path, row in before.items()}
    cli.json("exec", "resume", "r1", "--answer", "1")
    assert cli.refused("exec", "resume", "r1", "--retry", exits=1)["code"] == "illegal_event"


def test_a_retry_demands_its_head(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("test -e ok && echo 2"))
    head = cli.json("execute", machine, "--id", "r1", exits=1)["head"]
    (cli.home / "ok").touch()
    assert cli.refused("exec", "resume", "r1", "--retry", "--parent", "run:r1~1", exits=4)["code"] == "conflict"
    assert cli.json("exec", "resume", "r1", "--retry", "--parent", head)["status"] == "complete"


def test_error_next_takes_over_and_sees_the_error(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo why >&2; exit 3", error_next="b"), b=task("cat"))
    document = cli.json("execute", machine, "--id", "r1")
    assert document["output"]["error"] == {"stage": "a", "kind": "exit", "message": "why"}
    assert events(cli, "r1")[1]["transitions"][0]["reason"] == "error"


def test_each_attempt_is_a_snapshot_of_one_turn_with_one_key(cli: Cli, task: Task) -> None:
    count = "echo x >> ran; test $(wc -l < ran) -ge 3 && cat"
    machine = cli.machine(a=task(count, retry={"max_attempts": 3, "backoff": 0.05}, default_next="b"), b=task("cat"))
    began = time.monotonic()
    document = cli.json("execute", machine, "--id", "r1")
    assert time.monotonic() - began >= 0.05 + 0.1
    assert document["outputs"]["a"]["attempt"] == 3
    assert [event["type"] for event in events(cli, "r1")] == ["started", "failed", "failed", "succeeded", "succeeded"]
    assert [event["turn"] for event in events(cli, "r1")] == [0, 1, 1, 1, 2]
    keys = [event["effect"]["key"] for event in events(cli, "r1")[:3]]
    assert set(keys) == {document["outputs"]["a"]["idempotency_key"]}
    assert document["outputs"]["b"]["idempotency_key"] not in keys
    assert document["outputs"]["b"]["attempt"] == 1


def test_a_retry_budget_that_is_used_up_fails_the_run(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo x >> ran; false", retry={"max_attempts": 2}))
    cli.json("execute", machine, "--id", "r1", exits=1)
    assert len(cli.ran()) == 2
    cli.json("exec", "resume", "r1", "--retry", exits=1)
    assert len(cli.ran()) == 4


def test_many_attempts_are_bounded_by_their_number_only(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateline.engine import loop
    from stateline.machine.decider.run import Failed
    from stateline.process.task import TaskOutcome

    failed = TaskOutcome(event=Failed(kind="exit", message="no"), seconds=0.0)
    monkeypatch.setattr(loop, "run_task", lambda call: failed)
    stage = {"task": ["true"], "repeatable": True, "retry": {"max_attempts": 1100}}
    monkeypatch.setattr("stateline.store.local.filesystem.os.fsync", lambda fd: None, raising=False)
    document = cli.json("execute", cli.machine(a=stage), "--id", "r1", exits=1)
    assert document["reason"] == "exit"


def test_a_bound_ends_the_run_with_its_name(cli: Cli, task: Task) -> None:
    failures = Failures()
    for bound, stages in [
        ("max_iterations", {"_bounds": {"max_iterations": 2}}),
        ("max_agent_hops", {"_bounds": {"max_agent_hops": 2}}),
        ("edge_limits", {"_edge_limits": [{"from": "a", "to": "a", "max_count": 2}]}),
        ("max_visits", {"visits": 3}),
        ("timeout", {"_bounds": {"timeout": 0.01}}),
    ]:
        with failures.case(bound, stages), cli.fresh():
            visits = {"max_visits": stages.pop("visits")} if "visits" in stages else {}
            a = task("echo x >> ran; sleep 0.01", routes=[{"when": "true", "to": "a"}], **visits)
            document = cli.json("execute", cli.machine(a=a, **stages), "--id", "r1", exits=1)
            assert (document["status"], document["reason"]) == ("error", "limit")
            assert document["error"]["bound"] == bound
            assert bound in document["error"]["message"]
            assert len(cli.ran()) == (3 if bound != "timeout" else 1)
            assert cli.json("execute", "-i", str(cli.home / "m.json"), exits=1)["error"]["bound"] == bound
    failures.check()


def test_a_bound_may_take_error_next(cli: Cli, task: Task) -> None:
    a = task("echo 1", routes=[{"when": "true", "to": "a"}], max_visits=2, error_next="b")
    document = cli.json("execute", cli.machine(a=a, b=task("cat")), "--id", "r1")
    assert document["output"]["error"]["kind"] == "limit"
    assert events(cli, "r1")[-2]["transitions"][0]["reason"] == "limit"


def test_a_run_that_ends_exactly_at_its_limit_is_complete(cli: Cli, task: Task) -> None:
    a = task("echo 1", routes=[{"when": "visits['a'] < 3", "to": "a"}], max_visits=3)
    assert cli.json("execute", cli.machine(_bounds={"max_iterations": 2}, a=a))["status"] == "complete"


def test_a_bound_that_was_raised_lets_the_run_go_on(cli: Cli, task: Task) -> None:
    def a(visits: int) -> Any:
        return task("echo x >> ran", routes=[{"when": "visits['a'] < 3", "to": "a"}], max_visits=visits)

    cli.json("execute", cli.machine(a=a(2)), "--id", "r1", exits=1)
    assert cli.json("execute", cli.machine(a=a(3)), "--accept-change", exits=1)["reason"] == "limit"
    assert cli.json("exec", "resume", "r1", "--retry")["status"] == "complete"
    assert len(cli.ran()) == 3


def test_a_condition_that_fails_keeps_the_output_and_settles_it_once_corrected(cli: Cli, task: Task) -> None:
    def machine(name: str) -> str:
        a = task("echo a >> ran; echo 5", set={"n": "output"}, routes=[{"when": f"{name} == 5", "to": "b"}])
        return str(cli.machine(a=a, b=task("echo 2")))

    path = machine("state.m")
    document = cli.json("execute", path, "--id", "r1", exits=1)
    assert document["reason"] == "condition"
    assert document["outputs"] == {"a": 5}
    assert "has(" in document["error"]["hint"] + document["error"]["message"]
    assert cli.json("exec", "show", "r1")["state"] == {}
    machine("state.n")
    assert cli.json("execute", path, "--accept-change", exits=1)["reason"] == "condition"
    document = cli.json("exec", "resume", "-i", "r1", "--retry")
    assert (document["stage"], document["status"]) == ("b", "advanced")
    assert cli.ran() == ["a"]
    rows = cli.json("exec", "history", "r1")["history"]
    assert [(row["stage"], row["reason"], row["output"]) for row in rows[1:]] == [
        ("a", "succeeded", 5),
        ("a", "replaced", None),
        ("a", "routing", None),
    ]
    assert cli.json("exec", "resume", "r1")["outputs"] == {"a": 5, "b": 2}


def crash(cli: Cli, machine: str, *words: str) -> None:
    """Start a turn and end it with SIGKILL once its task has begun."""
    before = len(cli.ran())
    process = cli.start("execute", machine, *words)
    wait_for(lambda: len(cli.ran()) > before)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert len(cli.ran()) == before + 1


def make_lost(cli: Cli, task: Task) -> str:
    """A machine whose task, which is not repeatable, was under way when everything died."""
    a = task("echo a >> ran; test -e ok || sleep 2; echo 1", repeatable=False, default_next="b")
    machine = str(cli.machine(a=a, b=task("echo b >> ran; echo 2")))
    crash(cli, machine, "--id", "r1")
    (cli.home / "ok").touch()
    return machine


@pytest.fixture
def lost(cli: Cli, task: Task) -> str:
    return make_lost(cli, task)


def test_a_lost_effect_waits_and_is_not_repeated_unasked(cli: Cli, lost: str) -> None:
    document = cli.json("execute", lost, exits=3)
    assert (document["status"], document["reason"]) == ("waiting", "unknown_outcome")
    waiting = document["waiting"]
    assert (waiting["type"], waiting["kind"], waiting["stage"]) == ("interrupt", "unknown_outcome", "a")
    assert waiting["requestId"]
    assert "its program may still be running" in waiting["message"]
    assert cli.json("execute", "-i", lost, stdin=b"5\n", exits=3)["waiting"] == waiting
    assert cli.json("exec", "resume", "r1", stdin=b"5\n", exits=3)["waiting"] == waiting
    assert cli.json("exec", "status", "r1")["interrupts"] == [waiting]
    assert cli.ran() == ["a"]


def test_a_lost_effect_runs_again_on_request_with_its_key(cli: Cli, lost: str) -> None:
    intended = events(cli, "r1")[-1]
    assert intended["type"] == "intended"
    document = cli.json("exec", "resume", "-i", "r1", "--retry")
    assert (document["status"], document["outputs"]) == ("advanced", {"a": 1})
    assert cli.ran() == ["a", "a"]
    again = [event for event in events(cli, "r1") if event["type"] == "intended"]
    assert [event["effect"] for event in again] == [
        {"key": intended["effect"]["key"], "attempt": 1},
        {"key": intended["effect"]["key"], "attempt": 2},
    ]
    assert cli.json("verify")["findings"] == []


def test_a_lost_effect_is_settled_by_its_result(cli: Cli, lost: str) -> None:
    text = cli("execute", lost).out.decode()
    assert max(map(len, text.splitlines())) <= 80
    words = text.partition("result: ")[2].partition("head:")[0].replace("\\\n", " ").split()
    assert words[:2] == ["stateline", "exec"]
    words = ['{"x": 1}' if word == "JSON" else word for word in words[1:]]
    assert cli.json(*words, "-i")["outputs"] == {"a": {"x": 1}}
    assert cli.json("execute", lost)["outputs"] == {"a": {"x": 1}, "b": 2}
    assert cli.ran() == ["a", "b"]


def test_an_answer_given_before_a_loss_was_noticed_is_not_its_result(task: Task, cli: Cli) -> None:
    """It may be the repeated answer to an earlier question."""
    failures = Failures()
    for verb in ["resume", "execute"]:
        with failures.case(verb), cli.fresh():
            lost = make_lost(cli, task)
            words = ["exec", "resume", "r1"] if verb == "resume" else ["execute", lost]
            plan = cli.json(*words, "--answer", "5", "--dry-run")
            assert (plan["plan"]["action"], plan["exit"]) == ("refuse", 1)
            assert cli.refused(*words, "--answer", "5", exits=1)["code"] == "no_open_request"
            cli.json(*words, exits=3)
            document = cli.json(*words, "--answer", "5")
            assert (document["status"], document["outputs"]) == ("complete", {"a": 5, "b": 2})
            assert [event["type"] for event in events(cli, "r1")][1:4] == ["intended", "lost", "answered"]
            assert cli.ran() == ["a", "b"]
            assert cli.json("verify")["findings"] == []
    failures.check()


def test_a_repeatable_effect_runs_again_with_the_same_key(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo a >> ran; test -e ok || sleep 2; cat"))
    crash(cli, machine, "--id", "r1")
    (cli.home / "ok").touch()
    key = events(cli, "r1")[-1]["effect"]["key"]
    document = cli.json("execute", machine)
    assert document["run"] == "r1"
    assert document["output"]["idempotency_key"] == key
    assert cli.ran() == ["a", "a"]


def test_a_signal_ends_the_group_saves_what_is_finished_and_the_next_call_continues(cli: Cli, task: Task) -> None:
    failures = Failures()
    for repeatable in [True, False]:
        for signum, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
            with failures.case(signum, code, repeatable), cli.fresh():
                script = (
                    "echo b >> ran; test -e ok || { (sleep 30; echo late >> ran) & echo $! > child; sleep 30; }; echo 2"
                )
                machine = cli.machine(
                    a=task("echo a >> ran; echo 1", default_next="b"), b=task(script, repeatable=repeatable)
                )
                process = cli.start("execute", machine, "--id", "r1", "--format", "json")
                wait_for(lambda: number_in(cli.home / "child"))
                process.send_signal(signum)
                out, _ = process.communicate(timeout=30)
                assert (process.returncode, json.loads(out)["error"]["code"]) == (code, "interrupted")
                assert not alive(number_in(cli.home / "child"))
                (cli.home / "ok").touch()
                assert cli.json("exec", "show", "r1")["outputs"] == {"a": 1}
                if repeatable:
                    assert cli.json("execute", machine)["outputs"] == {"a": 1, "b": 2}
                    assert cli.ran() == ["a", "b", "b"]
                else:
                    assert cli.json("execute", machine, exits=3)["waiting"]["kind"] == "unknown_outcome"
                    assert cli.ran() == ["a", "b"]
                assert cli.json("verify")["findings"] == []
    failures.check()


def has_open(pid: int, name: str) -> bool:
    """True if a process has a file of that name open."""
    try:
        return any(os.readlink(link).endswith(f"/{name}") for link in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # closed while this looked
        return False


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_signal_during_a_backoff_keeps_the_failed_attempt(cli: Cli, task: Task) -> None:
    stage = task("echo a >> ran; test -e ok && echo 1", retry={"max_attempts": 2, "backoff": 30})
    machine = cli.machine(a=stage)
    process = cli.start("execute", machine, "--id", "r1")

    def has_failed() -> bool:
        done = cli("log", "run:r1", "--format", "json")
        return done.code == 0 and done.document["snapshots"][0]["event"]["type"] == "failed"

    wait_for(has_failed)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    (cli.home / "ok").touch()
    assert cli.json("execute", machine)["status"] == "complete"
    assert cli.ran() == ["a", "a"]


@pytest.mark.skipif(sys.platform != "linux", reason="what a process waits for is looked up in /proc")
def test_a_signal_while_a_lock_or_an_answer_is_awaited_changes_nothing(cli: Cli) -> None:
    from stateline import Store

    machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
    cli.json("execute", machine, "--id", "r1", exits=3)
    before = cli.tree()

    def struck(*words: str, stdin: int, at: Callable[[int], bool]) -> None:
        process = cli.start("exec", "resume", "r1", *words, "--format", "json", stdin=stdin)
        wait_for(lambda: at(process.pid))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, json.loads(out)["error"]["code"]) == (130, "interrupted")

    read, write = os.pipe()
    os.write(write, b"1")
    struck(stdin=read, at=lambda pid: not select.select([read], [], [], 0)[0])  # it has read what was there
    assert cli.tree() == before
    with Store.open(cli.state).scope("run:r1").locked():
        struck("--answer", "1", stdin=read, at=lambda pid: has_open(pid, "scope.lock"))
    os.close(read)
    os.close(write)
    assert cli.json("exec", "status", "r1")["status"] == "waiting"
