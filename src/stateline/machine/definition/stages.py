"""Read one stage of a machine file. Its targets are checked later, when all stages are known."""

from __future__ import annotations

from stateline.machine.definition.fields import (
    IDENTIFIER,
    IDENTIFIER_HINT,
    TOOL_NAME,
    TOOL_NAME_HINT,
    ObjectReader,
    ProgramCheck,
    kind_of,
)
from stateline.machine.definition.masked_names import report_masked_properties
from stateline.machine.problems import Path, quoted
from stateline.machine.spec import Agent, Json, Kind, Retry, Route, Stage

KINDS: tuple[Kind, ...] = ("task", "agent", "human", "end")
LATER_KINDS = ("parallel", "map")
"""Kinds of the format that this version cannot run."""

_TRANSITIONS = ("set", "routes", "default_next", "error_next")
KEYS: dict[Kind, tuple[str, ...]] = {
    "task": ("timeout", "retry", "repeatable", "env", *_TRANSITIONS, "max_visits"),
    "agent": ("timeout", "retry", "repeatable", *_TRANSITIONS, "max_visits"),
    "human": (*_TRANSITIONS, "max_visits"),
    "end": ("max_visits",),
}
"""Keys of a stage besides its kind."""
AGENT = ("prompt", "tools", "output_schema", "model")
HUMAN = ("prompt", "schema")
RETRY = ("max_attempts", "backoff")
ROUTE = ("when", "to")
_ALL_KEYS = tuple(dict.fromkeys((*KINDS, *LATER_KINDS, *(key for keys in KEYS.values() for key in keys))))


def read_stage(name: str, fields: ObjectReader, exists: ProgramCheck | None) -> Stage:
    """Return the stage, with defaults wherever a mistake was reported."""
    if not IDENTIFIER.fullmatch(name):
        fields.findings.error(fields.path, "bad_name", f"{quoted(name)} is not a valid stage name", IDENTIFIER_HINT)
    fields.reject_unknown_keys(_ALL_KEYS)
    kind = _kind(fields)
    _reject_keys_of_other_kinds(fields, kind)
    human = _human(fields) if "human" in fields else ("", None)
    if fields.members.get("end") is not None:  # `end:` alone means `end: {}`
        fields.child("end", "an end stage").reject_unknown_keys(())
    return Stage(
        name=name,
        kind=kind or "end",
        argv=fields.argv("task", exists, base="machine file", example='["./bin/x", "--flag"]'),
        prompt=human[0],
        schema=human[1],
        agent=_agent(fields) if "agent" in fields else None,
        timeout=fields.seconds("timeout"),
        retry=_retry(fields),
        # A model call has no side effects; a program may have some, so repeating it must be allowed explicitly.
        repeatable=fields.boolean("repeatable", default=kind == "agent"),
        env=fields.env("env"),
        set=_set(fields),
        routes=_routes(fields),
        default_next=fields.text("default_next"),
        error_next=fields.text("error_next"),
        max_visits=fields.integer("max_visits"),
    )


def _kind(fields: ObjectReader) -> Kind | None:
    """Return the kind of the stage; None if it has no single kind, or a later one."""
    named = [kind for kind in (*KINDS, *LATER_KINDS) if kind in fields]
    for kind in named:
        if kind in LATER_KINDS:
            message = f"{kind!r} stages are not available in this version"
            fields.error(kind, "stage_not_available", message, f"use {', '.join(KINDS)}")
    if len(named) > 1:
        message = f"the stage has {len(named)} kinds: {', '.join(named)}"
        fields.findings.error(fields.path, "stage_kind", message, "split it into several stages")
    elif not named and fields.is_object:
        message = "the stage has no kind"
        fields.findings.error(fields.path, "stage_kind", message, f"give it one of {', '.join(KINDS)}")
    return next((kind for kind in KINDS if named == [kind]), None)


def _reject_keys_of_other_kinds(fields: ObjectReader, kind: Kind | None) -> None:
    if kind is None:
        return
    for key in fields.members:
        if key in _ALL_KEYS and key not in KEYS[kind] and key not in (*KINDS, *LATER_KINDS):
            owners = " or ".join(owner for owner, keys in KEYS.items() if key in keys)
            message = f"a stage of kind {kind} cannot have {key!r}"
            fields.error(key, "key_not_for_kind", message, f"remove it; {owners} stages have it")


def _human(fields: ObjectReader) -> tuple[str, Json]:
    human = fields.child("human", "a human stage")
    human.reject_unknown_keys(HUMAN)
    return _prompt(human), human.schema("schema")


def _agent(fields: ObjectReader) -> Agent:
    agent = fields.child("agent", "an agent stage")
    agent.reject_unknown_keys(AGENT)
    output_schema = agent.schema("output_schema")
    # Outputs are masked before they are stored, and used as they are stored.
    report_masked_properties(fields.findings, (*agent.path, "output_schema"), output_schema, "")
    return Agent(prompt=_prompt(agent), tools=_tools(agent), output_schema=output_schema, model=agent.text("model"))


def _prompt(fields: ObjectReader) -> str:
    """Return a template, with every expression compiled once to check it."""
    fields.require("prompt", 'prompt: "What to ask?"')
    prompt = fields.text("prompt") or ""
    if prompt:
        from stateline.machine.expressions.templates import template_problems

        for problem in template_problems(prompt):
            fields.error("prompt", "bad_template", problem)
    return prompt


def _tools(fields: ObjectReader) -> list[str]:
    """Return names of tools, each once. They are looked up later."""
    names = fields.text_list("tools")
    raw = fields.members.get("tools")
    seen: set[str] = set()
    for index, name in enumerate(raw if isinstance(raw, list) else []):
        if not isinstance(name, str):
            continue
        path = (*fields.path, "tools", index)
        if not TOOL_NAME.fullmatch(name):
            fields.findings.error(path, "bad_name", f"{quoted(name)} is not a valid tool name", TOOL_NAME_HINT)
        elif name in seen:
            fields.findings.error(path, "bad_value", f"the tool {quoted(name)} is named twice", "name it once")
        seen.add(name)
    return names


def _retry(fields: ObjectReader) -> Retry:
    if "retry" not in fields:
        return Retry()
    retry = fields.child("retry", "retry")
    retry.reject_unknown_keys(RETRY)
    return Retry(max_attempts=retry.integer("max_attempts", least=1, default=1), backoff=retry.seconds("backoff"))


def _set(fields: ObjectReader) -> dict[str, Json]:
    changes = fields.object("set")
    _check_set(fields, changes, ("set",))
    return changes


def _check_set(fields: ObjectReader, changes: dict[str, Json], below: Path) -> None:
    """Check the expressions at the leaves; the reader of the file has bounded the depth."""
    for key, value in changes.items():
        path = (*below, key)
        if isinstance(value, dict):
            _check_set(fields, value, path)
        elif isinstance(value, str):
            _check_expression(fields, path, value)
        else:
            hint = 'write a fixed value in quotes: "5", "true", "\'text\'", "[]"'
            message = f"a value in `set` must be an expression (text), not {kind_of(value)}"
            fields.findings.error((*fields.path, *path), "wrong_type", message, hint)


def _routes(fields: ObjectReader) -> list[Route]:
    found = []
    for index, route in enumerate(fields.children("routes", "a route")):
        route.reject_unknown_keys(ROUTE)
        when = route.text("when") if route.require("when", "when: \"output.verdict == 'again'\"") else None
        to = route.text("to") if route.require("to", "to: STAGE") else None
        if when is not None:
            _check_expression(fields, ("routes", index, "when"), when)
        found.append(Route(when=when or "", to=to or ""))
    return found


def _check_expression(fields: ObjectReader, below: Path, expression: str) -> None:
    from stateline.machine.expressions.cel import compile_error

    if (found := compile_error(expression)) is not None:
        fields.findings.error((*fields.path, *below), "bad_expression", found.message, found.hint)
