"""Text output: no text from others controls a terminal, and colours appear on a terminal only."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from command_line import COUNTED, Cli, Task
from model_server import ModelServer, Say

from stateline.cli.output import plain

END: dict[str, Any] = {"end": {}}
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\r\x00\x08"
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(result: Any) -> str:
    """The whole text of a result, which holds nothing that acts on a terminal."""
    text = str(result.out.decode() + result.err)
    assert not HARMFUL.search(text), ascii(text)
    return text


@pytest.fixture
def evil(cli: Cli, task: Task) -> Any:
    """Runs whose outputs, errors, prompts, labels, inputs and paths would like to own the terminal."""
    (cli.home / "evil").write_text(json.dumps({"k" + EVIL: EVIL + "shown"}))
    (cli.home / "words").write_text(EVIL + "shown\nsecond line")
    machine = cli.machine(
        "asks", a=task("cat evil", default_next="ask"), ask={"human": {"prompt": "Q {{ outputs.a }}?"}}
    )
    cli.json("execute", machine, "--id", "asks", "--input", json.dumps(EVIL), "--label", "k=" + EVIL, exits=3)
    machine = cli.machine("fails", a=task("cat words >&2; exit 1"))
    os.rename(machine, str(cli.home / "fails\x1b[2J.json"))
    cli.json("execute", str(cli.home / "fails\x1b[2J.json"), "--id", "fails", exits=1)
    cli.json("execute", cli.machine("ends", a=task("cat evil")), "--id", "ends")
    cli.json("run", "--state-scope", "c", "--system", EVIL, "--set", "k=" + EVIL)
    cli.json("run", "--state-scope", "c", "--refine-text", EVIL + "x")
    return cli


def test_no_command_prints_what_acts_on_a_terminal(evil: Any) -> None:
    for words in (
        ["exec", "list"],
        ["exec", "status", "asks"],
        ["exec", "status", "fails"],
        ["exec", "show", "asks"],
        ["exec", "show", "fails"],
        ["exec", "history", "ends"],
        ["exec", "history", "fails"],
        ["exec", "resume", "asks"],
        ["exec", "resume", "fails"],
        ["exec", "resume", "ends"],
        ["scopes"],
        ["log", "run:asks"],
        ["log", "run:fails"],
        ["log", "context:c"],
        ["log", "-p", "run:asks"],
        ["log", "-p", "run:fails"],
        ["log", "-p", "context:c"],
        ["diff", "run:asks", "run:fails"],
        ["show", "run:asks", "--resolve"],
        ["show", "context:c"],
        ["verify"],
        ["execute", str(evil.home / "fails\x1b[2J.json")],
        ["execute", str(evil.home / "fails\x1b[2J.json"), "--dry-run"],
        ["execute", str(evil.home / "asks.json"), "--dry-run"],
        ["machine", "check", str(evil.home / "fails\x1b[2J.json")],
    ):
        assert harmless(evil(*words)), words


def test_errors_do_not_act_on_a_terminal_either(evil: Any) -> None:
    for words in (
        ["execute", EVIL.replace("\x00", "")],
        [EVIL],
        ["exec", "status", "--", EVIL],
        ["execute", "x", "--input", EVIL],
        ["run", "--set", EVIL],
        ["exec", "clean", "--older-than", EVIL],
        ["log", EVIL],
        ["diff", EVIL, EVIL],
        ["--" + EVIL],
        ["--format", EVIL, "exec", "list"],
        ["exec", "resume", "asks", "--answer", json.dumps({"requestId": EVIL, "answer": 1})],
    ):
        result = evil(*words)
        assert result.code in (1, 64), words
        assert harmless(result)


def test_what_is_readable_stays_readable(evil: Any) -> None:
    assert "shown" in evil("exec", "resume", "asks").out.decode()
    assert "shown" in evil("exec", "status", "fails").out.decode()
    assert "second line" in evil("exec", "resume", "fails").out.decode()


def test_text_that_is_json_is_still_that_json(evil: Any) -> None:
    shown = json.loads(evil("exec", "show", "asks").out)
    assert shown["input"] == EVIL
    assert shown["outputs"]["a"] == {"k" + EVIL: EVIL + "shown"}
    assert json.loads(evil("show", "context:c").out)["kind"] == "context"


def terminal(cli: Cli, *words: str, **environment: str) -> str:
    """The output of a command on a terminal."""
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "stateline", *words],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env={**os.environ, **environment},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(master)
    process.wait(timeout=60)
    return COUNTED.sub("", shown.decode())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
class TestTerminal:
    def test_a_terminal_sees_colours_progress_and_nothing_raw(self, evil: Any) -> None:
        shown = terminal(evil, "execute", str(evil.home / "ends.json"))
        assert "\x1b[32mcomplete\x1b[0m" in shown
        assert "turn 1: a ..." in shown
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in shown

    def test_no_color_is_heeded(self, evil: Any) -> None:
        assert "\x1b" not in terminal(evil, "execute", str(evil.home / "ends.json"), NO_COLOR="1")

    def test_a_warning_is_coloured_and_readable(self, evil: Any) -> None:
        evil.json("execute", str(evil.home / "asks.json"), "--id", "asks2", exits=3)
        shown = terminal(evil, "execute", str(evil.home / "asks.json"))
        assert "\x1b[33mwarning:\x1b[0m other unfinished runs" in shown
        assert "\ufffd[" not in shown.split("Q ")[0]

    def test_what_changed_is_coloured(self, evil: Any) -> None:
        evil.json("run", "--state-scope", "c", "--set", "limit=5")
        shown = terminal(evil, "diff", "context:c@0", "context:c")
        assert "\x1b[31m--- context:c@0\x1b[0m" in shown
        assert "\x1b[32m+ settings.limit\x1b[0m  5" in shown
        assert "\x1b[33m" in terminal(evil, "log", "context:c").split("\n")[0]

    def test_an_error_is_coloured(self, evil: Any) -> None:
        assert "\x1b[31merror:\x1b[0m there is no run nobody" in terminal(evil, "exec", "status", "nobody")

    def test_json_for_a_terminal_is_indented_and_harmless(self, evil: Any) -> None:
        shown = terminal(evil, "exec", "show", "asks", "--format", "json")
        assert not HARMFUL.search(shown.replace("\r\n", "\n"))
        assert json.loads(shown)["input"] == EVIL


def test_a_file_or_pipe_gets_no_colour(evil: Any) -> None:
    for words in (["verify"], ["log", "-p", "run:asks"], ["exec", "list"], ["exec", "resume", "asks"]):
        assert "\x1b" not in evil(*words).out.decode()


def test_text_that_turns_the_line_around_never_reaches_the_terminal() -> None:
    """A prompt must not be able to show another order of words than it holds."""
    assert (
        plain("pay \u202e001\u202c now \u2066x\u2069\tand\n\u200f")
        == "pay \ufffd001\ufffd now \ufffdx\ufffd\tand\n\ufffd"
    )


def test_a_run_that_is_kept_nowhere_is_not_said_to_have_a_way_on(cli: Cli, task: Task) -> None:
    asks = cli("--ephemeral", "execute", cli.machine(a={"human": {"prompt": "Ship?"}}))
    assert asks.code == 3
    assert "Ship?" in asks.out.decode()
    assert "no call can continue it" in asks.err
    assert "exec resume" not in asks.out.decode()
    fails = cli("--ephemeral", "execute", cli.machine(a=task("exit 1")))
    assert fails.code == 1
    assert "failed: a" in fails.out.decode()
    assert "next:" not in fails.out.decode()


def test_a_failed_run_says_how_to_leave_it_behind(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("exit 1"))
    shown = cli("execute", machine, "--id", "r1").out.decode()
    assert "exec resume r1 --retry" in shown
    assert f"execute '{machine}' --id r1 --force" in shown.replace(" \\\n           ", "")


def test_verify_says_in_its_first_word_that_a_place_is_unsafe(cli: Cli) -> None:
    cli.json("execute", cli.machine(a={"end": {}}))
    assert b"\nok: " in b"\n" + cli("verify").out
    cli.state.chmod(0o755)
    result = cli("verify")
    assert result.code == 0
    assert b"\nok, but unsafe: 1 place" in result.out
    (cli.state / "objects").chmod(0o755)
    assert b"\nok, but unsafe: 2 places" in cli("verify").out
    assert cli.json("verify")["ok"] is True


def test_verify_is_quiet_about_what_it_cannot_see_if_told_so(cli: Cli) -> None:
    cli.json("execute", cli.machine(a={"end": {}}))
    assert b"A chain proves" in cli("verify").out
    assert b"A chain proves" not in cli("verify", "-q").out
    assert cli.json("verify", "-q")["note"]


def test_one_turn_prints_its_own_output_and_tools_and_not_those_of_an_older_stage(cli: Cli, task: Task) -> None:
    """After a tool call, the newest output is that of an older stage."""
    tool = {"name": "echo", "description": "d", "schema": {"type": "object"}, "argv": ["cat"]}
    broken = {**tool, "name": "fail", "argv": ["sh", "-c", "echo broken >&2; exit 3"]}
    (cli.home / "tools.json").write_text(json.dumps({"tools": [tool, broken]}))
    agent = {"agent": {"prompt": "Go.", "tools": ["echo", "fail"]}}
    path = cli.machine(_tools="tools.json", a=task("echo '\"older\"'", default_next="b"), b=agent)
    call = Say("", calls=[("echo", {"n": 1}), ("fail", {})])
    cli.monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    with ModelServer(call, Say("newer")) as server:
        words = ["execute", "-i", path, "-m", "openai/x", "--base-url", server.url]
        first, second, third = (cli(*words).out.decode() for _ in range(3))
    assert "  output: older\n" in first
    assert "older" not in second
    assert '  tool:   echo {"n":1} -> {"n":1}\n' in second
    assert "  tool:   fail {} failed (exit): ended with exit code 3; its stderr ends: broken\n" in second
    assert "  output: newer\n" in third
    assert "echo" not in third
    repeated = cli.json("exec", "resume", "--format", "json", cli.json("exec", "list")["runs"][0]["run"])
    assert (repeated["tools"], repeated["output"]) == ([], "newer")


def test_an_outcome_names_its_head_by_12_digits(cli: Cli) -> None:
    head = cli("execute", cli.machine(done=END), "--id", "r").out.decode().split()[-1]
    assert len(head) == 12
    assert cli.json("show", head)["scope"] == "run:r"
