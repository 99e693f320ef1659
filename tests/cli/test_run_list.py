"""``exec list``, ``clean`` and ``rm`` where something cannot be read, and what they leave behind."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from command_line import Cli
from each_case import Failures

END: dict[str, Any] = {"end": {}}


def make_damaged(cli: Cli) -> str:
    """A store whose only run has a damaged pointer; the hash of its scope."""
    cli.json("execute", cli.machine(done=END), "--id", "r1")
    scope = hashlib.sha256(b"run:r1").hexdigest()
    (cli.state / scope / "latest.json").write_bytes(b"{}")
    return scope


@pytest.fixture
def damaged(cli: Cli) -> str:
    return make_damaged(cli)


def test_a_run_that_cannot_be_read_is_listed_as_such(cli: Cli, damaged: str) -> None:
    document = cli.json("exec", "list", exits=5)
    assert document["runs"] == []
    assert [(found["severity"], found["path"]) for found in document["findings"]] == [("damage", damaged)]
    for words in (["exec", "list"], ["exec", "list", "-q"]):
        shown = cli(*words)
        assert shown.code == 5
        assert "no runs" not in shown.out.decode()
        assert damaged in shown.out.decode()


def test_runs_that_can_be_read_are_listed_beside_those_that_cannot(cli: Cli, damaged: str) -> None:
    cli.json("execute", cli.machine("other", done=END), "--id", "r2")
    document = cli.json("exec", "list", exits=5)
    assert [row["run"] for row in document["runs"]] == ["r2"]
    assert len(document["findings"]) == 1
    assert "r2" in cli("exec", "list").out.decode()


def test_a_list_of_nothing_damaged_has_no_findings(cli: Cli) -> None:
    assert cli.json("exec", "list")["findings"] == []


def test_what_cannot_be_read_is_kept_and_reported_by_a_clean(cli: Cli) -> None:
    failures = Failures()
    for all in [[], ["--all"]]:
        with failures.case(all), cli.fresh():
            damaged = make_damaged(cli)
            cli.json("execute", cli.machine("other", done=END), "--id", "r2")
            before = [path for path in cli.tree() if damaged in path]
            document = cli.json("exec", "clean", *all, exits=5)
            assert document["removed"] == ["r2"]
            assert list(document["kept"]) == [damaged]
            shown = cli("exec", "clean", *all)
            assert shown.code == 5
            assert f"kept {damaged}: " in shown.out.decode()
            assert [path for path in cli.tree() if damaged in path] == before
    failures.check()


def test_the_help_says_what_a_removal_leaves_behind(cli: Cli) -> None:
    failures = Failures()
    for command in ["clean", "rm"]:
        with failures.case(command), cli.fresh():
            said = " ".join(cli("exec", command, "--help").out.decode().split())
            assert "objects" in said
            assert "secret" in said
    failures.check()
