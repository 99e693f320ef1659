"""Who stands in a loose snapshot's place on the chain is told by what the walk has read, and never by guess."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify
from stateline.verify.findings import Finding

KEY = "notes:x"
NEWER = "2030-01-01T00:00:00.000000Z"


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    return [store.scope(KEY).save({"n": n}) for n in range(4)]


def found(store: Store) -> dict[str, Finding]:
    return {finding.code: finding for finding in verify(store).findings}


def beside(parent: Snapshot | Pointer, seq: int, created_at: str = NEWER) -> dict[str, object]:
    return {"seq": seq, "prev": parent.path, "prev_sha": parent.sha256, "created_at": created_at}


@pytest.mark.parametrize("year", ["1990", "2040"])
def test_a_copy_of_the_rival_under_another_name_does_not_hide_the_fork(
    store: Store, chain: list[Snapshot], place: Path, publish: Callable[..., Pointer], year: str
) -> None:
    publish(store, KEY, head=False, **beside(chain[0], 1))
    scope = place / chain[0].scope
    copy = naming.snapshot_name(f"{year}-01-01T00:00:00.000000Z", chain[1].sha256)
    shutil.copy(scope / chain[1].path, scope / copy)
    codes = found(store)
    assert codes.keys() == {"forked", "misplaced"}
    assert f"{chain[1].path} is on the chain" in codes["forked"].message


def test_a_run_whose_number_skips_has_no_rival(
    store: Store, chain: list[Snapshot], publish: Callable[..., Pointer]
) -> None:
    first = publish(store, KEY, head=False, **beside(chain[0], 3))
    publish(store, KEY, head=False, **beside(first, 4, "2031-01-01T00:00:00.000000Z"))
    codes = found(store)
    assert codes.keys() == {"orphaned"}
    assert "two snapshots follow" not in codes["orphaned"].message


def test_a_fork_is_told_with_what_to_do_next(
    store: Store, chain: list[Snapshot], publish: Callable[..., Pointer]
) -> None:
    loose = publish(store, KEY, head=False, **beside(chain[0], 1))
    message = found(store)["forked"].message
    assert "it may hold what was acknowledged" in message
    assert f"look with `stateline show {loose.sha256}`, and whether locks hold on this file system" in message
    assert "the clocks of the writers differ or were set back" in message


def test_what_was_overtaken_is_told_with_what_to_do_next(
    store: Store, chain: list[Snapshot], publish: Callable[..., Pointer]
) -> None:
    loose = publish(store, KEY, head=False, **beside(chain[0], 1, chain[1].envelope.created_at))
    message = found(store)["unacknowledged"].message
    assert "or the pointer was set back" in message
    assert f"look with `stateline show {loose.sha256}`" in message
