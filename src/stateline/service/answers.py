"""Answers to requests: ``--answer``, or standard input read to its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TypeGuard

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.bundle.limits import DEFAULT, Limits
from stateline.engine.event_codec import is_built_in, is_calling_tools, restart_command
from stateline.engine.record import Run, load_run, run_scope
from stateline.engine.step import call_ids, stage_of
from stateline.errors import InvalidAnswerError, InvalidValueError, NoOpenRequestError, UsageError
from stateline.store.store import Store

_HINTED = 3
"""Most runs that a hint has commands for, the newest ones."""

Reader = Callable[[], bytes]
"""Reads standard input to its end, at most one byte more than the limit ``input``."""


def parse_answer(data: bytes, limits: Limits = DEFAULT) -> Json | msgspec.UnsetType:
    """Parse a human's answer: JSON, else a string without its last newline; UNSET if there is only white space.

    Raises ``InvalidValueError`` for JSON that format 1 cannot hold (duplicate keys, NaN, too deep), for text that is
    not UTF-8, and over the limit ``input``: none of these becomes a string.
    """
    if not data.strip():
        return msgspec.UNSET
    try:
        return limits.parse("input", data, "the answer")
    except InvalidValueError:
        if len(data) > limits.input or is_lenient_json(data):
            raise
    return parse_text(data, limits)


def parse_model_reply(data: bytes, limits: Limits = DEFAULT) -> Json | msgspec.UnsetType:
    """Parse an answer to a model request, as :func:`parse_answer`. Raises ``InvalidAnswerError`` for text that starts
    like JSON and is not: tool calls with a missing brace must not become the final answer of the run."""
    reply = parse_answer(data, limits)
    if isinstance(reply, str) and data.lstrip()[:1] in (b"{", b"[", b'"') and not is_lenient_json(data):
        raise InvalidAnswerError(
            f"the answer begins with {reply.lstrip()[0]!r} and is not JSON; the run still waits",
            hint="correct the JSON, or pass it as text with --input-format text",
        )
    return reply


def parse_text(data: bytes, limits: Limits = DEFAULT) -> str | msgspec.UnsetType:
    """Parse an answer as text without its last newline; UNSET if there is only white space. Raises
    ``InvalidValueError`` for text that is not UTF-8, and over the limit ``input``."""
    if not data.strip():
        return msgspec.UNSET
    limits.require_size("input", len(data), "the answer", hint="shorten it")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"the answer is not UTF-8 (byte {error.start})", hint="write UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def is_lenient_json(data: bytes) -> bool:
    """Return True if a lenient parser accepts ``data`` as JSON: then JSON was meant."""
    import json

    try:
        json.loads(data)
    except ValueError:
        return False
    except RecursionError:
        pass
    return True


def open_request(run: Run) -> Json:
    """Return the id of the request that the run waits for; None without one."""
    return (run.event.get("waiting") or {}).get("requestId")


class Answer(msgspec.Struct, frozen=True):
    """An answer without its wrapping. ``named``: it names its request; ``again``: it was given before."""

    value: Json
    named: bool = False
    again: bool = False


def is_wrapped(value: Json | msgspec.UnsetType) -> TypeGuard[dict[str, Json]]:
    """Return True for an object with exactly the keys ``requestId`` and ``answer``."""
    return isinstance(value, dict) and value.keys() == {"requestId", "answer"}


def named_request(value: Json | msgspec.UnsetType) -> Json:
    """Return the request id that an answer, wrapped or a reply to a model request, names; None without one."""
    if is_wrapped(value) or (isinstance(value, dict) and value.keys() & {"type", "response", "tools"}):
        return value.get("requestId")
    return None


def answered_run(store: Store, value: Json | msgspec.UnsetType, request: str | None) -> Run | None:
    """Return the run whose request an answer names, by ``request`` or inside; None for an answer that names none. A
    request id starts with the run's id and a colon. Raises ``InvalidAnswerError`` if that run does not exist."""
    named = named_request(value) if request is None else request
    if named is None and not is_wrapped(value):
        return None
    run = str(named).partition(":")[0]
    if not naming.is_id(run) or run_scope(store, run).head() is None:
        raise InvalidAnswerError(
            f"the answer is for the request {named!r}, which no run here has made; nothing was changed",
            hint="`stateline exec list` lists the runs there are",
        )
    return load_run(store, run)


def unwrap(run: Run, value: Json, request: str | None = None) -> Answer:
    """Return the answer in ``value``: all of it if ``request`` is its request, else it may name one by ``requestId``.

    Raises ``InvalidAnswerError`` for the answer to another request, ``NoOpenRequestError`` if none is open; nothing has
    changed then.
    """
    named, wrapped = named_request(value) if request is None else request, request is None and is_wrapped(value)
    if named is None and not wrapped:
        return Answer(value)
    inner = value["answer"] if wrapped else value
    waiting = open_request(run)
    if waiting is not None and named == waiting:
        return Answer(inner, named=True)
    answered = _answered(run, named)
    if answered is not None:
        if answered.get("sha256") not in _digests(run, inner):
            raise InvalidAnswerError(
                f"the request {named!r} was answered before, and differently; nothing was changed",
                hint=f"`stateline exec history {run.id}` shows the answer that was taken",
            )
        return Answer(inner, named=True, again=True)
    if request is None and not wrapped and not expects_reply(run):
        return Answer(value)  # an ordinary object
    if waiting is None:
        raise _no_open_request(run)
    raise InvalidAnswerError(
        f"the answer is for the request {named!r}, not for the one that is open ({waiting}); nothing was changed",
        hint=f"`stateline exec status {run.id}` shows what the run waits for",
    )


def _answered(run: Run, request: Json) -> dict[str, Json] | None:
    """Return ``event.answered`` of the answer to ``request``, which later ones may have replaced; None without one."""
    if run.snapshot is None or not str(request).startswith(f"{run.id}:"):
        return None
    for snapshot in run.scope.walk(run.snapshot):
        answered: dict[str, Json] = snapshot.event.get("answered") or {}
        if answered.get("requestId") == request:
            return answered
        if snapshot.event["type"] == "started":  # before it lies another run of that id
            break
    return None


def fingerprint(run: Run, value: Json) -> dict[str, Json]:
    """Return ``event.answered`` for an answer to the open request, so that a repeated answer counts once."""
    as_given, meaning = _digests(run, value)
    return {"requestId": open_request(run), "sha256": meaning if expects_reply(run) else as_given}


def _digests(run: Run, value: Json) -> tuple[str, str]:
    """Return the digest of an answer as it was given, and of its meaning as a reply to a model request, which has
    several forms. An event has one of the two; older events have the first of replies too."""
    from stateline.model.manual_reply import meaning

    masked, _ = run.scope.store.redactor.redact(value)
    return canonical.sha256(canonical.encode(masked)), canonical.sha256(canonical.encode(meaning(masked)))


def expects_reply(run: Run) -> bool:
    """Return True if the run waits for a reply to a model request."""
    return run.state.status == "waiting" and stage_of(run).kind == "agent" and not is_calling_tools(run.state.tree)


def as_event(run: Run, value: Json) -> tuple[Json, int]:
    """Return (the answer as ``advance`` takes it, number of masked secrets). Raises ``InvalidAnswerError`` for an
    answer that is not a valid reply to a model request; the run still waits."""
    if not expects_reply(run):
        return value, 0
    from stateline.engine.agent import tools_of
    from stateline.model.manual_reply import parse_reply

    # Masked first: an error of a tool schema may show the value.
    masked, count = run.scope.store.redactor.redact(value)
    agent = stage_of(run).agent
    schema = None if agent is None else agent.output_schema
    reply = parse_reply(masked, tools_of(run), open_request(run), call_ids(run), schema=schema)
    answer: dict[str, Json] = {"content": reply.content}
    if reply.tool_calls:
        answer["tool_calls"] = [msgspec.to_builtins(call) for call in reply.tool_calls]
    return answer, count


def restart_commands(run: Run, *, given: bool = False) -> tuple[str, str]:
    """Return two whole commands: one starts another run of this kind, one restarts this run. Both have an input if this
    run has one, its machine declares one, or one is ``given``."""
    another = f"stateline execute {shlex.quote(run.event['machine']['path'])} --id NEW"
    if is_built_in(run.event):
        another = "stateline run -p TEXT"
    more = " --input JSON" if given or takes_input(run) else ""
    return another + more, restart_command(run.id, run.event) + more


def takes_input(run: Run) -> bool:
    """Return True if the run has an input, or its machine declares one."""
    return run.state.input is not None or run.machine.input is not None


def require_expected(
    run: Run, given: Json | msgspec.UnsetType, answer: Json | msgspec.UnsetType, request: str | None
) -> None:
    """Raise ``UsageError`` if ``given`` is not the input with which the run started, compared as it is stored;
    ``NoOpenRequestError`` for an answer while no request is open, unless it is given again; ``InvalidAnswerError`` for
    the value of the last answer without its request, and as :func:`unwrap`."""
    if given is not msgspec.UNSET:
        masked, _ = run.scope.store.redactor.redact(given)
        if canonical.encode(masked) != canonical.encode(run.state.input):
            raise _another_input(run)
    if answer is msgspec.UNSET:
        return
    taken = unwrap(run, answer, request)
    if taken.again:
        return
    if run.state.status == "waiting":
        _require_no_repetition(run, taken)
        return
    raise _no_open_request(run)


def _no_open_request(run: Run) -> NoOpenRequestError:
    hint = f"`stateline exec status {run.id}` shows it; an answer with --request ID can be given again"
    if run.state.status == "running":
        hint = f"`stateline exec resume {run.id}` continues the run, until it waits"
    elif run.state.status == "error":
        hint = (
            f"fix the cause and `stateline exec resume {run.id} --retry`, or restart it: `{restart_commands(run)[1]}`"
        )
    return NoOpenRequestError(
        f"the run {run.id} is {run.state.status} and waits for no answer; nothing was changed", hint=hint
    )


def _require_no_repetition(run: Run, answer: Answer) -> None:
    """Raise ``InvalidAnswerError`` for the value of the last answer without a request: a repeated line must not answer
    the next question."""
    if answer.named or (run.event.get("answered") or {}).get("sha256") not in _digests(run, answer.value):
        return
    command = answer_command(run.id, open_request(run), "JSON")
    raise InvalidAnswerError(
        f"the last request of the run {run.id} was answered with the same value, and this answer names no request: it "
        "may be the same command given again; the run still waits",
        hint=f"if it is meant for the open request, name that: `{command}`",
    )


def _another_input(run: Run) -> UsageError:
    another, restart = restart_commands(run, given=True)
    hint = f"`{another}` starts another run, `{restart}` restarts this one"
    if run.state.status == "waiting":
        hint += f", `{answer_command(run.id, open_request(run), 'JSON')}` answers it"
    return UsageError(f"the run {run.id} started with another input; nothing was changed", hint=hint)


def answer_command(run: str, request: Json, answer: str) -> str:
    """Return the command that answers a request, and can be repeated. ``answer`` is one shell word."""
    return f"stateline exec resume {run} --request {request} --answer {answer}"


def no_run_error(waiting: Sequence[Run] = ()) -> NoOpenRequestError:
    """Return the error for an answer in a call that would start a run. ``waiting``: runs of its machine that wait."""
    message = "an answer was given, and this call would start a run"
    hint = "`stateline exec list` shows the runs that wait"
    if waiting:
        message += f", while these of its machine wait: {', '.join(run.id for run in waiting)}"
        hint = "; ".join(f"`{answer_command(run.id, open_request(run), 'JSON')}`" for run in waiting[-_HINTED:])
        hint = f"answer one of them: {hint}"
    return NoOpenRequestError(f"{message}; nothing was changed", hint=hint)
