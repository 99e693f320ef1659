"""Programs that save a state of about a given size, each behind one function: save number N. Stateline in both
durabilities, the plain calls that its commit consists of, and what others offer for the same purpose.

Run as a program it is one saver: ``saver.py WHO PLACE SIZE`` saves once for each line on its standard input, with a
mark in its system calls before each, and prints what each took [s].
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

Save = Callable[[int], object]

KEY = "notes:bench"
_PART = 2000
"""Characters of a text; below the size at which a value becomes an object, so that the snapshot has the whole size."""


def state(number: int, size: int) -> dict[str, object]:
    """A state whose JSON has about ``size`` [bytes], other in each save."""
    parts = max(1, size // 2048)
    return {"number": number, **{f"text-{part:03}": f"{number:08} ".ljust(_PART, "x") for part in range(parts)}}


def durabilities() -> list[str]:
    """Return the durabilities of this Stateline, strongest first."""
    import inspect

    from stateline import Store

    return ["full", "fast"] if "durability" in inspect.signature(Store.open).parameters else ["full"]


def stateline(place: str, size: int, durability: str = "full") -> Save:
    """``Scope.save`` of a store that is open."""
    from stateline import Store

    chosen = {} if durability == "full" else {"durability": durability}
    scope = Store.open(place, **chosen).scope(KEY)  # type: ignore[arg-type]  # a word that a later version may know
    return lambda number: scope.save(state(number, size))


def plain(place: str, size: int, durability: str = "full") -> Save:
    """The system calls of a commit and nothing else, through ``os``: ``size`` bytes and a pointer of 163 bytes."""
    os.makedirs(place, exist_ok=True)
    root = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    data, pointer, synced = b"x" * size, b"x" * 163, durability == "full"

    def commit(number: int) -> None:
        _write(root, ".tmp-1", data, synced)
        os.link(".tmp-1", f"state-{number:08}", src_dir_fd=root, dst_dir_fd=root)
        os.unlink(".tmp-1", dir_fd=root)
        if synced:
            os.fsync(root)
        _write(root, ".tmp-2", pointer, synced)
        os.rename(".tmp-2", "latest.json", src_dir_fd=root, dst_dir_fd=root)
        if synced:
            os.fsync(root)

    return commit


def replayed(place: str, size: int, durability: str = "full") -> Save:
    """All system calls of a save, its lock and its reads included, and nothing else."""
    from benchmarks import replay

    return replay.replayed(place, size, durability)


def _write(directory: int, name: str, data: bytes, synced: bool) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    os.write(fd, data)
    if synced:
        os.fsync(fd)
    os.close(fd)


def langgraph(place: str, size: int) -> Save:
    """``SqliteSaver.put``, set up as its documentation does."""
    import sqlite3

    from langgraph.checkpoint.base import empty_checkpoint  # type: ignore[import-not-found]  # another environment's
    from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]

    os.makedirs(place, exist_ok=True)
    saver = SqliteSaver(sqlite3.connect(f"{place}/checkpoints.sqlite", check_same_thread=False))
    saver.setup()
    config = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}

    def save(number: int) -> None:
        nonlocal config
        checkpoint = {**empty_checkpoint(), "channel_values": state(number, size)}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, {})

    return save


def burr(place: str, size: int) -> Save:
    """``SQLitePersister.save``."""
    from burr.core import State  # type: ignore[import-not-found]  # another environment's
    from burr.core.persistence import SQLitePersister  # type: ignore[import-not-found]

    os.makedirs(place, exist_ok=True)
    persister = SQLitePersister.from_values(f"{place}/burr.sqlite")
    persister.initialize()
    return lambda number: persister.save("bench", "app", number, "position", State(state(number, size)), "completed")


def git(place: str, size: int) -> Save:
    """``git add`` and ``git commit`` of one file, two processes as a script would run them."""
    import json
    import subprocess

    def call(*words: str) -> None:
        subprocess.run(["git", "-C", place, *words], check=True, stdout=subprocess.DEVNULL)

    if not os.path.isdir(f"{place}/.git"):
        os.makedirs(place, exist_ok=True)
        call("init", "-q")

    def save(number: int) -> None:
        with open(f"{place}/state.json", "w") as file:
            json.dump(state(number, size), file)
        call("add", "state.json")
        call("-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", str(number))

    return save


SAVERS: dict[str, Callable[[str, int], Save]] = {
    "stateline": stateline,
    "stateline fast": lambda place, size: stateline(place, size, "fast"),
    "plain": plain,
    "replayed": replayed,
    "replayed fast": lambda place, size: replayed(place, size, "fast"),
    "langgraph": langgraph,
    "burr": burr,
    "git": git,
}


def main(who: str, place: str, size: str) -> None:
    save = SAVERS[who](place, int(size))
    first = time.time_ns()
    for number, _ in enumerate(sys.stdin):
        os.access(f"/save-{number}", os.F_OK)
        began = time.perf_counter()
        save(first + number)
        took = time.perf_counter() - began
        os.access("/save-end", os.F_OK)
        sys.stdout.write(f"{took}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    main(*sys.argv[1:])
