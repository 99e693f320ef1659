"""Whole snapshots under another name, files that were emptied or grew, and what verify and repair call them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateline.bundle import naming
from stateline.repair.apply import plan, repair
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
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


@pytest.mark.parametrize(("harm", "code"), CODES)
@pytest.mark.parametrize("numbers", [[5], [3], [2, 3]])
def test_verify_and_repair_give_one_damage_one_name(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store], harm: Any, code: str, numbers: list[int]
) -> None:
    """Also where nothing leads to a file, since the one that names it is damaged too."""
    for number in numbers:
        harm(place / HASH / chain[number].path)
    found = {f.path: f.code for f in verify(open_store(place)).findings if f.code not in ("orphaned", "unreferenced")}
    assert found == {f"{HASH}/{chain[number].path}": code for number in numbers}
    planned = plan(open_store(place))
    assert {a.path: a.why for a in planned.actions if a.action == "set_aside"} == found
    assert {lost.why for lost in planned.lost} == {code}


@pytest.mark.parametrize("numbers", [[0], [2], [5], [2, 3], [0, 1, 2, 3, 4, 5]])
def test_a_whole_snapshot_under_another_name_is_put_back(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store], numbers: list[int]
) -> None:
    for number in numbers:
        (place / HASH / chain[number].path).rename(place / HASH / ELSEWHERE.replace("09", f"{number:02}"))
    codes = {f.path: f.code for f in verify(open_store(place)).findings if f.severity == "damage"}
    planned = plan(open_store(place))
    done = repair(open_store(place))
    assert (done.ok, done.lost, planned.lost) == (True, (), ())
    assert [(a.action, a.path) for a in done.actions if a.action == "put_back"] == [
        ("put_back", f"{HASH}/{chain[number].path}") for number in numbers
    ]
    wrong = {a.path: a.why for a in planned.actions if a.action == "set_aside"}
    assert wrong == {path: code for path, code in codes.items() if code == "misplaced"}
    assert len(wrong) == len(numbers)
    store = open_store(place)
    assert store.scope(KEY).load().sha256 == chain[5].sha256, "nothing was lost, so the head is as it was"
    assert [item.seq for item in store.scope(KEY).walk()] == [5, 4, 3, 2, 1, 0]
    assert [finding.code for finding in verify(store).findings] == ["extension"]


def test_a_misplaced_snapshot_whose_own_name_is_taken_is_lost_once(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store]
) -> None:
    """The bytes of the second lie in the place of the fourth."""
    (place / HASH / chain[3].path).write_bytes(chain[1].data)
    found = {f.path: f.code for f in verify(open_store(place)).findings if f.severity == "damage"}
    assert found[f"{HASH}/{chain[3].path}"] == "misplaced"
    done = repair(open_store(place))
    assert done.ok
    assert [(lost.seq, lost.sha256, lost.why) for lost in done.lost] == [(3, chain[3].sha256, "misplaced")]
    assert [a.why for a in done.actions if a.action == "set_aside"] == ["misplaced"]


def test_what_nothing_names_is_judged_as_if_it_lay_under_its_own_name(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store]
) -> None:
    """Beside the head, on its parent: what a crash leaves."""
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
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store]
) -> None:
    wrong = naming.snapshot_name(chain[3].envelope.created_at, "0" * 64)
    (place / HASH / chain[3].path).rename(place / HASH / wrong)
    assert f"{HASH}/{wrong}" in {f.path for f in verify(open_store(place)).findings if f.code == "misplaced"}
    done = repair(open_store(place))
    assert (done.ok, done.lost) == (True, ())
    assert [(a.action, a.why) for a in done.actions][1:] == [("set_aside", "misplaced")]


@pytest.mark.parametrize(
    ("gone", "moved", "left"), [(5, [4], [4, 3, 2, 1, 0]), (5, [3, 4], [4, 3, 2, 1, 0]), (4, [3], [5, 3, 2, 1, 0])]
)
def test_an_intact_state_is_not_given_up_because_its_child_is_lost(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store], gone: int, moved: list[int], left: list[int]
) -> None:
    """Nothing names it any more, and it lies elsewhere."""
    empty(place / HASH / chain[gone].path)
    for number in moved:
        (place / HASH / chain[number].path).rename(place / HASH / ELSEWHERE.replace("09", f"{number:02}"))
    done = repair(open_store(place))
    assert done.ok
    assert [lost.sha256 for lost in done.lost] == [chain[gone].sha256]
    assert [item.seq for item in open_store(place).scope(KEY).walk()][1:] == left


@pytest.mark.parametrize("numbers", [[2, 3], [0, 1, 2], [3], [1, 2, 3, 4]])
def test_snapshots_that_are_gone_in_a_row_are_told_as_one(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store], numbers: list[int]
) -> None:
    """Only the newest is still named."""
    for number in numbers:
        (place / HASH / chain[number].path).unlink()
    done = repair(open_store(place))
    last = numbers[-1]
    assert [(lost.since, lost.seq, lost.sha256) for lost in done.lost] == [(numbers[0], last, chain[last].sha256)]


@pytest.mark.parametrize("harm", [empty, truncate])
@pytest.mark.parametrize("numbers", [[2, 3], [0, 1, 2], [1, 2, 3, 4]])
def test_damaged_snapshots_in_a_row_are_each_told_once_with_their_number(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store], numbers: list[int], harm: Any
) -> None:
    for number in numbers:
        harm(place / HASH / chain[number].path)
    done = repair(open_store(place))
    assert [(lost.since, lost.seq, lost.path) for lost in done.lost] == [
        (number, number, chain[number].path) for number in reversed(numbers)
    ]


def test_of_a_gap_that_is_only_partly_left_every_file_is_named(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store]
) -> None:
    (place / HASH / chain[2].path).unlink()
    for number in (1, 3):
        truncate(place / HASH / chain[number].path)
    done = repair(open_store(place))
    assert [(lost.since, lost.seq, lost.path) for lost in done.lost] == [
        (1, 3, chain[3].path),
        (None, None, chain[1].path),
    ]


def test_an_object_that_grew_is_told_by_its_table(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store]
) -> None:
    ref = chain[5].envelope.objects["/big"]
    path = place / naming.object_path(ref.sha256)
    path.write_bytes(path.read_bytes() + b" \n")
    found = [f for f in verify(open_store(place)).findings if f.severity == "damage"]
    assert [f.code for f in found] == ["too_large"]
    assert f"the object {ref.sha256} is too large: its table says {ref.size} bytes, and it has more" in found[0].message
    assert "limit" not in found[0].message
