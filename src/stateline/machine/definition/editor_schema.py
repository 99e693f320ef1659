"""The JSON Schema (2020-12) of machine files, for editors. Pure.

What may stand where comes from the tables that the check goes by; here each key gets its type and its description.
What the schema refuses, the check refuses. The check sees more: names of stages, expressions, schemas, programs.
"""

from __future__ import annotations

from collections.abc import Iterable

from stateline.machine.definition import check, stages
from stateline.machine.definition.fields import IDENTIFIER, LARGEST, TOOL_NAME
from stateline.machine.spec import Json, Kind

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def machine_schema() -> dict[str, Json]:
    """The schema, whole in itself."""
    return {
        "$schema": DIALECT,
        "title": "Stateline machine",
        "description": "A set of stages and the ways between them.",
        **_object(check.KEYS, _machine(), required=("stateline", "name", "stages")),
        "$defs": {
            **{kind: _stage(kind) for kind in stages.KINDS},
            "expressions": {
                "type": "object",
                "additionalProperties": {"anyOf": [_EXPRESSION, {"$ref": "#/$defs/expressions"}]},
            },
        },
    }


def _object(keys: Iterable[str], known: dict[str, Json], *, required: tuple[str, ...] = ()) -> dict[str, Json]:
    """An object that holds ``keys`` and no others. ``KeyError`` for a key that is not ``known`` here."""
    document: dict[str, Json] = {"type": "object", "properties": {key: known[key] for key in keys}}
    if required:
        document["required"] = list(required)
    return {**document, "additionalProperties": False}


def _said(schema: dict[str, Json], description: str) -> dict[str, Json]:
    return {**schema, "description": description}


_TEXT = {"type": "string", "minLength": 1, "pattern": "^[^\\u0000]*$"}
_WORD = {"type": "string", "pattern": "^[^\\u0000]*$"}
_EXPRESSION = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0, "maximum": LARGEST}
_SECONDS = {"type": "number", "minimum": 0, "maximum": LARGEST}
_SCHEMA = {"type": ["object", "boolean"]}
_NAME = {"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"}
_TARGET = _NAME
_MODEL = _said(_TEXT, "The model, as provider/model.")


def _machine() -> dict[str, Json]:
    stage = {"oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in stages.KINDS]}
    limits = _object(check.EDGE_LIMIT, _edge_limit(), required=check.EDGE_LIMIT)
    return {
        "stateline": _said({"type": "integer", "const": check.FORMAT}, "Version of this format."),
        "name": _said(_NAME, "The machine's name."),
        "start": _said(_TARGET, "The stage that a run begins with (default: the first)."),
        "input": _said(_SCHEMA, "JSON Schema of the run's input."),
        "state": _said({"type": "object"}, "The initial state."),
        "state_schema": _said(_SCHEMA, "JSON Schema that the state must fit after each `set`."),
        "model": _MODEL,
        "tools": _said(_TEXT, "The tools manifest, by its path from the machine file."),
        "context": _said(_TEXT, "The context that new runs are given, if --state-scope does not say another."),
        "bounds": _said(_object(check.BOUNDS, _bounds()), "Limits of a run; 0 means none."),
        "edge_limits": _said({"type": "array", "items": limits}, "How often a run may go from one stage to another."),
        "stages": _said(
            {"type": "object", "minProperties": 1, "propertyNames": _NAME, "additionalProperties": stage},
            "The stages by name; each has one key of task, agent, human and end.",
        ),
    }


def _bounds() -> dict[str, Json]:
    return {
        "max_iterations": _said(_COUNT, "Backward transitions: to a stage at or before this one in the file."),
        "max_llm_calls": _said(_COUNT, "Model calls, those included that somebody answers in a model's stead."),
        "max_agent_hops": _said(_COUNT, "Transitions between stages."),
        "timeout": _said(_SECONDS, "Active time in seconds; waiting for people does not count."),
        "max_tool_rounds": _said(_COUNT, "Model replies whose tool calls are performed."),
        "max_tokens": _said(_COUNT, "Tokens that models may use; no call is made once they are used up."),
    }


def _edge_limit() -> dict[str, Json]:
    return {
        "from": _said(_TARGET, "The stage that is left."),
        "to": _said(_TARGET, "The stage that is entered."),
        "max_count": _said(_COUNT, "How often; 0 means no limit."),
    }


def _stage(kind: Kind) -> dict[str, Json]:
    known = {**_kinds(), **_ways(), **_effects()}
    return _object((kind, *stages.KEYS[kind]), known, required=(kind,))


def _kinds() -> dict[str, Json]:
    prompt = _said(_TEXT, "What to ask; {{ }} holds CEL.")
    tools = {"type": "array", "items": {"type": "string", "pattern": f"^{TOOL_NAME.pattern}$"}, "uniqueItems": True}
    agent = {
        "prompt": prompt,
        "tools": _said(tools, "Names of tools in the machine's manifest that the model may call; none by default."),
        "output_schema": _said(_SCHEMA, "JSON Schema that the answer must fit, as JSON; without it any text."),
        "model": _said(_TEXT, "The model for this stage, as provider/model, in place of the machine's."),
    }
    human = {
        "prompt": prompt,
        "schema": _said(_SCHEMA, "JSON Schema of the answer."),
    }
    program = {"type": "array", "items": _WORD, "minItems": 1, "prefixItems": [_TEXT]}
    return {
        "task": _said(program, "A program and its arguments; no shell. With a slash: beside the machine file."),
        "agent": _said(_object(stages.AGENT, agent, required=("prompt",)), "Asks a model, which may call tools."),
        "human": _said(_object(stages.HUMAN, human, required=("prompt",)), "Waits for a person's answer."),
        "end": _said({"type": ["object", "null"], "additionalProperties": False}, "Completes the run."),
    }


def _ways() -> dict[str, Json]:
    route = {"when": _said(_EXPRESSION, "A CEL condition."), "to": _said(_TARGET, "The next stage if it is true.")}
    routes = {"type": "array", "items": _object(stages.ROUTE, route, required=stages.ROUTE)}
    return {
        "set": _said(
            {"$ref": "#/$defs/expressions"},
            "CEL expressions by key of the state, merged into it after success, before the routes.",
        ),
        "routes": _said(routes, "Where to go after success; the first condition that is true."),
        "default_next": _said(_TARGET, "The next stage if no route is taken; without one the run is complete."),
        "error_next": _said(_TARGET, "The next stage after a failure; without one the run fails."),
        "max_visits": _said(_COUNT, "How often the stage may be entered; 0 means no limit."),
    }


def _effects() -> dict[str, Json]:
    retry = {
        "max_attempts": _said({**_COUNT, "minimum": 1}, "Attempts in all."),
        "backoff": _said(_SECONDS, "Seconds before the second attempt; doubles with each."),
    }
    names = {"type": "array", "items": {"type": "string", "pattern": f"^{stages.ENV_NAME.pattern}$"}}
    return {
        "timeout": _said(_SECONDS, "Seconds for one attempt, of an agent for one call of the model; 0 means no limit."),
        "retry": _said(_object(stages.RETRY, retry), "How known failures are tried again."),
        "repeatable": _said(
            {"type": "boolean"},
            "Whether it may run again when nobody knows what became of it; an agent may, a task not, by default.",
        ),
        "env": _said(names, "Environment variables that the program sees besides PATH, HOME, LANG, TMPDIR and TZ."),
    }
