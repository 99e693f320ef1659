"""Machines for tests, of stages that are made by hand."""

from __future__ import annotations

from typing import Any

from stateline.machine.spec import Machine, Stage


def machine(*stages: Stage, **fields: Any) -> Machine:
    """A machine of these stages that starts at the first of them, unless ``fields`` say otherwise."""
    order = [stage.name for stage in stages]
    return Machine(
        name="m", order=order, stages={stage.name: stage for stage in stages}, **{"start": order[0], **fields}
    )
