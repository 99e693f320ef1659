"""`--durability`, `--ephemeral` and `--trust-parent`: on every command, and what they do to a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from each_case import Failures

from stateline import Store
from stateline.store.local.filesystem import Directory, Filesystem

END: dict[str, Any] = {"end": {}}
ASKS: dict[str, Any] = {"human": {"prompt": "Go?"}, "default_next": "done"}


def saved(cli: Cli) -> dict[str, set[str]]:
    """For each scope's kind, the durabilities that its snapshots name."""
    said: dict[str, set[str]] = {}
    for path in cli.state.glob("*/state-*.json"):
        document = json.loads(path.read_bytes())
        said.setdefault(document["scope"].partition(":")[0], set()).add(document["event"]["durability"])
    return said


def test_all_that_a_call_saves_is_as_durable_as_requested(cli: Cli) -> None:
    failures = Failures()
    for way in ["flag", "environment", "default"]:
        with failures.case(way), cli.fresh():
            words = ["--durability", "fast"] if way == "flag" else []
            if way == "environment":
                cli.monkeypatch.setenv("STATELINE_DURABILITY", "fast")
            cli.json("run", "--state-scope", "demo", "--set", "x=1", *words)
            cli.json("execute", cli.machine(done=END), "--state-scope", "demo", *words)
            durability = "full" if way == "default" else "fast"
            assert saved(cli) == {kind: {durability} for kind in ("context", "machine", "run")}
            assert cli.json("verify")["findings"] == []
    failures.check()


def test_an_unknown_durability_is_a_usage_error(cli: Cli) -> None:
    result = cli("execute", cli.machine(done=END), "--durability", "medium", "--format", "json")
    assert result.code == 64
    assert "--durability is 'medium'; it must be full or fast" in result.error["message"]
    assert not cli.state.exists()


def test_a_full_call_on_a_fast_run_settles_the_run_and_its_context(cli: Cli) -> None:
    synced: set[str] = set()
    whole = Filesystem.open_to_sync

    def noted(fs: Filesystem, directory: Directory, name: str) -> int:
        synced.add(f"{os.path.basename(directory.path)}/{name}")
        return whole(fs, directory, name)

    cli.monkeypatch.setattr(Filesystem, "open_to_sync", noted)
    for number, first in enumerate(("fast", "full")):
        context = f"demo{number}"
        cli.json("run", "--state-scope", context, "--set", "x=1", "--set", f"big={'b' * 5000}", "--durability", "fast")
        machine = cli.machine(f"m{number}.json", ask=ASKS, done=END)
        wait = cli("execute", machine, "--id", f"r{number}", "--state-scope", context, "--durability", first)
        assert wait.code == 3
        wanted = {f"{path.parent.name}/{path.name}" for path in cli.state.glob("*/state-*.json")}
        wanted |= {f"{path.parent.name}/{path.name}" for path in cli.state.glob("objects/*/*")}
        store = Store.open(cli.state)
        head = store.scope(f"context:{context}").load()
        assert head.event["durability"] == "fast"
        if first == "fast":
            assert not synced
            cli.json("exec", "resume", f"r{number}", "--answer", "true")
        assert f"{head.scope}/{head.path}" in synced
        assert {f"{ref.sha256[:2]}/{ref.sha256}" for ref in head.envelope.objects.values()} <= synced
        if first == "fast":
            runs = {name for name in wanted if name.startswith(store.scope(f"run:r{number}").hash)}
            assert runs
            assert runs <= synced
        synced.clear()
        cli("execute", machine, "--id", f"r{number}", "--answer", "true")
        cli("exec", "resume", f"r{number}")
        assert not {name for name in synced if "/state-" in name}, "once"


# -- ephemeral ---------------------------------------------------------------------------------------------------------


def test_an_ephemeral_run_comes_to_its_end_and_leaves_nothing(cli: Cli) -> None:
    for words in (["execute", "--ephemeral"], ["--ephemeral", "execute"]):
        document = cli.json(*words, cli.machine(done=END))
        assert document["status"] == "complete"
        assert document["warnings"] == []
    assert cli.json("run", "--ephemeral", "--set", "x=1")["reason"] == "derive"
    assert cli("execute", cli.machine(done=END), "--ephemeral", "-i", "--format", "json").code == 2
    assert not cli.state.exists()
    assert cli.json("machine", "check", cli.machine(done=END), "--ephemeral")["ok"]


def test_an_ephemeral_call_that_leaves_a_run_unfinished_says_that_nothing_was_kept(cli: Cli) -> None:
    waits = cli("execute", cli.machine(ask=ASKS, done=END), "--ephemeral", "--format", "json")
    assert waits.code == 3
    fails = cli("execute", cli.machine(no={"task": ["false"]}), "--ephemeral", "--format", "json")
    assert fails.code == 1
    for result in (waits, fails):
        (warning,) = result.document["warnings"]
        assert "nothing of the run" in warning
        assert "kept" in result.err
    (warning,) = cli.json("run", "--ephemeral", "--set", "x=1")["warnings"]
    assert "not kept" in warning
    assert not cli.state.exists()


def test_reading_commands_see_an_empty_store_with_ephemeral(cli: Cli) -> None:
    cli.json("execute", cli.machine(done=END), "--id", "r1")
    cli.monkeypatch.setenv("STATELINE_EPHEMERAL", "true")
    assert cli.json("exec", "list")["runs"] == []
    assert cli.json("scopes")["scopes"] == []
    assert cli.json("verify")["scopes"] == 0
    assert cli("show", "run:r1", "--format", "json").error["code"] == "not_found"
    assert cli("exec", "status", "r1", "--format", "json").code == 1
    there = ["--state-dir", str(cli.state)]
    assert [row["run"] for row in cli.json("exec", "list", *there)["runs"]] == ["r1"], "the command line is nearer"


def test_ephemeral_and_a_state_dir_on_one_command_line_are_a_usage_error(cli: Cli) -> None:
    for words in (
        ["exec", "list", "--ephemeral", "--state-dir", "x"],
        ["--state-dir", "x", "exec", "--ephemeral", "ls"],
    ):
        result = cli(*words, "--format", "json")
        assert result.code == 64
        assert result.error["code"] == "usage"


# -- unsafe places -----------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(cli: Cli) -> Path:
    """A state dir below a directory in which all may write."""
    place = cli.home / "shared"
    place.mkdir()
    place.chmod(0o777)
    cli.monkeypatch.setenv("STATELINE_STATE_DIR", str(place / "s"))
    return Path(place / "s")


def test_an_open_parent_stops_a_writer_until_it_is_trusted(cli: Cli, shared: Path) -> None:
    machine = cli.machine(ask=ASKS, done=END)
    for words in (["execute", machine], ["run", "--set", "x=1"]):
        refused = cli(*words, "--format", "json")
        assert refused.code == 6
        assert refused.error["code"] == "unsafe"
        assert "--trust-parent" in refused.error["hint"]
        assert cli.json(*words, "--dry-run")["exit"] == 6
    assert not shared.exists()
    trusted = cli("execute", machine, "--id", "r1", "--trust-parent", "--format", "json")
    assert (trusted.code, trusted.document["warnings"]) == (3, [])
    for words in (["log", "run:r1"], ["show", "run:r1"], ["scopes"], ["exec", "status", "r1"], ["exec", "list"]):
        read = cli(*words)
        assert read.code == 0
        assert "above the state dir" in read.err, words
    cli.monkeypatch.setenv("STATELINE_TRUST_PARENT", "true")
    assert cli("exec", "resume", "r1", "--answer", "true").code == 0
    assert cli("log", "run:r1").err == ""


def test_readers_warn_of_a_snapshot_that_others_may_change(cli: Cli) -> None:
    cli.json("execute", cli.machine(done=END), "--id", "r1")
    path = Store.open(cli.state).scope("run:r1").load()
    (cli.state / path.scope / path.path).chmod(0o666)
    for words in (
        ["log", "run:r1"],
        ["show", "run:r1"],
        ["scopes"],
        ["exec", "status", "r1"],
        ["exec", "history", "r1"],
    ):
        read = cli(*words)
        assert read.code == 0
        assert "has mode 0666" in read.err, words
    (finding,) = cli.json("verify")["findings"]
    assert (finding["severity"], finding["code"]) == ("unsafe", "open_mode")


def test_verify_answers_with_a_document_where_the_state_dir_is_not_a_directory(cli: Cli) -> None:
    failures = Failures()
    for kind in ["fifo", "file", "symlink"]:
        with failures.case(kind), cli.fresh():
            if kind == "fifo":
                os.mkfifo(cli.state)
            elif kind == "file":
                cli.state.write_text("mine")
            else:
                cli.state.symlink_to(cli.home)
            result = cli("verify", "--format", "json")
            (finding,) = result.document["findings"]
            assert (finding["severity"], result.document["ok"]) == ("damage", False), "nothing was checked"
            assert result.code == 5
            assert cli("execute", cli.machine(done=END), "--format", "json").code == 6
    failures.check()
