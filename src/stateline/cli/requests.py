"""A request as text, with commands that answer it.

Each command names the request, so that pasting it twice gives one answer.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from msgspec import UNSET

from stateline.cli.layout import command_lines, labelled
from stateline.cli.output import columns, one_line, plain
from stateline.machine.expressions.schema_example import example

_SHOWN_RESULTS = 5
"""Most results of tools beside a request, the newest ones; the document has all of them."""


def request_lines(run: str, waiting: dict[str, Any], kept: bool) -> list[str]:
    """The request; if the run was ``kept``, with commands that answer it."""
    lines = labelled("  asks a model: ", plain(waiting["prompt"]), columns())
    lines += _results(waiting["messages"])
    lines += [line for tool in waiting["tools"] for line in labelled("  tool ", _tool_text(tool), columns())]
    if waiting["output_schema"] is not None:
        lines += labelled("  schema: ", one_line(waiting["output_schema"]), columns())
    return [*lines, *_commands(run, waiting)] if kept else lines


def answer_lines(run: str, waiting: dict[str, Any]) -> list[str]:
    """The command that answers a person's request, with an example that fits its schema."""
    return _command("answer", run, waiting, example(waiting["schema"]))


def _kind(schema: dict[str, Any]) -> str:
    """The type in ``schema``, of several the first but null; "" without one."""
    given = schema.get("type")
    kinds = [kind for kind in given if kind != "null"] if isinstance(given, list) else [given]
    return str((kinds and kinds[0]) or ("object" if "properties" in schema else ""))


def _results(messages: list[dict[str, Any]]) -> list[str]:
    if not messages or messages[-1]["role"] != "tool":
        return []
    results = [message for message in messages if message["role"] == "tool"][-_SHOWN_RESULTS:]
    texts = (f"{one_line(result['name'])} returned: {one_line(result['content'])}" for result in results)
    return [line for text in texts for line in labelled("  ", text, columns())]


def _tool_text(tool: dict[str, Any]) -> str:
    """Name, parameters with types (``?`` marks optional ones), and description."""
    schema = tool["parameters"]
    required = schema.get("required") or []
    properties = schema.get("properties") or {}
    parameters = []
    for name in dict.fromkeys([*properties, *required]):
        part = properties.get(name)
        kind = _kind(part) if isinstance(part, dict) else ""
        parameters.append(f"{name}{'' if name in required else '?'}" + (f": {kind}" if kind else ""))
    return f"{one_line(tool['name'])}({one_line(', '.join(parameters))}): {one_line(tool['description'])}"


def _commands(run: str, waiting: dict[str, Any]) -> list[str]:
    schema = waiting["output_schema"]
    lines = _command("answer", run, waiting, {"response": "TEXT"} if schema is None else example(schema))
    if schema is None:
        lines += command_lines(" " * 10, f"echo TEXT | stateline exec resume {run} --input-format text", columns())
    if waiting["tools"]:
        tool = waiting["tools"][0]
        parameters = example(tool["parameters"])
        call = {"tools": [{"name": tool["name"], "params": parameters}]}
        lines += _command("call", run, waiting, UNSET if parameters is UNSET else call)
    return lines


def interrupt_lines(run: str, waiting: dict[str, Any]) -> list[str]:
    """The commands for an effect of unknown outcome: run it again, or give its result."""
    return [f"  again:  stateline exec resume {run} --retry", *_command("result", run, waiting, UNSET)]


def _command(label: str, run: str, waiting: dict[str, Any], answer: Any) -> list[str]:
    """The command that gives ``answer`` (UNSET: no example is known)."""
    word = "JSON" if answer is UNSET else plain(shlex.quote(json.dumps(answer)))
    request = plain(shlex.quote(str(waiting["requestId"])))
    command = f"stateline exec resume {run} --request {request} --answer {word}"
    return command_lines(f"  {label + ':':7} ", command, columns())
