"""Every call of every scenario, failing with every error: at the seam, once and from then on; and by strace in the real
program. What was acknowledged stays, errors are typed, and the next writer can continue."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from stress.faults import strace_errors
from stress.faults.cases import Baseline, Verdict
from stress.faults.injection import ERRORS, INTERRUPTS, Fault, faults
from stress.faults.readers import READINGS, Library
from stress.oracle import require
from stress.scenarios import SCENARIOS, SHARED

if TYPE_CHECKING:
    from stress.processes.kills import Say

_BATCH = 200
"""Cases between two looks at the clock, and of one process at a time."""
_TOLD = 20
"""Most violations that are told."""
_MEMORY = Path("/dev/shm")
"""Fastest place for copies, if it exists."""
CHOICES = (*SHARED, *(f"reading: {name}" for name in READINGS))
"""All that is told: by name, or ``reading:`` and what is read."""


class Tally(msgspec.Struct):
    """Totals: outcomes by scenario, error, mode and system call, and everything that was wrong."""

    cases: int = 0
    scenarios: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    errors: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    modes: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    calls: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    wrong: list[str] = msgspec.field(default_factory=list)

    def count(self, scenario: str, error: str, mode: str, verdict: Verdict, what: str) -> None:
        """One case more."""
        self.cases += 1
        for table, key in ((self.scenarios, scenario), (self.errors, error), (self.modes, mode)):
            table.setdefault(key, Counter())[verdict.outcome] += 1
        if verdict.wrong:
            self.wrong.append(f"{what}: {verdict.wrong}")

    def add(self, other: Tally) -> None:
        """Another's cases too."""
        self.cases += other.cases
        pairs = ((self.scenarios, other.scenarios), (self.errors, other.errors), (self.modes, other.modes))
        for mine, its in pairs:
            for key, counted in its.items():
                mine.setdefault(key, Counter()).update(counted)
        self.wrong += other.wrong

    def summary(self) -> dict[str, Any]:
        """Return plain data. Raises ``ViolationError`` if something was wrong."""
        told = "\n".join(self.wrong[:_TOLD])
        require(not self.wrong, f"{len(self.wrong)} of {self.cases} cases went wrong:\n{told}")
        return {name: value for name, value in msgspec.to_builtins(self).items() if name != "wrong"}


def campaign(
    root: Path, seed: str, *, until: float, say: Say, jobs: int | None = None, scenarios: tuple[str, ...] = ()
) -> dict[str, Any]:
    """All scenarios and readings, or ``scenarios`` alone, at the seam, each call with each error, by ``jobs`` processes
    (default: one for each processor) until ``until`` [monotonic s]; where that ends earlier, ``possible`` says how many
    there would have been, and which were done is drawn from ``seed``. Gives the summary. Raises ``ViolationError``."""
    began = time.monotonic()
    root.mkdir(parents=True)
    place = Path(tempfile.mkdtemp(prefix="errors-", dir=_MEMORY if _MEMORY.is_dir() else root))
    tally, possible = Tally(), 0
    try:
        work = [
            (name, list(_possible(name, place / f"calls {number}"))) for number, name in enumerate(scenarios or CHOICES)
        ]
        possible = sum(len(cases) for _, cases in work)
        batches = [(name, batch) for name, cases in work for batch in _batches(cases, Random(f"{seed}:{name}"))]
        # Of every scenario the same share, if there is not time for all.
        Random(seed).shuffle(batches)
        for done in _together(place, batches, until, jobs or os.cpu_count() or 1):
            tally.add(done)
            if tally.cases // 5000 > (tally.cases - done.cases) // 5000:
                say(f"{tally.cases} of {possible} cases, {len(tally.wrong)} wrong")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {**tally.summary(), "possible": possible, "seconds": round(time.monotonic() - began, 1)}


def _possible(name: str, root: Path) -> Iterator[Fault]:
    return faults(_Stage(root).calls(name), (*ERRORS, *INTERRUPTS))


def _batches(cases: list[Fault], rng: Random) -> Iterator[list[Fault]]:
    rng.shuffle(cases)
    for start in range(0, len(cases), _BATCH):
        yield cases[start : start + _BATCH]


class _Stage:
    """Scenarios of one process, each prepared once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._baselines: dict[str, Baseline] = {}
        self._library: Library | None = None

    def baseline(self, name: str) -> Baseline:
        if name not in self._baselines:
            self._baselines[name] = Baseline(SCENARIOS[name], self.root / f"scenario {len(self._baselines)}")
        return self._baselines[name]

    def library(self) -> Library:
        self._library = self._library or Library(self.root / "library")
        return self._library

    def calls(self, name: str) -> list[str]:
        if name in SCENARIOS:
            return self.baseline(name).calls
        return self.library().calls(name.partition(": ")[2])

    def judged(self, name: str, fault: Fault) -> Verdict:
        if name in SCENARIOS:
            return self.baseline(name).case(fault)
        return self.library().case(name.partition(": ")[2], fault)


_stage: _Stage | None = None


def _begin(place: Path) -> None:
    global _stage
    _stage = _Stage(place / f"of {os.getpid()}")


def _batch(work: tuple[str, list[Fault], float]) -> Tally:
    name, cases, until = work
    assert _stage is not None
    tally = Tally()
    for fault in cases:
        if time.monotonic() >= until:
            break
        verdict = _stage.judged(name, fault)
        tally.count(name, fault.error, f"{fault.mode}, {fault.reach}", verdict, f"{name}, {fault}")
    return tally


def _together(place: Path, batches: list[tuple[str, list[Fault]]], until: float, jobs: int) -> Iterator[Tally]:
    # Spawned, not forked: what a test process has open and started is no part of this.
    with multiprocessing.get_context("spawn").Pool(jobs, _begin, (place,)) as pool:
        yield from pool.imap_unordered(_batch, [(name, batch, until) for name, batch in batches])


def strace_campaign(root: Path, seed: str, *, until: float, say: Say, jobs: int | None = None) -> dict[str, Any]:
    """System calls of real commands, failing by strace, drawn from ``seed``, until ``until`` [monotonic s] or until
    all are done. Gives the summary, or ``skipped`` with the reason. Raises ``ViolationError``."""
    reason = strace_errors.unusable()
    if reason:
        return {"skipped": reason}
    began = time.monotonic()
    tally = Tally()
    stages = [strace_errors.CommandRunner(root / f"stage {number}") for number in range(jobs or os.cpu_count() or 1)]
    work = [(name, shot) for name in strace_errors.TARGETS for shot in stages[0].shots(name)]
    Random(seed).shuffle(work)
    for done in strace_errors.together(stages, work, until):
        tally.count(done.name, done.shot.error, done.shot.way, done.verdict, f"{done.name}, {done.shot}")
        tally.calls.setdefault(done.shot.call, Counter())[done.verdict.outcome] += 1
        if tally.cases % 100 == 0:
            say(f"{tally.cases} of {len(work)} cases under strace, {len(tally.wrong)} wrong")
    return {**tally.summary(), "possible": len(work), "seconds": round(time.monotonic() - began, 1)}
