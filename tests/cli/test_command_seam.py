"""Commands in separate steps: flags become frozen options, and options are run."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Cli
from each_case import Failures

from stateline.cli.app import COMMANDS
from stateline.cli.audit import SHOW
from stateline.cli.command import Entry, Group, parse
from stateline.cli.execute import EXECUTE, RESUME, ExecuteOptions
from stateline.cli.options import Settings, settings_of
from stateline.cli.output import Output, print_output
from stateline.cli.run import RUN
from stateline.cli.runs import CLEAN, LIST, ListOptions
from stateline.errors import UsageError
from stateline.service.model_setup import ModelOptions
from stateline.service.options import ExecuteOptions as Request
from stateline.service.runs import EVERY


def options_of(*argv: str) -> Any:
    """The options of a command line. Nothing is run."""
    command, flags = parse(COMMANDS, argv)
    return command.options(flags, settings_of(flags))


def test_flags_become_options_without_running_anything(cli: Cli) -> None:
    execute = options_of("execute", "m.yaml", "-i", "--id", "r1", "--label", "a=1", "--label", "b=2", "--dry-run")
    assert (execute.request.machine, execute.request.run) == ("m.yaml", "r1")
    assert execute.request.labels == {"a": "1", "b": "2"}
    assert (execute.request.call.one_turn, execute.dry_run) == (True, True)
    assert execute.request.call.input is msgspec.UNSET
    resume = options_of("exec", "resume", "r1", "--retry", "-m", "openai/m", "--answer", '{"a": 1}')
    assert (resume.run, resume.retry, resume.models.model, resume.call.answer) == ("r1", True, "openai/m", {"a": 1})
    run = options_of("run", "-p", "Hello", "--set", "x=1", "--set", "y=z", "--developer", "D")
    assert (run.request.prompt, run.request.context_request.settings) == ("Hello", {"x": 1, "y": "z"})
    assert (run.request.context_request.developer, run.context_only) == (["D"], False)
    assert options_of("run", "--system", "S").context_only
    assert options_of("exec", "clean", "--all", "--older-than", "2h").older_than == 7200
    assert options_of("log", "run:x", "-n", "3", "-p").number == 3
    assert options_of("exec", "rm", "a", "b").runs == ["a", "b"]
    assert not cli.state.exists()


def test_an_options_value_may_be_in_the_same_word_or_the_next(cli: Cli) -> None:
    failures = Failures()
    prompts = {
        ("-p", "-x"): "-x",
        ("-px",): "x",
        ("-p=x",): "=x",
        ("-vp", "x"): "x",
        ("-vpx",): "x",
        ("--prompt=x=y",): "x=y",
        ("--prompt", "--dry-run"): "--dry-run",
    }
    for words, prompt in prompts.items():
        with failures.case(words):
            assert options_of("run", *words).request.prompt == prompt
    failures.check()


def test_an_unknown_option_is_a_usage_error_also_beside_help(cli: Cli) -> None:
    failures = Failures()
    for argv in (["run", "--nope", "--help"], ["run", "--help", "-z"], ["--nope", "--help"], ["run", "-vz"]):
        with failures.case(argv), pytest.raises(UsageError):
            options_of(*argv)
    for argv in (["log", "-n", "x", "--help"], ["completion", "none", "--help"], ["run", "-hp", "x"]):
        with failures.case(argv), pytest.raises(SystemExit):
            options_of(*argv)
    failures.check()


def test_options_of_every_command_are_frozen(cli: Cli) -> None:
    failures = Failures()
    for argv in (["exec", "list"], ["execute", "m"], ["run", "-px"], ["exec", "resume", "r"], ["log", "x"], ["verify"]):
        with failures.case(argv):
            options = options_of(*argv)
            with pytest.raises(AttributeError):
                setattr(options, options.__struct_fields__[0], None)
    failures.check()


def test_an_option_takes_the_next_word_as_its_value_even_with_a_dash(cli: Cli) -> None:
    failures = Failures()
    for words in (["-p", "--debug"], ["-p", "-q is a flag"], ["--prompt", "-x"], ["--prompt=-x"]):
        with failures.case(words):
            assert options_of("run", *words).request.prompt == words[-1].removeprefix("--prompt=")
            assert not options_of("run", *words).settings.debug
    failures.check()


def test_options_and_arguments_may_be_mixed(cli: Cli) -> None:
    for argv in (["--debug", "status", "r1"], ["status", "--debug", "r1"], ["status", "r1", "--debug"]):
        options = options_of("exec", *argv)
        assert (options.run, options.settings.debug) == ("r1", True)


def test_a_malformed_value_is_a_usage_error_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    failures = Failures()
    for argv in (
        ["run", "-p", "x", "--prompt-file", "y"],
        ["run", "-p", " "],
        ["run", "x"],
        ["run", "-p", "--"],
        ["run", "--prompt=--"],
        ["run", "--force"],
        ["run", "--input", "1"],
        ["run", "--refine-text", " "],
        ["run", "--refine-text", "x", "--refine-file", "y"],
        ["run", "--set", "x"],
        ["run", "--input-format", "xml"],
        ["execute"],
        ["execute", "m", "n"],
        ["execute", "m", "--label", "x"],
        ["execute", "m", "--input", "{"],
        ["execute", "m", "--i"],
        ["exec", "clean", "--older-than", "soon"],
        ["log", "x", "-n", "-1"],
        ["log", "x", "-n", "y"],
        ["log", "x", "--", "-n"],
        ["show", "x", "--raw", "--resolve"],
        ["verify", "--anchor", f"@{tmp_path / 'empty'}"],
        ["completion", "tcsh"],
        ["--force", "execute", "m"],
        ["exec", "--state-dir"],
    ):
        with failures.case(argv), pytest.raises(UsageError):
            options_of(*argv)
    failures.check()


def test_a_command_runs_from_options_alone(cli: Cli) -> None:
    settings = Settings(state_dir=str(cli.state))
    machine = cli.machine(a={"human": {"prompt": "Ship?"}})
    options = ExecuteOptions(
        settings=settings, request=Request(machine=machine, run="r1", context=None), models=ModelOptions()
    )
    output = EXECUTE.run(options)
    assert (output.exit_code, output.document["status"]) == (3, "waiting")
    assert any("Ship?" in line for line in output.lines)
    assert [row["run"] for row in LIST.run(ListOptions(settings, EVERY)).document["runs"]] == ["r1"]


def test_output_is_printed_in_one_place(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, expected in ((Settings(), b"a\nb\n"), (Settings(format="json"), b'{"x":1}\n')):
        for lines in (["a", "b"], iter(["a", "b"])):
            stdout = io.TextIOWrapper(io.BytesIO())
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", stdout)
                assert print_output(settings, Output(document={"x": 1}, lines=lines, exit_code=5)) == 5
            assert stdout.buffer.getvalue() == expected  # type: ignore[attr-defined]  # a BytesIO


def test_the_table_names_commands_that_exist() -> None:
    def entries(group: Group) -> list[Entry]:
        found: list[Entry] = []
        for node in group.commands.values():
            found += entries(node) if isinstance(node, Group) else [node]
        return found

    commands = [entry.load() for entry in entries(COMMANDS)]
    assert all(command.help for command in commands)
    assert all(command in commands for command in (EXECUTE, RESUME, RUN, LIST, CLEAN, SHOW))
