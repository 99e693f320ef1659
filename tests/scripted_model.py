"""A model that says what a test wrote down for it, one reply a call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stateline.bundle.canonical import Json
from stateline.engine.dependencies import Dependencies
from stateline.engine.record import Run
from stateline.model.protocol import ModelCallError, ModelRequest, Reply, TextListener, ToolCall, Usage
from stateline.service.options import ModelSource

Line = Reply | ModelCallError | Callable[[ModelRequest], Reply]


def says(content: str, usage: tuple[int, int] | None = None) -> Reply:
    """An answer."""
    return Reply(content=content, usage=Usage(*usage) if usage else None, model="scripted-1")


def calls(*wanted: tuple[str, dict[str, Any]], content: str = "", usage: tuple[int, int] | None = None) -> Reply:
    """A reply that calls tools, by name and arguments."""
    listed = [ToolCall(f"c{number}", name, arguments) for number, (name, arguments) in enumerate(wanted)]
    spent = Usage(*usage) if usage else None
    return Reply(content=content, tool_calls=listed, finish="tool_calls", usage=spent, model="scripted-1")


class FixedModels(ModelSource):
    """Gives what ``choose`` gives for each run; ``exchanges`` is what the first event says."""

    def __init__(self, choose: Dependencies | Callable[[Run], Dependencies], exchanges: Json = None) -> None:
        self._choose = choose
        self._exchanges = exchanges

    def dependencies(self, run: Run) -> Dependencies:
        return self._choose if isinstance(self._choose, Dependencies) else self._choose(run)

    def begin(self) -> Json:
        return self._exchanges


class Scripted(ModelSource):
    """Goes through its ``lines`` once, in order, whatever it is asked; ``requests`` is what it was asked."""

    def __init__(self, *lines: Line) -> None:
        self.lines = list(lines)
        self.requests: list[ModelRequest] = []

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        self.requests.append(request)
        line = self.lines.pop(0)
        if callable(line):
            line = line(request)
        if isinstance(line, ModelCallError):
            raise line
        if on_text is not None:
            on_text(line.content)
        return line

    def dependencies(self, run: Run) -> Dependencies:
        return Dependencies(model=self, name="scripted/one")


def write_machine(place: Path, stages: dict[str, Any], **more: Any) -> str:
    """A machine file in ``place``."""
    path = place / "m.json"
    path.write_text(json.dumps({"stateline": 1, "name": "m", "stages": stages, **more}))
    return str(path)


def write_tools(place: Path, **tools: dict[str, Any]) -> None:
    """A tools manifest ``tools.json`` in ``place``. Each tool needs ``argv``."""
    listed = [
        {"name": name, "description": f"Does {name}.", "schema": {"type": "object"}, **tool}
        for name, tool in tools.items()
    ]
    (place / "tools.json").write_text(json.dumps({"tools": listed}))


def shell(script: str, **more: Any) -> dict[str, Any]:
    """A tool that is a line of shell."""
    return {"argv": ["/bin/sh", "-c", script], **more}
