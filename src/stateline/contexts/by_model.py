"""Derive and refine a context from a model's reply.

The flags win over the model: ``--system`` replaces its system prompt, the instructions of ``--developer`` come before
its own, and ``--set`` replaces its settings key by key.
"""

from __future__ import annotations

from typing import Any

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.contexts.context import (
    LIMIT,
    ContextContent,
    ContextRequest,
    content_of,
    new_context,
    refined_context,
)
from stateline.contexts.model_requests import with_flags
from stateline.errors import InvalidValueError, RequestError
from stateline.model.protocol import Judge, JudgingModel, Model, ModelCallError, ModelRequest, Reply
from stateline.process.signals import interruptible

_INVALID_REPLY = (
    "repeat the call, or make the context without a model: `stateline run --state-scope NAME --system TEXT`, and use "
    "it with any model"
)


def call(model: Model, request: ModelRequest, judge: Judge) -> Reply:
    """Call the model; signals interrupt the call at once. A recorder keeps the verdict of ``judge`` with the reply.
    Raises ``RequestError`` if no reply came."""
    try:
        with interruptible():
            return model.reply_judged(request, judge) if isinstance(model, JudgingModel) else model.reply(request)
    except ModelCallError as error:
        raise RequestError(
            f"the call of the model to {request.purpose} the context failed ({error.kind}): {error.message}; "
            f"{_unchanged(request)}",
            hint=_INVALID_REPLY if error.kind == "reply" else error.hint or "repeat the call",
        ) from None


def proposal(request: ModelRequest, reply: Reply) -> ContextContent:
    """Return the prompts and settings of a reply. Raises ``RequestError`` unless it is one JSON object that fits the
    schema of the request."""
    value = _parsed(request, reply)
    prompts: dict[str, Any] = value["prompts"]
    system = prompts["system"] if prompts["system"].strip() else None
    return ContextContent(system, [text for text in prompts["developer"] if text.strip()], value["settings"])


def derive(request: ContextRequest, content: ContextContent) -> dict[str, Json]:
    """Return the state of a new context: the proposal with the flags applied.

    Raises ``RequestError`` over the limit of a context, and for an instruction that is the user's prompt.
    """
    _require_no_copy(request, content, [])
    return new_context(request, with_flags(content, request))


def refine(context: dict[str, Json], request: ContextRequest, content: ContextContent) -> dict[str, Json]:
    """Return the whole refined state: the proposal with the flags applied.

    Raises ``RequestError`` over the limit of a context, and for an instruction that is the user's prompt.
    """
    old = content_of(context)
    _require_no_copy(request, content, [old.system or "", *old.developer])
    try:
        return refined_context(context, request, with_flags(content, request))
    except InvalidValueError:
        raise
    except RequestError as error:
        raise RequestError(
            error.message, hint="name in the refinement what may be removed, or ask for a shorter context"
        ) from None


def _parsed(request: ModelRequest, reply: Reply) -> dict[str, Any]:
    from stateline.machine.expressions.json_schema import violations

    if reply.tool_calls or reply.finish != "stop":
        raise _refused(request, "it calls tools, and the request offered none")
    try:
        value = canonical.parse(reply.content.encode(), limit=LIMIT, what="the reply")
    except UnicodeEncodeError:
        raise _refused(request, "the reply is not UTF-8") from None
    except InvalidValueError as error:
        raise _refused(request, error.message) from None
    found = violations(request.output_schema, value)
    if found:
        raise _refused(request, "; ".join(found[:3]))
    return dict(value)


def _require_no_copy(request: ContextRequest, content: ContextContent, existing: list[str]) -> None:
    """Refuse an instruction that is the user's prompt, unless the operator gave the same text."""
    task = (request.task or "").strip()
    operator = [request.system or "", *request.developer, request.refine or "", *existing]
    if not task or task in map(str.strip, operator):
        return
    if task in map(str.strip, [content.system or "", *content.developer]):
        raise RequestError(
            "the model copied the user's prompt into an instruction; it was not saved",
            hint="a prompt must not become an instruction: repeat the call, or give the instructions with --developer",
        )


def _refused(request: ModelRequest, reason: str) -> RequestError:
    return RequestError(
        f"the model's reply to {request.purpose} the context was refused: {reason}; {_unchanged(request)}",
        hint="repeat the call, or use a model that supports replies by a JSON Schema",
    )


def _unchanged(request: ModelRequest) -> str:
    return "no context was saved" if request.purpose == "derive" else "the context was not refined"
