"""Machines for tests."""

from __future__ import annotations

from typing import Any

from stateline.machine.spec import Machine, Stage


def machine(*stages: Stage, **fields: Any) -> Machine:
    """Return a machine of these stages that starts at the first one by default."""
    order = [stage.name for stage in stages]
    return Machine(
        name="m", order=order, stages={stage.name: stage for stage in stages}, **{"start": order[0], **fields}
    )
