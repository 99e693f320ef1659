"""Corruptions of sample stores and of generated ones, with small budgets.

`scripts/torture` runs the whole campaigns (`damage`, `audits`, `repairs`, `tampering`).
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from random import Random

import pytest
from stress.corruption import audit_script, corruptions, detection, generated_stores, tampering
from stress.corruption.repairs import RepairTrial
from stress.corruption.sample_store import ROLES, SampleStore, build

pytestmark = pytest.mark.usefixtures("jq_memo")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleStore:
    """One store for all tests: each test restores what it corrupts."""
    return build(tmp_path_factory.mktemp("corruption") / "place")


def one_of_each(cases: list[corruptions.Corruption], count: int, seed: str) -> list[corruptions.Corruption]:
    """Return one corruption of each kind, and ``count`` more."""
    rng = Random(seed)
    rng.shuffle(cases)
    first = {corruption.kind: corruption for corruption in cases}
    return [*first.values(), *cases[:count]]


def test_the_sample_store_has_every_kind_of_file(sample: SampleStore) -> None:
    assert {place.role for place in sample.places} == set(ROLES) - {"set aside"}
    assert sorted(len(chain) for chain in sample.chains.values()) == [1, 3, 4, 5]
    types = b"".join(sample.read(place.path) for place in sample.of("snapshot", "object"))
    for media_type in (b"stateline.node+json", b"stateline.list+json", b"image/png"):
        assert media_type in types


def test_no_changed_byte_goes_unnoticed(sample: SampleStore) -> None:
    judge = detection.Judge(sample)
    flips = list(corruptions.every_flip(sample, Random("bytes"), small=0, most=64))
    chosen = sorted(one_of_each(flips, 600, "bytes"), key=lambda corruption: corruption.done)
    done = detection.flip_all(judge, iter(chosen), time.monotonic() + 600, 100, print)
    judge.require()
    assert done == len(chosen) > 600


def test_no_removed_added_swapped_truncated_or_replaced_file_goes_unnoticed(sample: SampleStore) -> None:
    judge = detection.Judge(sample)
    cases = list(detection.structural(sample, Random("files")))
    detection.corrupt_all(judge, iter(one_of_each(cases, 40, "files")), time.monotonic() + 600, print)
    judge.require()
    assert len(judge.counts) > 90


def test_the_judge_reports_a_corruption_that_does_nothing(sample: SampleStore) -> None:
    """The campaign itself can fail."""
    judge = detection.Judge(sample)
    place = sample.of("snapshot")[0]
    corruption = corruptions.flipped(place, sample.read(place.path), 5, 0)
    judge.check(corruption)
    assert len(judge.wrong) == 1, "nothing was corrupted, and damage is expected"
    with pytest.raises(AssertionError, match="1 wrong verdicts"):
        judge.require()


@pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("sh", "jq", "sha256sum")), reason="the script needs jq and sha256sum"
)
def test_the_audit_script_and_verify_agree(sample: SampleStore, tmp_path: Path) -> None:
    path = tmp_path / "audit.sh"
    path.write_text(audit_script.script(), encoding="utf-8")
    rng = Random("audits")
    audit = audit_script.Audit(sample, path, rng)
    assert audit_script.compare(audit, audit_script.drawn(sample, rng, 20), time.monotonic() + 600, print) == 20
    assert audit.differ == []
    assert {"damage", "intact"} <= set(audit.pairs)


def test_repaired_stores_verify_and_report_their_losses(sample: SampleStore) -> None:
    trial = RepairTrial(sample)
    drawn = audit_script.drawn(sample, Random("repairs"), 30)
    waiting = [corruption for corruption in drawn if corruption.kind != "opened to others"]
    while waiting:
        trial.repair([waiting.pop() for _ in range(2 if len(waiting) % 5 == 0 else 1)])
    assert trial.wrong == []
    assert trial.counts["repaired"] > 10


# -- generated stores ------------------------------------------------------------------------------------------


def test_generated_stores_verify_and_together_have_files_of_every_role(tmp_path: Path) -> None:
    drawn = [generated_stores.build(tmp_path / str(number), Random(f"drawn {number}")) for number in range(12)]
    for sample in drawn:
        assert detection.Judge(sample).look("").ok
    assert {place.role for sample in drawn for place in sample.places} == set(ROLES)
    kinds = {key.partition(":")[0] for sample in drawn for key in sample.keys.values()}
    assert kinds == {"notes", "context", "run", "machine"}
    lengths = {len(chain) for sample in drawn for chain in sample.chains.values()}
    assert min(lengths) == 1
    assert max(lengths) > 8
    held = b"".join(sample.read(place.path) for sample in drawn for place in sample.of("snapshot", "object"))
    for mark in (
        b"stateline.node+json",
        b"stateline.list+json",
        b"image/png",
        b'"fast"',
        b'"full"',
        b'"gaps":[{',
    ):
        assert mark in held


def test_the_same_seed_generates_the_same_scopes(tmp_path: Path) -> None:
    lengths = []
    for name in "ab":
        sample = generated_stores.build(tmp_path / name, Random("again"))
        lengths.append({sample.keys[scope]: len(chain) for scope, chain in sample.chains.items()})
    # Except the machine's, whose key depends on the path of its file.
    one, other = ({key: found for key, found in both.items() if "machine:" not in key} for both in lengths)
    assert one == other != {}


def test_every_corruption_of_a_random_store_is_detected(tmp_path: Path) -> None:
    until = time.monotonic() + 600
    summary = tampering.campaign(
        tmp_path, "drawn", stores=1, cases=300, each=1, compared=0, until=until, say=lambda text: None
    )
    assert summary["stores"] == 1
    assert summary["bytes changed"] > 200
    assert len(summary["verdicts"]) > 90


@pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("sh", "jq", "sha256sum")), reason="the script needs jq and sha256sum"
)
def test_the_audit_script_and_verify_agree_on_a_generated_store(tmp_path: Path) -> None:
    rng = Random("script 37")
    sample = generated_stores.build(tmp_path / "place", rng)
    pairs = tampering.compare(sample, tmp_path, rng, 6, time.monotonic() + 600, lambda text: None)
    assert pairs.total() == 6
