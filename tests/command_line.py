"""The command line for tests: called in this process where that is safe, else as a separate process."""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from stateline.cli.main import run

USER = pwd.getpwuid(os.geteuid()).pw_name
"""The user that events name."""
DEADLINE = 60  # [s] for one process; far above what any of them takes


COUNTED = re.compile(r"(?:\r  [0-9][0-9a-z ]*)+\r +\r")
"""Seconds that were counted on a terminal and removed again."""
LOG_LINE = re.compile("^[0-9a-f]{12} +[0-9]+  (?:just now|[0-9]+ [a-z]+ ago) +")
"""A line of the log up to its summary: sha, number, age."""


def log_summaries(text: str) -> list[str]:
    """The summaries in the text of a log, newest first, each on one line."""
    return [LOG_LINE.sub("", line) for line in text.replace("\n" + " " * 31, " ").split("\n")[:-1]]


class Result(NamedTuple):
    """The end of one call."""

    code: int
    out: bytes
    err: str

    @property
    def document(self) -> Any:
        """stdout, which must be exactly one JSON document on a line of its own."""
        assert self.out.endswith(b"\n"), (self.out, self.err)
        assert self.out.count(b"\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The ``error`` object, which must be the whole document and say something."""
        document = self.document
        assert document.keys() == {"error"}, document
        error = document["error"]
        more = {"machine_invalid": {"problems"}, "playback_miss": {"expected", "nearest", "warnings"}}
        assert error.keys() == {"code", "message", "hint"} | more.get(error["code"], set())
        assert error["message"]
        assert "Traceback" not in self.err
        return dict(error)


class Cli:
    """Calls commands against one state dir, which need not exist yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes], home: Path) -> None:
        self.monkeypatch = monkeypatch
        self.capture = capture
        self.home = home
        self.state = home / "state dir"
        self._cases = 0

    @contextmanager
    def fresh(self) -> Iterator[pytest.MonkeyPatch]:
        """Use another home and state dir for one case of a table; changes of the environment are undone at its end."""
        home, state, outer = self.home, self.state, self.monkeypatch
        self._cases += 1
        with pytest.MonkeyPatch.context() as self.monkeypatch:
            self.home = home.with_name(f"{home.name} {self._cases}")
            self.home.mkdir(mode=0o700)
            self.state = self.home / "state dir"
            self.monkeypatch.setenv("STATELINE_STATE_DIR", str(self.state))
            try:
                yield self.monkeypatch
            finally:
                self.home, self.state, self.monkeypatch = home, state, outer

    def __call__(self, *argv: str, stdin: bytes | Any = b"") -> Result:
        """One call in this process. ``stdin``: bytes, or a stream, or None for a process without one."""
        stream = io.TextIOWrapper(io.BytesIO(stdin)) if isinstance(stdin, bytes) else stdin
        self.monkeypatch.setattr(sys, "stdin", stream)
        self.capture.readouterr()
        code = run(list(argv))
        out, err = self.capture.readouterr()
        return Result(code, out, err.decode())

    def json(self, *argv: str, exits: int = 0, stdin: bytes | Any = b"") -> Any:
        """The document of a call with ``--format json`` that must exit so."""
        result = self(*argv, "--format", "json", stdin=stdin)
        assert result.code == exits, (result.out, result.err)
        return result.document

    def refused(self, *argv: str, exits: int, stdin: bytes | Any = b"") -> dict[str, Any]:
        """The error of a call with ``--format json`` that must exit so."""
        result = self(*argv, "--format", "json", stdin=stdin)
        assert result.code == exits, (result.out, result.err)
        return result.error

    def process(self, *argv: str, stdin: bytes = b"", **more: Any) -> Result:
        """One call as a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "stateline", *argv], input=stdin, capture_output=True, timeout=DEADLINE, **more
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())

    def start(self, *argv: str, **more: Any) -> subprocess.Popen[bytes]:
        """A process of its own that is not waited for."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([sys.executable, "-m", "stateline", *argv], **pipes)

    def machine(self, name: str = "m", /, **stages: Any) -> str:
        """Write a machine of these stages beside the tasks' files; its path. Keys with ``_`` in front are the
        machine's own (``_bounds=...``)."""
        document: dict[str, Any] = {"stateline": 1, "name": name}
        document |= {key[1:]: value for key, value in stages.items() if key.startswith("_")}
        document["stages"] = {key: value for key, value in stages.items() if not key.startswith("_")}
        path = self.home / f"{name}.json"
        path.write_text(json.dumps(document))
        return str(path)

    def ran(self) -> list[str]:
        """The lines that the tasks wrote into ``ran`` beside the machine."""
        path = self.home / "ran"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def tree(self) -> dict[str, tuple[Any, ...]]:
        """Everything in the state dir and around it: names, kinds, modes, times [ns] and bytes."""
        found = {}
        for place, directories, files in os.walk(self.home):
            for name in [*directories, *files, "."]:
                path = os.path.join(place, name)
                status = os.lstat(path)
                data = Path(path).read_bytes() if os.path.isfile(path) else b""
                found[path] = (status.st_mode, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, data)
        return found


class Task(Protocol):
    """Builds a task stage from a shell script that prints the output. The stage is repeatable by default."""

    def __call__(self, script: str, **keys: Any) -> dict[str, Any]: ...
