"""Assemble a provider's answer and accept it as a reply only if it is complete. Pure.

An answer that is empty, truncated, malformed or ended by its length raises ``ModelCallError``: the run can retry or
fail, but it never continues with half a reply.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.errors import InvalidValueError
from stateline.machine.problems import quoted
from stateline.model.protocol import (
    TOKEN_COUNT_LIMIT,
    ModelCallError,
    ModelRequest,
    Reply,
    TextListener,
    ToolCall,
    Usage,
)

MAX_CALLS = 1000
"""Most tool calls in one reply."""
ARGUMENTS_DEPTH = canonical.DEPTH - 8
"""Deepest nesting of arguments: a run's state stores them in a call, in a message, in a conversation."""
_ID_LIMIT = 256
_NAME_LIMIT = 200
_RAISE_LIMIT = (
    "ask for less; or, since a run keeps the settings with which it began, raise them in its context (`stateline run "
    "--state-scope NAME --set max_tokens=N`; `run --force -p TEXT --set max_tokens=N` for one run) and restart it"
)
_LENGTH_REASONS = ("length", "max_tokens", "model_context_window_exceeded")
_FILTER_REASONS = ("content_filter", "refusal")

Finish = Literal["stop", "tool_calls"]


class TextBuffer:
    """A text that arrives in pieces. The listener receives each piece; a character that was split in two (surrogates,
    escaped in two pieces of JSON) is passed on when it is complete."""

    def __init__(self, on_text: TextListener | None = None) -> None:
        self._on_text = on_text
        self._pieces: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-16-le")()

    def add(self, piece: str) -> None:
        """Append ``piece``. Raises :class:`ModelCallError` for half a character that nothing completes."""
        text = self._decode(piece)
        if text:
            self._pieces.append(text)
            if self._on_text is not None:
                self._on_text(text)

    def so_far(self) -> str:
        """Return the text that has arrived, without half a character at its end."""
        return "".join(self._pieces)

    def end(self) -> str:
        """Return the whole text. Raises as :meth:`add`."""
        self._decode("", final=True)
        return "".join(self._pieces)

    def _decode(self, piece: str, *, final: bool = False) -> str:
        try:
            return self._decoder.decode(piece.encode("utf-16-le", "surrogatepass"), final)
        except UnicodeDecodeError:
            raise invalid_reply("holds half a character") from None


class PartialCall:
    """One tool call while it arrives; ``arguments`` are JSON text in pieces, or an object."""

    def __init__(self, id: object = None, name: object = None) -> None:
        self.id = id
        self.name = name
        self.arguments: Json = ""

    def add(self, piece: Json) -> None:
        """Append to the text of the arguments, or take an object as the arguments."""
        if isinstance(piece, str) and isinstance(self.arguments, str):
            self.arguments += piece
        elif piece is not None:
            self.arguments = piece


class PartialReply:
    """A reply while it arrives. ``streamed``: it has a listener. ``finish`` is the provider's reason for the end, None
    before the end."""

    def __init__(self, on_text: TextListener | None = None) -> None:
        self.streamed = on_text is not None
        self.text = TextBuffer(on_text)
        self.calls: list[PartialCall] = []
        self.finish: object = None
        self.usage: Usage | None = None
        self.model: object = ""
        self.declined = False
        """The text is the model's refusal to answer."""

    def add_call(self, id: object, name: object) -> PartialCall:
        """Begin a tool call. Raises :class:`ModelCallError` over ``MAX_CALLS``."""
        if len(self.calls) >= MAX_CALLS:
            raise invalid_reply(f"calls more than {MAX_CALLS} tools at once")
        call = PartialCall(id, name)
        self.calls.append(call)
        return call

    def document(self) -> dict[str, Json] | None:
        """Return what has arrived, for a reply that is not used; None if nothing has."""
        content = self.text.so_far()
        calls = [{name: _as_text(getattr(call, name)) for name in ("id", "name", "arguments")} for call in self.calls]
        return {"content": content, "tool_calls": calls} if content or calls else None

    def end(self, reason: object, good: Iterable[str]) -> None:
        """Note the reason for the end. A reason that is not ``good`` is never replaced by a later one."""
        if not self.finish or (isinstance(self.finish, str) and self.finish in good):
            self.finish = reason or self.finish


def _as_text(value: object) -> str:
    import json

    with suppress(ValueError, RecursionError):
        text = value if isinstance(value, str) else json.dumps(value)
        return text.encode("utf-8", "backslashreplace").decode()
    return ""


def invalid_reply(problem: str, hint: str = "") -> ModelCallError:
    """Return the error for an unusable answer; ``problem`` continues "the reply"."""
    return ModelCallError("reply", f"the reply {problem}; it was not used", hint or "call the model again")


def parsed_pieces(pieces: Iterable[object]) -> Iterator[object]:
    """Yield the pieces of a stream. Raises :class:`ModelCallError` for one that is not JSON, or that holds an integer
    with too many digits. Errors of the listener are not caught here."""
    try:
        yield from pieces
    except ValueError:
        raise invalid_reply("holds a piece that cannot be read") from None


def usage_of(inputs: Iterable[object], output: object) -> Usage | None:
    """Return the usage of a call, its input the sum of ``inputs``; None if a count is missing or out of range."""
    inputs = list(inputs)
    if not all(_is_count(count) for count in [*inputs, output]):
        return None
    usage = Usage(input=sum(inputs), output=output)  # type: ignore[arg-type]
    return usage if _is_count(usage.input) else None


def _is_count(count: object) -> bool:
    return type(count) is int and 0 <= count < TOKEN_COUNT_LIMIT


def complete_reply(partial: PartialReply, finishes: Mapping[str, Finish], request: ModelRequest) -> Reply:
    """Return the reply; ``finishes`` are the provider's words for a good end. Ids that are missing, or that another
    call of the conversation has, are replaced. Raises :class:`ModelCallError` of kind ``reply``."""
    if partial.declined:
        raise invalid_reply("is a refusal by the model", "change the prompt, or use another model")
    text = partial.text.end()
    finish = finishes.get(partial.finish) if isinstance(partial.finish, str) else None
    if finish is None:
        raise _incomplete(partial.finish)
    if finish == "tool_calls" and not partial.calls:
        raise invalid_reply("ended to call a tool and calls none")
    if not partial.calls and not text.strip():
        raise invalid_reply("is empty")
    used = {call["id"] for message in request.messages for call in message.get("tool_calls") or ()}
    ids = new_ids([call.id for call in partial.calls], used)
    calls = [_complete_call(call, id) for call, id in zip(partial.calls, ids, strict=True)]
    model = partial.model[:_NAME_LIMIT] if isinstance(partial.model, str) and partial.model.isprintable() else ""
    # Some servers report `stop` with tool calls.
    return Reply(
        content=text, tool_calls=calls, finish="tool_calls" if calls else "stop", usage=partial.usage, model=model
    )


def new_ids(given: list[Any], used: set[str]) -> list[str]:
    """Return one id for each of ``given``: itself, or ``call_1``, ``call_2`` ... if it is invalid or used."""
    used = set(used)
    ids = []
    number = 0
    for id in given:
        if not (isinstance(id, str) and id and id.isprintable() and len(id) <= _ID_LIMIT and id not in used):
            number += 1
            while (id := f"call_{number}") in used or id in given:
                number += 1
        used.add(id)
        ids.append(id)
    return ids


def _complete_call(call: PartialCall, id: str) -> ToolCall:
    name, arguments = call.name, call.arguments
    if not isinstance(name, str) or not name:
        raise invalid_reply("calls a tool without a name")
    if arguments == "":
        arguments = {}  # some servers write a call without arguments like this
    try:
        if isinstance(arguments, str):
            arguments = canonical.parse(arguments.encode("utf-8", "surrogatepass"), what="the text")
        canonical.check(arguments, depth=ARGUMENTS_DEPTH)
    except InvalidValueError as error:
        raise invalid_reply(f"calls {quoted(name)} with arguments that cannot be read: {error.message}") from None
    if not isinstance(arguments, dict):
        raise invalid_reply(f"calls {quoted(name)} with arguments that are not a JSON object")
    return ToolCall(id=id, name=name, arguments=arguments)


def _incomplete(finish: object) -> ModelCallError:
    if finish is None or finish == "":
        return invalid_reply("ended without a reason, so it may be truncated")
    if finish in _LENGTH_REASONS:
        return invalid_reply("was truncated: it reached the limit of tokens", _RAISE_LIMIT)
    if finish in _FILTER_REASONS:
        return invalid_reply("was withheld by the provider's filter", "change the prompt, or use another model")
    if not isinstance(finish, str):
        return invalid_reply("ended with a reason that is not text")
    return invalid_reply(f"ended with an unknown reason: {quoted(finish)}")
