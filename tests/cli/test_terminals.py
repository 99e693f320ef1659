"""Output on a terminal during a call of a model, with real pseudo-terminals and a real server on loopback."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from typing import NamedTuple

from command_line import COUNTED, Cli, Task
from each_case import Failures
from model_server import ModelServer, Say

from stateline.cli.elapsed import duration

DEADLINE = 60.0  # [s]; far above what any call takes
CONTEXT = Say(json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {}}))


class Seen(NamedTuple):
    """The end of a call on a terminal: exit code, all that was written there, and stdout if that was a pipe."""

    code: int
    written: str
    out: bytes

    @property
    def screen(self) -> str:
        """The text that stays on the screen: without the seconds that were counted."""
        return COUNTED.sub("", self.written)


class Terminal:
    """Calls commands on a terminal of so many columns."""

    def __init__(self, cli: Cli, server: ModelServer) -> None:
        self.cli = cli
        self.asked = ["-m", "openai/x", "--base-url", server.url]
        self.environ = {**os.environ, "OPENAI_API_KEY": "sk-not-a-real-key-0123456789abcdef", "NO_COLOR": "1"}
        self.environ.pop("COLUMNS", None)

    def __call__(
        self, *argv: str, piped: bool = False, columns: int = 80, press: tuple[str, bytes] = ("", b"")
    ) -> Seen:
        """One call. ``piped``: stdout is none of the terminal's. ``press``: once the terminal shows that text, that key
        is pressed."""
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "stateline", *argv],
            stdin=inner,
            stdout=subprocess.PIPE if piped else inner,
            stderr=inner,
            env=self.environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inner)
        pipes = [outer, *([process.stdout.fileno()] if process.stdout is not None else [])]
        seen = dict.fromkeys(pipes, b"")
        end, key = time.monotonic() + DEADLINE, press[1]
        while pipes and time.monotonic() < end:
            for pipe in select.select(pipes, [], [], 0.05)[0]:
                try:
                    data = os.read(pipe, 1 << 16)
                except OSError:  # how a terminal ends whose other side is closed
                    data = b""
                seen[pipe] += data
                if not data:
                    pipes.remove(pipe)
            if key and press[0].encode() in seen[outer]:
                os.write(outer, key)
                key = b""
        code = process.wait(DEADLINE)
        os.close(outer)
        if process.stdout is not None:
            process.stdout.close()
        written = seen.pop(outer).decode().replace("\r\n", "\n")
        return Seen(code, written, b"".join(seen.values()))


def tool(cli: Cli, script: str) -> str:
    path = cli.home / "tools.json"
    work = {"name": "work", "description": "w", "schema": {"type": "object"}, "argv": ["sh", "-c", script]}
    path.write_text(json.dumps({"tools": [{**work, "repeatable": True}]}))
    return str(path)


ANSWER = "Twelve loaves,\nand 32 days are left."


def test_an_answer_that_was_typed_out_is_not_printed_again_below(cli: Cli) -> None:
    with ModelServer(CONTEXT, Say(ANSWER, pause=0.01)) as server:
        on = Terminal(cli, server)
        seen = on("run", "-p", "x", "--id", "r1", *on.asked)
        assert seen.code == 0
        assert seen.screen.count("Twelve loaves") == 1
        lines = seen.screen.split("\n")
        assert lines[:4] == ["asking the model to derive the context ...", "r1: turn 1: agent ...", *ANSWER.split("\n")]
        assert lines[4].startswith("run r1: complete")
        again = on("run", "--id", "r1")
        assert again.screen.count("Twelve loaves") == 1
        quiet = on("run", "--id", "r1", "-q")
        assert quiet.screen == f"{ANSWER}\n"


def test_standard_output_is_one_clean_document_while_the_terminal_shows_the_rest(cli: Cli) -> None:
    failures = Failures()
    for form in ["text", "json"]:
        with failures.case(form), cli.fresh():
            with ModelServer(
                CONTEXT, Say("Let me.", calls=[("work", {})], pause=0.01), Say(ANSWER, pause=0.01)
            ) as server:
                on = Terminal(cli, server)
                words = ["run", "-p", "x", "--id", "r1", "--tools", tool(cli, "echo 1"), *on.asked]
                seen = on(*words, "--format", form, piped=True)
            said = seen.screen.split("\n")
            assert said[: len(said) - 1 - (2 if form == "text" else 0)] == [
                "asking the model to derive the context ...",
                "r1: turn 1: agent ...",
                "Let me.",
                "r1: turn 1: agent, tools work ...",
                "r1: turn 2: agent ...",
                *ANSWER.split("\n"),
            ]
            if form == "json":
                assert json.loads(seen.out)["output"] == ANSWER
                assert seen.out.count(b"\n") == 1
            else:
                assert seen.out.decode().endswith(f"\n\n{ANSWER}\n")
    failures.check()


def test_a_wait_before_another_attempt_is_shown_with_the_failure_and_how_long(cli: Cli) -> None:
    retry = {"max_attempts": 2, "backoff": 0.2}
    machine = cli.machine(think={"agent": {"prompt": "x"}, "retry": retry})
    with ModelServer(Say("no such luck", status=422), Say("Done.")) as server:
        on = Terminal(cli, server)
        seen = on("execute", machine, "--id", "r1", *on.asked)
    assert seen.code == 0
    first, waits, second, *_ = seen.screen.split("\n")
    assert first == "r1: turn 1: think ..."
    assert waits.startswith("r1: turn 1: think failed (model: ")
    assert waits.endswith("; next attempt in 0.2 s ...")
    assert second == "r1: turn 1: think, attempt 2 ..."


def test_ctrl_c_in_the_middle_of_an_answer_names_the_run_that_continues(cli: Cli) -> None:
    with ModelServer(CONTEXT, Say("one two three four " * 50, pause=0.1), Say(ANSWER)) as server:
        on = Terminal(cli, server)
        seen = on("run", "-p", "x", "--id", "r1", *on.asked, press=("one two", b"\x03"))
        assert seen.code == 130
        shown = seen.screen.split("\n")
        assert shown[-3] == "error: stopped by a signal; finished work is saved"
        assert "`stateline exec resume r1` continues" in shown[-2]
        resumed = on("exec", "resume", "r1", *on.asked)
    assert resumed.code == 0
    assert resumed.screen.count("Twelve loaves") == 1


def test_ctrl_c_while_the_context_is_derived_names_no_run_that_is_not_there(cli: Cli) -> None:
    with ModelServer(Say("never", delay=30.0)) as server:
        on = Terminal(cli, server)
        seen = on("run", "-p", "x", "--id", "r1", *on.asked, press=("derive the context", b"\x03"))
    assert seen.code == 130
    assert "repeat the command to continue" in seen.screen
    assert "exec resume" not in seen.screen
    assert cli.json("exec", "list")["runs"] == []


def test_a_history_is_cut_at_the_width_of_the_terminal(cli: Cli) -> None:
    cli.json("run", "-p", "x", "--id", "r1", exits=3)
    cli.json("exec", "resume", "r1", "--answer", json.dumps("z" * 300))
    with ModelServer() as server:
        on = Terminal(cli, server)
        for columns in (50, 120):
            shown = on("exec", "history", "r1", columns=columns).screen.split("\n")
            assert [len(line) for line in shown if "zzz" in line] == [columns]


def test_a_log_has_no_line_that_is_longer_than_one_of_the_terminal(cli: Cli) -> None:
    cli.json("run", "--state-scope", "c", "--system", "s" * 300)
    cli.json("run", "--state-scope", "c", "--refine-text", "r" * 300, "--set", "limit=3")
    with ModelServer() as server:
        on = Terminal(cli, server)
        for columns in (64, 100):
            shown = on("log", "context:c", columns=columns).screen.split("\n")[:-1]
            assert max(len(line) for line in shown) == columns
        assert max(map(len, on("log", "context:c", columns=300).screen.split("\n"))) < 300


def test_the_elapsed_time_is_counted_while_a_stage_runs_and_removed_afterwards(cli: Cli, task: Task) -> None:
    machine = cli.machine(slow=task("sleep 1.3; echo 1", default_next="fast"), fast=task("echo 2"))
    with ModelServer() as server:
        on = Terminal(cli, server)
        seen = on("execute", machine, "--id", "r1")
        assert seen.written.startswith("r1: turn 1: slow ...\n\r  1 s\r")
        assert seen.screen.startswith("r1: turn 1: slow ...\nr1: turn 2: fast ...\n")
        piped = on("execute", machine, "--id", "r2", "--format", "json", piped=True)
        assert COUNTED.search(piped.written)
        assert json.loads(piped.out)["status"] == "complete"
        assert "\r" not in on("execute", machine, "--id", "r3", "-q").written


def test_a_signal_ends_a_stage_at_once_while_the_time_is_counted(cli: Cli, task: Task) -> None:
    with ModelServer() as server:
        on = Terminal(cli, server)
        began = time.monotonic()
        seen = on("execute", cli.machine(slow=task("sleep 50")), "--id", "r1", press=("  1 s", b"\x03"))
        assert seen.code == 130
        assert time.monotonic() - began < 20


def test_durations_are_written_for_people() -> None:
    assert [duration(seconds) for seconds in (0, 59, 127, 3720)] == ["0 s", "59 s", "2 min 07 s", "1 h 02 min"]
