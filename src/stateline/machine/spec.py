"""The shape of every machine, for all file formats.

A :class:`Machine` is plain data: ``to_json`` gives the canonical spec that a run keeps in the store; ``from_json``
reads it back and checks only what the decider relies on (``definition.check`` checked the rest when the run began).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Json = Any
"""A JSON value: None, bool, int, float, str, list of Json, dict of str to Json."""

Kind = Literal["task", "agent", "human", "end"]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """``when`` is a CEL condition; ``to`` a stage."""

    when: str
    to: str


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Retries of known failures: at most ``max_attempts`` in all; ``backoff`` [s] doubles with each attempt."""

    max_attempts: int = 1
    backoff: float = 0.0


class EdgeLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The edge ``source`` -> ``target`` may be taken ``max_count`` times (0: no limit)."""

    source: str
    target: str
    max_count: int


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run; 0 means none. ``timeout`` [s] counts active time without waiting, ``max_tokens`` the input and
    output tokens of models, ``max_tool_rounds`` the replies whose tool calls were performed."""

    max_iterations: int = 0
    max_llm_calls: int = 0
    max_agent_hops: int = 0
    timeout: float = 0.0
    max_tool_rounds: int = 0
    max_tokens: int = 0


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The model request of an agent stage: ``prompt`` is a template, ``tools`` are names in the machine's toolset,
    ``model`` overrides the machine's, ``output_schema`` is the JSON Schema of the answer (None: any text)."""

    prompt: str
    tools: list[str] = []
    output_schema: Json = None
    model: str | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A program that a model may call: ``schema`` is the JSON Schema of its arguments, ``timeout`` [s] (0 none)."""

    name: str
    description: str
    schema: dict[str, Json]
    argv: list[str]
    timeout: float = 0.0
    env: list[str] = []
    repeatable: bool = False


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """The checked tools of a manifest by name, in its order. ``sha256`` is the hash of the manifest's exact bytes."""

    sha256: str
    tools: dict[str, Tool]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a machine. Fields that its ``kind`` does not use keep their defaults.

    ``argv`` belongs to ``task``; ``prompt`` (a template) and ``schema`` (JSON Schema of the answer) to ``human``;
    ``agent`` to ``agent``.
    ``set`` maps keys of the user's state to CEL expressions (nested mappings allowed), merged after success.
    """

    name: str
    kind: Kind
    argv: list[str] = []
    prompt: str = ""
    schema: Json = None
    agent: Agent | None = None
    timeout: float = 0.0
    retry: Retry = Retry()
    repeatable: bool = False
    env: list[str] = []
    set: dict[str, Json] = {}
    routes: list[Route] = []
    default_next: str | None = None
    error_next: str | None = None
    max_visits: int = 0


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A checked machine. ``stateline`` is the version of this shape; ``order`` is the stages' order in the file.
    ``input`` and ``state_schema`` are JSON Schemas or None; ``state`` is the user's initial state. ``tools`` is the
    path of the manifest as the file has it, ``toolset`` its content when the run began.
    """

    stateline: int = 1
    name: str
    start: str
    order: list[str]
    stages: dict[str, Stage]
    input: Json = None
    state: dict[str, Json] = {}
    state_schema: Json = None
    model: str | None = None
    tools: str | None = None
    toolset: Toolset | None = None
    context: str | None = None
    bounds: Bounds = Bounds()
    edge_limits: list[EdgeLimit] = []


def to_json(machine: Machine) -> dict[str, Json]:
    """Return the canonical spec, with every field written out, so that a reader needs no table of defaults."""
    spec: dict[str, Json] = msgspec.to_builtins(machine)
    return spec


def from_json(spec: Json) -> Machine:
    """Read a spec written by :func:`to_json`. Raises ``msgspec.ValidationError`` for anything that would break the
    decider."""
    machine = msgspec.convert(spec, Machine)
    problem = _problem(machine)
    if problem:
        raise msgspec.ValidationError(problem)
    return machine


def _problem(machine: Machine) -> str:
    """Return what would break the decider in a spec of the right types, or ""."""
    stages = machine.stages
    if machine.stateline != 1:
        return f"the spec is of version {machine.stateline}"
    if machine.start not in stages or sorted(machine.order) != sorted(stages):
        return "`start` or `order` does not fit the stages"
    for name, stage in stages.items():
        targets = {stage.default_next, stage.error_next, *(route.to for route in stage.routes)} - {None}
        if stage.name != name or not targets <= stages.keys():
            return f"the stage {name!r} has an unknown target or another name"
        if (stage.kind == "task" and not stage.argv) or not _is_expressions(stage.set):
            return f"the stage {name!r} has no command, or a `set` that is not made of expressions"
    return _agent_problem(machine)


def _agent_problem(machine: Machine) -> str:
    """Return what is wrong with tools or agent stages: each tool that is named must exist and have a command."""
    tools = machine.toolset.tools if machine.toolset is not None else {}
    for name, tool in tools.items():
        if tool.name != name or not tool.argv:
            return f"the tool {name!r} has no command, or another name"
    for name, stage in machine.stages.items():
        if (stage.kind == "agent") is (stage.agent is None):
            return f"the stage {name!r} is an agent without its `agent` part, or the reverse"
        if stage.agent is not None and not set(stage.agent.tools) <= tools.keys():
            return f"the stage {name!r} names unknown tools"
    return ""


def _is_expressions(changes: Json) -> bool:
    if isinstance(changes, dict):
        return all(map(_is_expressions, changes.values()))
    return isinstance(changes, str)
