"""Writers that die of SIGKILL at one certain call: a seam that kills its own process, and strace that does it from
outside. Both act on a child that is forked from a warmed-up process, since starting Python takes longer than a
scenario.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from stress.faults.tracing import Call, read_trace
from stress.scenarios import EPOCH, Note, Place, Scenario

from stateline.service.execute import execute
from stateline.service.options import CallOptions as Turn
from stateline.service.options import ExecuteOptions
from stateline.store.local.filesystem import Directory, Filesystem

METHODS = tuple(name for name, value in vars(Filesystem).items() if callable(value) and not name.startswith("_"))
CHANGING = frozenset(
    (
        *("make_root", "make_directory", "create", "write", "sync_file", "sync_directory", "close_file", "link"),
        *("unlink", "rename", "remove_directory", "open_lock", "close_lock"),
    )
)
"""Methods of the seam after which the disk, or who holds a lock, may be another."""
_FAILED = 70
"""Exit code of a child whose scenario raised something."""
_ANY = 2**64 - 1


class Death:
    """Counts the calls of the seam in ``calls``, and kills the process at the ``at``-th (from 0), before it is made or
    ``after``. Without ``at`` nobody dies."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.calls: list[str] = []
        self._inside = False

    def seam(self) -> Filesystem:
        return _Killing(self)

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call of the seam, unless the process dies instead."""
        if self._inside:
            return call()
        number = len(self.calls)
        self.calls.append(name)
        if number == self.at and not self.after:
            _die()
        self._inside = True
        try:
            return call()
        finally:
            self._inside = False
            if number == self.at:
                _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Killing(Filesystem):
    def __init__(self, death: Death) -> None:
        self._death = death

    def names(self, directory: Directory) -> Iterator[str]:
        # A listing changes nothing: all of it is one call.
        yield from self._death.around("names", lambda: list(Filesystem.names(self, directory)))


def _deadly(name: str) -> Callable[..., Any]:
    whole = getattr(Filesystem, name)

    def method(self: _Killing, *args: Any) -> Any:
        return self._death.around(name, lambda: whole(self, *args))

    return method


for _name in METHODS:
    if _name != "names":
        setattr(_Killing, _name, _deadly(_name))


# -- a scenario in a child
# ------------------------------------------------------------------------------------------------


class Later(Place):
    """A place at which somebody works ``hours`` after the beginning: no clock is set back from one to the next."""

    def __init__(
        self, at: Path, hours: int, fs: Callable[[], Filesystem | None], listener: Callable[[Note], None]
    ) -> None:
        super().__init__(str(at / "s"), at, fs, listener, EPOCH + hours * 3_600 * 10**9)


class Ended(msgspec.Struct):
    """End of a child: whether it was killed, acknowledgements before that, and all calls of its seam, if reported."""

    killed: bool
    notes: list[Note]
    calls: list[str]


class Child:
    """A scenario in a forked process, in the directory ``at``. It begins when it is let go (:meth:`go`)."""

    def __init__(self, scenario: Callable[[Place], None], at: Path, death: Death) -> None:
        self._said, said = os.pipe()
        gate, self._gate = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._said)
            os.close(self._gate)
            _tell(scenario, Later(at, 1, death.seam, lambda note: _say(said, note)), death, gate, said)
        os.close(said)
        os.close(gate)

    def go(self) -> Ended:
        """Let it begin, and wait for its end. Raises AssertionError for one that ended in any other way than by itself
        or by SIGKILL."""
        os.write(self._gate, b"!")
        os.close(self._gate)
        with os.fdopen(self._said, "rb") as said:
            # Up to the last whole line: each was one write.
            lines = [json.loads(line) for line in said.read().splitlines()]
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), f"the scenario ended with {code}: {lines[-1:]}"
        calls = lines.pop()["calls"] if code == 0 else []
        return Ended(code != 0, [Note(**line) for line in lines], calls)


def _say(said: int, note: Note) -> None:
    os.write(said, msgspec.json.encode(note) + b"\n")


def _tell(scenario: Callable[[Place], None], place: Place, death: Death, gate: int, said: int) -> None:
    """The child's whole life."""
    code = _FAILED
    try:
        # Where only ancestors may trace, anybody may trace this one.
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(_ANY), 0, 0, 0)
        os.read(gate, 1)
        scenario(place)
        os.write(said, json.dumps({"calls": death.calls}).encode() + b"\n")
        code = 0
    except BaseException:  # noqa: BLE001  # the child ends here, whatever it was
        os.write(said, json.dumps({"failed": traceback.format_exc()}).encode() + b"\n")
    finally:
        os._exit(code)


# -- killed by strace --------------------------------------------------------------------------------------------------


def strace_there() -> str | None:
    """Why strace cannot be used here; None if it can."""
    if sys.platform != "linux" or shutil.which("strace") is None:
        return "strace is not installed"
    sleeper = subprocess.Popen(["sleep", "5"])
    try:
        with traced(sleeper.pid, Path(os.devnull), "-e", "trace=none"):
            return None
    except OSError as error:
        return str(error)
    finally:
        sleeper.kill()
        sleeper.wait()


@contextlib.contextmanager
def traced(pid: int, trace: Path, *options: str) -> Iterator[None]:
    """Trace a process that waits. Raises OSError if that cannot be done."""
    words = ["strace", "-y", "-s", "0", "-o", str(trace), *options, "-p", str(pid)]
    tracer = subprocess.Popen(words, stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    try:
        ready, _, _ = select.select([tracer.stderr], [], [], 20)
        line = tracer.stderr.readline() if ready else b""
        if b"attached" not in line:
            raise OSError(f"strace cannot trace here: {line.decode(errors='replace').strip()}")
        yield
    except BaseException:
        tracer.kill()
        raise
    finally:
        tracer.stderr.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracer.wait(5)
        if tracer.returncode is None:
            tracer.terminate()
            tracer.wait()


class Point(msgspec.Struct, frozen=True):
    """A system call of a scenario: its name as strace has it, and that it is the ``number``-th of that name (from
    1)."""

    name: str
    number: int
    changes: bool


def points(child: Child, trace: Path, base: str) -> list[Point]:
    """All system calls of a scenario on ``base``, and its acknowledgements, found by letting it run to its end."""
    with traced(child.pid, trace):
        child.go()
    counted: dict[str, int] = {}
    found = []
    for line in trace.read_text().splitlines():
        call = _read_line(line)
        if call is None:
            continue
        name = line.partition("(")[0]
        counted[name] = counted.get(name, 0) + 1
        if call.concerns(base) or (name == "write" and "pipe:" in line.partition(",")[0]):
            found.append(Point(name, counted[name], call.changes))
    return found


def _read_line(line: str) -> Call | None:
    calls = read_trace(f"0 {line}\n")
    return calls[0] if calls else None


def strike(child: Child, trace: Path, point: Point) -> Ended:
    """Let a scenario run until it asks for that system call, and kill it then: the call is not made."""
    inject = f"inject={point.name}:signal=KILL:when={point.number}"
    with traced(child.pid, trace, "-e", f"trace={point.name}", "-e", inject):
        return child.go()


# -- a scenario with effects that can be counted
# --------------------------------------------------------------------------


def _effect(place: Place, name: str) -> list[str]:
    return ["/bin/sh", "-c", 'echo "$0" >> "$1" && echo 1', name, str(place.root / "ran")]


def _pay(place: Place) -> None:
    machine = place.root / "effects.json"
    stages: dict[str, Any] = {
        "pay": {"task": _effect(place, "pay"), "default_next": "look"},
        "look": {"task": _effect(place, "look"), "repeatable": True, "default_next": "again"},
        "again": {"task": _effect(place, "again"), "default_next": "done"},
        "done": {"end": {}},
    }
    if not machine.exists():
        machine.write_text(json.dumps({"stateline": 1, "name": "effects", "stages": stages}))
    outcome = None
    for _ in range(12):
        # An effect that may have been performed is not asked for again: somebody says what came of it.
        asked = outcome is not None and outcome.waiting is not None
        call = Turn(one_turn=True, answer="known") if asked else Turn(one_turn=True)
        if asked:
            with (place.root / "asked").open("a") as file:
                file.write(f"{outcome.stage}\n")
        outcome = execute(place.open(), ExecuteOptions(machine=str(machine), run="effects", call=call))
        if outcome.status == "complete":
            return
    raise AssertionError(f"never complete: {outcome}")


EFFECTS = Scenario("effects", _pay)
"""Two effects that must not be repeated, and one that may be, turn by turn to the end; ``ran`` in the place's ``root``
has a line for each that ran, ``asked`` one for each whose outcome somebody had to tell."""
