"""Messages of Anthropic and of compatible servers, through the official SDK.

System and developer prompts become one system prompt. ``max_tokens``, which the provider requires, is 4096 unless set.
An ``output_schema`` whose objects are all closed is sent as ``output_config``; any other, and one that the provider
rejects, as an instruction in the system prompt. Thinking blocks are not kept, so :func:`refuse_thinking_with_tools`
refuses a call after which the provider would require them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from stateline.bundle.canonical import Json
from stateline.machine.problems import quoted
from stateline.model.protocol import ModelCallError, ModelRequest, Reply, TextListener, Usage
from stateline.model.providers.sdk import SdkModel, arguments_schema, closed, instruction, text_of
from stateline.model.reply_validation import Finish, PartialCall, PartialReply, invalid_reply, parsed_pieces, usage_of

if TYPE_CHECKING:
    from stateline.model.providers.http import Attempts

DEFAULT_URL = "https://api.anthropic.com"
"""Default endpoint."""
MAX_TOKENS = 4096
"""The longest reply [tokens] unless the settings say otherwise."""
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_THINKING_BLOCKS = ("thinking", "redacted_thinking")
# Types of thinking after which a conversation may continue without the blocks.
_THINKING_WITH_TOOLS = ("adaptive", "disabled")
# A block of a stream: a tool call, or the type of another block.
_Block = PartialCall | str


class AnthropicModel(SdkModel):
    """A model of Anthropic or of a compatible server; ``base_url`` "" is Anthropic's endpoint. ``bearer``: ``key`` is a
    bearer token, not an API key."""

    PROVIDER = "anthropic"
    PATH = "/v1/messages"
    FINISHES: ClassVar[dict[str, Finish]] = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}
    OPTIONS: ClassVar[dict[str, tuple[str, ...]]] = {
        "output_config": ("output_config", "output_format", "json_schema", "schema", "structured output"),
    }
    FORMAT = "output_config"

    def __init__(self, name: str, base_url: str, key: str, mask: Callable[[str], str], *, bearer: bool = False) -> None:
        super().__init__(name, base_url or DEFAULT_URL, mask)
        self._key = None if bearer else key
        self._token = key if bearer else None

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """Call the model, as ``protocol.Model.reply``. Loads the SDK."""
        refuse_thinking_with_tools(request)
        return super().reply(request, on_text)

    def sdk(self) -> tuple[ModuleType, type[Exception]]:
        """Return the SDK and the base class of its errors."""
        import anthropic

        return anthropic, anthropic.AnthropicError

    def client(self, sdk: Any, attempts: Attempts, http_client: Any) -> Any:
        """Return a client of the SDK; the caller closes it."""
        return sdk.Anthropic(
            api_key=self._key,
            auth_token=self._token,
            base_url=self._base_url,
            max_retries=attempts.retries,
            open_telemetry=False,
            http_client=http_client,
        )

    def options(self, request: ModelRequest, streamed: bool) -> list[str]:
        """Return the options that the call needs, as opposed to those of the settings."""
        schema = request.output_schema
        return ["output_config"] if isinstance(schema, dict) and bool(schema) and closed(schema) else []

    def body(self, request: ModelRequest, sent: list[str]) -> dict[str, Json]:
        """Return the body with the options ``sent``, without what makes it a stream."""
        body: dict[str, Json] = {"max_tokens": MAX_TOKENS, **request.settings}
        body["model"] = self._name
        prompts = [m["content"] for m in request.messages if m["role"] in ("system", "developer") and m["content"]]
        if "output_config" in sent:
            format = {"type": "json_schema", "schema": request.output_schema}
            body["output_config"] = {**_object(body.get("output_config")), "format": format}
        elif request.output_schema is not None:
            prompts.append(instruction(request.output_schema))
        if prompts:
            body["system"] = "\n\n".join(prompts)
        body["messages"] = _messages(request)
        if request.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": arguments_schema(tool.parameters),
                }
                for tool in request.tools
            ]
        return body

    def read(self, answer: dict[str, Any], partial: PartialReply) -> None:
        """Add a whole answer to ``partial``."""
        partial.usage = _usage(answer.get("usage"))
        blocks = answer.get("content")
        if not isinstance(blocks, list):
            raise invalid_reply("holds no message")
        for block in blocks:
            called = _begin(partial, block)
            if called is not None:
                called.arguments = block.get("input")
        partial.finish = answer.get("stop_reason")
        partial.model = answer.get("model")

    def read_stream(self, pieces: Iterable[object], partial: PartialReply) -> None:
        """Add an answer to ``partial`` while it arrives."""
        usage: dict[str, Json] = {}
        blocks: dict[int, _Block] = {}
        end = PartialReply()  # the reason counts once the message is complete
        for event in parsed_pieces(pieces):
            if not isinstance(event, dict):
                raise invalid_reply("holds a piece of the wrong form")
            kind = event.get("type")
            if kind == "message_start":
                message = _object(event.get("message"))
                partial.model = message.get("model")
                usage.update(_object(message.get("usage")))
                partial.usage = _usage(usage)
            elif kind == "content_block_start":
                _begin_at(partial, blocks, event)
            elif kind == "content_block_delta":
                _continue(partial, blocks, event)
            elif kind == "message_delta":
                end.end(_object(event.get("delta")).get("stop_reason"), self.FINISHES)
                # Counts are totals; null means unchanged.
                usage.update({name: n for name, n in _object(event.get("usage")).items() if n is not None})
                partial.usage = _usage(usage)
            elif kind == "message_stop":
                partial.finish = end.finish


def refuse_thinking_with_tools(request: ModelRequest) -> None:
    """Raise :class:`ModelCallError` for tools together with a setting ``thinking`` that makes the provider require its
    thinking blocks with the results of tools: the second call would be rejected, after the first was paid for."""
    thinking = request.settings.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if request.tools and isinstance(kind, str) and kind not in _THINKING_WITH_TOOLS:
        message = f"the setting 'thinking' of type {quoted(kind)} cannot be used with tools; nothing was sent"
        raise ModelCallError("model", message, 'use {"type": "adaptive"}, or remove the setting', sent=False)


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _messages(request: ModelRequest) -> list[Json]:
    """Return the conversation; the results of all tools of one reply make one message."""
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
            messages.append({"role": "assistant", "content": _assistant_content(message, ids)})
    return messages


def _assistant_content(message: dict[str, Json], ids: dict[str, str]) -> Json:
    """Return the content of an earlier reply. The provider rejects text blocks without text."""
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
    if text := text_of(content):
        block["content"] = text
    if isinstance(content, dict) and content.keys() == {"error"}:
        block["is_error"] = True
    return block


def _id(id: str, ids: dict[str, str]) -> str:
    """Return ``id``, or one that replaces it in the whole conversation if this provider would reject it."""
    if _ID.fullmatch(id):
        return id
    return ids.setdefault(id, f"renamed_{len(ids) + 1}")


def _begin(partial: PartialReply, block: Any) -> PartialCall | None:
    """Add a block, without the arguments of a call; return the call."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        partial.text.add(block["text"])
    elif kind == "tool_use":
        return partial.add_call(block.get("id"), block.get("name"))
    elif kind not in _THINKING_BLOCKS:
        raise invalid_reply("holds a part of an unknown type")
    return None


def _begin_at(partial: PartialReply, blocks: dict[int, _Block], event: dict[str, Json]) -> None:
    """Add the block that begins at the index of ``event``. Earlier text blocks end then: their text was passed on."""
    place = event.get("index")
    block: Any = event.get("content_block")
    if type(place) is not int or place in blocks:
        raise invalid_reply("begins a part in an unknown form")
    called = _begin(partial, block)
    if called is None and block["type"] == "text":
        blocks.update({earlier: "ended" for earlier, kind in blocks.items() if kind == "text"})
    blocks[place] = called or block["type"]


def _continue(partial: PartialReply, blocks: dict[int, _Block], event: dict[str, Json]) -> None:
    """Add a piece of the block at the index of ``event``."""
    place = event.get("index")
    block = blocks.get(place) if type(place) is int else None
    if block is None:
        raise invalid_reply("continues a part that was not begun")
    delta = _object(event.get("delta"))
    if delta.get("type") == "text_delta" and isinstance(delta.get("text"), str):
        if block != "text":
            raise invalid_reply("holds text outside of a text block")
        partial.text.add(delta["text"])
    elif delta.get("type") == "input_json_delta":
        if not isinstance(block, PartialCall) or not isinstance(delta.get("partial_json"), str):
            raise invalid_reply("holds a piece of the wrong form")
        block.add(delta["partial_json"])


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    # Tokens read from the provider's cache, or written to it, are input too.
    cached = [usage.get(name) for name in ("cache_creation_input_tokens", "cache_read_input_tokens")]
    inputs = [usage.get("input_tokens"), *(0 if count is None else count for count in cached)]
    return usage_of(inputs, usage.get("output_tokens"))
