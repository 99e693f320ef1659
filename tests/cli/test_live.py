"""Running or interrupted: ``live`` in ``exec list`` and ``exec status``, and the holder of a lock in errors."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task

from stateline.bundle import naming
from stateline.store.local.backend import LocalBackend


def states(cli: Cli) -> tuple[Any, ...]:
    """The status of the run ``r`` and ``live``, in both documents, and the status in both texts."""
    (row,) = cli.json("exec", "list")["runs"]
    status = cli.json("exec", "status", "r")
    assert (row["status"], row["live"]) == (status["status"], status["live"])
    listed = cli("exec", "list").out.decode().split("\n")[1]
    shown = next(line for line in cli("exec", "status", "r").out.decode().split("\n") if line.startswith("status:"))
    words = ("running", "interrupted", "ready")
    for word in words:  # the filter takes the word that is shown
        found = cli.json("exec", "list", "--status", word)["runs"]
        assert [each["run"] for each in found] == (["r"] if word in listed else [])
    return row["status"], row["live"], [word for word in words if word in listed], shown.split()[1]


def test_a_running_run_is_told_from_an_interrupted_one(cli: Cli, task: Task) -> None:
    slow = task("touch here; sleep 60", repeatable=False)
    machine = cli.machine(first=task("echo 1", default_next="slow"), slow=slow)
    with cli.start("execute", machine, "--id", "r") as process:
        while not (cli.home / "here").exists():
            assert process.poll() is None
        assert states(cli) == ("running", True, ["running"], "running")
        error = cli.refused("exec", "resume", "r", "--wait", "0", exits=4)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert error["code"] == "locked"
    if sys.platform == "linux":
        assert error["message"].startswith(f"process {process.pid} (stateline execute) holds the lock of run:r; ")
    before = cli.tree()
    assert states(cli) == ("running", False, ["interrupted"], "interrupted")
    assert cli.tree() == before


def test_a_run_between_two_turns_is_ready_and_not_interrupted(cli: Cli, task: Task) -> None:
    cli("execute", "-i", cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2")), "--id", "r")
    assert states(cli) == ("running", False, ["ready"], "ready")


def test_a_run_that_ends_while_it_is_looked_at_is_not_called_interrupted(
    cli: Cli, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = cli.machine(first=task("echo 1", default_next="last"), last=task("echo 2"))
    cli("execute", "-i", machine, "--id", "r")
    assert states(cli)[:2] == ("running", False)
    test, ended = LocalBackend.is_locked, []

    def end_first(self: LocalBackend, scope: str) -> bool | None:
        if not ended:
            ended.append(cli.process("exec", "resume", "r").code)
        return test(self, scope)

    monkeypatch.setattr(LocalBackend, "is_locked", end_first)
    status = cli.json("exec", "status", "r")
    assert (status["status"], status["live"], status["counters"]["max_agent_hops"]) == ("complete", False, 1)
    assert ended == [0]


def test_a_lock_that_cannot_be_tested_is_null(cli: Cli, task: Task) -> None:
    cli("execute", "-i", cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2")), "--id", "r")
    (lock,) = (path for path in Path(cli.state).glob("*/scope.lock") if naming.scope_hash("run:r") in str(path))
    lock.unlink()
    lock.symlink_to("elsewhere")
    assert states(cli) == ("running", None, ["running"], "running")


def test_a_run_that_died_in_a_tool_is_interrupted(cli: Cli) -> None:
    kill = {"name": "kill", "description": "d", "argv": ["sh", "-c", "kill -9 $PPID"], "schema": {"type": "object"}}
    path = cli.home / "tools.json"
    path.write_text(json.dumps({"tools": [kill]}))
    cli.json("run", "-p", "Go.", "--id", "r", "--tools", str(path), exits=3)
    calls = [{"name": "kill", "params": {"x": "y" * 9000}}] * 2
    assert abs(cli.process("exec", "resume", "r", "--answer", json.dumps({"tools": calls})).code) in (9, 137)
    deadline = time.monotonic() + 30
    while states(cli)[1] and time.monotonic() < deadline:
        time.sleep(0.05)  # a child that was just forked keeps the lock until it executes its program
    assert states(cli) == ("running", False, ["interrupted"], "interrupted")
    assert cli.json("exec", "resume", "r", exits=3)["reason"] == "unknown_outcome"
