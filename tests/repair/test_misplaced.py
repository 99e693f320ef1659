"""Snapshots under wrong names, emptied and grown files: verify and repair give each damage the same code."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_stores import HASH, KEY, OpenStore, copies

from stateline.bundle import naming
from stateline.repair.apply import plan, repair
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify

ELSEWHERE = "state-2026-11-20T090000.000000Z-01234567.json"


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    """Six snapshots, oldest first; large states are objects."""
    return [store.scope(KEY).save({"n": n, "big": f"{n}" * 5000}) for n in range(6)]


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def cut_a_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9] + b"\n")


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" \n")


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"junk")


def alter(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"n":', b'"m":'))


def alter_time(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"2026-", b"2027-", 1))


def alter_scope(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(KEY.encode(), b"notes:z", 1))


CODES = (
    (empty, "truncated"),
    (truncate, "truncated"),
    (cut_a_line, "truncated"),
    (grow, "altered"),
    (append, "altered"),
    (alter, "altered"),
    (alter_time, "altered"),
    (alter_scope, "altered"),
)


@pytest.mark.parametrize("numbers", [[5], [3], [2, 3]])
def test_verify_and_repair_give_one_damage_one_code(
    chain: list[Snapshot], place: Path, open_store: OpenStore, numbers: list[int]
) -> None:
    """Also if nothing leads to a file, because the one that names it is damaged too."""
    for (corrupt, code), copy in zip(CODES, copies(place), strict=False):
        for number in numbers:
            corrupt(copy / HASH / chain[number].path)
        others = ("orphaned", "unreferenced")
        found = {f.path: f.code for f in verify(open_store(copy)).findings if f.code not in others}
        assert found == {f"{HASH}/{chain[number].path}": code for number in numbers}, corrupt
        planned = plan(open_store(copy))
        assert {a.path: a.why for a in planned.actions if a.action == "set_aside"} == found, corrupt
        assert {lost.why for lost in planned.lost} == {code}, corrupt


def test_an_intact_snapshot_under_another_name_is_put_back(
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    cases = [[0], [2], [5], [2, 3], [0, 1, 2, 3, 4, 5]]
    for numbers, copy in zip(cases, copies(place), strict=False):
        for number in numbers:
            (copy / HASH / chain[number].path).rename(copy / HASH / ELSEWHERE.replace("09", f"{number:02}"))
        codes = {f.path: f.code for f in verify(open_store(copy)).findings if f.severity == "damage"}
        planned = plan(open_store(copy))
        done = repair(open_store(copy))
        assert (done.ok, done.lost, planned.lost) == (True, (), ()), numbers
        assert [a.path for a in done.actions if a.action == "put_back"] == [
            f"{HASH}/{chain[number].path}" for number in numbers
        ]
        wrong = {a.path: a.why for a in planned.actions if a.action == "set_aside"}
        assert wrong == {path: code for path, code in codes.items() if code == "misplaced"}, numbers
        assert len(wrong) == len(numbers)
        store = open_store(copy)
        assert store.scope(KEY).load().sha256 == chain[5].sha256, "nothing was lost, so the head is unchanged"
        assert [item.seq for item in store.scope(KEY).walk()] == [5, 4, 3, 2, 1, 0], numbers
        assert [finding.code for finding in verify(store).findings] == ["extension"], numbers


def test_a_misplaced_snapshot_whose_own_name_is_taken_is_lost_once(
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    """The fourth file holds the bytes of the second."""
    (place / HASH / chain[3].path).write_bytes(chain[1].data)
    found = {f.path: f.code for f in verify(open_store(place)).findings if f.severity == "damage"}
    assert found[f"{HASH}/{chain[3].path}"] == "misplaced"
    done = repair(open_store(place))
    assert done.ok
    assert [(lost.seq, lost.sha256, lost.why) for lost in done.lost] == [(3, chain[3].sha256, "misplaced")]
    assert [a.why for a in done.actions if a.action == "set_aside"] == ["misplaced"]


def test_an_unreferenced_snapshot_is_treated_as_if_it_had_its_own_name(
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    """Beside the head, with the same parent, as a crash leaves it."""
    data = chain[5].data.replace(b'"n":5', b'"n":7')
    (place / HASH / ELSEWHERE).write_bytes(data)
    (place / HASH / ELSEWHERE).chmod(0o600)
    done = repair(open_store(place))
    assert (done.ok, done.lost) == (True, ())
    assert [(a.action, a.why) for a in done.actions][1] == ("set_aside", "misplaced")
    store = open_store(place)
    assert store.scope(KEY).load().sha256 == chain[5].sha256
    assert "unacknowledged" in [finding.code for finding in verify(store).findings]


def test_a_snapshot_under_its_own_time_and_another_label_is_put_back(
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    wrong = naming.snapshot_name(chain[3].envelope.created_at, "0" * 64)
    (place / HASH / chain[3].path).rename(place / HASH / wrong)
    assert f"{HASH}/{wrong}" in {f.path for f in verify(open_store(place)).findings if f.code == "misplaced"}
    done = repair(open_store(place))
    assert (done.ok, done.lost) == (True, ())
    assert [(a.action, a.why) for a in done.actions][1:] == [("set_aside", "misplaced")]


def test_an_intact_state_is_kept_although_its_child_is_lost(
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    """Nothing names it any more, and it has a wrong name."""
    cases = [(5, [4], [4, 3, 2, 1, 0]), (5, [3, 4], [4, 3, 2, 1, 0]), (4, [3], [5, 3, 2, 1, 0])]
    for (gone, moved, left), copy in zip(cases, copies(place), strict=False):
        empty(copy / HASH / chain[gone].path)
        for number in moved:
            (copy / HASH / chain[number].path).rename(copy / HASH / ELSEWHERE.replace("09", f"{number:02}"))
        done = repair(open_store(copy))
        assert done.ok, (gone, moved)
        assert [lost.sha256 for lost in done.lost] == [chain[gone].sha256], (gone, moved)
        assert [item.seq for item in open_store(copy).scope(KEY).walk()][1:] == left, (gone, moved)


def test_missing_snapshots_in_a_row_are_one_loss(chain: list[Snapshot], place: Path, open_store: OpenStore) -> None:
    """Only the newest is still named."""
    for numbers, copy in zip([[2, 3], [0, 1, 2], [3], [1, 2, 3, 4]], copies(place), strict=False):
        for number in numbers:
            (copy / HASH / chain[number].path).unlink()
        done = repair(open_store(copy))
        last = numbers[-1]
        assert [(lost.since, lost.seq, lost.sha256) for lost in done.lost] == [(numbers[0], last, chain[last].sha256)]


def test_damaged_snapshots_in_a_row_are_each_a_loss_with_its_seq(
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    cases = [(numbers, corrupt) for numbers in ([2, 3], [0, 1, 2], [1, 2, 3, 4]) for corrupt in (empty, truncate)]
    for (numbers, corrupt), copy in zip(cases, copies(place), strict=False):
        for number in numbers:
            corrupt(copy / HASH / chain[number].path)
        done = repair(open_store(copy))
        assert [(lost.since, lost.seq, lost.path) for lost in done.lost] == [
            (number, number, chain[number].path) for number in reversed(numbers)
        ], (numbers, corrupt)


def test_each_file_left_in_a_gap_is_named(chain: list[Snapshot], place: Path, open_store: OpenStore) -> None:
    (place / HASH / chain[2].path).unlink()
    for number in (1, 3):
        truncate(place / HASH / chain[number].path)
    done = repair(open_store(place))
    assert [(lost.since, lost.seq, lost.path) for lost in done.lost] == [
        (1, 3, chain[3].path),
        (None, None, chain[1].path),
    ]


def test_an_object_that_grew_is_too_large_for_its_table(
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    ref = chain[5].envelope.objects["/big"]
    path = place / naming.object_path(ref.sha256)
    path.write_bytes(path.read_bytes() + b" \n")
    found = [f for f in verify(open_store(place)).findings if f.severity == "damage"]
    assert [f.code for f in found] == ["too_large"]
