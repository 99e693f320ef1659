"""Shell completion: what is offered, and that the shells really ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from command_line import Cli
from each_case import Failures

from stateline.cli.completion import candidates
from stateline.store.local.backend import LocalBackend
from stateline.store.store import Store


def offered(line: str) -> list[str]:
    return [word for word, _ in candidates(line)]


def test_commands_and_options_are_offered(cli: Cli) -> None:
    assert offered("stateline exec st") == ["status"]
    assert {"execute", "machine", "verify"} <= set(offered("stateline "))
    assert "complete" not in offered("stateline ")
    assert offered("stateline machine ") == ["check", "draw", "schema", "show"]
    assert offered("stateline execute --acc") == ["--accept-change"]
    assert offered("stateline --debug exec --sta") == ["--state-dir", "--state-scope"]


def test_common_options_are_offered_with_their_description(cli: Cli) -> None:
    ((name, description),) = candidates("stateline run --state-d")
    assert name == "--state-dir"
    assert description.startswith("Directory of the store")


def test_words_that_an_option_takes_are_offered(cli: Cli) -> None:
    assert offered("stateline log x --format ") == ["json", "text"]
    assert offered("stateline log x --format=j") == ["--format=json"]
    assert offered("stateline completion ") == ["bash", "fish", "zsh"]


def test_names_of_files_are_left_to_the_shell(cli: Cli) -> None:
    cli.monkeypatch.chdir(cli.home)
    cli.machine(a={"end": {}})
    assert offered("stateline execute ") == offered("stateline run --prompt-file ") == []


def test_runs_and_scopes_of_the_state_dir_are_offered_and_none_is_made(cli: Cli) -> None:
    assert offered("stateline exec status ") == []
    assert not cli.state.exists()
    machine = cli.machine(a={"end": {}})
    cli.json("execute", machine, "--id", "first")
    cli.json("execute", machine, "--id", "second")
    assert offered("stateline exec rm first s") == ["second"]
    assert offered("stateline exec status ") == ["first", "second"]
    assert offered("stateline show run:f") == ["run:first"]
    assert offered(f"stateline --state-dir '{cli.home}/other' exec status ") == []


def test_a_line_that_makes_no_sense_is_not_an_error(cli: Cli) -> None:
    failures = Failures()
    for line in ["", "x", "stateline 'unclosed", "stateline nonsense --x y ", "stateline log \x00"]:
        with failures.case(line), cli.fresh():
            result = cli("complete", "--", line)
            assert (result.code, result.err) == (0, "")
    failures.check()


def test_another_shell_is_a_mistake_of_usage(cli: Cli) -> None:
    assert cli.refused("completion", "tcsh", exits=64)["code"] == "usage"


def shell(cli: Cli, *argv: str) -> str:
    """The output of a shell with the command ``stateline`` on its PATH."""
    program = shutil.which(argv[0])
    if program is None:
        pytest.skip(f"{argv[0]} is not installed")
    bin = cli.home / "bin"
    bin.mkdir()
    (bin / "stateline").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stateline "$@"\n')
    (bin / "stateline").chmod(0o755)
    path = f"{bin}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [program, *argv[1:]],
        env={**os.environ, "PATH": path},
        cwd=cli.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


BASH = """
eval "$(stateline completion bash)"
complete -p stateline
tab() {
    COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
    _stateline stateline
    echo "${COMPREPLY[*]}"
}
tab 'stateline exec st'
tab 'stateline machine check m'
tab 'stateline show run:o'
tab 'stateline run --prompt-file x'
"""


def test_bash_completes(cli: Cli) -> None:
    cli.json("execute", cli.machine(a={"end": {}}), "--id", "one")
    assert shell(cli, "bash", "--norc", "-c", BASH).splitlines() == [
        "complete -o default -F _stateline stateline",
        "status",
        "",
        "one",
        "",
    ]


def test_zsh_completes(cli: Cli) -> None:
    script = """
        compdef() { true; }
        eval "$(stateline completion zsh)"
        _describe() { print -r -- "${found[1]}"; }
        _files() { print files; }
        words=(stateline exec st) CURRENT=3; _stateline
        words=(stateline run --prompt-file x) CURRENT=4; _stateline
    """
    lines = shell(cli, "zsh", "-f", "-c", script).splitlines()
    assert lines[0].startswith("status:")
    assert lines[1:] == ["files"]


def test_fish_completes(cli: Cli) -> None:
    script = "stateline completion fish | source; complete --do-complete 'stateline exec st'"
    assert shell(cli, "fish", "--no-config", "-c", script).split("\t")[0] == "status"


def test_contexts_are_offered_for_the_scope_of_a_call(cli: Cli) -> None:
    cli.json("run", "--state-scope", "concise", "--set", "x=1")
    cli.json("execute", cli.machine(a={"end": {}}), "--id", "con")
    assert offered("stateline execute m.json --state-scope ") == ["concise"]
    assert offered("stateline --state-scope=con") == ["--state-scope=concise"]


HOSTILE = [
    "$(touch owned)",
    "a b",
    "x;touch${IFS}owned",
    "it's",
    "`id`",
    "~root",
    "a&b",
    "a|b",
    "!!",
    "a>b",
    "*",
    "\\\\x",
    "é",
]


def test_names_that_a_shell_would_read_something_into_are_not_offered(cli: Cli) -> None:
    """A key may hold any printable character, and others may have written the store."""
    store = Store(LocalBackend(str(cli.state)))
    for kind in ("context", "run", "notes"):
        for name in [*HOSTILE, "good"]:
            store.scope(f"{kind}:{name}").save({"x": 1})
    keys = ["context:good", "notes:good", "run:good"]
    assert [word for word in offered("stateline show ") if ":" in word] == keys
    assert [word for word in offered("stateline verify ") if ":" in word] == keys
    assert offered("stateline exec status ") == ["good"]
    assert offered("stateline execute m.json --state-scope ") == ["good"]
    assert offered("stateline execute m.json --state-scope=") == ["--state-scope=good"]
    assert offered("stateline show 'context:$(") == []
