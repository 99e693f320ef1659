"""Check what expressions and templates read: stages that do not exist, and state that nothing sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateline.machine.definition.graph import check_target
from stateline.machine.expressions.references import references
from stateline.machine.problems import Findings, Path, did_you_mean, path_text
from stateline.machine.spec import Json, Machine, Stage

_BY_STAGE = ("outputs", "visits")
"""Names whose keys are stages."""

_Known = dict[str, Any]
"""State that something sets: an object by key, and None for a value that may hold anything."""


def check_references(findings: Findings, machine: Machine, *, state_known: bool = True) -> None:
    """Report ``outputs.X`` and ``visits.X`` of stages that do not exist (errors), and ``state.X`` that neither the
    initial state nor any ``set`` has (warnings). An expression that asks for ``has(state.X)`` may also read it."""
    known: _Known = {}
    for part in (machine.state, *(stage.set for stage in machine.stages.values())):
        _add(known, part)
    for stage in machine.stages.values():
        for below, expression in _expressions(stage):
            path = ("stages", stage.name, *below)
            found = dict.fromkeys(references(expression))
            tested = {reference.path for reference in found if reference.tested}
            for name in dict.fromkeys(reference.path[:2] for reference in found):
                if name[0] in _BY_STAGE and len(name) > 1:
                    check_target(findings, path, name[1], machine.stages)
            for missing in dict.fromkeys(_missing(known, reference.path, tested) for reference in found):
                if missing and state_known:
                    _report(findings, path, missing, known)


def _expressions(stage: Stage) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each expression of a stage."""
    for below, template in ((("human",), stage.prompt), (("agent",), stage.agent.prompt if stage.agent else "")):
        if template:
            from stateline.machine.expressions.templates import expressions_in

            yield from (((*below, "prompt"), expression) for expression in expressions_in(template))
    yield from _leaves(("set",), stage.set)
    for index, route in enumerate(stage.routes):
        if route.when:
            yield ("routes", index, "when"), route.when


def _leaves(path: Path, changes: dict[str, Json]) -> Iterator[tuple[Path, str]]:
    for key, value in changes.items():
        if isinstance(value, dict):
            yield from _leaves((*path, key), value)
        elif isinstance(value, str):
            yield (*path, key), value


def _add(known: _Known, part: dict[str, Json]) -> None:
    """Merge the keys of ``part``, as ``set`` is merged into the state."""
    for key, value in part.items():
        if not isinstance(value, dict):
            known[key] = None
        elif known.setdefault(key, {}) is not None:
            _add(known[key], value)


def _missing(known: _Known, path: tuple[str, ...], tested: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the beginning of ``path`` that nothing sets; () if there is none, or if the expression tests it."""
    inner: Any = known
    for end, key in enumerate(path[1:] if path[0] == "state" else (), 2):
        if inner is None:
            break
        if key not in inner:
            return () if path[:end] in tested else path[:end]
        inner = inner[key]
    return ()


def _report(findings: Findings, path: Path, missing: tuple[str, ...], known: _Known) -> None:
    siblings = known
    for key in missing[1:-1]:
        siblings = siblings[key]
    guess = "" if findings.full else did_you_mean(missing[-1], list(siblings))
    hint = guess or "give it a value in the machine's `state`, set it in a stage's `set`, or ask has() first"
    findings.warning(path, "unset_state", f"nothing sets {path_text(missing)}", hint)
