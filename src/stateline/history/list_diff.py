"""How one list becomes another, item by item. Pure: items are known by numbers, equal items by equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec


class Step(msgspec.Struct, frozen=True):
    """One step: ``index`` is where it happens in the list as the steps before it left it; ``number`` is the new item
    of an ``add`` or ``replace``, ``source`` where the item of a ``move`` is taken from."""

    op: Literal["add", "remove", "replace", "move"]
    index: int
    number: int = -1
    source: int = -1


def steps(old: Sequence[int], new: Sequence[int]) -> list[Step]:
    """The steps from ``old`` to ``new``. Linear in what both begin and end with; an item more at the end is one step.

    What lies between is matched up, so that an item put in front does not change all that follow.
    """
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return _between(old[start : len(old) - end], new[start : len(new) - end], start)


def _between(old: Sequence[int], new: Sequence[int], start: int) -> list[Step]:
    if not old:
        return [Step("add", start + index, number) for index, number in enumerate(new)]
    if not new:
        return [Step("remove", start) for _ in old]
    if len(old) == len(new) == 1:
        return [Step("replace", start, new[0])]
    # Only here, because most lists change at one place only and the import doubles the time of a short call.
    import jsonpatch

    return [_step(operation, start) for operation in jsonpatch.make_patch(list(old), list(new))]


def _step(operation: dict[str, Any], start: int) -> Step:
    source = start + int(operation["from"][1:]) if "from" in operation else -1
    return Step(operation["op"], start + int(operation["path"][1:]), operation.get("value", -1), source)
