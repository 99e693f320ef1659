"""One step of a turn as text: a reply, a tool call with its result, an output or a failure."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from stateline.cli.layout import width
from stateline.cli.output import one_line, plain, pretty


def call_lines(call: dict[str, Any], room: int, *, whole: bool = False) -> list[str]:
    """A tool call and its end, on one line unless it is shown whole."""
    return (whole_step if whole else cut_step)(call["name"], call["arguments"], *_ending(call), room)


def _ending(call: dict[str, Any]) -> tuple[str, Any]:
    """A word for the end of a call, and its result, or the message of its failure."""
    if call["status"] == "open":
        return "is not finished", UNSET
    if not call["error"]:
        return "was answered:" if call["by"] == "person" else "->", call["result"]
    word = "was refused" if call["status"] == "refused" else "failed"
    return f"{word} ({call['error']}):", _message(call["result"])


def _message(result: Any) -> Any:
    """The message of a failure that was reported to the model; any other result unchanged."""
    error = result.get("error") if isinstance(result, dict) else None
    return error.get("message", result) if isinstance(error, dict) else result


def cut_step(name: str, value: Any, word: str, result: Any, room: int) -> list[str]:
    """A step on one line: name, value, word, result. If that is too long, name and value get half of the line."""
    before = f"{one_line(name)} {_flat(value)}".strip()
    after = f" {one_line(word)} {'' if result is UNSET else _flat(result)}".rstrip() if word else ""
    if width(before) + width(after) > room:
        before = one_line(before, max(room // 2, room - width(after)))
    return [one_line(before + after, room)]


def _flat(value: Any) -> str:
    return one_line(value, 1 << 62)


def whole_step(name: str, value: Any, word: str, result: Any, room: int) -> list[str]:
    lines = _block(one_line(name), value, room)
    return lines + [f"  {line}" for line in _block(one_line(word), result, room - 2)] if word else lines


def _block(name: str, value: Any, room: int) -> list[str]:
    """A name and a value, on one line if they fit, else with the value below."""
    if value is UNSET:
        return [name]
    text = plain(value) if isinstance(value, str) else _flat(value)
    if "\n" not in text and width(name) + 1 + width(text) <= room:
        return [f"{name} {text}".strip()]
    lines = text.split("\n") if isinstance(value, str) else pretty(value)
    return [name, *(f"  {line}" for line in lines)] if name else lines
