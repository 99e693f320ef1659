"""A process that has imported everything and opened nothing, and forks workers that are killed.

Starting Python takes a quarter of a second of a processor, so writers that are killed twenty times a second would never
come to save. A fork of this process saves after some milliseconds; what is killed is a real process all the same.

Run as a program it reads commands as lines of JSON on standard input and answers each with one on standard output.
When its input ends, so do the workers.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FAILED = 70
"""Exit code of a worker that raised."""


class ForkServer:
    """The side of whoever asks for workers. A worker is ``function(*args)`` of a module below ``campaigns``, known by a
    number, with a file that its standard output is appended to."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[ForkServer]:
        """A server for a block; no worker outlives it."""
        server = cls()
        try:
            yield server
        finally:
            assert server._process.stdin is not None
            assert server._process.stdout is not None
            server._process.stdin.close()
            server._process.wait()
            server._process.stdout.close()

    def start(self, worker: int, said: Path, module: str, function: str, *args: Any) -> None:
        """Start a worker."""
        self._ask("start", worker, str(said), module, function, args)

    def code(self, worker: int) -> int | None:
        """Return a worker's exit code, negative for a signal; None while it runs."""
        code: int | None = self._ask("code", worker)
        return code

    def kill(self, worker: int, *, look: str = "") -> dict[str, Any] | None:
        """SIGKILL a worker that runs; None if it had ended. With ``look``, a directory of a scope, it is stopped first,
        and the answer is :func:`seen_at`; else it is empty."""
        seen: dict[str, Any] | None = self._ask("kill", worker, look)
        return seen

    def holder(self) -> int | None:
        """The worker that holds a lock just now, as the kernel lists it, or None."""
        worker: int | None = self._ask("holder")
        return worker

    def _ask(self, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class _Workers:
    """The side of the process that forks."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int | None] = {}

    def start(self, worker: int, said: str, module: str, function: str, args: list[Any]) -> None:
        work: Callable[..., None] = getattr(importlib.import_module(f"stress.processes.{module}"), function)
        pid = os.fork()
        if pid == 0:
            _work(said, work, args)
        self._pids[worker], self._codes[worker] = pid, None

    def code(self, worker: int) -> int | None:
        if self._codes[worker] is None:
            pid, status = os.waitpid(self._pids[worker], os.WNOHANG)
            if pid:
                self._codes[worker] = os.waitstatus_to_exitcode(status)
        return self._codes[worker]

    def kill(self, worker: int, look: str) -> dict[str, Any] | None:
        if self.code(worker) is not None:
            return None
        pid, seen = self._pids[worker], dict[str, Any]()
        if look:
            os.kill(pid, signal.SIGSTOP)
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self._codes[worker] = os.waitstatus_to_exitcode(status)
                return None
            seen = seen_at(look, held=pid in _holders())
        os.kill(pid, signal.SIGKILL)
        self._codes[worker] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return seen if self._codes[worker] == -signal.SIGKILL else None

    def holder(self) -> int | None:
        holders = _holders()
        return next((worker for worker, pid in self._pids.items() if pid in holders), None)

    def end(self) -> None:
        for worker in self._pids:
            self.kill(worker, "")


def seen_at(scope: str, *, held: bool) -> dict[str, Any]:
    """Contents of a scope's directory while its lock is held: ``held``, and if so the number of temporary
    files, whether the mark is there, whether a snapshot was published that is not the head yet (``published``), and the
    head's state (``head``)."""
    if not held:
        return {"held": False}
    names = os.listdir(scope)
    newest = max((name for name in names if name.startswith("state-")), default=None)
    path = None
    with suppress(FileNotFoundError):
        path = json.loads(Path(scope, "latest.json").read_bytes())["path"]
    return {
        "held": True,
        "temporary": sum(name.startswith(".tmp-") and name != ".tmp-held" for name in names),
        "mark": ".tmp-held" in names,
        "published": newest is not None and newest != path,
        "head": path and json.loads(Path(scope, path).read_bytes())["state"],
    }


def _holders() -> set[int]:
    """Processes that hold a lock on a whole file, as Linux lists them; elsewhere nobody is known."""
    try:
        text = Path("/proc/locks").read_text()
    except OSError:
        return set()
    return {int(pid) for pid in re.findall(r"^\d+: FLOCK +ADVISORY +WRITE (\d+)", text, re.MULTILINE)}


def _work(said: str, work: Callable[..., None], args: list[Any]) -> None:
    """Be the worker; never returns."""
    code = FAILED
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.close(nothing)
        os.close(output)
        work(*args)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, this process ends here
        traceback.print_exc()
    finally:
        os._exit(code)


def _warm() -> None:
    """Import what the first save, the first walk and the first check import."""
    import tempfile

    from stress.processes import saves, unlocked  # noqa: F401

    from stateline import Store
    from stateline.verify.checker import verify

    with tempfile.TemporaryDirectory() as place:
        for number in range(2):
            Store.open(f"{place}/s").scope("notes:warm").save({"n": number, "text": "warm " * 1000})
        verify(Store.open(f"{place}/s"))


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    # An interrupt at the terminal is for whoever asked; the workers end with the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _warm()
    workers = _Workers()
    for line in sys.stdin:
        what, *words = json.loads(line)
        sys.stdout.write(json.dumps(getattr(workers, what)(*words)) + "\n")
        sys.stdout.flush()
    workers.end()


if __name__ == "__main__":
    main()
