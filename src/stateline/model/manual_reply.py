"""Parse the answer to a run that waits for a model's reply. Pure.

Accepted forms:

- text: ``"Paris."``
- ``{"response": "Paris.", "tools": [{"name": "search", "params": {"q": "x"}}]}``, either key alone as well;
- ``{"type": "llm_response", "response": {"content": [{"type": "text", "text": "..."}, {"type": "tool_use", "id": "a",
  "name": "search", "input": {}}], "stop_reason": "end_turn"}}``, the ids and ``stop_reason`` optional;

Each object may have a ``"requestId"``, so that an answer cannot reach another request. ``"type"`` may be left out, and
``"response"`` of the last form may be plain text. If a stage has an output schema, any other value that is not text is
the answer itself. An answer that is refused can be corrected and sent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.errors import InvalidAnswerError, InvalidValueError
from stateline.machine.expressions import json_schema
from stateline.machine.expressions.schema_example import example_text
from stateline.machine.problems import did_you_mean, quoted
from stateline.model.protocol import Reply, ToolCall, ToolSpec
from stateline.model.reply_validation import ARGUMENTS_DEPTH, MAX_CALLS, new_ids

_FORMS = (
    'answer with text, with {"response": "...", "tools": [{"name": "...", "params": {}}]}, or with '
    '{"type": "llm_response", "requestId": "...", "response": {"content": [...]}}'
)
_KEYS = ("type", "requestId", "response", "tools")
_FORM_KEYS = ("requestId", "response", "tools")  # one of these makes an object a form, whatever the schema
# "response" may be a whole message of a provider; only its content is used.
_MESSAGE_KEYS = ("content", "stop_reason", "stop_sequence", "id", "type", "role", "model", "usage")
_GOOD_ENDS = (None, "end_turn", "stop_sequence", "stop", "tool_use", "tool_calls")
_SHOWN = 5


def parse_reply(
    value: Json, tools: list[ToolSpec], request_id: str | None, used: Iterable[str] = (), *, schema: Json = None
) -> Reply:
    """Return the reply to a request that offered ``tools``. ``request_id`` is the one that the run waits for (None: not
    compared), ``used`` the ids of calls in the conversation. Calls without an id, or with a used one, get ``call_1``,
    ``call_2`` ... ``schema`` is the ``output_schema`` of the stage: a value without a known form must fit it, and
    becomes the content as canonical JSON. Raises :class:`InvalidAnswerError`."""
    if isinstance(value, str):
        return _reply(value, [], tools, used)
    if schema is not None and not _is_form(value):
        return Reply(content=_validated(value, schema))
    if not isinstance(value, dict):
        raise _refused("the answer is neither text nor an object", _FORMS)
    given = value.get("requestId")
    if given is not None and request_id is not None and given != request_id:
        raise _refused(
            f"the answer is for the request {quoted(str(given))}, and the run waits for {quoted(request_id)}",
            "look at the request again, and answer that one",
        )
    text, calls = _text_and_calls(value)
    return _reply(text, calls, tools, used)


def meaning(value: Json) -> Json:
    """Return the content of an answer, the same for all forms: its text, and the names and arguments of its calls. None
    for an unknown form. The answer is not compared with a request."""
    calls: list[dict[str, Any]]
    try:
        if isinstance(value, str):
            text, calls = value, []
        elif isinstance(value, dict) and _is_form(value):
            text, calls = _text_and_calls(value)
        else:
            text, calls = canonical.encode(value).decode(), []
    except InvalidAnswerError:
        return None
    return {"content": text, "tool_calls": [{name: call[name] for name in ("name", "arguments")} for call in calls]}


def _text_and_calls(value: dict[str, Json]) -> tuple[str, list[dict[str, Any]]]:
    """Return the text and the calls (as in :func:`_reply`) of a form. Raises :class:`InvalidAnswerError`."""
    _check_keys(value, _KEYS, "the answer")
    if value.get("type", "llm_response") != "llm_response":
        raise _refused(f"the answer's type {quoted(str(value['type']))} is not llm_response", _FORMS)
    text, calls = _response(value.get("response"))
    listed = value.get("tools")
    if listed is not None:
        if calls:
            raise _refused("the answer calls tools in two places", 'use either "tools" or "tool_use", not both')
        calls = _listed(listed)
    return text, calls


def _is_form(value: Json) -> bool:
    return isinstance(value, dict) and any(key in value for key in _FORM_KEYS)


def _validated(value: Json, schema: Json) -> str:
    """Return ``value`` as canonical JSON. Raises :class:`InvalidAnswerError` if it breaks ``schema``."""
    if broken := _violations(schema, value):
        raise _refused(
            f"the answer breaks output_schema: {broken}{example_text(schema)}",
            f"give a value that fits the schema of the request; or {_FORMS}",
        )
    return canonical.encode(value).decode()


def _reply(text: str, calls: list[dict[str, Any]], tools: list[ToolSpec], used: Iterable[str]) -> Reply:
    """Return the reply; ``calls`` are ``{"id", "name", "arguments"}``, not validated yet."""
    if not calls and not text.strip():
        raise _refused("the answer is empty", _FORMS)
    if len(calls) > MAX_CALLS:
        raise _refused(f"the answer calls more than {MAX_CALLS} tools at once", "call them in several answers")
    ids = new_ids([call["id"] for call in calls], set(used))
    specs = {tool.name: tool for tool in tools}
    checked = [_call(call, id, specs) for call, id in zip(calls, ids, strict=True)]
    return Reply(content=text, tool_calls=checked, finish="tool_calls" if checked else "stop")


def _call(call: dict[str, Any], id: str, specs: dict[str, ToolSpec]) -> ToolCall:
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not name:
        raise _refused("the answer calls a tool without a name", _FORMS)
    if name not in specs:
        known = f"the tools of this request are {', '.join(specs)}" if specs else "this request offers no tools"
        raise _refused(f"there is no tool {quoted(name)}", f"{did_you_mean(name, list(specs))} {known}".strip())
    if not isinstance(arguments, dict):
        raise _refused(f"the arguments of {quoted(name)} are not an object", _FORMS)
    try:
        canonical.check(arguments, depth=ARGUMENTS_DEPTH)
    except InvalidValueError as error:
        raise _refused(f"the arguments of {quoted(name)} cannot be kept: {error.message}", error.hint) from None
    if broken := _violations(specs[name].parameters, arguments):
        raise _refused(
            f"the arguments of {quoted(name)} break its schema: {broken}{example_text(specs[name].parameters)}",
            "correct the arguments; the request contains the schema",
        )
    return ToolCall(id=id, name=name, arguments=arguments)


def _violations(schema: Json, value: Json) -> str:
    broken = json_schema.violations(schema, value)
    more = f" and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    return "; ".join(broken[:_SHOWN]) + more


def _response(response: Json) -> tuple[str, list[dict[str, Any]]]:
    if response is None or isinstance(response, str):
        return response or "", []
    if not isinstance(response, dict):
        raise _refused('"response" is neither text nor an object', _FORMS)
    _check_keys(response, _MESSAGE_KEYS, '"response"')
    end = response.get("stop_reason")
    if end not in _GOOD_ENDS:
        raise _refused(
            f"the answer ended with {quoted(str(end))}, so it is not complete",
            "send the complete reply, or leave out stop_reason",
        )
    content = response.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise _refused('"content" is neither text nor a list', _FORMS)
    text, calls = _blocks(content)
    if end in ("tool_use", "tool_calls") and not calls:
        raise _refused(f"the answer ended with {quoted(str(end))} and calls no tool", "send the complete reply")
    return text, calls


def _blocks(content: list[Json]) -> tuple[str, list[dict[str, Any]]]:
    text = ""
    calls = []
    for position, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        where = f'part {position + 1} of "content"'
        if kind == "text" and isinstance(block.get("text"), str):
            text += block["text"]
        elif kind == "tool_use":
            _check_keys(block, ("type", "id", "name", "input"), where)
            calls.append({"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input", {})})
        else:
            raise _refused(f"{where} is neither text nor tool_use", _FORMS)
    return text, calls


def _listed(tools: Json) -> list[dict[str, Any]]:
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _refused('"tools" is not a list of objects', _FORMS)
    calls = []
    for position, tool in enumerate(tools):
        _check_keys(tool, ("id", "name", "params"), f'part {position + 1} of "tools"')
        calls.append({"id": tool.get("id"), "name": tool.get("name"), "arguments": tool.get("params", {})})
    return calls


def _check_keys(value: dict[str, Json], known: tuple[str, ...], what: str) -> None:
    for key in value:
        if key not in known:
            hint = f"{did_you_mean(key, list(known))} {_FORMS}".strip()
            raise _refused(f"{what} has the unknown key {quoted(key)}", hint)


def _refused(message: str, hint: str) -> InvalidAnswerError:
    return InvalidAnswerError(f"{message}; nothing was changed, and the run still waits", hint=hint)
