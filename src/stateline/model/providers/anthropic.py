"""Messages, by Anthropic or any server that speaks its protocol, through the official SDK.

System and developer prompts become the one system prompt. ``max_tokens``, which the provider demands, is 4096 unless
set. An ``output_schema`` whose objects are all closed is sent as ``output_config``; any other, and one that the
provider refuses, as an instruction in the system prompt. The blocks of thinking are not kept. Where the provider
demands them back unchanged, beside the calls that they led to, nothing is sent: see :func:`refuse_lost_thoughts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from stateline.bundle.canonical import Json
from stateline.machine.problems import quoted
from stateline.model.protocol import ModelFailed, Reply, Request, Told, Usage
from stateline.model.providers import request_parts
from stateline.model.providers.sdk import SdkModel
from stateline.model.reply_validation import MOST_CALLS, Called, Draft, Finish, readable, refused, usage_of

if TYPE_CHECKING:
    from stateline.model.providers.http import Wire

OWN = "https://api.anthropic.com"
"""The endpoint that this provider's SDK calls when nobody names another."""
MAX_TOKENS = 4096
"""The longest reply [tokens] unless the settings say otherwise."""
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_THOUGHTS = ("thinking", "redacted_thinking")
# Ways of thinking after which a conversation may go on without the blocks.
_FORGETFUL = ("adaptive", "disabled")
# A block of a stream: a call, or what kind it is of.
_Block = Called | str


class AnthropicModel(SdkModel):
    """As ``SdkModel``; ``base_url`` "" is Anthropic's own, ``bearer`` says that ``key`` is a token and no API key."""

    PROVIDER = "anthropic"
    PATH = "/v1/messages"
    FINISHES: ClassVar[dict[str, Finish]] = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}
    OPTIONS: ClassVar[dict[str, tuple[str, ...]]] = {
        "output_config": ("output_config", "output_format", "json_schema", "schema", "structured output"),
    }
    FORMAT = "output_config"

    def __init__(self, name: str, base_url: str, key: str, mask: Callable[[str], str], *, bearer: bool = False) -> None:
        super().__init__(name, base_url or OWN, mask)
        self._key = None if bearer else key
        self._token = key if bearer else None

    def reply(self, request: Request, told: Told | None = None) -> Reply:
        """As ``protocol.Model``. Loads the SDK."""
        refuse_lost_thoughts(request)
        return super().reply(request, told)

    def sdk(self) -> tuple[ModuleType, type[Exception]]:
        """The SDK, and what all of its errors are."""
        import anthropic

        return anthropic, anthropic.AnthropicError

    def client(self, sdk: Any, wire: Wire) -> Any:
        """A client of the SDK, to be closed by whoever asked for it."""
        return sdk.Anthropic(
            api_key=self._key,
            auth_token=self._token,
            base_url=self._base_url,
            max_retries=wire.retries,
            open_telemetry=False,
            http_client=wire.client(sdk),
        )

    def options(self, request: Request, streamed: bool) -> list[str]:
        """The options that are sent because of the call, and not because the settings hold them."""
        schema = request.output_schema
        return ["output_config"] if isinstance(schema, dict) and bool(schema) and request_parts.closed(schema) else []

    def body(self, request: Request, sent: list[str]) -> dict[str, Json]:
        """What is posted, with these options, but for what makes it a stream."""
        body: dict[str, Json] = {"max_tokens": MAX_TOKENS, **request.settings}
        body["model"] = self._name
        prompts = [m["content"] for m in request.messages if m["role"] in ("system", "developer") and m["content"]]
        if "output_config" in sent:
            format = {"type": "json_schema", "schema": request.output_schema}
            body["output_config"] = {**_object(body.get("output_config")), "format": format}
        elif request.output_schema is not None:
            prompts.append(request_parts.instruction(request.output_schema))
        if prompts:
            body["system"] = "\n\n".join(prompts)
        body["messages"] = _messages(request)
        if request.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": request_parts.arguments_schema(tool.parameters),
                }
                for tool in request.tools
            ]
        return body

    def read(self, answer: dict[str, Any], draft: Draft) -> None:
        """Take in a whole answer."""
        draft.usage = _usage(answer.get("usage"))
        blocks = answer.get("content")
        if not isinstance(blocks, list):
            raise refused("holds no message")
        for block in blocks:
            called = _begin(draft, block)
            if called is not None:
                called.arguments = block.get("input")
        draft.finish = answer.get("stop_reason")
        draft.model = answer.get("model")

    def hear(self, pieces: Iterable[object], draft: Draft) -> None:
        """Take in an answer while it comes."""
        usage: dict[str, Json] = {}
        blocks: dict[int, _Block] = {}
        told = Draft()  # why it ended counts once the message is over
        for event in readable(pieces):
            if not isinstance(event, dict):
                raise refused("holds a piece that is not of the form that it must have")
            kind = event.get("type")
            if kind == "message_start":
                message = _object(event.get("message"))
                draft.model = message.get("model")
                usage.update(_object(message.get("usage")))
                draft.usage = _usage(usage)
            elif kind == "content_block_start":
                _begin_at(draft, blocks, event)
            elif kind == "content_block_delta":
                _go_on(draft, blocks, event)
            elif kind == "message_delta":
                told.end(_object(event.get("delta")).get("stop_reason"), self.FINISHES)
                # Counts are totals; those that are not told again come as null.
                usage.update({name: n for name, n in _object(event.get("usage")).items() if n is not None})
                draft.usage = _usage(usage)
            elif kind == "message_stop":
                draft.finish = told.finish


def refuse_lost_thoughts(request: Request) -> None:
    """Raise :class:`ModelFailed` for tools together with a setting ``thinking`` that makes the provider demand its
    thoughts back with the tools' results: the call after the first would be refused, and the first was paid for."""
    thinking = request.settings.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if request.tools and isinstance(kind, str) and kind not in _FORGETFUL:
        message = f"the setting 'thinking' of type {quoted(kind)} does not go together with tools; nothing was sent"
        raise ModelFailed("model", message, 'use {"type": "adaptive"}, or take the setting out', sent=False)


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _messages(request: Request) -> list[Json]:
    """The conversation; all results of one reply's tools make one message."""
    messages: list[Json] = []
    ids: dict[str, str] = {}
    results: list[Json] | None = None
    for message in request.messages:
        role = message["role"]
        if role == "tool":
            if results is None:
                results = []
                messages.append({"role": "user", "content": results})
            results.append(_result(message, ids))
            continue
        results = None
        if role == "user":
            messages.append({"role": "user", "content": message["content"]})
        elif role == "assistant":
            messages.append({"role": "assistant", "content": _said(message, ids)})
    return messages


def _said(message: dict[str, Json], ids: dict[str, str]) -> Json:
    """What a model said before. Blocks without text are refused by the provider."""
    text = message["content"]
    if not message.get("tool_calls"):
        return text
    blocks: list[Json] = [{"type": "text", "text": text}] if text.strip() else []
    for call in message["tool_calls"]:
        block = {"type": "tool_use", "id": _id(call["id"], ids), "name": call["name"], "input": call["arguments"]}
        blocks.append(block)
    return blocks


def _result(message: dict[str, Json], ids: dict[str, str]) -> Json:
    content = message["content"]
    block: dict[str, Json] = {"type": "tool_result", "tool_use_id": _id(message["tool_call_id"], ids)}
    if text := request_parts.text_of(content):
        block["content"] = text
    if isinstance(content, dict) and content.keys() == {"error"}:
        block["is_error"] = True
    return block


def _id(id: str, ids: dict[str, str]) -> str:
    """``id``, or another in its place all through the conversation if this provider would refuse it."""
    if _ID.fullmatch(id):
        return id
    return ids.setdefault(id, f"renamed_{len(ids) + 1}")


def _begin(draft: Draft, block: Any) -> Called | None:
    """Take in a block, but for the arguments of a call, which is given back."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        draft.text.add(block["text"])
    elif kind == "tool_use":
        if len(draft.calls) >= MOST_CALLS:
            raise refused(f"calls more than {MOST_CALLS} tools at once")
        called = Called(block.get("id"), block.get("name"))
        draft.calls.append(called)
        return called
    elif kind not in _THOUGHTS:
        raise refused("holds a part of a kind that is not known here")
    return None


def _begin_at(draft: Draft, blocks: dict[int, _Block], event: dict[str, Json]) -> None:
    """Take in the block that begins at the index of ``event``. The text before it is over then: it was told already."""
    place = event.get("index")
    block: Any = event.get("content_block")
    if type(place) is not int or place in blocks:
        raise refused("begins a part in a form that is not known here")
    called = _begin(draft, block)
    if called is None and block["type"] == "text":
        blocks.update({earlier: "over" for earlier, kind in blocks.items() if kind == "text"})
    blocks[place] = called or block["type"]


def _go_on(draft: Draft, blocks: dict[int, _Block], event: dict[str, Json]) -> None:
    """Take in a piece of the block at the index of ``event``."""
    place = event.get("index")
    block = blocks.get(place) if type(place) is int else None
    if block is None:
        raise refused("goes on with a part that was not begun")
    delta = _object(event.get("delta"))
    if delta.get("type") == "text_delta" and isinstance(delta.get("text"), str):
        if block != "text":
            raise refused("holds a piece of text where none may be")
        draft.text.add(delta["text"])
    elif delta.get("type") == "input_json_delta":
        if not isinstance(block, Called) or not isinstance(delta.get("partial_json"), str):
            raise refused("holds a piece that is not of the form that it must have")
        block.add(delta["partial_json"])


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    # What was read from the provider's cache, or put there, went in as well.
    cached = [usage.get(name) for name in ("cache_creation_input_tokens", "cache_read_input_tokens")]
    went = [usage.get("input_tokens"), *(0 if count is None else count for count in cached)]
    return usage_of(went, usage.get("output_tokens"))
