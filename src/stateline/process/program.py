"""One program, run to its end with one document on stdin: the part that tasks and tools share.

``process.child`` runs the process; this module turns its end into output or a failure, in words that fit any caller.
The caller decides what the output must be and what to do about a failure.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from stateline.bundle.limits import DEFAULT, Limits
from stateline.machine.problems import shell_hint
from stateline.process import child
from stateline.process.executables import MACHINE_FILE, environment, find_program, quoted
from stateline.process.pipes import TAIL_KEPT
from stateline.process.sanitize import LONGEST_SECRET, Mask, mask_text, masked_length, sanitize
from stateline.process.signals import shield

if TYPE_CHECKING:
    from threading import Event

TAIL_SHOWN = 4096
"""Size of the end of a program's stderr that a message shows [bytes]."""

FailureKind = Literal["spawn", "timeout", "output", "exit", "stopped"]


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run. ``source`` is the name, in messages, of the file that names the program, and ``directory`` that
    file's directory. ``env`` names variables that are passed besides ``executables.PASSED``; ``variables`` override
    them. ``document`` is the input on stdin, ``timeout`` [s] (0 none). ``limits`` bounds the output. ``mask`` masks the
    secrets in messages of failures; it must not make any part of a text more than twice as long."""

    argv: list[str]
    directory: str
    source: str = MACHINE_FILE
    document: bytes
    env: list[str] = []
    variables: dict[str, str] = {}
    timeout: float = 0.0
    limits: Limits = DEFAULT
    mask: Mask = str


class ProgramFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a program gave no output. ``stderr`` and ``stdout`` are the sanitized, bounded ends of its output, or
    "". ``hint`` is "" where it depends on the caller. ``stopped``: the caller asked for it."""

    kind: FailureKind
    message: str
    hint: str = ""
    stderr: str = ""
    stdout: str = ""


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """Output of a program byte for byte, or a failure; and the time [s] from its start to the end of its group."""

    outcome: bytes | ProgramFailure
    seconds: float


def run_program(program: Program, stop: Event | None = None) -> ProgramResult:
    """Run one program to its end, in any thread. Setting ``stop`` ends it early; see ``child.watch``.

    The whole call is shielded from signals except for the wait. So a caller that holds a shield until the outcome is
    saved never loses a program that has finished. ``Interrupted`` means that the program was ended, and that its
    progress is unknown.
    """
    started = time.monotonic()
    with shield():
        outcome = _run(program, stop)
        return ProgramResult(outcome=outcome, seconds=time.monotonic() - started)


def _run(program: Program, stop: Event | None) -> bytes | ProgramFailure:
    if stop is not None and stop.is_set():
        return ProgramFailure(kind="stopped", message="was not started")
    try:
        file, problem = find_program(program.argv, program.directory, program.source, program.mask)
        if problem:
            line = " ".join(program.argv)
            hint = shell_hint(sanitize(program.mask(line))) if " " in "".join(program.argv[:1]).strip() else ""
            return ProgramFailure(kind="spawn", message=problem, hint=hint)
        variables = environment(program.env) | program.variables
        process = child.start(file, program.argv, program.directory, variables)
    except (OSError, ValueError) as error:  # ValueError: NUL or half a character in an argument
        return _spawn_failure(program, error)
    ended = child.watch(
        process, program.document, timeout=program.timeout, output_limit=program.limits.output, stop=stop
    )
    return _outcome(program, ended)


def _spawn_failure(program: Program, error: OSError | ValueError) -> ProgramFailure:
    import errno

    name = quoted(program.argv[0], program.mask)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOENT, errno.ENOTDIR):
        if not os.path.isdir(program.directory):
            message, hint = f"the directory of {program.source} is gone", "restore the directory"
            return ProgramFailure(kind="spawn", message=message, hint=hint)
        message, hint = f"the interpreter of {name} is missing", "correct the first line of the script (#!...)"
    elif number == errno.ENOEXEC:
        message = f"{name} is neither a binary for this system nor a script that names its interpreter"
        hint = "begin the script with a line such as #!/bin/sh"
    else:
        reason = os.strerror(number) if number else program.mask(str(error))
        message = f"{name} could not be started: {sanitize(reason)}"
        hint = "nothing was run; retry when the system allows it"
    return ProgramFailure(kind="spawn", message=message, hint=hint)


def _outcome(program: Program, ended: child.Exit) -> bytes | ProgramFailure:
    fate = "; it could not be ended and may still be running" if ended.alive else " and was ended"
    if ended.reason == "overflow":
        hint = "write large data to a file and print its name"
        return ProgramFailure(
            kind="output", message=f"printed more than {program.limits.text('output')}{fate}", hint=hint
        )
    if ended.reason == "stopped":
        return ProgramFailure(kind="stopped", message=f"was asked to stop{fate}")
    if ended.reason == "timeout":
        return _failure(program, ended, "timeout", f"took longer than {program.timeout:g} s{fate}")
    if ended.code is None:
        hint = "start Stateline with SIGCHLD not ignored"
        return ProgramFailure(kind="exit", message="ended, but the system discarded its exit code", hint=hint)
    if ended.code != 0:
        return _failure(program, ended, "exit", _exit_message(ended.code))
    return ended.output.stdout


def _failure(program: Program, ended: child.Exit, kind: FailureKind, message: str) -> ProgramFailure:
    output = ended.output
    stdout = output.stdout
    return ProgramFailure(
        kind=kind,
        message=message,
        stderr=_tail(output.stderr_tail, output.stderr_cut, program.mask),
        stdout=_tail(stdout[-TAIL_KEPT:], len(stdout) > TAIL_KEPT, program.mask),
    )


def _tail(data: bytes, cut: bool, mask: Mask) -> str:
    """Return the end of a stream: at most ``TAIL_SHOWN`` [bytes] before characters are escaped. ``data`` is the end
    that was kept, ``cut`` tells if anything came before it. A byte that is not text counts as the three bytes of
    U+FFFD."""
    text = mask_text(data.decode("utf-8", "replace"), mask)
    if cut:
        text = text[masked_length(data[:LONGEST_SECRET]) :]
    encoded = text.encode("utf-8", "replace")
    if not cut and len(encoded) <= TAIL_SHOWN:
        return sanitize(text, lines=True).strip()
    whole = encoded[-TAIL_SHOWN:].lstrip(bytes(range(0x80, 0xC0)))  # the cut may have gone through a character
    return "..." + sanitize(whole.decode("utf-8"), lines=True).rstrip()


def _exit_message(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    import signal

    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"was ended by signal {-code}"
