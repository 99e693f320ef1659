"""One save against the plain system calls of its own protocol, and against all that it really makes, in both
durabilities."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import saver
from benchmarks.measure import (
    Call,
    Row,
    Spent,
    between_marks,
    can_trace,
    function,
    interleaved,
    ms,
    ratio,
    syncs,
    traced,
    written,
)

SIZES = (2048, 65536)
_MEMORY = ("brk", "mmap", "munmap", "mremap", "madvise")
"""Calls by which a process gets and gives back memory: when it does is no matter of a save."""
_TRACED = 4
"""Saves under strace: the last is counted, when everything is there."""


def measure(place: Path, *, quick: bool, say: Any) -> list[Row]:
    """A row for each size and durability. ``ratio`` is wall time, which is mostly the disk's."""
    rows = []
    for size in SIZES:
        for durability in saver.durabilities():
            say(f"commits: {size} bytes, {durability}")
            here = place / f"{size} {durability}"
            rows.append(_row(here, size, durability, 5 if quick else 300))
    return rows


def _row(place: Path, size: int, durability: str, rounds: int) -> Row:
    save = saver.stateline(str(place / "store"), size, durability)
    save(0)
    exact = max(path.stat().st_size for path in (place / "store").rglob("state-*.json"))
    works = {
        "save": save,
        "plain": saver.plain(str(place / "plain"), exact, durability),
        "replayed": saver.replayed(str(place / "replayed"), exact, durability),
    }
    taken = interleaved({name: _timed(work) for name, work in works.items()}, rounds)
    save_, plain, replayed = (taken[name] for name in ("save", "plain", "replayed"))
    return {
        "what": f"{size // 1024} KiB, {durability}",
        "size": size,
        "durability": durability,
        "snapshot_bytes": exact,
        "save_ms": ms(save_.wall),
        "plain_ms": ms(plain.wall),
        "ratio": ratio(save_.wall, plain.wall),
        "replayed_ms": ms(replayed.wall),
        "ratio_replayed": ratio(save_.wall, replayed.wall),
        "save_cpu_ms": ms(save_.cpu),
        "plain_cpu_ms": ms(plain.cpu),
        **_counted(place / "traced", size, durability),
    }


def _timed(save: saver.Save) -> Callable[[], Spent]:
    numbers = iter(range(1, 1 << 62))
    return lambda: function(lambda: save(next(numbers)))


def _counted(place: Path, size: int, durability: str) -> Row:
    if not can_trace():
        return _counted_at_the_seam(place, size, durability)
    calls = _traced("stateline", place, size, durability)
    names = Counter(call.name for call in calls)
    return {
        "syncs": syncs(calls),
        "bytes_written": written(calls, str(place)),
        "syscalls": len(calls),
        "syscall_names": dict(sorted(names.items(), key=lambda item: (-item[1], item[0]))),
        "syscall_order": [call.name for call in calls],
        "replayed_order": [call.name for call in _traced("replayed", place / "again", size, durability)],
        "counted_by": "strace",
    }


def _traced(who: str, place: Path, size: int, durability: str) -> list[Call]:
    """The calls of one save."""
    who = who if durability == "full" else f"{who} fast"
    command = [sys.executable, saver.__file__, who, str(place), str(size)]
    # What the program prints about each save is no call of a save.
    calls = between_marks(traced(command, said="save\n" * _TRACED))[-2]
    return [call for call in calls if call.name not in _MEMORY]


def _counted_at_the_seam(place: Path, size: int, durability: str) -> Row:
    """Syncs and bytes as the seam sees them, where strace is missing."""
    from stateline.store.local.filesystem import Filesystem

    count: Counter[str] = Counter()
    save = saver.stateline(str(place), size, durability)
    save(0)
    kept = Filesystem.sync_file, Filesystem.sync_directory, Filesystem.write

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            result = real(*args)
            count[name] += result if name == "bytes" else 1
            return result

        return call

    try:
        Filesystem.sync_file = counting("syncs", kept[0])  # type: ignore[method-assign]  # taken back below
        Filesystem.sync_directory = counting("syncs", kept[1])  # type: ignore[method-assign]
        Filesystem.write = counting("bytes", kept[2])  # type: ignore[method-assign]
        save(1)
    finally:
        Filesystem.sync_file, Filesystem.sync_directory, Filesystem.write = kept  # type: ignore[method-assign]
    return {"syncs": count["syncs"], "bytes_written": count["bytes"], "counted_by": "the seam"}
