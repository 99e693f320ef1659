"""Check a machine file: from its bytes to a machine, or to all its problems at once. Pure.

``formats`` reads the file into a tree with positions; ``stages`` and ``graph`` check parts of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import msgspec

from stateline.errors import InvalidMachineError, StatelineError
from stateline.machine.definition.fields import IDENTIFIER, IDENTIFIER_HINT, ObjectReader, ProgramCheck
from stateline.machine.definition.formats.reader import read
from stateline.machine.definition.graph import check_graph, check_target, check_targets
from stateline.machine.definition.references import check_references
from stateline.machine.definition.stages import read_stage
from stateline.machine.problems import Findings, Path, Problem, did_you_mean, printable, quoted
from stateline.machine.spec import Bounds, EdgeLimit, Json, Machine, Stage, Toolset

__all__ = ["Lookups", "Problem", "ProgramCheck", "check", "load"]

FORMAT = 1
"""The newest format of machine files that this version reads."""

KEYS = tuple(name for name in Machine.__struct_fields__ if name not in ("order", "toolset"))
"""Keys of a machine file."""
BOUNDS = Bounds.__struct_fields__
EDGE_LIMIT = ("from", "to", "max_count")
_SHOWN = 3


class Lookups(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that look things up outside the machine file; without one, its check is skipped.

    ``exists`` takes the argv of a task and returns why its program is missing, or None. ``evaluate`` runs a Python
    machine. ``toolset`` takes the path in ``tools``, reads that manifest and returns its checked tools; without it,
    the machine's ``toolset`` is None. ``model`` takes a model's name. Both raise a ``StatelineError`` for a problem.
    """

    exists: ProgramCheck | None = None
    evaluate: Any = None  # formats.python_text.Evaluate; that module is imported only for such files
    toolset: Callable[[str], Toolset] | None = None
    model: Callable[[str], object] | None = None


NO_LOOKUPS = Lookups()


def check(data: bytes, name: str, lookups: Lookups = NO_LOOKUPS) -> tuple[Machine | None, tuple[Problem, ...]]:
    """Read and check a machine file. ``name`` is the file's name; its extension selects the format.

    Returns the machine (None after any error) and all problems in file order, warnings included. Never raises for
    any ``data``, and reads no file.
    """
    document = read(data, name, lookups.evaluate)
    findings = document.findings
    machine = _read_machine(findings, document.value, lookups) if document.complete else None
    if machine is not None and lookups.model is not None:
        _check_models(findings, machine, lookups.model)
    return (None if findings.failed else machine), findings.problems()


def load(data: bytes, name: str, lookups: Lookups = NO_LOOKUPS) -> Machine:
    """Return the machine in a file without errors. Raises :class:`InvalidMachineError`, whose ``problems`` are those of
    :func:`check` and whose message has the first few."""
    machine, problems = check(data, name, lookups)
    if machine is not None:
        return machine
    errors = [problem for problem in problems if problem.severity == "error"]
    first = "; ".join(f"{problem.where}: {problem.message}" for problem in errors[:_SHOWN])
    more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
    count = "1 mistake" if len(errors) == 1 else f"{len(errors)} mistakes"
    raise InvalidMachineError(
        f"{printable(name)} has {count}: {first}{more}",
        problems,
        hint=f"`stateline machine check {shlex.quote(printable(name))}` lists every mistake with a hint",
    )


def _read_machine(findings: Findings, value: Json, lookups: Lookups) -> Machine | None:
    fields = ObjectReader(findings, (), value, "the machine file")
    if not fields.is_object or not _is_known_version(fields):
        return None
    fields.reject_unknown_keys(KEYS)
    name = _name(fields)
    stages = _stages(fields, lookups.exists)
    state, state_schema = fields.object("state"), fields.schema("state_schema")
    _check_state(fields, state, state_schema)
    tools = fields.text("tools")
    machine = Machine(
        name=name,
        start=fields.text("start") or next(iter(stages), ""),
        order=list(stages),
        stages=stages,
        input=fields.schema("input"),
        state=state,
        state_schema=state_schema,
        model=fields.text("model"),
        tools=tools,
        toolset=_toolset(fields, tools, lookups.toolset),
        context=fields.text("context"),
        bounds=_bounds(fields),
        edge_limits=_edge_limits(fields, stages),
    )
    _check_tools(fields, machine)
    if stages:
        check_targets(findings, stages)
        if "start" in fields and isinstance(fields.members["start"], str):
            check_target(findings, ("start",), machine.start, stages)
        # The keys of a state of the wrong type are not known.
        check_references(findings, machine, state_known=isinstance(fields.members.get("state", {}), dict))
        if machine.start in stages:
            check_graph(findings, stages, machine.start, machine.bounds, machine.edge_limits)
    return machine


def _is_known_version(fields: ObjectReader) -> bool:
    """Return False for a newer format: this version would report its new keys as mistakes."""
    if not fields.require("stateline", f"stateline: {FORMAT}"):
        return True
    version = fields.members["stateline"]
    if isinstance(version, bool) or not isinstance(version, int):
        fields.wrong_type(("stateline",), "a whole number", version, f"write stateline: {FORMAT}")
    elif version > FORMAT:
        message = f"the file has format {version}, and this version reads {FORMAT}"
        fields.error("stateline", "newer_version", message, "upgrade stateline to run this machine")
        return False
    elif version < 1:
        fields.error("stateline", "bad_value", f"format {version} does not exist", f"write stateline: {FORMAT}")
    return True


def _name(fields: ObjectReader) -> str:
    if not fields.require("name", "name: NAME"):
        return ""
    name = fields.text("name") or ""
    if name and not IDENTIFIER.fullmatch(name):
        fields.error("name", "bad_name", f"{quoted(name)} is not a valid machine name", IDENTIFIER_HINT)
    return name


def _stages(fields: ObjectReader, exists: ProgramCheck | None) -> dict[str, Stage]:
    example = "stages: {first: {task: [PROGRAM]}}"
    if not fields.require("stages", example):
        return {}
    stages = fields.object("stages", example)
    if stages == {} and isinstance(fields.members["stages"], dict):
        fields.error("stages", "no_stages", "the machine has no stages", f"write {example}")
    return {
        name: read_stage(name, ObjectReader(fields.findings, ("stages", name), stage, f"stage {quoted(name)}"), exists)
        for name, stage in stages.items()
    }


def _check_state(fields: ObjectReader, state: dict[str, Json], schema: Json) -> None:
    if schema is None:
        return
    from stateline.machine.expressions.json_schema import violations

    for violation in violations(schema, state):
        key = "state" if "state" in fields else "state_schema"
        message = f"the initial state does not fit state_schema: {violation}"
        fields.error(key, "state_violates_schema", message, "correct state or state_schema")


def _toolset(fields: ObjectReader, tools: str | None, toolset: Callable[[str], Toolset] | None) -> Toolset | None:
    if tools is None or toolset is None:
        return None
    try:
        return toolset(tools)
    except StatelineError as error:
        fields.error("tools", "bad_tools", error.message, error.hint)
        return None


def _check_models(findings: Findings, machine: Machine, model: Callable[[str], object]) -> None:
    """Report names of models that the lookup does not know."""
    named = [(("stages", name, "agent", "model"), stage.agent) for name, stage in machine.stages.items()]
    wanted: list[tuple[Path, str | None]] = [(path, agent.model) for path, agent in named if agent is not None]
    for path, name in [(("model",), machine.model), *wanted]:
        try:
            if name is not None:
                model(name)
        except StatelineError as error:
            findings.error(path, "bad_model", error.message, error.hint)


def _check_tools(fields: ObjectReader, machine: Machine) -> None:
    """Report names of tools that the manifest does not have, if it was read."""
    known = None if machine.toolset is None else machine.toolset.tools
    for stage in machine.stages.values():
        path = ("stages", stage.name, "agent", "tools")
        names = stage.agent.tools if stage.agent is not None else []
        if names and "tools" not in fields:
            message = f"stage {quoted(stage.name)} names tools, but the machine has no manifest"
            fields.findings.error(path, "no_tools", message, "name the manifest beside `stages`, as tools: FILE")
        for index, name in enumerate(names):
            if known is not None and name not in known:
                guess = "" if fields.findings.full else did_you_mean(name, list(known))
                hint = guess or f"tools: {', '.join(list(known)[:10])}"
                fields.findings.error((*path, index), "unknown_tool", f"unknown tool {quoted(name)}", hint)


def _bounds(fields: ObjectReader) -> Bounds:
    if "bounds" not in fields:
        return Bounds()
    bounds = fields.child("bounds", "bounds")
    bounds.reject_unknown_keys(BOUNDS)
    return Bounds(
        max_iterations=bounds.integer("max_iterations"),
        max_llm_calls=bounds.integer("max_llm_calls"),
        max_agent_hops=bounds.integer("max_agent_hops"),
        timeout=bounds.seconds("timeout"),
        max_tool_rounds=bounds.integer("max_tool_rounds"),
        max_tokens=bounds.integer("max_tokens"),
    )


def _edge_limits(fields: ObjectReader, stages: dict[str, Stage]) -> list[EdgeLimit]:
    limits = []
    for limit in fields.children("edge_limits", "an edge limit"):
        limit.reject_unknown_keys(EDGE_LIMIT)
        limit.require("max_count", "max_count: N")
        ends = []
        for key in ("from", "to"):
            end = limit.text(key) if limit.require(key, f"{key}: STAGE") else None
            if end is not None and stages:
                check_target(fields.findings, (*limit.path, key), end, stages)
            ends.append(end or "")
        limits.append(EdgeLimit(source=ends[0], target=ends[1], max_count=limit.integer("max_count")))
    return limits
