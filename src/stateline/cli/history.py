"""``stateline exec history``: the turns of a run, with replies, tool calls and outputs."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from stateline.cli.command import Command, fields_of
from stateline.cli.layout import ago, cut
from stateline.cli.layout import width as columns_of
from stateline.cli.output import Output, coloured, columns, one_line, plain, pretty
from stateline.cli.runs import RUN_OF_STORE, RunOptions
from stateline.cli.snapshot_summary import actor_name

_INDENT = 6
_LEAST = 24
"""Fewest characters of a step, on any terminal."""
_ACTED = {"person": "answered ", "caller": "in the model's place ", "operator": ""}


def _run(options: RunOptions) -> Output:
    from stateline.service.runs import history

    store = options.settings.store()
    rows = history(store, options.run)
    width = columns()
    lines = [line for row in rows for line in turn_lines(row, width, whole=options.settings.verbose)]
    return Output(document={"history": rows}, lines=lines, warnings=store.warnings)


def turn_lines(row: dict[str, Any], width: int, *, whole: bool) -> list[str]:
    """A heading for one turn, and a line for each step, cut at ``width`` [characters]. With ``whole`` nothing is cut:
    long values continue on the next lines."""
    show = _whole if whole else _cut
    room = max(width - _INDENT, _LEAST)
    name = "reply:" if row["stage"] is not None else ""
    steps = [] if row["text"] is None else show(name, row["text"], "", UNSET, room)
    if refused := row["refused"]:
        steps += show("refused reply:", refused["content"], "", UNSET, room)
        for call in refused["tool_calls"]:
            steps += show(f"refused call: {call.get('name')}", call.get("arguments"), "", UNSET, room)
    for call in row["tools"]:
        steps += show(call["name"], call["arguments"], *_ending(call), room)
    if row["output"] is not None:
        steps += show("answer:" if row["by"] == "person" else "", row["output"], "", UNSET, room)
    if row["error"]:
        steps += [coloured(line, "red") for line in show("failed:", row["error"]["message"], "", UNSET, room)]
    heading, rest = f"{row['turn']:>4}  {ago(row['at']):<10}  ", f"  ({one_line(row['reason'])}){_who(row)}"
    heading += one_line(_subject(row), max(width - len(heading) - columns_of(rest), _LEAST)) + rest
    return [cut(heading, max(width, _INDENT + _LEAST)), *(f"{'':{_INDENT}}{line}".rstrip() for line in steps)]


def _subject(row: dict[str, Any]) -> str:
    """The stage that a row is about, or the context."""
    return one_line(row["details"]["scope"]) if row["stage"] is None else one_line(row["stage"])


def _who(row: dict[str, Any]) -> str:
    """The person or agent that acted, in a row about what one did."""
    if row["by"] not in _ACTED:
        return ""
    name = one_line(actor_name(row["actor"]))
    return f"  {_ACTED[row['by']]}{f'by {name}' if name else ''}"


def _ending(call: dict[str, Any]) -> tuple[str, Any]:
    """A word for the end of a call, and its result, or the message of its failure."""
    if call["status"] == "open":
        return "is not finished", UNSET
    if not call["error"]:
        return "->", call["result"]
    if call["by"] == "person" and not call["error"]:
        return "was answered:", call["result"]
    word = "was refused" if call["status"] == "refused" else "failed"
    return f"{word} ({call['error']}):", _message(call["result"])


def _message(result: Any) -> Any:
    """The message of a failure that was reported to the model; any other result unchanged."""
    error = result.get("error") if isinstance(result, dict) else None
    return error.get("message", result) if isinstance(error, dict) else result


def _cut(name: str, value: Any, word: str, result: Any, room: int) -> list[str]:
    """A step on one line: name, value, word, result. If that is too long, name and value get half of the line."""
    before = f"{one_line(name)} {_flat(value)}".strip()
    after = f" {one_line(word)} {'' if result is UNSET else _flat(result)}".rstrip() if word else ""
    if len(before) + len(after) > room:
        before = one_line(before, max(room // 2, room - len(after)))
    return [one_line(before + after, room)]


def _flat(value: Any) -> str:
    return one_line(value, 1 << 62)


def _whole(name: str, value: Any, word: str, result: Any, room: int) -> list[str]:
    lines = _block(one_line(name), value, room)
    return lines + [f"  {line}" for line in _block(one_line(word), result, room - 2)] if word else lines


def _block(name: str, value: Any, room: int) -> list[str]:
    """A name and a value, on one line if they fit, else with the value below."""
    if value is UNSET:
        return [name]
    text = plain(value) if isinstance(value, str) else _flat(value)
    if "\n" not in text and len(name) + 1 + len(text) <= room:
        return [f"{name} {text}".strip()]
    lines = text.split("\n") if isinstance(value, str) else pretty(value)
    return [name, *(f"  {line}" for line in lines)] if name else lines


HISTORY = Command(
    help="""Show a run's turns, oldest first: replies, tool calls, outputs.

Each step is one line, cut at the terminal's width; -v shows all of it.""",
    arguments=[RUN_OF_STORE],
    options=fields_of(RunOptions),
    run=_run,
)
