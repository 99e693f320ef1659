"""From what a provider sent to a reply that may be taken for one. Pure.

A model's answer that is empty, cut, malformed or ended by length is none: :func:`whole` says which, and the run can try
again or fail, but it never goes on with half an answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.errors import InvalidValueError
from stateline.machine.problems import quoted
from stateline.model.protocol import MOST_TOKENS, ModelFailed, Reply, Request, Told, ToolCall, Usage

MOST_CALLS = 1000
"""More calls than this in one reply are taken for nonsense."""
ARGUMENTS_DEPTH = canonical.DEPTH - 8
"""How deep arguments may nest: in a run's state they lie in a call, in a message, in a conversation."""
_LONGEST_ID = 256
_LONGEST_NAME = 200
_LONGER = (
    "ask for less; or, since a run keeps the settings with which it began, raise them in its context (`stateline run "
    "--state-scope NAME --set max_tokens=N`; `run --force -p TEXT --set max_tokens=N` for one run) and begin it anew"
)
_TOO_LONG = ("length", "max_tokens", "model_context_window_exceeded")
_HELD_BACK = ("content_filter", "refusal")

Finish = Literal["stop", "tool_calls"]


class Text:
    """A text that comes in pieces. Pieces are told as they come; a character that was cut in two (surrogates escaped in
    two pieces of JSON) is told when it is whole."""

    def __init__(self, told: Told | None = None) -> None:
        self._told = told
        self._pieces: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-16-le")()

    def add(self, piece: str) -> None:
        """Append ``piece``. Raises :class:`ModelFailed` for half a character that nothing completes."""
        whole = self._decode(piece)
        if whole:
            self._pieces.append(whole)
            if self._told is not None:
                self._told(whole)

    def end(self) -> str:
        """The whole text. Raises as :meth:`add`."""
        self._decode("", final=True)
        return "".join(self._pieces)

    def _decode(self, piece: str, *, final: bool = False) -> str:
        try:
            return self._decoder.decode(piece.encode("utf-16-le", "surrogatepass"), final)
        except UnicodeDecodeError:
            raise refused("holds half a character, which no text may hold") from None


class Called:
    """One call of a tool while it comes in; ``arguments`` are JSON text in pieces, or an object already."""

    def __init__(self, id: object = None, name: object = None) -> None:
        self.id = id
        self.name = name
        self.arguments: Json = ""

    def add(self, piece: Json) -> None:
        """Append to the arguments' text, or take an object for them."""
        if isinstance(piece, str) and isinstance(self.arguments, str):
            self.arguments += piece
        elif piece is not None:
            self.arguments = piece


class Draft:
    """A reply while it comes in, ``heard`` or not by somebody meanwhile. ``finish`` is the provider's word for why it
    ended, None until it has."""

    def __init__(self, told: Told | None = None) -> None:
        self.heard = told is not None
        self.text = Text(told)
        self.calls: list[Called] = []
        self.finish: object = None
        self.usage: Usage | None = None
        self.model: object = ""

    def end(self, reason: object, good: Iterable[str]) -> None:
        """The provider says why the reply ended. A reason that is not ``good`` stays, whatever is said after it."""
        if not self.finish or (isinstance(self.finish, str) and self.finish in good):
            self.finish = reason or self.finish


def refused(what: str, hint: str = "") -> ModelFailed:
    """The error for a reply that is none; ``what`` goes on after "the reply"."""
    return ModelFailed("reply", f"the reply {what}; it was not used", hint or "call the model again")


def readable(pieces: Iterable[object]) -> Iterator[object]:
    """``pieces`` of a stream, as they are read. Raises :class:`ModelFailed` for one that is no JSON, or that holds an
    integer of more digits than can be read."""
    coming = iter(pieces)
    while True:
        try:
            piece = next(coming)
        except StopIteration:
            return
        except ValueError:
            raise refused("holds a piece that cannot be read") from None
        yield piece


def usage_of(went: Iterable[object], came: object) -> Usage | None:
    """What a call cost, its input the sum of ``went``; None if one of the counts is none that a run can keep."""
    went = list(went)
    if not all(_is_count(count) for count in [*went, came]):
        return None
    usage = Usage(input=sum(went), output=came)  # type: ignore[arg-type]
    return usage if _is_count(usage.input) else None


def _is_count(count: object) -> bool:
    return type(count) is int and 0 <= count < MOST_TOKENS


def whole(draft: Draft, finishes: Mapping[str, Finish], request: Request) -> Reply:
    """The reply that ``draft`` has become; ``finishes`` are the provider's words for a good end. Ids that are missing,
    or that a call of this conversation has already, are replaced. Raises :class:`ModelFailed` of kind ``reply``."""
    text = draft.text.end()
    good = finishes.get(draft.finish) if isinstance(draft.finish, str) else None
    if good is None:
        raise _bad_end(draft.finish)
    if len(draft.calls) > MOST_CALLS:
        raise refused(f"calls {len(draft.calls)} tools at once")
    if good == "tool_calls" and not draft.calls:
        raise refused("ended to call a tool and calls none")
    if not draft.calls and not text.strip():
        raise refused("is empty")
    ids = new_ids([called.id for called in draft.calls], used_ids(request.messages))
    calls = [_call(called, id) for called, id in zip(draft.calls, ids, strict=True)]
    model = draft.model[:_LONGEST_NAME] if isinstance(draft.model, str) and draft.model.isprintable() else ""
    # Some servers say `stop` when they call.
    finish: Finish = "tool_calls" if calls else "stop"
    return Reply(content=text, tool_calls=calls, finish=finish, usage=draft.usage, model=model)


def used_ids(messages: Iterable[Mapping[str, Any]]) -> set[str]:
    """The ids of all calls in a conversation."""
    return {call["id"] for message in messages for call in message.get("tool_calls") or ()}


def new_ids(given: list[Any], used: set[str]) -> list[str]:
    """One id for each of ``given``: itself, or ``call_1``, ``call_2`` ... if it is none, or is used by another."""
    used = set(used)
    ids = []
    number = 0
    for id in given:
        if not (isinstance(id, str) and id and id.isprintable() and len(id) <= _LONGEST_ID and id not in used):
            number += 1
            while (id := f"call_{number}") in used or id in given:
                number += 1
        used.add(id)
        ids.append(id)
    return ids


def _call(called: Called, id: str) -> ToolCall:
    name, arguments = called.name, called.arguments
    if not isinstance(name, str) or not name:
        raise refused("calls a tool without a name")
    if arguments == "":
        arguments = {}  # how some servers write a call without arguments
    try:
        if isinstance(arguments, str):
            arguments = canonical.parse(arguments.encode("utf-8", "surrogatepass"), what="the text")
        canonical.check(arguments, depth=ARGUMENTS_DEPTH)
    except InvalidValueError as error:
        raise refused(f"calls {quoted(name)} with arguments that cannot be read: {error.message}") from None
    if not isinstance(arguments, dict):
        raise refused(f"calls {quoted(name)} with arguments that are no JSON object")
    return ToolCall(id=id, name=name, arguments=arguments)


def _bad_end(finish: object) -> ModelFailed:
    if finish is None or finish == "":
        return refused("ended without saying why, so it may be cut")
    if finish in _TOO_LONG:
        return refused("was cut: it reached the limit of tokens", _LONGER)
    if finish in _HELD_BACK:
        return refused("was held back by the provider's filter", "change the prompt, or ask another model")
    if not isinstance(finish, str):
        return refused("ended for a reason that is not of the form that it must have")
    return refused(f"ended for a reason that is not known here: {quoted(finish)}")
