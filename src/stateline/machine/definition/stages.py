"""Reading one stage of a machine file. Its targets are checked later, when all stages are known."""

from __future__ import annotations

import re
from collections.abc import Callable

from stateline.machine.definition.fields import (
    IDENTIFIER,
    IDENTIFIER_HINT,
    TOOL_NAME,
    TOOL_NAME_HINT,
    ObjectReader,
    kind_of,
)
from stateline.machine.definition.masked_names import report_masked_properties
from stateline.machine.problems import Path, quoted
from stateline.machine.spec import Agent, Json, Kind, Retry, Route, Stage

ProgramCheck = Callable[[list[str]], str | None]
"""Says why a task's program cannot be found, or None when it can."""

KINDS: tuple[Kind, ...] = ("task", "agent", "human", "end")
LATER_KINDS = ("parallel", "map")
"""Words of the format whose stages this version cannot run."""

_WAYS = ("set", "routes", "default_next", "error_next")
KEYS: dict[Kind, tuple[str, ...]] = {
    "task": ("timeout", "retry", "repeatable", "env", *_WAYS, "max_visits"),
    "agent": ("timeout", "retry", "repeatable", *_WAYS, "max_visits"),
    "human": (*_WAYS, "max_visits"),
    "end": ("max_visits",),
}
"""What may stand beside the key of each kind."""
AGENT = ("prompt", "tools", "output_schema", "model")
HUMAN = ("prompt", "schema")
RETRY = ("max_attempts", "backoff")
ROUTE = ("when", "to")
_ALL_KEYS = tuple(dict.fromkeys((*KINDS, *LATER_KINDS, *(key for keys in KEYS.values() for key in keys))))
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_stage(name: str, fields: ObjectReader, exists: ProgramCheck | None) -> Stage:
    """The stage, with defaults wherever a mistake was noted."""
    if not IDENTIFIER.fullmatch(name):
        fields.findings.error(fields.path, "bad_name", f"{quoted(name)} is not a stage's name", IDENTIFIER_HINT)
    fields.reject_unknown_keys(_ALL_KEYS)
    kind = _kind(fields)
    _refuse_foreign_keys(fields, kind)
    human = _human(fields) if "human" in fields else ("", None)
    if fields.members.get("end") is not None:  # `end:` alone is as good as `end: {}`
        fields.child("end", "an end stage").reject_unknown_keys(())
    return Stage(
        name=name,
        kind=kind or "end",
        argv=_argv(fields, exists) if "task" in fields else [],
        prompt=human[0],
        schema=human[1],
        agent=_agent(fields) if "agent" in fields else None,
        timeout=fields.seconds("timeout"),
        retry=_retry(fields),
        # A model's call changes nothing outside; the program of a task may, so that has to be said.
        repeatable=fields.boolean("repeatable", default=kind == "agent"),
        env=_env(fields),
        set=_set(fields),
        routes=_routes(fields),
        default_next=fields.text("default_next"),
        error_next=fields.text("error_next"),
        max_visits=fields.integer("max_visits"),
    )


def _kind(fields: ObjectReader) -> Kind | None:
    """The stage's one kind; None when there is no telling, or when it is one for later."""
    named = [kind for kind in (*KINDS, *LATER_KINDS) if kind in fields]
    for kind in named:
        if kind in LATER_KINDS:
            message = f"{kind!r} stages are not available in this version"
            fields.error(kind, "stage_not_available", message, f"use {', '.join(KINDS)}")
    if len(named) > 1:
        message = f"a stage has one kind, this one has {len(named)}: {', '.join(named)}"
        fields.findings.error(fields.path, "stage_kind", message, "split it into several stages")
    elif not named and fields.is_object:
        message = "the stage has no kind"
        fields.findings.error(fields.path, "stage_kind", message, f"give it one of {', '.join(KINDS)}")
    return next((kind for kind in KINDS if named == [kind]), None)


def _refuse_foreign_keys(fields: ObjectReader, kind: Kind | None) -> None:
    if kind is None:
        return
    for key in fields.members:
        if key in _ALL_KEYS and key not in KEYS[kind] and key not in (*KINDS, *LATER_KINDS):
            owners = " or ".join(owner for owner, keys in KEYS.items() if key in keys)
            article = "an" if kind in ("agent", "end") else "a"
            fields.error(
                key, "key_not_for_kind", f"{article} {kind} stage has no {key!r}", f"remove it; it belongs to {owners}"
            )


def _argv(fields: ObjectReader, exists: ProgramCheck | None) -> list[str]:
    argv = fields.text_list("task")
    raw = fields.members["task"]
    if not isinstance(raw, list) or len(argv) != len(raw):
        return argv
    if not argv or not argv[0]:
        message = "task names no program"
        fields.error("task", "bad_value", message, 'write the program and its arguments: ["./bin/x", "--flag"]')
    elif exists is not None and (missing := exists(argv)) is not None:
        hint = "a program with a slash is looked up beside the machine file, any other on PATH"
        fields.error("task", "program_missing", missing, hint)
    return argv


def _human(fields: ObjectReader) -> tuple[str, Json]:
    human = fields.child("human", "a human stage")
    human.reject_unknown_keys(HUMAN)
    return _prompt(human), human.schema("schema")


def _agent(fields: ObjectReader) -> Agent:
    agent = fields.child("agent", "an agent stage")
    agent.reject_unknown_keys(AGENT)
    output_schema = agent.schema("output_schema")
    # Outputs are masked before they are stored, and gone on with as they are stored.
    report_masked_properties(fields.findings, (*agent.path, "output_schema"), output_schema, "")
    return Agent(
        prompt=_prompt(agent),
        tools=_tools(agent),
        output_schema=output_schema,
        model=agent.text("model"),
    )


def _prompt(fields: ObjectReader) -> str:
    """A template, each of whose expressions compiles."""
    fields.require("prompt", 'prompt: "What to ask?"')
    prompt = fields.text("prompt") or ""
    if prompt:
        from stateline.machine.expressions.cel import template_problems

        for problem in template_problems(prompt, fields.findings.name_hints):
            fields.error("prompt", "bad_template", problem)
    return prompt


def _tools(fields: ObjectReader) -> list[str]:
    """Names of tools, each once. Whether there are such tools is known later."""
    names = fields.text_list("tools")
    raw = fields.members.get("tools")
    seen: set[str] = set()
    for index, name in enumerate(raw if isinstance(raw, list) else []):
        if not isinstance(name, str):
            continue
        path = (*fields.path, "tools", index)
        if not TOOL_NAME.fullmatch(name):
            fields.findings.error(path, "bad_name", f"{quoted(name)} is not a tool's name", TOOL_NAME_HINT)
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


def _env(fields: ObjectReader) -> list[str]:
    names = fields.text_list("env")
    raw = fields.members.get("env")
    for index, name in enumerate(raw if isinstance(raw, list) else []):
        if isinstance(name, str) and not ENV_NAME.fullmatch(name):
            hint = "write the name alone; the value comes from the environment" if "=" in name else ""
            message = f"{quoted(name)} is not the name of an environment variable"
            fields.findings.error((*fields.path, "env", index), "bad_value", message, hint)
    return names


def _set(fields: ObjectReader) -> dict[str, Json]:
    changes = fields.object("set")
    _check_set(fields, changes, ("set",))
    return changes


def _check_set(fields: ObjectReader, changes: dict[str, Json], below: Path) -> None:
    """Expressions stand at the leaves, however deep; the reader of the file has bounded the depth."""
    for key, value in changes.items():
        path = (*below, key)
        if isinstance(value, dict):
            _check_set(fields, value, path)
        elif isinstance(value, str):
            _check_expression(fields, path, value)
        else:
            hint = 'an expression is text; for a fixed value write it in quotes: "5", "true", "\'text\'", "[]"'
            message = f"set holds expressions (text), not {kind_of(value)}"
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
    from stateline.machine.expressions.cel import mistake

    if (found := mistake(expression, fields.findings.name_hints)) is not None:
        fields.findings.error((*fields.path, *below), "bad_expression", found.message, found.hint)
