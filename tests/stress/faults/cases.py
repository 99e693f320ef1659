"""One scenario, one fault, one judgement: the scenarios of ``stress.scenarios`` on a seam that fails."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from stress.faults.injection import INTERRUPTS, Failing, Fault, Script
from stress.invariants import (
    chain_of,
    head_of,
    keys_of,
    repair_again,
    require_next_save,
    require_only_residue,
    require_poisoned,
    require_reported,
)
from stress.oracle import Picture, ViolationError, require
from stress.scenarios import NOTES, SCENARIOS, Note, Place, Scenario

from stateline import Store
from stateline.bundle import naming
from stateline.errors import DurabilityUnknownError, StatelineError
from stateline.process.signals import Interrupted
from stateline.store.local.filesystem import Filesystem
from stateline.store.protocol import FULL, Durability

WENT_ON = "went on"
EXCUSED = ("EACCES", "EROFS")
"""Errors that syncing the parent of the state dir may return: it belongs to others."""


class Verdict(msgspec.Struct, frozen=True):
    """Outcome of a case: ``went on``, the code of a typed error, or ``interrupted``; and what is wrong, or ""."""

    outcome: str
    wrong: str = ""


class Watched(Place):
    """A place that remembers the stores that were opened in it."""

    def __init__(
        self, baseline: Baseline, fs: Callable[[], Filesystem | None], listener: Callable[[Note], None]
    ) -> None:
        super().__init__(baseline.path, baseline.files, fs, listener, baseline.scenario.began)
        self.stores: list[Store] = []

    def open(self, durability: Durability = FULL) -> Store:
        """Open a store and remember it."""
        store = super().open(durability)
        self.stores.append(store)
        return store


class Baseline:
    """Initial state of a scenario, prepared once below ``root``; every case gets a copy.

    ``keys`` are the scopes that the scenario has to do with, by hash. ``calls`` are those of the scenario when nothing
    fails.
    """

    def __init__(self, scenario: Scenario, root: Path) -> None:
        self.scenario = scenario
        self.root = root
        self.base = str(root / "base")
        self.path = str(root / "case")
        self.files = root / "files"
        self.files.mkdir(parents=True)
        self.damaged = scenario.damaged
        self.removes = scenario.name == "removal"
        scenario.prepare(Place(self.base, self.files, Filesystem, lambda note: None))
        self.before = Picture.of(self.base) if os.path.isdir(self.base) else Picture({}, frozenset())
        scopes = [] if self.damaged else [name for name in self.before.directories if naming.is_sha256(name)]
        self.heads = {scope: head_of(self.base, scope) for scope in scopes}
        self.keys: dict[str, str] = {}
        script = Script()
        self.renew()
        notes: list[Note] = []
        place = Watched(self, lambda: Failing(script), notes.append)
        scenario.act(place)
        self.calls = script.calls
        for path in (self.base, self.path):
            self.keys.update(keys_of(path))
        self.aside = _set_aside(Picture.of(self.path))

    def renew(self) -> None:
        """Put the copy back to what it was before the scenario."""
        shutil.rmtree(self.path, ignore_errors=True)
        if os.path.isdir(self.base):
            copy(self.base, self.path)

    def case(self, fault: Fault) -> Verdict:
        """Tell the scenario with that fault, and judge."""
        self.renew()
        return Case(self, fault).judged()


def copy(source: str, target: str) -> None:
    """Copy a state dir."""
    os.mkdir(target, 0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            goal = f"{target}/{entry.name}"
            if entry.is_dir():
                copy(entry.path, goal)
                continue
            with open(entry.path, "rb") as file:
                data = file.read()
            fd = os.open(goal, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, data)
            os.close(fd)


class Case:
    """One telling of a scenario."""

    def __init__(self, baseline: Baseline, fault: Fault) -> None:
        self.baseline = baseline
        self.fault = fault
        self.script = Script(fault)
        self.seams: list[Failing] = []
        self.notes: list[Note] = []
        self.outcome = WENT_ON
        self.wrong: list[str] = []

    def _seam(self) -> Failing:
        seam = Failing(self.script)
        self.seams.append(seam)
        return seam

    def judged(self) -> Verdict:
        """Tell it, then look at what is left."""
        opened, threads = descriptors(), threading.active_count()
        self._run_and_check()
        left = descriptors()
        if left > opened:
            gc.collect()
            left = descriptors()
        if left > opened:
            self.wrong.append(f"{left - opened} files are left open")
        if threading.active_count() > threads:
            self.wrong.append("a thread is left")
        return Verdict(self.outcome, "; ".join(self.wrong))

    def _run_and_check(self) -> None:
        place = Watched(self.baseline, self._seam, self.notes.append)
        self._tell(place)
        self.script.end()
        for check in (
            self._check_syncs,
            lambda: self._check_stores(place.stores),
            self._check_scopes,
            self._check_files,
            self._check_the_rest,
        ):
            try:
                check()
            except ViolationError as error:
                self.wrong.append(str(error))
            except (StatelineError, OSError) as error:
                self.wrong.append(f"{type(error).__name__} afterwards: {error}")

    def _tell(self, place: Watched) -> None:
        try:
            self.baseline.scenario.act(place)
        except StatelineError as error:
            self.outcome = error.code
            try:
                require_reported(error, damaged=self.baseline.damaged)
            except ViolationError as harm:
                self.wrong.append(str(harm))
        except (Interrupted, *INTERRUPTS.values()) as error:
            self.outcome = "interrupted"
            if self.fault.error not in INTERRUPTS:
                self.wrong.append(f"{type(error).__name__}: {error}")
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is what is looked for)
            self.outcome = type(error).__name__
            self.wrong.append(f"{type(error).__name__} got out: {error}")

    # -- looking ---------------------------------------------------------------------------------------------------

    def _check_syncs(self) -> None:
        for seam in self.seams:
            require(not seam.again, "; ".join(seam.again))
            told = self.outcome != WENT_ON or self.baseline.damaged
            require(told or not self._sick(seam), f"nobody was told that syncing {self._sick(seam)} failed")

    def _sick(self, seam: Failing) -> list[str]:
        """Syncs that failed and that nothing excuses."""
        inside = [what for what in seam.sick if not what.startswith("/") or what.startswith(self.baseline.path)]
        return inside if self.fault.error in EXCUSED else seam.sick

    def _check_stores(self, stores: list[Store]) -> None:
        for store in stores:
            if self._sick(store.backend.fs):  # type: ignore[attr-defined]
                require_poisoned(store, self.baseline.path, NOTES)

    def _check_scopes(self) -> None:
        """Each scope's chain is whole, and its head the last that was acknowledged, or the one being saved."""
        acknowledged = {scope: [head] for scope, head in self.baseline.heads.items()}
        for note in self.notes:
            if note.what == "removed":
                acknowledged[note.scope] = []
            elif note.what == "head":
                acknowledged.setdefault(note.scope, []).append(note.sha256)
        if self.baseline.damaged:
            self._check_repaired(acknowledged)
            return
        for scope, key in self.baseline.keys.items():
            said = acknowledged.get(scope, [])
            chain = chain_of(self.baseline.path, scope)
            if self.baseline.removes and not chain:
                continue
            require(set(said) <= set(chain), f"acknowledged and lost: one of {said} in {key}")
            newer = chain.index(said[-1]) if said else len(chain)
            require(newer <= 1, f"{newer} snapshots of {key} are newer than the last acknowledged one")
            told = self.fault.error in INTERRUPTS or self.outcome == DurabilityUnknownError.code
            require(newer == 0 or told, f"the head moved, and the caller was told {self.outcome!r}")

    def _check_repaired(self, acknowledged: dict[str, list[str]]) -> None:
        """Require that intact files are in place and acknowledged ones exist."""
        found = Picture.of(self.baseline.path)
        shas = set(found.files.values())
        for said in acknowledged.values():
            require(set(said) <= shas, f"acknowledged and lost: one of {said}")
        more = _set_aside(found) - self.baseline.aside
        require(not more, f"intact, and set aside: {[path for path, sha in found.files.items() if sha in more]}")

    def _check_files(self) -> None:
        """Nothing that was written once is altered or gone, but what the scenario takes away."""
        found = Picture.of(self.baseline.path) if os.path.isdir(self.baseline.path) else Picture({}, frozenset())
        for path, sha in self.baseline.before.immutable().items():
            if self.baseline.removes and path not in found.files and not path.startswith(naming.OBJECTS):
                continue
            if self.baseline.damaged and path not in found.files:
                require(sha in found.files.values(), f"{path} is gone")
                continue
            require(path in found.files, f"{path} is gone")
            require(found.files[path] == sha, f"{path} has other bytes")
        for note in self.notes:
            if note.what == "kept" and not note.scope and note.name:
                require(found.files.get(note.name) == note.name.rpartition("/")[2], f"kept, and lost: {note.name}")

    def _check_the_rest(self) -> None:
        """The place is in order but for residue, and the next writer continues."""
        if self.baseline.damaged:
            repair_again(self.baseline.path)
        require_only_residue(self.baseline.path, repaired=self.baseline.damaged)
        require_next_save(self.baseline.path, self.baseline.keys)


def _set_aside(found: Picture) -> set[str]:
    """The digests of what repairs moved out of the way."""
    return {sha for path, sha in found.files.items() if path.startswith(f"{naming.EXTENSION}repair-")}


def descriptors() -> int:
    """Return the number of open files of this process; 0 if unknown."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def baseline(name: str, root: Path) -> Baseline:
    """The scenario of that name, prepared below ``root``, which is made."""
    return Baseline(SCENARIOS[name], root)
