"""How a call can exit that performs effects whose outcome nobody knows yet. Pure."""

from __future__ import annotations

import msgspec

from stateline.machine.decider.run import Instance
from stateline.machine.spec import Machine, Stage


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """What lies before a call: the machine, whether it stops after one turn, and whether there is no model."""

    machine: Machine
    one_turn: bool
    manual: bool

    def possible(self, tree: Instance) -> set[int]:
        """All exits that can follow the effect which ``tree`` stands at, but for that of a failure."""
        if tree.phase == "calling" and (exit := self._at(tree.stage)) is not None:
            return {exit}
        exits: set[int] = set()
        seen = {tree.stage}
        stack = [self.machine.stages[tree.stage]]
        while stack:
            for way in _ways(stack.pop()):
                exit = self._at(way)
                if exit is not None:
                    exits.add(exit)
                elif way is not None and way not in seen:
                    seen.add(way)
                    stack.append(self.machine.stages[way])
        return exits

    def likely(self, tree: Instance) -> int:
        """The exit when every effect succeeds, no model calls a tool, and every stage takes its default way; a loop of
        defaults ends by a limit."""
        if tree.phase == "calling" and (exit := self._at(tree.stage)) is not None:
            return exit
        stage = self.machine.stages[tree.stage]
        seen: set[str] = set()
        while stage.name not in seen:
            seen.add(stage.name)
            exit = self._at(stage.default_next)
            if exit is not None:
                return exit
            stage = self.machine.stages[stage.default_next or ""]
        return 1

    def _at(self, name: str | None) -> int | None:
        """The exit of a call that comes to that stage (None: the end of the run), or None if it goes on there."""
        kind = "end" if name is None else self.machine.stages[name].kind
        if kind == "human" or (kind == "agent" and self.manual):
            return 3
        if kind == "end":
            return 2 if self.one_turn else 0
        return 0 if self.one_turn else None


def _ways(stage: Stage) -> list[str | None]:
    """Stages that may follow, None for the end of the run; the default way first. A model that calls tools is asked
    again where it was."""
    ways = [stage.default_next, *(route.to for route in stage.routes)]
    ways += [stage.error_next] if stage.error_next else []
    return [*ways, stage.name] if stage.agent is not None and stage.agent.tools else ways
