"""Measurement: processes and functions alternately, medians, and counts by strace."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
"""One line of a table, and of the JSON."""

SYNCING = ("fsync", "fdatasync", "sync", "syncfs", "msync", "sync_file_range")
WRITING = ("write", "pwrite64", "writev", "pwritev")
_call = re.compile(r"\d+ +(\w+)\((.*)\) += (-?\d+)")


class Spent(NamedTuple):
    """Cost of one piece of work, including its children: CPU (user and system) and wall time [s]."""

    cpu: float
    wall: float


class Failed(Exception):
    """The measured program failed. ``str(error)`` has its output."""


def environment() -> dict[str, str]:
    """This process's environment without what would change what is measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STATELINE_", "GIT_"))}


def process(argv: Sequence[str], *, said: str = os.devnull) -> Spent:
    """Run a program with the file ``said`` as its input, its output thrown away. Raises :class:`Failed` if it fails."""
    with tempfile.TemporaryFile() as told:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, said, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, told.fileno(), 2),
        ]
        began = time.perf_counter()
        pid = os.posix_spawnp(argv[0], list(argv), environment(), file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
        wall = time.perf_counter() - began
        code = os.waitstatus_to_exitcode(status)
        if code:
            told.seek(0)
            raise Failed(f"{' '.join(argv)[:200]} ended with {code}: {told.read().decode(errors='replace')[-500:]}")
    return Spent(usage.ru_utime + usage.ru_stime, wall)


def function(work: Callable[[], object]) -> Spent:
    """Call ``work`` in this process."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Spent(time.process_time() - cpu, time.perf_counter() - wall)


def interleaved(works: Mapping[str, Callable[[], Spent]], rounds: int) -> dict[str, Spent]:
    """The median of each over ``rounds``, taken in turns so that all meet the same weather; one more round goes first
    and is not counted. Every other round runs backwards: what comes after what must not matter."""
    taken: dict[str, list[Spent]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name in list(works)[:: -1 if number % 2 else 1]:
            spent = works[name]()
            if number:
                taken[name].append(spent)
    return {name: median(list_) for name, list_ in taken.items()}


def median(taken: Sequence[Spent]) -> Spent:
    """The medians of both times."""
    return Spent(statistics.median(s.cpu for s in taken), statistics.median(s.wall for s in taken))


def ratio(part: float, whole: float) -> float:
    """Rounded for a table; 0.0 where the clock saw nothing."""
    return round(part / whole, 2) if whole > 0 else 0.0


def ms(seconds: float) -> float:
    """[ms], rounded for a table."""
    return round(seconds * 1000, 3)


class Call(NamedTuple):
    """A system call as strace saw it: its arguments as text, and what it returned."""

    name: str
    arguments: str
    result: int


def can_trace() -> bool:
    """Return whether strace is there and may trace."""
    strace = shutil.which("strace")
    if strace is None:
        return False
    probe = subprocess.run([strace, "-f", "-o", os.devnull, "true"], capture_output=True, check=False)
    return probe.returncode == 0


def traced(argv: Sequence[str], *, said: str = "") -> list[Call]:
    """The finished system calls of a program and its children, in order; ``said`` is its standard input."""
    with tempfile.TemporaryDirectory(prefix="stateline bench trace ") as place:
        trace = Path(place) / "trace"
        command = ["strace", "-f", "-y", "-s", "64", "-o", str(trace), *argv]
        done = subprocess.run(command, input=said, capture_output=True, text=True, env=environment(), check=False)
        if done.returncode:
            raise Failed(f"{' '.join(argv)[:200]} ended with {done.returncode}: {done.stderr[-500:]}")
        return calls(trace.read_text(errors="replace").splitlines())


def calls(lines: Sequence[str]) -> list[Call]:
    """The finished calls in what strace wrote."""
    found = (_call.match(line) for line in _whole(lines))
    return [Call(match[1], match[2], int(match[3])) for match in found if match]


def _whole(lines: Sequence[str]) -> list[str]:
    """strace cuts a call in two when another process's comes between; put together again."""
    begun: dict[str, str] = {}
    whole = []
    for line in lines:
        pid = line.partition(" ")[0]
        if line.endswith(" <unfinished ...>"):
            begun[pid] = line.removesuffix(" <unfinished ...>")
        elif " resumed>" in line and pid in begun:
            whole.append(begun.pop(pid) + line.partition(" resumed>")[2])
        else:
            whole.append(line)
    return whole


def between_marks(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls after each mark (an ``access`` of ``/save-N``) up to the next, marks left out."""
    parts: list[list[Call]] = []
    for call in calls:
        if '"/save-' in call.arguments:
            parts.append([])
        elif parts:
            parts[-1].append(call)
    return parts


def syncs(calls: Sequence[Call]) -> int:
    """Return the number of waits for the disk."""
    return sum(call.name in SYNCING for call in calls)


def written(calls: Sequence[Call], below: str) -> int:
    """Bytes written to files below a directory."""
    return sum(max(call.result, 0) for call in calls if call.name in WRITING and f"<{below}" in call.arguments)
