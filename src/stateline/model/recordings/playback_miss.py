"""Show how a request differs from a recorded one. Pure.

Requests may have many megabytes, and conversations share most of their text: a diff begins at the first difference and
ends after a bounded stretch, so that no step takes time quadratic in the size of a request.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import msgspec

from stateline.bundle.canonical import Json

_STRETCH = 64 * 1024
"""Size of the stretch of each text that is compared [characters]."""
_COMPARED_LINES = 600
_WIDTH = 140
_LINES_LIMIT = 60
_CONTEXT = 2


def changed_members(old: dict[str, Json], new: dict[str, Json]) -> str:
    """Return the names of the members in which two requests differ."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if name == "messages" and isinstance(before, list) and isinstance(after, list):
            pairs = enumerate(zip(before, after, strict=False))
            at = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
            name = f"messages from number {at + 1} on"
        found.append(name)
    return ", ".join(found) or "nothing"


def unified_diff(old: dict[str, Json], new: dict[str, Json], names: tuple[str, str]) -> list[str]:
    """Return a unified diff of two requests as indented JSON, about 60 lines at most; empty if they are equal. Long
    lines are wrapped, and texts are split at their line ends."""
    before, after = _pretty(old), _pretty(new)
    at = _first_difference(before, after)
    if at < 0:
        return []
    start = _diff_start(before, at)
    left, left_cut = _lines(before, start)
    right, right_cut = _lines(after, start)
    rows = [f"--- {names[0]}", f"+++ {names[1]}", *_hunks(left, right)]
    if len(rows) > _LINES_LIMIT:
        return [*rows[:_LINES_LIMIT], f"... {len(rows) - _LINES_LIMIT} more lines"]
    return [*rows, "... and what follows"] if left_cut or right_cut else rows


def _pretty(request: dict[str, Json]) -> str:
    """Return indented JSON, with a line end after each one that is escaped in a string."""
    text = msgspec.json.encode(request, order="sorted").decode()
    return msgspec.json.format(text, indent=2).replace("\\n", "\\n\n")


def _first_difference(one: str, other: str) -> int:
    """Return the position of the first difference, -1 if the texts are equal, by binary search."""
    if one == other:
        return -1
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _diff_start(text: str, at: int) -> int:
    """Return where a diff begins that first differs at ``at``: some lines before, or within a line that is too long."""
    begin, floor = at, max(at - 4 * _WIDTH, 0)
    for _ in range(_CONTEXT + 1):
        found = text.rfind("\n", floor, begin)
        if found < 0:
            return begin + 1 if begin < at else 0 if not floor else at - _WIDTH // 2
        begin = found
    return begin + 1


def _lines(text: str, start: int) -> tuple[list[str], bool]:
    """Return the wrapped lines of a stretch of text, and whether there are more."""
    cut = len(text) > start + _STRETCH
    found: list[str] = []
    for line in text[start : start + _STRETCH].split("\n"):
        found += [line[at : at + _WIDTH] for at in range(0, len(line), _WIDTH)] or [""]
    if cut and len(found) > 1:
        found.pop()  # an incomplete line
    return found[:_COMPARED_LINES], cut or len(found) > _COMPARED_LINES


def _hunks(left: list[str], right: list[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, left, right)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        # Without line numbers: no file has these lines.
        yield "@@"
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (" " + line for line in left[a:b])
                continue
            yield from ("-" + line for line in left[a:b])
            yield from ("+" + line for line in right[c:d])
