"""SIGKILL at random moments, with small budgets; `scripts/torture` does the same with large ones."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stress.oracle import ViolationError
from stress.processes import kills, saves

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")

KILLS = 12
POINTS = 12
"""Enough for the renames, the links and most fsyncs of a turn."""


@contextmanager
def seeded() -> Iterator[str]:
    """A seed, which is told when an invariant does not hold."""
    seed = os.environ.get("STATELINE_TEST_SEED") or str(random.randrange(2**32))
    try:
        yield seed
    except ViolationError as violated:
        violated.add_note(f"STATELINE_TEST_SEED={seed}")
        raise


def campaign(root: Path, *, repeatable: bool, wanted: int = KILLS, points: bool = False) -> None:
    with seeded() as seed:
        until = time.monotonic() + 120
        summary = kills.campaign(
            root, seed, repeatable=repeatable, kills=wanted, until=until, say=lambda text: None, points=points
        )
    assert summary["kills"] >= wanted
    assert summary["runs"] >= 1, "every run was seen to its end"


def test_killed_calls_of_repeatable_tasks_lose_nothing_acknowledged_and_repeat_nothing_finished(tmp_path: Path) -> None:
    campaign(tmp_path, repeatable=True)


def test_killed_calls_of_other_tasks_go_on_or_ask_and_never_run_a_task_twice_unasked(tmp_path: Path) -> None:
    campaign(tmp_path, repeatable=False)


@pytest.mark.parametrize("repeatable", [True, False], ids=["repeatable", "once"])
def test_a_turn_that_dies_before_any_of_its_system_calls_is_resumed(repeatable: bool, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace cannot trace here: {probe.stderr.decode('utf-8', 'replace')[:100]}")
    campaign(tmp_path, repeatable=repeatable, wanted=POINTS, points=True)


def test_saves_of_killed_writers_stay_in_one_chain_once_acknowledged(tmp_path: Path) -> None:
    with seeded() as seed:
        summary = saves.campaign(
            tmp_path / "s", seed, writers=4, each=60, until=time.monotonic() + 60, say=lambda text: None
        )
    assert summary["snapshots"] >= summary["saves"] == 240
    assert summary["kills"] >= 1  # on a loaded machine a writer may be done before it is killed
