"""One program, run to its end with one document on stdin: what tasks and tools have in common.

What happens to the process is ``process.child``; here its end becomes output or a failure, in words that are the same
whoever asked for the program. What the output must be, and what is to be done about a failure, is the caller's.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from stateline.bundle import canonical
from stateline.process import child
from stateline.process.executables import environment, find_program, quoted
from stateline.process.pipes import KEPT
from stateline.process.sanitize import Mask, last_words, shown
from stateline.process.signals import shield

if TYPE_CHECKING:
    from threading import Event

FailureKind = Literal["spawn", "timeout", "output", "exit", "stopped"]


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. ``directory`` is that of the file which names it, ``beside`` what this file is called; ``env`` are
    the names passed besides ``lookup.PASSED``, ``variables`` what is laid over them; ``document`` the bytes for stdin,
    ``timeout`` [s] (0 none), ``output_limit`` [bytes]. ``mask`` takes the secrets out of what is said of a failure."""

    argv: list[str]
    directory: str
    beside: str
    document: bytes
    env: list[str] = []
    variables: dict[str, str] = {}
    timeout: float = 0.0
    output_limit: int = canonical.TEXT_LIMIT
    mask: Mask = str


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a program gave no output. ``stderr`` and ``stdout`` are the ends of what it wrote, harmless and bounded, or
    "". ``hint`` is "" where the way out depends on whose program it is. ``stopped``: the caller asked for it."""

    kind: FailureKind
    message: str
    hint: str = ""
    stderr: str = ""
    stdout: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The output as it was written, or why there is none; and the time [s] from the start of the program to the end of
    its process group."""

    outcome: bytes | Failure
    seconds: float


def run_program(program: Program, stop: Event | None = None) -> Ended:
    """Run one program to its end, in any thread. See ``child.watch`` for how it is ended, early if ``stop`` is set, and
    what becomes of its descendants.

    The whole call is shielded from signals but for the wait itself. A caller that holds a shield of its own until the
    outcome is saved therefore never loses a program that has finished; an ``Interrupted`` means that it was ended here
    and that nobody knows how far it had come.
    """
    began = time.monotonic()
    with shield():
        outcome = _run(program, stop)
        return Ended(outcome=outcome, seconds=time.monotonic() - began)


def _run(program: Program, stop: Event | None) -> bytes | Failure:
    if stop is not None and stop.is_set():
        return Failure(kind="stopped", message="was not started")
    try:
        file, problem = find_program(program.argv, program.directory, program.beside, program.mask)
        if problem:
            return Failure(kind="spawn", message=problem)
        variables = environment(program.env) | program.variables
        started = child.start(file, program.argv, program.directory, variables)
    except (OSError, ValueError) as error:
        return _not_started(program, error)
    ended = child.watch(
        started, program.document, timeout=program.timeout, output_limit=program.output_limit, stop=stop
    )
    return _meaning(program, ended)


def _not_started(program: Program, error: OSError | ValueError) -> Failure:
    """The program was there, and yet the system would not start it."""
    import errno

    name = quoted(program.argv[0], program.mask)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOENT, errno.ENOTDIR):
        if not os.path.isdir(program.directory):
            return Failure(kind="spawn", message=f"{program.beside}'s directory is gone", hint="put it back")
        message, hint = f"the interpreter of {name} is missing", "correct the first line of the script (#!...)"
    elif number == errno.ENOEXEC:
        message = f"{name} is neither a binary for this system nor a script that names its interpreter"
        hint = "begin the script with a line such as #!/bin/sh"
    elif number == errno.E2BIG:
        message, hint = f"the arguments of {name} are too long", "pass large data on stdin or in a file"
    else:
        reason = os.strerror(number) if number else program.mask(str(error))
        message = f"{name} could not be started: {shown(reason)}"
        hint = "nothing was run; retry when the system allows it"
    return Failure(kind="spawn", message=message, hint=hint)


def _meaning(program: Program, ended: child.Exit) -> bytes | Failure:
    left = "; it could not be ended and may still be running" if ended.alive else " and was ended"
    if ended.how == "overflow":
        hint = "write large data to a file and print its name"
        return Failure(kind="output", message=f"printed more than {program.output_limit} bytes{left}", hint=hint)
    if ended.how == "stopped":
        return Failure(kind="stopped", message=f"was asked to stop{left}")
    if ended.how == "timeout":
        return _failure(program, ended, "timeout", f"took longer than {program.timeout:g} s{left}")
    if ended.code is None:
        hint = "start Stateline with SIGCHLD not ignored"
        return Failure(kind="exit", message="ended, but the system threw its exit code away", hint=hint)
    if ended.code != 0:
        return _failure(program, ended, "exit", _how_it_exited(ended.code))
    return ended.written.output


def _failure(program: Program, ended: child.Exit, kind: FailureKind, message: str) -> Failure:
    written = ended.written
    output = written.output
    return Failure(
        kind=kind,
        message=message,
        stderr=last_words(written.kept, written.kept_cut, program.mask),
        stdout=last_words(output[-KEPT:], len(output) > KEPT, program.mask),
    )


def _how_it_exited(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    import signal

    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"was ended by signal {-code}"
