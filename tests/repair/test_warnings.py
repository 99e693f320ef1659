"""What a repair leaves alone, and what it warns of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer
from stateline.repair.apply import plan, repair
from stateline.store.store import Store
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
OTHER = "notes:y"


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_where_nothing_is_set_aside_no_directory_is_made(
    store: Store, place: Path, open_store: Callable[..., Store]
) -> None:
    store.scope(KEY).save({"n": 0})
    (place / naming.STORE_FILE).unlink()
    done = repair(open_store(place))
    assert (done.ok, done.aside) == (True, None)
    assert not [*place.glob("ext-*")]


@pytest.mark.parametrize("version", ["2", "1.1"])
@pytest.mark.parametrize("key", [None, OTHER])
def test_a_damaged_object_stays_while_a_scope_that_is_left_alone_may_need_it(
    store: Store,
    place: Path,
    open_store: Callable[..., Store],
    publish: Callable[..., Pointer],
    version: str,
    key: str | None,
) -> None:
    """That scope could not declare the loss: its own version has to judge."""
    first = store.scope(KEY).save({"n": 0, "big": "x" * 5000})
    store.scope(OTHER).save({"n": 0})
    store.scope(OTHER).save({"n": 1, "big": "x" * 5000})
    fields: dict[str, Any] = {"seq": 1, "prev_sha": first.sha256, "prev": first.path}
    publish(store, KEY, head=True, version=version, created_at="2026-11-20T23:00:00.000000Z", **fields)
    path = naming.object_path(first.envelope.objects["/big"].sha256)
    alter(place / path)
    held = (place / path).read_bytes()
    done = repair(open_store(place), key)
    assert (place / path).read_bytes() == held
    assert path in {blocked.path for blocked in done.blocked}
    assert path in {blocked.path for blocked in plan(open_store(place), key).blocked}
    assert (done.ok, done.aside) == (False, None)
    assert open_store(place).scope(OTHER).load().event["type"] == "repaired", "the other scope goes on"


def test_snapshots_that_the_head_does_not_lead_to_are_warned_of(
    store: Store, place: Path, open_store: Callable[..., Store]
) -> None:
    """The pointer was set back, and work went on from there."""
    scope = store.scope("run:r1")
    saved = [scope.save({"n": n}) for n in range(11)]
    (place / scope.hash / naming.POINTER).write_bytes(saved[3].pointer.encode())
    for n in range(2):
        scope.save({"again": n}, event={"why": n})
    said = "7 snapshots (4 to 10) of run:r1 that the head does not lead to are set aside"
    for result in (plan(open_store(place)), repair(open_store(place))):
        assert [warning for warning in result.warnings if warning.startswith(said)]
        assert "the work that they record may have been repeated" in " ".join(result.warnings)
        aside = [action for action in result.actions if action.action == "set_aside"]
        assert [(action.why, action.path) for action in aside] == [
            ("orphaned", f"{scope.hash}/{saved[n].path}") for n in range(4, 11)
        ]
    assert verify(open_store(place)).ok


@pytest.mark.parametrize(("key", "warned"), [("run:r1", True), ("machine:" + "a" * 64, True), ("notes:n", False)])
def test_a_whole_scope_that_is_lost_warns_of_effects_that_run_again(
    store: Store, place: Path, open_store: Callable[..., Store], key: str, warned: bool
) -> None:
    saved = store.scope(key).save({"n": 0, "big": "x" * 5000})
    (place / naming.object_path(saved.envelope.objects["/big"].sha256)).unlink()
    for result in (plan(open_store(place)), repair(open_store(place))):
        text = " ".join(result.warnings)
        assert f"nothing of {key} is whole" in text
        assert ("the next `execute` begins a new run; its effects run again" in text) == warned


def test_a_whole_scope_of_unknown_key_may_have_been_a_run(
    store: Store, place: Path, open_store: Callable[..., Store]
) -> None:
    saved = store.scope("run:r1").save({"n": 0})
    alter(place / saved.scope / saved.path)
    text = " ".join(plan(open_store(place)).warnings)
    assert "if it was a run, the next `execute` begins a new one; its effects run again" in text
