"""The file format of one exchange with a model: indented JSON that people may read, compare and edit. Pure.

Requests are compared by the digest of their canonical form: white space and the order of keys do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.bundle.terminal import HARMFUL
from stateline.errors import NewerVersionError, RequestError
from stateline.machine.problems import printable
from stateline.model.protocol import (
    TOKEN_COUNT_LIMIT,
    CallCost,
    FailureKind,
    ModelCallError,
    ModelRequest,
    Reply,
    TextListener,
    ToolSpec,
    Usage,
)

VERSION = "1"
LIMIT = canonical.TEXT_LIMIT
"""Largest file of an exchange [bytes]: a larger one is neither read nor written."""
INVALID_FILE_HINT = "correct it, or remove it from the directory: numbers need not be consecutive"
"""Hint for a file that is not an exchange."""

Mask = Callable[[Json], Json]
"""Removes secrets from a value; idempotent."""
Purpose = Literal["turn", "derive", "refine", "answer"]
"""``answer``: a person's answer, the JSON text in ``content``, to the question that is the request's message."""
MANUAL = "manual"
"""The model of exchanges without a model: a reply that the caller gave, or a person's answer."""

# JSON does not escape these. They are escaped because files are shown on terminals.
_harmful = re.compile("[" + "".join(chr(code) for code in sorted(HARMFUL) if code > 0x1F) + "]")


_Count = Annotated[int, msgspec.Meta(ge=0, lt=TOKEN_COUNT_LIMIT)]


class _Usage(Usage, frozen=True, forbid_unknown_fields=True):
    input: _Count = 0
    output: _Count = 0


class _Partial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: str
    tool_calls: list[dict[str, str]]


class FailureRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``ModelCallError`` in a file, under ``error``. Optional members: ``calls`` if it differs from ``sent``,
    ``again`` (retryable) and ``permanent`` if true, ``came`` [bytes], ``usage`` and ``partial`` if known, ``bound`` if
    it ended the call."""

    kind: FailureKind
    message: str
    hint: str = ""
    sent: bool = True
    calls: _Count | msgspec.UnsetType = msgspec.UNSET
    usage: _Usage | msgspec.UnsetType = msgspec.UNSET
    came: _Count | msgspec.UnsetType = msgspec.UNSET
    again: bool | msgspec.UnsetType = msgspec.UNSET
    permanent: bool | msgspec.UnsetType = msgspec.UNSET
    bound: Literal["timeout"] | msgspec.UnsetType = msgspec.UNSET
    partial: _Partial | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, error: ModelCallError) -> FailureRecord:
        """Return the record of ``error``."""
        cost = error.cost
        return cls(
            kind=error.kind,
            message=error.message,
            hint=error.hint,
            sent=error.sent,
            calls=msgspec.UNSET if cost.calls == int(error.sent) else cost.calls,
            usage=msgspec.UNSET if cost.usage is None else _Usage(cost.usage.input, cost.usage.output),
            came=cost.received or msgspec.UNSET,
            again=error.retryable or msgspec.UNSET,
            permanent=error.permanent or msgspec.UNSET,
            bound=error.bound or msgspec.UNSET,
            partial=msgspec.UNSET if error.partial is None else msgspec.convert(error.partial, _Partial),
        )

    def error(self) -> ModelCallError:
        """Return the recorded error."""
        cost = CallCost(
            calls=int(self.sent) if self.calls is msgspec.UNSET else self.calls,
            usage=None if self.usage is msgspec.UNSET else Usage(self.usage.input, self.usage.output),
            received=0 if self.came is msgspec.UNSET else self.came,
        )
        error = ModelCallError(self.kind, printable(self.message), printable(self.hint), sent=self.sent, cost=cost)
        error.retryable = self.again is True
        error.permanent = self.permanent is True
        error.bound = "" if self.bound is msgspec.UNSET else self.bound
        error.partial = None if self.partial is msgspec.UNSET else msgspec.to_builtins(self.partial)
        return error


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its ``reply``, or with the ``error`` of the call. ``request`` is ``ModelRequest.document()`` with
    secrets masked, ``digest`` the SHA-256 of its canonical JSON, ``key`` the idempotency key. ``refused`` is the reason
    why the caller could not use the reply, "" if it could. ``edited``: the request was changed after the recording, so
    that the file's digest differs."""

    number: int
    purpose: Purpose
    digest: str
    request: dict[str, Json]
    reply: Reply | None = None
    error: FailureRecord | None = None
    refused: str = ""
    key: str = ""
    edited: bool = False

    def outcome(self) -> Reply:
        """Return the reply. Raises ``ModelCallError`` if the call failed."""
        if self.reply is None:
            raise (self.error or FailureRecord(kind="reply", message="there was no reply")).error()
        return self.reply

    def pass_text(self, on_text: TextListener | None) -> None:
        """Pass the text of the reply to the listener."""
        if on_text is not None and self.reply is not None and self.reply.content:
            on_text(self.reply.content)


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    messages: list[dict[str, Any]]
    tools: list[ToolSpec]
    settings: dict[str, Any]
    output_schema: Any


class _Reply(Reply, frozen=True, kw_only=True, forbid_unknown_fields=True):
    usage: _Usage | None = None
    calls: Annotated[int, msgspec.Meta(ge=1, lt=TOKEN_COUNT_LIMIT)] = 1


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The members of a file. Stricter than the types of the protocol: a misspelt member must not become an empty
    reply."""

    version: str
    purpose: Purpose
    digest: str
    request: _Request
    reply: _Reply | msgspec.UnsetType = msgspec.UNSET
    error: FailureRecord | msgspec.UnsetType = msgspec.UNSET
    refused: str = ""
    key: str = ""


def file_name(number: int) -> str:
    """Return the name of the file with that number."""
    return f"{number:04d}.json"


def reply_document(reply: Reply) -> dict[str, Json]:
    """Return ``reply`` as a file holds it: ``calls`` only if there was more than one."""
    document: dict[str, Json] = msgspec.to_builtins(reply)
    if reply.calls == 1:
        del document["calls"]
    return document


def request_document(request: ModelRequest, mask: Mask) -> dict[str, Json]:
    """Return the document of a request with secrets masked, as it is stored and compared."""
    # Member by member: a secret that equals a member's name must not make the file unreadable.
    return {name: mask(value) for name, value in request.document().items()}


def digest_of(request: dict[str, Json]) -> str:
    """Return the digest of a request's document. Raises ``InvalidValueError`` for values that format 1 cannot store."""
    return canonical.sha256(canonical.encode(request, depth=canonical.FILE_DEPTH))


def no_mask(value: Json) -> Json:
    """Return ``value``: a mask that removes nothing."""
    return value


def parse_exchange(number: int, data: bytes, where: str) -> Exchange:
    """Parse a file; ``where`` names it in messages. The digest is computed, not taken from the file. Raises
    ``InvalidValueError``, ``RequestError`` or ``NewerVersionError``."""
    value = canonical.parse(data, limit=LIMIT, what=where)
    version = value.get("version") if isinstance(value, dict) else None
    if isinstance(version, str) and version != VERSION and re.fullmatch("[0-9]{1,9}", version):
        raise NewerVersionError(
            f"{where} is of version {version}; this Stateline reads {VERSION}", hint="upgrade stateline"
        )
    try:
        file = msgspec.convert(value, _File)
        if version != VERSION:
            raise msgspec.ValidationError(f"the version is {version!r:.20}, not {VERSION!r} - at `$.version`")
        if (file.reply is msgspec.UNSET) is (file.error is msgspec.UNSET):
            raise msgspec.ValidationError("it must have exactly one of `reply` and `error`")
        if file.refused and file.reply is msgspec.UNSET:
            raise msgspec.ValidationError("`refused` needs a `reply`")
    except msgspec.ValidationError as error:
        raise RequestError(f"{where} is not an exchange: {error}", hint=INVALID_FILE_HINT) from None
    digest = digest_of(value["request"])
    return Exchange(
        number=number,
        purpose=file.purpose,
        digest=digest,
        request=value["request"],
        reply=None if file.reply is msgspec.UNSET else msgspec.convert(value["reply"], Reply),
        error=None if file.error is msgspec.UNSET else file.error,
        refused=file.refused,
        key=file.key,
        edited=file.digest != digest,
    )


def render(document: dict[str, Json]) -> bytes:
    """Return the bytes of a file. Raises ``InvalidValueError`` for values that JSON cannot hold, ``RequestError`` over
    ``LIMIT``."""
    data = canonical.encode(document, depth=canonical.FILE_DEPTH + 1)
    text = msgspec.json.format(data, indent=2).decode() + "\n"
    data = _harmful.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
    if len(data) > LIMIT:
        raise RequestError(
            f"the exchange is larger than {LIMIT} bytes, and could not be played back",
            hint="begin another conversation, or continue without --record",
        )
    return data
