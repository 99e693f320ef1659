"""``exec cancel``: an unfinished run ends for good, by one snapshot."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures
from killed_call import Program

from stateline import Store

ASK: dict[str, Any] = {"human": {"prompt": "Go?"}}


def waiting(cli: Cli, run: str = "r1") -> str:
    """Start a run that waits for a person; the path of its machine."""
    machine = cli.machine(ask=ASK)
    cli.json("execute", machine, "--id", run, exits=3)
    return machine


def files(cli: Cli) -> dict[str, bytes]:
    return {path: row[4] for path, row in cli.tree().items() if row[4] and not path.endswith(".lock")}


def test_an_unfinished_run_in_any_status_is_ended_by_one_snapshot(cli: Cli, task: Task) -> None:
    failed = task("echo why >&2; false")
    cases: dict[str, tuple[int, dict[str, Any], list[str]]] = {
        "waiting": (3, {"ask": ASK}, []),
        "error": (1, {"a": failed}, []),
        "model request": (3, {"a": {"agent": {"prompt": "Hi"}}}, []),
        "running": (0, {"a": task("echo 1", default_next="b"), "b": failed}, ["-i"]),
        "lost": (137, {"a": task("kill -9 $PPID", repeatable=False)}, []),
    }
    failures = Failures()
    for name, (code, stages, flags) in cases.items():
        with failures.case(name), cli.fresh():
            call = cli.process if name == "lost" else cli
            assert abs(call("execute", cli.machine(**stages), "--id", "r1", *flags).code) in (code, 9)
            seq = cli.json("show", "run:r1")["seq"]
            document = cli.json("exec", "cancel", "r1")
            assert (document["status"], document["reason"], document["waiting"]) == ("cancelled", "cancelled", None)
            bundle = cli.json("show", "run:r1")
            assert (bundle["seq"], bundle["event"]["type"]) == (seq + 1, "cancelled")
            assert (bundle["state"]["status"], bundle["state"]["interrupts"]) == ("cancelled", [])
            assert bundle["event"].keys().isdisjoint({"waiting", "effect", "calls"})
            assert cli.json("verify")["ok"]
    failures.check()


def test_cancelling_twice_is_the_same_document_and_writes_nothing(cli: Cli) -> None:
    waiting(cli)
    document, before = cli.json("exec", "cancel", "r1"), files(cli)
    assert cli.json("exec", "cancel", "r1") == document
    assert files(cli) == before


def test_cancelling_prints_no_totals_of_a_context_that_it_does_not_touch(cli: Cli) -> None:
    cli.json("run", "-p", "Go.", "--system", "S", "--id", "r1", exits=3)
    assert cli("exec", "cancel", "r1").err == ""


def test_a_complete_run_cannot_be_cancelled(cli: Cli, task: Task) -> None:
    cli.json("execute", cli.machine(a=task("echo 1")), "--id", "r1")
    before = files(cli)
    assert cli.refused("exec", "cancel", "r1", exits=1)["code"] == "illegal_event"
    assert cli.refused("exec", "cancel", "r2", exits=1)["code"] == "not_found"
    assert cli.refused("exec", "cancel", "a/b", exits=64)["code"] == "usage"
    assert files(cli) == before


def test_a_run_whose_lock_is_held_is_not_cancelled(cli: Cli) -> None:
    waiting(cli)
    with Store.open(cli.state).scope("run:r1").locked():
        assert cli.refused("exec", "cancel", "r1", "--wait", "0.05", exits=4)["code"] == "locked"
    assert cli.json("exec", "status", "r1")["status"] == "waiting"


def test_a_cancelled_run_is_over_for_good(cli: Cli) -> None:
    machine = waiting(cli)
    cli.json("exec", "cancel", "r1")
    before = files(cli)
    failures = Failures()
    for words in (
        ["execute", machine, "--id", "r1"],
        ["execute", machine, "--id", "r1", "-i"],
        ["execute", machine, "--id", "r1", "--accept-change"],
        ["exec", "resume", "r1"],
        ["exec", "resume", "r1", "--retry"],
    ):
        with failures.case(*words):
            error = cli.refused(*words, exits=1)
            assert error["code"] == "cancelled"
            assert "--id r1 --force" in error["hint"]
            assert cli.json(*words, "--dry-run")["exit"] == 1
    failures.check()
    assert files(cli) == before


def test_a_cancelled_prompt_run_is_over_for_good(cli: Cli) -> None:
    cli.json("run", "-p", "Hi", "--id", "r1", exits=3)
    cli.json("exec", "cancel", "r1")
    for prompt in ([], ["-p", "Hi"], ["-p", "another"]):
        error = cli.refused("run", *prompt, "--id", "r1", exits=1)
        assert error["code"] == "cancelled"
        assert "stateline run --id r1 --force" in error["hint"]


def test_a_call_that_was_waiting_for_the_lock_meanwhile_ends_with_the_same_error(
    cli: Cli, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateline.service import continue_run
    from stateline.service.cancel import cancel

    machine = cli.machine(a=task("echo a >> ran; echo 1", default_next="b"), b=task("echo b >> ran; echo 2"))
    turn = continue_run.turn

    def turn_then_cancelled(run: Any, *more: Any) -> Any:
        run = turn(run, *more)
        cancel(run.scope.store, "r1")  # the lock belongs to this thread, as if it had been released
        return run

    monkeypatch.setattr(continue_run, "turn", turn_then_cancelled)
    assert cli.refused("execute", machine, "--id", "r1", exits=1)["code"] == "cancelled"
    assert cli.ran() == ["a"]


def test_without_an_id_another_run_starts_and_the_cancelled_one_is_not_called_unfinished(cli: Cli) -> None:
    machine = waiting(cli)
    cli.json("exec", "cancel", "r1")
    document = cli.json("execute", machine, exits=3)
    assert document["run"] != "r1"
    assert not any("r1" in warning for warning in document["warnings"])


def test_force_restarts_a_cancelled_run(cli: Cli) -> None:
    machine = waiting(cli)
    cli.json("exec", "cancel", "r1")
    assert cli.json("execute", machine, "--id", "r1", "--force", exits=3)["status"] == "waiting"
    assert cli.json("execute", machine, "--id", "r1", "--answer", "true")["status"] == "complete"


def test_list_status_show_history_and_log_show_that_a_run_was_cancelled(cli: Cli) -> None:
    waiting(cli)
    cli.json("exec", "cancel", "r1")
    assert [row["status"] for row in cli.json("exec", "list")["runs"]] == ["cancelled"]
    status = cli.json("exec", "status", "r1")
    assert (status["status"], status["interrupts"]) == ("cancelled", [])
    assert cli.json("exec", "show", "r1")["status"] == "cancelled"
    rows = cli.json("exec", "history", "r1")["history"]
    assert (rows[-1]["reason"], rows[-1]["stage"], rows[-1]["output"]) == ("cancelled", "ask", None)
    for words in (["exec", "list"], ["exec", "status"], ["exec", "history"], ["log", "run:r1"]):
        assert b"cancelled" in cli(*words).out


def test_clean_removes_cancelled_runs_like_complete_ones(cli: Cli) -> None:
    waiting(cli, "open")
    waiting(cli, "ended")
    cli.json("exec", "cancel", "ended")
    assert cli.json("exec", "clean")["removed"] == ["ended"]


def test_a_cancel_that_was_killed_can_be_repeated(cli: Cli) -> None:
    waiting(cli)
    program = Program()
    for nth in range(1, 9):
        code, _, err = program.call(cli.home, dict(os.environ), "exec", "cancel", "r1", nth=nth)
        killed = code == -signal.SIGKILL
        assert killed or code == 0, err
        assert killed is (nth < 3), nth
        assert cli.json("verify")["ok"]
        if not killed:
            break
    program.close()
    assert cli.json("exec", "cancel", "r1")["status"] == "cancelled"
    events = [row["event"]["type"] for row in cli.json("log", "run:r1")["snapshots"]]
    assert events == ["cancelled", "started"]
