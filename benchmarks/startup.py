"""CPU of whole processes as multiples of a Python that does nothing, and what they import without need."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import chains
from benchmarks.measure import Row, interleaved, ms, process, ratio
from benchmarks.needed import brought, judge, loaded

BARE = "python -c pass"
_SAVE = """
import sys
from stateline import Store
Store.open(sys.argv[1]).scope("notes:bench").save({"number": 1, "text": "x" * 2000})
"""


def measure(place: Path, *, quick: bool, say: Any) -> list[Row]:
    """A row a command; ``ratio`` is CPU, user and system, children included."""
    python = sys.executable
    path = chains.echo(place)
    chains.begin(python, place, path)
    chains.grow(place, 5 if quick else 100)
    words = _commands(place, path)
    rounds = 1 if quick else 41
    say(f"startup: {len(words)} commands, {rounds} rounds")
    works = {name: (lambda argv=[python, *rest]: process(argv)) for name, rest in words.items()}
    taken = interleaved(works, rounds)
    bare, libraries = loaded(["-c", "pass"]), brought()
    rows = []
    for name, spent in taken.items():
        row: Row = {
            "what": name,
            "cpu_ms": ms(spent.cpu),
            "wall_ms": ms(spent.wall),
            "ratio": ratio(spent.cpu, taken[BARE].cpu),
        }
        if name in _MEASURED:
            row |= judge(name, loaded(words[name]), bare, libraries)
        rows.append(row)
    return rows


def _recording(place: Path) -> str:
    """A recorded conversation of two exchanges, below ``place``: a context is derived, and a prompt is answered."""
    context = {"prompts": {"system": "Be brief.", "developer": []}, "settings": {"temperature": 0.2}}
    directory = place / "recording"
    directory.mkdir(mode=0o700)
    for number, (purpose, content) in enumerate((("derive", json.dumps(context)), ("turn", "Hello.")), 1):
        request = {"model": "", "messages": [], "tools": [], "settings": {}, "output_schema": None}
        exchange = {"version": "1", "purpose": purpose, "digest": "", "request": request, "reply": {"content": content}}
        (directory / f"{number:04}.json").write_text(json.dumps(exchange))
    return str(directory)


_MEASURED = ("--version", "--help", "log -n 20", "show", "exec status", "execute -i", "run --playback", "save by API")


def _commands(place: Path, path: str) -> dict[str, Sequence[str]]:
    """Arguments of ``python``, by the name of the row."""

    def stateline(*words: str) -> list[str]:
        return chains.command(sys.executable, place, *words)

    run = chains.RUN
    return {
        BARE: ["-c", "pass"],
        "--version": [stateline()[0], "--version"],
        "--help": [stateline()[0], "--help"],
        "log -n 20": stateline("log", "-n", "20", f"run:{run}"),
        "show": stateline("show", f"run:{run}"),
        "exec status": stateline("exec", "status", run),
        "execute -i": stateline("execute", "-i", path, "--id", run),
        "run --playback": stateline("run", "-p", "Say hello.", "--playback", _recording(place)),
        "save by API": ["-c", _SAVE, str(place / "api")],
    }
