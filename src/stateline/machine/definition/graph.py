"""The stages as a graph: targets that are not there, places never reached, circles without an end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from stateline.machine.problems import Findings, Path, did_you_mean, quoted
from stateline.machine.spec import Bounds, EdgeLimit, Stage

_MOST_CIRCLES = 20
_MOST_GUESSES = 200

Targets = dict[str, list[str]]
"""From each stage to where it may go; only stages that exist."""


def check_targets(findings: Findings, stages: Mapping[str, Stage]) -> None:
    """Note every way that leads to no stage."""
    for stage in stages.values():
        for path, target in ways(stage):
            check_target(findings, ("stages", stage.name, *path), target, stages)


def check_target(findings: Findings, path: Path, target: str, stages: Mapping[str, Stage]) -> None:
    """Note ``target``, named at ``path``, when it is no stage."""
    if target not in stages:
        known = list(islice(stages, _MOST_GUESSES))
        hint = "" if findings.full else did_you_mean(target, known)
        hint = hint or f"stages: {', '.join(quoted(name)[1:-1] for name in known[:10])}"
        findings.error(path, "unknown_stage", f"there is no stage {quoted(target)}", hint)


def ways(stage: Stage) -> Iterator[tuple[Path, str]]:
    """Each place in a stage that names a target, with the target."""
    for index, route in enumerate(stage.routes):
        if route.to:  # an empty one was noted where it was read
            yield ("routes", index, "to"), route.to
    if stage.default_next is not None:
        yield ("default_next",), stage.default_next
    if stage.error_next is not None:
        yield ("error_next",), stage.error_next


def check_shape(
    findings: Findings, stages: Mapping[str, Stage], start: str, bounds: Bounds, limits: list[EdgeLimit]
) -> None:
    """Note a stage that follows itself for ever (an error), stages never reached and unbounded circles (warnings)."""
    bounded = {limit.source for limit in limits if limit.source == limit.target and limit.max_count}
    for stage in stages.values():
        # With routes it may be a loop that waits for something, which is legal; `unbounded_cycle` warns of it.
        ends = stage.max_visits or stage.routes or stage.name in bounded or _calls_end(stage, bounds)
        endless = stage.default_next == stage.name and not ends
        if endless and not (bounds.max_iterations or bounds.max_agent_hops or bounds.timeout):
            findings.error(
                ("stages", stage.name, "default_next"),
                "self_loop",
                f"stage {quoted(stage.name)} follows itself for ever",
                "give the stage max_visits or routes, the machine bounds, or take another default_next",
            )
    targets = {name: [target for _, target in ways(stage) if target in stages] for name, stage in stages.items()}
    reached = _reached(targets, start)
    for name in stages:
        if name not in reached:
            message = f"stage {quoted(name)} is never reached from {quoted(start)}"
            findings.warning(("stages", name), "unreachable_stage", message, "route to it or remove it")
    if not (bounds.max_iterations or bounds.max_agent_hops or bounds.timeout):
        _check_circles(findings, _unbounded(targets, stages, limits, bounds))


def _reached(targets: Targets, start: str) -> set[str]:
    reached, waiting = {start}, [start]
    while waiting:
        for target in targets.get(waiting.pop(), []):
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def _calls_end(stage: Stage, bounds: Bounds) -> bool:
    """Whether the stage cannot be entered for ever, since each time it costs a call of a model and these are counted.
    Tokens are no such bound: not every provider counts them."""
    return stage.kind == "agent" and bounds.max_llm_calls > 0


def _unbounded(targets: Targets, stages: Mapping[str, Stage], limits: list[EdgeLimit], bounds: Bounds) -> Targets:
    """The graph without what bounds a circle: stages with max_visits, limited edges, counted calls of models, and
    people, who are asked each time round. A default_next to the stage itself is left out too: it is an error of its
    own."""
    limited = {(limit.source, limit.target) for limit in limits if limit.max_count}
    free = {
        name
        for name, stage in stages.items()
        if stage.kind in ("task", "agent") and not stage.max_visits and not _calls_end(stage, bounds)
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


def _check_circles(findings: Findings, targets: Targets) -> None:
    for _ in range(_MOST_CIRCLES):
        _trim(targets)
        if not targets:
            return
        seen: list[str] = []
        name = next(iter(targets))
        while name not in seen:
            seen.append(name)
            name = targets[name][0]
        circle = seen[seen.index(name) :]
        shown = " -> ".join(quoted(part)[1:-1] for part in [*circle[:10], circle[0]])
        findings.warning(
            ("stages", circle[0]),
            "unbounded_cycle",
            f"nothing bounds the cycle {shown}",
            "set bounds.max_iterations, a max_visits on one of its stages, or an edge limit",
        )
        for part in circle:
            del targets[part]


def _trim(targets: Targets) -> None:
    """Remove, in place, every stage from which no circle can be reached; what is left always leads on."""
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
