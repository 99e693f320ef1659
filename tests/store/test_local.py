"""The local backend: modes, the order of syncs, what the disk may refuse, and places that must not be trusted."""

from __future__ import annotations

import errno
import gc
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from each_case import each

from stateline import Artifact, Store
from stateline.bundle import naming
from stateline.errors import (
    DurabilityUnknownError,
    IntegrityError,
    LockTimeoutError,
    NewerVersionError,
    RequestError,
    StorageError,
    UnsafePathError,
)
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.local.lock import HeldLock
from stateline.store.protocol import Durability

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
BIG = "x" * 5000

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def store_on(path: Path, fs: Filesystem | None = None, durability: Durability = "full") -> Store:
    return Store(LocalBackend(str(path), fs, durability=durability))


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in [root, *root.rglob("*")]}


def temporary_files(root: Path) -> list[str]:
    return [path.name for path in root.rglob(naming.TEMPORARY + "*")]


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


# -- modes -------------------------------------------------------------------------------------------------------------


@each("bits", [0o000, 0o022, 0o077, 0o777])
def test_directories_are_0700_and_files_0600_under_any_umask(tmp_path: Path, bits: int) -> None:
    root = tmp_path / "s"
    with umask(bits):
        scope = store_on(root).scope(KEY)
        scope.save({"big": BIG})
        scope.save({"n": 2})
        assert store_on(root).scope(KEY).load().seq == 1
    found = modes(root)
    assert {name for name in found if (root / name).is_dir()} == {name for name, mode in found.items() if mode == 0o700}
    assert {name for name in found if (root / name).is_file()} == {
        name for name, mode in found.items() if mode == 0o600
    }
    assert f"{HASH}/scope.lock" in found


def test_all_missing_parents_are_made_and_are_private(tmp_path: Path) -> None:
    with umask(0):
        store_on(tmp_path / "a/b/c").scope(KEY).save(1)
    assert [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_a_umask_that_changes_between_two_files_leaves_both_readable(tmp_path: Path) -> None:
    scope = store_on(tmp_path / "s").scope(KEY)
    scope.save({"big": BIG})
    with umask(0o777):
        scope.save({"big": BIG + "y", "n": 2})
        store_on(tmp_path / "s").scope("notes:y").save({"big": BIG + "z"})
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.lstat().st_mode) for path in files} == {0o600}


# -- order of system calls ---------------------------------------------------------------------------------------------


class Recorder(Filesystem):
    """Writes down each change and sync, by base name; names with a random part by their prefix."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.open: dict[int, str] = {}

    def note(self, what: str, name: str) -> None:
        base = os.path.basename(name)
        short = next((p for p in (naming.HELD, naming.TEMPORARY, "state-") if base.startswith(p)), "")
        scope = "scope" if base == HASH else ""
        self.calls.append(f"{what} {scope or short or ('object' if naming.is_sha256(base) else base)}")

    def make_root(self, path: str) -> None:
        super().make_root(path)
        self.note("mkdir", path)

    def make_directory(self, parent: Directory, name: str) -> None:
        super().make_directory(parent, name)
        self.note("mkdir", name)

    def create(self, directory: Directory, name: str) -> int:
        fd = super().create(directory, name)
        self.note("create", name)
        return fd

    def sync_file(self, fd: int) -> None:
        super().sync_file(fd)
        self.calls.append("sync file")

    def sync_directory(self, directory: Directory) -> None:
        super().sync_directory(directory)
        self.note("sync", directory.path)

    def link(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        super().link(source_dir, source, target_dir, target)
        self.note("link", target)

    def unlink(self, directory: Directory, name: str) -> None:
        super().unlink(directory, name)
        self.note("unlink", name)

    def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        super().rename(source_dir, source, target_dir, target)
        self.note("rename", target)


SNAPSHOT = ["create .tmp-", "sync file", "link state-", "unlink .tmp-", "sync scope"]
POINTER = ["create .tmp-", "sync file", "rename latest.json", "unlink .tmp-held", "sync scope"]
MARK = "create .tmp-held"


def unsynced(calls: list[str]) -> list[str]:
    return [call for call in calls if not call.startswith("sync ")]


def test_a_save_writes_snapshot_then_pointer_each_synced_before_the_next_step(tmp_path: Path) -> None:
    fs = Recorder()
    scope = store_on(tmp_path / "s", fs).scope(KEY)
    scope.save(1)
    fs.calls.clear()
    scope.save(2)
    assert fs.calls == [MARK, *SNAPSHOT, *POINTER]


def test_an_object_is_durable_before_the_snapshot_that_names_it(tmp_path: Path) -> None:
    fs = Recorder()
    scope = store_on(tmp_path / "s", fs).scope(KEY)
    scope.save({"big": "y" * 5000})
    fs.calls.clear()
    ref = scope.save({"big": BIG}).envelope.objects["/big"]
    first = ref.sha256[:2]
    assert fs.calls == [
        MARK,
        f"mkdir {first}",
        "sync objects",
        "create .tmp-",
        "sync file",
        "link object",
        "unlink .tmp-",
        f"sync {first}",
        *SNAPSHOT,
        *POINTER,
    ]


def test_each_directory_that_is_made_is_made_durable_in_its_parent(tmp_path: Path) -> None:
    fs = Recorder()
    store_on(tmp_path / "a" / "s", fs).scope(KEY).save(1)
    store_file = ["create .tmp-", "sync file", "link stateline.json", "unlink .tmp-", "sync s"]
    assert fs.calls == [
        "mkdir a",
        f"sync {tmp_path.name}",
        "mkdir s",
        "sync a",
        f"sync {tmp_path.parent.name}",
        *store_file,
        "mkdir scope",
        "sync s",
        MARK,
        *SNAPSHOT,
        *POINTER,
    ]


def test_an_object_that_the_parent_names_is_neither_read_nor_written_again(tmp_path: Path) -> None:
    fs = Recorder()
    scope = store_on(tmp_path / "s", fs).scope(KEY)
    scope.save({"big": BIG, "n": 1})
    fs.calls.clear()
    scope.save({"big": BIG, "n": 2})
    assert fs.calls == [MARK, *SNAPSHOT, *POINTER]


# -- what the disk may refuse ------------------------------------------------------------------------------------------

CHANGING = ("create", "write", "sync_file", "sync_directory", "close_file", "link", "unlink", "rename")
LOOKING = ("open_directory", "stat", "stat_file", "stat_path", "read", "names")
MAKING = ("open_root", "open_parent", "make_root", "make_directory")
LOCKING = ("open_lock",)
NUMBERS = (errno.ENOSPC, errno.EIO, errno.EROFS)


class Faulty(Filesystem):
    """Raises OSError in the ``at``-th call of ``method``, once; counts the calls of every method."""

    def __init__(self, method: str = "", at: int = 0, number: int = errno.EIO) -> None:
        self.fault = (method, at)
        self.number = number
        self.counts: dict[str, int] = {}
        self.failed = ""


def _break(name: str) -> Callable[..., Any]:
    whole = getattr(Filesystem, name)

    def method(self: Faulty, *args: Any) -> Any:
        seen = self.counts.get(name, 0)
        self.counts[name] = seen + 1
        if self.fault == (name, seen):
            self.failed = f"{name} {args[-1]}"
            if name == "close_file":
                whole(self, *args)
            raise OSError(self.number, os.strerror(self.number))
        return whole(self, *args)

    return method


for _name in CHANGING + LOOKING + MAKING + LOCKING:
    setattr(Faulty, _name, _break(_name))


def store_with_a_snapshot(path: Path) -> Store:
    """A store with one snapshot and one object."""
    store = store_on(path)
    store.scope(KEY).save({"n": 0, "first": "first" * 1000})
    return store


def count_calls(work: Callable[[Store], object], path: Path, durability: Durability = "full") -> dict[str, int]:
    """Number of calls of each method by ``work``, on a store with one snapshot."""
    store_with_a_snapshot(path)
    fs = Faulty()
    work(store_on(path, fs, durability))
    return fs.counts


def save_with_object(store: Store) -> object:
    return store.scope(KEY).save({"n": 1, "big": BIG})


@each("durability", ["full", "fast"])
@each("number", NUMBERS)
@each("method", CHANGING + LOOKING + ("open_root", "open_lock", "make_directory"))
def test_every_refusal_of_the_disk_is_a_typed_error_and_loses_nothing(
    tmp_path: Path, method: str, number: int, durability: Durability
) -> None:
    calls = count_calls(save_with_object, tmp_path / "count", durability).get(method, 0)
    assert calls > 0 or (durability, method) == ("fast", "sync_file")
    for at in range(calls):
        root = tmp_path / str(at)
        first = store_with_a_snapshot(root).scope(KEY).load()
        fs = Faulty(method, at, number)
        store = store_on(root, fs, durability)
        error = None
        try:
            save_with_object(store)
        except StorageError as caught:
            error = caught
        assert fs.failed
        if isinstance(error, DurabilityUnknownError):
            # The last sync: the new head is visible, only its durability is not known.
            assert method == "sync_directory"
        elif error is None:
            # A failing unlink of a temporary file costs nothing but the file; a mark that a full disk does not take
            # costs nothing but the sweep after a crash.
            marked = number == errno.ENOSPC and method in ("create", "close_file") and at == 0
            assert method == "unlink" or marked, fs.failed
        else:
            assert error.hint
            assert "acknowledged" in error.message
            assert store_on(root).scope(KEY).load().sha256 == first.sha256
        second = store_on(root).scope(KEY).save({"n": 2, "big": BIG})
        chain = list(store_on(root).scope(KEY).walk())
        assert chain[-1].sha256 == first.sha256
        assert chain[0].sha256 == second.sha256
        assert store_on(root).resolve(second.state)["big"] == BIG
        assert len(temporary_files(root)) <= 1


@each("method", ["create", "write", "sync_file", "link", "rename", "stat", "names"])
def test_the_same_store_works_after_an_error_of_the_disk(tmp_path: Path, method: str) -> None:
    for at in range(count_calls(save_with_object, tmp_path / "count")[method]):
        root = tmp_path / str(at)
        store_with_a_snapshot(root)
        store = store_on(root, Faulty(method, at, errno.EIO))
        with pytest.raises(StorageError) as caught:
            save_with_object(store)
        # The error is still at hand, as in a program that reports it later: it must not hold the lock.
        assert store.scope(KEY).save({"n": 2}, wait=0.5).seq == 1, caught.value
        assert temporary_files(root) == []


@each("method", [*CHANGING, *MAKING, "open_directory", "names"])
def test_a_first_save_that_the_disk_refused_can_be_repeated(tmp_path: Path, method: str) -> None:
    counting = Faulty()
    save_with_object(store_on(tmp_path / "count/s", counting))
    for at in range(counting.counts[method]):
        root = tmp_path / str(at) / "s"
        try:
            save_with_object(store_on(root, Faulty(method, at, errno.ENOSPC)))
        except StorageError:
            save_with_object(store_on(root))
        found = store_on(root).scope(KEY).load()
        assert store_on(root).resolve(found.state) == {"n": 1, "big": BIG}
        assert all(mode in (0o700, 0o600) for mode in modes(root).values())


@each("durability", ["full", "fast"])
def test_errors_of_the_disk_are_explained(tmp_path: Path, durability: Durability) -> None:
    said = {}
    numbers = (errno.EDQUOT, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.ETIMEDOUT)
    for number in (*NUMBERS, *numbers):
        store_with_a_snapshot(tmp_path / str(number))
        for method, at in (("create", 1), ("write", 0), ("link", 0), ("rename", 0)):
            store = store_on(tmp_path / str(number), Faulty(method, at, number), durability)
            with pytest.raises(StorageError) as caught:
                save_with_object(store)
            assert caught.value.hint
            assert temporary_files(tmp_path) == []
        said[number] = caught.value.message
    assert "disk is full" in said[errno.ENOSPC]
    assert "I/O error" in said[errno.EIO]
    assert "read-only" in said[errno.EROFS]
    assert len(set(said.values())) == len(said)


def test_short_writes_are_continued(tmp_path: Path) -> None:
    class Short(Filesystem):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            return super().write(fd, data[:7])

    store = store_on(tmp_path / "s", Short())
    saved = store.scope(KEY).save({"big": BIG})
    assert store_on(tmp_path / "s").scope(KEY).load() == saved
    assert store_on(tmp_path / "s").resolve(saved.state) == {"big": BIG}


def test_a_write_that_stops_half_way_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    class Full(Filesystem):
        left = 600

        def write(self, fd: int, data: bytes | memoryview) -> int:
            if self.left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            took = super().write(fd, data[: self.left])
            self.left -= took
            return took

    first = store_on(tmp_path / "s").scope(KEY).save(1)
    with pytest.raises(StorageError, match="the disk is full"):
        store_on(tmp_path / "s", Full()).scope(KEY).save({"big": "z" * 3000})
    assert sorted(os.listdir(tmp_path / "s" / HASH)) == sorted(["latest.json", "scope.lock", first.path])


def test_after_a_failed_sync_of_the_head_the_store_writes_no_more(tmp_path: Path) -> None:
    store_with_a_snapshot(tmp_path / "s")
    last = count_calls(lambda store: store.scope(KEY).save({"n": 1}), tmp_path / "count")["sync_directory"] - 1
    store = store_on(tmp_path / "s", Faulty("sync_directory", last))
    with pytest.raises(DurabilityUnknownError) as caught:
        store.scope(KEY).save({"n": 1})
    assert caught.value.hint
    with pytest.raises(StorageError, match="failed earlier"):
        store.scope(KEY).save({"n": 2})
    assert store.scope(KEY).load().state == {"n": 1}
    assert store_on(tmp_path / "s").scope(KEY).save({"n": 2}).seq == 2


def test_a_disk_without_hard_links_keeps_the_same_promises(tmp_path: Path) -> None:
    class NoLinks(Recorder):
        def link(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    fs = NoLinks()
    store = store_on(tmp_path / "s", fs)
    for number in range(3):
        store.scope(KEY).save({"n": number, "big": BIG})
    assert [snapshot.seq for snapshot in store_on(tmp_path / "s").scope(KEY).walk()] == [2, 1, 0]
    assert temporary_files(tmp_path) == []
    name = f"{HASH}/blob"
    store.backend.put(name, b"same")
    fs.calls.clear()
    store.backend.put(name, b"same")
    assert fs.calls[-1] == "sync scope", "what another writer published a moment ago must be durable on return, too"
    assert temporary_files(tmp_path) == []


def test_a_read_only_disk_is_a_storage_error_for_writers_and_nothing_for_readers(tmp_path: Path) -> None:
    class ReadOnly(Filesystem):
        """Every change is refused as a read-only mount refuses it; works for root, too."""

    def refuse(self: ReadOnly, *args: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("make_root", "make_directory", "create", "link", "unlink", "rename"):
        setattr(ReadOnly, name, refuse)
    first = store_on(tmp_path / "s").scope(KEY).save(1)
    with pytest.raises(StorageError, match="read-only"):
        store_on(tmp_path / "s", ReadOnly()).scope("notes:new").save(2)
    assert store_on(tmp_path / "s", ReadOnly()).scope(KEY).load() == first


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_directory_without_write_permission_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="permission was denied"):
        store_on(tmp_path / "closed" / "s").scope(KEY).save(1)
    assert os.listdir(tmp_path / "closed") == []


# -- the lock ----------------------------------------------------------------------------------------------------------


def test_a_lock_is_taken_where_its_block_begins(tmp_path: Path) -> None:
    scope = store_on(tmp_path / "s").scope(KEY)
    scope.save(0)
    later = scope.locked()
    with store_on(tmp_path / "s").scope(KEY).locked(0):
        pass
    with later:
        with scope.locked():
            pass
        with pytest.raises(LockTimeoutError), store_on(tmp_path / "s").scope(KEY).locked(0):
            pass
    with store_on(tmp_path / "s").scope(KEY).locked(0):
        pass


def test_a_lock_released_by_another_thread_is_free(tmp_path: Path) -> None:
    scope = store_on(tmp_path / "s").scope(KEY)
    lock = scope.locked()
    lock.__enter__()
    thread = threading.Thread(target=lock.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with store_on(tmp_path / "s").scope(KEY).locked(0):
        pass


def test_a_scope_that_is_removed_repeatedly_does_not_extend_the_wait(tmp_path: Path) -> None:
    class Removing(Filesystem):
        left = 50

        def open_lock(self, directory: Directory, name: str) -> int:
            lock = super().open_lock(directory, name)
            if self.left:
                self.left -= 1
                os.rename(directory.path, f"{directory.path}-{self.left}")
            return lock

    fs = Removing()
    with pytest.raises(LockTimeoutError), store_on(tmp_path / "s", fs).scope(KEY).locked(0):
        pass
    assert fs.left == 49


def test_one_store_saves_different_scopes_in_many_threads(tmp_path: Path) -> None:
    store = store_on(tmp_path / "s", durability="fast")
    backend = store.backend
    assert isinstance(backend, LocalBackend)

    class Shifting(dict[Any, Any]):
        """Simulate another thread that takes a lock at each step of a loop."""

        def __iter__(self) -> Iterator[Any]:
            for key in super().__iter__():
                yield key
                self.setdefault(("another", 0), HeldLock(backend.fs, Directory("nowhere", -1), -1))

    with store.scope(KEY).locked():
        backend.directories._held = Shifting(backend.directories._held)
        store.scope(KEY).save({"big": BIG})
    assert store.scope(KEY).load().seq == 0


# -- descriptors -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_discarded_stores_leave_no_descriptor_open(tmp_path: Path) -> None:
    def use() -> None:
        store = store_on(tmp_path / "s")
        store.scope(KEY).save({"big": BIG})
        store.scope(KEY).load()
        assert list(store.heads())

    use()
    # What other tests left in a cycle is closed when the collector comes, which may be now.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# -- whose directory is it ---------------------------------------------------------------------------------------------


def test_a_state_dir_that_is_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "s").symlink_to("real")
    with pytest.raises(UnsafePathError, match="symbolic link"):
        store_on(tmp_path / "s").scope(KEY).save(1)
    assert os.listdir(tmp_path / "real") == []


@each("kind", ["file", "dangling"])
def test_a_state_dir_that_is_not_a_directory_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    path.write_text("mine") if kind == "file" else path.symlink_to("nowhere")
    with pytest.raises(UnsafePathError):
        store_on(path).scope(KEY).save(1)
    assert path.is_symlink() or path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["s"]


@each("mode", [0o755, 0o770, 0o707, 0o701])
def test_a_state_dir_that_others_may_enter_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    os.chmod(tmp_path / "s", mode)
    before = modes(tmp_path / "s")
    with pytest.raises(UnsafePathError) as caught:
        store_on(tmp_path / "s").scope(KEY).save(2)
    assert "chmod 700" in caught.value.hint
    assert modes(tmp_path / "s") == before
    reader = store_on(tmp_path / "s")
    assert reader.scope(KEY).load().state == 1
    assert any("others may use it" in warning for warning in reader.warnings)


@as_root
@each("name", ["", HASH])
def test_a_directory_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    os.chown(tmp_path / "s" / name, 12345, -1)
    with pytest.raises(UnsafePathError, match="belongs to user 12345"):
        store_on(tmp_path / "s").scope(KEY).save(2)
    assert store_on(tmp_path / "s").scope(KEY).load().state == 1


def test_a_scope_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    os.chmod(tmp_path / "s" / HASH, 0o750)
    with pytest.raises(UnsafePathError, match="others may use it"):
        store_on(tmp_path / "s").scope(KEY).save(2)
    assert store_on(tmp_path / "s").scope(KEY).load().state == 1


@each("name", [HASH, "objects"])
def test_a_directory_inside_that_is_a_symlink_is_never_entered(tmp_path: Path, name: str) -> None:
    store_on(tmp_path / "s").scope(KEY).save({"n": 1, "big": BIG})
    os.rename(tmp_path / "s" / name, tmp_path / "elsewhere")
    (tmp_path / "s" / name).symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.joinpath("elsewhere").rglob("*"))
    with pytest.raises(UnsafePathError):
        store_on(tmp_path / "s").scope(KEY).save({"big": "another" * 1000})
    store = store_on(tmp_path / "s")
    with pytest.raises(UnsafePathError):
        store.resolve(store.scope(KEY).load().state)
    assert sorted(tmp_path.joinpath("elsewhere").rglob("*")) == before


def put_special_file(path: Path, kind: str) -> None:
    """Something that is not a regular file in the place of ``path``; its content stays beside it."""
    aside = path.with_name("aside")
    os.rename(path, aside)
    if kind == "symlink":
        path.symlink_to(aside)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir(mode=0o700)
    else:
        os.mknod(path, 0o600 | stat.S_IFSOCK)


@each("kind", ["symlink", "fifo", "directory", "socket"])
@each("which", ["pointer", "snapshot", "object", "store file"])
def test_special_files_are_neither_followed_nor_waited_for(tmp_path: Path, which: str, kind: str) -> None:
    root = tmp_path / "s"
    head = store_on(root).scope(KEY).save({"big": BIG})
    put_special_file(
        root
        / {
            "pointer": f"{HASH}/latest.json",
            "snapshot": f"{HASH}/{head.path}",
            "object": naming.object_path(head.envelope.objects["/big"].sha256),
            "store file": "stateline.json",
        }[which],
        kind,
    )
    store = store_on(root)
    with pytest.raises(UnsafePathError):
        store.resolve(store.scope(KEY).load().state)
    if which != "object":
        with pytest.raises(UnsafePathError):
            store.scope(KEY).save(2)


@each("which", ["pointer", "snapshot", "store file"])
@each("mode", [0o644, 0o660, 0o602])
def test_a_writer_refuses_a_file_that_others_may_use_and_a_reader_does_not(
    tmp_path: Path, which: str, mode: int
) -> None:
    root = tmp_path / "s"
    head = store_on(root).scope(KEY).save(1)
    path = root / {"pointer": f"{HASH}/latest.json", "snapshot": f"{HASH}/{head.path}"}.get(which, "stateline.json")
    os.chmod(path, mode)
    with pytest.raises(UnsafePathError) as caught:
        store_on(root).scope(KEY).save(2)
    assert caught.value.hint == f"chmod 600 {path}"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert store_on(root).scope(KEY).load() == head


@as_root
def test_a_writer_refuses_a_pointer_of_another_user(tmp_path: Path) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    os.chown(tmp_path / "s" / HASH / "latest.json", 12345, -1)
    with pytest.raises(UnsafePathError, match="belongs to user 12345"):
        store_on(tmp_path / "s").scope(KEY).save(2)


def test_a_lock_file_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    lock = tmp_path / "s" / HASH / "scope.lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "created elsewhere")
    with pytest.raises((StorageError, UnsafePathError)):
        store_on(tmp_path / "s").scope(KEY).save(2, wait=0.2)
    assert not (tmp_path / "created elsewhere").exists()


def test_a_directory_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    (tmp_path / "s" / "thesis.tex").write_text("years of work")
    with pytest.raises(RequestError, match=r"thesis\.tex") as caught:
        store_on(tmp_path / "s").scope(KEY).save(1)
    assert "--state-dir" in caught.value.hint
    assert os.listdir(tmp_path / "s") == ["thesis.tex"]


def test_an_empty_directory_and_one_with_crash_residue_are_taken(tmp_path: Path) -> None:
    for name, inside in (("empty", ()), ("crashed", (".tmp-0123456789abcdef",))):
        (tmp_path / name).mkdir(mode=0o700)
        for file in inside:
            (tmp_path / name / file).write_text("half")
        assert store_on(tmp_path / name).scope(KEY).save(1).seq == 0


def test_a_missing_store_file_in_a_store_with_scopes_is_damage(tmp_path: Path) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    (tmp_path / "s" / "stateline.json").unlink()
    with pytest.raises(IntegrityError) as caught:
        store_on(tmp_path / "s").scope(KEY).save(2)
    assert caught.value.finding == "missing"
    assert not (tmp_path / "s" / "stateline.json").exists()
    assert store_on(tmp_path / "s").scope(KEY).load().state == 1


def test_a_store_of_a_newer_format_is_refused_every_time_and_left_untouched(tmp_path: Path) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    newer = b'{"format":"stateline/2","store_id":"00"}'
    (tmp_path / "s" / "stateline.json").write_bytes(newer)
    store = store_on(tmp_path / "s")
    for _ in range(2):
        with pytest.raises(NewerVersionError):
            store.scope(KEY).load()
        with pytest.raises(NewerVersionError):
            store.scope(KEY).save(2)
    assert (tmp_path / "s" / "stateline.json").read_bytes() == newer


@each("data", [b"", b"{", b"[]", b'{"format": "stateline/1"}', b'{"format":"git"}', b"{}"])
def test_a_damaged_store_file_stops_a_writer(tmp_path: Path, data: bytes) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    (tmp_path / "s" / "stateline.json").write_bytes(data)
    with pytest.raises(IntegrityError):
        store_on(tmp_path / "s").scope(KEY).save(2)
    assert (tmp_path / "s" / "stateline.json").read_bytes() == data


def test_a_store_made_by_another_process_at_the_same_moment_is_used(tmp_path: Path) -> None:
    root = tmp_path / "s"

    class Slow(Filesystem):
        """Between the look for the store file and the look at what else is there, another writer makes the store."""

        def names(self, directory: Directory) -> Iterator[str]:
            if directory.path == str(root) and not (root / "stateline.json").exists():
                store_on(root).scope("notes:other").save({"big": BIG})
            return super().names(directory)

    assert store_on(root, Slow()).scope(KEY).save(1).seq == 0
    assert sorted(head.envelope.scope for head in store_on(root).heads()) == ["notes:other", KEY]


def test_a_scope_removed_while_a_writer_waits_is_made_again(tmp_path: Path) -> None:
    root = tmp_path / "s"
    holder = store_on(root)
    holder.scope(KEY).save(1)
    saved: list[int] = []
    writer = threading.Thread(target=lambda: saved.append(store_on(root).scope(KEY).save(2).seq))
    with holder.scope(KEY).locked():
        writer.start()
        writer.join(0.1)
        holder.backend.remove(HASH)
    writer.join()
    assert saved == [0]
    assert store_on(root).scope(KEY).load().state == 2


def test_a_crash_during_removal_leaves_no_part_of_the_scope(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store_on(root).scope(KEY).save(1)
    with pytest.raises(StorageError):
        store_on(root, Faulty("unlink", 1)).backend.remove(HASH)
    assert store_on(root).scope(KEY).head() is None
    assert [name for name in os.listdir(root) if name.startswith(naming.REMOVED)]
    assert store_on(root).scope(KEY).save(2).seq == 0


@as_root
def test_a_reader_of_another_users_copy_gets_a_warning(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = store_on(root)
    ref = store.put(Artifact(b"raw"))
    head = store.scope(KEY).save({"art": ref})
    for path in [root, *root.rglob("*")]:
        os.chown(path, 12345, 12345)
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    reader = store_on(root)
    assert reader.scope(KEY).load() == head
    assert reader.get(ref) == b"raw"
    assert any("belongs to user 12345" in warning for warning in reader.warnings)
    with pytest.raises(UnsafePathError):
        reader.scope(KEY).save(1)


def test_removing_a_scope_removes_directories_of_a_newer_version(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state")
    scope = store.scope("notes:x")
    scope.save(1)
    deep = tmp_path / "state" / scope.hash / "ext-anchors" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    (deep.parent / "link").symlink_to(tmp_path)
    store.backend.remove(scope.hash)
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["stateline.json"]
    assert tmp_path.exists()


@each("harm", ["a link", "a loose mode"])
def test_a_lock_that_others_may_use_stops_a_writer(tmp_path: Path, harm: str) -> None:
    store = Store.open(tmp_path / "state")
    scope = store.scope("notes:x")
    scope.save(1)
    lock = tmp_path / "state" / scope.hash / naming.LOCK
    if harm == "a link":
        lock.unlink()
        lock.symlink_to(tmp_path / "elsewhere")
    else:
        lock.chmod(0o666)
    with pytest.raises(UnsafePathError):
        scope.save(2)
    assert scope.load().state == 1
    assert not (tmp_path / "elsewhere").exists()
