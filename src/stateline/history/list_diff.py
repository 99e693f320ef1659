"""Edits that turn one list into another. Pure: items are represented by numbers, equal items by equal numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec


class ListEdit(msgspec.Struct, frozen=True):
    """One edit. ``index`` is a place in the list as the edits before left it.

    ``number`` is the new item of an ``add`` or ``replace``, ``source`` the old index of a moved item.
    """

    op: Literal["add", "remove", "replace", "move"]
    index: int
    number: int = -1
    source: int = -1


def list_edits(old: Sequence[int], new: Sequence[int]) -> list[ListEdit]:
    """Return the edits from ``old`` to ``new``. Linear in a common beginning and end.

    The items between are aligned, so that an item inserted in front does not change all that follow.
    """
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return _middle_edits(old[start : len(old) - end], new[start : len(new) - end], start)


def _middle_edits(old: Sequence[int], new: Sequence[int], start: int) -> list[ListEdit]:
    if not old:
        return [ListEdit("add", start + index, number) for index, number in enumerate(new)]
    if not new:
        return [ListEdit("remove", start) for _ in old]
    if len(old) == len(new) == 1:
        return [ListEdit("replace", start, new[0])]
    # Imported here because it doubles the time of a short call, and most lists change in one place only.
    import jsonpatch

    return [_edit(operation, start) for operation in jsonpatch.make_patch(list(old), list(new))]


def _edit(operation: dict[str, Any], start: int) -> ListEdit:
    source = start + int(operation["from"][1:]) if "from" in operation else -1
    return ListEdit(operation["op"], start + int(operation["path"][1:]), operation.get("value", -1), source)
