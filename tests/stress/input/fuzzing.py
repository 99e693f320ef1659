"""Fuzzing of every loader, each in a process of its own: typed errors only, bounded time, bounded memory.

Guided by coverage where atheris is installed (Linux; the extra ``fuzz``), by mutations of good documents alone where it
is not; the summary says which. A seed repeats the choices of the loop; atheris also goes by what it sees.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stress.input import fuzz_worker
from stress.input.loaders import LOADERS
from stress.oracle import ViolationError, require

Say = Callable[[str], None]
GRACE = 60.0
"""Extra time of a process to start and to shrink a finding [s]."""


def engine() -> str:
    """Return the input generator available here: ``atheris`` or ``loop``."""
    return "atheris" if importlib.util.find_spec("atheris") else "loop"


def campaign(
    root: Path, seed: str, *, seconds: float, until: float, say: Say, only: Sequence[str] = (), by: str = ""
) -> dict[str, Any]:
    """Feed each loader for its share of ``seconds`` [s], at most ``until`` [monotonic s].

    Raises ``ViolationError`` after the last one if any promise was broken; inputs and traces are then under ``root``.
    """
    begun, by = time.monotonic(), by or engine()
    if by == "loop":
        say("atheris is not installed: mutations alone, without coverage")
    names = list(only) or list(LOADERS)
    rows: dict[str, Any] = {}
    findings = []
    for number, name in enumerate(names):
        left = min(begun + seconds, until) - time.monotonic()
        if left <= 0:
            break
        share = left / (len(names) - number)
        place = root / name.replace(" ", "-")
        place.mkdir(parents=True)
        rows[name], finding = _feed(place, name, by, f"{seed}:{name}", share)
        findings += [finding] if finding else []
        say(f"{name}: {rows[name]}{' FOUND ' + finding if finding else ''}")
    done = {
        "seed": seed,
        "by": by,
        "loaders": len(rows),
        "executions": sum(row["executions"] for row in rows.values()),
        "slowest": max((row["slowest"] for row in rows.values()), default=0.0),
        "peak_mib": max((row["peak_mib"] for row in rows.values()), default=0),
        "seconds": round(time.monotonic() - begun, 1),
        "by_loader": rows,
    }
    if findings:
        raise ViolationError(f"{len(findings)} of {len(rows)} loaders broke a promise: {'; '.join(findings)}")
    require(bool(rows) and all(row["executions"] > 0 for row in rows.values()), "a loader was fed nothing")
    return done


def _feed(place: Path, name: str, by: str, seed: str, share: float) -> tuple[dict[str, Any], str]:
    """One process: its figures, and what it found ("" for nothing)."""
    begun = time.monotonic()
    with open(place / "said", "wb") as said:
        child = subprocess.Popen(
            [sys.executable, fuzz_worker.__file__, name, by, seed, str(share), str(place)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        status, usage = _ended(child, begun + share + GRACE)
    progress = place / "progress"
    page = progress.read_bytes() if progress.exists() else bytes(fuzz_worker.HEAD.size)
    count, slowest, size = fuzz_worker.HEAD.unpack_from(page)
    row = {
        "executions": count,
        "seconds": round(time.monotonic() - begun, 1),
        "slowest": round(slowest, 3),
        "peak_mib": usage.ru_maxrss // 1024 if sys.platform != "darwin" else usage.ru_maxrss >> 20,
    }
    if status == 0:
        return row, "" if row["peak_mib"] <= fuzz_worker.MEMORY else f"{place}: {row['peak_mib']} MiB"
    if not (place / "finding").exists() and size:
        # It ended in the middle of an input: a crash in native code, or one that took too long.
        (place / "finding").write_bytes(page[fuzz_worker.HEAD.size : fuzz_worker.HEAD.size + size])
    return row, f"{place} (exit {status})"


def _ended(child: subprocess.Popen[bytes], until: float) -> tuple[int, Any]:
    """Wait for the child, and kill it at ``until`` [monotonic s]; its exit code (negative: a signal) and its usage."""
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, usage
        if time.monotonic() >= until:
            child.kill()
            until = float("inf")
        time.sleep(0.05)
