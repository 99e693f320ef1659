"""Every call of the seam fails, in every scenario: the store says so in words, and nothing that was acknowledged is
lost.

Here a part of it; ``scripts/torture`` does all of it.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from stress.faults.cases import WENT_ON, Baseline, Verdict
from stress.faults.injection import CHANGING, ERRORS, INTERRUPTS, Failing, Fault, Script, faults
from stress.faults.readers import READINGS, UNREADABLE, Library
from stress.invariants import require_reported
from stress.scenarios import SCENARIOS, SHARED

from stateline import Store
from stateline.errors import IntegrityError, StorageError
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Filesystem

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the seam by handles is not for Windows")

MEMORY = Path("/dev/shm")
ALL = (*ERRORS, *INTERRUPTS)
MOST = 80
"""Calls of each scenario that fail here; `scripts/torture --suite errors` takes them all."""
THOROUGH = ("take over",)
"""Stories of which each call fails with each error here, once; of "first save" in each way."""


def one_each(calls: list[str]) -> Iterator[Fault]:
    """For each call one of the ways in which it can fail, another one from call to call."""
    ways: dict[int, list[Fault]] = {}
    for fault in faults(calls, ALL):
        ways.setdefault(fault.at, []).append(fault)
    step = math.ceil(len(ways) / MOST)
    for at, found in list(ways.items())[::step]:
        yield found[at * 7 % len(found)]


def told(verdicts: Iterator[tuple[Fault, Verdict]]) -> Counter[str]:
    """Count the outcomes. Fails with everything that was wrong."""
    outcomes: Counter[str] = Counter()
    wrong = []
    for fault, verdict in verdicts:
        outcomes[verdict.outcome] += 1
        if verdict.wrong:
            wrong.append(f"{fault}: {verdict.wrong}")
    assert not wrong, "\n".join(wrong[:10])
    return outcomes


@pytest.fixture(scope="module", autouse=True)
def light() -> Iterator[None]:
    """Each case may look for files that only garbage holds open; what other tests left in this process is not looked at
    again each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Fastest place for copies: in memory, if possible."""
    import shutil
    import tempfile

    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        yield tmp_path_factory.mktemp("copies")
        return
    place = Path(tempfile.mkdtemp(prefix="stateline-errors-", dir=MEMORY))
    yield place
    shutil.rmtree(place)


def test_a_first_save_survives_every_error_at_every_call_in_every_way(memory: Path) -> None:
    baseline = Baseline(SCENARIOS["first save"], memory / "first")
    outcomes = told((fault, baseline.case(fault)) for fault in faults(baseline.calls, ALL))
    assert outcomes.keys() == {WENT_ON, "storage", "durability_unknown", "interrupted"}


@pytest.mark.parametrize("name", THOROUGH)
def test_a_scenario_survives_every_error_at_every_call(name: str, memory: Path) -> None:
    baseline = Baseline(SCENARIOS[name], memory / name)
    once = [fault for fault in faults(baseline.calls) if (fault.mode, fault.reach) == ("before", "once")]
    outcomes = told((fault, baseline.case(fault)) for fault in once)
    assert outcomes["storage"] > 5 * outcomes["durability_unknown"] > 0


@pytest.mark.parametrize("name", sorted({*SHARED} - {"first save", *THOROUGH}))
def test_a_scenario_survives_an_error_at_many_calls(name: str, memory: Path) -> None:
    baseline = Baseline(SCENARIOS[name], memory / name)
    outcomes = told((fault, baseline.case(fault)) for fault in one_each(baseline.calls))
    assert outcomes["storage"]
    assert outcomes["interrupted"]


@pytest.fixture(scope="module")
def library(memory: Path) -> Library:
    return Library(memory / "library")


@pytest.mark.parametrize("name", READINGS)
def test_unreadable_files_are_not_reported_as_damage_and_stay_in_place(name: str, library: Library) -> None:
    some = list(one_each(library.calls(name)))[::2]
    outcomes = told((fault, library.case(name, fault)) for fault in some)
    # A dry run says how the call would be refused, and refuses nothing itself.
    assert outcomes["storage"] + outcomes[UNREADABLE] or name == "dry run"


def test_every_call_of_the_seam_can_be_made_to_fail() -> None:
    """A call that is new there must be sorted into what it may do."""
    public = {name for name, value in vars(Filesystem).items() if callable(value) and not name.startswith("_")}
    assert public == {name for name in vars(Failing) if name in public}
    assert set(CHANGING) < public


@pytest.mark.parametrize("reach", ["method", "changing"])
def test_a_sticky_error_comes_until_the_script_ends(tmp_path: Path, reach: str) -> None:
    script = Script()
    Store(LocalBackend(str(tmp_path / "dry"), Failing(script))).scope("notes:x").save(1)
    script = Script(Fault(script.calls.index("create") + 1, "ENOSPC", "before", reach))  # type: ignore[arg-type]
    store = Store(LocalBackend(str(tmp_path / "s"), Failing(script)))
    with pytest.raises(StorageError, match="the disk is full"):
        store.scope("notes:x").save(1)
    with pytest.raises(StorageError):
        store.scope("notes:x").save(1)
    assert len(script.struck) >= 2
    script.end()
    assert Store(LocalBackend(str(tmp_path / "s"))).scope("notes:x").save(1).seq == 0


def test_incomplete_error_messages_are_detected() -> None:
    require_reported(StorageError("cannot write; what was there is untouched", hint="try again"))
    for bad in (
        StorageError("", hint="try again"),
        StorageError("cannot write; what was there is untouched"),
        StorageError("cannot write", hint="try again"),
        IntegrityError("altered; nothing was changed", hint="repair"),
    ):
        with pytest.raises(AssertionError):
            require_reported(bad)
