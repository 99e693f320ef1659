"""``stateline exec history``: the turns of a run, with what was said, called and put out in them."""

from __future__ import annotations

from typing import Any

import typer
from msgspec import UNSET

from stateline.cli.options import settings
from stateline.cli.output import coloured, columns, emit, one_line, plain, pretty, warn
from stateline.cli.runs import RunId

WIDTH = 116
"""Columns where stdout is no terminal."""
_INDENT = 6
_LEAST = 24
"""So many characters of a step are shown on however narrow a terminal."""


def history(ctx: typer.Context, run: RunId = None) -> int:
    """Show the turns of a run, oldest first: what a model said, the tools it called, and what came out.

    Each step is one line, cut at the terminal's width; -v shows all of it.
    """
    from stateline.service.runs import history as verb

    said = settings(ctx)
    store = said.store()
    rows = verb(store, run)
    warn(said, store.warnings)
    width = columns() or WIDTH
    emit(said, {"history": rows}, [line for row in rows for line in turn_lines(row, width, whole=said.verbose)])
    return 0


def turn_lines(row: dict[str, Any], width: int, *, whole: bool) -> list[str]:
    """One row of the history: a heading, and below it a line for each step, cut at ``width`` [characters]. With
    ``whole`` nothing is cut: what is longer goes on below."""
    show = _whole if whole else _cut
    room = max(width - _INDENT, _LEAST)
    steps = [] if row["text"] is None else show("said:", row["text"], "", UNSET, room)
    for call in row["tools"]:
        steps += show(call["name"], call["arguments"], *_ending(call), room)
    if row["output"] is not None:
        steps += show("", row["output"], "", UNSET, room)
    if row["error"]:
        steps += [coloured(line, "red") for line in show("failed:", row["error"]["message"], "", UNSET, room)]
    moment = row["at"][:19].replace("T", " ")
    heading = f"{row['turn']:>4}  {moment}  {one_line(row['stage'])}  ({one_line(row['reason'])})"
    return [heading, *(f"{'':{_INDENT}}{line}".rstrip() for line in steps)]


def _ending(call: dict[str, Any]) -> tuple[str, Any]:
    """How a call ended: a word for it, and what it gave; of a failure the message."""
    if call["status"] == "open":
        return "has not ended", UNSET
    if not call["error"]:
        return "->", call["result"]
    word = "was refused" if call["status"] == "refused" else "failed"
    return f"{word} ({call['error']}):", _message(call["result"])


def _message(result: Any) -> Any:
    """The words of a failure that a model was told; whatever else stands in their place as it is."""
    error = result.get("error") if isinstance(result, dict) else None
    return error.get("message", result) if isinstance(error, dict) else result


def _cut(name: str, value: Any, word: str, result: Any, room: int) -> list[str]:
    """A step on one line: a value with a ``name`` before it, and after a ``word`` what it led to. Where both do not
    fit, the first has half of the line."""
    before = f"{one_line(name)} {_flat(value)}".strip()
    after = f" {one_line(word)} {'' if result is UNSET else _flat(result)}".rstrip() if word else ""
    if len(before) + len(after) > room:
        before = one_line(before, max(room // 2, room - len(after)))
    return [one_line(before + after, room)]


def _flat(value: Any) -> str:
    return one_line(value, 1 << 62)


def _whole(name: str, value: Any, word: str, result: Any, room: int) -> list[str]:
    lines = _block(one_line(name), value, room)
    if not word:
        return lines
    after = _block(one_line(word), result, room - 2)
    if len(lines) == len(after) == 1 and len(lines[0]) + 1 + len(after[0]) <= room:
        return [f"{lines[0]} {after[0]}"]
    return lines + [f"  {line}" for line in after]


def _block(name: str, value: Any, room: int) -> list[str]:
    """A value with a ``name`` before it: on that line if it is one line that fits, else below."""
    if value is UNSET:
        return [name]
    lines = plain(value).split("\n") if isinstance(value, str) else [_flat(value)]
    if not isinstance(value, str) and len(lines[0]) > room:
        lines = pretty(value)
    if not name or (len(lines) == 1 and len(name) + 1 + len(lines[0]) <= room):
        return [f"{name} {lines[0]}".strip(), *lines[1:]]
    return [name, *(f"  {line}" for line in lines)]
