"""Check the graph of stages: unknown targets, unreachable stages, unbounded cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from stateline.machine.problems import Findings, Path, did_you_mean, quoted
from stateline.machine.spec import Bounds, EdgeLimit, Stage

_MAX_CYCLES = 20
_MAX_GUESSES = 200

Targets = dict[str, list[str]]
"""Existing targets of each stage."""


def check_targets(findings: Findings, stages: Mapping[str, Stage]) -> None:
    """Report every unknown target."""
    for stage in stages.values():
        for path, target in targets_of(stage):
            check_target(findings, ("stages", stage.name, *path), target, stages)


def check_target(findings: Findings, path: Path, target: str, stages: Mapping[str, Stage]) -> None:
    """Report ``target``, named at ``path``, unless it is a stage."""
    if target not in stages:
        known = list(islice(stages, _MAX_GUESSES))
        hint = "" if findings.full else did_you_mean(target, known)
        hint = hint or f"stages: {', '.join(quoted(name)[1:-1] for name in known[:10])}"
        findings.error(path, "unknown_stage", f"unknown stage {quoted(target)}", hint)


def targets_of(stage: Stage) -> Iterator[tuple[Path, str]]:
    """Yield the path and the target of each transition of a stage."""
    for index, route in enumerate(stage.routes):
        if route.to:  # an empty one was reported where it was read
            yield ("routes", index, "to"), route.to
    if stage.default_next is not None:
        yield ("default_next",), stage.default_next
    if stage.error_next is not None:
        yield ("error_next",), stage.error_next


def check_graph(
    findings: Findings, stages: Mapping[str, Stage], start: str, bounds: Bounds, limits: list[EdgeLimit]
) -> None:
    """Report endless self-loops (errors), unreachable stages and unbounded cycles (warnings)."""
    bounded = {limit.source for limit in limits if limit.source == limit.target and limit.max_count}
    for stage in stages.values():
        # With routes it may be a legal polling loop; `unbounded_cycle` warns about it.
        ends = stage.max_visits or stage.routes or stage.name in bounded or _limited_by_calls(stage, bounds)
        endless = stage.default_next == stage.name and not ends
        if endless and not (bounds.max_iterations or bounds.max_agent_hops or bounds.timeout):
            findings.error(
                ("stages", stage.name, "default_next"),
                "self_loop",
                f"stage {quoted(stage.name)} follows itself for ever",
                "give the stage max_visits or routes, the machine bounds, or take another default_next",
            )
    targets = {name: [target for _, target in targets_of(stage) if target in stages] for name, stage in stages.items()}
    reached = _reachable(targets, start)
    for name in stages:
        if name not in reached:
            message = f"stage {quoted(name)} is never reached from {quoted(start)}"
            findings.warning(("stages", name), "unreachable_stage", message, "route to it or remove it")
    if not (bounds.max_iterations or bounds.max_agent_hops or bounds.timeout):
        _check_cycles(findings, _unbounded_edges(targets, stages, limits, bounds))


def _reachable(targets: Targets, start: str) -> set[str]:
    reached, waiting = {start}, [start]
    while waiting:
        for target in targets.get(waiting.pop(), []):
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def _limited_by_calls(stage: Stage, bounds: Bounds) -> bool:
    """Return True if ``max_llm_calls`` limits visits to the stage. Tokens do not: not every provider counts them."""
    return stage.kind == "agent" and bounds.max_llm_calls > 0


def _unbounded_edges(targets: Targets, stages: Mapping[str, Stage], limits: list[EdgeLimit], bounds: Bounds) -> Targets:
    """Return the graph without anything that bounds a cycle: stages with max_visits, limited edges, counted model
    calls, and human stages. A default_next to the same stage is left out too: it is reported separately."""
    limited = {(limit.source, limit.target) for limit in limits if limit.max_count}
    free = {
        name
        for name, stage in stages.items()
        if stage.kind in ("task", "agent") and not stage.max_visits and not _limited_by_calls(stage, bounds)
    }
    return {
        name: [
            target
            for target in targets[name]
            if target in free and (name, target) not in limited and not (target == name == stages[name].default_next)
        ]
        for name in stages
        if name in free
    }


def _check_cycles(findings: Findings, targets: Targets) -> None:
    for _ in range(_MAX_CYCLES):
        _remove_acyclic(targets)
        if not targets:
            return
        seen: list[str] = []
        name = next(iter(targets))
        while name not in seen:
            seen.append(name)
            name = targets[name][0]
        cycle = seen[seen.index(name) :]
        shown = " -> ".join(quoted(part)[1:-1] for part in [*cycle[:10], cycle[0]])
        findings.warning(
            ("stages", cycle[0]),
            "unbounded_cycle",
            f"nothing bounds the cycle {shown}",
            "set bounds.max_iterations, a max_visits on one of its stages, or an edge limit",
        )
        for part in cycle:
            del targets[part]


def _remove_acyclic(targets: Targets) -> None:
    """Remove, in place, every stage from which no cycle can be reached."""
    sources: dict[str, list[str]] = {}
    left: dict[str, int] = {}
    for name, nexts in targets.items():
        nexts[:] = [target for target in nexts if target in targets]
        left[name] = len(nexts)
        for target in nexts:
            sources.setdefault(target, []).append(name)
    ends = [name for name, count in left.items() if not count]
    while ends:
        end = ends.pop()
        del targets[end]
        for source in sources.get(end, []):
            left[source] -= 1
            if not left[source]:
                ends.append(source)
    for nexts in targets.values():
        nexts[:] = [target for target in nexts if target in targets]
