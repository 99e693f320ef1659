"""Data to stdout, talk to stderr. What is printed came from others, so nothing in it may act on a terminal."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from stateline.cli.options import Settings

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "bold": "1"}
_HARMFUL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "�")


def plain(text: str) -> str:
    """``text`` with control characters replaced; tab and newline stay."""
    return text.translate(_HARMFUL)


def one_line(value: Any, limit: int = 200) -> str:
    """A value on one line, cut at ``limit`` characters: strings as they are, everything else as JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "replace")
    text = " ".join(plain(text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def coloured(text: str, colour: str, stream: Any = None) -> str:
    """``text`` in a colour if the stream is a terminal that has not said NO_COLOR."""
    stream = stream or sys.stdout
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def emit(settings: Settings, document: Any, lines: list[str]) -> None:
    """The result: one JSON document, or lines for people."""
    if settings.json:
        data = msgspec.json.encode(document)
        if sys.stdout.isatty():
            data = msgspec.json.format(data, indent=2)
        write(data + b"\n")
    else:
        write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def write(data: bytes) -> None:
    """Bytes to stdout."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say(settings: Settings, text: str) -> None:
    """Talk, on stderr."""
    if not settings.quiet:
        print(plain(text), file=sys.stderr)


def warn(settings: Settings, warnings: list[str]) -> None:
    """Warnings, on stderr; with ``--format json`` they are in the document too."""
    for warning in dict.fromkeys(warnings):
        say(settings, f"{coloured('warning:', 'yellow', sys.stderr)} {warning}")


def fail(json: bool, document: dict[str, Any]) -> None:
    """An error that is not a run's outcome."""
    if json:
        write(msgspec.json.encode({"error": document}) + b"\n")
        return
    print(f"{coloured('error:', 'red', sys.stderr)} {plain(document['message'])}", file=sys.stderr)
    if document["hint"]:
        print(f"{coloured('hint:', 'dim', sys.stderr)}  {plain(document['hint'])}", file=sys.stderr)


def table(rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
    """Rows as aligned columns with a heading."""
    cells = [columns, *([one_line(row[name], 64) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
