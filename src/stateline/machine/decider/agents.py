"""Requests of agent stages to a model, and checks of the replies. Pure.

The decider (``rounds``) and the engine use the same functions, so that the request that is shown, the request that is
sent and the check of the reply always agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateline.bundle import canonical
from stateline.errors import InvalidValueError
from stateline.machine.decider.evaluate_outputs import (
    EvaluationError,
    example_of,
    names,
    violations_of,
    violations_text,
)
from stateline.machine.decider.run import Facts, RunState
from stateline.machine.spec import Agent, Json, Machine, Stage, Tool

ARGUMENTS_DEPTH = canonical.DEPTH - 6
"""Deepest nesting of arguments: they are six levels down in a run's state, in a call of a message."""
RESULT_DEPTH = canonical.DEPTH - 4
"""Deepest nesting of a tool's result: it is four levels down."""
_SHOWN = 20


class ReplyError(Exception):
    """A reply that the stage cannot use. ``kind``: ``reply`` (malformed) or ``output`` (against ``output_schema``)."""

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint


def messages(state: RunState, facts: Facts) -> list[dict[str, Json]]:
    """Return the messages for the model at the current stage: the context's system prompt, if any, its developer
    prompts, then the conversation."""
    prompts = (facts.context or {}).get("prompts") or {}
    system, developer = prompts.get("system"), prompts.get("developer") or []
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *({"role": "developer", "content": text} for text in developer), *state.tree.conversation]


def offered(machine: Machine, stage: Stage) -> list[Tool]:
    """Return the tools that a model may call at ``stage``, in the order of the stage."""
    wanted = stage.agent.tools if stage.agent is not None else []
    tools = machine.toolset.tools if machine.toolset is not None else {}
    return [tools[name] for name in wanted if name in tools]


def prompt(stage: Stage, state: RunState, facts: Facts) -> str:
    """Render the stage's prompt; ``state`` is at the stage already. Raises :class:`EvaluationError` (kind ``prompt``)
    for a template that cannot be rendered or renders to nothing."""
    template = stage.agent.prompt if stage.agent is not None else ""
    text = template
    if "{{" in template:
        from stateline.machine.expressions.cel_errors import ExpressionError
        from stateline.machine.expressions.templates import render

        try:
            text = render(template, names(state, facts))
        except ExpressionError as error:
            raise EvaluationError("prompt", f"the prompt cannot be rendered: {error.message}", error.hint) from error
    if not text.strip():
        raise EvaluationError("prompt", "the prompt is empty", "see `prompt` of the stage, and the values that it uses")
    return text


def require_reply(content: Any, calls: Any) -> None:
    """Raise :class:`ReplyError` (kind ``reply``) for a malformed reply of any types: empty without calls, calls with
    equal ids, or a value that a run cannot store."""
    if not isinstance(content, str) or not isinstance(calls, list):
        raise _no_reply("`content` must be text and `tool_calls` a list")
    if not calls and not content.strip():
        raise _no_reply("it is empty")
    seen = set()
    for position, call in enumerate(calls):
        if not isinstance(call, dict) or call.keys() != {"id", "name", "arguments"}:
            raise _no_reply(f"tool call {position} must have exactly `id`, `name` and `arguments`")
        if not (isinstance(call["id"], str) and call["id"] and isinstance(call["name"], str)):
            raise _no_reply(f"`id` and `name` of tool call {position} must be text, and the id not empty")
        if not isinstance(call["arguments"], dict):
            raise _no_reply(f"the arguments of tool call {position} must be an object")
        if call["id"] in seen:
            raise _no_reply(f"tool call {position} has the id of an earlier one")
        seen.add(call["id"])
        _require_storable(call["arguments"], f"the arguments of tool call {position}")
        _require_storable([call["id"], call["name"]], f"tool call {position}")
    _require_storable(content, "`content`")


def _require_storable(value: Json, what: str) -> None:
    try:
        canonical.encode(value, depth=ARGUMENTS_DEPTH)
    except InvalidValueError as refused:
        raise _no_reply(f"{what} cannot be stored: {refused.message}") from None


def _no_reply(why: str) -> ReplyError:
    return ReplyError("reply", f"the reply cannot be used: {why}", "a reply is text, tool calls, or both")


def call_problem(machine: Machine, stage: Stage, call: Mapping[str, Json]) -> tuple[str, str] | None:
    """Return why ``call`` (of a reply that :func:`require_reply` accepted) must not be performed, as kind and message,
    or None. Kinds: ``unknown_tool``, ``arguments``. The model gets the message: with other words, requests recorded
    after a wrong call would not be found in playback."""
    tools = {tool.name: tool for tool in offered(machine, stage)}
    tool = tools.get(call["name"])
    if tool is None:
        known = ", ".join(list(tools)[:_SHOWN]) + (", ..." if len(tools) > _SHOWN else "")
        available = f"the tools here are: {known}" if tools else "there are no tools here"
        return "unknown_tool", f"there is no tool {_short(call['name'])!r}; {available}"
    found = violations_of(tool.schema, call["arguments"])
    if found:
        return "arguments", f"the arguments do not fit the schema of the tool {tool.name!r}: {violations_text(found)}"
    return None


def output_of(agent: Agent, content: str) -> Json:
    """Return the stage's output from an answer. Raises :class:`ReplyError` (kind ``output``) for one that is not JSON
    or does not fit ``output_schema``."""
    if agent.output_schema is None:
        return content
    hint = "see the stage's `output_schema`"
    try:
        value = canonical.parse(content.encode(), what="the answer")
    except InvalidValueError as refused:
        raise ReplyError("output", f"the answer is not one JSON document: {refused.message}", hint) from None
    found = violations_of(agent.output_schema, value)
    if found:
        hint += example_of(agent.output_schema)
        raise ReplyError("output", f"the answer does not fit output_schema: {violations_text(found)}", hint)
    return value


def assistant(content: str, calls: list[Json]) -> dict[str, Json]:
    """Return a reply as a message of the conversation."""
    message: dict[str, Json] = {"role": "assistant", "content": content}
    return {**message, "tool_calls": calls} if calls else message


def result_message(call: Mapping[str, Json]) -> dict[str, Json]:
    """Return a finished call of ``pending`` as a message of the conversation."""
    return {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": call["result"]}


def kept_result(result: Json) -> Json:
    """Return ``result``, or an error result if it cannot be stored: the run continues in either case."""
    try:
        canonical.encode(result, depth=RESULT_DEPTH)
    except InvalidValueError as refused:
        return error_result("output", f"the result cannot be kept: {refused.message}")
    return result


def error_result(kind: str, message: str) -> dict[str, Json]:
    """Return a failure as a tool's result: data for the model, which may try something else."""
    return {"error": {"kind": kind, "message": message}}


def _short(name: str) -> str:
    return name if len(name) <= 64 else name[:63] + "…"
