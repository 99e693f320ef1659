"""The program in processes forked from one that has imported it; each can be ended by SIGKILL right before the store
publishes something for the nth time (a link or a rename), or after some time.

`Program` starts this file and asks it for calls: a line of JSON for each, answered by the exit code.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

IMPORTED = (
    *("stateline.cli.app", "stateline.cli.run", "stateline.engine.loop", "stateline.engine.agent", "openai"),
    *("stateline.store.local.backend", "stateline.machine.definition.check", "stateline.machine.expressions.cel"),
    *("stateline.machine.expressions.json_schema", "stateline.tools.runner", "jsonschema_rs", "filelock"),
)
"""Modules that most calls import."""


class Program:
    """Calls of a module, one at a time: of ``stateline``, or of another that calls it."""

    def __init__(self, module: str = "stateline") -> None:
        command = [sys.executable, __file__, module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(
        self,
        place: Path,
        environ: dict[str, str],
        *words: str,
        nth: int = 0,
        after: float = 0.0,
        stdin: str | None = None,
    ) -> tuple[int, bytes, bytes]:
        """Call it with these words, and kill it before its ``nth`` publication or ``after`` so many seconds (0: never);
        the exit code and what it wrote to both streams. The files for these lie in ``place``. ``stdin`` is the text of
        its standard input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        streams = place / "stdout", place / "stderr"
        for stream in streams:
            stream.unlink(missing_ok=True)
        given = os.devnull
        if stdin is not None:
            (place / "stdin").write_text(stdin)
            given = str(place / "stdin")
        self._process.stdin.write(json.dumps([given, *map(str, streams), environ, nth, after, *words]) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        # A process that was killed at once has not made its files.
        out, err = (stream.read_bytes() if stream.exists() else b"" for stream in streams)
        return code, out, err

    def close(self) -> None:
        """End the process that forks."""
        self._process.communicate(timeout=60)


def kill_before(nth: int) -> None:
    """From here on the process dies before its ``nth`` publication."""
    from stateline.store.local.filesystem import Filesystem

    published = itertools.count(1)
    kind = type(Filesystem())

    def guarded(call: Any) -> Any:
        def publish(*arguments: Any) -> Any:
            if next(published) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return publish

    for name in ("link", "rename"):
        setattr(kind, name, guarded(getattr(kind, name)))


def _become(streams: list[str], environ: dict[str, str], nth: int, words: list[str]) -> None:
    """Perform one call in this process, which ends with it."""
    writes = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for fd, (path, flags) in enumerate(zip(streams, (os.O_RDONLY, writes, writes), strict=True)):
        os.dup2(os.open(path, flags, 0o600), fd)
    os.environ.clear()
    os.environ.update(environ)
    kill_before(nth)
    module = sys.argv[1]
    sys.argv[1:] = words
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))


def _wait(pid: int, after: float) -> int:
    """Wait for a process, and kill it ``after`` so many seconds (0: never); its exit code."""
    end = time.monotonic() + after
    while after:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _serve() -> None:
    for name in (*IMPORTED, sys.argv[1]):
        importlib.import_module(name)
    for line in iter(sys.stdin.readline, ""):
        given, out, err, environ, nth, after, *words = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _become([given, out, err], environ, nth, words)
            finally:
                os._exit(70)
        code = _wait(pid, after)
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
