"""One call of a tool: arguments as JSON in, a result as data out.

A model can react to a failure, so every failure of a tool is a result too: ``{"error": {"kind", "message"}}``. Kinds:
``spawn`` (it could not be started), ``exit`` (it failed), ``timeout``, ``output`` (too much, or not text).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.bundle.limits import DEFAULT, Limits
from stateline.errors import InvalidValueError
from stateline.machine.spec import Tool
from stateline.process.executables import MANIFEST
from stateline.process.program import Program, ProgramFailure, run_program
from stateline.process.sanitize import Mask

if TYPE_CHECKING:
    from threading import Event

AROUND_RESULT = 4
"""Levels around a result in a run's state: it lies in a message of the conversation."""

_WHITE = b" \t\r\n"


class ToolRun(msgspec.Struct, frozen=True, kw_only=True):
    """A call to run. ``arguments`` fit the tool's schema; ``directory`` is the manifest's; ``run`` (its id) and ``key``
    (the idempotency key) are passed to the tool. ``mask`` masks the secrets in messages of failures; it must not make
    any part of a text more than twice as long. The result of a tool that succeeded is not masked here."""

    tool: Tool
    arguments: dict[str, Json]
    directory: str
    run: str
    key: str
    mask: Mask = str
    limits: Limits = DEFAULT


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """End of a call. ``seconds`` [s]: from the start of the program to the end of its process group. ``stopped``: the
    caller ended it or kept it from starting. ``result`` is then meaningless, and the progress of the tool unknown."""

    result: Json
    seconds: float
    stopped: bool


def run_tool(call: ToolRun, stop: Event | None = None) -> ToolResult:
    """Run one call to its end, in any thread; setting ``stop`` ends it and its descendants early. In the main thread a
    signal does the same and raises ``Interrupted`` (see ``run_program``).

    Raises ``InvalidValueError`` for arguments that are not JSON, and nothing because of the tool.
    """
    tool = call.tool
    program = Program(
        argv=tool.argv,
        directory=call.directory,
        source=MANIFEST,
        document=canonical.encode(call.arguments, depth=canonical.FILE_DEPTH) + b"\n",
        env=tool.env,
        variables={"STATELINE_RUN": call.run, "STATELINE_IDEMPOTENCY_KEY": call.key},
        timeout=tool.timeout,
        limits=call.limits,
        mask=call.mask,
    )
    ended = run_program(program, stop)
    outcome = ended.outcome
    stopped = isinstance(outcome, ProgramFailure) and outcome.kind == "stopped"
    return ToolResult(result=to_result(outcome, call.limits), seconds=ended.seconds, stopped=stopped)


def to_result(outcome: bytes | ProgramFailure, limits: Limits = DEFAULT) -> Json:
    """Return the result that the model gets for a tool's output or failure: always a value that a run can store.

    Output is a JSON value if it is one document that a run can store as it is; else the text without the line ends at
    its end. So output with a number too wide for JSON, or with a repeated key, is kept as text.
    """
    if isinstance(outcome, ProgramFailure):
        ends = [f"its {name} ends: {end}" for name in ("stderr", "stdout") if (end := getattr(outcome, name))]
        if outcome.kind == "exit" and not ends:
            ends = ["it wrote nothing to stderr or stdout"]
        return _error(outcome.kind, "; ".join([outcome.message, *ends]))
    text = outcome.strip(_WHITE)
    if not text:
        return None
    if not canonical.deeper_than(text, limits.depth - AROUND_RESULT):
        try:
            return canonical.parse(text, limit=len(text), what="the tool's output")
        except InvalidValueError:
            pass
    try:
        return outcome.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        return _error("output", f"printed bytes that are not text: byte {error.start} is not UTF-8")


def _error(kind: str, message: str) -> Json:
    return {"error": {"kind": kind, "message": message}}
