"""The program in processes forked from one that has imported it; each can be ended by SIGKILL right before the store
publishes something for the nth time (a link or a rename).

`Program` starts this file and asks it for calls: a line of JSON for each, answered by the exit code.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

IMPORTED = ("stateline.cli.app", "stateline.cli.run", "stateline.engine.loop", "openai")


class Program:
    """Calls of ``stateline``, one at a time."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, place: Path, environ: dict[str, str], *words: str, nth: int = 0) -> tuple[int, bytes, bytes]:
        """Call it with these words, and kill it before its ``nth`` publication (0: never); the exit code and what it
        wrote to both streams. The files for these lie in ``place``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        streams = place / "stdout", place / "stderr"
        self._process.stdin.write(json.dumps([*map(str, streams), environ, nth, *words]) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        out, err = (stream.read_bytes() for stream in streams)
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


def _become(out: str, err: str, environ: dict[str, str], nth: int, words: list[str]) -> None:
    """Perform one call in this process, which ends with it."""
    from stateline.cli.main import main

    for fd, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        os.dup2(os.open(path, flags | os.O_CREAT | os.O_TRUNC, 0o600), fd)
    os.environ.clear()
    os.environ.update(environ)
    kill_before(nth)
    sys.argv[1:] = words
    main()


def _serve() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    for line in iter(sys.stdin.readline, ""):
        out, err, environ, nth, *words = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _become(out, err, environ, nth, words)
            finally:
                os._exit(70)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
