"""Build the JSON Schema (2020-12) of machine files, for editors. Pure.

The keys come from the tables of the check; here each gets its type and description. The check rejects everything that
the schema rejects, and more: unknown stages, expressions, schemas, missing programs.
"""

from __future__ import annotations

from collections.abc import Iterable

from stateline.machine.definition import check, stages
from stateline.machine.definition.fields import ENV_NAME, IDENTIFIER, LARGEST, TOOL_NAME
from stateline.machine.spec import Json, Kind

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def machine_schema() -> dict[str, Json]:
    """Return the self-contained schema."""
    return {
        "$schema": DIALECT,
        "title": "Stateline machine",
        "description": "Stages and the transitions between them.",
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
    """Return the schema of an object with only ``keys``. Raises ``KeyError`` for a key that is not ``known``."""
    document: dict[str, Json] = {"type": "object", "properties": {key: known[key] for key in keys}}
    if required:
        document["required"] = list(required)
    return {**document, "additionalProperties": False}


def _described(schema: dict[str, Json], description: str) -> dict[str, Json]:
    return {**schema, "description": description}


_TEXT = {"type": "string", "minLength": 1, "pattern": "^[^\\u0000]*$"}
_WORD = {"type": "string", "pattern": "^[^\\u0000]*$"}
_EXPRESSION = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0, "maximum": LARGEST}
_SECONDS = {"type": "number", "minimum": 0, "maximum": LARGEST}
_SCHEMA = {"type": ["object", "boolean"]}
_NAME = {"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"}
_TARGET = _NAME
_MODEL = _described(_TEXT, "The model, as provider/model.")


def _machine() -> dict[str, Json]:
    stage = {"oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in stages.KINDS]}
    limits = _object(check.EDGE_LIMIT, _edge_limit(), required=check.EDGE_LIMIT)
    return {
        "stateline": _described({"type": "integer", "const": check.FORMAT}, "Version of this format."),
        "name": _described(_NAME, "The machine's name."),
        "start": _described(_TARGET, "The stage that a run begins with (default: the first)."),
        "input": _described(_SCHEMA, "JSON Schema of the run's input."),
        "state": _described({"type": "object"}, "The initial state."),
        "state_schema": _described(_SCHEMA, "JSON Schema that the state must fit after each `set`."),
        "model": _MODEL,
        "tools": _described(_TEXT, "The tools manifest, by its path from the machine file."),
        "context": _described(_TEXT, "The context of new runs, unless --state-scope names another."),
        "bounds": _described(_object(check.BOUNDS, _bounds()), "Limits of a run; 0 means none."),
        "edge_limits": _described({"type": "array", "items": limits}, "How often transitions may be taken."),
        "stages": _described(
            {"type": "object", "minProperties": 1, "propertyNames": _NAME, "additionalProperties": stage},
            "The stages by name; each has one key of task, agent, human and end.",
        ),
    }


def _bounds() -> dict[str, Json]:
    return {
        "max_iterations": _described(_COUNT, "Backward transitions: to a stage at or before this one in the file."),
        "max_llm_calls": _described(_COUNT, "Model calls, including those answered by a caller instead of a model."),
        "max_agent_hops": _described(_COUNT, "Transitions between stages."),
        "timeout": _described(_SECONDS, "Active time in seconds; waiting for people does not count."),
        "max_tool_rounds": _described(_COUNT, "Model replies whose tool calls are performed."),
        "max_tokens": _described(_COUNT, "Tokens that models may use; after that no call is made."),
    }


def _edge_limit() -> dict[str, Json]:
    return {
        "from": _described(_TARGET, "The source stage."),
        "to": _described(_TARGET, "The target stage."),
        "max_count": _described(_COUNT, "How often; 0 means no limit."),
    }


def _stage(kind: Kind) -> dict[str, Json]:
    known = {**_kinds(), **_transitions(), **_effects()}
    return _object((kind, *stages.KEYS[kind]), known, required=(kind,))


def _kinds() -> dict[str, Json]:
    prompt = _described(_TEXT, "What to ask; {{ }} holds CEL.")
    tools = {"type": "array", "items": {"type": "string", "pattern": f"^{TOOL_NAME.pattern}$"}, "uniqueItems": True}
    agent = {
        "prompt": prompt,
        "tools": _described(tools, "Tools of the manifest that the model may call; none by default."),
        "output_schema": _described(_SCHEMA, "JSON Schema that the answer must fit, as JSON; without it any text."),
        "model": _described(_TEXT, "The model for this stage, as provider/model, in place of the machine's."),
    }
    human = {"prompt": prompt, "schema": _described(_SCHEMA, "JSON Schema of the answer.")}
    program = {"type": "array", "items": _WORD, "minItems": 1, "prefixItems": [_TEXT]}
    return {
        "task": _described(
            program, "A program and its arguments; no shell. With a slash: relative to the machine file."
        ),
        "agent": _described(
            _object(stages.AGENT, agent, required=("prompt",)), "A model request; the model may call tools."
        ),
        "human": _described(_object(stages.HUMAN, human, required=("prompt",)), "A question to a person."),
        "end": _described({"type": ["object", "null"], "additionalProperties": False}, "Completes the run."),
    }


def _transitions() -> dict[str, Json]:
    route = {
        "when": _described(_EXPRESSION, "A CEL condition."),
        "to": _described(_TARGET, "The next stage if it is true."),
    }
    routes = {"type": "array", "items": _object(stages.ROUTE, route, required=stages.ROUTE)}
    return {
        "set": _described(
            {"$ref": "#/$defs/expressions"},
            "CEL expressions by key of the state, merged into it after success, before the routes.",
        ),
        "routes": _described(routes, "Transitions after success; the first condition that is true wins."),
        "default_next": _described(_TARGET, "The next stage if no route is taken; without one the run is complete."),
        "error_next": _described(_TARGET, "The next stage after a failure; without one the run fails."),
        "max_visits": _described(_COUNT, "How often the stage may be entered; 0 means no limit."),
    }


def _effects() -> dict[str, Json]:
    retry = {
        "max_attempts": _described({**_COUNT, "minimum": 1}, "Attempts in all."),
        "backoff": _described(_SECONDS, "Seconds before the second attempt; doubles with each."),
    }
    names = {"type": "array", "items": {"type": "string", "pattern": f"^{ENV_NAME.pattern}$"}}
    return {
        "timeout": _described(_SECONDS, "Seconds for one attempt or one model call; 0 means no limit."),
        "retry": _described(_object(stages.RETRY, retry), "How known failures are tried again."),
        "repeatable": _described(
            {"type": "boolean"},
            "True if it may run again when its outcome is unknown; default: true for an agent, false for a task.",
        ),
        "env": _described(names, "Variables passed to the program besides PATH, HOME, LANG, TMPDIR and TZ."),
    }
