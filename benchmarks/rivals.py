"""The same save through what others offer, side by side: time in a warm process, CPU of a fresh one, syncs."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import places, saver
from benchmarks.measure import (
    Failed,
    Row,
    Spent,
    between_marks,
    can_trace,
    environment,
    interleaved,
    ms,
    process,
    ratio,
    syncs,
    traced,
)

SIZE = 2048
_NAMES = {
    "stateline": "Stateline, full",
    "stateline fast": "Stateline, fast",
    "plain": "the plain calls of a commit",
    "langgraph": "LangGraph SqliteSaver.put",
    "burr": "Burr SQLitePersister.save",
    "git": "git add, git commit",
}
_NEED_PACKAGES = ("langgraph", "burr")


def measure(place: Path, *, quick: bool, say: Any) -> list[Row]:
    """A row a saver. Where pip cannot install the others, only those that need nothing are measured."""
    other = places.with_rivals(say)
    pythons = {who: str(other) if who in _NEED_PACKAGES else sys.executable for who in _NAMES}
    skipped = [who for who in _NEED_PACKAGES if other is None]
    if shutil.which("git") is None:
        skipped.append("git")
    if "fast" not in saver.durabilities():
        skipped.append("stateline fast")
    wanted = [who for who in _NAMES if who not in skipped]
    say(f"rivals: {', '.join(wanted)}")
    warm = _warm(place, {who: pythons[who] for who in wanted}, 5 if quick else 200)
    fresh = _fresh(place, {who: pythons[who] for who in wanted}, 1 if quick else 11)
    rows: list[Row] = [{"what": _NAMES[who], "skipped": "not to be had here"} for who in skipped]
    for who in wanted:
        rows.append(
            {
                "what": _NAMES[who],
                "warm_ms": ms(warm[who]),
                "ratio": ratio(warm[who], warm["plain"]),
                "fresh_cpu_ms": ms(fresh[who].cpu),
                "fresh_ratio": ratio(fresh[who].cpu, fresh["bare"].cpu),
                "syncs": _syncs(pythons[who], who, place / "traced" / who),
                "version": _version(pythons[who], who),
            }
        )
    return rows


def _argv(python: str, who: str, place: Path) -> list[str]:
    return [python, saver.__file__, who, str(place), str(SIZE)]


def _warm(place: Path, pythons: dict[str, str], rounds: int) -> dict[str, float]:
    """Medians of saves [s], each saver in a process that lives on and is asked in turn."""
    crew = {
        who: subprocess.Popen(
            _argv(python, who, place / "warm" / who),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for who, python in pythons.items()
    }
    taken: dict[str, list[float]] = {who: [] for who in crew}
    try:
        for number in range(rounds + 2):
            for who, worker in crew.items():
                took = _ask(worker)
                if number >= 2:
                    taken[who].append(took)
    finally:
        for worker in crew.values():
            worker.communicate()
    return {who: statistics.median(times) for who, times in taken.items()}


def _ask(worker: subprocess.Popen[str]) -> float:
    if worker.stdin is None or worker.stdout is None:
        raise ValueError("a worker needs pipes")
    try:
        worker.stdin.write("save\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())
    except (OSError, ValueError):
        raise Failed(f"{' '.join(worker.args)} died") from None  # type: ignore[arg-type]  # the words given to Popen


def _fresh(place: Path, pythons: dict[str, str], rounds: int) -> dict[str, Spent]:
    """CPU of a process that starts, opens what the warm ones made, saves once and ends."""
    line = place / "line"
    line.write_text("save\n")

    def once(who: str, python: str) -> Callable[[], Spent]:
        argv = _argv(python, who, place / "warm" / who)
        return lambda: process(argv, said=str(line))

    works = {who: once(who, python) for who, python in pythons.items()}
    return interleaved({"bare": lambda: process([sys.executable, "-c", "pass"]), **works}, rounds)


def _syncs(python: str, who: str, place: Path) -> int | None:
    """Of a save when everything is there; None without strace."""
    if not can_trace():
        return None
    parts = between_marks(traced(_argv(python, who, place), said="save\n" * 4))
    # Two marks a save: before it, and after it.
    return syncs(parts[-2])


def _version(python: str, who: str) -> str:
    if who == "git":
        return subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    package = {"langgraph": "langgraph-checkpoint-sqlite", "burr": "burr"}.get(who, "stateline")
    return "" if who == "plain" else places.versions(python, [package]).get(package, "")
