"""Logs and the list of scopes."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_stores import Publish

from stateline.errors import IntegrityError, NewerVersionError
from stateline.history.log import LogRow, entries, list_scopes
from stateline.store.actor import actor_of
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store


def rows(store: Store, snapshot: Snapshot, limit: int | None = None) -> list[LogRow]:
    return [LogRow.of(item) for item, _ in entries(store, snapshot, limit, with_changes=False)]


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    return [store.scope("notes:x").save({"n": n}, event={"step": n}) for n in range(5)]


def test_rows_are_newest_first_and_agree_with_the_files(store: Store, chain: list[Snapshot], place: Path) -> None:
    listed = rows(store, chain[-1])
    assert [row.sha for row in listed] == [snapshot.sha256 for snapshot in reversed(chain)]
    assert [row.prev_sha for row in listed] == [row.sha for row in listed[1:]] + [None]
    assert [row.event["step"] for row in listed] == [4, 3, 2, 1, 0]
    assert [row.created_at for row in listed] == sorted((row.created_at for row in listed), reverse=True)
    assert all((place / chain[0].scope / row.path).is_file() for row in listed)


def test_a_row_has_exactly_the_documented_members(store: Store, chain: list[Snapshot]) -> None:
    document = rows(store, chain[2])[0].document()
    assert document == {
        "sha": chain[2].sha256,
        "seq": 2,
        "created_at": chain[2].envelope.created_at,
        "kind": "notes",
        "prev_sha": chain[1].sha256,
        "path": chain[2].path,
        "event": {"actor": actor_of(None), "durability": "full", "step": 2},
    }


def test_a_limit_bounds_the_rows(store: Store, chain: list[Snapshot]) -> None:
    cases = [(0, []), (1, [4]), (3, [4, 3, 2]), (5, [4, 3, 2, 1, 0]), (9, [4, 3, 2, 1, 0])]
    for limit, expected in cases:
        assert [row.seq for row in rows(store, chain[-1], limit)] == expected


def test_a_limited_log_reads_no_older_snapshot(store: Store, chain: list[Snapshot], place: Path) -> None:
    (place / chain[0].scope / chain[1].path).unlink()
    assert [row.seq for row in rows(store, chain[-1], 3)] == [4, 3, 2]


def test_a_broken_chain_gives_the_rows_before_the_break_and_then_the_damage(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    (place / chain[0].scope / chain[1].path).write_bytes(b"{}")
    given = []
    walking = entries(store, chain[-1], None, with_changes=False)
    for _ in range(3):
        given.append(next(walking)[0].seq)
    assert given == [4, 3, 2]
    with pytest.raises(IntegrityError):
        next(walking)


def test_a_log_never_lists_a_directory(store: Store, chain: list[Snapshot], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.backend, "list", None)
    assert len(rows(store, chain[-1])) == 5


def test_scopes_are_listed_by_key_with_their_heads(store: Store, chain: list[Snapshot]) -> None:
    other = store.scope("context:b").save({})
    listed = list_scopes(store)
    assert listed.document() == {
        "scopes": [
            {"scope": "context:b", "hash": other.scope, "head": other.sha256, "seq": 0},
            {"scope": "notes:x", "hash": chain[-1].scope, "head": chain[-1].sha256, "seq": 4},
        ],
        "findings": [],
    }


def test_two_interleaved_scopes_keep_their_own_heads(store: Store) -> None:
    for number in range(3):
        store.scope("notes:a").save({"n": number})
        store.scope("notes:b").save({"n": -number})
    assert [(row.scope, row.seq) for row in list_scopes(store).scopes] == [("notes:a", 2), ("notes:b", 2)]


def test_a_damaged_scope_does_not_hide_the_others(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish
) -> None:
    damaged = {key: store.scope(key).save({}) for key in ("notes:pointer", "notes:head", "notes:gone")}
    (place / damaged["notes:pointer"].scope / "latest.json").write_bytes(b"{")
    (place / damaged["notes:head"].scope / damaged["notes:head"].path).write_bytes(b"{}")
    (place / damaged["notes:gone"].scope / damaged["notes:gone"].path).unlink()
    (place / ("e" * 64)).symlink_to(place)
    lost = store.scope("notes:lost").save(store.scope("notes:lost").save({}).state)
    (place / lost.scope / "latest.json").unlink()
    publish(store, "notes:newer", head=True, version="2")
    listed = list_scopes(store)
    assert [row.scope for row in listed.scopes] == ["notes:x"]
    found = {finding.path.partition("/")[0]: (finding.severity, finding.code) for finding in listed.findings}
    assert found.pop(damaged["notes:pointer"].scope) == ("damage", "not_json")
    assert found.pop(damaged["notes:head"].scope) == ("damage", "altered")
    assert found.pop(damaged["notes:gone"].scope) == ("damage", "missing")
    assert found.pop("e" * 64) == ("damage", "not_regular")
    assert found.pop(lost.scope) == ("damage", "missing")
    assert [*found.values()] == [("warning", "newer_version")]


def test_a_scope_without_an_acknowledged_snapshot_is_not_listed(store: Store, publish: Publish) -> None:
    publish(store, "notes:new", head=False)
    assert list_scopes(store).document() == {"scopes": [], "findings": []}


def test_an_absent_store_has_no_scopes_and_stays_absent(store: Store, place: Path) -> None:
    assert list_scopes(store).scopes == ()
    assert not place.exists()


def test_a_store_of_a_newer_format_is_refused_each_time(store: Store, chain: list[Snapshot], place: Path) -> None:
    (place / "stateline.json").write_bytes(b'{"format":"stateline/2","store_id":"0"}')
    fresh = Store.open(place)
    for _ in range(2):
        with pytest.raises(NewerVersionError):
            list_scopes(fresh)


def test_with_changes_each_snapshot_is_yielded_before_its_parent_is_read(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    (place / chain[0].scope / chain[3].path).unlink()
    walking = entries(store, chain[-1], None, with_changes=True)
    assert next(walking) == (chain[-1], None)
    with pytest.raises(IntegrityError):
        next(walking)


def test_with_changes_the_first_of_a_chain_is_compared_with_an_empty_state(store: Store, chain: list[Snapshot]) -> None:
    given = [
        (item.seq, changes)
        for item, changes in entries(store, chain[1], None, with_changes=True)
        if changes is not None
    ]
    assert [(seq, [(c.op, c.path, c.old, c.new) for c in changes]) for seq, changes in given] == [
        (1, [("replace", ("n",), 0, 1)]),
        (0, [("add", ("n",), None, 0)]),
    ]
    assert [*entries(store, chain[1], 0, with_changes=True)] == []
