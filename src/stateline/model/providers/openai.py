"""Chat completions of OpenAI and of compatible servers, through the official SDK.

Only OpenAI's own endpoint is known to support the role ``developer`` and ``max_completion_tokens``. Other servers
silently drop unknown roles, so they get developer prompts as part of one ``system`` message. An ``output_schema`` is
sent as ``response_format`` json_schema. If an endpoint rejects that, or ``stream_options``, the call is repeated
without it, with the schema as an instruction, and this model does not send it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from stateline.bundle.canonical import Json
from stateline.model.protocol import ModelRequest, Usage
from stateline.model.providers.sdk import SdkModel, arguments_schema, instruction, text_of
from stateline.model.reply_validation import Finish, PartialCall, PartialReply, invalid_reply, parsed_pieces, usage_of

if TYPE_CHECKING:
    from stateline.model.providers.http import Attempts

DEFAULT_URL = "https://api.openai.com/v1"
"""Default endpoint."""


class OpenAIModel(SdkModel):
    """A model of OpenAI or of a compatible server; ``base_url`` "" is OpenAI's endpoint."""

    PROVIDER = "openai"
    PATH = "/chat/completions"
    FINISHES: ClassVar[dict[str, Finish]] = {"stop": "stop", "tool_calls": "tool_calls"}
    OPTIONS: ClassVar[dict[str, tuple[str, ...]]] = {
        "response_format": ("response_format", "json_schema", "structured output", "guided"),
        "stream_options": ("stream_options", "include_usage"),
    }
    FORMAT = "response_format"

    def __init__(self, name: str, base_url: str, key: str, mask: Callable[[str], str]) -> None:
        super().__init__(name, base_url or DEFAULT_URL, mask)
        self._is_default = not base_url
        self._key = key

    def sdk(self) -> tuple[ModuleType, type[Exception]]:
        """Return the SDK and the base class of its errors."""
        import openai

        return openai, openai.OpenAIError

    def client(self, sdk: Any, attempts: Attempts, http_client: Any) -> Any:
        """Return a client of the SDK; the caller closes it."""
        options = {"max_retries": attempts.retries, "http_client": http_client}
        return sdk.OpenAI(api_key=self._key, base_url=self._base_url, **options)

    def options(self, request: ModelRequest, streamed: bool) -> list[str]:
        """Return the options that the call needs, as opposed to those of the settings."""
        ours = {"response_format": request.output_schema is not None, "stream_options": streamed}
        return [name for name, sent in ours.items() if sent]

    def body(self, request: ModelRequest, sent: list[str]) -> dict[str, Json]:
        """Return the body with the options ``sent``, without what makes it a stream."""
        settings = dict(request.settings)
        if self._is_default and "max_tokens" in settings:
            # Reasoning models reject the old name; all models accept the new one.
            settings.setdefault("max_completion_tokens", settings.pop("max_tokens"))
        needs_instruction = request.output_schema is not None and "response_format" not in sent
        body: dict[str, Json] = {
            **settings,
            "model": self._name,
            "messages": self._messages(request, needs_instruction),
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": arguments_schema(tool.parameters),
                    },
                }
                for tool in request.tools
            ]
        if "response_format" in sent:
            schema = {"name": "output", "schema": request.output_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if "stream_options" in sent:
            body["stream_options"] = {"include_usage": True}
        return body

    def read(self, answer: dict[str, Any], partial: PartialReply) -> None:
        """Add a whole answer to ``partial``."""
        partial.usage = _usage(answer.get("usage"))
        for choice in _choices(answer):
            message = choice.get("message")
            if not isinstance(message, dict):
                raise invalid_reply("holds no message")
            _add_text(partial, message)
            for call in _dicts(message.get("tool_calls")):
                _add_call(partial, call)
            partial.finish = choice.get("finish_reason")
        partial.model = answer.get("model")

    def read_stream(self, pieces: Iterable[object], partial: PartialReply) -> None:
        """Add an answer to ``partial`` while it arrives."""
        index: dict[int | None, PartialCall] = {}
        for piece in parsed_pieces(pieces):
            if not isinstance(piece, dict):
                raise invalid_reply("holds a piece of the wrong form")
            partial.usage = _usage(piece.get("usage")) or partial.usage
            for choice in _choices(piece):
                delta = choice.get("delta")
                if isinstance(delta, dict):
                    _add_text(partial, delta)
                    for call in _dicts(delta.get("tool_calls")):
                        _add_call_piece(partial, index, call)
                partial.end(choice.get("finish_reason"), self.FINISHES)
            partial.model = piece.get("model") or partial.model

    def _messages(self, request: ModelRequest, needs_instruction: bool) -> list[Json]:
        prompts = [message for message in request.messages if message["role"] in ("system", "developer")]
        if needs_instruction:
            prompts.append({"role": "developer", "content": instruction(request.output_schema)})
        rest = [_message(message) for message in request.messages if message["role"] not in ("system", "developer")]
        if self._is_default:
            return [*({"role": prompt["role"], "content": prompt["content"]} for prompt in prompts), *rest]
        # One message: the templates of many models accept only one.
        text = "\n\n".join(prompt["content"] for prompt in prompts if prompt["content"])
        return [*([{"role": "system", "content": text}] if text else []), *rest]


def _message(message: dict[str, Json]) -> Json:
    if message["role"] == "tool":
        content = text_of(message["content"])
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content}
    if not message.get("tool_calls"):
        return {"role": message["role"], "content": message["content"]}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": text_of(call["arguments"])},
        }
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": message["content"] or None, "tool_calls": calls}


def _choices(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first choice, if there is one; the request asks for one."""
    for choice in _dicts(answer.get("choices")):
        if choice.get("index", 0) in (0, None):
            yield choice
            return


def _dicts(items: object) -> list[dict[str, Any]]:
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise invalid_reply("is of the wrong form")
    return items


def _add_text(partial: PartialReply, message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        partial.text.add(content)
    elif content is not None:
        for part in _dicts(content):
            if part.get("type") == "text" and isinstance(part.get("text"), str):
                partial.text.add(part["text"])
    if refusal := message.get("refusal"):
        partial.declined = True
        partial.text.add(refusal if isinstance(refusal, str) else "")


def _add_call(partial: PartialReply, call: dict[str, Any]) -> PartialCall:
    function = call.get("function")
    if not isinstance(function, dict):
        raise invalid_reply("calls a tool in an unknown form")
    called = partial.add_call(call.get("id"), function.get("name"))
    called.add(function.get("arguments"))
    return called


def _add_call_piece(partial: PartialReply, index: dict[int | None, PartialCall], piece: dict[str, Any]) -> None:
    """Add a piece to the call of its ``index``. Some servers send no index, or 0 for all calls: then a new id begins a
    new call."""
    place = piece.get("index")
    if place is not None and not isinstance(place, int):
        raise invalid_reply("calls a tool in an unknown form")
    called = index.get(place) if place is not None else (partial.calls[-1] if partial.calls else None)
    id = piece.get("id")
    if called is None or (id and called.id and id != called.id):
        index[place] = _add_call(partial, {"function": {}, **piece})
        return
    function = piece.get("function")
    if isinstance(function, dict):
        called.id = called.id or id
        called.name = called.name or function.get("name")
        called.add(function.get("arguments"))


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return usage_of([usage.get("prompt_tokens")], usage.get("completion_tokens"))
