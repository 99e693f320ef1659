"""What a model is asked, and what it answers: one protocol for providers, recordings and fakes.

Plain data, so that an exchange can be kept, compared and played back. Nothing here knows a provider.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

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


CALL_MEMBERS = ("model", "messages", "system", "tools", "functions", "stream", "stream_options", "n")
"""What a call says itself: names that no setting may have."""


MOST_TOKENS = 2**53
"""From here on a count is none that a run can keep."""

WHOLE = 1800.0
"""The longest that a call may take with all its attempts, where a request says nothing of time [s]."""


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
    ``key`` is the idempotency key, and ``mark`` sets calls of the same key apart whose outcomes must differ, such as
    one after a reply that was of no use. ``timeout`` [s] bounds the call with all its attempts (0: the provider's
    default), and so does ``left`` [s], what a bound on the whole run leaves (0: there is none). Only a ``repeatable``
    call is attempted again by the provider's library, and a ``single`` one only after attempts that do not count
    (:class:`Spent`): whoever asked counts each one that does before it is made.
    """

    model: str
    messages: list[dict[str, Json]]
    tools: list[ToolSpec] = []
    settings: dict[str, Json] = {}
    output_schema: Json = None
    purpose: Literal["turn", "derive", "refine"] = "turn"
    key: str = ""
    mark: str = ""
    timeout: float = 0.0
    left: float = 0.0
    repeatable: bool = True
    single: bool = False

    def document(self) -> dict[str, Json]:
        """What decides the reply: neither key nor time, so that two runs ask the same."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return {name: document[name] for name in ("model", "messages", "tools", "settings", "output_schema")}

    def digest(self) -> str:
        """SHA-256 of :meth:`document` as canonical JSON. Raises ``InvalidValueError`` for what format 1 cannot hold."""
        return canonical.sha256(canonical.encode(self.document(), depth=canonical.FILE_DEPTH))


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply: text, or calls of tools, or both. ``finish`` is ``stop`` or ``tool_calls``: a reply that ended
    otherwise is none. ``model`` is what the provider says has answered. ``calls`` counts the attempts that it took, as
    :class:`Spent` does."""

    content: str = ""
    tool_calls: list[ToolCall] = []
    finish: Literal["stop", "tool_calls"] = "stop"
    usage: Usage | None = None
    model: str = ""
    calls: int = 1


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a call used that brought no reply. ``calls`` are the attempts that count: all but those that the server
    refused with a status of an error, or that never reached it. ``usage`` is what the server said of the last one, if
    it did, and ``came`` how much of an answer there was [bytes]."""

    calls: int = 0
    usage: Usage | None = None
    came: int = 0


class Model(Protocol):
    """Something that answers."""

    def reply(self, request: Request, told: Told | None = None) -> Reply:
        """The reply to ``request``; ``told`` hears its text meanwhile. Raises :class:`ModelFailed`; whatever was said
        before is then no answer. Raises ``StatelineError`` only where nothing was sent: the call may then be made later
        as if it had never been tried."""
        ...


Judge = Callable[[Reply], str]
"""Says why whoever asked cannot use a reply, "" if he can."""


@runtime_checkable
class JudgingModel(Model, Protocol):
    """A model that keeps what is said, and with it how it was taken."""

    def judged(self, request: Request, judge: Judge) -> Reply:
        """As :meth:`Model.reply`, whatever the judge says: that is kept with the reply, so that a playback need not
        give what was of no use."""
        ...


@runtime_checkable
class RecallingModel(Model, Protocol):
    """A model that may know what came of a call that its caller knows nothing of any more."""

    def recall(self, request: Request) -> Model | None:
        """What answers this very call as it ended, without making it; None if nothing is known of it. Changes nothing
        until it is asked. Raises as :meth:`Model.reply`."""
        ...


class ModelFailed(Exception):
    """No reply came of a call. ``sent``: the provider may have been paid for it, and ``spent`` says what it used (one
    call, if nothing else is said). ``again``: of a ``single`` call, it was lost on the way and may be made once more.
    ``bound`` is ``timeout`` where the call was ended by what the run had left of its time. Messages hold no key and no
    request's text."""

    again = False
    bound: Literal["", "timeout"] = ""

    def __init__(
        self, kind: FailureKind, message: str, hint: str = "", *, sent: bool = True, spent: Spent | None = None
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.hint = hint
        self.sent = sent
        self.spent = Spent(calls=int(sent)) if spent is None else spent

    @property
    def usage(self) -> Usage | None:
        """What was paid for it, as far as the provider said so [tokens]."""
        return self.spent.usage
