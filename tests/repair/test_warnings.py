"""Obstacles and warnings of a repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_stores import KEY, OpenStore, Publish, copies

from stateline.bundle import naming
from stateline.repair.apply import plan, repair
from stateline.store.store import Store
from stateline.verify.checker import verify

OTHER = "notes:y"


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_no_directory_is_made_if_nothing_is_set_aside(store: Store, place: Path, open_store: OpenStore) -> None:
    store.scope(KEY).save({"n": 0})
    (place / naming.STORE_FILE).unlink()
    done = repair(open_store(place))
    assert (done.ok, done.aside) == (True, None)
    assert not [*place.glob("ext-*")]


@pytest.mark.parametrize("version", ["2", "1.1"])
def test_a_damaged_object_stays_while_a_blocked_scope_may_need_it(
    store: Store, place: Path, open_store: OpenStore, publish: Publish, version: str
) -> None:
    """A newer version must repair the scope: it cannot declare the loss."""
    first = store.scope(KEY).save({"n": 0, "big": "x" * 5000})
    store.scope(OTHER).save({"n": 0})
    store.scope(OTHER).save({"n": 1, "big": "x" * 5000})
    fields: dict[str, Any] = {"seq": 1, "prev_sha": first.sha256, "prev": first.path}
    publish(store, KEY, head=True, version=version, created_at="2026-11-20T23:00:00.000000Z", **fields)
    path = naming.object_path(first.envelope.objects["/big"].sha256)
    alter(place / path)
    held = (place / path).read_bytes()
    for key, copy in zip((None, OTHER), copies(place), strict=False):
        assert path in {blocked.path for blocked in plan(open_store(copy), key).blocked}, key
        done = repair(open_store(copy), key)
        assert (copy / path).read_bytes() == held, key
        assert path in {blocked.path for blocked in done.blocked}, key
        assert (done.ok, done.aside) == (False, None), key
        assert open_store(copy).scope(OTHER).load().event["type"] == "repaired", "the other scope continues"


def test_snapshots_that_the_head_does_not_lead_to_give_a_warning(
    store: Store, place: Path, open_store: OpenStore
) -> None:
    """The pointer was set back, and work continued from there."""
    scope = store.scope("run:r1")
    saved = [scope.save({"n": n}) for n in range(11)]
    (place / scope.hash / naming.POINTER).write_bytes(saved[3].pointer.encode())
    for n in range(2):
        scope.save({"again": n}, event={"why": n})
    expected = "7 snapshots (4 to 10) of run:r1 that the head does not lead to: set aside"
    for result in (plan(open_store(place)), repair(open_store(place))):
        assert [warning for warning in result.warnings if warning.startswith(expected)]
        assert "the work recorded there may have been repeated" in " ".join(result.warnings)
        aside = [action for action in result.actions if action.action == "set_aside"]
        assert [(action.why, action.path) for action in aside] == [
            ("orphaned", f"{scope.hash}/{saved[n].path}") for n in range(4, 11)
        ]
    assert verify(open_store(place)).ok


def test_the_loss_of_a_runs_whole_scope_warns_that_its_effects_run_again(
    store: Store, place: Path, open_store: OpenStore
) -> None:
    keys = {"run:r1": True, "machine:" + "a" * 64: True, "notes:n": False}
    saved = [store.scope(key).save({"n": 0, "big": "x" * 5000}) for key in keys]
    (place / naming.object_path(saved[0].envelope.objects["/big"].sha256)).unlink()
    for result in (plan(open_store(place)), repair(open_store(place))):
        for key, warned in keys.items():
            [warning] = [warning for warning in result.warnings if key in warning]
            assert ("the next `execute` begins a new run; its effects run again" in warning) == warned, key


def test_a_lost_scope_of_unknown_key_may_have_been_a_run(store: Store, place: Path, open_store: OpenStore) -> None:
    saved = store.scope("run:r1").save({"n": 0})
    alter(place / saved.scope / saved.path)
    text = " ".join(plan(open_store(place)).warnings)
    assert "if it was a run, the next `execute` begins a new one; its effects run again" in text
