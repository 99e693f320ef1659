"""RepairReport: what it plans, what it does, what it says is lost, and what it leaves alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stateline.bundle import naming
from stateline.bundle.envelope import Link, Pointer
from stateline.bundle.objects import Artifact
from stateline.errors import IntegrityError, NotFoundError, RequestError, UnsafePathError
from stateline.history.revision import find
from stateline.redaction.redactor import Redactor
from stateline.repair import event
from stateline.repair.apply import plan, repair
from stateline.repair.report import RepairReport
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
OTHER = "notes:y"
BIG = "x" * 5000
NODE = {"body": "a" * 4094, "note": "b" * 3000, "tail": "c" * 3000}


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    """Six snapshots, oldest first: objects from the third on, a node and an artifact from the fifth on."""
    scope, saved = store.scope(KEY), []
    for n in range(6):
        state: dict[str, Any] = {"n": n}
        if n >= 2:
            state["big"] = BIG
        if n >= 4:
            state |= {"node": NODE, "raw": Artifact(b"raw %d" % n)}
        saved.append(scope.save(state, event={"why": n}))
    other = store.scope(OTHER)
    for n in range(2):
        other.save({"n": n, "own": "y" * 5000})
    return saved


def tree(place: Path) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for path in [place, *place.rglob("*")]:
        raw = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(place))] = (raw.st_mode, raw.st_mtime_ns, raw.st_ino, data)
    return found


def contents(place: Path) -> list[bytes]:
    """The bytes of every file but pointers, which are there to be replaced, wherever it lies."""
    files = (p for p in place.rglob("*") if p.is_file() and not p.is_symlink())
    return sorted(path.read_bytes() for path in files if path.name != naming.POINTER)


@pytest.fixture
def mended(place: Path, open_store: Callable[..., Store]) -> Callable[..., RepairReport]:
    """Plans (which must write nothing), repairs, and demands what holds for every repair."""

    def run(key: str | None = None) -> RepairReport:
        before = tree(place)
        planned = plan(open_store(place), key)
        assert tree(place) == before, "a plan wrote something"
        was_ok = verify(open_store(place), key).ok
        assert planned.ok == was_ok
        assert planned.exit_code == (0 if was_ok else 5)
        held = contents(place)
        done = repair(open_store(place), key)
        assert not [data for data in held if data not in contents(place)], "something was deleted"
        assert [(action.action, action.why) for action in planned.actions if action.action == "set_aside"] == [
            (action.action, action.why) for action in done.actions if action.action == "set_aside"
        ]
        assert planned.lost == done.lost
        assert done.ok, (done.findings, done.blocked)
        assert done.exit_code == 0
        assert verify(open_store(place), key).ok
        again = repair(open_store(place), key)
        assert (again.ok, again.actions, again.lost) == (True, (), ())
        return done

    return run


def head(store: Store, key: str = KEY) -> Snapshot:
    return store.scope(key).load()


def state(store: Store, key: str = KEY) -> Any:
    return store.resolve(head(store, key).state)


def seqs(store: Store) -> list[int]:
    return [snapshot.seq for snapshot in store.scope(KEY).walk()]


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def enlarge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2 << 30)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.rename(path.with_name("ext-kept"))
    path.symlink_to("ext-kept")


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS = [remove, truncate, empty, alter, make_fifo, make_directory]


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_head_gives_way_to_the_newest_intact_snapshot(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store], harm: Any
) -> None:
    harm(place / HASH / chain[5].path)
    other = tree(place / naming.scope_hash(OTHER))
    done = mended()
    store = open_store(place)
    repaired = head(store)
    assert (repaired.seq, repaired.envelope.prev_sha) == (5, chain[4].sha256)
    assert (repaired.envelope.state, repaired.envelope.objects) == (
        chain[4].envelope.state,
        chain[4].envelope.objects,
    )
    assert repaired.event["type"] == "repaired"
    assert repaired.event["why"] == 4, "what the next call needs is carried forward"
    assert repaired.event["repaired"]["from"] == {"seq": 4, "sha256": chain[4].sha256}
    assert [lost["sha256"] for lost in repaired.event["repaired"]["lost"]] == [chain[5].sha256]
    assert [(lost.scope, lost.sha256, lost.newer) for lost in done.lost] == [(KEY, chain[5].sha256, True)]
    assert seqs(store) == [5, 4, 3, 2, 1, 0]
    assert tree(place / naming.scope_hash(OTHER)) == other, "an intact scope was touched"
    store.scope(KEY).save({"n": "on"})
    assert verify(store).ok


@pytest.mark.parametrize("harm", [*HARMS, enlarge])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_snapshot_lost_in_the_middle_costs_itself_and_nothing_newer(
    chain: list[Snapshot],
    place: Path,
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
    harm: Any,
    number: int,
) -> None:
    if harm is enlarge and number != 3:
        pytest.skip("one is enough")
    path = place / HASH / chain[number].path
    harm(path)
    if harm is enlarge:
        done = repair(open_store(place))
        assert done.ok
    else:
        done = mended()
    store = open_store(place)
    assert head(store).seq == 6
    assert head(store).envelope.state == chain[5].envelope.state
    assert [(lost.seq, lost.sha256, lost.newer) for lost in done.lost] == [(number, chain[number].sha256, False)]
    below = chain[number - 1] if number else None
    assert head(store).event["repaired"]["gaps"] == [
        {
            "lost": {"seq": number, "sha256": chain[number].sha256},
            "resumes": below and {"path": below.path, "seq": below.seq, "sha256": below.sha256},
        }
    ]
    assert seqs(store) == [seq for seq in range(6, -1, -1) if seq != number]
    warned = [finding.code for finding in verify(store).findings if finding.severity == "warning"]
    assert warned.count("lost") == 1


def test_the_number_of_a_lost_snapshot_is_not_given_to_another_one(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store]
) -> None:
    remove(place / HASH / chain[2].path)
    mended()
    store = open_store(place)
    assert find(store, f"{KEY}@1").sha256 == chain[1].sha256
    assert find(store, f"{KEY}~5").sha256 == chain[1].sha256
    with pytest.raises(NotFoundError, match="lost"):
        find(store, f"{KEY}@2")
    # From below the repair, whose word is not on the way.
    assert [item.seq for item in store.scope(KEY).walk(find(store, f"{KEY}@4"))] == [4, 3, 1, 0]


@pytest.mark.parametrize("harm", [remove, truncate, alter, make_fifo, make_directory])
def test_without_its_pointer_a_scope_goes_on_from_its_newest_snapshot(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store], harm: Any
) -> None:
    harm(place / HASH / "latest.json")
    done = mended()
    assert not done.lost
    store = open_store(place)
    assert head(store).seq == 6
    assert state(store)["n"] == 5
    kept = [] if harm is remove else [f"{HASH}__latest.json"]
    assert [path.name for path in place.glob("ext-repair-*/*")] == kept


def test_a_pointer_that_was_set_back_is_moved_forward(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store]
) -> None:
    (place / HASH / "latest.json").write_bytes(chain[1].pointer.encode())
    assert not mended().lost
    assert state(open_store(place))["n"] == 5


def test_crash_residue_is_left_where_it_is(
    chain: list[Snapshot],
    place: Path,
    mended: Callable[..., RepairReport],
    publish: Callable[..., Pointer],
    open_store: Callable[..., Store],
) -> None:
    last = chain[5]
    where = {"seq": 6, "prev_sha": last.sha256, "prev": last.path, "created_at": "2026-11-20T11:00:00.000000Z"}
    loose = publish(open_store(place), KEY, head=False, **where)
    (place / HASH / ".tmp-1").write_bytes(b"half")
    (place / HASH / "notes.txt").write_bytes(b"foreign")
    done = mended()
    assert [(action.action, action.path) for action in done.actions] == [("set_aside", f"{HASH}/notes.txt")]
    assert (place / HASH / loose.path).exists()
    assert (place / HASH / ".tmp-1").exists()
    assert head(open_store(place)).sha256 == last.sha256, "what costs nothing makes no snapshot"


def test_several_gaps_are_all_declared_and_walked(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store]
) -> None:
    for number in (1, 3):
        alter(place / HASH / chain[number].path)
    mended()
    store = open_store(place)
    assert seqs(store) == [6, 5, 4, 2, 0]
    remove(place / HASH / chain[2].path)
    mended()
    store = open_store(place)
    # The place where the first repair resumed is lost as well; the second says where it goes on from there.
    assert seqs(store) == [7, 6, 5, 4, 0]
    assert state(store)["n"] == 5


def test_two_lost_in_a_row_are_one_gap(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store]
) -> None:
    for number in (2, 3):
        remove(place / HASH / chain[number].path)
    mended()
    assert seqs(open_store(place)) == [6, 5, 4, 1, 0]


def test_more_losses_than_one_snapshot_declares_take_several(
    chain: list[Snapshot],
    place: Path,
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event, "DECLARED", 1)
    for number in (1, 3):
        remove(place / HASH / chain[number].path)
    mended()
    assert seqs(open_store(place)) == [7, 6, 5, 4, 2, 0]
    assert event.DECLARED >= 1000


def test_a_lost_object_takes_the_scope_back_to_a_whole_state_and_its_past_stays(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store]
) -> None:
    """The node came with the fifth snapshot, so the fourth is the newest that is whole."""
    node = chain[5].envelope.objects["/node"]
    alter(place / naming.object_path(node.sha256))
    done = mended()
    store = open_store(place)
    assert state(store) == {"n": 3, "big": BIG}
    assert head(store).seq == 6
    assert head(store).envelope.prev_sha == chain[5].sha256
    assert seqs(store) == [6, 5, 4, 3, 2, 1, 0]
    assert {(lost.seq, lost.sha256) for lost in done.lost} == {
        (5, chain[5].sha256),
        (4, chain[4].sha256),
        (None, node.sha256),
    }
    assert head(store).event["repaired"]["objects"] == [node.sha256]
    with pytest.raises(IntegrityError, match="missing"):
        store.resolve(chain[5].state)


def test_an_object_that_was_only_needed_long_ago_costs_no_state(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
) -> None:
    store.scope(KEY).save({"n": 6})
    remove(place / naming.object_path(chain[2].envelope.objects["/big"].sha256))
    done = mended()
    assert not [lost for lost in done.lost if lost.newer]
    assert state(open_store(place)) == {"n": 6}


def test_an_object_that_two_scopes_need_is_declared_lost_by_both(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
) -> None:
    store.scope(OTHER).save({"n": 2, "big": BIG})
    remove(place / naming.object_path(chain[2].envelope.objects["/big"].sha256))
    one = repair(open_store(place), KEY)
    assert one.ok
    assert not verify(open_store(place)).ok, "what one scope has recorded excuses nothing in another"
    mended()
    store = open_store(place)
    assert (state(store)["n"], state(store, OTHER)["n"]) == (1, 1)


def test_a_scope_of_which_nothing_is_whole_is_set_aside_as_it_is(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store]
) -> None:
    for snapshot in chain:
        truncate(place / HASH / snapshot.path)
    done = mended()
    assert [action.action for action in done.actions] == ["remove_scope"]
    assert len(done.lost) == 6
    assert f"nothing of {KEY}" in "".join(done.warnings) or HASH in "".join(done.warnings)
    store = open_store(place)
    assert store.scope(KEY).head() is None
    assert store.scope(OTHER).load().seq == 1
    assert len(list((place / str(done.aside) / HASH).glob("state-*"))) == 6


def test_a_fork_whose_origin_was_set_aside_declares_that(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    publish: Callable[..., Pointer],
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
) -> None:
    origin = Link(KEY, 5, chain[5].sha256)
    publish(store, "notes:fork", head=True, origin=origin)
    for snapshot in chain:
        truncate(place / HASH / snapshot.path)
    done = repair(open_store(place))
    assert done.ok, done.findings
    repaired = open_store(place).scope("notes:fork").load()
    assert repaired.event["repaired"]["gaps"] == [{"lost": {"seq": 5, "sha256": chain[5].sha256}, "resumes": None}]


@pytest.mark.parametrize("harm", [remove, truncate, alter, make_fifo, make_directory])
def test_a_lost_store_file_is_made_anew(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store], harm: Any
) -> None:
    before = json.loads((place / "stateline.json").read_bytes())
    if harm is alter:
        (place / "stateline.json").write_bytes(b'{"format": "stateline/1"}')
    else:
        harm(place / "stateline.json")
    done = mended()
    assert [action.action for action in done.actions] == ["renew"]
    now = json.loads((place / "stateline.json").read_bytes())
    assert now["format"] == "stateline/1"
    assert now["store_id"] != before["store_id"]
    assert head(open_store(place)).sha256 == chain[5].sha256


def test_what_does_not_belong_is_set_aside_wherever_it_lies(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store]
) -> None:
    shelf = next(path for path in sorted((place / "objects").iterdir()))
    foreign = [place / "n.txt", place / HASH / "n", place / "objects" / "zz", shelf / "short"]
    for path in foreign:
        path.write_bytes(path.name.encode())
    (place / ("f" * 64)).symlink_to("/etc")
    (place / HASH / ("long" * 60)).write_bytes(b"long")
    (place / "objects" / "00").write_bytes(b"no directory") if not (place / "objects" / "00").exists() else None
    sha = "ab" * 32
    (place / "objects" / "ab").mkdir(mode=0o700, exist_ok=True)
    (place / naming.object_path(sha)).write_bytes(b"not that")
    mended()
    assert not any(os.path.lexists(path) for path in foreign)
    assert head(open_store(place)).sha256 == chain[5].sha256
    assert len(list(place.glob("ext-repair-*"))) == 1


def test_names_that_become_the_same_when_made_flat_are_all_kept(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport]
) -> None:
    (place / "objects" / "a__b").write_bytes(b"1")
    (place / "objects" / "a").mkdir()
    (place / "objects__a__b").write_bytes(b"2")
    (place / "objects__a").write_bytes(b"3")
    done = mended()
    assert sorted(p.read_bytes() for p in (place / str(done.aside)).iterdir() if p.is_file()) == [b"1", b"2", b"3"]


def test_a_shelf_that_leads_elsewhere_is_renamed_and_not_followed(
    chain: list[Snapshot],
    place: Path,
    tmp_path: Path,
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
) -> None:
    node = chain[5].envelope.objects["/node"].sha256
    shelf = place / "objects" / node[:2]
    outside = tmp_path / "outside"
    shelf.rename(outside)
    shelf.symlink_to(outside)
    before = tree(outside)
    mended()
    assert tree(outside) == before
    assert state(open_store(place))["n"] < 4


def test_a_lock_that_is_no_file_is_set_aside(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport]
) -> None:
    lock = place / HASH / "scope.lock"
    make_directory(lock)
    mended()
    assert lock.is_file()


def test_an_orphaned_chain_beside_the_real_one_is_set_aside(
    chain: list[Snapshot],
    place: Path,
    publish: Callable[..., Pointer],
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
) -> None:
    first = chain[0]
    at = "2026-11-20T11:00:0{}.000000Z"
    fields = {"seq": 1, "prev_sha": first.sha256, "prev": first.path, "created_at": at.format(1)}
    one = publish(open_store(place), KEY, head=False, **fields)
    fields = {"seq": 2, "prev_sha": one.sha256, "prev": one.path, "created_at": at.format(2)}
    two = publish(open_store(place), KEY, head=False, **fields)
    done = mended()
    assert {action.path for action in done.actions} == {f"{HASH}/{one.path}", f"{HASH}/{two.path}"}
    assert head(open_store(place)).sha256 == chain[5].sha256


def test_a_forged_head_is_set_aside_if_it_says_what_is_not_so(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    publish: Callable[..., Pointer],
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
) -> None:
    """It gives a good object a wrong size: the object is not what is damaged."""
    last = chain[5]
    good = last.envelope.objects["/big"]
    lie = type(good)(good.sha256, good.size + 1, good.media_type)
    fields = {"seq": 6, "prev_sha": last.sha256, "prev": last.path, "created_at": "2026-11-20T11:00:00.000000Z"}
    forged = publish(store, KEY, head=True, state={"big": None}, objects={"/big": lie}, **fields)
    done = mended()
    assert f"{HASH}/{forged.path}" in {action.path for action in done.actions}
    assert (place / naming.object_path(good.sha256)).exists()
    assert state(open_store(place))["n"] == 5


def test_a_snapshot_that_breaks_the_order_under_its_child_is_set_aside(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    publish: Callable[..., Pointer],
    mended: Callable[..., RepairReport],
    open_store: Callable[..., Store],
) -> None:
    fields = {"seq": 9, "prev_sha": chain[5].sha256, "prev": chain[5].path, "created_at": "2026-11-20T11:00:00.000000Z"}
    publish(store, KEY, head=True, state={"n": "forged"}, **fields)
    mended()
    assert seqs(open_store(place)) == [10, 9, 4, 3, 2, 1, 0]


def test_a_restored_file_ends_the_gap(
    chain: list[Snapshot], place: Path, mended: Callable[..., RepairReport], open_store: Callable[..., Store]
) -> None:
    """A declaration excuses only what is missing, so a backup that is put back counts again."""
    path = place / HASH / chain[2].path
    data = path.read_bytes()
    path.unlink()
    node = place / naming.object_path(chain[5].envelope.objects["/node"].sha256)
    kept = node.read_bytes()
    node.unlink()
    mended()
    path.write_bytes(data)
    path.chmod(0o600)
    node.write_bytes(kept)
    node.chmod(0o600)
    store = open_store(place)
    report = verify(store)
    assert (report.ok, [f.code for f in report.findings if f.code == "lost"]) == (True, [])
    assert seqs(store) == [6, 5, 4, 3, 2, 1, 0]
    alter(path)
    assert not verify(open_store(place)).ok, "what is there is checked"


def test_what_a_newer_version_wrote_is_left_untouched_and_said(
    store: Store, chain: list[Snapshot], place: Path, publish: Callable[..., Pointer], open_store: Callable[..., Store]
) -> None:
    fields = {"seq": 6, "prev_sha": chain[5].sha256, "prev": chain[5].path, "created_at": "2026-11-20T11:00:00.000000Z"}
    publish(store, KEY, head=True, version="2", **fields)
    (place / HASH / "n.txt").write_bytes(b"")
    alter(place / naming.scope_hash(OTHER) / "latest.json")
    before = contents(place / HASH)
    done = repair(open_store(place))
    assert contents(place / HASH) == before
    assert [(blocked.code, blocked.scope) for blocked in done.blocked] == [("newer_version", KEY)]
    assert open_store(place).scope(OTHER).load().event["type"] == "repaired", "another scope had to wait for it"
    assert done.exit_code == 5


class Unreadable(Filesystem):
    """Refuses to open one file, as a disk or an administrator may for a while."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number

    def open_file(self, directory: Directory, name: str) -> int:
        if name == self.name:
            raise OSError(self.number, os.strerror(self.number))
        return super().open_file(directory, name)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_what_cannot_be_read_now_is_not_renamed_and_said(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store], number: int
) -> None:
    object_ = chain[5].envelope.objects["/node"].sha256
    alter(place / naming.scope_hash(OTHER) / "latest.json")
    for name in (chain[3].path, object_, "latest.json"):
        before = contents(place)
        fs = Unreadable(name, number)
        done = repair(Store(LocalBackend(str(place), fs), redactor=Redactor()))
        assert "unreadable" in {blocked.code for blocked in done.blocked}
        assert done.exit_code == 5
        assert not [data for data in before if data not in contents(place)]
        assert not [*place.glob(f"ext-repair-*/{HASH}*")]
        assert not [*place.glob(f"ext-repair-*/*{object_}*")]
    assert verify(open_store(place)).ok, "the other scope was repaired, and this one is as it was"
    assert head(open_store(place)).sha256 == chain[5].sha256


def test_a_file_that_others_may_use_stops_the_repair_of_its_scope(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store]
) -> None:
    (place / HASH / chain[5].path).chmod(0o644)
    alter(place / HASH / chain[2].path)
    alter(place / naming.scope_hash(OTHER) / "latest.json")
    done = repair(open_store(place))
    assert [(blocked.code, blocked.exit_code) for blocked in done.blocked] == [("unsafe", 6)]
    assert done.exit_code == 6
    assert (place / HASH / chain[2].path).exists()
    assert verify(open_store(place), OTHER).ok


@pytest.mark.parametrize("where", ["state dir", "above it"])
def test_a_state_dir_that_others_may_change_is_not_mended(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store], where: str
) -> None:
    (place / "stateline.json").write_bytes(b"{}")
    (place / "foreign").write_bytes(b"")
    (place if where == "state dir" else place.parent).chmod(0o777)
    before = tree(place)
    with pytest.raises(UnsafePathError):
        repair(open_store(place))
    assert tree(place) == before


def test_a_key_repairs_that_scope_alone(chain: list[Snapshot], place: Path, open_store: Callable[..., Store]) -> None:
    for key in (KEY, OTHER):
        alter(place / naming.scope_hash(key) / "latest.json")
    assert repair(open_store(place), OTHER).ok
    assert verify(open_store(place), OTHER).ok
    assert not verify(open_store(place), KEY).ok
    with pytest.raises(NotFoundError):
        repair(open_store(place), "notes:none")


def test_an_intact_or_absent_store_is_left_alone(
    chain: list[Snapshot], place: Path, tmp_path: Path, open_store: Callable[..., Store]
) -> None:
    before = tree(place)
    assert repair(open_store(place)) == RepairReport(ok=True, applied=False)
    assert tree(place) == before
    assert repair(open_store(tmp_path / "none")).ok
    assert not (tmp_path / "none").exists()


def test_a_backend_without_quarantine_is_refused(open_store: Callable[..., Store]) -> None:
    store = open_store()
    saved = [store.scope(KEY).save({"n": n}) for n in range(3)]
    backend = store.backend
    assert isinstance(backend, MemoryBackend)
    del backend._blobs[f"{HASH}/{saved[2].path}"]
    assert not plan(store).ok
    with pytest.raises(RequestError, match="cannot be repaired"):
        repair(store)


def test_a_full_save_may_follow_the_repair_of_a_fast_chain(place: Path) -> None:
    """It makes its past durable first, and must not ask for what was declared lost."""
    fast = Store(LocalBackend(str(place), durability="fast"), redactor=Redactor())
    saved = [fast.scope(KEY).save({"n": n, "own": str(n) * 5000}) for n in range(5)]
    (place / HASH / saved[2].path).unlink()
    (place / naming.object_path(saved[1].envelope.objects["/own"].sha256)).unlink()
    full = Store(LocalBackend(str(place)), redactor=Redactor())
    with pytest.raises(IntegrityError, match=r"newest intact snapshot is .*seq 4"):
        full.scope(KEY).save("too early")
    assert repair(full).ok
    assert full.scope(KEY).load().event["durability"] == "fast", "what it rests on may not survive"
    assert full.scope(KEY).save("on").event["durability"] == "full"
    assert verify(full).ok


def everything(place: Path) -> Iterator[str]:
    for path in sorted(place.rglob("*")):
        if path.is_file() and path.name != "scope.lock":
            yield str(path.relative_to(place))


def test_every_pair_of_losses_is_repaired(
    chain: list[Snapshot], place: Path, tmp_path: Path, open_store: Callable[..., Store]
) -> None:
    names = [name for name in everything(place) if not name.startswith(naming.scope_hash(OTHER))]
    for number, one in enumerate(names):
        for two in names[number + 1 :: 6]:
            copy = tmp_path / "copy"
            shutil.copytree(place, copy)
            (copy / one).unlink()
            alter(copy / two)
            done = repair(open_store(copy))
            assert done.ok, (one, two, done.findings, done.blocked)
            store = open_store(copy)
            newest = store.scope(KEY).head()
            if newest is not None:
                store.resolve(newest.state)
                assert [*store.scope(KEY).walk()]
            shutil.rmtree(copy)
