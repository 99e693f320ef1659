"""A seam that writes down each call it makes, so that what really happens can be compared with it.

As a program (``recording.py SIDE scenario NAME STATE_DIR prepare|act|all`` or ``recording.py SIDE command WORDS...``)
it
runs a scenario of :mod:`stress.scenarios`, or a command of the command line, through such a seam. Each call gives two
lines
of JSON in the file SIDE, each in one write: what is called before it, what came of it after it. Under strace these
writes stand around the system calls of that call.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from stateline.store.local.filesystem import Directory, Filesystem, Stat

METHODS = tuple(
    name for name, value in vars(Filesystem).items() if callable(value) and not name.startswith("_") and name != "names"
)
"""The methods of the seam but ``names``, which is a generator."""


def plain(value: Any) -> Any:
    """Convert an argument or result of a call to JSON: a directory by its descriptor, data by their size [bytes]."""
    if isinstance(value, Directory):
        return {"fd": value.fd, "path": value.path}
    if isinstance(value, bytes | memoryview):
        return {"bytes": len(value)}
    if isinstance(value, Stat):
        return {"kind": value.kind, "mode": value.mode, "size": value.size}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value


class Recording(Filesystem):
    """The seam as it is; ``side`` is the descriptor that each call is written to."""

    def __init__(self, side: int) -> None:
        self._side = side
        self._thread = threading.local()

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._side, json.dumps(line).encode() + b"\n")

    def _bracketed(self, name: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """``call``, with a line before and after it, unless another call of the seam makes it."""
        if getattr(self._thread, "inside", False):
            return call()
        self._thread.inside = True
        self._write({"call": name, "args": [plain(each) for each in args]})
        try:
            result = call()
        except BaseException as error:
            self._write({"raised": _word(error)})
            raise
        else:
            self._write({"result": plain(result)})
            return result
        finally:
            self._thread.inside = False

    def names(self, directory: Directory) -> Iterator[str]:
        # Step by step: what is done between two names by whoever listens is no part of it.
        steps = super().names(directory)
        try:
            while (name := self._bracketed("names", (directory,), lambda: next(steps, None))) is not None:
                yield name
        finally:
            self._bracketed("names", (directory,), steps.close)  # type: ignore[attr-defined]


def _word(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode[error.errno]
    return type(error).__name__


def _recorded(name: str) -> Callable[..., Any]:
    whole = getattr(Filesystem, name)

    def method(self: Recording, *args: Any) -> Any:
        return self._bracketed(name, args, lambda: whole(self, *args))

    return method


for _name in METHODS:
    setattr(Recording, _name, _recorded(_name))


@contextmanager
def _side(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def main(side: str, what: str, *words: str) -> int:
    """Run a scenario or a command; the exit code."""
    with _side(side) as fd:
        if what == "command":
            from stateline.cli.main import run
            from stateline.store.local import backend

            backend.Filesystem = lambda: Recording(fd)  # type: ignore[assignment]
            return run(list(words))
        import tempfile

        from stress import scenarios

        name, state_dir, part = words
        scenario = scenarios.SCENARIOS[name]
        with tempfile.TemporaryDirectory() as root:
            place = scenarios.Place(state_dir, Path(root), lambda: Recording(fd), lambda note: None)
            if part in ("prepare", "all"):
                scenario.prepare(place)
            if part in ("act", "all"):
                scenario.act(place)
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
