"""The seam is honest: what it says it does is what the system is asked for, one to one, and nothing beside it.

Everything that is learned at the seam (recordings, power losses, injected errors, kills) is true of the real program
only as long as this holds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from stress.faults import recording, tracing
from stress.faults.tracing import Call, Comparison, Differs, compare, read_trace
from stress.scenarios import SHARED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")

MACHINE = {
    "stateline": 1,
    "name": "traced",
    "state": {"big": ""},
    "stages": {
        "once": {"task": ["/bin/echo", "2"], "default_next": "large"},
        "large": {
            "task": ["/bin/sh", "-c", "printf '\"%05000d\"' 7"],
            "repeatable": True,
            "set": {"big": "output"},
            "default_next": "ask",
        },
        "ask": {"human": {"prompt": "Go on?"}, "default_next": "done"},
        "done": {"end": {}},
    },
}
COMMANDS = [
    (3, "execute machine.json --id whole"),
    (0, "execute machine.json -i --id turns"),
    (0, "exec resume whole --answer true"),
    (0, "run --state-scope docs --system helpful"),
    (0, "run --state-scope docs --refine-text short"),
    (0, "repair --apply"),
    (0, "exec rm whole"),
    (0, "verify"),
]
"""Commands one after the other on one state dir, whose newest pointer is torn before the repair; with the exit code."""
CHANGING = frozenset(("open", "mkdir", "link", "rename", "unlink", "write", "fsync", "fchmod", "chmod"))
"""All that may change a state dir."""


class Traced:
    """A place, and what is seen of the processes that work on it."""

    def __init__(self, root: Path) -> None:
        self.base = root / "the place"
        self.base.mkdir()
        self.state_dir = self.base / "above" / "state dir"
        self.trace = root / "trace"
        self.side = root / "side"
        self.work = root / "work"
        self.work.mkdir()
        (self.work / "machine.json").write_text(json.dumps(MACHINE))

    def run(self, *words: str, code: int = 0) -> None:
        """Run Python with these words under strace; it must end with ``code``."""
        self.side.unlink(missing_ok=True)
        environment = {**os.environ, "STATELINE_STATE_DIR": str(self.state_dir), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*tracing.strace(self.trace), sys.executable, *words],
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr

    def record(self, *words: str, code: int = 0) -> Comparison:
        """The same with the recording seam; what was seen, laid beside what was recorded."""
        self.run(recording.__file__, str(self.side), *words, code=code)
        recorded = self.side.read_text() if self.side.exists() else ""
        return compare(self.trace.read_text(), recorded, str(self.base), str(self.side))

    def changes(self) -> list[Call]:
        """The calls of the last run that could change something in the place."""
        return [call for call in read_trace(self.trace.read_text()) if call.changes and call.concerns(str(self.base))]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


@pytest.mark.parametrize("name", SHARED)
def test_the_seam_records_exactly_the_system_calls_of_a_scenario(name: str, traced: Traced) -> None:
    found = traced.record("scenario", name, str(traced.state_dir), "all")
    assert len(found.operations) > 50
    # Beside the seam: the lock, taken and let go, and the state dir's own handle, which nobody has to close.
    assert set(found.outside) <= {"flock", "close"}
    assert found.outside["flock"] == 2 * Counter(op.call for op in found.operations)["close_lock"]
    assert {call.name for call in traced.changes()} <= CHANGING
    assert found.foreign == {}


def test_the_seam_records_exactly_the_system_calls_of_commands(traced: Traced) -> None:
    methods: set[str] = set()
    for code, words in COMMANDS:
        if words.startswith("repair"):
            newest = max(traced.state_dir.glob("*/latest.json"), key=lambda path: path.stat().st_mtime_ns)
            newest.write_bytes(newest.read_bytes()[:20])
        found = traced.record("command", *words.split(), code=code)
        assert len(found.operations) > 5
        changed = {call.name for call in traced.changes()}
        assert changed <= CHANGING
        assert bool(changed) == (words != "verify")
        methods |= {operation.call for operation in found.operations}
    assert {"make_root", "rename", "link", "unlink", "remove_directory", "read", "names"} <= methods


def test_recording_does_not_change_the_system_calls(tmp_path: Path) -> None:
    asked = []
    for name in ("recorded", "alone"):
        (tmp_path / name).mkdir()
        traced = Traced(tmp_path / name)
        words = ["execute", "machine.json", "--id", "x"]
        if name == "recorded":
            traced.record("command", *words, code=3)
        else:
            traced.run("-m", "stateline", *words, code=3)
        # Names are new each time: of temporary files, of snapshots, of the machine file's scope.
        made = [(call.name, str(call.result) if isinstance(call.result, str) else "") for call in traced.changes()]
        paths = ["".join(call.paths[-1:]).removeprefix(str(traced.base)) for call in traced.changes()]
        shapes = [re.sub(r"[0-9a-f]{8,}|\d{4}-\d\d-\d\dT\d{6}\.\d{6}Z", "N", path) for path in paths]
        asked.append(list(zip(made, shapes, strict=True)))
    assert asked[0] == asked[1]
    assert len(asked[0]) > 50


def _without(text: str, pattern: str, *, times: int = 1) -> str:
    changed, count = re.subn(rf"(?m)^.*{pattern}.*\n", "", text, count=times)
    assert count == times
    return changed


def test_a_difference_between_trace_and_record_is_detected(traced: Traced) -> None:
    traced.record("scenario", "saves", str(traced.state_dir), "all")
    trace, side = traced.trace.read_text(), traced.side.read_text()
    base = str(traced.base)

    def require_reported(trace: str, side: str = side) -> None:
        with pytest.raises(Differs):
            compare(trace, side, base, str(traced.side))

    thread = trace.split()[0]
    beside = [
        f'{thread} openat(AT_FDCWD</>, "{base}/planted", O_WRONLY|O_CREAT|O_CLOEXEC, 0666) = 3<{base}/planted>',
        f'{thread} unlink("{base}/above/state dir/stateline.json") = 0',
        f"{thread} fsync(3<{base}/above/state dir>) = 0",
        f"{thread} sendfile(3<{base}/x>, 4</tmp/x>, NULL, 5) = 5",
    ]
    for line in beside:
        require_reported(f"{trace}{line}\n")
        # Inside an operation as well.
        middle = trace.index("renameat(")
        start = trace.rindex("\n", 0, middle) + 1
        require_reported(f"{trace[:start]}{line}\n{trace[start:]}")
    for call in (r"renameat\w*\(", r" linkat\(", r"unlinkat\(", r"fsync\(", r"mkdir\w*\(", r"write\(", r"lseek\("):
        require_reported(_without(trace, f"{call}[^=]*{base}"))
    for right, wrong in ((r"O_EXCL\|", ""), (r"O_NOFOLLOW\|", ""), (r", 0700\)", ", 0755)"), (r", 0600\)", ", 0644)")):
        altered, count = re.subn(rf"({base}[^=]*){right}", rf"\1{wrong}", trace, count=1)
        assert count == 1
        require_reported(altered)
    require_reported(re.sub(rf"(write\(\d+<{base}.*) = \d+\n", r"\1 = 1\n", trace, count=1))
    require_reported(trace, _without(_without(side, '"sync_file"'), '"result": null'))
