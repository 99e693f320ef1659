"""What a model is asked, and what it answers: one protocol for providers, recordings and fakes.

Plain data, so that an exchange can be kept, compared and played back. Nothing here knows a provider.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json

Told = Callable[[str], None]
"""Hears the text of a reply piece by piece, while it arrives."""

FailureKind = Literal["model", "timeout", "reply"]
"""``model``: the provider refused, or could not be reached. ``timeout``: it took too long. ``reply``: what came is no
reply (empty, cut, malformed, ended by length)."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model is told of it; ``parameters`` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Json]


class ToolCall(msgspec.Struct, frozen=True):
    """One call that a model asks for. ``id`` tells the calls of one conversation apart."""

    id: str
    name: str
    arguments: dict[str, Json]


CALLS_OWN = ("model", "messages", "system", "tools", "functions", "stream", "stream_options", "n")
"""What a call says itself: names that no setting may have."""


class Usage(msgspec.Struct, frozen=True):
    """What a call cost [tokens]."""

    input: int = 0
    output: int = 0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model.

    ``messages`` are, in order, of the roles ``system`` and ``developer`` (``{"role", "content"}``), then the
    conversation: ``{"role": "user", "content"}``, ``{"role": "assistant", "content", "tool_calls"?}`` and
    ``{"role": "tool", "tool_call_id", "name", "content"}``, where the content of a tool is any JSON. ``settings`` are
    the provider's own (``temperature``, ``top_p``, ``max_tokens`` ...). ``output_schema`` is the JSON Schema that the
    reply's text must fit, None for free text. ``purpose`` says what the call is for: it never reaches a provider.
    ``key`` is the idempotency key, ``timeout`` [s] bounds the call with all its attempts (0: the provider's default).
    Only a ``repeatable`` call is attempted again by the provider's library.
    """

    model: str
    messages: list[dict[str, Json]]
    tools: list[ToolSpec] = []
    settings: dict[str, Json] = {}
    output_schema: Json = None
    purpose: Literal["turn", "derive", "refine"] = "turn"
    key: str = ""
    timeout: float = 0.0
    repeatable: bool = True

    def document(self) -> dict[str, Json]:
        """What decides the reply: neither key nor time, so that two runs ask the same."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return {name: document[name] for name in ("model", "messages", "tools", "settings", "output_schema")}

    def digest(self) -> str:
        """SHA-256 of :meth:`document` as canonical JSON. Raises ``ValueRefused`` for what format 1 cannot hold."""
        return canonical.sha256(canonical.encode(self.document(), depth=canonical.FILE_DEPTH))


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply: text, or calls of tools, or both. ``finish`` is ``stop`` or ``tool_calls``: a reply that ended
    otherwise is none. ``model`` is what the provider says has answered."""

    content: str = ""
    tool_calls: list[ToolCall] = []
    finish: Literal["stop", "tool_calls"] = "stop"
    usage: Usage | None = None
    model: str = ""


class Model(Protocol):
    """Something that answers."""

    def reply(self, request: Request, told: Told | None = None) -> Reply:
        """The reply to ``request``; ``told`` hears its text meanwhile. Raises :class:`ModelFailed`; whatever was said
        before is then no answer. Raises ``StatelineError`` only where nothing was sent: the call may then be made later
        as if it had never been tried."""
        ...


class ModelFailed(Exception):
    """No reply came of a call. ``sent``: the provider may have been paid for it. Messages hold no key and no request's
    text."""

    def __init__(self, kind: FailureKind, message: str, hint: str = "", *, sent: bool = True) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.hint = hint
        self.sent = sent
