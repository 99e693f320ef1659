"""Show how a request differs from a recorded one. Pure."""

from __future__ import annotations

import difflib
from itertools import compress, count

import msgspec

from stateline.bundle.canonical import Json

_COMPARED_LINES = 600
"""Requests may have many megabytes, and a diff takes time quadratic in the number of its lines."""
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
            name = f"messages from number {_first_difference(before, after) + 1} on"
        found.append(name)
    return ", ".join(found) or "nothing"


def unified_diff(old: dict[str, Json], new: dict[str, Json], names: tuple[str, str]) -> list[str]:
    """Return a unified diff of two requests as indented JSON from their first difference on, about 60 lines at most;
    empty if they are equal."""
    before, after = _lines(old), _lines(new)
    start = max(_first_difference(before, after) - _CONTEXT, 0)
    end = start + _COMPARED_LINES
    diff = difflib.unified_diff(before[start:end], after[start:end], *names, n=_CONTEXT, lineterm="")
    # Without line numbers: no file has these lines.
    rows = ["@@" if row.startswith("@@") else row for row in diff]
    if len(rows) > _LINES_LIMIT:
        return [*rows[:_LINES_LIMIT], f"... {len(rows) - _LINES_LIMIT} more lines"]
    return [*rows, "... and what follows"] if rows and max(len(before), len(after)) > end else rows


def _first_difference(one: list[Json], other: list[Json]) -> int:
    differs = (left != right for left, right in zip(one, other, strict=False))
    return next(compress(count(), differs), min(len(one), len(other)))


def _lines(request: dict[str, Json]) -> list[str]:
    """Return the lines of indented JSON, long ones wrapped, and texts split at their line ends."""
    text = msgspec.json.format(msgspec.json.encode(request, order="sorted"), indent=2).decode()
    lines = text.replace("\\n", "\\n\n").split("\n")
    return [line[at : at + _WIDTH] for line in lines for at in range(0, len(line) or 1, _WIDTH)]
