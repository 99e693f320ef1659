"""A repair that stops at any system call can be finished by another one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stateline.bundle import naming
from stateline.errors import StatelineError
from stateline.redaction.redactor import Redactor
from stateline.repair.apply import repair
from stateline.repair.report import RepairReport
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Filesystem
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
CHANGING = (
    "make_directory",
    "create",
    "write",
    "sync_file",
    "sync_directory",
    "link",
    "unlink",
    "rename",
)


class Died(BaseException):
    """The process died."""


class Stopping(Filesystem):
    """Stops before the changing call number ``at``: dies and stays dead, or fails that one call with ``number``."""

    def __init__(self, at: int = -1, number: int | None = None) -> None:
        self.at = at
        self.number = number
        self.calls = 0


def _stop(name: str) -> Callable[..., Any]:
    whole = getattr(Filesystem, name)

    def method(self: Stopping, *args: Any) -> Any:
        seen, self.calls = self.calls, self.calls + 1
        if self.number is None and 0 <= self.at <= seen:
            raise Died
        if self.number is not None and self.at == seen:
            raise OSError(self.number, os.strerror(self.number))
        return whole(self, *args)

    return method


for _name in CHANGING:
    setattr(Stopping, _name, _stop(_name))


def store_on(place: Path, fs: Filesystem | None = None) -> Store:
    return Store(LocalBackend(str(place), fs), redactor=Redactor())


@pytest.fixture
def damaged(place: Path) -> Path:
    """Make a store with damage of every kind that has its own way of repair."""
    store = store_on(place)
    scope = store.scope(KEY)
    chain: list[Snapshot] = [scope.save({"n": n, "big": str(n) * 5000}) for n in range(5)]
    other = store.scope("notes:y")
    other.save(1)
    other.save(2)
    (place / HASH / chain[4].path).write_bytes(b"")
    (place / HASH / chain[1].path).unlink()
    (place / naming.object_path(chain[3].envelope.objects["/big"].sha256)).write_bytes(b"gone")
    (place / other.hash / "latest.json").write_bytes(b"no pointer")
    (place / other.hash / "foreign").symlink_to("/etc")
    (place / "stateline.json").write_bytes(b"{}")
    return place


def after(place: Path) -> tuple[object, ...]:
    """Return what a finished repair leads to."""
    store = store_on(place)
    report = verify(store)
    assert report.ok, report.findings
    head, other = store.scope(KEY).load(), store.scope("notes:y").load()
    assert head.event["type"] == other.event["type"] == "repaired"
    seqs = [snapshot.seq for snapshot in store.scope(KEY).walk() if snapshot.event.get("type") != "repaired"]
    return store.resolve(head.state), store.resolve(other.state), seqs


EXPECTED = ({"n": 2, "big": "2" * 5000}, 2, [3, 2, 0])


def repair_into(results: list[RepairReport], store: Store) -> None:
    results.append(repair(store))


def code_of(work: Callable[[], object]) -> str:
    """Return the code of the error that ``work`` raises, "" for none."""
    try:
        work()
    except StatelineError as error:
        return error.code
    return ""


def test_after_a_repair_that_died_a_writer_stops_or_continues_and_never_starts_afresh(
    damaged: Path, tmp_path: Path
) -> None:
    for at in range(2, 60, 6):
        copy = tmp_path / "copy"
        shutil.copytree(damaged, copy, symlinks=True)
        with contextlib.suppress(Died):
            repair(store_on(copy, Stopping(at)))
        for key in (KEY, "notes:y"):
            scope = store_on(copy).scope(key)
            assert code_of(partial(scope.save, "on")) in ("", "integrity"), at
            assert code_of(scope.load) == "integrity" or scope.load().seq > 1, at
        shutil.rmtree(copy)


def test_a_repair_that_dies_anywhere_is_finished_by_the_next(damaged: Path, tmp_path: Path) -> None:
    shutil.copytree(damaged, tmp_path / "count", symlinks=True)
    fs = Stopping()
    assert repair(store_on(tmp_path / "count", fs)).ok
    assert after(tmp_path / "count") == EXPECTED
    assert fs.calls > 30
    for at in range(fs.calls):
        copy = tmp_path / "copy"
        shutil.copytree(damaged, copy, symlinks=True)
        with pytest.raises(Died):
            repair(store_on(copy, Stopping(at)))
        done = repair(store_on(copy))
        assert done.ok, (at, done.findings, done.blocked)
        assert after(copy) == EXPECTED, at
        assert not repair(store_on(copy)).actions
        shutil.rmtree(copy)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_refused_call_is_reported_and_the_next_repair_finishes(damaged: Path, tmp_path: Path, number: int) -> None:
    shutil.copytree(damaged, tmp_path / "count", symlinks=True)
    fs = Stopping()
    repair(store_on(tmp_path / "count", fs))
    for at in range(number % 5, fs.calls, 5):
        copy = tmp_path / "copy"
        shutil.copytree(damaged, copy, symlinks=True)
        results: list[RepairReport] = []
        code = code_of(partial(repair_into, results, store_on(copy, Stopping(at, number))))
        # Some calls have a fallback: a refused link becomes a rename, temporary files stay.
        assert code in ("storage", "durability_unknown") or results[0].ok or results[0].blocked, at
        assert repair(store_on(copy)).ok, at
        assert after(copy) == EXPECTED, at
        shutil.rmtree(copy)
