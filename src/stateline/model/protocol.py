"""One protocol for models: providers, recordings and fakes.

Requests and replies are plain data, so that an exchange can be stored, compared and played back. Nothing here depends
on a provider.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json

TextListener = Callable[[str], None]
"""Receives the text of a reply piece by piece, while it arrives."""

FailureKind = Literal["model", "timeout", "reply"]
"""``model``: the provider refused, or could not be reached. ``timeout``: the call took too long. ``reply``: what
arrived is not a complete reply (empty, truncated, malformed, ended by its length)."""

CALL_MEMBERS = ("model", "messages", "system", "tools", "functions", "stream", "stream_options", "n")
"""Members that each call sets itself: no setting may have these names."""
TOKEN_COUNT_LIMIT = 2**53
"""Token counts from here on cannot be stored in a run."""
CALL_TIMEOUT = 1800.0
"""Limit of a call with all its attempts, where the request has none [s]."""


class ToolSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that a model may call; ``parameters`` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Json]


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool call in a reply. ``id`` is unique within a conversation."""

    id: str
    name: str
    arguments: dict[str, Json]


class Usage(msgspec.Struct, frozen=True):
    """Size of a call [tokens]."""

    input: int = 0
    output: int = 0


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model.

    ``messages`` are, in order, of the roles ``system`` and ``developer`` (``{"role", "content"}``), then the
    conversation: ``{"role": "user", "content"}``, ``{"role": "assistant", "content", "tool_calls"?}`` and
    ``{"role": "tool", "tool_call_id", "name", "content"}``, where the content of a tool is any JSON. ``settings`` are
    the provider's own (``temperature``, ``top_p``, ``max_tokens`` ...). ``output_schema`` is the JSON Schema of the
    reply's text, None for free text. ``purpose`` is not sent to a provider. ``key`` is the idempotency key; ``mark``
    distinguishes calls of the same key that must have different outcomes, such as a call after an unusable reply.
    ``timeout`` [s] limits the call with all its attempts (0: the default), and so does ``left`` [s], the rest of a
    limit on the whole run (0: no limit). The provider's library may retry only a ``repeatable`` call. A ``single``
    call is retried only after attempts that do not count (:class:`CallCost`), because the caller counts each call
    before it is made.
    """

    model: str
    messages: list[dict[str, Json]]
    tools: list[ToolSpec] = []
    settings: dict[str, Json] = {}
    output_schema: Json = None
    purpose: Literal["turn", "derive", "refine", "answer"] = "turn"
    key: str = ""
    mark: str = ""
    timeout: float = 0.0
    left: float = 0.0
    repeatable: bool = True
    single: bool = False

    def document(self) -> dict[str, Json]:
        """Return the members that decide the reply: neither key nor time, so that two runs make the same document."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return {name: document[name] for name in ("model", "messages", "tools", "settings", "output_schema")}

    def digest(self) -> str:
        """Return the SHA-256 of :meth:`document` as canonical JSON. Raises ``InvalidValueError`` for values that
        format 1 cannot store."""
        return canonical.sha256(canonical.encode(self.document(), depth=canonical.FILE_DEPTH))


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete reply: text, or tool calls, or both. ``model`` is the name that the provider reported. ``calls``
    counts the attempts, as in :class:`CallCost`."""

    content: str = ""
    tool_calls: list[ToolCall] = []
    finish: Literal["stop", "tool_calls"] = "stop"
    usage: Usage | None = None
    model: str = ""
    calls: int = 1


class CallCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a call. ``calls`` counts the attempts, except those that the server refused with an error status and
    those that never reached it. ``usage`` is what the server reported of the last attempt, ``received`` the size of
    its answer [bytes]."""

    calls: int = 0
    usage: Usage | None = None
    received: int = 0


class Model(Protocol):
    """A model that replies to requests."""

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """Return the reply; ``on_text`` receives its text meanwhile. Raises :class:`ModelCallError`; text that was
        received before it is void. Raises ``StatelineError`` only if nothing was sent: the call may then be made later
        as if it had never been tried."""
        ...


Judge = Callable[[Reply], str]
"""Returns the reason why the caller cannot use a reply, "" if it can."""


@runtime_checkable
class RecordingModel(Model, Protocol):
    """A model that records exchanges."""

    def reply_judged(self, request: ModelRequest, judge: Judge) -> Reply:
        """Do the same as :meth:`Model.reply`, and record the verdict: a playback can skip unusable replies."""
        ...

    def recall(self, request: ModelRequest) -> Model | None:
        """Return a model that replies to this call as it ended before, without making it; None if its outcome is
        unknown. Changes nothing until the returned model is called. Raises as :meth:`Model.reply`."""
        ...


class ModelCallError(Exception):
    """A call without a reply. ``sent``: the provider may have been paid, and ``cost`` is what the call used (default:
    one call). ``retryable``: the answer to a ``single`` call was lost on its way, and the call may be repeated once.
    ``permanent``: the same call would be refused again. ``partial`` is the reply as far as it arrived: ``{"content",
    "tool_calls"}``, the arguments of calls as text. ``bound`` is ``timeout`` if the time that the run had left ended
    the call. Messages contain neither keys nor parts of the request."""

    retryable = False
    permanent = False
    bound: Literal["", "timeout"] = ""
    partial: dict[str, Json] | None = None

    def __init__(
        self, kind: FailureKind, message: str, hint: str = "", *, sent: bool = True, cost: CallCost | None = None
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.hint = hint
        self.sent = sent
        self.cost = CallCost(calls=int(sent)) if cost is None else cost

    @property
    def usage(self) -> Usage | None:
        """Tokens that the provider reported."""
        return self.cost.usage
