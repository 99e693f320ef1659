"""``verify`` against ``sha256sum`` over the same files, and against a Python that only hashes them."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import chains, saver
from benchmarks.measure import Row, interleaved, ms, process, ratio

_HASH = """
import hashlib, os, sys
for place, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(place, name), "rb") as file:
            hashlib.sha256(file.read()).hexdigest()
"""
KINDS = ("2 KiB", "64 KiB", "2 KiB and an object of 64 KiB")


def measure(place: Path, *, quick: bool, say: Any) -> list[Row]:
    """A row a kind of store. Everything is read before it is timed, so both find it in memory."""
    rows = []
    for kind in KINDS:
        count = 20 if quick else (20_000 if kind == "2 KiB" else 2_000)
        here = place / kind
        began = time.monotonic()
        _build(here / "state", kind, count)
        files = [path for path in (here / "state").rglob("*") if path.is_file()]
        say(f"verify: {kind}, {len(files)} files in {time.monotonic() - began:.0f} s")
        listing = f"find {shlex.quote(str(here / 'state'))} -type f -print0 | xargs -0 sha256sum"
        works = {
            "verify": lambda here=here: process(chains.command(sys.executable, here, "verify")),
            "sha256sum": lambda listing=listing: process(["sh", "-c", listing]),
            "hashlib": lambda here=here: process([sys.executable, "-c", _HASH, str(here / "state")]),
        }
        taken = interleaved(works, 1 if quick else 7)
        ours, theirs = taken["verify"], taken["sha256sum"]
        rows.append(
            {
                "what": kind,
                "snapshots": count,
                "files": len(files),
                "bytes": sum(path.stat().st_size for path in files),
                "verify_ms": ms(ours.wall),
                "sha256sum_ms": ms(theirs.wall),
                "ratio": ratio(ours.wall, theirs.wall),
                "cpu_ratio": ratio(ours.cpu, theirs.cpu),
                "hashlib_ms": ms(taken["hashlib"].wall),
                "hashlib_ratio": ratio(ours.wall, taken["hashlib"].wall),
            }
        )
    return rows


def _build(place: Path, kind: str, count: int) -> None:
    scope = chains.store(place).scope(saver.KEY)
    snapshot = None
    with scope.locked():
        for number in range(count):
            state: dict[str, Any] = saver.state(number, 65536 if kind == "64 KiB" else 2048)
            if kind.endswith("object of 64 KiB"):
                state["object"] = f"{number:08} ".ljust(65536, "x")
            snapshot = scope.save(state, parent=snapshot)
