"""Answers from outside: ``--input``, or standard input read to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.engine.record import Run, load_run, run_scope
from stateline.errors import AnswerRefused, UsageError, ValueRefused
from stateline.store.store import Store

Reader = Callable[[], bytes]
"""Reads standard input to its end, at most ``TEXT_LIMIT + 1`` [bytes]."""


def parse_answer(data: bytes) -> Json | msgspec.UnsetType:
    """A human's answer: JSON, else a string without its last newline; UNSET when there is nothing but white space.

    Raises ``ValueRefused`` for JSON that format 1 cannot hold (duplicate keys, NaN, too deep), for text that is not
    UTF-8, and over 16 MiB: none of that is quietly taken for a string.
    """
    if not data.strip():
        return msgspec.UNSET
    try:
        return canonical.parse(data, what="the answer")
    except ValueRefused:
        if len(data) > canonical.TEXT_LIMIT or reads_as_json(data):
            raise
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueRefused(f"the answer is not UTF-8 (byte {error.start})", hint="write UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def reads_as_json(data: bytes) -> bool:
    """Whether a lenient reader takes ``data`` for JSON: then it was meant to be JSON, and is not just some text."""
    import json

    try:
        json.loads(data)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


class Answer(msgspec.Struct, frozen=True):
    """An answer without its wrapping: whether it ``named`` its request, and whether it was given before (``again``)."""

    value: Json
    named: bool = False
    again: bool = False


def is_named(value: Json | msgspec.UnsetType) -> TypeGuard[dict[str, Json]]:
    """Whether an answer names its request: an object with exactly the keys ``requestId`` and ``answer``."""
    return isinstance(value, dict) and value.keys() == {"requestId", "answer"}


def answered_run(store: Store, value: Json | msgspec.UnsetType) -> Run | None:
    """The run whose request an answer names; None for an answer that names none. Raises ``AnswerRefused`` if that run
    is not there. A request id begins with the run's id and a colon."""
    if not is_named(value):
        return None
    run = str(value["requestId"]).partition(":")[0]
    if not naming.is_id(run) or run_scope(store, run).head() is None:
        raise AnswerRefused(
            f"the answer is for the request {value['requestId']!r}, which no run here has made; nothing was changed",
            hint="`stateline exec list` lists the runs there are",
        )
    return load_run(store, run)


def unwrap(run: Run, value: Json) -> Answer:
    """The answer in ``value``. ``{"requestId": ..., "answer": ...}`` names the request that it answers.

    Raises ``AnswerRefused`` for another request's answer; the run still waits.
    """
    if not is_named(value):
        return Answer(value)
    request = (run.event.get("waiting") or {}).get("requestId")
    if request is not None and value["requestId"] == request:
        return Answer(value["answer"], named=True)
    answered = run.event.get("answered") or {}
    if value["requestId"] is not None and value["requestId"] == answered.get("requestId"):
        masked, _ = run.scope.store.redactor.redact(value["answer"])
        if canonical.sha256(canonical.encode(masked)) != answered.get("sha256"):
            raise AnswerRefused(
                f"the request {value['requestId']!r} was answered before, and differently; nothing was changed",
                hint=f"`stateline exec history {run.id}` shows the answer that was taken",
            )
        return Answer(value["answer"], named=True, again=True)
    raise AnswerRefused(
        f"the answer is for the request {value['requestId']!r}, not for the one that is open ({request}); "
        "nothing was changed",
        hint=f"`stateline exec status {run.id}` shows what the run waits for",
    )


def not_waiting(run: Run) -> UsageError:
    """The error for input that nobody asked for."""
    hints = {
        "error": f"begin anew with this input: --force; or mend the cause and `stateline exec resume {run.id} --retry`",
        "complete": "start another run with --id NEW, or begin this one anew with --force",
    }
    return UsageError(
        f"the run {run.id} is {run.state.status} and waits for no input; nothing was changed",
        hint=hints.get(run.state.status, "leave --input out, or start another run with --id NEW"),
    )
