"""Two concurrent calls on one run, context or store, with the scenarios of `stress.processes.contests`."""

from __future__ import annotations

from pathlib import Path

import pytest
from stress.processes import contests


@pytest.mark.parametrize("name", contests.CONTESTS)
def test_two_concurrent_calls_perform_each_turn_once(name: str, tmp_path: Path) -> None:
    assert contests.CONTESTS[name](tmp_path / "round")["calls"] >= 2
