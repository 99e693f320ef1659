"""Machines and chains to measure on. A long chain is made by the product's own engine, only without waiting for the
disk and without processes for its tasks: each turn is decided, described and saved as ever."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Failed, environment
from stateline import Store
from stateline.engine.event_codec import Cost
from stateline.engine.record import Run, load_run
from stateline.engine.step import EventContext, take
from stateline.machine.decider.run import Succeeded
from stateline.redaction.redactor import Redactor
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem

RUN = "bench"
ENDLESS = 1_000_000_000
"""Visits that no measurement reaches; without a bound a stage must not follow itself."""


class Unsynced(Filesystem):
    """The seam without waiting for the disk: for stores that are thrown away."""

    def sync_file(self, fd: int) -> None:
        """Return at once."""

    def sync_directory(self, directory: Directory) -> None:
        """Return at once."""


def store(place: Path) -> Store:
    """A store whose saves are not synced, though their events say ``full``."""
    return Store(LocalBackend(str(place), Unsynced()), redactor=Redactor())


def machine(place: Path, stages: dict[str, Any], state: Any = None) -> str:
    """Write a machine file; its path."""
    path = place / "machine.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"stateline": 1, "name": "bench", "state": state or {}, "stages": stages}))
    return str(path)


def echo(place: Path, **more: Any) -> str:
    """A machine whose every turn runs /bin/echo."""
    turn = {"task": ["/bin/echo", "1"], "repeatable": True, "max_visits": ENDLESS, "default_next": "turn", **more}
    return machine(place, {"turn": turn})


def command(python: str, place: Path, *words: str) -> list[str]:
    """The argv of ``stateline`` beside ``python`` on the store below ``place``."""
    return [str(Path(python).parent / "stateline"), "--state-dir", str(place / "state"), *words]


def begin(python: str, place: Path, path: str, *words: str) -> None:
    """The run's first turn, in a process, as a user would."""
    argv = command(python, place, "execute", "-i", path, "--id", RUN, *words)
    done = subprocess.run(
        argv, capture_output=True, text=True, env=environment(), stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise Failed(f"the first turn ended with {done.returncode}: {done.stderr[-300:]}")


def grow(place: Path, turns: int, output: Callable[[int], Any] = lambda number: 1) -> Run:
    """Let the run in the store below ``place`` take more turns, with ``output(number)`` as what its task said."""
    scope = store(place / "state").scope(f"run:{RUN}")
    with scope.locked():
        run = load_run(scope.store, RUN)
        for number in range(turns):
            run = take(run, EventContext(event=Succeeded(output=output(number)), cost=Cost(seconds=0.001)))
    return run
