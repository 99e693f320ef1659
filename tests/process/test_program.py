"""One program: messages that fit any caller, and its end from another thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from process.life import Life
from process.waiting import PATIENCE, child_has_ended, number_in, wait_for

from stateline.bundle.limits import Limits
from stateline.process import child
from stateline.process.executables import program_problem
from stateline.process.program import Program, ProgramFailure, ProgramResult, run_program


@pytest.fixture
def run(place: Path) -> Callable[..., ProgramResult]:
    def run(*argv: str, stop: threading.Event | None = None, **more: Any) -> ProgramResult:
        program = Program(argv=list(argv), directory=str(place), source="the recipe", document=b"", **more)
        return run_program(program, stop)

    return run


def failure(ended: ProgramResult) -> ProgramFailure:
    assert isinstance(ended.outcome, ProgramFailure)
    return ended.outcome


class Elsewhere(threading.Thread):
    """Runs a program in a thread of its own, where no signal strikes. ``ended`` is there when it is over."""

    def __init__(self, run: Callable[..., ProgramResult], *argv: str, **more: Any) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.ended: ProgramResult | None = None
        self._run = lambda: run(*argv, stop=self.stop, **more)
        self.start()

    def run(self) -> None:
        self.ended = self._run()

    def finish(self) -> ProgramResult:
        self.join(PATIENCE)
        assert self.ended is not None
        return self.ended


# --- its words ---


def test_the_output_is_complete_to_the_last_byte(run: Callable[..., ProgramResult]) -> None:
    assert run("printf", "\\n a \\377\\000 \\n").outcome == b"\n a \xff\x00 \n"


def test_messages_name_the_file_that_names_the_program(run: Callable[..., ProgramResult], place: Path) -> None:
    assert failure(run("./missing")).message == 'there is no program "./missing" beside the recipe'
    assert program_problem(["./missing"], str(place), "the recipe") == failure(run("./missing")).message
    place.rmdir()
    assert failure(run("true")) == ProgramFailure(
        kind="spawn", message="the directory of the recipe is gone", hint="restore the directory"
    )


def test_failures_do_not_mention_tasks_or_machines(run: Callable[..., ProgramResult]) -> None:
    def check(script: str, kind: str) -> None:
        failed = failure(
            run("sh", "-c", script, timeout=0.3 if kind == "timeout" else 60.0, limits=Limits(output=1000))
        )
        assert failed.kind == kind
        assert not any(word in failed.message + failed.hint for word in ("task", "stage", "machine", "tool"))

    for_each(check, [("exit 3", "exit"), ("kill -9 $$", "exit"), ("sleep 100", "timeout"), ("cat /dev/zero", "output")])


def test_a_failure_has_the_ends_of_both_streams_separately(run: Callable[..., ProgramResult]) -> None:
    failed = failure(run("sh", "-c", "echo out; echo err >&2; exit 3"))
    assert failed == ProgramFailure(kind="exit", message="ended with exit code 3", stderr="err", stdout="out")
    failed = failure(run("sh", "-c", "echo out; echo err >&2; sleep 100", timeout=2.0))
    assert failed == ProgramFailure(
        kind="timeout", message="took longer than 2 s and was ended", stderr="err", stdout="out"
    )


def test_variables_override_the_passed_environment(
    run: Callable[..., ProgramResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANTED", "outer")
    monkeypatch.setenv("OTHER", "outer")
    script = 'echo "$WANTED $MADE ${OTHER-unset}"'
    ended = run("sh", "-c", script, env=["WANTED"], variables={"MADE": "here", "WANTED": "inner"})
    assert ended.outcome == b"inner here unset\n"


# --- its end from another thread ---


def test_a_program_in_another_thread_is_ended_with_its_descendants_when_it_is_stopped(
    run: Callable[..., ProgramResult], life: Life
) -> None:
    thread = Elsewhere(run, "sh", "-c", life.begin + "sleep 100 & sleep 100")
    wait_for(life.has_begun)
    thread.stop.set()
    assert failure(thread.finish()) == ProgramFailure(kind="stopped", message="was asked to stop and was ended")
    assert life.is_over()


def test_a_program_that_closed_its_pipes_is_stopped_as_well(run: Callable[..., ProgramResult], life: Life) -> None:
    thread = Elsewhere(run, "sh", "-c", life.begin + "exec >&- 2>&-; sleep 100")
    wait_for(life.has_begun)
    thread.stop.set()
    assert failure(thread.finish()).kind == "stopped"
    assert life.is_over()


def test_a_program_that_talks_without_end_is_stopped_as_well(run: Callable[..., ProgramResult], life: Life) -> None:
    thread = Elsewhere(run, "sh", "-c", life.begin + "yes >&2")
    wait_for(life.has_begun)
    thread.stop.set()
    assert failure(thread.finish()).kind == "stopped"
    assert life.is_over()


def test_a_program_that_ignores_sigterm_is_killed_when_it_is_to_stop(
    run: Callable[..., ProgramResult], life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "GRACE", 0.3)
    thread = Elsewhere(run, "sh", "-c", "trap '' TERM; " + life.begin + "sleep 100 & sleep 100; sleep 100")
    wait_for(life.has_begun)
    thread.stop.set()
    assert failure(thread.finish()).kind == "stopped"
    assert life.is_over()


def test_a_stopped_program_has_time_to_clean_up(run: Callable[..., ProgramResult], place: Path, life: Life) -> None:
    script = "trap 'sleep 0.1; echo done > cleaned; exit 0' TERM; " + life.begin + "sleep 100 & wait"
    thread = Elsewhere(run, "sh", "-c", script)
    wait_for(life.has_begun)
    thread.stop.set()
    assert failure(thread.finish()).kind == "stopped"
    assert (place / "cleaned").read_text() == "done\n"


def test_a_program_stopped_before_its_start_never_runs(run: Callable[..., ProgramResult], place: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert failure(run("sh", "-c", "echo > begun", stop=stop)) == ProgramFailure(
        kind="stopped", message="was not started"
    )
    assert not (place / "begun").exists()


def test_a_program_that_has_exited_is_not_stopped_any_more(
    run: Callable[..., ProgramResult], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "LINGER", 30.0)
    os.mkfifo(place / "go")
    thread = Elsewhere(run, "sh", "-c", "(read x < go; echo 2]) & echo [1,; echo $$ > exits")
    wait_for(lambda: child_has_ended(place / "exits"))
    thread.stop.set()
    (place / "go").write_text("go\n")
    assert thread.finish().outcome == b"[1,\n2]\n"


def test_other_programs_are_not_stopped(run: Callable[..., ProgramResult], place: Path, life: Life) -> None:
    other = Elsewhere(run, "sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo 1")
    thread = Elsewhere(run, "sh", "-c", life.begin + "sleep 100")
    wait_for(life.has_begun)
    thread.stop.set()
    assert failure(thread.finish()).kind == "stopped"
    (place / "go").touch()
    assert other.finish().outcome == b"1\n"


def test_a_stopped_program_leaves_no_descriptors_and_no_children(
    run: Callable[..., ProgramResult], place: Path, life: Life
) -> None:
    before = sorted(os.listdir("/dev/fd"))
    for _ in range(3):
        thread = Elsewhere(run, "sh", "-c", f"echo $$ > pid; {life.begin} sleep 100")
        wait_for(life.has_begun)
        thread.stop.set()
        thread.finish()
        with pytest.raises(ChildProcessError):
            os.waitpid(number_in(place / "pid") or 0, os.WNOHANG)
    assert sorted(os.listdir("/dev/fd")) == before
