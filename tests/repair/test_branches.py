"""Two branches in one scope, like a restored backup beside newer work: which one a repair continues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sample_stores import OpenStore

from stateline.bundle import naming
from stateline.repair.apply import repair
from stateline.repair.republish import Carry, carry_all
from stateline.store.snapshot import Snapshot
from stateline.verify.checker import verify

KEY = "notes:x"


def scope_of(place: Path) -> Path:
    return place / naming.scope_hash(KEY)


@pytest.fixture
def branches(place: Path, open_store: OpenStore) -> Snapshot:
    """Make an older branch of ten, of which six came back from a backup, beside newer work; return the newer head.

    The pointer is empty.
    """
    store = open_store(place)
    saved = [store.scope(KEY).save({"n": n}) for n in range(10)]
    backup = place.with_name("backup")
    shutil.copytree(place, backup)
    for snapshot in saved[4:]:
        (scope_of(place) / snapshot.path).unlink()
    assert repair(open_store(place)).ok
    newest = open_store(place).scope(KEY).save({"new": "work"})
    for snapshot in saved[4:]:
        shutil.copy2(scope_of(backup) / snapshot.path, scope_of(place))
    (scope_of(place) / naming.POINTER).write_bytes(b"")
    return newest


def doubting(lost_effect_events: list[bool]) -> Carry:
    def carry(content: Snapshot, newer_lost: bool) -> dict[str, object]:
        lost_effect_events.append(newer_lost)
        return carry_all(content, newer_lost)

    return carry  # type: ignore[return-value]


def test_the_newest_work_continues_although_an_older_branch_is_longer(
    branches: Snapshot, place: Path, open_store: OpenStore
) -> None:
    lost_effect_events: list[bool] = []
    done = repair(open_store(place), carry=doubting(lost_effect_events))
    assert done.ok
    assert lost_effect_events == [True]
    head = open_store(place).scope(KEY).load()
    assert (head.state, head.envelope.prev_sha) == ({"new": "work"}, branches.sha256)
    assert any("set aside; the work recorded there may have been repeated" in warning for warning in done.warnings)
    assert verify(open_store(place)).ok


def test_a_state_is_in_doubt_if_newer_work_is_set_aside(place: Path, open_store: OpenStore) -> None:
    """The head stays, and a newer branch beside it is set aside. A gap makes the repair publish."""
    saved = [open_store(place).scope(KEY).save({"n": n}) for n in range(4)]
    pointer = (scope_of(place) / naming.POINTER).read_bytes()
    (scope_of(place) / naming.POINTER).write_bytes(saved[1].pointer.encode())
    for n in range(2):
        open_store(place).scope(KEY).save({"other": n})
    (scope_of(place) / naming.POINTER).write_bytes(pointer)
    (scope_of(place) / saved[0].path).unlink()
    lost_effect_events: list[bool] = []
    assert repair(open_store(place), carry=doubting(lost_effect_events)).ok
    assert lost_effect_events == [True]
    assert open_store(place).scope(KEY).load().state == {"n": 3}
