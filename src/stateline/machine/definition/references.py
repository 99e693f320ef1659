"""Check what expressions and templates read: stages that do not exist, and state that nothing sets."""

from __future__ import annotations

from collections.abc import Iterator

from stateline.machine.definition.graph import check_target
from stateline.machine.expressions.references import references
from stateline.machine.problems import Findings, Path, did_you_mean, path_text
from stateline.machine.spec import Json, Machine, Stage


def check_references(findings: Findings, machine: Machine, *, state_known: bool = True) -> None:
    """Report ``outputs.X`` and ``visits.X`` of stages that do not exist (errors), and ``state.X`` that neither the
    initial state nor any ``set`` has (warnings). An expression that asks for ``has(state.X)`` may also read it."""
    known = [*machine.state, *(key for stage in machine.stages.values() for key in stage.set)]
    for stage in machine.stages.values():
        for below, expression in _expressions(stage):
            path = ("stages", stage.name, *below)
            found = references(expression)
            tested = [reference.path for reference in found if reference.tested]
            for name in dict.fromkeys(reference.path[:2] for reference in found if len(reference.path) > 1):
                if name[0] != "state":
                    check_target(findings, path, name[1], machine.stages)
                elif state_known and name[1] not in known and name not in tested:
                    guess = "" if findings.full else did_you_mean(name[1], known)
                    hint = guess or "give it a value in `state` or in a stage's `set`, or ask has() first"
                    findings.warning(path, "unset_state", f"nothing sets {path_text(name)}", hint)


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
