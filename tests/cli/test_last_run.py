"""Calls that do not name a run: which one they mean, and what is reported of the others."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from command_line import Cli
from each_case import Failures

ASK: dict[str, Any] = {"human": {"prompt": "?"}}


@pytest.fixture
def asking(cli: Cli) -> str:
    return cli.machine(ask=ASK)


def pasted(cli: Cli, hint: str, value: str) -> list[dict[str, Any]]:
    """The documents of the commands in ``hint``, with ``value`` in the place of JSON."""
    lines = [shlex.split(line.replace("JSON", value)) for line in re.findall("`stateline ([^`]*)`", hint)]
    return [cli.json(*line) for line in lines]


def test_other_unfinished_runs_are_no_matter_of_a_call_that_names_its_run(cli: Cli, asking: str) -> None:
    cli.json("execute", asking, "--id", "r1", exits=3)
    for exits, *answer in ((3,), (3,), (0, "--answer", "1"), (0,)):
        assert cli.json("execute", asking, "--id", "r2", *map(str, answer), exits=exits)["warnings"] == []
    (warning,) = cli.json("execute", asking, "--force", exits=3)["warnings"]
    assert "r1" in warning


def test_a_warning_that_lists_eight_runs_shows_how_to_list_all(cli: Cli, asking: str) -> None:
    for number in range(12):
        cli.json("execute", asking, "--id", f"r{number}", exits=3)
    (warning,) = cli.json("execute", asking, exits=3)["warnings"]
    assert "r10" in warning
    (listed,) = pasted(cli, warning, "")
    assert len(listed["runs"]) == 12


def test_an_answer_that_would_start_a_run_names_those_that_wait(cli: Cli, asking: str) -> None:
    cli.json("execute", asking, "--id", "older", exits=3)
    cli.json("execute", asking, "--id", "newer", exits=3)
    cli.json("exec", "resume", "newer", "--answer", "1")
    error = cli.refused("execute", asking, "--answer", "5", exits=1)
    assert error["code"] == "no_open_request"
    assert "older" in error["message"]
    (done,) = pasted(cli, error["hint"], "5")
    assert (done["run"], done["status"]) == ("older", "complete")
    assert cli.refused("execute", asking, "--answer", "5", exits=1)["code"] == "no_open_request"


def test_an_answer_to_a_request_of_a_complete_run_that_never_was_finds_no_open_request(cli: Cli, asking: str) -> None:
    cli.json("execute", asking, "--id", "r1", exits=3)
    cli.json("exec", "resume", "r1", "--answer", "1")
    before = cli.tree()
    failures = Failures()
    for words in (["exec", "resume", "r1"], ["execute", asking, "--id", "r1"]):
        with failures.case(words):
            error = cli.refused(*words, "--request", "null", "--answer", "true", exits=1)
            assert error["code"] == "no_open_request"
            assert "None" not in error["message"]
    failures.check()
    assert cli.tree() == before


def test_a_required_head_of_a_run_that_does_not_exist_is_a_conflict_of_a_named_run_or_none(
    cli: Cli, asking: str
) -> None:
    cli.json("execute", asking, "--id", "r1", exits=3)
    head = cli.json("exec", "resume", "r1", "--answer", "1")["head"]
    error = cli.refused("execute", asking, "--parent", head, exits=4)
    assert "run:new" not in error["message"]
    assert "run:r2" in cli.refused("execute", asking, "--id", "r2", "--parent", head, exits=4)["message"]


def test_the_hint_of_a_moved_head_shows_the_head(cli: Cli, asking: str) -> None:
    cli.json("execute", asking, "--id", "r1", exits=3)
    cli.json("execute", asking, "--id", "r2", exits=3)
    error = cli.refused("exec", "resume", "r1", "--answer", "1", "--parent", "run:r2", exits=4)
    (log,) = pasted(cli, error["hint"], "")
    assert log["snapshots"][0]["sha"] == cli.json("exec", "status", "r1")["head"]
