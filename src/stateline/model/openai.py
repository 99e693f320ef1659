"""Chat completions, by OpenAI or any server that speaks its protocol, through the official SDK.

Only OpenAI's own endpoint is known to know the role ``developer`` and ``max_completion_tokens``: elsewhere developer
prompts are sent as part of one ``system`` message, since servers drop roles they do not know without a word. An
``output_schema`` is sent as ``response_format`` json_schema. An endpoint that refuses that, or ``stream_options``, is
asked once more without, the schema then as an instruction; this model remembers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from stateline.bundle.canonical import Json
from stateline.model import asking
from stateline.model.protocol import Reply, Request, Told, Usage
from stateline.model.whole import MOST_CALLS, Called, Draft, Finish, readable, refused, usage_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from stateline.model.wire import Wire

OWN = "https://api.openai.com/v1"
"""The endpoint that this provider's SDK calls when nobody names another."""
_PATH = "/chat/completions"
_FINISHES: dict[str, Finish] = {"stop": "stop", "tool_calls": "tool_calls"}
# What an endpoint may not know, and the words by which its refusal is told.
_OPTIONS = {
    "response_format": ("response_format", "json_schema", "structured output", "guided"),
    "stream_options": ("stream_options", "include_usage"),
}


class OpenAIModel:
    """The model of one name behind one endpoint, whatever name a request gives it. ``base_url`` "" is OpenAI's own;
    ``mask`` takes the secrets out of a text."""

    def __init__(self, name: str, base_url: str, key: str, mask: Callable[[str], str]) -> None:
        self._name = name
        self._own = not base_url
        self._base_url = base_url or OWN
        self._key = key
        self._mask = mask
        self._unknown: frozenset[str] = frozenset()

    def reply(self, request: Request, told: Told | None = None) -> Reply:
        """As ``protocol.Model``. Loads the SDK."""
        import httpx2
        import openai

        from stateline.model.wire import UNREADABLE, Wire

        asking.refuse_settings(request, "openai")
        wire = Wire("openai", request, self._mask)
        while True:
            options = self._our_options(request, told)
            try:
                return self._once(request, told, wire)
            except (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, *UNREADABLE) as error:
                unknown = _refused_option(error, options)
                failure = wire.failed(error, openai)
            # Out of the block, so that the failure does not carry the SDK's error, which holds the request's headers.
            if not unknown:
                raise failure
            self._unknown |= {unknown}

    def _once(self, request: Request, told: Told | None, wire: Wire) -> Reply:
        import httpx2
        import openai

        body = self._body(request, told)
        options: Any = {"headers": self._headers(request), "timeout": wire.limits()}
        with openai.OpenAI(
            api_key=self._key,
            base_url=self._base_url,
            max_retries=wire.retries,
            http_client=openai.DefaultHttpxClient(**wire.client()),
        ) as client:
            if told is None:
                response = client.post(_PATH, cast_to=httpx2.Response, body=body, options=options)
                draft = _plain(response.content, wire, None)
            else:
                stream_cls = openai.Stream[object]
                stream = client.post(
                    _PATH, cast_to=object, body=body, options=options, stream=True, stream_cls=stream_cls
                )
                with stream:
                    content = asking.unstreamed(stream.response)
                    draft = _streamed(stream, told) if content is None else _plain(content, wire, told)
        reply = whole(draft, _FINISHES, request)
        if request.output_schema is not None and "response_format" in self._unknown:
            reply = msgspec.structs.replace(reply, content=asking.unfenced(reply.content))
        return reply

    def _headers(self, request: Request) -> dict[str, str]:
        if not request.key:
            return {}
        # Another body is another request: a server that keeps keys would refuse the same one.
        return {"Idempotency-Key": ":".join([request.key, *sorted(self._unknown)])}

    def _our_options(self, request: Request, told: Told | None) -> list[str]:
        """The options that are sent because of the call, and not because the settings hold them."""
        ours = {"response_format": request.output_schema is not None, "stream_options": told is not None}
        return [name for name in _OPTIONS if ours[name] and name not in self._unknown]

    def _body(self, request: Request, told: Told | None) -> dict[str, Json]:
        settings = dict(request.settings)
        if self._own and "max_tokens" in settings:
            # Models that reason refuse the old name, and none refuses the new one.
            settings.setdefault("max_completion_tokens", settings.pop("max_tokens"))
        body: dict[str, Json] = {**settings, "model": self._name, "messages": self._messages(request)}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": asking.arguments_schema(tool.parameters),
                    },
                }
                for tool in request.tools
            ]
        if request.output_schema is not None and "response_format" not in self._unknown:
            schema = {"name": "output", "schema": request.output_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if told is not None:
            body["stream"] = True
            if "stream_options" not in self._unknown:
                body["stream_options"] = {"include_usage": True}
        return body

    def _messages(self, request: Request) -> list[Json]:
        prompts = [message for message in request.messages if message["role"] in ("system", "developer")]
        if request.output_schema is not None and "response_format" in self._unknown:
            prompts.append({"role": "developer", "content": asking.instruction(request.output_schema)})
        rest = [_message(message) for message in request.messages if message["role"] not in ("system", "developer")]
        if self._own:
            return [*({"role": prompt["role"], "content": prompt["content"]} for prompt in prompts), *rest]
        # One message: templates of many models take no second one.
        text = "\n\n".join(prompt["content"] for prompt in prompts if prompt["content"])
        return [*([{"role": "system", "content": text}] if text else []), *rest]


def _message(message: dict[str, Json]) -> Json:
    if message["role"] == "tool":
        content = asking.text_of(message["content"])
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content}
    if not message.get("tool_calls"):
        return {"role": message["role"], "content": message["content"]}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": asking.text_of(call["arguments"])},
        }
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": message["content"] or None, "tool_calls": calls}


def _refused_option(error: Exception, sent: list[str]) -> str:
    """The option of those that were sent that an endpoint says it does not know, or ""."""
    if getattr(error, "status_code", 0) not in (400, 422):
        return ""
    try:
        body = str(getattr(error, "body", "")).lower() + str(error).lower()
    except RecursionError:
        return ""
    for name in sent:
        if any(word in body for word in _OPTIONS[name]):
            return name
    return ""


def _plain(content: bytes, wire: Wire, told: Told | None) -> Draft:
    try:
        answer = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        raise refused("is no JSON: it was cut, or the base URL is not that of a model") from None
    if not isinstance(answer, dict):
        raise refused("is not of the form that it must have")
    if answer.get("error"):
        raise wire.told_error(answer)
    draft = Draft(told)
    for choice in _choices(answer):
        message = choice.get("message")
        if not isinstance(message, dict):
            raise refused("holds no message")
        _add_text(draft, message)
        for call in _dicts(message.get("tool_calls")):
            _add_call(draft, call)
        draft.finish = choice.get("finish_reason")
    draft.usage = _usage(answer.get("usage"))
    draft.model = answer.get("model")
    return draft


def _streamed(pieces: Iterable[object], told: Told) -> Draft:
    draft = Draft(told)
    index: dict[int | None, Called] = {}
    for piece in readable(pieces):
        if not isinstance(piece, dict):
            raise refused("holds a piece that is not of the form that it must have")
        for choice in _choices(piece):
            delta = choice.get("delta")
            if isinstance(delta, dict):
                _add_text(draft, delta)
                for call in _dicts(delta.get("tool_calls")):
                    _add_call_piece(draft, index, call)
            draft.finish = choice.get("finish_reason") or draft.finish
        draft.usage = _usage(piece.get("usage")) or draft.usage
        draft.model = piece.get("model") or draft.model
    return draft


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
