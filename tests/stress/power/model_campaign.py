"""Power losses, by the model of ``stress.power``: every scenario, everything that may be left, and once more while
somebody continues from there; and broken protocols, which the model must tell from the real one.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from stress.oracle import ViolationError, require
from stress.power.mutants import MUTANTS
from stress.power.random_scenarios import drawn
from stress.power.trial import Count, Trial
from stress.scenarios import SCENARIOS

Say = Callable[[str], None]


class Budget(msgspec.Struct, frozen=True):
    """``limit`` images for each crash; one in ``again`` of the disks is crashed a second time."""

    limit: int
    again: int


QUICK = Budget(limit=48, again=24)
DEEP = Budget(limit=96, again=2)
DRAWN = Budget(limit=64, again=4)


def campaign(
    root: Path, seed: str, *, states: int, until: float, say: Say, jobs: int = 0, scenarios: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Come to ``states`` distinct disks at least, or until ``until`` [monotonic s]: every scenario with a small budget,
    then with a large one, then drawn ones; or ``scenarios`` alone, again and again. ``jobs`` processes do it (0: as
    many as there are processors).

    Gives the summary. Raises ``ViolationError`` at the first broken promise, with the steps that led there.
    """
    began = time.monotonic()
    root.mkdir(parents=True, exist_ok=True)
    disks: set[bytes] = set()
    bare: set[bytes] = set()
    by_scenario: dict[str, Counter[str]] = {}
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1, multiprocessing.get_context("spawn")) as pool:
        tasks = _tasks(seed, scenarios)
        running: set[Future[Judged]] = set()
        try:
            while len(disks) < states and time.monotonic() < until:
                while len(running) < 2 * (jobs or os.cpu_count() or 1):
                    running.add(pool.submit(one, *next(tasks)))
                done, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    judged = future.result()
                    disks.update(_parts(judged.disks))
                    bare.update(_parts(judged.bare))
                    by_scenario.setdefault(judged.scenario, Counter()).update(msgspec.structs.asdict(judged.count))
                    say(f"{judged.scenario}: {judged.count.judged} judged; {len(disks)} distinct disks")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    totals = sum(by_scenario.values(), Counter())
    return {
        "distinct": len(disks),
        "distinct but for temporary files": len(bare),
        "judged": totals["judged"],
        "after a second crash": totals["twice"],
        "out of order": totals["unordered"],
        "crash points": totals["points"],
        "scenarios": len(by_scenario),
        "judged of each": {scenario: counted["judged"] for scenario, counted in sorted(by_scenario.items())},
        "seconds": round(time.monotonic() - began, 1),
    }


def _tasks(seed: str, scenarios: tuple[str, ...]) -> Iterator[tuple[str, str, Budget]]:
    for budget in (QUICK, DEEP):
        for name in scenarios or sorted(SCENARIOS):
            yield name, f"{seed}:{name}", budget
    for number in count():
        if scenarios:
            yield scenarios[number % len(scenarios)], f"{seed}:{number}", DEEP
            continue
        kind = "drawn, full and fast" if number % 2 else "drawn, full"
        yield kind, f"{seed}:{number}", DRAWN


def _parts(fingerprints: bytes) -> Iterator[bytes]:
    return (fingerprints[at : at + 16] for at in range(0, len(fingerprints), 16))


class Judged(msgspec.Struct, frozen=True):
    """Result of one scenario: its counts, and the fingerprints, 16 bytes each, of the distinct disks, with and without
    the bytes of temporary files."""

    scenario: str
    count: Count
    disks: bytes
    bare: bytes


def one(name: str, seed: str, budget: Budget) -> Judged:
    """Judge one scenario. Raises ``ViolationError``, with its seed, at the first broken promise."""
    scenario = SCENARIOS[name] if name in SCENARIOS else drawn(seed, fast="fast" in name)
    trial = Trial(scenario, Random(seed), limit=budget.limit, again=budget.again)
    try:
        trial.run()
    except ViolationError as error:
        # By value: what a process raises is told by its words.
        raise ViolationError(f"{name}, seed {seed}:\n{error}") from None
    return Judged(name, trial.count, b"".join(sorted(trial.disks)), b"".join(sorted(trial.bare)))


def mutants(seed: str, *, until: float, say: Say) -> dict[str, Any]:
    """Let the model judge each broken protocol until it finds it out. Raises ``ViolationError`` for one that passes."""
    began = time.monotonic()
    told: dict[str, int] = {}
    for mutant in MUTANTS:
        require(time.monotonic() < until, f"no time was left for the mutant {mutant.name!r}")
        told[mutant.name] = kill(mutant.name, seed)
        say(f"killed after {told[mutant.name]} disks: {mutant.name}")
    return {"killed": len(told), "of": len(MUTANTS), "disks": told, "seconds": round(time.monotonic() - began, 1)}


def kill(name: str, seed: str) -> int:
    """Let the model judge one broken protocol; how many disks it took. Raises ``ViolationError`` if it passes."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    trial = Trial(SCENARIOS[mutant.scenario], Random(seed), limit=24, shuffled=True)
    try:
        with mutant.break_it():
            trial.run()
    except ViolationError:
        return trial.count.judged
    raise ViolationError(f"the model does not see that {name}: {trial.count}")
