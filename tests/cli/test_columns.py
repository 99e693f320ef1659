"""Text output fits 80 columns, however long the texts from users are."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import Any
from unicodedata import east_asian_width

import pytest
from command_line import Cli, Task
from each_case import Failures

from stateline import Store
from stateline.bundle import naming
from stateline.cli.app import COMMANDS
from stateline.cli.command import Group
from stateline.cli.layout import command_lines

WORDS = "wide 説明 and a_long_word_" + "x" * 90 + " " + "more words " * 40
LONG_ID = "r" * 64
LONG_STAGE = "stage-" + "s" * 58


def columns_of(line: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in line)


@pytest.fixture
def long_store(cli: Cli, task: Task) -> Cli:
    """A store in which every text that a user chooses is long: ids, stages, prompts, labels, outputs, failures."""
    long = cli.home / ("directory " + "d" * 90)
    long.mkdir()
    (long / "words").write_text(json.dumps({"k" * 90: WORDS, "list": [*range(60)], "again": WORDS}))
    cli.home = long
    stages: dict[str, Any] = {
        LONG_STAGE: task("cat words", set={"v": "output"}, default_next="fails"),
        "fails": task("cat words >&2; exit 3", retry={"max_attempts": 2}, error_next="ask"),
        "ask": {"human": {"prompt": WORDS, "schema": {"type": "object", "description": WORDS}}},
    }
    machine = cli.machine("m" * 64, _state={"v": None}, **stages)
    cli.json("execute", machine, "--id", LONG_ID, "--label", "team=" + WORDS, exits=3)
    cli.json("execute", cli.machine("b", a=task("cat words >&2; exit 3")), "--id", "broken", exits=1)
    cli.json("execute", cli.machine("c", a=task("cat words", default_next="b"), b={"end": {}}))
    schema = {"type": "object", "properties": {"q" * 90: {"type": "string"}}}
    tool = {"name": "t" * 60, "description": WORDS, "schema": schema, "argv": ["cat", "words"]}
    (long / "tools.json").write_text(json.dumps({"tools": [tool]}))
    cli.json("run", "-p", WORDS, "--id", "asked", "--tools", str(long / "tools.json"), "--system", WORDS, exits=3)
    call = {"response": WORDS, "tools": [{"name": "t" * 60, "params": {"q" * 90: WORDS}}]}
    cli.json("exec", "resume", "asked", stdin=json.dumps(call).encode(), exits=3)
    cli.json("run", "--state-scope", "c" * 64, "--system", WORDS, "--set", "k=" + WORDS, "--developer", WORDS)
    cli.json("run", "--state-scope", "c" * 64, "--refine-text", WORDS)
    Store.open(cli.state).scope("notes:" + "n" * 200).save({"a" * 90: {"b" * 90: WORDS}, "l": [WORDS] * 9})
    Store.open(cli.state).scope("notes:" + "n" * 200).save({"a" * 90: {"b" * 90: 7}, "l": [WORDS, 1]})
    return cli


def calls(cli: Cli) -> list[list[str]]:
    """Calls whose text output must fit."""
    runs = [row["run"] for row in cli.json("exec", "list")["runs"]]
    scopes = [row["scope"] for row in cli.json("scopes")["scopes"]]
    found = [["exec", "list"], ["scopes"], ["verify"], ["verify", "--anchor", "0" * 64]]
    found += [["exec", "history", run] for run in runs]
    found += [["exec", "status", run] for run in runs]
    found += [["log", *more, key] for more in ([], ["-p"]) for key in scopes]
    found += [["diff", f"run:{runs[0]}", f"run:{run}"] for run in runs]
    found += [["diff", f"{key}@0", key] for key in scopes]
    return found


def too_long(text: str) -> list[str]:
    """The lines of more than 80 columns, but for a shell's word that is longer: a broken one could not be pasted."""
    wide = [line for line in text.split("\n") if columns_of(line) > 80]
    return [line for line in wide if not re.fullmatch(r""" *(?:[^ '"]|'[^']*'|"[^"]*")+(?: \\)?""", line)]


def test_no_line_of_an_outcome_is_longer_than_80_columns(long_store: Cli) -> None:
    failures = Failures()
    runs = [row["run"] for row in long_store.json("exec", "list")["runs"]]
    path = str(long_store.home / f"{'m' * 64}.json")
    for words in [
        *(["exec", "resume", run] for run in runs),
        *(["exec", "resume", run, "--dry-run"] for run in runs),
        ["execute", path, "--force", "--dry-run"],
        ["execute", path, "--force", "-i"],
        ["run", "--state-scope", "c" * 64],
        ["run", "--state-scope", "c" * 64, "--set", "k=" + WORDS, "--refine-text", WORDS],
    ]:
        with failures.case(*words):
            result = long_store(*words)
            assert result.code in (0, 1, 3), result
            assert result.out
            assert too_long(result.out.decode()) == []
    failures.check()


def test_a_command_on_several_lines_is_one_command_for_a_shell() -> None:
    failures = Failures()
    for words in (["stateline", "a b", "it's", "x" * 90, "--answer", '{"a b": "\\"c d\\""}'], ["a"] * 90):
        with failures.case(words):
            lines = command_lines("", shlex.join(words), 40)
            assert len(lines) > 1
            script = "printf '%s\\0' " + "\n".join(lines)
            done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, timeout=30)
            assert done.stdout.decode().split("\0")[:-1] == words
    failures.check()


def test_no_line_of_a_listing_is_longer_than_80_columns(long_store: Cli) -> None:
    failures = Failures()
    long_store.state.chmod(0o755)  # so that verify has findings
    for words in calls(long_store):
        with failures.case(*words):
            result = long_store(*words)
            assert result.code in (0, 5), result
            assert result.out
            assert too_long(result.out.decode()) == []
    failures.check()


def test_no_line_of_machine_check_or_repair_is_longer_than_80_columns(long_store: Cli) -> None:
    failures = Failures()
    wrong = long_store.machine("wrong", **{LONG_STAGE: {"task": ["x" * 90], "bad": 1}, "b": {"end": {}}})
    newest = max((long_store.state / naming.scope_hash("context:" + "c" * 64)).glob("state-*"))
    newest.write_bytes(newest.read_bytes()[:-9])
    for code, *words in [(1, "machine", "check", wrong), (5, "repair"), (0, "repair", "--apply")]:
        with failures.case(*words):
            result = long_store(*map(str, words))
            assert result.code == code, result
            assert len(result.out.split(b"\n")) > 2
            assert too_long(result.out.decode()) == []
    failures.check()


def test_the_fields_of_a_status_are_in_one_column(cli: Cli, task: Task) -> None:
    cli("execute", cli.machine(_bounds={"max_tool_rounds": 2}, a={"human": {"prompt": "Go?"}}), "--id", "r")
    cli("run", "-p", "Go.", "--id", "p")
    for run in ("r", "p"):
        fields = [line for line in cli("exec", "status", run).out.decode().split("\n") if line and line[0] != " "]
        assert {re.match(r"[a-z_ ]+: +", line).end() for line in fields} == {17}, fields  # type: ignore[union-attr]


def test_no_line_of_a_help_page_is_longer_than_80_columns(cli: Cli) -> None:
    failures = Failures()
    pages: list[tuple[list[str], Any]] = [([], COMMANDS)]
    for path, node in pages:  # it grows
        if isinstance(node, Group):
            pages += [([*path, name], each) for name, each in node.commands.items()]
        with failures.case(*path):
            lines = cli(*path, "--help").out.decode().split("\n")
            assert len(lines) > 5
            assert [line for line in lines if columns_of(line) > 80] == []
    failures.check()


def test_an_option_stays_beside_its_value_where_a_command_is_broken() -> None:
    lines = command_lines("  answer: ", f"stateline exec resume {'r' * 30} --request {'r' * 50} --answer '1 2'", 80)
    assert lines == [
        f"  answer: stateline exec resume {'r' * 30} \\",
        f"            --request {'r' * 50} \\",
        "            --answer '1 2'",
    ]
