"""Answers from outside: ``--input``, or standard input read to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.engine.event_codec import is_calling_tools
from stateline.engine.record import Run, load_run, run_scope
from stateline.engine.step import call_ids, stage_of
from stateline.errors import InvalidAnswerError, InvalidValueError, UsageError
from stateline.store.store import Store

Reader = Callable[[], bytes]
"""Reads standard input to its end, at most ``TEXT_LIMIT + 1`` [bytes]."""


def parse_answer(data: bytes) -> Json | msgspec.UnsetType:
    """A human's answer: JSON, else a string without its last newline; UNSET when there is nothing but white space.

    Raises ``InvalidValueError`` for JSON that format 1 cannot hold (duplicate keys, NaN, too deep), for text that is not
    UTF-8, and over 16 MiB: none of that is quietly taken for a string.
    """
    if not data.strip():
        return msgspec.UNSET
    try:
        return canonical.parse(data, what="the answer")
    except InvalidValueError:
        if len(data) > canonical.TEXT_LIMIT or is_lenient_json(data):
            raise
    return _decoded(data)


def parse_model_reply(data: bytes) -> Json | msgspec.UnsetType:
    """An answer in a model's stead, as :func:`parse_answer`. Raises ``InvalidAnswerError`` for what begins like JSON and is
    none: calls of tools with a brace missing, or half a text, must not end as the run's answer."""
    said = parse_answer(data)
    if isinstance(said, str) and data.lstrip()[:1] in (b"{", b"[", b'"') and not is_lenient_json(data):
        raise InvalidAnswerError(
            f"the answer begins with {said.lstrip()[0]!r} and is not JSON; nothing was lost, and the run still waits",
            hint="correct the JSON (a brace, a quote, a comma?), or take the text as it is by --input-format text",
        )
    return said


def parse_text(data: bytes) -> str | msgspec.UnsetType:
    """An answer that is text, whatever it looks like, without its last newline; UNSET when there is nothing but white
    space. Raises ``InvalidValueError`` for what is not UTF-8, and over 16 MiB."""
    if not data.strip():
        return msgspec.UNSET
    if len(data) > canonical.TEXT_LIMIT:
        raise InvalidValueError(
            f"the answer has more than {canonical.TEXT_LIMIT} bytes", hint="give less, or a file's name"
        )
    return _decoded(data)


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"the answer is not UTF-8 (byte {error.start})", hint="write UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def is_lenient_json(data: bytes) -> bool:
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


def is_wrapped(value: Json | msgspec.UnsetType) -> TypeGuard[dict[str, Json]]:
    """Whether an answer stands beside the name of its request: an object with exactly ``requestId`` and ``answer``."""
    return isinstance(value, dict) and value.keys() == {"requestId", "answer"}


def named_request(value: Json | msgspec.UnsetType) -> Json:
    """The request that an answer names: one that is wrapped, or a reply in a model's stead. None if it names none."""
    if is_wrapped(value) or (isinstance(value, dict) and value.keys() & {"type", "response", "tools"}):
        return value.get("requestId")
    return None


def answered_run(store: Store, value: Json | msgspec.UnsetType) -> Run | None:
    """The run whose request an answer names; None for an answer that names none. Raises ``InvalidAnswerError`` if that run
    is not there. A request id begins with the run's id and a colon."""
    request = named_request(value)
    if request is None and not is_wrapped(value):
        return None
    run = str(request).partition(":")[0]
    if not naming.is_id(run) or run_scope(store, run).head() is None:
        raise InvalidAnswerError(
            f"the answer is for the request {request!r}, which no run here has made; nothing was changed",
            hint="`stateline exec list` lists the runs there are",
        )
    return load_run(store, run)


def unwrap(run: Run, value: Json) -> Answer:
    """The answer in ``value``. ``{"requestId": ..., "answer": ...}`` names the request that it answers, and so does
    ``requestId`` in a reply in a model's stead.

    Raises ``InvalidAnswerError`` for another request's answer; the run still waits.
    """
    named = named_request(value)
    if named is None and not is_wrapped(value):
        return Answer(value)
    inner = value["answer"] if is_wrapped(value) else value
    request = (run.event.get("waiting") or {}).get("requestId")
    if request is not None and named == request:
        return Answer(inner, named=True)
    answered = run.event.get("answered") or {}
    if named is not None and named == answered.get("requestId"):
        if answered.get("sha256") not in _digests(run, inner):
            raise InvalidAnswerError(
                f"the request {named!r} was answered before, and differently; nothing was changed",
                hint=f"`stateline exec history {run.id}` shows the answer that was taken",
            )
        return Answer(inner, named=True, again=True)
    if not is_wrapped(value) and not expects_reply(run):
        return Answer(value)  # an object like any other
    raise InvalidAnswerError(
        f"the answer is for the request {named!r}, not for the one that is open ({request}); nothing was changed",
        hint=f"`stateline exec status {run.id}` shows what the run waits for",
    )


def fingerprint(run: Run, value: Json) -> dict[str, Json]:
    """What the event keeps of an answer to the open request, so that the same, given twice, counts once."""
    own, meant = _digests(run, value)
    sha256 = meant if expects_reply(run) else own
    return {"requestId": (run.event.get("waiting") or {}).get("requestId"), "sha256": sha256}


def _digests(run: Run, value: Json) -> tuple[str, str]:
    """The digest of an answer as it stands there, and of what it says as a reply in a model's stead, which can be given
    in several forms. An event has the one or the other; older ones have the first of replies as well."""
    from stateline.model.answer import meaning

    masked, _ = run.scope.store.redactor.redact(value)
    own, meant = (canonical.sha256(canonical.encode(each)) for each in (masked, meaning(masked)))
    return own, meant


def expects_reply(run: Run) -> bool:
    """Whether what the run waits for is a reply in a model's stead."""
    return run.state.status == "waiting" and stage_of(run).kind == "agent" and not is_calling_tools(run.state.tree)


def as_event(run: Run, value: Json) -> tuple[Json, int]:
    """(the answer as ``advance`` takes it, how many secrets were masked in it). Raises ``InvalidAnswerError`` for what is no
    reply, where one is asked for; the run still waits."""
    if not expects_reply(run):
        return value, 0
    from stateline.engine.agent import tools_of
    from stateline.model.answer import parse_reply

    # Masked before anything is said about it: what a tool's schema makes of it may be shown.
    masked, count = run.scope.store.redactor.redact(value)
    request = (run.event.get("waiting") or {}).get("requestId")
    agent = stage_of(run).agent
    schema = None if agent is None else agent.output_schema
    reply = parse_reply(masked, tools_of(run), request, call_ids(run), schema=schema)
    answer: dict[str, Json] = {"content": reply.content}
    if reply.tool_calls:
        answer["tool_calls"] = [msgspec.to_builtins(call) for call in reply.tool_calls]
    return answer, count


def is_built_in(event: dict[str, Json]) -> bool:
    """Return True for the event of a run that ``run -p`` started: it has no machine file, and its machine lies where
    its tools do."""
    path = event["machine"]["path"]
    return not path or path == (event.get("tools") or {}).get("path")


def restart_commands(run: Run) -> tuple[str, str]:
    """Whole commands, whichever was called: the one that begins another such run, and the one that begins this anew."""
    if is_built_in(run.event):
        return "stateline run -p TEXT", f"stateline run --id {run.id} --force -p TEXT"
    return "stateline execute MACHINE --id NEW", f"stateline execute MACHINE --id {run.id} --force"


def not_waiting_error(run: Run) -> UsageError:
    """The error for input that nobody asked for."""
    another, anew = restart_commands(run)
    hints = {
        "error": f"mend the cause and `stateline exec resume {run.id} --retry`, or begin anew: `{anew}`",
        "complete": f"`{another}` starts another run, `{anew}` begins this one anew",
    }
    return UsageError(
        f"the run {run.id} is {run.state.status} and waits for no input; nothing was changed",
        hint=hints.get(run.state.status, f"leave --input out, or start another run: `{another}`"),
    )
