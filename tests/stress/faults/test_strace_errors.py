"""System calls of real commands fail; strace makes them. A handful here, and all of them in ``scripts/torture``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from stress.faults.strace_errors import CommandRunner, Shot, unusable

CASES = 4
"""For each command; one takes a third of a second."""


@pytest.mark.parametrize("name", ["execute, a turn", "repair --apply", "verify", "scenario: saves"])
def test_a_command_whose_system_calls_fail_says_so_and_loses_nothing(name: str, tmp_path: Path) -> None:
    reason = unusable()
    if reason:
        pytest.skip(reason)
    stage = CommandRunner(tmp_path / "stage")
    shots: list[Shot] = list(stage.shots(name))
    assert len({shot.call for shot in shots}) >= 4, "the command was seen at work"
    wrong = []
    outcomes: Counter[str] = Counter()
    for shot in Random(name).sample(shots, CASES):
        verdict = stage.fire(name, shot).verdict
        outcomes[verdict.outcome] += 1
        if verdict.wrong:
            wrong.append(f"{shot}: {verdict.wrong}")
    assert not wrong, "\n".join(wrong)
    assert sum(outcomes.values()) == CASES
