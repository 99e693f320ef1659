"""A lock that does not hold, as on a broken network mount: nothing is overwritten, and a fork is named."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import filelock
import pytest
from each_case import each
from stress.processes import unlocked

from stateline import Store
from stateline.bundle import naming
from stateline.errors import ConflictError, StorageError
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)


class Interrupted(Filesystem):
    """Does ``other`` once, before the pointer's file is synced or before it is renamed."""

    def __init__(self) -> None:
        self.before_sync: Callable[[], Any] | None = None
        self.before_rename: Callable[[], Any] | None = None
        self._syncs = 0

    def sync_file(self, fd: int) -> None:
        self._syncs += 1
        if self._syncs == 2 and self.before_sync is not None:  # the first is the snapshot's
            self.before_sync()
        super().sync_file(fd)

    def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        if target == naming.POINTER and self.before_rename is not None:
            other, self.before_rename = self.before_rename, None
            other()
        super().rename(source_dir, source, target_dir, target)


@pytest.fixture(autouse=True)
def broken_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filelock, "lock_descriptor", lambda *words, **options: True)


def stores(root: Path) -> tuple[Store, Interrupted, Store]:
    """A store that is interrupted, how, and the other one that sees the same directory."""
    Store.open(root).scope(KEY).save({"n": 0})
    fs = Interrupted()
    return Store(LocalBackend(str(root), fs)), fs, Store.open(root)


def files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / HASH).glob("state-*")}


def forks(root: Path) -> list[tuple[str, str, str, str]]:
    """(severity, code, file's name, message) of each finding."""
    found = verify(Store.open(root)).findings
    return [(one.severity, one.code, one.path.rpartition("/")[2], one.message) for one in found]


def test_a_head_that_moves_while_the_pointer_is_synced_is_a_conflict_and_both_are_on_disk(tmp_path: Path) -> None:
    mine, fs, others = stores(tmp_path / "s")
    theirs: list[Any] = []
    fs.before_sync = lambda: theirs.append(others.scope(KEY).save({"who": "other"}))
    with pytest.raises(ConflictError):
        mine.scope(KEY).save({"who": "mine"})
    assert others.scope(KEY).load().sha256 == theirs[0].sha256
    assert len(files(tmp_path / "s")) == 3
    [(severity, code, name, message)] = forks(tmp_path / "s")
    assert (severity, code) == ("residue", "unacknowledged")
    assert f"{theirs[0].path} is on the chain" in message
    assert "lock does not hold" in message
    assert name in files(tmp_path / "s").keys() - {theirs[0].path}


def test_two_snapshots_acknowledged_at_once_are_both_kept_and_verify_names_the_fork(tmp_path: Path) -> None:
    mine, fs, others = stores(tmp_path / "s")
    first = others.scope(KEY).load()
    theirs: list[Any] = []
    fs.before_rename = lambda: theirs.append(others.scope(KEY).save({"who": "other"}))
    # Who comes later sweeps what seems to be left by a dead holder; the other one was there first.
    with others.scope(KEY).locked():
        won = mine.scope(KEY).save({"who": "mine"})
    [lost] = theirs
    assert files(tmp_path / "s").keys() == {first.path, won.path, lost.path}
    assert files(tmp_path / "s")[lost.path] == lost.data
    [(severity, code, name, message)] = forks(tmp_path / "s")
    # The one that was overtaken is the newer one, which no crash leaves.
    assert (severity, code, name) == ("warning", "forked", lost.path)
    assert first.path in message
    assert won.path in message
    assert others.scope(KEY).save({"n": 3}).envelope.prev_sha == won.sha256


def test_a_chain_that_grew_on_the_overtaken_one_is_damage(tmp_path: Path) -> None:
    mine, fs, others = stores(tmp_path / "s")
    theirs: list[Any] = []
    fs.before_rename = lambda: theirs.extend(others.scope(KEY).save({"other": n}) for n in range(3))
    with others.scope(KEY).locked():
        won = mine.scope(KEY).save({"who": "mine"})
    assert len(files(tmp_path / "s")) == 5
    [(severity, code, name, message)] = forks(tmp_path / "s")
    assert (severity, code, name) == ("damage", "orphaned", theirs[-1].path)
    assert "the 3 snapshots from 1 to 3" in message
    assert won.path in files(tmp_path / "s")


def test_two_first_snapshots_are_named(tmp_path: Path) -> None:
    fs = Interrupted()
    mine, others = Store(LocalBackend(str(tmp_path / "s"), fs)), Store.open(tmp_path / "s")
    theirs: list[Any] = []
    fs.before_rename = lambda: theirs.append(others.scope(KEY).save({"who": "other"}))
    # Who comes later sweeps what seems to be left by a dead holder; the other one was there first.
    with others.scope(KEY).locked():
        won = mine.scope(KEY).save({"who": "mine"})
    [(severity, code, name, message)] = forks(tmp_path / "s")
    assert (severity, code, name) == ("warning", "forked", theirs[0].path)
    assert message.startswith(f"there are two first snapshots: {won.path} is on the chain")


def test_the_mark_of_another_holder_never_becomes_the_pointer(tmp_path: Path) -> None:
    mine, fs, others = stores(tmp_path / "s")
    with ExitStack() as stack:

        def another_comes_and_a_third_stays() -> None:
            with others.scope(KEY).locked():
                pass
            stack.enter_context(Store.open(tmp_path / "s").scope(KEY).locked())

        fs.before_rename = another_comes_and_a_third_stays
        # The other one took its unfinished file for one that a dead holder left.
        with pytest.raises(StorageError):
            mine.scope(KEY).save({"who": "mine"})
        assert others.scope(KEY).load().seq == 0
    assert verify(Store.open(tmp_path / "s")).ok


def test_a_snapshot_left_by_a_crash_is_reported_as_possibly_overtaken(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    scope = store.scope(KEY)
    first = scope.save({"n": 0})
    scope.save({"n": "crashed"})
    store.backend.swap(HASH, store.backend.read(HASH), first.pointer)
    assert [found[:2] for found in forks(tmp_path / "s")] == [("residue", "unacknowledged")]
    assert "never made head" in forks(tmp_path / "s")[0][3], "nothing else follows its parent so far"
    going_on = scope.save({"n": 1})
    [(severity, code, _, message)] = forks(tmp_path / "s")
    assert (severity, code) == ("residue", "unacknowledged")
    assert f"two snapshots follow {first.path}: {going_on.path} is on the chain" in message


def test_many_processes_without_a_lock_overwrite_nothing(tmp_path: Path) -> None:
    until = time.monotonic() + 60
    summary = unlocked.campaign(tmp_path / "s", writers=6, each=8, until=until, say=lambda text: None)
    assert summary["acknowledged"] == 48
    assert summary["forks named"] > 0, "the lock did not hold"


@each("step", ["link", "rename"])
def test_a_swept_temporary_file_is_reported_as_a_lock_that_does_not_hold(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, fs, others = stores(tmp_path / "s")
    first, whole = others.scope(KEY).load(), getattr(Filesystem, step)

    def swept(self: Filesystem, source_dir: Directory, *words: Any) -> None:
        if self is fs:
            for path in (tmp_path / "s" / HASH).glob(f"{naming.TEMPORARY}*"):
                path.unlink()
        whole(self, source_dir, *words)

    monkeypatch.setattr(Filesystem, step, swept)
    with pytest.raises(
        StorageError, match="another writer removed what was being written; the lock does not hold here"
    ):
        mine.scope(KEY).save({"n": 1})
    assert others.scope(KEY).load() == first
    assert others.scope(KEY).save({"n": 2}).seq == 1


def test_an_existing_temporary_file_is_not_reported_as_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, fs, _ = stores(tmp_path / "s")

    def missing(self: Filesystem, *words: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(type(fs), "rename", missing)
    with pytest.raises(StorageError, match="No such file or directory"):
        mine.scope(KEY).save({"n": 1})
