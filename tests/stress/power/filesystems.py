"""The power of real file systems is cut while stores are written, and what a replay of the journal brings back is
judged.

The power goes at a random moment, right after an acknowledgement, or right before one of the calls on the seam. Some
stores are new, others grow from crash to crash; writers are processes of their own, some of them the command line.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from stress.invariants import Acknowledged
from stress.oracle import Picture, ViolationError, require, tree_of
from stress.power.crash_writer import MUTANTS, Orders
from stress.power.images import FLUSH, KINDS, LOG, NOTHING, Image, Kind, Unavailable, checkable, let_go, powered
from stress.power.outage import Crash, Cut, Usual, command_line, struck, undisturbed
from stress.power.recovery import Case
from stress.scenarios import SHARED

from stateline.errors import StatelineError
from stateline.store.protocol import FAST, FULL

if TYPE_CHECKING:
    from stress.processes.kills import Say

EACH = 20
"""Crashes on one image before it is made anew."""
_LARGEST = 16 << 20
"""[bytes] that a growing store may hold."""
_SAVES = 60
"""Saves that a stream makes if its power stays on."""
_CHECKED = 8
"""Every so many crashes the file system's own check is asked."""
_WEIGHTS = {NOTHING: 0.7, LOG: 0.15, FLUSH: 0.15}
_STREAM, _COMMANDS = "stream", "command line"
_BRINGS_DATA = ("data=journal", "nodelalloc")
"""Options of ext4 with which the sync of a directory brings the bytes of new files along."""
CONTROLS = ("saves", "large values")
"""Stories that broken commits are told."""


class Tally(msgspec.Struct):
    """Totals of a suite. ``acknowledged`` counts heads acknowledged to writers, ``judged`` snapshots that were
    read back after a crash; ``found`` has residue and damage by code, ``errors`` how writers ended."""

    crashes: Counter[str] = msgspec.field(default_factory=Counter)
    scenarios: Counter[str] = msgspec.field(default_factory=Counter)
    moments: Counter[str] = msgspec.field(default_factory=Counter)
    flags: Counter[str] = msgspec.field(default_factory=Counter)
    acknowledged: int = 0
    judged: int = 0
    checks: int = 0
    found: Counter[str] = msgspec.field(default_factory=Counter)
    errors: Counter[str] = msgspec.field(default_factory=Counter)


class Growing:
    """A store that is written on from crash to crash, and its promises."""

    def __init__(self, state_dir: Path, durability: str) -> None:
        self.state_dir = state_dir
        self.durability = durability
        self.acknowledged = Acknowledged()

    def size(self) -> int:
        """[bytes]"""
        return sum(map(len, tree_of(self.state_dir).values()))


class Rig:
    """One image, and the crashes on it."""

    def __init__(self, image: Image, rng: Random, usual: dict[str, Usual], tally: Tally) -> None:
        self.image = image
        self.rng = rng
        self.usual = usual
        self.tally = tally
        self.numbers = itertools.count()
        self.growing: list[Growing] = []

    def crash(self, mutant: str = "", scenarios: tuple[str, ...] = ()) -> None:
        """One crash and all that is asked after it. Raises ``ViolationError``."""
        scenario = self.rng.choice(scenarios or (*SHARED, _COMMANDS, *[_STREAM] * 5))
        if scenario == _STREAM:
            self._grow(mutant)
            return
        state_dir = self._place()
        acknowledged = Acknowledged()
        if scenario == _COMMANDS:
            cut = Cut("moment", self.rng.uniform(0.0, 1.5), self._flag())
            crash = command_line(self.image, state_dir, acknowledged, cut, self.rng)
        else:
            cut = self._cut(scenario)
            orders = Orders(scenario, str(state_dir), str(self.image.switch), cut.flag, cut.at, mutant)
            crash = struck(self.image, [orders], acknowledged, cut)
        self._after(Case(state_dir, acknowledged, scenario, exact=scenario != _COMMANDS), crash)
        shutil.rmtree(state_dir)

    def _place(self) -> Path:
        return self.image.path / f"store {next(self.numbers)}"

    def _flag(self) -> int:
        return self.rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]

    def _cut(self, scenario: str) -> Cut:
        """When the power goes while a scenario is told: the moments are spread over its usual length."""
        if scenario not in self.usual:
            state_dir = self._place()
            seed = str(self.rng.random())
            orders = Orders(scenario, str(state_dir), str(self.image.switch), seed=seed, saves=_SAVES)
            self.usual[scenario] = undisturbed(orders)
            shutil.rmtree(state_dir)
        usual = self.usual[scenario]
        how = self.rng.choices(("call", "acknowledgement", "moment"), (0.5, 0.2, 0.3))[0]
        if how == "call":
            return Cut(how, 0.0, self._flag(), at=self.rng.randint(1, usual.calls))
        if how == "acknowledgement":
            return Cut(how, 0.0, self._flag(), after=self.rng.randint(1, usual.notes))
        return Cut(how, self.rng.uniform(0.0, 1.1 * usual.seconds), self._flag())

    def _grow(self, mutant: str) -> None:
        """A crash of one or two writers of a store that was there before, or is new."""
        for store in [store for store in self.growing if store.size() >= _LARGEST]:
            shutil.rmtree(store.state_dir)
            self.growing.remove(store)
        if len(self.growing) < 2 or self.rng.random() < 0.1:
            self.growing.append(Growing(self._place(), self.rng.choices((FULL, FAST), (0.65, 0.35))[0]))
        store = self.rng.choice(self.growing)
        cut = self._cut(_STREAM)
        crew = [
            Orders(
                _STREAM,
                str(store.state_dir),
                str(self.image.switch),
                flag=cut.flag,
                at=cut.at if number == 0 else 0,
                mutant=mutant,
                seed=str(self.rng.random()),
                saves=_SAVES,
                durability=store.durability,
            )
            for number in range(self.rng.choice((1, 1, 2)))
        ]
        crash = struck(self.image, crew, store.acknowledged, cut)
        # Of a fast save that was under way there may be anything.
        fast = store.durability == FAST
        exact = len(crew) == 1
        if not exact:
            store.acknowledged.sort()
        self._after(Case(store.state_dir, store.acknowledged, _STREAM, fast=fast, exact=exact), crash)

    def _after(self, case: Case, crash: Crash) -> None:
        """Replay, judge, replay again, check the file system, go on working. Raises ``ViolationError``."""
        tally = self.tally
        tally.crashes[self.image.kind.name] += 1
        tally.scenarios[case.scenario] += 1
        tally.moments[crash.cut.how] += 1
        tally.flags[("all is flushed", "journal is flushed", "nothing is flushed")[crash.cut.flag]] += 1
        tally.acknowledged += crash.heard
        tally.errors.update(crash.endings)
        self.image.replay()
        before = Picture.of(case.state_dir)
        try:
            tally.found.update(case.judge())
            tally.judged += sum(path.rpartition("/")[2].startswith("state-") for path in before.files)
            self.image.replay()
            require(Picture.of(case.state_dir) == before, "a second replay gives something else")
            if sum(tally.crashes.values()) % _CHECKED == 0 and checkable(self.image.kind):
                wrong = self.image.check()
                require(not wrong, f"the file system itself is damaged: {wrong}")
                tally.checks += 1
            tally.found.update(case.recover())
        except ViolationError as violated:
            raise ViolationError(f"{case.scenario}, {crash}: {violated}") from violated


def controls(root: Path, seed: str, kind: Kind, *, tries: int, mutants: tuple[str, ...] = ()) -> dict[str, str]:
    """Count the crashes, of ``tries``, that reveal each broken commit on one kind of file system. Raises
    :class:`~stress.power.images.Unavailable`, and ``ViolationError`` if files that are not synced are not missed,
    unless the sync of a directory brings them along."""
    rng = Random(f"{seed}:controls:{kind.name}")
    seen: dict[str, str] = {}
    usual: dict[str, Usual] = {}
    for number, mutant in enumerate(mutants or tuple(filter(None, MUTANTS))):
        with powered(root / f"control {number}", kind) as image:
            violated = 0
            rig = Rig(image, rng, usual, Tally())
            for _ in range(tries):
                try:
                    rig.crash(mutant, CONTROLS)
                except (ViolationError, StatelineError) as error:
                    violated += 1
                    let_go(error)
                    image.replay()
        shutil.rmtree(root / f"control {number}")
        seen[mutant] = f"{violated} of {tries}"
        blind = mutant == "no file sync" and not violated and kind.options not in _BRINGS_DATA
        require(not blind, f"{kind.name}: files that are not synced are not missed")
    return seen


def campaign(
    root: Path, seed: str, *, crashes: int, until: float, say: Say, kinds: tuple[Kind, ...] = KINDS, tries: int = 10
) -> dict[str, Any]:
    """Cut the power ``crashes`` times, or until ``until`` [monotonic s], on one kind of file system after the other;
    then ``tries`` times for each broken commit. Gives the summary; what cannot be had here is in its ``skipped``.

    Raises :class:`~stress.invariants.ViolationError` at the first broken invariant; the image is then left as it is,
    unmounted.
    """
    began = time.monotonic()
    root.mkdir(parents=True)
    tally, usual, skipped = Tally(), {}, {}
    waiting = list(kinds)
    for number in itertools.count():
        if not waiting or sum(tally.crashes.values()) >= crashes or time.monotonic() > until:
            break
        kind = waiting[number % len(waiting)]
        place = root / f"image {number}"
        try:
            left = min(EACH, crashes - tally.crashes.total())
            _block(place, Random(f"{seed}:{number}"), kind, usual, tally, left, until)
        except Unavailable as unavailable:
            waiting.remove(kind)
            skipped[kind.name] = str(unavailable)
            say(f"{kind.name}: skipped, {unavailable}")
        shutil.rmtree(place, ignore_errors=True)
        say(f"{tally.crashes.total()} crashes, {tally.acknowledged} acknowledged, {kind.name}")
    seen = {}
    for kind in waiting:
        if tries and time.monotonic() < until:
            seen[kind.name] = controls(root / f"controls {kind.name}", seed, kind, tries=tries)
            say(f"{kind.name}: {seen[kind.name]}")
    return {
        **msgspec.to_builtins(tally),
        "total": tally.crashes.total(),
        "controls": seen,
        "skipped": skipped,
        "seconds": round(time.monotonic() - began, 1),
    }


def _block(
    root: Path, rng: Random, kind: Kind, usual: dict[str, Usual], tally: Tally, crashes: int, until: float
) -> None:
    """Up to ``crashes`` on a new image below ``root``. Raises ``Unavailable``, ``ViolationError``."""
    with powered(root, kind) as image:
        rig = Rig(image, rng, usual, tally)
        for _ in range(crashes):
            if time.monotonic() > until:
                break
            try:
                rig.crash()
            except ViolationError as violated:
                raise ViolationError(f"{kind.name}: {violated}") from violated
