"""One task command, run as a real process: what its end means, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from process.life import Life
from process.waiting import wait_for

from stateline.bundle.limits import Limits
from stateline.machine.decider.run import Failed, Succeeded
from stateline.process import child
from stateline.process.executables import program_problem, resolve_program
from stateline.process.pipes import TAIL_KEPT, CapturedOutput
from stateline.process.program import TAIL_SHOWN, Program
from stateline.process.sanitize import sanitize
from stateline.process.task import TaskOutcome, run_task
from stateline.redaction.redactor import Redactor

MIB = 1 << 20


@pytest.fixture
def task(place: Path) -> Callable[..., TaskOutcome]:
    def run(*argv: str, document: bytes = b"{}", **more: Any) -> TaskOutcome:
        return run_task(Program(argv=list(argv), directory=str(place), document=document, **more))

    return run


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "LINGER", 0.3)
    monkeypatch.setattr(child, "GRACE", 0.3)


def program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def failure(outcome: TaskOutcome) -> Failed:
    assert isinstance(outcome.event, Failed)
    # What is kept in the run's state must be text that the store takes, and that harms no terminal.
    for text in (outcome.event.message, outcome.event.hint):
        assert text
        assert text.encode("utf-8")
        assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in text)
    return outcome.event


# --- what goes in and out ---


def test_the_output_of_a_task_is_the_document_that_it_prints(task: Callable[..., TaskOutcome]) -> None:
    assert task("echo", '{"a": [1, 2.5, null]}').event == Succeeded(output={"a": [1, 2.5, None]})


def test_white_space_alone_is_the_output_null(task: Callable[..., TaskOutcome]) -> None:
    def check(text: str) -> None:
        assert task("printf", "%s", text).event == Succeeded(output=None)

    for_each(check, ["", " \n\t\r\n"])


def test_white_space_around_the_document_is_accepted(task: Callable[..., TaskOutcome]) -> None:
    assert task("printf", "\\n  [1] \\r\\n").event == Succeeded(output=[1])


def test_the_document_arrives_on_stdin_to_its_last_byte(task: Callable[..., TaskOutcome]) -> None:
    assert task("cat", document=b'{"input": 5}').event == Succeeded(output={"input": 5})


def test_an_empty_document_is_an_empty_stdin(task: Callable[..., TaskOutcome]) -> None:
    assert task("wc", "-c", document=b"").event == Succeeded(output=0)


def test_stderr_does_not_count_as_output(task: Callable[..., TaskOutcome]) -> None:
    assert task("sh", "-c", "echo talk >&2; echo 1").event == Succeeded(output=1)


def test_the_task_runs_in_the_directory_of_the_machine_file(task: Callable[..., TaskOutcome], place: Path) -> None:
    (place / "data.json").write_text("7")
    assert task("cat", "data.json").event == Succeeded(output=7)


def test_the_words_of_the_command_pass_no_shell(task: Callable[..., TaskOutcome]) -> None:
    outcome = task("printf", '["%s", "%s"]', "$HOME; *", "b c")
    assert outcome.event == Succeeded(output=["$HOME; *", "b c"])


def test_only_the_named_environment_is_passed(
    task: Callable[..., TaskOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s")
    monkeypatch.setenv("WANTED", "w")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("ABSENT", raising=False)
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    event = task(sys.executable, "-I", "-c", show, env=["WANTED", "ABSENT", "A=B", ""]).event
    assert isinstance(event, Succeeded)
    assert event.output["WANTED"] == "w"
    assert event.output["PATH"] == os.environ["PATH"]
    # LC_CTYPE and the double underscore are put there by Python and macOS themselves.
    seen = {name for name in event.output if name != "LC_CTYPE" and not name.startswith("__")}
    assert seen <= {"PATH", "HOME", "LANG", "TMPDIR", "TZ", "WANTED"}


def test_a_task_that_never_reads_its_document_succeeds_every_time(task: Callable[..., TaskOutcome]) -> None:
    document = json.dumps("x" * 60_000).encode()
    assert [task("/bin/echo", "1", document=document).event for _ in range(300)] == [Succeeded(output=1)] * 300


def test_a_document_that_no_pipe_can_hold_may_be_left_unread(task: Callable[..., TaskOutcome]) -> None:
    assert task("/bin/echo", "1", document=b" " * 10 * MIB).event == Succeeded(output=1)


def test_stdin_and_stdout_of_ten_mebibytes_do_not_block_each_other(task: Callable[..., TaskOutcome]) -> None:
    text = "y" * (10 * MIB)
    event = task("cat", document=json.dumps(text).encode(), timeout=60.0).event
    assert isinstance(event, Succeeded)
    assert event.output == text


def test_a_task_may_write_everything_before_it_reads_anything(task: Callable[..., TaskOutcome]) -> None:
    fill = f"head -c {10 * MIB} /dev/zero | tr '\\0' ' '; head -c {10 * MIB} /dev/zero >&2; wc -c"
    assert task("sh", "-c", fill, document=b"z" * 10 * MIB, timeout=60.0).event == Succeeded(output=10 * MIB)


def test_seconds_are_the_time_the_task_took(task: Callable[..., TaskOutcome]) -> None:
    assert 0.2 <= task("sleep", "0.2").seconds < 60


def test_tasks_run_side_by_side_in_threads(task: Callable[..., TaskOutcome]) -> None:
    outputs: list[object] = []

    def work(number: int) -> None:
        for _ in range(5):
            event = task("sh", "-c", "sleep 0.01; cat", document=str(number).encode()).event
            outputs.append(event.output if isinstance(event, Succeeded) else event)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs, key=str) == [number for number in range(6) for _ in range(5)]


def test_a_name_that_no_environment_can_hold_fails_the_task(task: Callable[..., TaskOutcome]) -> None:
    assert failure(task("true", env=["\ud800"])).kind == "spawn"


# --- output that is none ---


def test_output_that_is_not_one_json_document_fails_and_is_shown_safely(
    task: Callable[..., TaskOutcome], place: Path
) -> None:
    def check(text: bytes, said: str) -> None:
        (place / "out").write_bytes(text)
        failed = failure(task("cat", "out"))
        assert failed.kind == "output"
        assert said in failed.message
        assert len(failed.message) < 400
        assert "one JSON document" in failed.hint

    for_each(
        check,
        [
            (b"hello", "hello"),
            (b'{"a": 1} {"b": 2}', '{"a": 1} {"b": 2}'),
            (b'{"a": 1, "a": 2}', "a"),
            (b"NaN", "NaN"),
            (b"\xff\xfe", "\ufffd"),
            (b'"\\ud800"', "ud800"),
            (b"[" * 5000, "[[["),
            (b"{\x1b]0;title\x07", "{\\x1b]0;title\\x07"),
            (b"{\x00", "{\\x00"),
        ],
    )


def test_output_of_just_the_limit_is_taken_and_one_byte_more_is_not(task: Callable[..., TaskOutcome]) -> None:
    assert task("printf", "12345678", limits=Limits(output=8)).event == Succeeded(output=12345678)
    failed = failure(task("printf", "123456789", limits=Limits(output=8)))
    assert failed.kind == "output"
    assert "8 bytes" in failed.message


def test_a_task_that_prints_without_end_is_ended(task: Callable[..., TaskOutcome], life: Life) -> None:
    failed = failure(task("sh", "-c", life.begin + "yes & yes"))
    assert failed.kind == "output"
    assert str(16 * MIB) in failed.message
    assert life.is_over()


# --- exits ---


def test_the_message_of_a_failed_task_is_the_end_of_its_stderr(task: Callable[..., TaskOutcome]) -> None:
    failed = failure(task("sh", "-c", "echo 1; echo disk on fire >&2; exit 3"))
    assert failed == Failed(
        kind="exit", message="disk on fire", hint="it ended with exit code 3; the message is the end of its stderr"
    )


def test_the_message_of_a_silent_failed_task_is_its_exit_code(task: Callable[..., TaskOutcome]) -> None:
    assert failure(task("sh", "-c", "exit 4")).message == "ended with exit code 4 and wrote nothing to stderr"


def test_a_task_killed_by_a_signal_is_known_by_the_signal(task: Callable[..., TaskOutcome]) -> None:
    assert "SIGSEGV" in failure(task("sh", "-c", "kill -SEGV $$")).message
    assert "SIGKILL" in failure(task("sh", "-c", "echo bye >&2; kill -9 $$")).hint


def test_of_a_long_stderr_the_end_is_kept_in_bounded_memory(task: Callable[..., TaskOutcome]) -> None:
    task("true")  # imports
    tracemalloc.start()
    try:
        outcome = task("sh", "-c", f"head -c {20 * MIB} /dev/zero >&2; echo the end >&2; exit 1")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    failed = failure(outcome)
    assert failed.message.startswith("...\\x00")
    assert failed.message.endswith("the end")
    assert len(failed.message) <= 4 * TAIL_SHOWN + 3
    assert peak < MIB


def test_a_tail_begins_with_a_whole_character(task: Callable[..., TaskOutcome], place: Path) -> None:
    (place / "talk").write_text("€" * 2000)
    assert failure(task("sh", "-c", "cat talk >&2; exit 1")).message == "..." + "€" * (TAIL_SHOWN // 3)


def test_stderr_that_is_not_text_or_moves_the_cursor_is_written_out(
    task: Callable[..., TaskOutcome], place: Path
) -> None:
    (place / "talk").write_bytes(b"a\x1b[2J\xff\r\nb\tc\x9b\xc2\x9b")
    assert failure(task("sh", "-c", "cat talk >&2; exit 1")).message == "a\\x1b[2J\ufffd\nb\tc\ufffd\\x9b"


def test_a_failure_stays_one_although_sigchld_is_ignored(task: Callable[..., TaskOutcome]) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    outcomes: list[TaskOutcome] = []
    elsewhere = threading.Thread(target=lambda: outcomes.append(task("sh", "-c", "exit 1")))
    try:
        here = failure(task("sh", "-c", "exit 1"))
        elsewhere.start()  # only the main thread may make the signal normal again
        elsewhere.join()
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert here.message == "ended with exit code 1 and wrote nothing to stderr"
    there = failure(outcomes[0])
    assert there.kind == "exit"
    assert "SIGCHLD" in there.hint


# --- secrets ---

TOKEN = "tok-4f9aQ2/Zr~8s0LwV7bXk1"
WORDY = "pr1vate 'w0rdz' #1\nZw3ites \"w0rdz\"\x1b #2"


@pytest.fixture
def secretive(task: Callable[..., TaskOutcome], place: Path) -> Callable[..., str]:
    """Runs a task that writes these bytes, and gives the message of its failure, from which ``secret`` is masked."""

    def run(secret: str | tuple[str, ...], *, out: str = "", err: str = "", end: str = "exit 1", **more: Any) -> str:
        redactor = Redactor([("X", each) for each in ((secret,) if isinstance(secret, str) else secret)])
        for name, text in (("out", out), ("err", err)):
            (place / name).write_bytes(text.encode())
        script = f"cat out; cat err >&2; {end}"
        outcome = task("sh", "-c", script, mask=lambda text: str(redactor.redact(text)[0]), **more)
        return failure(outcome).message

    return run


def leaks(secret: str, message: str, least: int = 4) -> list[str]:
    """The pieces of ``secret`` that stand in ``message``."""
    return [piece for at in range(len(secret) - least + 1) if (piece := secret[at : at + least]) in message]


def test_a_secret_in_bad_output_is_masked_before_the_excerpt_is_cut(secretive: Callable[..., str]) -> None:
    def check(before: int, secret: str) -> None:
        message = secretive(secret, out="o" * before + secret + "?" * 200, end="exit 0")
        assert leaks(secret, message) == []
        assert ("o" * before + "[REDACTED]")[:80] in message

    for_each(check, [0, 46, 55, 56, 75, 79, 80], [TOKEN, WORDY, WORDY.replace("\n", "\r\n")])


def test_bad_output_that_is_one_long_chain_of_secrets_shows_no_piece_of_the_one_that_is_cut(
    secretive: Callable[..., str],
) -> None:
    link = "".join(f"<{number}>" for number in range(1000))
    # Each begins within the other: all of the text becomes one mask, and the piece at its end comes near to it.
    secrets = (link[:4000], link[3000:] + link[:1000])
    for before in range(0, len(link), 500):
        message = secretive(secrets, out=link[before:] + link * 40, end="exit 0")
        assert leaks(link, message[message.find("[REDACTED]") :], 8) == []
    message = secretive(secrets, out=link * 40, end="exit 0")
    assert "begins" not in message


def test_a_secret_at_the_beginning_of_the_tail_is_masked_before_the_cut(secretive: Callable[..., str]) -> None:
    def check(after: int, secret: str, before: str) -> None:
        message = secretive(secret, err=before + secret + "y" * after)
        assert leaks(secret, message) == []
        cut = bool(before) or after + len("[REDACTED]") > TAIL_SHOWN
        assert message == "..." * cut + (before + "[REDACTED]" + "y" * after)[-TAIL_SHOWN:]

    for_each(
        check,
        [0, 4060, 4071, 4072, 4085, 4095, 4096, 4097, 50_000],
        [TOKEN, WORDY, WORDY.replace("\n", "\r\n")],
        ["", "x" * 300_000],
    )


def test_a_secret_cut_at_the_kept_end_of_stderr_is_never_shown(secretive: Callable[..., str]) -> None:
    secret = "".join(f"<{number}>" for number in range(2200))  # masks shrink the text: the cut half moves to the tail
    for after in range(0, len(secret), 1500):
        message = secretive(secret, err=secret * 20 + "y" * after)
        assert leaks(secret, message) == []
        assert message.startswith("...")


def test_the_tail_of_a_long_stderr_is_as_long_in_any_script(secretive: Callable[..., str]) -> None:
    def check(letter: str) -> None:
        shape = "y" * 300_000 + letter * (3 * TAIL_KEPT // 4 // len(letter.encode()))
        message = secretive(TOKEN, err=shape)
        assert message == "..." + letter * (TAIL_SHOWN // len(letter.encode()))

    for_each(check, ["y", "€", "\U0001f600"])


def test_a_secret_whose_line_ends_a_task_has_changed_is_masked_at_the_cut(secretive: Callable[..., str]) -> None:
    message = secretive(WORDY, err=WORDY.replace("\n", "\r\n") + "y" * 4080)
    assert leaks(WORDY, message) == []


def test_a_secret_on_the_stderr_of_a_task_that_takes_too_long_is_masked(secretive: Callable[..., str]) -> None:
    message = secretive(TOKEN, err=TOKEN + "y" * 4080, end="sleep 100", timeout=2.0)
    assert message == "took longer than 2 s and was ended; its stderr ends: [REDACTED]" + "y" * 4080


def test_a_secret_that_is_a_key_is_masked_in_the_message(secretive: Callable[..., str]) -> None:
    def check(secret: str, shape: str) -> None:
        plain = json.dumps(secret)[1:-1]
        escaped = "".join(f"\\u{ord(letter):04x}" for letter in secret)  # a spelling that no search for the value finds
        for spelling in (plain, escaped):
            message = secretive(secret, out=shape.replace("KEY", spelling), end="exit 0")
            said, _, excerpt = message.partition("; it begins: ")
            assert leaks(secret, said) == []
            assert leaks(plain, excerpt, 8) == []

    for_each(
        check,
        [TOKEN, WORDY],
        [
            '{"KEY": 1, "KEY": 2}',
            '{"a KEY b": {"c": 99999999999999999999}}',
            '{"KEY": "\\ud800"}',
        ],
    )


def test_a_place_without_secrets_is_shown_unchanged(secretive: Callable[..., str]) -> None:
    assert " (at /a~1b/c)" in secretive(TOKEN, out='{"a/b": {"c": 99999999999999999999}}', end="exit 0")
    assert "the key 'a' twice" in secretive(TOKEN, out='{"a": 1, "a": 2}', end="exit 0")


def test_a_secret_in_the_name_of_a_missing_program_is_masked_before_the_cut(task: Callable[..., TaskOutcome]) -> None:
    def check(before: int) -> None:
        redactor = Redactor([("X", TOKEN)])
        outcome = task("./" + "p" * before + TOKEN + "q" * 20, mask=lambda text: str(redactor.redact(text)[0]))
        assert leaks(TOKEN, failure(outcome).message) == []

    for_each(check, [0, 180, 190, 199])


# --- ends ---


def test_a_timeout_ends_the_task_and_all_it_started(task: Callable[..., TaskOutcome], life: Life) -> None:
    outcome = task("sh", "-c", life.begin + "echo nearly >&2; sleep 100 & sleep 100", timeout=2.0)
    failed = failure(outcome)
    assert failed.kind == "timeout"
    assert failed.message == "took longer than 2 s and was ended; its stderr ends: nearly"
    assert life.is_over()
    assert 2.0 <= outcome.seconds < 60


@pytest.mark.usefixtures("impatient")
def test_a_task_that_ignores_sigterm_is_killed(task: Callable[..., TaskOutcome], life: Life) -> None:
    outcome = task("sh", "-c", "trap '' TERM; " + life.begin + "sleep 100 & sleep 100; sleep 100", timeout=2.0)
    assert life.has_begun()
    assert failure(outcome).kind == "timeout"
    assert life.is_over()


def test_a_task_has_time_to_clean_up_after_sigterm(task: Callable[..., TaskOutcome], place: Path) -> None:
    script = "trap 'sleep 0.1; echo done > cleaned; exit 0' TERM; sleep 100 & wait"
    assert failure(task("sh", "-c", script, timeout=2.0)).kind == "timeout"
    assert (place / "cleaned").read_text() == "done\n"


def test_a_timeout_counts_although_the_task_closed_its_pipes(task: Callable[..., TaskOutcome], life: Life) -> None:
    assert failure(task("sh", "-c", life.begin + "exec >&- 2>&-; sleep 100", timeout=2.0)).kind == "timeout"
    assert life.has_begun()
    assert life.is_over()


def test_a_task_may_close_its_pipes_before_it_ends(task: Callable[..., TaskOutcome]) -> None:
    assert task("sh", "-c", "echo 1; exec >&- 2>&-; sleep 0.2").event == Succeeded(output=1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("pipe", ["", ">/dev/null 2>&1"])
def test_descendants_of_a_finished_task_are_ended_and_do_not_hold_the_run(
    task: Callable[..., TaskOutcome], life: Life, pipe: str
) -> None:
    outcome = task("sh", "-c", life.begin + f"(sleep 100) {pipe} & echo 1")
    assert outcome.event == Succeeded(output=1)
    assert life.is_over()
    assert outcome.seconds < 60


def test_descendants_of_a_finished_task_may_finish_the_output(task: Callable[..., TaskOutcome]) -> None:
    assert task("sh", "-c", "(sleep 0.2; echo 2]) & echo [1,").event == Succeeded(output=[1, 2])


@pytest.mark.usefixtures("impatient")
def test_a_process_in_a_new_session_does_not_hold_the_run(task: Callable[..., TaskOutcome], life: Life) -> None:
    away = "import os, time\nif os.fork(): os._exit(0)\nos.setsid(); time.sleep(60)"
    outcome = task("sh", "-c", life.begin + f"'{sys.executable}' -c '{away}'; echo 1")
    assert outcome.event == Succeeded(output=1)
    assert outcome.seconds < 50


@pytest.mark.usefixtures("impatient")
def test_a_left_over_that_talks_without_end_does_not_hold_the_run(task: Callable[..., TaskOutcome], life: Life) -> None:
    assert task("sh", "-c", life.begin + "yes >&2 & echo 1").event == Succeeded(output=1)
    assert life.is_over()


def test_neither_descriptors_nor_children_are_left(task: Callable[..., TaskOutcome], place: Path) -> None:
    def each_kind() -> None:
        task("true")
        task("false")
        task("./missing")
        task("./no interpreter")
        task("sleep", "100", timeout=0.01)
        task("cat", "/dev/zero", limits=Limits(output=10))

    program(place / "no interpreter", "#!/nowhere/at/all\n")
    each_kind()
    before = sorted(os.listdir("/dev/fd"))
    pids = [task("sh", "-c", "echo $$; true").event for _ in range(3)]
    each_kind()
    assert sorted(os.listdir("/dev/fd")) == before
    for event in pids:
        assert isinstance(event, Succeeded)
        with pytest.raises(ProcessLookupError):  # a zombie could still be signalled
            os.kill(event.output, 0)


def test_a_task_inherits_no_descriptor_but_its_pipes(task: Callable[..., TaskOutcome], place: Path) -> None:
    with open(place / "lock", "w") as lock:
        os.set_inheritable(lock.fileno(), True)
        try_it = f"import os\ntry:\n  os.fstat({lock.fileno()})\nexcept OSError:\n  print(1)"
        assert task(sys.executable, "-I", "-c", try_it).event == Succeeded(output=1)


def test_a_task_leads_a_new_session(task: Callable[..., TaskOutcome]) -> None:
    ask = "import os; print(int(os.getsid(0) == os.getpgid(0) == os.getpid()))"
    assert task(sys.executable, "-I", "-c", ask).event == Succeeded(output=1)


# --- interrupts ---

SCRIPT = """
import sys
from stateline.process import child
from stateline.process.signals import Interrupted, Signals
from stateline.process.task import run_task
from stateline.process.program import Program

child.GRACE = 1.0
call = Program(argv=["sh", "-c", sys.argv[2]], directory=sys.argv[1], document=b"{}")
"""
SHIELDED = SCRIPT + "try:\n with Signals():\n  run_task(call)\nexcept Interrupted as error:\n sys.exit(error.exit_code)"
PLAIN = SCRIPT + "try:\n run_task(call)\nexcept KeyboardInterrupt:\n sys.exit(99)"


def begin(script: str, place: Path, command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(place), command], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_an_interrupt_ends_the_task_and_all_it_started(place: Path, life: Life) -> None:
    def check(script: str, signum: int, code: int) -> None:
        stateline_process = begin(script, place, life.begin + "sleep 100 & sleep 100")
        wait_for(life.has_begun)
        stateline_process.send_signal(signum)
        assert stateline_process.wait(60) == code
        assert life.is_over()

    for_each(check, [(SHIELDED, signal.SIGINT, 130), (SHIELDED, signal.SIGTERM, 143), (PLAIN, signal.SIGINT, 99)])


def test_further_interrupts_do_not_save_a_task_that_ignores_sigterm(place: Path, life: Life) -> None:
    def check(script: str, code: int) -> None:
        stateline_process = begin(script, place, "trap '' TERM; " + life.begin + "while :; do sleep 1; done")
        wait_for(life.has_begun)
        stateline_process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        stateline_process.send_signal(signal.SIGINT)
        assert stateline_process.wait(60) == code
        assert life.is_over()

    for_each(check, [(SHIELDED, 130), (PLAIN, 99)])


def test_a_task_whose_stateline_was_killed_finds_its_pipes_broken(place: Path, life: Life) -> None:
    stateline_process = begin(PLAIN, place, life.begin + "while echo 1; do sleep 0.02; done")
    wait_for(life.has_begun)
    stateline_process.kill()
    stateline_process.wait(60)
    wait_for(life.is_over)


# --- programs ---


def test_a_program_with_a_slash_is_looked_up_beside_the_machine_file(
    task: Callable[..., TaskOutcome], place: Path
) -> None:
    (place / "bin").mkdir()
    program(place / "bin" / "one", "#!/bin/sh\necho 1\n")
    assert task("./bin/one").event == Succeeded(output=1)
    assert task("bin/one").event == Succeeded(output=1)
    assert task(str(place / "bin" / "one")).event == Succeeded(output=1)


def test_a_bare_name_is_never_looked_up_beside_the_machine_file(
    task: Callable[..., TaskOutcome], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(place / "only-here", "#!/bin/sh\necho 1\n")
    assert failure(task("only-here")).message == 'there is no program "only-here" on PATH'
    program(tmp_path / "only-here", "#!/bin/sh\necho 2\n")
    monkeypatch.setenv("PATH", os.environ["PATH"] + os.pathsep + str(tmp_path))
    assert task("only-here").event == Succeeded(output=2)


def test_the_first_program_on_the_path_wins_and_other_files_are_skipped(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "tool").mkdir()
    program(tmp_path / "c" / "tool", "", mode=0o644)
    program(tmp_path / "d" / "tool", "")
    program(tmp_path / "e" / "tool", "")
    path = os.pathsep.join(str(tmp_path / name) for name in ("a", "b", "c", "d", "e"))
    assert resolve_program("tool", "/", path) == str(tmp_path / "d" / "tool")
    assert resolve_program("tool", str(tmp_path), os.pathsep.join(["a", "e"])) == str(tmp_path / "e" / "tool")
    assert resolve_program("none", "/", path) is None
    assert resolve_program("", "/", path) is None


def test_a_missing_program_fails_the_task_and_the_check_with_the_same_message(
    task: Callable[..., TaskOutcome], place: Path
) -> None:
    (place / "folder").mkdir()
    program(place / "file", "#!/bin/sh\n", mode=0o644)

    def check(argv: list[str], message: str | None) -> None:
        failed = failure(task(*argv))
        assert failed.kind == "spawn"
        assert failed.hint
        assert program_problem(argv, str(place)) == failed.message
        if message is not None:
            assert failed.message == message

    for_each(
        check,
        [
            ([], "the command is empty"),
            ([""], "the command is empty"),
            (["./missing"], 'there is no program "./missing" beside the machine file'),
            (["./file/missing"], 'there is no program "./file/missing" beside the machine file'),
            (["no-such-program"], 'there is no program "no-such-program" on PATH'),
            (["./folder"], '"./folder" is a directory, not a program'),
            (["./file"], '"./file" is not executable; run chmod +x on it'),
            (["a\0b"], 'there is no program "a\\x00b" on PATH'),
            (["x" * 5000], None),
            (["../" * 3000 + "x"], None),
        ],
    )


def test_an_existing_program_has_no_problem(place: Path) -> None:
    assert program_problem(["echo", "1"], str(place)) is None


def test_a_program_that_the_system_cannot_start_fails_the_task(task: Callable[..., TaskOutcome], place: Path) -> None:
    program(place / "no first line", "echo 1\n")
    failed = failure(task("./no first line"))
    assert failed.kind == "spawn"
    assert "#!/bin/sh" in failed.hint
    program(place / "no interpreter", "#!/nowhere/at/all\n")
    failed = failure(task("./no interpreter"))
    assert failed == Failed(
        kind="spawn",
        message='the interpreter of "./no interpreter" is missing',
        hint="correct the first line of the script (#!...)",
    )
    for argv in (["echo", *["x" * 100_000] * 50], ["echo", "\0"], ["echo", "\ud800"]):
        failed = failure(task(*argv))
        assert failed.kind == "spawn"
        assert '"echo" could not be started' in failed.message


def test_a_directory_that_is_gone_fails_the_task() -> None:
    failed = failure(run_task(Program(argv=["true"], directory="/nowhere/at/all", document=b"")))
    assert failed.kind == "spawn"
    assert "directory" in failed.message


def test_a_message_does_not_depend_on_where_the_machine_file_lies(
    task: Callable[..., TaskOutcome], place: Path
) -> None:
    program(place / "bad", "echo\n")
    for argv in (["./bad"], ["./missing"], ["missing"]):
        assert str(place) not in failure(task(*argv)).message


# --- parts ---


def test_captured_output_stays_within_its_bounds() -> None:
    output = CapturedOutput(5)
    for piece in (b"abc", b"de", b"f"):
        output.add_stdout(piece)
        output.add_stderr(piece * TAIL_KEPT)
    assert output.overflowed
    assert output.stdout == b"abcde"
    assert output.stderr_tail == b"f" * TAIL_KEPT
    assert output.stderr_cut


def test_sanitized_text_is_valid_and_harmless() -> None:
    hostile = "".join(map(chr, range(0x300))) + "\u202e\u2028\u2066\ufeff\ud800\udc80€\U0001f600"
    text = sanitize(hostile)
    assert text.encode("utf-8")
    assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) <= {"\xa0", "\xad"}
    assert sanitize("a\r\nb\tc\r", lines=True) == "a\nb\tc\\x0d"
