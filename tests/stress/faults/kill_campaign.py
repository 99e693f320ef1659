"""SIGKILL at every call of every scenario: at each call of the seam, before and after it, and at each system call that
is about the state dir, by strace. After each death the place is judged, another writer saves, and the scenario is told
again.

Run as a program (``syscalls.py ROOT SEED SEAM_POINTS STRACE_POINTS``) it does so with that many points of each kind,
chosen from all scenarios, and prints the summary: for those that have threads and cannot fork.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from stress.faults import killing
from stress.faults.killing import CHANGING, EFFECTS, Child, Death, Ended, Later, Point
from stress.invariants import Expectation, save_next
from stress.oracle import Contents, require
from stress.scenarios import SHARED, Scenario

from stateline.errors import StatelineError

Say = Callable[[str], None]

SCENARIOS = {**SHARED, EFFECTS.name: EFFECTS}
_LOCKED = ("flock", "write")
"""Calls that change nothing in the state dir and are points all the same: others may go on, or hear something."""


class Tally(msgspec.Struct):
    """Totals. ``seam`` and ``strace``: points by scenario; ``struck``: by the method of the seam or the system
    call; ``missed``: processes that ended before a point whose number is not the same each time; ``refused``: how a
    scenario that was told again ended where it is refused."""

    seam: Counter[str] = msgspec.field(default_factory=Counter)
    strace: Counter[str] = msgspec.field(default_factory=Counter)
    struck: Counter[str] = msgspec.field(default_factory=Counter)
    residue: Counter[str] = msgspec.field(default_factory=Counter)
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    missed: int = 0


class KillTrial:
    """One scenario: its place as it was before, and a fresh copy for each death."""

    def __init__(self, root: Path, scenario: Scenario, tally: Tally) -> None:
        self.root = root
        self.scenario = scenario
        self.tally = tally
        self.prepared = root / "prepared"
        self.prepared.mkdir(parents=True)
        scenario.prepare(Later(self.prepared, 0, lambda: None, lambda note: None))
        self.at = root / "now"
        self.before = Contents.read(self.prepared / "s")
        self.told = 0

    def child(self, death: Death) -> Child:
        """The scenario in a process that waits, on a fresh copy of the place."""
        shutil.rmtree(self.at, ignore_errors=True)
        shutil.copytree(self.prepared, self.at)
        return Child(self.scenario.act, self.at, death)

    def calls(self) -> list[str]:
        """The calls of the seam that the scenario makes."""
        return self.child(Death()).go().calls

    def points(self) -> list[Point]:
        """The system calls on the state dir that the scenario makes."""
        return killing.points(self.child(Death()), self.root / "trace", str(self.at / "s"))

    def die_by_seam(self, at: int, *, after: bool) -> None:
        """Kill at that call of the seam, and judge."""
        ended = self.child(Death(at, after=after)).go()
        if self._judge(ended, f"{'after' if after else 'before'} call {at} of the seam"):
            self.tally.seam[self.scenario.name] += 1

    def die_by_strace(self, point: Point) -> None:
        """Kill at that system call, and judge."""
        ended = killing.strike(self.child(Death()), self.root / "trace", point)
        if self._judge(ended, f"at {point.name} number {point.number}"):
            self.tally.strace[self.scenario.name] += 1
            self.tally.struck[point.name] += 1

    def _judge(self, ended: Ended, where: str) -> bool:
        try:
            self._check_after(ended)
        except (AssertionError, StatelineError) as error:
            error.add_note(f"scenario {self.scenario.name!r}, killed {where}; the place is {self.at}")
            raise
        self.tally.missed += not ended.killed
        return ended.killed

    def _check_after(self, ended: Ended) -> None:
        state_dir = self.at / "s"
        removes = self.scenario.name == "removal"
        expected = Expectation(self.before, damaged=self.scenario.damaged, removes=removes)
        expected.apply(*ended.notes)
        tree = expected.judge(state_dir)
        self.tally.residue["temporary files"] += len(tree.temporary)
        # In half of the cases another writer saves first, in the others the scenario is told again first. What is
        # damaged
        # has to be repaired before anybody can save.
        self.told += 1
        saves_first = self.told % 2 == 0 and not expected.damaged
        if saves_first:
            expected.apply(save_next(state_dir))
            expected.judge(state_dir)
        self._run_again(expected)
        expected.judge(state_dir)
        if not saves_first:
            expected.apply(save_next(state_dir))
            expected.judge(state_dir)

    def _run_again(self, expected: Expectation) -> None:
        """By a process that nobody kills. Its errors are the store's, and it loses nothing either."""
        place = Later(self.at, 2, lambda: None, expected.apply)
        try:
            self.scenario.act(place)
        except StatelineError as error:
            self.tally.refused[f"{self.scenario.name}: {type(error).__name__}"] += 1
        if self.scenario.name == EFFECTS.name:
            _require_once(self.at)


def _require_once(root: Path) -> None:
    """Require that each non-repeatable effect ran at most once, and that an unknown outcome was reported."""
    ran, asked = (Counter(_lines(root / name)) for name in ("ran", "asked"))
    for effect in ("pay", "again"):
        require(ran[effect] <= 1, f"the effect {effect!r} ran {ran[effect]} times")
        require(bool(ran[effect] or asked[effect]), f"the effect {effect!r} was left out: ran {ran}, asked {asked}")
    require(ran["look"] >= 1, "a repeatable effect was left out")


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _numbers(calls: list[str], every: bool) -> list[int]:
    return [at for at, name in enumerate(calls) if every or name in CHANGING]


def _worth(point: Point, every: bool) -> bool:
    return every or point.changes or point.name in _LOCKED


@contextmanager
def _in_memory(root: Path) -> Iterator[Path]:
    """A directory for what dies, in memory where there is such a place: what a kill leaves does not depend on the
    medium, and each death is followed by some hundred syncs. When something is violated it is moved to ``root``."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield root
        return
    at = Path(tempfile.mkdtemp(prefix="stateline-", dir=memory))
    try:
        yield at
    except BaseException as error:
        shutil.copytree(at, root, dirs_exist_ok=True)
        error.add_note(f"moved to {root}")
        raise
    finally:
        shutil.rmtree(at, ignore_errors=True)


def campaign(
    root: Path,
    seed: str,
    *,
    until: float,
    say: Say,
    seam: int | None = None,
    strace: int | None = None,
    scenarios: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Kill each scenario, or each of ``scenarios``, at all its points, or at ``seam`` and ``strace`` of all of their
    points, chosen by the ``seed``; until ``until`` [monotonic s]. Gives the summary. Raises ``ViolationError``.

    Of the points of strace those that can change something come first; those that read follow while there is time.
    """
    began = time.monotonic()
    root.mkdir(parents=True, exist_ok=True)
    with _in_memory(root) as at:
        tally = Tally()
        stages = [KillTrial(at / name.replace(" ", "-"), SCENARIOS[name], tally) for name in scenarios or SCENARIOS]
        summary = _campaign(stages, Random(seed), (seam, strace), until, say)
    return {**summary, "seconds": round(time.monotonic() - began, 1)}


def _campaign(
    stages: list[KillTrial], rng: Random, most: tuple[int | None, int | None], until: float, say: Say
) -> dict[str, Any]:
    """``most`` are the points by the seam and by strace that are enough (None: all)."""
    tally, (seam, strace) = stages[0].tally, most
    refused = killing.strace_there()
    summary: dict[str, Any] = {"scenarios": len(stages)}
    by_seam: list[tuple[KillTrial, int, bool]] = []
    by_strace: list[tuple[KillTrial, Point]] = []
    for stage in stages:
        by_seam += [(stage, at, after) for at in _numbers(stage.calls(), seam is None) for after in (False, True)]
        by_strace += [(stage, point) for point in stage.points()] if refused is None else []
    summary["points"] = {
        "seam": len(by_seam),
        "strace": len(by_strace),
        "strace, changing": sum(_worth(point, every=False) for _, point in by_strace),
    }
    rng.shuffle(by_seam)
    rng.shuffle(by_strace)
    # One point of each scenario first, so that a small budget reaches all of them.
    first = {stage.scenario.name: number for number, (stage, _, _) in reversed(list(enumerate(by_seam)))}
    by_seam = [by_seam[at] for at in first.values()] + [
        each for at, each in enumerate(by_seam) if at not in first.values()
    ]
    by_strace.sort(key=lambda each: not _worth(each[1], every=False))
    for stage, at, after in by_seam[:seam]:
        if time.monotonic() >= until:
            break
        stage.die_by_seam(at, after=after)
        _report_progress(tally, say)
    for stage, point in by_strace[:strace]:
        if time.monotonic() >= until:
            break
        stage.die_by_strace(point)
        _report_progress(tally, say)
    if refused:
        summary["skipped"] = refused
    return {**summary, "done": msgspec.to_builtins(tally)}


def _report_progress(tally: Tally, say: Say) -> None:
    seam, strace = tally.seam.total(), tally.strace.total()
    if (seam + strace) % 200 == 0:
        say(f"{seam} kills by the seam, {strace} by strace")


def main(root: str, seed: str, seam: str, strace: str) -> None:
    """Print the summary of a small campaign."""
    summary = campaign(
        Path(root),
        seed,
        until=math.inf,
        say=lambda text: None,
        seam=int(seam),
        strace=int(strace),
    )
    sys.stdout.write(json.dumps(summary))


if __name__ == "__main__":
    main(*sys.argv[1:])
