"""Bytes written a turn by ``execute -i``: with a large value that stays, and with a conversation that grows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import chains
from benchmarks.measure import Row, can_trace, process, syncs, traced, written

MIB = 1 << 20
MESSAGE = 500
"""Size of a message in the conversation [bytes]."""
TURNS = (10, 100, 1000)


def measure(place: Path, *, quick: bool, say: Any) -> list[Row]:
    """A row a turn that was watched."""
    say("bytes: a value of 1 MiB that stays")
    rows = [_staying(place / "value", 3 if quick else 10)]
    say("bytes: a conversation")
    rows += _conversation(place / "conversation", (3, 6) if quick else TURNS)
    return rows


def _staying(place: Path, turns: int) -> Row:
    value = place / "value.json"
    place.mkdir(parents=True)
    value.write_text(json.dumps("stays " * (MIB // 6)))
    stages = {
        "fill": {
            "task": ["/bin/cat", str(value)],
            "repeatable": True,
            "set": {"large": "output"},
            "default_next": "turn",
        },
        "turn": {
            "task": ["/bin/echo", "1"],
            "repeatable": True,
            "max_visits": chains.ENDLESS,
            "default_next": "turn",
        },
    }
    path = chains.machine(place, stages)
    chains.begin(sys.executable, place, path)
    chains.grow(place, turns)
    return _watched(place, path, "1 MiB that stays", turns + 2)


def _conversation(place: Path, turns: tuple[int, ...]) -> list[Row]:
    # Messages differ, as they do: equal ones would share their objects.
    message = "{'role': 'user', 'number': visits.talk, 'content': output}"
    text = "x" * (MESSAGE - len('{"content":"","number":1000,"role":"user"}'))
    talk = {
        "task": ["/bin/echo", json.dumps(text)],
        "repeatable": True,
        "max_visits": chains.ENDLESS,
        "set": {"messages": f"state.messages + [{message}]"},
        "default_next": "talk",
    }
    path = chains.machine(place, {"talk": talk}, {"messages": []})
    chains.begin(sys.executable, place, path)
    done, rows = 1, []
    for turn in turns:
        chains.grow(place, turn - 1 - done, lambda number: text)
        rows.append(_watched(place, path, f"a conversation, message {turn}", turn))
        done = turn
    return rows


def _watched(place: Path, path: str, what: str, turn: int) -> Row:
    """One turn, in a process: what it wrote."""
    state = place / "state"
    before = _sizes(state)
    argv = chains.command(sys.executable, place, "execute", "-i", path, "--id", chains.RUN)
    calls = None
    if can_trace():
        calls = traced(argv)
    else:
        process(argv)
    after = _sizes(state)
    new = {name: size for name, size in after.items() if name not in before}
    # The pointer is a new file each time, under an old name.
    pointers = sum(size for name, size in after.items() if name.endswith("latest.json"))
    files = sum(new.values()) + pointers
    return {
        "what": what,
        "turn": turn,
        "bytes_written": written(calls, str(state)) if calls is not None else files,
        "bytes_of_files": files,
        "new_files": len(new),
        "new_objects": sum("/objects/" in name for name in new),
        "snapshot_bytes": max((size for name, size in new.items() if "/state-" in name), default=0),
        "syncs": syncs(calls) if calls is not None else None,
        "counted_by": "strace" if calls is not None else "files",
    }


def _sizes(place: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in place.rglob("*") if path.is_file()}
