"""Obstacles to a repair and changes during it: the rest is repaired."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from stateline.bundle import naming
from stateline.repair import apply
from stateline.repair.apply import repair
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.store import Store
from stateline.verify.checker import verify

KEY = "notes:x"


class Mounted(Filesystem):
    """Refuses to rename a mount point in the state dir."""

    def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        if source == "mounted":
            raise OSError(errno.EBUSY, "Device or resource busy")
        super().rename(source_dir, source, target_dir, target)


def test_a_file_that_cannot_be_moved_does_not_prevent_other_repairs(
    store: Store, place: Path, open_store: Callable[..., Store]
) -> None:
    saved = [store.scope(KEY).save({"n": n}) for n in range(3)]
    (place / naming.scope_hash(KEY) / saved[1].path).unlink()
    (place / "mounted").mkdir()
    (place / "other").mkdir()
    done = repair(Store(LocalBackend(str(place), fs=Mounted())))
    assert [blocked.path for blocked in done.blocked] == ["mounted"]
    assert [action.path for action in done.actions if action.action == "set_aside"] == ["other"]
    assert (done.ok, [finding.path for finding in done.findings]) == (False, ["mounted"])
    assert done.exit_code != 0
    assert verify(open_store(place), KEY).ok


def test_an_object_that_was_repaired_meanwhile_is_left_in_place(
    store: Store, place: Path, open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another repair and a writer finish between the check of an object and its repair."""
    big = "x" * 6000
    store.scope(KEY).save({"big": big})
    store.scope(KEY).save({"small": 1})
    (file,) = (file for file in (place / naming.OBJECTS).rglob("*") if file.is_file())
    file.write_bytes(b"xxx")
    plan_store = apply.plan_store

    def meanwhile(*planned: object) -> object:
        plan = plan_store(*planned)  # type: ignore[arg-type]
        monkeypatch.setattr(apply, "plan_store", plan_store)
        assert repair(open_store(place)).ok
        open_store(place).scope(KEY).save({"big": big})
        return plan

    monkeypatch.setattr(apply, "plan_store", meanwhile)
    done = repair(open_store(place))
    assert (done.ok, done.actions, done.lost) == (True, (), ())
    assert open_store(place).resolve(open_store(place).scope(KEY).load().state) == {"big": big}
