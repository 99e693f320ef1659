"""Text after damage: findings, the lines of a repair, the log, and the request of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task, log_summaries
from each_case import Failures

from stateline.bundle import naming


def scope_of(cli: Cli, key: str) -> Path:
    return Path(cli.state) / naming.scope_hash(key)


def snapshots(cli: Cli, key: str) -> list[Path]:
    return sorted(scope_of(cli, key).glob("state-*.json"))


def event(cli: Cli, key: str) -> dict[str, Any]:
    return dict(cli.json("show", key)["event"])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def make_interrupted(cli: Cli, task: Task) -> str:
    """A run ``r1`` of a task that must not run twice, repaired onto the snapshot that says it was about to run."""
    machine = str(cli.machine(a=task("echo a >> ran; echo 1", repeatable=False)))
    cli.json("execute", machine, "--id", "r1")
    alter(snapshots(cli, "run:r1")[-1])
    cli.json("repair", "--apply")
    assert event(cli, "run:r1")["effect"]["doubtful"] is True
    return machine


@pytest.fixture
def interrupted(cli: Cli, task: Task) -> str:
    return make_interrupted(cli, task)


def test_one_retry_after_a_repair_performs_the_effect_once(task: Task, cli: Cli) -> None:
    failures = Failures()
    for asked in [True, False]:
        with failures.case(asked), cli.fresh():
            interrupted = make_interrupted(cli, task)
            if asked:
                cli.json("execute", interrupted, exits=3)
            assert cli.json("exec", "resume", "r1", "--retry")["status"] == "complete"
            assert cli.ran() == ["a", "a"], "once before the damage, once on request"
    failures.check()


def test_a_failed_effect_that_may_have_been_retried_since_waits_for_word(cli: Cli, task: Task) -> None:
    """The doubt is new to whoever retries a failure: what was lost may have been that very retry."""
    machine = cli.machine(a=task("echo a >> ran; test -e good && echo 1", repeatable=False))
    cli.json("execute", machine, "--id", "r1", exits=1)
    (cli.home / "good").write_text("")
    standing = len(snapshots(cli, "run:r1"))
    cli.json("exec", "resume", "r1", "--retry")
    for path in snapshots(cli, "run:r1")[standing:]:
        alter(path)
    cli.json("repair", "--apply")
    result = cli.json("exec", "resume", "r1", "--retry", exits=3)
    assert result["waiting"]["kind"] == "unknown_outcome"
    assert cli.ran() == ["a", "a"]
    assert cli.json("exec", "resume", "r1", "--retry")["status"] == "complete"
    assert cli.ran() == ["a", "a", "a"]


def test_a_run_in_doubt_after_a_repair_says_what_is_known(cli: Cli, interrupted: str) -> None:
    waiting = cli.json("execute", interrupted, exits=3)["waiting"]
    assert waiting["kind"] == "unknown_outcome"
    assert "newer snapshots of this run may have been lost" in waiting["message"]
    assert "may have been done already" in waiting["message"]
    assert "never saved" not in waiting["message"]
    (line,) = log_summaries(cli("log", "run:r1", "-n", "1").out.decode())
    assert "was cut off" not in line
    assert "a may have run, in newer snapshots that are lost" in line


def _refined(cli: Cli, times: int) -> list[Path]:
    cli.json("run", "--state-scope", "demo", "--system", "one")
    for number in range(times):
        cli.json("run", "--state-scope", "demo", "--refine-text", f"{number}")
    return snapshots(cli, "context:demo")


def test_a_finding_is_shown_with_its_scope_and_its_path_once(cli: Cli) -> None:
    bad = _refined(cli, 2)[-1]
    alter(bad)
    shown = "".join(cli("verify").out.decode().split())
    path = f"{bad.parent.name}/{bad.name}"
    assert shown.startswith(f"damagealtered:context:demo:thesnapshot{path}isaltered")
    assert shown.count(bad.name) == 1


def test_a_finding_whose_message_names_no_path_is_shown_with_it(cli: Cli) -> None:
    _refined(cli, 0)
    (scope_of(cli, "context:demo") / "n.txt").write_bytes(b"")
    path = f"{naming.scope_hash('context:demo')}/n.txt"
    assert f"damage foreign_file: context:demo: {path}: " in " ".join(cli("verify").out.decode().split())


def test_the_scope_of_a_finding_is_known_also_where_it_is_accepted_before_the_first_intact_snapshot(cli: Cli) -> None:
    alter(_refined(cli, 2)[-1])
    found = [f for f in cli.json("verify", exits=5)["findings"] if f["severity"] == "damage"]
    assert {f["scope"] for f in found} == {"context:demo"}


def test_the_next_step_names_the_scope_that_was_asked_for(cli: Cli) -> None:
    from stateline import Store

    Store.open(cli.state).scope("notes:a b").save({})
    (scope_of(cli, "notes:a b") / "latest.json").write_bytes(b"")
    (scope_of(cli, "notes:a b") / "n.txt").write_bytes(b"")
    assert "`stateline repair 'notes:a b' --apply`" in cli("repair", "notes:a b").out.decode()
    assert "`stateline repair 'notes:a b'`" in cli("verify", "notes:a b").out.decode()
    assert "`stateline repair --apply`" in cli("repair").out.decode()


def test_a_log_says_what_is_lost_between_two_snapshots(cli: Cli) -> None:
    failures = Failures()
    for gone, said in [([1, 2], "lost: snapshots 1 to 2"), ([1], "lost: snapshot 1")]:
        with failures.case(gone, said), cli.fresh():
            files = _refined(cli, 3)
            for number in gone:
                files[number].unlink()
            plan = " ".join(cli("repair").out.decode().split())
            assert (
                f"lost snapshots {gone[0]} to {gone[-1]} " if len(gone) > 1 else f"lost snapshot {gone[0]} "
            ) in plan
            cli.json("repair", "--apply")
            lines = cli("log", "context:demo").out.decode().splitlines()
            assert [line.strip() for line in lines].count(said) == 1
            assert lines.index(next(line for line in lines if said in line)) == len(lines) - 2
    failures.check()


def test_a_log_says_what_is_lost_below_its_last_line(cli: Cli) -> None:
    files = _refined(cli, 3)
    for path in files[:2]:
        path.unlink()
    cli.json("repair", "--apply")
    assert cli("log", "context:demo").out.decode().splitlines()[-1].strip() == "lost: snapshots 0 to 1"
    assert "lost" not in cli("log", "context:demo", "-n", "2").out.decode().splitlines()[-1]
