"""Cost of commands on chains of very different lengths, which should be equal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import chains
from benchmarks.measure import Row, Spent, function, interleaved, ms, process, ratio
from stateline import Store

LENGTHS = (100, 10_000, 100_000)
QUICK = (5, 20)


def measure(place: Path, *, quick: bool, say: Any) -> list[Row]:
    """A row for each command and length; ratios are to the shortest chain."""
    lengths = QUICK if quick else LENGTHS
    works: dict[str, dict[int, Callable[[], Spent]]] = {}
    for length in lengths:
        began = time.monotonic()
        here = place / str(length)
        _build(here, length)
        say(f"growth: a chain of {length} in {time.monotonic() - began:.0f} s")
        for name, work in _works(here).items():
            works.setdefault(name, {})[length] = work
    if not quick:
        _verify(place / str(lengths[-1]), say)
    # What was not synced while the chains were made must not be written out while they are measured.
    os.sync()
    rows = []
    for name, by_length in works.items():
        say(f"growth: {name}")
        rounds = 1 if quick else (201 if name == "save" else 21)
        taken = interleaved({str(length): work for length, work in by_length.items()}, rounds)
        base = taken[str(lengths[0])]
        for length in lengths:
            spent = taken[str(length)]
            rows.append(
                {
                    "what": name,
                    "length": length,
                    "cpu_ms": ms(spent.cpu),
                    "wall_ms": ms(spent.wall),
                    "cpu_ratio": ratio(spent.cpu, base.cpu),
                    "wall_ratio": ratio(spent.wall, base.wall),
                }
            )
    return rows


def _build(place: Path, length: int) -> None:
    chains.begin(sys.executable, place, chains.echo(place))
    head = chains.grow(place, 0).snapshot
    chains.grow(place, length - head.seq - 1)


def _verify(place: Path, say: Any) -> None:
    """The longest chain is a store like any other; raises ``Failed`` if it is not."""
    spent = process(chains.command(sys.executable, place, "verify"))
    say(f"growth: the longest chain verifies, in {spent.wall:.1f} s")


def _works(place: Path) -> dict[str, Callable[[], Spent]]:
    scope = Store.open(place / "state").scope(f"run:{chains.RUN}")

    def save() -> None:
        # The next turn as the engine would save it, but for the decision: state and event of the head, one turn on.
        head = scope.load()
        event = {**head.event, "turn": int(head.event["turn"]) + 1}
        scope.save(head.state, kind="run", event=event, parent=head, masked=True)

    path, run = str(place / "machine.json"), chains.RUN
    words = {
        "execute -i": ("execute", "-i", path, "--id", run),
        "log -n 20": ("log", "-n", "20", f"run:{run}"),
        "show": ("show", f"run:{run}"),
        "exec status": ("exec", "status", run),
    }
    works: dict[str, Callable[[], Spent]] = {"save": lambda: function(save)}
    for name, said in words.items():
        argv = chains.command(sys.executable, place, *said)
        works[name] = lambda argv=argv: process(argv)  # type: ignore[misc]  # bound in the loop
    return works
