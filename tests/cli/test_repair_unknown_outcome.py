"""Effects of unknown outcome after a repair: the run waits for an answer and performs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli, Task
from each_case import Failures

from stateline.bundle import naming


def scope_of(cli: Cli, key: str) -> Path:
    return Path(cli.state) / naming.scope_hash(key)


def effects(cli: Cli) -> list[str]:
    return (cli.home / "effects").read_text().split()


def make_waiting(cli: Cli, task: Task) -> str:
    """A run ``r1`` of two tasks that must not be repeated, which waits for a person then."""
    stages = {name: task(f"echo {name} >> effects; echo 1", repeatable=False) for name in "ab"}
    stages["a"]["default_next"], stages["b"]["default_next"] = "b", "c"
    stages["c"] = {"human": {"prompt": "Ship?"}, "default_next": "d"}
    stages["d"] = {"end": {}}
    machine = str(cli.machine(**stages))
    cli.json("execute", machine, "--id", "r1", exits=3)
    return machine


@pytest.fixture
def waiting(cli: Cli, task: Task) -> str:
    return make_waiting(cli, task)


def empty(pointer: Path) -> None:
    pointer.write_bytes(b"")


def test_an_unknown_head_is_not_a_reason_to_perform_an_effect_again(task: Task, cli: Cli) -> None:
    """Remove the pointer and the newest snapshots, as a power loss may after `fast` saves."""
    failures = Failures()
    for harm in [empty, Path.unlink]:
        with failures.case(harm), cli.fresh():
            waiting = make_waiting(cli, task)
            scope = scope_of(cli, "run:r1")
            for path in sorted(scope.glob("state-*"))[-2:]:  # `intended` and `succeeded` of b
                path.unlink()
            harm(scope / "latest.json")
            plan = cli.json("repair", exits=5)
            done = cli.json("repair", "--apply")
            assert plan["warnings"] == done["warnings"]
            assert "its pointer is lost" in done["warnings"][0]
            assert "may run again" in done["warnings"][0]
            assert cli.json("execute", waiting, exits=3)["waiting"]["kind"] == "unknown_outcome"
            assert effects(cli) == ["a", "b"]
            assert cli.json("exec", "resume", "r1", "--answer", "1", exits=3)["stage"] == "c"
            assert effects(cli) == ["a", "b"]
    failures.check()


def test_a_pointer_that_is_whole_shows_that_nothing_was_newer(cli: Cli, waiting: str) -> None:
    sorted(scope_of(cli, "run:r1").glob("state-*"))[0].unlink()
    assert cli.json("repair", "--apply")["warnings"] == []
    assert cli.json("execute", waiting, exits=3)["stage"] == "c"


def test_a_context_with_an_unknown_head_needs_no_warning_of_effects(cli: Cli) -> None:
    cli.json("run", "--state-scope", "demo", "--system", "one")
    cli.json("run", "--state-scope", "demo", "--refine-text", "two")
    empty(scope_of(cli, "context:demo") / "latest.json")
    assert cli.json("repair", "--apply")["warnings"] == []
    assert json.loads((scope_of(cli, "context:demo") / "latest.json").read_bytes())["version"] == "1"
