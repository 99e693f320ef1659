"""A disk that is really full: a small one, mounted for the test."""

from __future__ import annotations

from typing import Any

from each_case import each

from stateline import Store
from stateline.bundle import naming
from stateline.errors import StorageError
from stateline.store.protocol import Durability
from stateline.verify.checker import verify

KEY = "notes:x"


@each("durability", ["full", "fast"])
def test_a_full_disk_refuses_a_save_and_loses_nothing(disk: Any, durability: Durability) -> None:
    root = disk.path / "s"
    head = Store.open(root, durability=durability).scope(KEY).save({"n": 0})
    page = 4096
    failed = 0
    for left in range(0, 12 * page, page):
        disk.leave(left)
        store = Store.open(root, durability=durability)
        refused = None
        try:
            head = store.scope(KEY).save({"n": left, "big": [f"{left}{number}" * 2000 for number in range(2)]})
        except StorageError as error:
            refused = error
            failed += 1
        assert refused is None or ("the disk is full" in refused.message and "free some space" in refused.hint)
        assert store.scope(KEY).load() == head
        assert not list(root.rglob(f"{naming.TEMPORARY}*"))
        assert {found.severity for found in verify(store).findings} <= {"residue"}
        (disk.path / "ballast").unlink()
        assert Store.open(root).scope(KEY).load() == head
    assert 2 <= failed < 12, "with enough pages it succeeds"
    assert Store.open(root, durability=durability).scope(KEY).save({"n": 1}).seq == head.seq + 1


def test_a_scope_can_be_removed_from_a_full_disk(disk: Any) -> None:
    root = disk.path / "s"
    store = Store.open(root)
    store.scope(KEY).save({"n": 0})
    store.scope("notes:other").save({"n": 0})
    disk.leave(0)
    store = Store.open(root)
    with store.scope(KEY).locked():
        store.backend.remove(naming.scope_hash(KEY))
    assert store.scope(KEY).head() is None
    assert store.scope("notes:other").load().state == {"n": 0}
