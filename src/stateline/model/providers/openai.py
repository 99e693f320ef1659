"""Chat completions, by OpenAI or any server that speaks its protocol, through the official SDK.

Only OpenAI's own endpoint is known to know the role ``developer`` and ``max_completion_tokens``: elsewhere developer
prompts are sent as part of one ``system`` message, since servers drop roles they do not know without a word. An
``output_schema`` is sent as ``response_format`` json_schema. An endpoint that refuses that, or ``stream_options``, is
asked once more without, the schema then as an instruction; this model remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from stateline.bundle.canonical import Json
from stateline.model.protocol import Request, Usage
from stateline.model.providers import request_parts
from stateline.model.providers.sdk import SdkModel
from stateline.model.reply_validation import MOST_CALLS, Called, Draft, Finish, readable, refused, usage_of

if TYPE_CHECKING:
    from stateline.model.providers.http import Wire

OWN = "https://api.openai.com/v1"
"""The endpoint that this provider's SDK calls when nobody names another."""


class OpenAIModel(SdkModel):
    """As ``SdkModel``; ``base_url`` "" is OpenAI's own."""

    PROVIDER = "openai"
    PATH = "/chat/completions"
    FINISHES: ClassVar[dict[str, Finish]] = {"stop": "stop", "tool_calls": "tool_calls"}
    OPTIONS: ClassVar[dict[str, tuple[str, ...]]] = {
        "response_format": ("response_format", "json_schema", "structured output", "guided"),
        "stream_options": ("stream_options", "include_usage"),
    }
    FORMAT = "response_format"

    def __init__(self, name: str, base_url: str, key: str, mask: Callable[[str], str]) -> None:
        super().__init__(name, base_url or OWN, mask)
        self._own = not base_url
        self._key = key

    def sdk(self) -> tuple[ModuleType, type[Exception]]:
        """The SDK, and what all of its errors are."""
        import openai

        return openai, openai.OpenAIError

    def client(self, sdk: Any, wire: Wire) -> Any:
        """A client of the SDK, to be closed by whoever asked for it."""
        http = wire.client(sdk)
        return sdk.OpenAI(api_key=self._key, base_url=self._base_url, max_retries=wire.retries, http_client=http)

    def options(self, request: Request, streamed: bool) -> list[str]:
        """The options that are sent because of the call, and not because the settings hold them."""
        ours = {"response_format": request.output_schema is not None, "stream_options": streamed}
        return [name for name, sent in ours.items() if sent]

    def body(self, request: Request, sent: list[str]) -> dict[str, Json]:
        """What is posted, with these options, but for what makes it a stream."""
        settings = dict(request.settings)
        if self._own and "max_tokens" in settings:
            # Models that reason refuse the old name, and none refuses the new one.
            settings.setdefault("max_completion_tokens", settings.pop("max_tokens"))
        instructed = request.output_schema is not None and "response_format" not in sent
        body: dict[str, Json] = {**settings, "model": self._name, "messages": self._messages(request, instructed)}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": request_parts.arguments_schema(tool.parameters),
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

    def read(self, answer: dict[str, Any], draft: Draft) -> None:
        """Take in a whole answer."""
        draft.usage = _usage(answer.get("usage"))
        for choice in _choices(answer):
            message = choice.get("message")
            if not isinstance(message, dict):
                raise refused("holds no message")
            _add_text(draft, message)
            for call in _dicts(message.get("tool_calls")):
                _add_call(draft, call)
            draft.finish = choice.get("finish_reason")
        draft.model = answer.get("model")

    def hear(self, pieces: Iterable[object], draft: Draft) -> None:
        """Take in an answer while it comes."""
        index: dict[int | None, Called] = {}
        for piece in readable(pieces):
            if not isinstance(piece, dict):
                raise refused("holds a piece that is not of the form that it must have")
            draft.usage = _usage(piece.get("usage")) or draft.usage
            for choice in _choices(piece):
                delta = choice.get("delta")
                if isinstance(delta, dict):
                    _add_text(draft, delta)
                    for call in _dicts(delta.get("tool_calls")):
                        _add_call_piece(draft, index, call)
                draft.end(choice.get("finish_reason"), self.FINISHES)
            draft.model = piece.get("model") or draft.model

    def _messages(self, request: Request, instructed: bool) -> list[Json]:
        prompts = [message for message in request.messages if message["role"] in ("system", "developer")]
        if instructed:
            prompts.append({"role": "developer", "content": request_parts.instruction(request.output_schema)})
        rest = [_message(message) for message in request.messages if message["role"] not in ("system", "developer")]
        if self._own:
            return [*({"role": prompt["role"], "content": prompt["content"]} for prompt in prompts), *rest]
        # One message: templates of many models take no second one.
        text = "\n\n".join(prompt["content"] for prompt in prompts if prompt["content"])
        return [*([{"role": "system", "content": text}] if text else []), *rest]


def _message(message: dict[str, Json]) -> Json:
    if message["role"] == "tool":
        content = request_parts.text_of(message["content"])
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content}
    if not message.get("tool_calls"):
        return {"role": message["role"], "content": message["content"]}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": request_parts.text_of(call["arguments"])},
        }
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": message["content"] or None, "tool_calls": calls}


def _choices(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The first choice, if there is one; no more than one was asked for."""
    for choice in _dicts(answer.get("choices")):
        if choice.get("index", 0) in (0, None):
            yield choice
            return


def _dicts(items: object) -> list[dict[str, Any]]:
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise refused("is not of the form that it must have")
    return items


def _add_text(draft: Draft, message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        draft.text.add(content)
    elif content is not None:
        for part in _dicts(content):
            if part.get("type") == "text" and isinstance(part.get("text"), str):
                draft.text.add(part["text"])
    if message.get("refusal"):
        raise refused("is a refusal by the model", "change the prompt, or ask another model")


def _add_call(draft: Draft, call: dict[str, Any]) -> Called:
    function = call.get("function")
    if not isinstance(function, dict):
        raise refused("calls a tool in a form that is not known here")
    called = Called(call.get("id"), function.get("name"))
    called.add(function.get("arguments"))
    draft.calls.append(called)
    return called


def _add_call_piece(draft: Draft, index: dict[int | None, Called], piece: dict[str, Any]) -> None:
    """A piece of a call belongs to the call of its ``index``. Some servers send none, or 0 for all: then a new id
    begins a new call."""
    place = piece.get("index")
    if place is not None and not isinstance(place, int):
        raise refused("calls a tool in a form that is not known here")
    called = index.get(place) if place is not None else (draft.calls[-1] if draft.calls else None)
    id = piece.get("id")
    if called is None or (id and called.id and id != called.id):
        if len(draft.calls) >= MOST_CALLS:
            raise refused(f"calls more than {MOST_CALLS} tools at once")
        index[place] = _add_call(draft, {"function": {}, **piece})
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
