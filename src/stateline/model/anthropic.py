"""Messages, by Anthropic or any server that speaks its protocol, through the official SDK.

System and developer prompts become the one system prompt. ``max_tokens``, which the provider demands, is 4096 unless
set. An ``output_schema`` whose objects are all closed is sent as ``output_config``; any other, and one that the
provider refuses, as an instruction in the system prompt. The blocks of extended thinking are not kept, so that setting
and tools do not go together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from stateline.bundle.canonical import Json
from stateline.model import asking
from stateline.model.protocol import Reply, Request, Told, Usage
from stateline.model.whole import MOST_CALLS, Called, Draft, Finish, readable, refused, usage_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from stateline.model.wire import Wire

OWN = "https://api.anthropic.com"
"""The endpoint that this provider's SDK calls when nobody names another."""
MAX_TOKENS = 4096
"""The longest reply [tokens] unless the settings say otherwise."""
_PATH = "/v1/messages"
_FINISHES: dict[str, Finish] = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}
_FORMAT_WORDS = ("output_config", "output_format", "json_schema", "schema", "structured output")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_THOUGHTS = ("thinking", "redacted_thinking")
# A block of a stream: a call, or what kind it is of.
_Block = Called | str


class AnthropicModel:
    """The model of one name behind one endpoint, whatever name a request gives it. ``base_url`` "" is Anthropic's own;
    ``bearer`` says that ``key`` is a token and no API key; ``mask`` takes the secrets out of a text."""

    def __init__(self, name: str, base_url: str, key: str, mask: Callable[[str], str], *, bearer: bool = False) -> None:
        self._name = name
        self._base_url = base_url or OWN
        self._key = None if bearer else key
        self._token = key if bearer else None
        self._mask = mask
        self._instructs = False

    def reply(self, request: Request, told: Told | None = None) -> Reply:
        """As ``protocol.Model``. Loads the SDK."""
        import anthropic
        import httpx2

        from stateline.model.wire import UNREADABLE, Wire

        asking.refuse_settings(request, "anthropic")
        wire = Wire("anthropic", request, self._mask)
        while True:
            formatted = self._formatted(request)
            try:
                return self._once(request, told, wire)
            except (anthropic.AnthropicError, httpx2.HTTPError, httpx2.StreamError, *UNREADABLE) as error:
                unknown = formatted and _refused_format(error)
                failure = wire.failed(error, anthropic)
            # Out of the block, so that the failure does not carry the SDK's error, which holds the request's headers.
            if not unknown:
                raise failure
            self._instructs = True

    def _once(self, request: Request, told: Told | None, wire: Wire) -> Reply:
        import anthropic
        import httpx2

        body = self._body(request)
        options: Any = {"headers": self._headers(request), "timeout": wire.limits()}
        with anthropic.Anthropic(
            api_key=self._key,
            auth_token=self._token,
            base_url=self._base_url,
            max_retries=wire.retries,
            open_telemetry=False,
            http_client=anthropic.DefaultHttpxClient(**wire.client()),
        ) as client:
            if told is None:
                response = client.post(_PATH, cast_to=httpx2.Response, body=body, options=options)
                draft = _plain(response.content, wire, None)
            else:
                body["stream"] = True
                stream_cls = anthropic.Stream[object]
                stream = client.post(
                    _PATH, cast_to=object, body=body, options=options, stream=True, stream_cls=stream_cls
                )
                with stream:
                    content = asking.unstreamed(stream.response)
                    draft = _streamed(stream, told) if content is None else _plain(content, wire, told)
        reply = whole(draft, _FINISHES, request)
        if request.output_schema is not None and not self._formatted(request):
            reply = msgspec.structs.replace(reply, content=asking.unfenced(reply.content))
        return reply

    def _formatted(self, request: Request) -> bool:
        """Whether the schema is sent as such, and not as an instruction."""
        schema = request.output_schema
        return not self._instructs and isinstance(schema, dict) and bool(schema) and asking.closed(schema)

    def _headers(self, request: Request) -> dict[str, str]:
        if not request.key:
            return {}
        # Another body is another request: a server that keeps keys would refuse the same one.
        return {"Idempotency-Key": request.key + (":instructed" if self._instructs else "")}

    def _body(self, request: Request) -> dict[str, Json]:
        body: dict[str, Json] = {"max_tokens": MAX_TOKENS, **request.settings}
        body["model"] = self._name
        prompts = [m["content"] for m in request.messages if m["role"] in ("system", "developer") and m["content"]]
        if self._formatted(request):
            format = {"type": "json_schema", "schema": request.output_schema}
            body["output_config"] = {**_object(body.get("output_config")), "format": format}
        elif request.output_schema is not None:
            prompts.append(asking.instruction(request.output_schema))
        if prompts:
            body["system"] = "\n\n".join(prompts)
        body["messages"] = _messages(request)
        if request.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": asking.arguments_schema(tool.parameters),
                }
                for tool in request.tools
            ]
        return body


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
    if text := asking.text_of(content):
        block["content"] = text
    if isinstance(content, dict) and content.keys() == {"error"}:
        block["is_error"] = True
    return block


def _id(id: str, ids: dict[str, str]) -> str:
    """``id``, or another in its place all through the conversation if this provider would refuse it."""
    if _ID.fullmatch(id):
        return id
    return ids.setdefault(id, f"renamed_{len(ids) + 1}")


def _refused_format(error: Exception) -> bool:
    """Whether the provider refused the call for the schema of the output."""
    if getattr(error, "status_code", 0) not in (400, 422):
        return False
    try:
        body = str(getattr(error, "body", "")).lower()
    except RecursionError:
        return False
    return any(word in body for word in _FORMAT_WORDS)


def _plain(content: bytes, wire: Wire, told: Told | None) -> Draft:
    try:
        answer = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        raise refused("is no JSON: it was cut, or the base URL is not that of a model") from None
    if not isinstance(answer, dict):
        raise refused("is not of the form that it must have")
    if answer.get("type") == "error" or answer.get("error"):
        raise wire.told_error(answer)
    draft = Draft(told)
    blocks = answer.get("content")
    if not isinstance(blocks, list):
        raise refused("holds no message")
    for block in blocks:
        called = _begin(draft, block)
        if called is not None:
            called.arguments = block.get("input")
    draft.finish = answer.get("stop_reason")
    draft.usage = _usage(answer.get("usage"))
    draft.model = answer.get("model")
    return draft


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


def _streamed(events: Iterable[object], told: Told) -> Draft:
    draft = Draft(told)
    usage: dict[str, Json] = {}
    blocks: dict[int, _Block] = {}
    finish: Json = None
    for event in readable(events):
        if not isinstance(event, dict):
            raise refused("holds a piece that is not of the form that it must have")
        kind = event.get("type")
        if kind == "message_start":
            message = _object(event.get("message"))
            draft.model = message.get("model")
            usage.update(_object(message.get("usage")))
        elif kind == "content_block_start":
            _begin_at(draft, blocks, event)
        elif kind == "content_block_delta":
            place = event.get("index")
            block = blocks.get(place) if type(place) is int else None
            if block is None:
                raise refused("goes on with a part that was not begun")
            _add(draft, block, _object(event.get("delta")))
        elif kind == "message_delta":
            finish = _object(event.get("delta")).get("stop_reason") or finish
            # Counts are totals; those that are not told again come as null.
            usage.update({name: n for name, n in _object(event.get("usage")).items() if n is not None})
        elif kind == "message_stop":
            draft.finish = finish
    draft.usage = _usage(usage)
    return draft


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


def _add(draft: Draft, block: _Block, delta: dict[str, Json]) -> None:
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
