"""One call of a tool, as a real process: what goes in, and that whatever comes of it is data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st
from process.life import Life
from process.waiting import wait_for

from stateline.bundle import canonical
from stateline.bundle.limits import Limits
from stateline.errors import InvalidValueError
from stateline.machine.decider.agents import RESULT_DEPTH
from stateline.machine.spec import Tool
from stateline.process import child
from stateline.process.program import TAIL_SHOWN
from stateline.redaction.redactor import Redactor
from stateline.tools.runner import ToolResult, ToolRun, run_tool

MIB = 1 << 20
SECRET = "tok-4f9aQ2/Zr~8s0LwV7bXk1"


def a_call(place: Path, *argv: str, arguments: Any = None, stop: Any = None, **more: Any) -> ToolRun:
    about = {key: more.pop(key) for key in ("timeout", "env") if key in more}
    tool = Tool(name="t", description="t", schema={"type": "object"}, argv=list(argv), **about)
    given = {"arguments": {} if arguments is None else arguments, "run": "r1", "key": "r1:3:1:ab", **more}
    return ToolRun(tool=tool, directory=str(place), **given)


@pytest.fixture
def tool(place: Path) -> Callable[..., Any]:
    """Calls a tool and gives its result."""

    def call(*argv: str, **more: Any) -> Any:
        return kept(run_tool(a_call(place, *argv, **more)))

    return call


def kept(end: ToolResult) -> Any:
    """The result, which a run must be able to keep where it belongs."""
    assert not end.stopped
    assert end.seconds >= 0
    message = {"role": "tool", "content": end.result}
    canonical.encode({"tree": {"conversation": [message]}})
    return end.result


def error(result: Any) -> tuple[str, str]:
    """The kind and the message of a failure, which harms no terminal."""
    assert result.keys() == {"error"}
    assert result["error"].keys() == {"kind", "message"}
    kind, message = result["error"]["kind"], result["error"]["message"]
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in message)
    return kind, message


# --- what goes in ---


def test_the_arguments_arrive_as_one_line_of_canonical_json(tool: Callable[..., Any]) -> None:
    arguments = {"b": ["ä\n", 1.0], "a": {"z": None, "y": 2**64 - 1}}
    seen = tool(sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))", arguments=arguments)
    assert seen == repr('{"a":{"y":18446744073709551615,"z":null},"b":["ä\\n",1.0]}\n')


def test_a_shell_can_read_its_arguments_with_read(tool: Callable[..., Any]) -> None:
    assert tool("sh", "-c", 'read -r line && echo "$line"', arguments={"a": 1}) == {"a": 1}


def test_no_arguments_are_an_empty_object(tool: Callable[..., Any]) -> None:
    assert tool("cat") == {}


def test_arguments_are_never_words_of_the_command(tool: Callable[..., Any]) -> None:
    assert tool("sh", "-c", "echo $#", arguments={"x": "$(id); *"}) == 0


def test_a_tool_sees_its_run_and_key_and_no_environment_that_is_not_named(
    tool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_TOKEN", "STATELINE_STATE_DIR", "OPENAI_API_KEY", "WANTED", "TZ", "STATELINE_RUN"):
        monkeypatch.setenv(name, "UTC")
    monkeypatch.delenv("ABSENT", raising=False)
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    found = tool(sys.executable, "-I", "-c", show, env=["WANTED", "ABSENT"])
    assert found["WANTED"] == "UTC"
    assert found["STATELINE_RUN"] == "r1"
    assert found["STATELINE_IDEMPOTENCY_KEY"] == "r1:3:1:ab"
    seen = {name for name in found if name != "LC_CTYPE" and not name.startswith("__")}
    ours = {"STATELINE_RUN", "STATELINE_IDEMPOTENCY_KEY"}
    assert seen <= {"PATH", "HOME", "LANG", "TMPDIR", "TZ", "WANTED"} | ours
    assert found["PATH"] == os.environ["PATH"]


def test_a_tool_runs_in_the_directory_of_the_manifest_and_is_looked_up_there(
    tool: Callable[..., Any], place: Path
) -> None:
    (place / "bin").mkdir()
    (place / "bin" / "where").write_text("#!/bin/sh\npwd\n")
    (place / "bin" / "where").chmod(0o755)
    assert tool("./bin/where") == str(place)


def test_arguments_that_are_not_json_are_refused_before_anything_runs(tool: Callable[..., Any], place: Path) -> None:
    with pytest.raises(InvalidValueError):
        tool("sh", "-c", "echo > begun", arguments={"x": float("nan")})
    assert not (place / "begun").exists()


# --- what comes out ---


def test_output_is_json_if_it_is_one_document_and_else_the_text_as_it_is(tool: Callable[..., Any], place: Path) -> None:
    def check(text: str, result: Any) -> None:
        (place / "out").write_bytes(text.encode())
        found = tool("cat", "out")
        assert found == result
        assert type(found) is type(result)

    for_each(
        check,
        [
            ('{"a": [1, 2.5, null]}\n', {"a": [1, 2.5, None]}),
            (" \n[1] \r\n", [1]),
            ("7\n", 7),
            ("true", True),
            ('"text"\n', "text"),
            ("null\n", None),
            ("", None),
            (" \n\t", None),
            ("two words\n", "two words"),
            ("  two\r\n\nlines\r\n\n", "  two\r\n\nlines"),
            ('{"a": 1} {"b": 2}\n', '{"a": 1} {"b": 2}'),
            ('{"a": 1, "a": 2}\n', '{"a": 1, "a": 2}'),
            ("NaN\n", "NaN"),
            ("1e999", "1e999"),
            ("007", "007"),
            ("99999999999999999999\n", "99999999999999999999"),
            ('"\\ud800"\n', '"\\ud800"'),
            ("{'a': 1}\n", "{'a': 1}"),
            ("\x1b[1mbold\x1b[0m\n", "\x1b[1mbold\x1b[0m"),
            ("a\0b", "a\0b"),
            ("€\U0001f600\n", "€\U0001f600"),
        ],
    )


@given(value=st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(), st.lists))
def test_every_json_document_comes_back_as_it_is(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    place = tmp_path_factory.getbasetemp()
    (place / "out").write_bytes(json.dumps(value).encode())
    assert kept(run_tool(a_call(place, "cat", "out"))) == value


@given(text=st.text())
def test_no_text_is_lost_or_changed(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    place = tmp_path_factory.getbasetemp()
    (place / "out").write_bytes(b"text: " + text.encode() + b"\n")
    assert kept(run_tool(a_call(place, "cat", "out"))) == f"text: {text}".rstrip("\r\n")


def test_json_that_nests_too_deep_for_a_message_of_a_run_is_text(tool: Callable[..., Any], place: Path) -> None:
    for depth in (RESULT_DEPTH, RESULT_DEPTH + 1, 100_000):
        text = "[" * depth + "]" * depth
        (place / "out").write_text(text)
        result = tool("cat", "out")
        assert isinstance(result, list if depth <= RESULT_DEPTH else str)
        assert isinstance(result, list) or result == text


def test_output_that_is_not_text_is_an_error_with_its_place(tool: Callable[..., Any], place: Path) -> None:
    (place / "out").write_bytes(b"ok \xff\xfe")
    assert error(tool("cat", "out")) == ("output", "printed bytes that are not text: byte 3 is not UTF-8")


def test_stderr_is_not_part_of_the_result(tool: Callable[..., Any]) -> None:
    assert tool("sh", "-c", "echo talk >&2; echo 1") == 1


def test_seconds_are_the_time_the_tool_took(place: Path) -> None:
    assert 0.2 <= run_tool(a_call(place, "sleep", "0.2")).seconds < 60


# --- what others lost or hung on ---


def test_two_hundred_results_of_sixty_kilobytes_arrive_whole(tool: Callable[..., Any], place: Path) -> None:
    (place / "out").write_text("y" * 60_000)
    assert [tool("cat", "out") == "y" * 60_000 for _ in range(200)] == [True] * 200


def test_a_tool_that_never_reads_its_arguments_succeeds_every_time(tool: Callable[..., Any]) -> None:
    arguments = {"text": "x" * 60_000}
    assert [tool("/bin/echo", "1", arguments=arguments) for _ in range(300)] == [1] * 300


def test_a_mebibyte_each_way_does_not_block(tool: Callable[..., Any]) -> None:
    arguments = {"text": "y" * 4 * MIB}
    assert tool("cat", arguments=arguments, timeout=60.0) == arguments


def test_a_tool_may_write_everything_before_it_reads_anything(tool: Callable[..., Any]) -> None:
    fill = f"head -c {2 * MIB} /dev/zero >&2; head -c {2 * MIB} /dev/zero | tr '\\0' ' '; wc -c"
    arguments = {"text": "z" * 2 * MIB}
    assert tool("sh", "-c", fill, arguments=arguments, timeout=60.0) == 2 * MIB + len('{"text":""}\n')


def test_a_tool_that_prints_without_end_is_ended_in_bounded_memory(tool: Callable[..., Any], life: Life) -> None:
    tool("true")  # imports
    tracemalloc.start()
    try:
        result = tool("sh", "-c", life.begin + "yes & yes", limits=Limits(output=MIB))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error(result) == (
        "output",
        f"printed more than {MIB} bytes (limit `output`, set by Store.open) and was ended",
    )
    assert life.is_over()
    assert peak < 4 * MIB


def test_output_is_bounded_at_sixteen_mebibytes(tool: Callable[..., Any]) -> None:
    assert len(tool("sh", "-c", f"head -c {16 * MIB} /dev/zero | tr '\\0' y")) == 16 * MIB
    kind, message = error(tool("sh", "-c", f"head -c {16 * MIB + 1} /dev/zero | tr '\\0' y"))
    assert (kind, message.split(" bytes")[0]) == ("output", f"printed more than {16 * MIB}")


def test_a_timeout_ends_the_tool_and_its_grandchildren(tool: Callable[..., Any], life: Life) -> None:
    script = life.begin + "echo half; echo nearly >&2; sh -c 'sleep 100 & sleep 100' & sleep 100"
    assert error(tool("sh", "-c", script, timeout=2.0)) == (
        "timeout",
        "took longer than 2 s and was ended; its stderr ends: nearly; its stdout ends: half",
    )
    assert life.is_over()


def test_neither_descriptors_nor_children_are_left(tool: Callable[..., Any], place: Path) -> None:
    def each_kind() -> None:
        tool("true")
        tool("false")
        tool("./missing")
        tool("sleep", "100", timeout=0.01)
        tool("cat", "/dev/zero", limits=Limits(output=10))
        tool("/bin/echo", "1", arguments={"x": "y" * MIB})

    each_kind()
    before = sorted(os.listdir("/dev/fd"))
    pids = [tool("sh", "-c", "echo $$") for _ in range(3)]
    each_kind()
    assert sorted(os.listdir("/dev/fd")) == before
    for pid in pids:
        with pytest.raises(ProcessLookupError):  # a zombie could still be signalled
            os.kill(pid, 0)


# --- failures are data ---


def test_the_result_of_a_failed_tool_has_the_reason_and_its_output(tool: Callable[..., Any]) -> None:
    def check(script: str, message: str) -> None:
        assert error(tool("sh", "-c", script)) == ("exit", message)

    for_each(
        check,
        [
            ("exit 4", "ended with exit code 4; it wrote nothing to stderr or stdout"),
            ("echo no such note >&2; exit 1", "ended with exit code 1; its stderr ends: no such note"),
            ("echo 2 tests failed; exit 1", "ended with exit code 1; its stdout ends: 2 tests failed"),
            ("echo a; echo b >&2; exit 1", "ended with exit code 1; its stderr ends: b; its stdout ends: a"),
            ("kill -9 $$", "was ended by SIGKILL; it wrote nothing to stderr or stdout"),
            (
                "printf 'a\\033[2J\\377\\r\\nb' >&2; exit 1",
                "ended with exit code 1; its stderr ends: a\\x1b[2J\ufffd\nb",
            ),
        ],
    )


def test_a_message_is_bounded_however_much_was_written(tool: Callable[..., Any]) -> None:
    script = f"head -c {2 * MIB} /dev/zero; head -c {2 * MIB} /dev/zero >&2; exit 1"
    kind, message = error(tool("sh", "-c", script))
    assert kind == "exit"
    assert len(message) <= 2 * 4 * TAIL_SHOWN + 100


def test_a_tool_that_cannot_be_started_is_an_error_for_the_model(tool: Callable[..., Any], place: Path) -> None:
    def check(argv: list[str], message: str) -> None:
        (place / "plain").write_text("x")
        (place / "lost").write_text("#!/nowhere/at/all\n")
        (place / "lost").chmod(0o755)
        assert error(tool(*argv)) == ("spawn", message)

    for_each(
        check,
        [
            (["./missing"], 'there is no program "./missing" beside the manifest'),
            (["no-such-program"], 'there is no program "no-such-program" on PATH'),
            (["./plain"], '"./plain" is not executable; run chmod +x on it'),
            (["./lost"], 'the interpreter of "./lost" is missing'),
        ],
    )


def test_a_directory_that_is_gone_is_an_error_for_the_model(tool: Callable[..., Any], place: Path) -> None:
    place.rmdir()
    assert error(tool("true")) == ("spawn", "the directory of the manifest is gone")


def test_a_secret_in_the_output_of_a_failed_tool_is_masked_before_the_cut(
    tool: Callable[..., Any], place: Path
) -> None:
    def check(stream: int, after: int, before: int) -> None:
        redactor = Redactor([("X", SECRET)])
        (place / "said").write_text("x" * before + SECRET + "y" * after)
        script = f"cat said >&{stream}; exit 1"
        _, message = error(tool("sh", "-c", script, mask=lambda text: str(redactor.redact(text)[0])))
        assert not any(SECRET[at : at + 4] in message for at in range(len(SECRET) - 3))
        assert ("[REDACTED]" in message) == (after + len("[REDACTED]") <= TAIL_SHOWN)

    for_each(check, [1, 2], [0, 4060, 4085, 4096, 300_000], [0, 300_000])


def test_a_secret_cut_at_the_kept_end_of_output_is_never_shown(tool: Callable[..., Any], place: Path) -> None:
    def check(stream: int) -> None:
        secret = "".join(
            f"<{number}>" for number in range(2200)
        )  # masks shrink the text: the cut half moves to the end
        redactor = Redactor([("X", secret)])
        for after in range(0, len(secret), 1500):
            (place / "said").write_text(secret * 20 + "y" * after)
            _, message = error(
                tool("sh", "-c", f"cat said >&{stream}; exit 1", mask=lambda text: str(redactor.redact(text)[0]))
            )
            assert not any(secret[at : at + 6] in message for at in range(len(secret) - 5))

    for_each(check, [1, 2])


# --- several at once ---


class Crew:
    """Calls of one tool, each in a thread of its own."""

    def __init__(self, calls: list[ToolRun]) -> None:
        self.stop = threading.Event()
        self.ends: dict[int, ToolResult] = {}
        self._threads = [
            threading.Thread(target=self._work, args=(number, call), daemon=True) for number, call in enumerate(calls)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int, call: ToolRun) -> None:
        self.ends[number] = run_tool(call, self.stop)

    def finish(self) -> list[ToolResult]:
        for thread in self._threads:
            thread.join(60)
        return [self.ends[number] for number in range(len(self._threads))]


def test_eight_calls_run_together_and_each_has_its_own_result(place: Path) -> None:
    # Each waits for all the others: one after the other they would never end.
    meet = 'read -r n; : > "here$n"; while [ "$(ls here* | wc -l)" -lt 8 ]; do sleep 0.01; done; echo "$n"'
    calls = [a_call(place, "sh", "-c", meet, arguments={"n": number}, timeout=60.0) for number in range(8)]
    assert [end.result for end in Crew(calls).finish()] == [{"n": number} for number in range(8)]


def test_all_groups_of_eight_calls_end_when_they_are_to_stop(place: Path, life: Life) -> None:
    crew = Crew([a_call(place, "sh", "-c", life.begin + "sleep 100 & sleep 100") for _ in range(8)])
    for _ in range(8):
        wait_for(life.has_begun)
    crew.stop.set()
    ends = crew.finish()
    assert [end.stopped for end in ends] == [True] * 8
    assert {error(end.result)[0] for end in ends} == {"stopped"}
    assert life.is_over()


def test_of_several_calls_those_that_are_finished_keep_their_results(place: Path, life: Life) -> None:
    crew = Crew(
        [
            a_call(place, "sh", "-c", "echo 1; : > done"),
            a_call(place, "sh", "-c", life.begin + "sleep 100"),
            a_call(place, "sh", "-c", "exit 1"),
        ]
    )
    wait_for(life.has_begun)
    wait_for(lambda: {0, 2} <= crew.ends.keys())
    crew.stop.set()
    assert [end.stopped for end in crew.finish()] == [False, True, False]
    assert crew.ends[0].result == 1


CREW = """
import signal, sys, threading, time
from stateline.machine.spec import Tool
from stateline.process import child
from stateline.process.signals import Interrupted, Signals, interruptible, shield
from stateline.tools.runner import ToolRun, run_tool

child.GRACE = 1.0
tool = Tool(name="t", description="t", schema={}, argv=["sh", "-c", sys.argv[2]])
call = ToolRun(tool=tool, arguments={}, directory=sys.argv[1], run="r", key="k")
stop, ends = threading.Event(), []
threads = [threading.Thread(target=lambda: ends.append(run_tool(call, stop))) for _ in range(4)]
try:
    with Signals(), shield():
        for thread in threads:
            thread.start()
        try:
            with interruptible():
                while any(thread.is_alive() for thread in threads):
                    time.sleep(0.05)  # not `join`: interrupted, Python 3.11 takes the thread for ended
        except Interrupted:
            stop.set()
            for thread in threads:
                thread.join()
            print([end.stopped for end in ends], flush=True)
            raise
except Interrupted as error:
    sys.exit(error.exit_code)
"""


def test_a_signal_in_the_main_thread_can_stop_the_calls_in_all_others(place: Path, life: Life) -> None:
    def check(signum: int, code: int) -> None:
        script = "trap '' TERM; " + life.begin + "while :; do sleep 1; done"
        process = subprocess.Popen(
            [sys.executable, "-c", CREW, str(place), script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
        )
        for _ in range(4):
            wait_for(life.has_begun)
        process.send_signal(signum)
        assert process.communicate(timeout=60)[0] == b"[True, True, True, True]\n"
        assert process.returncode == code
        assert life.is_over()

    for_each(check, [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


def test_calls_in_many_threads_neither_mix_nor_lose_their_results(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "TICK", 0.02)
    text = "y" * 60_000
    for _ in range(5):
        calls = [a_call(place, "cat", arguments={"n": number, "text": text}) for number in range(12)]
        assert [end.result for end in Crew(calls).finish()] == [call.arguments for call in calls]
