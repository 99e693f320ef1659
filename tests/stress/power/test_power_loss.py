"""After any power loss, nothing that was acknowledged is lost; and a protocol with one step wrong is found out.

`scripts/torture --suite power` does the same with more of everything.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from random import Random

import pytest
from each_case import for_each
from stress.oracle import ViolationError
from stress.power import model_campaign
from stress.power.disk import Acknowledgement
from stress.power.model_campaign import Budget
from stress.power.mutants import MUTANTS
from stress.power.trial import Trial, record
from stress.scenarios import SCENARIOS

SEED = os.environ.get("STATELINE_TEST_SEED", "20261122")
EACH = 80
"""Distinct disks that each scenario is judged on at least; there are seventeen scenarios."""
AGAIN = {
    "first save": 18,
    "saves": 22,
    "two writers": 50,
    "large values": 70,
    "long lists": 30,
    "refine": 12,
    "turn": 170,
    "conversation": 170,
    "repair": 4,
    "removal": 18,
    "settle": 90,
    "take over": 15,
    "by another": 20,
    "made root": 18,
    "fast parts": 100,
    "fast context": 100,
    "rotten": 4,
}
"""One in so many of a scenario's disks is crashed again while somebody continues from there."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_acknowledged_data_survives_a_power_loss_at_any_moment(scenario: str) -> None:
    judged = model_campaign.one(scenario, SEED, Budget(limit=8, again=AGAIN[scenario]))
    counted = judged.count
    sys.stdout.write(f"seed {SEED}: {counted}\n")
    assert counted.distinct >= EACH
    assert len(judged.disks) == 16 * counted.distinct
    assert len(judged.bare) == 16 * counted.bare
    assert counted.twice > 0
    assert counted.unordered > 0


@pytest.mark.parametrize("kind", ["drawn, full", "drawn, full and fast"])
def test_acknowledged_data_survives_in_random_scenarios(kind: str) -> None:
    assert model_campaign.one(kind, f"{SEED}:{kind}", Budget(limit=16, again=0)).count.judged > 100


def test_every_broken_protocol_is_detected() -> None:
    """``kill`` raises for a mutant that passes."""
    for_each(lambda name: model_campaign.kill(name, SEED), [mutant.name for mutant in MUTANTS])


def test_there_are_enough_broken_protocols() -> None:
    assert len({mutant.name for mutant in MUTANTS}) >= 35


def test_a_violation_is_reported_with_its_steps() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "the pointer's bytes are not synced")
    with mutant.break_it(), pytest.raises(ViolationError) as caught:
        Trial(SCENARIOS["saves"], Random(SEED), limit=64, again=0).run()
    said = str(caught.value)
    assert "saves: the power went after step" in said
    assert "what was left:" in said
    assert "latest.json" in said


def test_a_scenario_is_reproducible() -> None:
    first, second = (model_campaign.one("made root", SEED, Budget(limit=12, again=20)) for _ in range(2))
    assert first == second


def test_every_scenario_acknowledges_a_head(tmp_path: Path) -> None:
    for scenario in SCENARIOS.values():
        log = record(scenario, tmp_path).log
        assert any(isinstance(step, Acknowledgement) and step.note.what == "head" for step in log), scenario.name


def test_a_campaign_stops_when_its_time_is_over(tmp_path: Path) -> None:
    over = time.monotonic()
    summary = model_campaign.campaign(tmp_path / "x", SEED, states=10**9, until=over, say=lambda text: None, jobs=1)
    assert summary["distinct"] == 0
