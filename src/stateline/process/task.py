"""Effect of a task stage: one command, one JSON document in, one JSON document out.

``process.program`` runs the command; this module turns its end into an event. Every failure of the command is an event:
only an interrupt raises an exception.
"""

from __future__ import annotations

import msgspec

from stateline.errors import InvalidValueError
from stateline.machine.decider.run import Failed, Succeeded
from stateline.process.program import Program, ProgramFailure, run_program
from stateline.process.sanitize import excerpt, invalid_value_message

_WHITE = b" \t\r\n"
_HINTS = {
    "spawn": "correct the stage's `task` or install the program",
    "timeout": "raise the stage's `timeout`, or make the task faster",
    "exit": "let the task write the reason of a failure to stderr",
}
"""Hints where ``process.program`` gives none."""


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Event of a command, and the time [s] from its start to the end of its process group."""

    event: Succeeded | Failed
    seconds: float


def run_task(task: Program) -> TaskOutcome:
    """Run one command to its end. ``run_program`` explains signals, ``child.watch`` the end of its descendants. The
    output of a task that succeeded is not masked here."""
    result = run_program(task)
    return TaskOutcome(event=to_event(task, result.outcome), seconds=result.seconds)


def to_event(task: Program, outcome: bytes | ProgramFailure) -> Succeeded | Failed:
    """Return the event of a program's output or failure."""
    if isinstance(outcome, ProgramFailure):
        return _failed(outcome)
    text = outcome.strip(_WHITE)
    if not text:
        return Succeeded(output=None)
    try:
        return Succeeded(output=task.limits.parse("output", text, "the task's output"))
    except InvalidValueError as error:
        message, beginning = invalid_value_message(error, task.mask), excerpt(text, task.mask)
        message += f"; it begins: {beginning}" if beginning else ""
        hint = "print one JSON document to stdout, and everything else to stderr"
        return Failed(kind="output", message=message, hint=hint)


def _failed(failure: ProgramFailure) -> Failed:
    message, hint, stderr = failure.message, failure.hint or _HINTS[failure.kind], failure.stderr
    if failure.kind == "exit" and not failure.hint:
        if stderr:
            message, hint = stderr, f"it {message}; the message is the end of its stderr"
        else:
            message += " and wrote nothing to stderr"
    elif stderr:
        message += f"; its stderr ends: {stderr}"
    return Failed(kind=failure.kind, message=message, hint=hint)
