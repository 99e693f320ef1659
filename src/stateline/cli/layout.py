"""Text in columns: widths, cutting, wrapping, tables and relative times."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

DIGITS = 12
"""Digits of a digest in text. Any 4 or more name it; JSON has all 64."""
_word = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"[^"]*")+""")
"""A word of a shell command."""
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_WIDEST_FIRST = 32
"""Most columns of a table's first column. A longer cell, such as an id given by a user, has a line of its own."""


def short_name(name: str) -> str:
    """The name of a context: 12 digits of one that is a digest, as a default context's is."""
    return name[:DIGITS] if len(name) == 64 and set(name) <= set("0123456789abcdef") else name


def width(text: str) -> int:
    """The columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, room: int) -> str:
    """``text``, or its beginning and an ellipsis, in at most ``room`` columns."""
    if len(text) <= room and width(text) <= room:
        return text
    return text[: _fitting(text[:room], room - 1)] + "…" if room > 0 else ""


def _fitting(text: str, room: int) -> int:
    """The number of characters at the beginning of ``text`` that fit into ``room`` columns."""
    if text.isascii():
        return min(len(text), max(room, 0))
    count = 0
    for char in text:
        room -= width(char)
        if room < 0:
            break
        count += 1
    return count


def wrapped(text: str, room: int) -> list[str]:
    """The lines of ``text``, broken at blanks where they take more than ``room`` columns, a longer word anywhere."""
    return [piece for line in text.split("\n") for piece in _broken(line, max(room, 2))]


def _broken(line: str, room: int) -> list[str]:
    pieces: list[str] = []
    start = 0
    while True:
        part = line[start : start + room + 1]
        if start + len(part) == len(line) and width(part) <= room:
            return [*pieces, part.rstrip()]
        end = start + (at_blank(part, room) or _fitting(part, room))
        pieces.append(line[start:end].rstrip())
        start = end
        while line[start : start + 1] == " ":
            start += 1


def at_blank(text: str, room: int) -> int:
    """The last place at which ``text`` can be broken so that its beginning fits into ``room`` columns; 0 for none. A
    command in backticks is broken only if there is no other place."""
    end = _fitting(text[: room + 1], room) + 1
    start = len(text) - len(text.lstrip()) + 1
    blanks = [at for at in range(start, min(end, len(text))) if text[at] == " "]
    outside = [at for at in blanks if text.count("`", 0, at) % 2 == 0]
    return (outside or blanks or [0])[-1]


def hanging(text: str, room: int) -> list[str]:
    """``text``, wrapped; each further line is indented by two."""
    first, *more = wrapped(text, room - 2)
    return [first, *(f"  {line}" for line in more)]


def command_lines(label: str, command: str, room: int) -> list[str]:
    """A shell command beside ``label``, on several lines that a shell joins if it takes more than ``room`` columns."""
    indent = width(label)
    if indent + width(command) <= room:
        return [label + command]
    rows = [label]
    for word in _words(command, room - indent - len("   \\")):
        if width(rows[-1]) + width(word) + len("  \\") > room and len(rows[-1]) > indent:
            rows[-1] += " \\"
            rows.append(f"{'':{indent + 2}}{word}")
        else:
            rows[-1] += word if rows[-1] == label else f" {word}"
    return rows


def _words(command: str, room: int) -> list[str]:
    """The words of a command, an option together with its value if they fit."""
    words: list[str] = []
    for word in _word.findall(command):
        last = words[-1] if words else ""
        if last.startswith("--") and " " not in last and word[0] != "-" and width(last) + 1 + width(word) <= room:
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def labelled(label: str, text: str, room: int) -> list[str]:
    """``text`` beside ``label``, wrapped; each further line begins below the text."""
    first, *more = wrapped(text, room - width(label))
    return [f"{label}{first}".rstrip(), *(f"{'':{width(label)}}{line}" for line in more)]


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[str]:
    """Aligned columns. The last one takes the rest of the room, and is cut there; a long cell of the first one has a
    line of its own."""
    last = len(heading) - 1
    widths = [
        max(width(row[index]) for row in (heading, *rows) if index or width(row[0]) <= _WIDEST_FIRST)
        for index in range(last)
    ]
    lines = []
    for row in (heading, *rows):
        cells = list(row)
        if width(cells[0]) > widths[0]:
            lines.append(cut(cells[0], room))
            cells[0] = ""
        line = "".join(f"{cell}{'':{size - width(cell)}}  " for cell, size in zip(cells, widths, strict=False))
        lines.append((line + cut(cells[last], room - width(line))).rstrip())
    return lines


def ago(moment: str) -> str:
    """An RFC 3339 time as in ``3 min ago``. A clock that was set back counts as now."""
    now = datetime.datetime.now(datetime.UTC)
    try:
        seconds = int((now - datetime.datetime.fromisoformat(moment)).total_seconds())
    except (TypeError, ValueError):  # an event of a shape that no version writes
        return moment
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"
