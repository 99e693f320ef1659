"""``stateline exec history``: the turns of a run, with replies, tool calls and outputs."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from stateline.cli.command import Command, fields_of
from stateline.cli.layout import ago, cut
from stateline.cli.layout import width as columns_of
from stateline.cli.output import Output, coloured, columns, one_line
from stateline.cli.runs import RUN_OF_STORE, RunOptions
from stateline.cli.snapshot_summary import actor_name
from stateline.cli.step_text import call_lines, cut_step, whole_step

_INDENT = 6
_LEAST = 24
"""Fewest characters of a step, on any terminal."""
_REASONS = {"replaced": "machine replaced"}
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
    show = whole_step if whole else cut_step
    room = max(width - _INDENT, _LEAST)
    name = "reply:" if row["stage"] is not None else ""
    steps = [] if row["text"] is None else show(name, row["text"], "", UNSET, room)
    if refused := row["refused"]:
        steps += show("refused reply:", refused["content"], "", UNSET, room)
        for call in refused["tool_calls"]:
            steps += show(f"refused call: {call.get('name')}", call.get("arguments"), "", UNSET, room)
    for call in row["tools"]:
        steps += call_lines(call, room, whole=whole)
    if row["output"] is not None:
        steps += show("answer:" if row["by"] == "person" else "", row["output"], "", UNSET, room)
    if row["error"]:
        steps += [coloured(line, "red") for line in show("failed:", row["error"]["message"], "", UNSET, room)]
    # A person's answer that is no output is the result of a tool, which the reply's row shows.
    given = row["reason"] == "answered" and row["by"] == "person" and not steps
    reason = "result of a tool" if given else _REASONS.get(row["reason"], one_line(row["reason"]))
    heading, rest = f"{row['turn']:>4}  {ago(row['at']):<10}  ", f"  ({reason}){_who(row)}"
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


HISTORY = Command(
    help="""Show a run's turns, oldest first: replies, tool calls, outputs.

Each step is one line, cut at the terminal's width; -v shows all of it.""",
    arguments=[RUN_OF_STORE],
    options=fields_of(RunOptions),
    run=_run,
)
