"""Promises of `full` and `fast`, and the work of a full save on a fast past."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from each_case import each

from stateline import Artifact, Store
from stateline.bundle import naming
from stateline.errors import DurabilityUnknownError, IntegrityError, StorageError, UsageError
from stateline.store.durability import _blobs
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.protocol import Durability
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
BIG = "x" * 5000
DEEP = {"list": ["y" * 5000, "z" * 5000], **{f"key{number}": "w" * 30 for number in range(200)}}
"""A value that becomes a node with objects below it."""


class Syncing(Filesystem):
    """Knows which names were synced since ``clear``: files by the name they had when they were opened or made."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.open: dict[int, str] = {}
        self.broken = ""

    def create(self, directory: Directory, name: str) -> int:
        fd = super().create(directory, name)
        self.open[fd] = name
        return fd

    def open_to_sync(self, directory: Directory, name: str) -> int:
        fd = super().open_to_sync(directory, name)
        self.open[fd] = name
        return fd

    def sync_file(self, fd: int) -> None:
        self.note(self.open[fd])
        super().sync_file(fd)

    def sync_directory(self, directory: Directory) -> None:
        self.note(os.path.basename(directory.path) + "/")
        super().sync_directory(directory)

    def note(self, name: str) -> None:
        if self.broken and name.startswith(self.broken):
            raise OSError(errno.EIO, "Input/output error")
        self.synced.append(name)


def store_on(path: Path, durability: Durability, fs: Filesystem | None = None) -> Store:
    return Store(LocalBackend(str(path), fs, durability=durability))


def tree(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_a_fast_save_syncs_only_new_directories_and_the_store_file(tmp_path: Path) -> None:
    fs = Syncing()
    scope = store_on(tmp_path / "s", "fast", fs).scope(KEY)
    first = scope.save({"big": BIG})
    shelf = first.envelope.objects["/big"].sha256[:2]
    made = [f"{tmp_path.name}/", f"{tmp_path.parent.name}/", "s/", "s/", "s/", "objects/"]
    assert [name for name in fs.synced if not name.startswith(naming.TEMPORARY)] == made
    assert len([name for name in fs.synced if name.startswith(naming.TEMPORARY)]) == 1, "stateline.json"
    assert (tmp_path / "s" / "objects" / shelf).is_dir()
    fs.synced.clear()
    scope.save({"big": BIG, "n": 2})
    assert fs.synced == []


@each("durability", ["full", "fast"])
def test_the_event_records_the_durability(tmp_path: Path, durability: Durability) -> None:
    store = Store.open(tmp_path / "s", durability=durability)
    assert store.scope(KEY).save(1).event["durability"] == durability
    assert store.scope(KEY).save(2, event={"durability": "else"}).event["durability"] == durability


def test_an_unknown_durability_is_refused_before_any_change(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="medium"):
        Store.open(tmp_path / "s", durability="medium")  # type: ignore[arg-type]  # as in a program without types
    assert not (tmp_path / "s").exists()


def test_settling_a_store_in_memory_changes_nothing() -> None:
    store = Store.in_memory()
    store.backend.durability = "fast"
    first = store.scope(KEY).save({"deep": DEEP})
    store.backend.durability = "full"
    assert store.scope(KEY).save({"n": 2}, parent=first).event["durability"] == "full"


def test_both_durabilities_leave_the_same_files(tmp_path: Path) -> None:
    for durability in ("full", "fast"):
        store = Store(
            LocalBackend(str(tmp_path / durability), durability=durability),  # type: ignore[arg-type]  # of two literals
            clock=lambda: 10**18,
        )
        store.scope(KEY).save({"deep": DEEP})
    full, fast = ([name for name in tree(tmp_path / each) if "state-" not in name] for each in ("full", "fast"))
    assert full == fast
    assert verify(store_on(tmp_path / "fast", "full")).findings == ()


def test_a_full_save_syncs_the_fast_past_below_it_and_nothing_older(tmp_path: Path) -> None:
    root = tmp_path / "s"
    older = [store_on(root, "full").scope(KEY).save({"n": n, "old": "o" * 5000}) for n in range(2)]
    fast = [store_on(root, "fast").scope(KEY).save({"n": n, "old": "o" * 5000, "deep": DEEP}) for n in range(3)]
    fs = Syncing()
    store_on(root, "full", fs).scope(KEY).save({"n": 9})
    named = {ref.sha256 for snapshot in fast for ref in snapshot.envelope.objects.values()}
    kept = {ref.sha256 for snapshot in older for ref in snapshot.envelope.objects.values()}
    everything = {path.name for path in (root / "objects").rglob("*") if path.is_file()}
    assert len(everything) > len(named), "the node names other objects"
    files = {name for name in fs.synced if not name.startswith(naming.TEMPORARY) and not name.endswith("/")}
    assert files == {*(snapshot.path for snapshot in fast), "latest.json", *(everything - kept)}
    assert {name for name in fs.synced if name.endswith("/")} == {
        f"{HASH}/",
        *(f"{sha[:2]}/" for sha in everything - kept),
    }
    fs.synced.clear()
    store_on(root, "full", fs).scope(KEY).save({"n": 10})
    assert len(fs.synced) == 4, "what is behind a full snapshot is settled"


def test_objects_of_a_fast_past_are_synced_before_the_full_snapshot_is_visible(tmp_path: Path) -> None:
    root = tmp_path / "s"
    head = store_on(root, "fast").scope(KEY).save({"big": BIG})
    before = tree(root)
    for broken in (head.path, head.envelope.objects["/big"].sha256, "latest.json", f"{HASH}/"):
        fs = Syncing()
        fs.broken = broken
        store = store_on(root, "full", fs)
        with pytest.raises(StorageError, match="I/O error"):
            store.scope(KEY).save({"n": 2})
        with pytest.raises(StorageError, match="failed earlier"):
            store.scope(KEY).save({"n": 3})
        assert tree(root) == before
    assert store_on(root, "full").scope(KEY).load() == head


@each("what", ["the parent", "an object"])
def test_a_full_save_refuses_a_damaged_fast_past(tmp_path: Path, what: str) -> None:
    root = tmp_path / "s"
    fast = store_on(root, "fast").scope(KEY)
    first = fast.save({"big": BIG})
    fast.save({"n": 2})
    file = root / HASH / first.path
    if what == "an object":
        file = root / naming.object_path(first.envelope.objects["/big"].sha256)
    file.unlink()
    before = tree(root)
    with pytest.raises(IntegrityError) as caught:
        store_on(root, "full").scope(KEY).save({"n": 3})
    assert caught.value.finding == "missing"
    assert "repair" in caught.value.hint
    assert tree(root) == before
    assert fast.save({"n": 3}).seq == 2, "a fast save promises nothing of it"


def test_a_full_writer_syncs_an_object_of_a_fast_one(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ref = store_on(root, "fast").put(Artifact(b"raw"))
    other = store_on(root, "fast").scope("notes:other").save({"deep": DEEP})
    for use in (
        lambda store: store.put(Artifact(b"raw")),
        lambda store: store.scope("notes:a").save({"art": ref}),
        lambda store: store.scope("notes:b").save({"art": Artifact(b"raw")}),
    ):
        fs = Syncing()
        use(store_on(root, "full", fs))
        assert ref.sha256 in fs.synced
        assert f"{ref.sha256[:2]}/" in fs.synced[fs.synced.index(ref.sha256) :]
    fs = Syncing()
    store_on(root, "full", fs).scope("notes:third").save({"copied": other.state["deep"]})
    below = {path.name for path in (root / "objects").rglob("*") if path.is_file()} - {ref.sha256}
    assert below <= set(fs.synced), "a node that is named brings what it names"


def test_a_full_writer_that_appends_to_a_list_of_a_fast_one_syncs_all_of_it(tmp_path: Path) -> None:
    root = tmp_path / "s"
    lists = {
        "chain": [f"m{n}" * 20 for n in range(400)],
        "node": [{"t": f"z{n}" * 3000, "p": "q" * 900} for n in range(5)],
    }
    fast = store_on(root, "fast").scope("notes:fast").save(lists).state
    for name in lists:
        below = {path.name for path in (root / "objects").rglob("*") if path.is_file()}
        fs = Syncing()
        store = store_on(root, "full", fs)
        longer = store.append(fast[name], ["one more"])
        head = store.scope(f"notes:{name}").save({"l": longer})
        resting = {path.rpartition("/")[2] for path in _blobs(head.envelope.objects.values(), set(), set(), store.get)}
        assert len(resting & below) > 2
        assert resting & below <= set(fs.synced)
        fs.synced.clear()
        longer = store.append(longer, ["and another"])
        assert not (resting & below) & set(fs.synced), "what this process kept is settled"


@each("durability", ["full", "fast"])
def test_a_state_that_ends_in_the_middle_of_a_save_is_only_residue(tmp_path: Path, durability: Durability) -> None:
    """The death of the process at each system call that changes something, for real."""
    code = """
import os, signal, sys
from stateline import Store
from stateline.store.local.filesystem import Filesystem
from stateline.store.local.backend import LocalBackend
class Dying(Filesystem):
    left = int(sys.argv[3])
def dies(name):
    whole = getattr(Filesystem, name)
    def method(self, *args):
        if Dying.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        Dying.left -= 1
        return whole(self, *args)
    return method
for name in ("create", "write", "link", "unlink", "rename", "make_directory"):
    setattr(Dying, name, dies(name))
Store(LocalBackend(sys.argv[1], Dying(), durability=sys.argv[2])).scope("notes:x").save({"n": 1, "big": "b" * 5000})
"""
    for at in range(40):
        root = tmp_path / str(at)
        first = store_on(root, durability).scope(KEY).save({"n": 0})
        done = subprocess.run([sys.executable, "-c", code, str(root), durability, str(at)], check=False)
        report = verify(store_on(root, durability))
        assert {finding.severity for finding in report.findings} <= {"residue"}
        assert store_on(root, durability).scope(KEY).load().seq in (0, 1)
        assert list(store_on(root, durability).scope(KEY).walk())[-1] == first
        store_on(root, durability).scope(KEY).save({"n": 2})
        assert not list(root.rglob(f"{naming.TEMPORARY}*"))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert 10 < at < 39


class Naming(Filesystem):
    """Knows which names are durable: those that were in a directory when it was synced."""

    def __init__(self) -> None:
        self.durable: set[str] = set()

    def sync_directory(self, directory: Directory) -> None:
        self.durable |= {os.path.join(os.path.realpath(directory.path), name) for name in os.listdir(directory.path)}
        super().sync_directory(directory)


@each("durability", ["full", "fast"])
def test_the_state_dirs_name_is_made_durable_even_if_it_existed(tmp_path: Path, durability: Durability) -> None:
    class Dead(Exception):
        pass

    class Dying(Filesystem):
        left = 0

        def make_root(self, path: str) -> None:
            super().make_root(path)
            if self.left == 0:
                raise Dead
            self.left -= 1

    for left in (0, 1, 2):
        base = tmp_path / str(left)
        base.mkdir()
        dying = Dying()
        dying.left = left
        with pytest.raises(Dead):
            store_on(base / "a" / "b" / "s", durability, dying).scope(KEY).save(1)
        fs = Naming()
        store_on(base / "a" / "b" / "s", durability, fs).scope(KEY).save(1)
        # What lies above the directory at which the dead writer stopped, that one had made durable.
        assert {str(base.joinpath(*"abs"[: n + 1])) for n in range(left, 3)} <= fs.durable
    (tmp_path / "own").mkdir(mode=0o700)
    fs = Naming()
    store_on(tmp_path / "own", durability, fs).scope(KEY).save(1)
    assert str(tmp_path / "own") in fs.durable
    fs.durable.clear()
    store_on(tmp_path / "own", durability, fs).scope("notes:y").save(1)
    assert str(tmp_path / "own") not in fs.durable, "it is synced where the store is made"


@each("number", [errno.EACCES, errno.EINVAL, errno.EROFS, errno.EIO])
def test_a_parent_that_cannot_be_synced_is_accepted_unless_the_disk_fails(tmp_path: Path, number: int) -> None:
    class Refusing(Filesystem):
        def open_parent(self, path: str) -> Directory:
            if number == errno.EACCES and path == str(tmp_path / "own"):
                raise OSError(number, os.strerror(number))
            return super().open_parent(path)

        def sync_directory(self, directory: Directory) -> None:
            if directory.path == str(tmp_path):
                raise OSError(number, os.strerror(number))
            super().sync_directory(directory)

    (tmp_path / "own").mkdir(mode=0o700)
    store = store_on(tmp_path / "own", "full", Refusing())
    if number == errno.EIO:
        with pytest.raises(StorageError, match="I/O error"):
            store.scope(KEY).save(1)
        assert os.listdir(tmp_path / "own") == []
    else:
        assert store.scope(KEY).save(1).seq == 0


def test_a_put_whose_directory_cannot_be_synced_is_visible_and_stops_the_writer(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store_on(root, "full").scope(KEY).save(1)
    ref = store_on(root, "full").put(Artifact(b"other shelf"))
    fs = Syncing()
    fs.broken = f"{ref.sha256[:2]}/"
    store = store_on(root, "full", fs)
    with pytest.raises(DurabilityUnknownError) as caught:
        store.put(Artifact(b"other shelf"))
    assert caught.value.hint
    with pytest.raises(StorageError, match="failed earlier"):
        store.put(Artifact(b"else"))


def test_a_save_that_fails_before_the_pointer_moved_leaves_the_head(tmp_path: Path) -> None:
    root = tmp_path / "s"
    first = store_on(root, "full").scope(KEY).save(1)
    fs = Syncing()
    fs.broken = f"{HASH}/"
    with pytest.raises(StorageError, match="the head is as it was") as caught:
        store_on(root, "full", fs).scope(KEY).save(2)
    assert not isinstance(caught.value, DurabilityUnknownError)
    assert store_on(root, "full").scope(KEY).load() == first


def test_a_head_that_was_damaged_since_it_was_read_is_not_built_upon(tmp_path: Path) -> None:
    scope = store_on(tmp_path / "s", "full").scope(KEY)
    head = scope.save({"n": 1})
    path = tmp_path / "s" / HASH / head.path
    for harm, finding in ((head.data[:-9], "truncated"), (head.data.replace(b'"n":1', b'"n":7'), "altered")):
        path.write_bytes(harm)
        with pytest.raises(IntegrityError) as caught:
            scope.save({"n": 2}, parent=head)
        assert caught.value.finding == finding
    path.unlink()
    with pytest.raises(IntegrityError) as caught:
        scope.save({"n": 2}, parent=head)
    assert caught.value.finding == "missing"
