"""SIGKILL at calls of all scenarios, some of each kind; `scripts/torture` does it at every one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from each_case import for_each
from stress.faults import kill_campaign
from stress.invariants import Expectation, save_next
from stress.oracle import Contents, ViolationError
from stress.scenarios import SCENARIOS, Place

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are forked, and strace is Linux's")

SEAM = 120
STRACE = 24


def test_a_writer_killed_at_any_call_loses_nothing_and_blocks_no_one(tmp_path: Path) -> None:
    seed = os.environ.get("STATELINE_TEST_SEED") or str(random.randrange(2**32))
    # A process of its own: whoever runs the tests may have threads, and must not fork.
    words = [sys.executable, kill_campaign.__file__, str(tmp_path / "p"), seed, str(SEAM), str(STRACE)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"STATELINE_TEST_SEED={seed}\n{done.stderr}"
    summary = json.loads(done.stdout)
    assert summary["done"]["missed"] <= STRACE / 10, "few points lie elsewhere the next time"
    assert summary["done"]["seam"].keys() == kill_campaign.SCENARIOS.keys(), "every scenario was interrupted"
    assert sum(summary["done"]["seam"].values()) == SEAM
    if "skipped" in summary:
        pytest.skip(summary["skipped"])
    assert sum(summary["done"]["strace"].values()) + summary["done"]["missed"] == STRACE


# -- the judge is not blind --------------------------------------------------------------------------------------------


class Corrupted:
    """A place after the scenario "saves", with what was acknowledged."""

    def __init__(self, root: Path) -> None:
        self.state_dir = root / "s"
        notes = []
        scenario = SCENARIOS["saves"]
        scenario.prepare(Place(str(self.state_dir), root, lambda: None, lambda note: None))
        self.before = Contents.read(self.state_dir)
        scenario.act(Place(str(self.state_dir), root, lambda: None, notes.append))
        self.notes = notes
        [self.pointer] = self.state_dir.glob("*/latest.json")
        self.snapshots = sorted(self.pointer.parent.glob("state-*"))

    def judge(self) -> None:
        expected = Expectation(self.before)
        expected.apply(*self.notes)
        expected.judge(self.state_dir)


def _set_back(harmed: Corrupted) -> None:
    """The pointer of the snapshot before the last."""
    last, before = harmed.snapshots[-1], harmed.snapshots[-2]
    sha = json.loads(last.read_bytes())["prev_sha"]
    harmed.pointer.write_text(json.dumps({"path": before.name, "sha256": sha, "version": "1"}, separators=(",", ":")))


def _alter(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


CORRUPTIONS = {
    "acknowledged": _set_back,
    "is missing|is not there": lambda harmed: harmed.snapshots[1].unlink(),
    "holds other bytes": lambda harmed: _alter(harmed.snapshots[1]),
    r"found \[\]": lambda harmed: harmed.pointer.unlink(),
    "has the mode": lambda harmed: harmed.snapshots[0].chmod(0o644),
    "does not belong here": lambda harmed: (harmed.state_dir / "stray").touch(0o600),
    "Unterminated": lambda harmed: harmed.pointer.write_bytes(harmed.pointer.read_bytes()[:20]),
}


def test_lost_data_is_detected(tmp_path: Path) -> None:
    def check(tmp_path: Path, words: str) -> None:
        harmed = Corrupted(tmp_path)
        harmed.judge()
        CORRUPTIONS[words](harmed)
        with pytest.raises((ViolationError, ValueError), match=words):
            harmed.judge()

    for_each(check, CORRUPTIONS, root=tmp_path)


def test_a_temporary_file_that_is_never_swept_is_detected(tmp_path: Path) -> None:
    harmed = Corrupted(tmp_path)
    # Without the mark of its holder nobody looks for what is half written.
    (harmed.pointer.parent / ".tmp-0123456789abcdef").touch(0o600)
    harmed.judge()
    with pytest.raises(ViolationError, match="never swept"):
        save_next(harmed.state_dir)
