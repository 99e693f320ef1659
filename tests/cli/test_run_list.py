"""``exec list``, ``clean`` and ``rm`` where something cannot be read, and what they leave behind."""

from __future__ import annotations

import hashlib
import re
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


def listed(cli: Cli, *words: str) -> list[str]:
    return [row["run"] for row in cli.json("exec", "list", *words)["runs"]]


def test_a_list_is_filtered_by_status_label_and_machine_and_cut(cli: Cli) -> None:
    ends, asks = cli.machine("ends", done=END), cli.machine("asks", a={"human": {"prompt": "?"}})
    cli.json("execute", ends, "--id", "r1", "--label", "team=a", "--label", "n=1")
    cli.json("execute", asks, "--id", "r2", "--label", "team=a", exits=3)
    cli.json("execute", ends, "--id", "r3")
    for words, runs in [
        ([], ["r3", "r2", "r1"]),
        (["-n", "2"], ["r3", "r2"]),
        (["-n", "0"], []),
        (["--status", "waiting"], ["r2"]),
        (["--status", "waiting", "--status", "complete", "-n", "1"], ["r3"]),
        (["--label", "team=a"], ["r2", "r1"]),
        (["--label", "team=a", "--label", "n=1"], ["r1"]),
        (["--label", "team=b"], []),
        (["--machine", "ends"], ["r3", "r1"]),
        (["--machine", asks], ["r2"]),
        (["--machine", "ends", "--label", "team=a"], ["r1"]),
        (["--machine", "other"], []),
    ]:
        assert listed(cli, *words) == runs, words
    for refused in (["-n", "-1"], ["--status", "done"], ["--label", "team"]):
        assert cli.refused("exec", "list", *refused, exits=64)["code"] == "usage"


def test_text_shows_machine_stage_and_failures_and_an_age(cli: Cli) -> None:
    cli.json("execute", cli.machine("ends", done=END), "--id", "r1", "--label", "team=a")
    (line,) = cli("exec", "list").out.decode().split("\n")[1:-1]
    assert re.fullmatch(r"r1   complete  (just now|[0-9] s) +ends team=a", line)
    cli.json("execute", cli.machine("fails", a={"task": ["false"], "error_next": "e"}, e=END), "--id", "r" * 64)
    heading, name, line = cli("exec", "list").out.decode().split("\n")[:3]
    assert heading.split() == ["run", "status", "fails", "ago", "about"]
    assert name == "r" * 64
    assert line.split()[:2] == ["complete", "1"]


def test_a_run_of_a_prompt_is_listed_with_model_and_prompt(cli: Cli) -> None:
    cli.json("run", "-p", "What is\nthe time?", "--id", "r1", exits=3)
    assert "  no model: What is the time?\n" in cli("exec", "list").out.decode()
    cli.json("exec", "resume", "r1", stdin=b'{"response": "Noon."}')
    assert "  no model: What is the time?\n" in cli("exec", "list").out.decode()


def test_an_empty_listing_names_the_state_dir(cli: Cli) -> None:
    for words in (["exec", "list"], ["scopes"], ["exec", "list", "--machine", "x"]):
        assert str(cli.state) in " ".join(cli(*words).out.decode().split()), words
    for words in (["log", "run:r"], ["exec", "status"], ["exec", "status", "r"], ["exec", "history"]):
        assert str(cli.state) in cli.refused(*words, exits=1)["message"], words
    assert "memory" in cli("--ephemeral", "exec", "list").out.decode()
