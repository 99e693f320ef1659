"""Two real calls at one run, context or store; `stress.processes.contests` says what must come of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from stress.processes import contests


@pytest.mark.parametrize("name", contests.CONTESTS)
def test_two_calls_at_once_perform_no_turn_twice_and_lose_nothing(name: str, tmp_path: Path) -> None:
    assert contests.CONTESTS[name](tmp_path / "round")["calls"] >= 2
