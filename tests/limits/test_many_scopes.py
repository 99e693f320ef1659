"""Two thousand scopes; `scripts/torture --suite limits` does the same with 100,000."""

from __future__ import annotations

from pathlib import Path

from stress import limits

COUNT = 2000


def test_reads_of_a_command_grow_only_with_the_number_of_scopes(tmp_path: Path) -> None:
    root = tmp_path / "many"
    state_dir = limits.build(root, COUNT, print)
    seen = limits.look(root, state_dir, 120.0, together=True)
    limits.judge(seen, COUNT)
    assert len(seen["exec list"].document["runs"]) == COUNT - 1
    assert len(seen["scopes"].document["scopes"]) == COUNT
    assert seen["verify"].document["ok"]
