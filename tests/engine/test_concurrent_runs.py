"""Six processes at one run; `scripts/torture --suite runs` does the same more often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stress.processes import kills, races

from stateline import Store


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> kills.Reference:
    return kills.reference(tmp_path_factory.mktemp("undisturbed") / "reference", repeatable=False)


@pytest.mark.parametrize("name", races.ROUNDS)
def test_six_processes_at_one_run_run_each_task_once_and_end_alike(
    name: str, wanted: kills.Reference, tmp_path: Path
) -> None:
    counts = races.ROUNDS[name](tmp_path / "round", wanted)
    assert counts["calls"] >= races.PROCESSES


def test_six_machine_files_that_begin_one_run_at_once_begin_it_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    environ = {**os.environ, "STATELINE_STATE_DIR": str(state), "STATELINE_DURABILITY": "fast"}
    processes = []
    for number in range(6):
        path = tmp_path / f"m{number}.json"
        task = ["sh", "-c", f"echo {number} >> ran; sleep 0.5; echo {number}"]
        path.write_text(json.dumps({"stateline": 1, "name": f"m{number}", "stages": {"a": {"task": task}}}))
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "stateline", "execute", str(path), "--id", "x", "--format", "json"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
        )
    ends = [(process.communicate()[0], process.returncode) for process in processes]
    chain = list(Store.open(state).scope("run:x").walk())[::-1]
    assert [snapshot.event["type"] for snapshot in chain] == ["started", "intended", "succeeded"], ends
    [winner] = (tmp_path / "ran").read_text().split()
    assert chain[0].event["machine"]["name"] == f"m{winner}"
    assert ends[int(winner)][1] == 0, ends
    assert {json.loads(out)["error"]["code"] for out, code in ends if code} <= {"conflict", "machine_changed"}, ends
