"""A task stage's effect: one command, one JSON document in, one JSON document out.

How programs are run is ``process.program``; here the end of one becomes an event. Whatever the command does, the answer
is an event: an exception is only ever an interrupt.
"""

from __future__ import annotations

import msgspec

from stateline.bundle import canonical
from stateline.errors import InvalidValueError
from stateline.machine.decider.run import Failed, Succeeded
from stateline.process.executables import MACHINE_FILE, environment, program_problem, resolve_program
from stateline.process.program import Failure, Program, run_program
from stateline.process.sanitize import Mask, excerpt, refusal, shown

__all__ = ["TaskCall", "TaskOutcome", "environment", "program_problem", "resolve_program", "run_task", "shown"]

_WHITE = b" \t\r\n"
_HINTS = {
    "spawn": "correct the stage's `task` or install the program",
    "timeout": "raise the stage's `timeout`, or make the task quicker",
    "exit": "let the task write to stderr why it fails",
}
"""What to do where ``process.program`` cannot say."""


class TaskCall(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. ``directory`` is the machine file's, ``env`` the names passed besides ``PASSED``, ``document`` the
    bytes for stdin, ``timeout`` [s] (0 none), ``output_limit`` [bytes]. ``mask`` takes the secrets out of a text; it
    must not make any part of a text more than twice as long. A task's output, when it is one, is not masked here."""

    argv: list[str]
    directory: str
    document: bytes
    env: list[str] = []
    timeout: float = 0.0
    output_limit: int = canonical.TEXT_LIMIT
    mask: Mask = str


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended, and the time [s] from the start of the command to the end of its process group."""

    event: Succeeded | Failed
    seconds: float


def run_task(call: TaskCall) -> TaskOutcome:
    """Run one command to its end. ``run_program`` says what a signal does, ``child.watch`` how the command is ended and
    what becomes of its descendants."""
    ended = run_program(_program(call))
    return TaskOutcome(event=_event(call, ended.outcome), seconds=ended.seconds)


def _program(call: TaskCall) -> Program:
    return Program(
        argv=call.argv,
        directory=call.directory,
        beside=MACHINE_FILE,
        document=call.document,
        env=call.env,
        timeout=call.timeout,
        output_limit=call.output_limit,
        mask=call.mask,
    )


def _event(call: TaskCall, outcome: bytes | Failure) -> Succeeded | Failed:
    return _failed(outcome) if isinstance(outcome, Failure) else _output(call, outcome)


def _failed(failure: Failure) -> Failed:
    message, hint, said = failure.message, failure.hint or _HINTS[failure.kind], failure.stderr
    if failure.kind == "exit" and not failure.hint:
        if said:
            message, hint = said, f"it {message}; the message is the end of its stderr"
        else:
            message += " and wrote nothing to stderr"
    elif said:
        message += f"; its stderr ends: {said}"
    return Failed(kind=failure.kind, message=message, hint=hint)


def _output(call: TaskCall, data: bytes) -> Succeeded | Failed:
    text = data.strip(_WHITE)
    if not text:
        return Succeeded(output=None)
    try:
        return Succeeded(output=canonical.parse(text, limit=call.output_limit, what="the task's output"))
    except InvalidValueError as refused:
        message, begin = refusal(refused, call.mask), excerpt(text, call.mask)
        message += f"; it begins: {begin}" if begin else ""
        hint = "print one JSON document to stdout, and everything else to stderr"
        return Failed(kind="output", message=message, hint=hint)
