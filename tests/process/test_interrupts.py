"""Signals: raised at once, remembered behind a shield, and never the cause of a lost child or a lost result."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from each_case import for_each

from stateline.process.signals import Interrupted

BEGIN = """
import os, signal, sys, threading, time
from stateline.process.signals import Interrupted, Signals, interruptible, shield

def strike(signum=signal.SIGTERM):
    os.kill(os.getpid(), signum)

"""


def begin(body: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs ``body``; its stdout is a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + textwrap.dedent(body), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Its exit code and the words it printed."""
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.split()


def run(body: str, *arguments: str) -> tuple[int, list[str]]:
    return finish(begin(body, *arguments))


def test_a_signal_interrupts_a_wait_at_once_and_carries_the_exit_code_of_the_shell() -> None:
    def check(name: str, code: int) -> None:
        process = begin("""
        try:
            with Signals():
                print("ready", flush=True)
                time.sleep(60)
        except Interrupted as interrupted:
            sys.exit(interrupted.exit_code)
    """)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        assert finish(process) == (code, [])

    for_each(check, [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])


def test_no_handler_of_ordinary_exceptions_swallows_an_interrupt() -> None:
    assert not issubclass(Interrupted, Exception)


def test_a_shield_remembers_a_signal_and_raises_it_when_it_is_left() -> None:
    assert run("""
        try:
            with Signals():
                with shield():
                    strike()
                    print("saved")
                print("never")
        except Interrupted as interrupted:
            print(interrupted.signum)
    """) == (0, ["saved", "15"])


def test_only_the_outermost_shield_raises() -> None:
    assert run("""
        try:
            with Signals(), shield():
                with shield():
                    strike()
                print("still")
        except Interrupted:
            print("raised")
    """) == (0, ["still", "raised"])


def test_a_wait_inside_a_shield_is_interrupted_at_once() -> None:
    assert run("""
        try:
            with Signals(), shield():
                with interruptible():
                    strike()
                    print("never")
        except Interrupted:
            print("raised")
    """) == (0, ["raised"])


def test_a_remembered_signal_is_raised_before_a_wait_begins() -> None:
    assert run("""
        try:
            with Signals(), shield():
                strike()
                print("shielded")
                with interruptible():
                    print("never")
        except Interrupted:
            print("raised")
    """) == (0, ["shielded", "raised"])


def test_after_a_wait_the_shield_is_up_again() -> None:
    assert run("""
        try:
            with Signals(), shield():
                with interruptible():
                    pass
                strike()
                print("saved")
        except Interrupted:
            print("raised")
    """) == (0, ["saved", "raised"])


def test_a_second_signal_does_not_break_the_clean_up() -> None:
    def check(second: str) -> None:
        assert run(
            """
        try:
            with Signals():
                try:
                    strike()
                finally:
                    strike(getattr(signal, sys.argv[1]))
                    with shield():
                        strike(getattr(signal, sys.argv[1]))
                    print("clean")
        except Interrupted as interrupted:
            sys.exit(interrupted.exit_code)
        """,
            second,
        ) == (143, ["clean"])

    for_each(check, ["SIGTERM", "SIGINT"])


def test_an_interrupt_that_was_swallowed_is_raised_again_by_the_next_wait() -> None:
    assert run("""
        try:
            with Signals():
                try:
                    strike()
                except Interrupted:
                    print("swallowed")
                with interruptible():
                    print("never")
        except Interrupted:
            print("raised")
    """) == (0, ["swallowed", "raised"])


def test_a_signal_remembered_while_an_error_passes_is_raised_and_keeps_the_error() -> None:
    assert run("""
        try:
            with Signals(), shield():
                strike()
                raise OSError("disk")
        except Interrupted as interrupted:
            print(repr(interrupted.__context__))
    """) == (0, ["OSError('disk')"])


def test_leaving_the_block_restores_the_handlers() -> None:
    assert run("""
        mine = lambda signum, frame: None
        signal.signal(signal.SIGTERM, mine)
        with Signals():
            assert signal.getsignal(signal.SIGTERM) is not mine
        print(signal.getsignal(signal.SIGTERM) is mine)
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        with Signals(), shield():
            pass
        strike(signal.SIGINT)
    """) == (-signal.SIGINT, ["True", "True"])


def test_the_handlers_are_restored_after_an_interrupt_too() -> None:
    assert run("""
        try:
            with Signals():
                strike()
        except Interrupted:
            pass
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    """) == (0, ["True"])


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    assert run("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Signals():
            strike(signal.SIGHUP)
            print("on")
    """) == (0, ["on"])


def test_an_inner_block_leaves_the_outer_one_in_force() -> None:
    assert run("""
        try:
            with Signals():
                with Signals():
                    pass
                strike()
                print("never")
        except Interrupted:
            print("raised")
    """) == (0, ["raised"])


def test_in_another_thread_nothing_is_installed_and_nothing_is_shielded() -> None:
    assert run("""
        def elsewhere():
            with Signals():
                print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

        inside, leave = threading.Event(), threading.Event()

        def shielded():
            with shield(), interruptible():
                inside.set()
                leave.wait()

        thread = threading.Thread(target=shielded)
        try:
            with Signals():
                thread.start()
                inside.wait()
                strike()
                print("never")
        except Interrupted:
            print("raised")
        leave.set()
        thread.join()
    """) == (0, ["True", "raised"])


def test_exit_codes_of_children_arrive_although_sigchld_was_ignored_on_entry() -> None:
    assert run("""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with Signals():
            child = os.fork()
            if not child:
                os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)
    """) == (0, ["7", "True"])


def test_without_signals_a_shield_postpones_the_keyboard_interrupt() -> None:
    assert run("""
        try:
            with shield():
                strike(signal.SIGINT)
                with shield():
                    print("saved")
        except KeyboardInterrupt:
            print("raised")
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        try:
            with shield(), interruptible():
                strike(signal.SIGINT)
                print("never")
        except KeyboardInterrupt:
            print("raised")
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """) == (0, ["saved", "raised", "True", "raised", "True"])


def test_without_signals_a_shield_calls_a_handler_for_every_signal_that_comes_in_a_wait() -> None:
    assert run("""
        signal.signal(signal.SIGTERM, lambda signum, frame: print(signum))
        with shield():
            with interruptible():
                strike()
                strike()
            strike()
            print("saved")
    """) == (0, ["15", "15", "saved", "15"])


def test_without_signals_no_default_action_is_changed() -> None:
    assert run("""
        with shield():
            print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
            strike()
    """) == (-signal.SIGTERM, ["True"])


TASKS = """
from stateline.process.task import run_task
from stateline.process.program import Program

call = Program(argv=["sh", "-c", sys.argv[2]], directory=sys.argv[1], document=b"{}")
"""


def test_a_result_that_is_there_when_the_signal_comes_is_saved_first() -> None:
    assert run(
        TASKS
        + textwrap.dedent("""
        try:
            with Signals(), shield():
                outcome = run_task(call)
                strike()
                print("saved", outcome.event.output)
        except Interrupted:
            print("raised")
        """),
        "/",
        "echo 7",
    ) == (0, ["saved", "7", "raised"])


def test_a_signal_at_any_moment_leaves_no_child_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "life")
    life = os.open(tmp_path / "life", os.O_RDONLY | os.O_NONBLOCK)
    moments = random.Random(20)
    try:
        for _ in range(15):
            process = begin(
                TASKS
                + textwrap.dedent("""
                try:
                    with Signals():
                        print("ready", flush=True)
                        while True:
                            run_task(call)
                except Interrupted as interrupted:
                    os._exit(interrupted.exit_code)
                """),
                str(tmp_path),
                "exec 3>life; printf x >&3; sleep 0.02 & sleep 0.01",
            )
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moments.random() * 0.08)
            process.send_signal(moments.choice([signal.SIGINT, signal.SIGTERM]))
            assert finish(process)[0] in (130, 143)
            while os.read(life, 65536):
                pass  # at its end at last, or BlockingIOError: somebody still holds it
    finally:
        os.close(life)
