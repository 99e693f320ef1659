"""``exec clean`` and ``exec rm`` ask first on a terminal, and plan with ``--dry-run``."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from command_line import DEADLINE, Cli, Task
from each_case import Failures

from stateline import Artifact, Store

REMOVALS = [["exec", "clean"], ["exec", "rm", "done"]]


@pytest.fixture
def two(cli: Cli, task: Task) -> Cli:
    """Runs ``done`` (complete) and ``open`` (waiting)."""
    cli.json("execute", cli.machine("one", a=task("echo 1")), "--id", "done")
    cli.json("execute", cli.machine("two", ask={"human": {"prompt": "Go?"}}), "--id", "open", exits=3)
    return cli


def runs(cli: Cli) -> set[str]:
    return {row["run"] for row in cli.json("exec", "list")["runs"]}


def on_terminal(cli: Cli, *words: str, typed: bytes) -> tuple[int, str]:
    """The exit code of a call whose standard input and standard error are a terminal, and what stands on it."""
    screen, terminal = pty.openpty()
    try:
        os.write(screen, typed)
        command = [sys.executable, "-m", "stateline", *words]
        done = subprocess.run(
            command, stdin=terminal, stderr=terminal, stdout=subprocess.DEVNULL, timeout=DEADLINE, check=False
        )
        os.write(terminal, b"\nend")
        shown = b""
        while not shown.endswith(b"end"):
            shown += os.read(screen, 4096)
        return done.returncode, shown.decode()
    finally:
        os.close(screen)
        os.close(terminal)


def test_a_removal_asks_on_a_terminal(two: Cli) -> None:
    for words in REMOVALS:
        for typed in (b"n\n", b"\n", b"\x04"):
            code, screen = on_terminal(two, *words, typed=typed)
            assert code == 1, screen
            assert "Remove 1 run: done? [y/N]" in screen
        assert runs(two) == {"done", "open"}
    code, screen = on_terminal(two, "exec", "clean", typed=b"yes\n")
    assert (code, runs(two)) == (0, {"open"}), screen


def test_a_removal_with_yes_or_without_a_terminal_asks_nothing(two: Cli) -> None:
    code, screen = on_terminal(two, "exec", "rm", "done", "--yes", typed=b"")
    assert (code, "[y/N]" in screen) == (0, False)
    assert two.json("exec", "clean", "--all")["removed"] == ["open"]


def test_nothing_to_remove_is_no_question(two: Cli) -> None:
    code, screen = on_terminal(two, "exec", "clean", "--older-than", "1d", typed=b"")
    assert (code, "[y/N]" in screen) == (0, False)


def test_a_dry_run_lists_what_would_be_removed_and_writes_nothing(two: Cli) -> None:
    before = two.tree()
    failures = Failures()
    cases: list[tuple[list[str], list[str]]] = [
        (["exec", "clean"], ["done"]),
        (["exec", "clean", "--all"], ["open", "done"]),
        (["exec", "clean", "--older-than", "1d"], []),
        (["exec", "rm", "open"], ["open"]),
    ]
    for words, removed in cases:
        with failures.case(*words):
            document: dict[str, Any] = two.json(*words, "--dry-run")
            assert (document["plan"]["action"], document["exit"]) == ("remove", 0)
            assert document["plan"]["effects"] == [{"type": "remove", "run": run} for run in removed]
            assert document["plan"]["kept"] == {}
            assert all(run in two(*words, "--dry-run").out.decode() for run in removed)
    failures.check()
    assert two.tree() == before


def test_a_dry_run_of_a_removal_creates_no_store(cli: Cli) -> None:
    assert cli.json("exec", "clean", "--dry-run")["plan"]["effects"] == []
    assert not cli.state.exists()


def test_a_dry_run_foresees_a_refusal(two: Cli) -> None:
    plan = two.json("exec", "rm", "nobody", "--dry-run")
    assert (plan["plan"]["action"], plan["exit"]) == ("refuse", 1)
    with Store.open(two.state).scope("run:open").locked():
        plan = two.json("exec", "rm", "open", "--dry-run")
        assert (plan["plan"]["action"], plan["exit"]) == ("refuse", 4)
        plan = two.json("exec", "clean", "--all", "--dry-run")
        assert [effect["run"] for effect in plan["plan"]["effects"]] == ["done"]
        assert plan["plan"]["kept"] == {"open": "a process is using it"}


def test_verify_counts_the_objects_that_a_removal_left_on_one_line(cli: Cli) -> None:
    store = Store.open(cli.state)
    for number in range(12):
        store.put(Artifact(b"%d" % number))
    assert len(cli.json("verify")["findings"]) == 11
    counts = [cli("verify", *more).out.decode().count("residue unreferenced:") for more in ([], ["-v"])]
    assert counts == [1, 11]


def test_rm_names_the_run_that_it_kept_because_it_is_in_use(two: Cli) -> None:
    with Store.open(two.state).scope("run:open").locked():
        error = two.refused("exec", "rm", "done", "open", "--wait", "0.05", exits=4)
    assert "run open was kept" in error["message"]
    assert "removed before it: done" in error["message"]
    assert runs(two) == {"open"}
