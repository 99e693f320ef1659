"""Repairs: their plan, their steps, the losses they report, and what they leave alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_stores import BIG, HASH, KEY, NODE, OpenStore, Publish, copies

from stateline.bundle import naming
from stateline.bundle.envelope import Link
from stateline.bundle.objects import Artifact
from stateline.errors import IntegrityError, NotFoundError, RequestError, UnsafePathError
from stateline.history.revision import find
from stateline.redaction.redactor import Redactor
from stateline.repair import republish
from stateline.repair.apply import plan, repair
from stateline.repair.report import RepairReport
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify

OTHER = "notes:y"


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


Repaired = Callable[..., RepairReport]


@pytest.fixture
def repaired(place: Path, open_store: OpenStore) -> Repaired:
    """Plan (which must write nothing), repair, and require what holds for every repair."""

    def run(at: Path = place) -> RepairReport:
        before = tree(at)
        planned = plan(open_store(at))
        assert tree(at) == before, "a plan wrote something"
        was_ok = verify(open_store(at)).ok
        assert planned.ok == was_ok
        assert planned.exit_code == (0 if was_ok else 5)
        held = contents(at)
        done = repair(open_store(at))
        assert not [data for data in held if data not in contents(at)], "something was deleted"
        assert [(action.action, action.why) for action in planned.actions if action.action == "set_aside"] == [
            (action.action, action.why) for action in done.actions if action.action == "set_aside"
        ]
        assert planned.lost == done.lost
        assert done.ok, (done.findings, done.blocked)
        assert done.exit_code == 0
        assert verify(open_store(at)).ok
        again = repair(open_store(at))
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


CORRUPTIONS = [remove, truncate, empty, alter, make_fifo, make_directory]


def test_a_damaged_head_is_replaced_by_the_newest_intact_snapshot(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    for corrupt, copy in zip(CORRUPTIONS, copies(place), strict=False):
        corrupt(copy / HASH / chain[5].path)
        other = tree(copy / naming.scope_hash(OTHER))
        done = repaired(copy)
        store = open_store(copy)
        newest = head(store)
        assert (newest.seq, newest.envelope.prev_sha) == (5, chain[4].sha256), corrupt
        kept = (newest.envelope.state, newest.envelope.objects)
        assert kept == (chain[4].envelope.state, chain[4].envelope.objects), corrupt
        assert newest.event["type"] == "repaired"
        assert newest.event["why"] == 4, "members that the next call needs are carried forward"
        assert newest.event["repaired"]["from"] == {"seq": 4, "sha256": chain[4].sha256}
        assert [lost["sha256"] for lost in newest.event["repaired"]["lost"]] == [chain[5].sha256]
        assert [(lost.scope, lost.sha256, lost.newer) for lost in done.lost] == [(KEY, chain[5].sha256, True)]
        assert seqs(store) == [5, 4, 3, 2, 1, 0], corrupt
        assert tree(copy / naming.scope_hash(OTHER)) == other, "an intact scope was touched"
        store.scope(KEY).save({"n": "on"})
        assert verify(store).ok, corrupt


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_snapshot_lost_in_the_middle_costs_only_itself(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore, number: int
) -> None:
    for corrupt, copy in zip([*CORRUPTIONS, enlarge], copies(place), strict=False):
        corrupt(copy / HASH / chain[number].path)
        # ``repaired`` reads every file, which takes long for a large one.
        done = repair(open_store(copy)) if corrupt is enlarge else repaired(copy)
        assert done.ok, corrupt
        store = open_store(copy)
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
        assert seqs(store) == [seq for seq in range(6, -1, -1) if seq != number], corrupt
        warned = [finding.code for finding in verify(store).findings if finding.severity == "warning"]
        assert warned.count("lost") == 1, corrupt


def test_the_number_of_a_lost_snapshot_is_not_given_to_another_one(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    remove(place / HASH / chain[2].path)
    repaired()
    store = open_store(place)
    assert find(store, f"{KEY}@1").sha256 == chain[1].sha256
    assert find(store, f"{KEY}~5").sha256 == chain[1].sha256
    with pytest.raises(NotFoundError):
        find(store, f"{KEY}@2")
    # From below the repair, whose declaration is above the start.
    assert [item.seq for item in store.scope(KEY).walk(find(store, f"{KEY}@4"))] == [4, 3, 1, 0]


def test_without_its_pointer_a_scope_continues_from_its_newest_snapshot(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    for corrupt, copy in zip([remove, truncate, alter, make_fifo, make_directory], copies(place), strict=False):
        corrupt(copy / HASH / "latest.json")
        assert not repaired(copy).lost, corrupt
        store = open_store(copy)
        assert (head(store).seq, state(store)["n"]) == (6, 5), corrupt
        kept = [] if corrupt is remove else [f"{HASH}__latest.json"]
        assert [path.name for path in copy.glob("ext-repair-*/*")] == kept, corrupt


def test_a_pointer_that_was_set_back_is_moved_forward(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    (place / HASH / "latest.json").write_bytes(chain[1].pointer.encode())
    assert not repaired().lost
    assert state(open_store(place))["n"] == 5


def test_crash_residue_is_left_in_place(
    chain: list[Snapshot],
    place: Path,
    repaired: Repaired,
    publish: Publish,
    open_store: OpenStore,
) -> None:
    last = chain[5]
    where = {"seq": 6, "prev_sha": last.sha256, "prev": last.path, "created_at": "2026-11-20T11:00:00.000000Z"}
    loose = publish(open_store(place), KEY, head=False, **where)
    (place / HASH / ".tmp-1").write_bytes(b"half")
    (place / HASH / "notes.txt").write_bytes(b"foreign")
    done = repaired()
    assert [(action.action, action.path) for action in done.actions] == [("set_aside", f"{HASH}/notes.txt")]
    assert (place / HASH / loose.path).exists()
    assert (place / HASH / ".tmp-1").exists()
    assert head(open_store(place)).sha256 == last.sha256, "without a loss no snapshot is made"


def test_several_gaps_are_all_declared_and_walked(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    for number in (1, 3):
        alter(place / HASH / chain[number].path)
    repaired()
    store = open_store(place)
    assert seqs(store) == [6, 5, 4, 2, 0]
    remove(place / HASH / chain[2].path)
    repaired()
    store = open_store(place)
    # The snapshot where the first repair resumed is lost too; the second declares where the chain resumes below it.
    assert seqs(store) == [7, 6, 5, 4, 0]
    assert state(store)["n"] == 5


def test_two_lost_in_a_row_are_one_gap(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    for number in (2, 3):
        remove(place / HASH / chain[number].path)
    repaired()
    assert seqs(open_store(place)) == [6, 5, 4, 1, 0]


def test_more_losses_than_one_snapshot_declares_take_several(
    chain: list[Snapshot],
    place: Path,
    repaired: Repaired,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert republish.DECLARED == 1000, "docs/format.md promises this bound"
    monkeypatch.setattr(republish, "DECLARED", 1)
    for number in (1, 3):
        remove(place / HASH / chain[number].path)
    repaired()
    assert seqs(open_store(place)) == [7, 6, 5, 4, 2, 0]


def test_after_a_lost_object_the_scope_continues_from_an_older_state_and_keeps_its_past(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    """The node came with the fifth snapshot, so the fourth is the newest without a loss."""
    node = chain[5].envelope.objects["/node"]
    alter(place / naming.object_path(node.sha256))
    done = repaired()
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


def test_a_lost_object_that_only_old_snapshots_name_costs_no_state(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    repaired: Repaired,
    open_store: OpenStore,
) -> None:
    store.scope(KEY).save({"n": 6})
    remove(place / naming.object_path(chain[2].envelope.objects["/big"].sha256))
    done = repaired()
    assert not [lost for lost in done.lost if lost.newer]
    assert state(open_store(place)) == {"n": 6}


def test_an_object_that_two_scopes_need_is_declared_lost_by_both(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    repaired: Repaired,
    open_store: OpenStore,
) -> None:
    store.scope(OTHER).save({"n": 2, "big": BIG})
    remove(place / naming.object_path(chain[2].envelope.objects["/big"].sha256))
    one = repair(open_store(place), KEY)
    assert one.ok
    assert not verify(open_store(place)).ok, "a declaration in one scope excuses nothing in another"
    repaired()
    store = open_store(place)
    assert (state(store)["n"], state(store, OTHER)["n"]) == (1, 1)


def test_a_scope_without_an_intact_state_is_set_aside_whole(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    for snapshot in chain:
        truncate(place / HASH / snapshot.path)
    done = repaired()
    assert [action.action for action in done.actions] == ["remove_scope"]
    assert len(done.lost) == 6
    assert KEY in "".join(done.warnings) or HASH in "".join(done.warnings)
    store = open_store(place)
    assert store.scope(KEY).head() is None
    assert store.scope(OTHER).load().seq == 1
    assert len(list((place / str(done.aside) / HASH).glob("state-*"))) == 6


def test_a_fork_whose_origin_was_set_aside_declares_the_loss(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    publish: Publish,
    repaired: Repaired,
    open_store: OpenStore,
) -> None:
    origin = Link(KEY, 5, chain[5].sha256)
    publish(store, "notes:fork", head=True, origin=origin)
    for snapshot in chain:
        truncate(place / HASH / snapshot.path)
    done = repair(open_store(place))
    assert done.ok, done.findings
    repaired = open_store(place).scope("notes:fork").load()
    assert repaired.event["repaired"]["gaps"] == [{"lost": {"seq": 5, "sha256": chain[5].sha256}, "resumes": None}]


def test_a_lost_store_file_is_made_again_with_another_id(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    def malform(path: Path) -> None:
        path.write_bytes(b'{"format": "stateline/1"}')

    before = json.loads((place / "stateline.json").read_bytes())
    for corrupt, copy in zip([remove, truncate, malform, make_fifo, make_directory], copies(place), strict=False):
        corrupt(copy / "stateline.json")
        assert [action.action for action in repaired(copy).actions] == ["renew"], corrupt
        now = json.loads((copy / "stateline.json").read_bytes())
        assert now["format"] == "stateline/1"
        assert now["store_id"] != before["store_id"], corrupt
        assert head(open_store(copy)).sha256 == chain[5].sha256, corrupt


def test_foreign_files_are_set_aside(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
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
    repaired()
    assert not any(os.path.lexists(path) for path in foreign)
    assert head(open_store(place)).sha256 == chain[5].sha256
    assert len(list(place.glob("ext-repair-*"))) == 1


def test_paths_with_the_same_flattened_name_are_all_kept(
    chain: list[Snapshot], place: Path, repaired: Repaired
) -> None:
    (place / "objects" / "a__b").write_bytes(b"1")
    (place / "objects" / "a").mkdir()
    (place / "objects__a__b").write_bytes(b"2")
    (place / "objects__a").write_bytes(b"3")
    done = repaired()
    assert sorted(p.read_bytes() for p in (place / str(done.aside)).iterdir() if p.is_file()) == [b"1", b"2", b"3"]


def test_a_directory_of_objects_that_is_a_symlink_is_renamed_and_not_followed(
    chain: list[Snapshot],
    place: Path,
    tmp_path: Path,
    repaired: Repaired,
    open_store: OpenStore,
) -> None:
    node = chain[5].envelope.objects["/node"].sha256
    shelf = place / "objects" / node[:2]
    outside = tmp_path / "outside"
    shelf.rename(outside)
    shelf.symlink_to(outside)
    before = tree(outside)
    repaired()
    assert tree(outside) == before
    assert state(open_store(place))["n"] < 4


def test_a_lock_that_is_a_directory_is_set_aside(chain: list[Snapshot], place: Path, repaired: Repaired) -> None:
    lock = place / HASH / "scope.lock"
    make_directory(lock)
    repaired()
    assert lock.is_file()


def test_an_orphaned_chain_beside_the_real_one_is_set_aside(
    chain: list[Snapshot],
    place: Path,
    publish: Publish,
    repaired: Repaired,
    open_store: OpenStore,
) -> None:
    first = chain[0]
    at = "2026-11-20T11:00:0{}.000000Z"
    fields = {"seq": 1, "prev_sha": first.sha256, "prev": first.path, "created_at": at.format(1)}
    one = publish(open_store(place), KEY, head=False, **fields)
    fields = {"seq": 2, "prev_sha": one.sha256, "prev": one.path, "created_at": at.format(2)}
    two = publish(open_store(place), KEY, head=False, **fields)
    done = repaired()
    assert {action.path for action in done.actions} == {f"{HASH}/{one.path}", f"{HASH}/{two.path}"}
    assert head(open_store(place)).sha256 == chain[5].sha256


def test_a_forged_head_with_a_false_claim_about_an_object_is_set_aside(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    publish: Publish,
    repaired: Repaired,
    open_store: OpenStore,
) -> None:
    """It gives an intact object a wrong size: the object is not damaged."""
    last = chain[5]
    good = last.envelope.objects["/big"]
    false_claim = type(good)(good.sha256, good.size + 1, good.media_type)
    fields = {"seq": 6, "prev_sha": last.sha256, "prev": last.path, "created_at": "2026-11-20T11:00:00.000000Z"}
    forged = publish(store, KEY, head=True, state={"big": None}, objects={"/big": false_claim}, **fields)
    done = repaired()
    assert f"{HASH}/{forged.path}" in {action.path for action in done.actions}
    assert (place / naming.object_path(good.sha256)).exists()
    assert state(open_store(place))["n"] == 5


def test_a_snapshot_out_of_order_below_its_child_is_set_aside(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    publish: Publish,
    repaired: Repaired,
    open_store: OpenStore,
) -> None:
    fields = {"seq": 9, "prev_sha": chain[5].sha256, "prev": chain[5].path, "created_at": "2026-11-20T11:00:00.000000Z"}
    publish(store, KEY, head=True, state={"n": "forged"}, **fields)
    repaired()
    assert seqs(open_store(place)) == [10, 9, 4, 3, 2, 1, 0]


def test_a_restored_file_ends_the_gap(
    chain: list[Snapshot], place: Path, repaired: Repaired, open_store: OpenStore
) -> None:
    """A declaration excuses only what is missing, so a backup that is put back counts again."""
    path = place / HASH / chain[2].path
    data = path.read_bytes()
    path.unlink()
    node = place / naming.object_path(chain[5].envelope.objects["/node"].sha256)
    kept = node.read_bytes()
    node.unlink()
    repaired()
    path.write_bytes(data)
    path.chmod(0o600)
    node.write_bytes(kept)
    node.chmod(0o600)
    store = open_store(place)
    report = verify(store)
    assert (report.ok, [f.code for f in report.findings if f.code == "lost"]) == (True, [])
    assert seqs(store) == [6, 5, 4, 3, 2, 1, 0]
    alter(path)
    assert not verify(open_store(place)).ok, "an existing file is checked"


def test_a_scope_of_a_newer_version_is_an_obstacle_and_left_untouched(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish, open_store: OpenStore
) -> None:
    fields = {"seq": 6, "prev_sha": chain[5].sha256, "prev": chain[5].path, "created_at": "2026-11-20T11:00:00.000000Z"}
    publish(store, KEY, head=True, version="2", **fields)
    (place / HASH / "n.txt").write_bytes(b"")
    alter(place / naming.scope_hash(OTHER) / "latest.json")
    before = contents(place / HASH)
    done = repair(open_store(place))
    assert contents(place / HASH) == before
    assert [(blocked.code, blocked.scope) for blocked in done.blocked] == [("newer_version", KEY)]
    assert open_store(place).scope(OTHER).load().event["type"] == "repaired", "another scope is repaired"
    assert done.exit_code == 5


class Unreadable(Filesystem):
    """Refuses to open one file, as a disk or an administrator may."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number

    def open_file(self, directory: Directory, name: str) -> int:
        if name == self.name:
            raise OSError(self.number, os.strerror(self.number))
        return super().open_file(directory, name)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_an_unreadable_file_is_an_obstacle_and_not_renamed(
    chain: list[Snapshot], place: Path, open_store: OpenStore, number: int
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
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    (place / HASH / chain[5].path).chmod(0o644)
    alter(place / HASH / chain[2].path)
    alter(place / naming.scope_hash(OTHER) / "latest.json")
    done = repair(open_store(place))
    assert [(blocked.code, blocked.exit_code) for blocked in done.blocked] == [("unsafe", 6)]
    assert done.exit_code == 6
    assert (place / HASH / chain[2].path).exists()
    assert verify(open_store(place), OTHER).ok


def test_a_state_dir_that_others_may_change_is_not_repaired(
    chain: list[Snapshot], place: Path, open_store: OpenStore
) -> None:
    (place / "stateline.json").write_bytes(b"{}")
    (place / "foreign").write_bytes(b"")
    for open_to_others in (place, place.parent):
        mode = open_to_others.stat().st_mode
        open_to_others.chmod(0o777)
        before = tree(place)
        with pytest.raises(UnsafePathError):
            repair(open_store(place))
        assert tree(place) == before
        open_to_others.chmod(mode)


def test_a_key_repairs_that_scope_alone(chain: list[Snapshot], place: Path, open_store: OpenStore) -> None:
    for key in (KEY, OTHER):
        alter(place / naming.scope_hash(key) / "latest.json")
    assert repair(open_store(place), OTHER).ok
    assert verify(open_store(place), OTHER).ok
    assert not verify(open_store(place), KEY).ok
    with pytest.raises(NotFoundError):
        repair(open_store(place), "notes:none")


def test_an_intact_or_absent_store_is_left_alone(
    chain: list[Snapshot], place: Path, tmp_path: Path, open_store: OpenStore
) -> None:
    before = tree(place)
    assert repair(open_store(place)) == RepairReport(ok=True, applied=False)
    assert tree(place) == before
    assert repair(open_store(tmp_path / "none")).ok
    assert not (tmp_path / "none").exists()


def test_a_backend_without_quarantine_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    saved = [store.scope(KEY).save({"n": n}) for n in range(3)]
    backend = store.backend
    assert isinstance(backend, MemoryBackend)
    del backend._blobs[f"{HASH}/{saved[2].path}"]
    assert not plan(store).ok
    with pytest.raises(RequestError):
        repair(store)


def test_a_full_save_may_follow_the_repair_of_a_fast_chain(place: Path) -> None:
    """It makes its past durable first, without the snapshots that were declared lost."""
    fast = Store(LocalBackend(str(place), durability="fast"), redactor=Redactor())
    saved = [fast.scope(KEY).save({"n": n, "own": str(n) * 5000}) for n in range(5)]
    (place / HASH / saved[2].path).unlink()
    (place / naming.object_path(saved[1].envelope.objects["/own"].sha256)).unlink()
    full = Store(LocalBackend(str(place)), redactor=Redactor())
    with pytest.raises(IntegrityError, match="seq 4"):
        full.scope(KEY).save("too early")
    assert repair(full).ok
    assert full.scope(KEY).load().event["durability"] == "fast", "its past may not survive a power loss"
    assert full.scope(KEY).save("on").event["durability"] == "full"
    assert verify(full).ok


def all_files(place: Path) -> Iterator[str]:
    for path in sorted(place.rglob("*")):
        if path.is_file() and path.name != "scope.lock":
            yield str(path.relative_to(place))


def test_every_pair_of_losses_is_repaired(
    chain: list[Snapshot], place: Path, tmp_path: Path, open_store: OpenStore
) -> None:
    names = [name for name in all_files(place) if not name.startswith(naming.scope_hash(OTHER))]
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
