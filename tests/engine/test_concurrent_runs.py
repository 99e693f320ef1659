"""Six processes at one run; `scripts/torture --suite runs` does the same more often."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns import kills, races


@pytest.mark.parametrize("name", races.ROUNDS)
def test_six_processes_at_one_run_run_each_task_once_and_end_alike(name: str, tmp_path: Path) -> None:
    wanted = kills.reference(tmp_path / "reference", repeatable=False)
    counts = races.ROUNDS[name](tmp_path / "round", wanted)
    assert counts["calls"] >= races.PROCESSES
