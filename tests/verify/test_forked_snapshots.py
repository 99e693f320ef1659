"""Snapshots beside the chain that compete with one on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sample_stores import HASH, KEY, Publish

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify
from stateline.verify.findings import Finding

NEWER = "2030-01-01T00:00:00.000000Z"


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    return [store.scope(KEY).save({"n": n}) for n in range(4)]


def findings(store: Store) -> dict[str, Finding]:
    return {finding.code: finding for finding in verify(store).findings}


def beside(parent: Snapshot | Pointer, seq: int, created_at: str = NEWER) -> dict[str, object]:
    return {"seq": seq, "prev": parent.path, "prev_sha": parent.sha256, "created_at": created_at}


def test_a_copy_of_the_rival_under_another_name_does_not_hide_the_fork(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish
) -> None:
    publish(store, KEY, head=False, **beside(chain[0], 1))
    for year in ("1990", "2040"):
        copy = place / HASH / naming.snapshot_name(f"{year}-01-01T00:00:00.000000Z", chain[1].sha256)
        shutil.copy(place / HASH / chain[1].path, copy)
        codes = findings(store)
        assert codes.keys() == {"forked", "misplaced"}, year
        assert f"{chain[1].path} is on the chain" in codes["forked"].message, year
        copy.unlink()


def test_a_branch_whose_seq_skips_is_orphaned(store: Store, chain: list[Snapshot], publish: Publish) -> None:
    first = publish(store, KEY, head=False, **beside(chain[0], 3))
    publish(store, KEY, head=False, **beside(first, 4, "2031-01-01T00:00:00.000000Z"))
    assert findings(store).keys() == {"orphaned"}


def test_a_fork_is_a_warning_if_newer_and_residue_if_overtaken(
    store: Store, chain: list[Snapshot], publish: Publish
) -> None:
    newer = publish(store, KEY, head=False, **beside(chain[0], 1))
    overtaken = publish(store, KEY, head=False, **beside(chain[1], 2, chain[2].envelope.created_at))
    found = findings(store)
    assert found.keys() == {"forked", "unacknowledged"}
    assert f"`stateline show {newer.sha256}`" in found["forked"].message
    assert f"`stateline show {overtaken.sha256}`" in found["unacknowledged"].message
