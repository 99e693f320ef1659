"""The point before each effect of a run, where a dry run stops."""

from __future__ import annotations

from collections.abc import Callable

from stateline.bundle.canonical import Json
from stateline.engine.dependencies import Dependencies
from stateline.engine.record import Run
from stateline.engine.step import stage_of

Watch = Callable[[Run, str], None]
"""Receives each step for progress messages: the run, and what happens next."""


class DryRunStop(Exception):
    """Ends a dry run before effects start. ``run`` is the run at that point.

    ``warnings`` holds what the real call would have reported by then.
    """

    def __init__(self, run: Run, dependencies: Dependencies) -> None:
        super().__init__("a dry run starts no effects")
        self.run = run
        self.dependencies = dependencies
        self.warnings: list[str] = []


def require_real_run(run: Run, dependencies: Dependencies) -> None:
    """Return if the pending effects may start. In a dry run, add their descriptions to the plan and raise
    :class:`DryRunStop`."""
    planned = run.scope.store.planned
    if planned is not None:
        planned += pending_effects(run, dependencies)
        raise DryRunStop(run, dependencies)


def pending_effects(run: Run, dependencies: Dependencies) -> list[Json]:
    """Descriptions of the effects that start next: a task, a model call, or the tool calls of a reply."""
    stage, tree = stage_of(run), run.state.tree
    if tree.phase == "calling":
        tools = run.machine.toolset.tools if run.machine.toolset is not None else {}
        return [
            {"type": "tool", "stage": stage.name, "tool": call["name"], "repeatable": tools[call["name"]].repeatable}
            for call in tree.pending
            if call["status"] != "done"
        ]
    if stage.kind == "agent":
        exchanges = None if dependencies.exchanges is None else dependencies.exchanges()
        mode = {} if exchanges is None else {"exchanges": exchanges["mode"]}
        return [
            {"type": "model", "stage": stage.name, "model": dependencies.name, "repeatable": stage.repeatable, **mode}
        ]
    return [{"type": "task", "stage": stage.name, "argv": stage.argv, "repeatable": stage.repeatable}]
