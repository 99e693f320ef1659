"""One exchange with a model as a file: indented JSON that people may read, compare and edit. Pure.

What it is compared by is the digest of its request's canonical form, so white space and the order of keys do not
matter.
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
    Usage,
)

VERSION = "1"
LIMIT = canonical.TEXT_LIMIT
"""Largest file of an exchange [bytes]: a larger one is neither read nor written."""
MEND = "correct it, or take it out of the directory: numbers need not follow each other"
"""What is advised for a file that is no exchange."""

Mask = Callable[[Json], Json]
"""Takes the secrets out of a value; what it has masked it leaves as it is."""
Purpose = Literal["turn", "derive", "refine"]

# JSON leaves these as they are. Files are shown on terminals, and the escaped form means the same.
_harmful = re.compile("[" + "".join(chr(code) for code in sorted(HARMFUL) if code > 0x1F) + "]")


_Count = Annotated[int, msgspec.Meta(ge=0, lt=TOKEN_COUNT_LIMIT)]


class _Used(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: _Count = 0
    output: _Count = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``ModelCallError`` as a file holds it, under ``error``. What it spent is there only where ``sent`` does not say it
    all: one call, or none; ``again`` only where it is true, ``bound`` only where one ended the call."""

    kind: FailureKind
    message: str
    hint: str = ""
    sent: bool = True
    calls: _Count | msgspec.UnsetType = msgspec.UNSET
    usage: _Used | msgspec.UnsetType = msgspec.UNSET
    came: _Count | msgspec.UnsetType = msgspec.UNSET
    again: bool | msgspec.UnsetType = msgspec.UNSET
    bound: Literal["timeout"] | msgspec.UnsetType = msgspec.UNSET

    def raised(self) -> ModelCallError:
        """The same failure, to be raised anew."""
        spent = CallCost(
            calls=int(self.sent) if self.calls is msgspec.UNSET else self.calls,
            usage=None if self.usage is msgspec.UNSET else Usage(self.usage.input, self.usage.output),
            received=0 if self.came is msgspec.UNSET else self.came,
        )
        failed = ModelCallError(self.kind, printable(self.message), printable(self.hint), sent=self.sent, cost=spent)
        failed.retryable = self.again is True
        failed.bound = "" if self.bound is msgspec.UNSET else self.bound
        return failed


def failure_in(error: ModelCallError) -> Failure:
    """``error`` as a file holds it."""
    spent = error.cost
    return Failure(
        kind=error.kind,
        message=error.message,
        hint=error.hint,
        sent=error.sent,
        calls=msgspec.UNSET if spent.calls == int(error.sent) else spent.calls,
        usage=msgspec.UNSET if spent.usage is None else _Used(spent.usage.input, spent.usage.output),
        came=spent.received or msgspec.UNSET,
        again=error.retryable or msgspec.UNSET,
        bound=error.bound or msgspec.UNSET,
    )


def reply_of(reply: Reply) -> dict[str, Json]:
    """``reply`` as a file holds it: ``calls`` only where there was more than one."""
    document: dict[str, Json] = msgspec.to_builtins(reply)
    if reply.calls == 1:
        del document["calls"]
    return document


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and what came of it: a ``reply``, or the ``error`` by which the call failed. ``request`` is
    ``ModelRequest.document()`` with secrets masked, ``digest`` the SHA-256 of its canonical JSON, ``key`` the idempotency
    key it was sent with. ``refused``: why whoever asked could not use the reply, "" if he could. ``edited``: the file
    says another digest, since somebody changed the request."""

    number: int
    purpose: Purpose
    digest: str
    request: dict[str, Json]
    reply: Reply | None = None
    error: Failure | None = None
    refused: str = ""
    key: str = ""
    edited: bool = False

    def outcome(self) -> Reply:
        """The reply. Raises ``ModelCallError`` as the call did that failed."""
        if self.reply is None:
            raise (self.error or Failure(kind="reply", message="nothing came")).raised()
        return self.reply


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str
    parameters: dict[str, Any]


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    messages: list[dict[str, Any]]
    tools: list[_Spec]
    settings: dict[str, Any]
    output_schema: Any


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    name: str
    arguments: dict[str, Any]


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    content: str = ""
    tool_calls: list[_Call] = []
    finish: Literal["stop", "tool_calls"] = "stop"
    usage: _Used | None = None
    model: str = ""
    calls: Annotated[int, msgspec.Meta(ge=1, lt=TOKEN_COUNT_LIMIT)] = 1


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The members of a file. Stricter than the types of the protocol: a word that is misspelt must not be a reply
    that says nothing."""

    version: str
    purpose: Purpose
    digest: str
    request: _Asked
    reply: _Said | msgspec.UnsetType = msgspec.UNSET
    error: Failure | msgspec.UnsetType = msgspec.UNSET
    refused: str = ""
    key: str = ""


def file_name(number: int) -> str:
    """The name of an exchange's file."""
    return f"{number:04d}.json"


def kept_request(request: ModelRequest, mask: Mask) -> dict[str, Json]:
    """What is kept of a request, and compared: its document with secrets masked."""
    # Member by member: a secret that reads like one of these words must not make the file unreadable.
    return {name: mask(value) for name, value in request.document().items()}


def digest_of(request: dict[str, Json]) -> str:
    """The digest of a request's document. Raises ``InvalidValueError`` for what format 1 cannot hold."""
    return canonical.sha256(canonical.encode(request, depth=canonical.FILE_DEPTH))


def as_it_is(value: Json) -> Json:
    """The mask that masks nothing."""
    return value


def parse_exchange(number: int, data: bytes, where: str) -> Exchange:
    """The exchange that a file's bytes are; ``where`` names it in messages. The digest is computed, whatever the file
    says. Raises ``InvalidValueError``, ``RequestError`` or ``NewerVersionError``."""
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
            raise msgspec.ValidationError("a call that failed has no reply to be `refused`")
    except msgspec.ValidationError as error:
        raise RequestError(f"{where} is no exchange: {error}", hint=MEND) from None
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
    """A file's bytes. Raises ``InvalidValueError`` for what JSON cannot hold, ``RequestError`` for what is too large."""
    data = canonical.encode(document, depth=canonical.FILE_DEPTH + 1)
    text = msgspec.json.format(data, indent=2).decode() + "\n"
    data = _harmful.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
    if len(data) > LIMIT:
        raise RequestError(
            f"the exchange is larger than {LIMIT} bytes, and could not be played back",
            hint="begin another conversation, or go on without --record",
        )
    return data
