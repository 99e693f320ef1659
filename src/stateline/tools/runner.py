"""One call of a tool: the arguments as JSON in, a result as data out.

A model that is told of a failure can do something else, so every failure of a tool is a result as well:
``{"error": {"kind", "message"}}``. Kinds: ``spawn`` (it could not be started), ``exit`` (it failed), ``timeout``,
``output`` (too much, or no text).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.errors import InvalidValueError
from stateline.machine.spec import Tool
from stateline.process.executables import MANIFEST
from stateline.process.program import Failure, Program, run_program
from stateline.process.sanitize import Mask

if TYPE_CHECKING:
    from threading import Event

RESULT_DEPTH = canonical.DEPTH - 4
"""How deep a result may nest: it lies four levels down in a run's state, in a message of the conversation."""

_WHITE = b" \t\r\n"


class ToolRun(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. ``arguments`` fit the tool's schema; ``directory`` is the manifest's; ``run`` and ``key`` (the
    idempotency key) are told to the tool. ``mask`` takes the secrets out of what is said of a failure; it must not make
    any part of a text more than twice as long. A result, when there is one, is not masked here."""

    tool: Tool
    arguments: dict[str, Json]
    directory: str
    run: str
    key: str
    mask: Mask = str
    output_limit: int = canonical.TEXT_LIMIT


class ToolEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. ``seconds`` [s]: from the start of the program to the end of its process group. ``stopped``: it
    was ended, or never started, because the caller asked for it. The result is then the caller's own doing and means
    nothing; nobody knows how far the tool had come."""

    result: Json
    seconds: float
    stopped: bool


def run_tool(call: ToolRun, stop: Event | None = None) -> ToolEnd:
    """Run one call to its end, in any thread; setting ``stop`` ends it early, with all that it started. In the main
    thread a signal does the same and raises ``Interrupted`` (``run_program`` says when).

    Never raises for what the tool does. Raises ``InvalidValueError`` for arguments that are not JSON.
    """
    tool = call.tool
    program = Program(
        argv=tool.argv,
        directory=call.directory,
        beside=MANIFEST,
        document=canonical.encode(call.arguments, depth=canonical.FILE_DEPTH) + b"\n",
        env=tool.env,
        variables={"STATELINE_RUN": call.run, "STATELINE_IDEMPOTENCY_KEY": call.key},
        timeout=tool.timeout,
        output_limit=call.output_limit,
        mask=call.mask,
    )
    ended = run_program(program, stop)
    outcome = ended.outcome
    stopped = isinstance(outcome, Failure) and outcome.kind == "stopped"
    return ToolEnd(result=result_of(outcome), seconds=ended.seconds, stopped=stopped)


def result_of(outcome: bytes | Failure) -> Json:
    """What a model is told of what a tool wrote, or of its failure: always a value that a run can keep."""
    return _failed(outcome) if isinstance(outcome, Failure) else _result(outcome)


def _failed(failure: Failure) -> Json:
    said = [f"its {name} ends: {end}" for name, end in (("stderr", failure.stderr), ("stdout", failure.stdout)) if end]
    if failure.kind == "exit" and not said:
        said = ["it wrote nothing to stderr or stdout"]
    return _error(failure.kind, "; ".join([failure.message, *said]))


def _result(data: bytes) -> Json:
    """JSON if the output is one document that a run can keep as it is; else the text, to its last byte but for the line
    ends at its end. So a number too wide for JSON, or a key that is there twice, is not lost: it is text."""
    text = data.strip(_WHITE)
    if not text:
        return None
    if not canonical.deeper_than(text, RESULT_DEPTH):
        try:
            return canonical.parse(text, limit=len(text), what="the tool's output")
        except InvalidValueError:
            pass
    try:
        return data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        return _error("output", f"printed what is no text: byte {error.start} is not UTF-8")


def _error(kind: str, message: str) -> Json:
    return {"error": {"kind": kind, "message": message}}
