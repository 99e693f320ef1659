"""The machine that the campaigns run, its place on disk, and the processes that run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

TASK = Path(__file__).with_name("task.py")
TASKS = 18
"""Number of tasks that a run of the machine starts."""


def machine_text(*, repeatable: bool) -> str:
    """The machine as JSON: a loop, ``set``, a retry, an ``error_next``, objects, and a way back."""
    task: dict[str, Any] = {
        # -I and -S: nothing of the user's is loaded, and the interpreter starts in a third of the time.
        "task": [sys.executable, "-I", "-S", "task.py"],
        "env": ["TORTURE_LOG", "TORTURE_CALL", "TORTURE_SLEEP"],
        "repeatable": repeatable,
    }
    ways: dict[str, dict[str, Any]] = {
        "seed": {"set": {"total": "output.value"}, "default_next": "step"},
        "step": {
            "set": {
                "count": "state.count + 1",
                "total": "state.total + output.value",
                "notes": "state.notes + [output.note]",
            },
            "routes": [{"when": "state.count < 4", "to": "step"}],
            "default_next": "flaky",
            "max_visits": 9,
        },
        "flaky": {"retry": {"max_attempts": 2}, "default_next": "broken"},
        "broken": {"error_next": "mend", "default_next": "done"},
        "mend": {"set": {"mended": "output.mended"}, "default_next": "bulk"},
        "bulk": {"set": {"bulk": "output"}, "default_next": "review"},
        "review": {"routes": [{"when": "output.again", "to": "step"}], "default_next": "done"},
    }
    stages: dict[str, Any] = {name: {**task, **way} for name, way in ways.items()}
    stages["done"] = {"end": {}}
    state = {"count": 0, "total": 0, "notes": []}
    return json.dumps({"stateline": 1, "name": "torture", "state": state, "stages": stages}, indent=1)


class Note(msgspec.Struct, frozen=True):
    """One line of the tasks' log. ``what`` is start or end; ``call`` the number of the call that ran the task."""

    stage: str
    key: str
    what: str
    attempt: int
    call: int


class SampleWorkflow(msgspec.Struct, frozen=True):
    """A directory with the machine, its task, the log and a state dir."""

    root: Path

    @classmethod
    def build(cls, root: Path, *, repeatable: bool) -> SampleWorkflow:
        """Make the directory and put the machine into it."""
        root.mkdir(parents=True)
        shutil.copyfile(TASK, root / "task.py")
        (root / "machine.json").write_text(machine_text(repeatable=repeatable))
        return cls(root)

    @property
    def tasks(self) -> int:
        """Number of effects in a whole run that take time."""
        return TASKS

    @property
    def whole(self) -> list[str]:
        """The words of a call that performs a run of its own from its beginning to its end."""
        return ["execute", "machine.json", "--id", "whole"]

    def program(self, words: Sequence[str]) -> list[str]:
        """The command that performs a call of these words."""
        return [sys.executable, "-m", "stateline", *words]

    @property
    def state_dir(self) -> Path:
        return self.root / "state dir"

    @property
    def log(self) -> Path:
        return self.root / "log"

    def notes(self) -> list[Note]:
        """Return the log of the tasks so far, without an incomplete last line."""
        if not self.log.exists():
            return []
        whole = self.log.read_text().rpartition("\n")[0]
        parts = [line.split(" ") for line in whole.splitlines()]
        return [Note(stage, key, what, int(attempt), int(call)) for stage, key, what, attempt, call in parts]

    def start(self, *words: str, call: int, sleep: float = 0.0, under: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start ``stateline words`` on this state dir. ``sleep`` [s] is how long each task takes at least, ``under`` a
        program that runs it."""
        environment = {
            **os.environ,
            "STATELINE_STATE_DIR": str(self.state_dir),
            "STATELINE_FORMAT": "json",
            "TORTURE_LOG": str(self.log),
            "TORTURE_CALL": str(call),
            "TORTURE_SLEEP": str(sleep),
        }
        return subprocess.Popen(
            [*under, *self.program(words)],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


class Ended(msgspec.Struct, frozen=True):
    """Result of a call: exit code (negative for a signal), JSON document or None, and stderr."""

    code: int
    document: dict[str, Any] | None
    said: str

    @classmethod
    def of(cls, process: subprocess.Popen[bytes]) -> Ended:
        """Wait for the process. A document that was cut in the middle counts as none: it acknowledges nothing."""
        out, err = process.communicate()
        try:
            document = json.loads(out)
        except ValueError:
            document = None
        return cls(process.returncode, document if isinstance(document, dict) else None, err.decode("utf-8", "replace"))


def children_of(pid: int) -> list[int]:
    """The processes that ``pid``, in any of its threads, has started and that are there."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for thread in threads for word in (thread / "children").read_text().split()]
    except OSError:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
        pairs = [line.split() for line in listing.splitlines()]
        return [int(child) for child, parent in pairs if int(parent) == pid]
