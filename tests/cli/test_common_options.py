"""Common options: before, between and after the words of a command, and from the environment."""

from __future__ import annotations

import os
import sys
from typing import Any

from command_line import Cli, Task
from each_case import Failures

END: dict[str, Any] = {"end": {}}


def test_a_common_option_stands_before_between_or_after(cli: Cli) -> None:
    cli.json("execute", cli.machine(done=END), "--id", "r1", "--state-dir", str(cli.home / "other"))
    assert not cli.state.exists()
    other = ["--state-dir", str(cli.home / "other")]
    for words in (
        [*other, "exec", "list", "--format", "json"],
        ["exec", *other, "list", "--format", "json"],
        ["exec", "list", *other, "--format", "json"],
        ["--format", "json", *other, "exec", "list"],
        ["exec", "--format", "json", *other, "list"],
        ["exec", "ls", *other, "--format", "json"],
    ):
        result = cli(*words)
        assert result.code == 0
        assert [row["run"] for row in result.document["runs"]] == ["r1"], words


def test_the_word_nearest_to_the_command_wins(cli: Cli) -> None:
    cli.json("execute", cli.machine(done=END), "--id", "r1", "--state-dir", str(cli.home / "near"))
    cli.json("execute", cli.machine(done=END), "--id", "r2", "--state-dir", str(cli.home / "far"))
    near, far = str(cli.home / "near"), str(cli.home / "far")
    assert cli.json("--state-dir", far, "exec", "list", "--state-dir", near)["runs"][0]["run"] == "r1"
    assert cli.json("--state-dir", near, "exec", "--state-dir", far, "list")["runs"][0]["run"] == "r2"
    assert cli("--format", "json", "exec", "list", "--format", "text").out.startswith(b"no runs")
    assert cli("--format", "json", "exec", "status", "nobody", "--format", "text").out == b""
    assert cli("--format", "text", "exec", "status", "nobody", "--format", "json").error


def test_a_flag_wins_over_the_environment_and_that_over_the_default(cli: Cli) -> None:
    cli.monkeypatch.setenv("STATELINE_FORMAT", "json")
    assert cli("exec", "list").document["runs"] == []
    assert cli("exec", "list", "--format", "text").out.startswith(b"no runs in")
    cli.monkeypatch.setenv("STATELINE_FORMAT", "")
    assert cli("exec", "list").out.startswith(b"no runs in")
    cli.monkeypatch.setenv("STATELINE_FORMAT", "xml")
    assert cli("exec", "list").code == 64
    assert cli("exec", "list", "--format", "json").document["runs"] == []


def test_state_dir_by_flag_environment_and_default(cli: Cli) -> None:
    machine = cli.machine(done=END)
    cli.monkeypatch.setenv("STATELINE_STATE_DIR", str(cli.home / "environment"))
    cli.json("execute", machine)
    assert (cli.home / "environment" / "stateline.json").exists()
    cli.json("execute", machine, "--state-dir", str(cli.home / "flag"))
    assert (cli.home / "flag" / "stateline.json").exists()
    cli.monkeypatch.delenv("STATELINE_STATE_DIR")
    cli.monkeypatch.setenv("HOME", str(cli.home / "user"))
    cli.monkeypatch.setenv("XDG_STATE_HOME", str(cli.home / "user" / "state"))
    cli.json("execute", machine)
    made = list((cli.home / "user").rglob("stateline.json"))
    assert len(made) == 1
    if sys.platform == "linux":
        assert made[0].parent == cli.home / "user" / "state" / "stateline"


def test_state_scope_by_environment_and_flag(cli: Cli) -> None:
    cli.monkeypatch.setenv("STATELINE_STATE_SCOPE", "one")
    cli.json("run", "--set", "x=1")
    cli.json("run", "--set", "x=2", "--state-scope", "two")
    assert {row["scope"] for row in cli.json("scopes")["scopes"]} == {"context:one", "context:two"}


def test_wait_by_environment_and_flag(cli: Cli) -> None:
    from stateline import Store

    machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
    cli.json("execute", machine, "--id", "r1", exits=3)
    with Store.open(cli.state).scope("run:r1").locked():
        cli.monkeypatch.setenv("STATELINE_WAIT", "0.05")
        error = cli.refused("exec", "resume", "r1", "--answer", "1", exits=4)
        assert "0.05" in error["message"]
        error = cli.refused("exec", "resume", "r1", "--answer", "1", "--wait", "0.01", exits=4)
        assert "0.01" in error["message"]
        cli.refused("exec", "resume", "r1", "--answer", "1", "--wait", "0", exits=4)
    cli.monkeypatch.setenv("STATELINE_WAIT", "soon")
    assert cli.refused("exec", "list", exits=64)["code"] == "usage"


def test_quiet_and_verbose(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    assert "turn 1: a" not in cli("execute", machine).err
    said = cli("execute", machine, "-v").err
    assert "turn 1: a" in said
    assert "turn 2: b" in said
    cli.monkeypatch.setenv("STATELINE_VERBOSE", "1")
    assert "turn 1: a" in cli("execute", machine).err
    assert cli("execute", machine, "-q").err == ""
    cli.monkeypatch.setenv("STATELINE_QUIET", "true")
    assert cli("execute", machine).err == ""


def test_quiet_keeps_errors(cli: Cli) -> None:
    assert "no run nobody" in cli("exec", "status", "nobody", "-q").err


def test_no_traceback_and_no_data_for_a_real_process_either(cli: Cli) -> None:
    failures = Failures()
    for talk in [[], ["--no-such"], ["exec"], ["exec", "status", "nobody"]]:
        with failures.case(talk), cli.fresh():
            result = cli.process(*talk, env={**os.environ, "STATELINE_FORMAT": "json"})
            assert result.code in (1, 64)
            assert result.error
    failures.check()


def test_the_version_is_reported_after_any_common_option(cli: Cli) -> None:
    failures = Failures()
    for words in [["-q"], ["--format", "json"], ["--state-dir", "x"], ["--wait", "1", "-v"], ["--ephemeral"]]:
        with failures.case(words), cli.fresh():
            from stateline import __version__

            result = cli(*words, "--version")
            assert (result.code, result.out.decode()) == (0, f"stateline {__version__}\n")
            assert cli("--version", *words).out == result.out
    failures.check()


def test_a_malformed_common_option_is_named_with_what_it_may_be(cli: Cli) -> None:
    failures = Failures()
    for name, value, wanted in [
        ("format", "yaml", "text or json"),
        ("durability", "sync", "full or fast"),
        ("wait", "soon", "a number of seconds, 0 or more"),
        ("wait", "-1", "a number of seconds, 0 or more"),
    ]:
        with failures.case(name, value, wanted), cli.fresh():
            assert (
                f"--{name} is '{value}'; it must be {wanted}; nothing was done\n"
                in cli("exec", "list", f"--{name}", value).err
            )
            cli.monkeypatch.setenv(f"STATELINE_{name.upper()}", value)
            assert (
                f"STATELINE_{name.upper()} is '{value}'; it must be {wanted}; nothing was done\n"
                in cli("exec", "list").err
            )
    failures.check()
