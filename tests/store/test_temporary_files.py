"""Temporary files: their directory, their removal, and no needless listing of directories."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from each_case import each

from stateline import Artifact, Store
from stateline.bundle import naming
from stateline.bundle.canonical import sha256
from stateline.errors import StatelineError, StorageError
from stateline.store.local import atomic_write
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
BIG = "x" * 5000
TEMPORARY = ".tmp-0123456789abcdef"


class Watching(Filesystem):
    """Writes down which directories are listed, and where temporary files are made."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self.made: list[str] = []

    def names(self, directory: Directory) -> Iterator[str]:
        self.listed.append(os.path.basename(directory.path))
        return super().names(directory)

    def create(self, directory: Directory, name: str) -> int:
        self.made.append(os.path.basename(directory.path))
        return super().create(directory, name)


def store_on(path: Path, fs: Filesystem | None = None) -> Store:
    return Store(LocalBackend(str(path), fs))


def temporary_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob(f"{naming.TEMPORARY}*"))


def left_by_a_crash(root: Path, *places: str) -> None:
    for place in places:
        (root / place).mkdir(mode=0o700, exist_ok=True)
        (root / place / TEMPORARY).write_bytes(b"half")


def test_all_temporary_files_of_a_save_lie_in_the_scopes_directory(tmp_path: Path) -> None:
    store_on(tmp_path / "s").scope(KEY).save(1)
    fs = Watching()
    store_on(tmp_path / "s", fs).scope(KEY).save({"big": BIG, "more": ["y" * 5000]})
    assert set(fs.made) == {HASH}
    assert len(fs.made) == 5


def test_a_save_lists_neither_the_scopes_directory_nor_the_state_dir(tmp_path: Path) -> None:
    for number in range(3):
        store_on(tmp_path / "s").scope(KEY).save({"n": number, "big": BIG})
    fs = Watching()
    scope = store_on(tmp_path / "s", fs).scope(KEY)
    scope.save({"n": 4, "big": BIG})
    scope.load()
    assert fs.listed == []
    scope.save({"n": 5, "big": "y" * 5000})
    assert set(fs.listed) <= {"objects", *(f"{number:02x}" for number in range(256))}


def test_the_mark_exists_exactly_while_temporary_files_may(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Linking(Filesystem):
        def link(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
            seen.append((root / HASH / naming.HELD).exists())
            super().link(source_dir, source, target_dir, target)

    root = tmp_path / "s"
    store_on(root).scope(KEY).save(0)
    scope = store_on(root, Linking()).scope(KEY)
    with scope.locked():
        assert temporary_files(root) == [f"{HASH}/{naming.HELD}"]
        with scope.locked():
            scope.save(1)
        assert temporary_files(root) == [], "it goes when the pointer has moved"
        scope.save({"n": 2, "big": BIG})
    assert seen == [True] * 3
    assert temporary_files(root) == []
    with scope.locked():
        pass
    assert temporary_files(root) == []
    with pytest.raises(KeyError), scope.locked():
        raise KeyError
    assert temporary_files(root) == []
    with scope.locked():
        scope.store.backend.remove(HASH)
    assert not (root / HASH).exists()


def test_only_the_holder_after_a_dead_one_sweeps(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store_on(root).scope(KEY).save(1)
    store_on(root).scope("notes:other").save(1)
    left_by_a_crash(root, HASH, naming.scope_hash("notes:other"))
    fs = Watching()
    store_on(root, fs).scope(KEY).save(2)
    assert f"{HASH}/{TEMPORARY}" in temporary_files(root), "without the mark nothing is listed"
    assert fs.listed == []
    (root / HASH / naming.HELD).write_bytes(b"")
    before = {path.name for path in (root / HASH).iterdir()}
    store_on(root, fs).scope(KEY).save(3)
    assert fs.listed == [HASH]
    assert temporary_files(root) == [f"{naming.scope_hash('notes:other')}/{TEMPORARY}"]
    assert before - {path.name for path in (root / HASH).iterdir()} == {TEMPORARY, naming.HELD}
    store_on(root, fs).scope(KEY).save(4)
    assert fs.listed == [HASH], "once"


@each("made_again", [False, True])
def test_a_missing_mark_does_not_stop_a_save(tmp_path: Path, *, made_again: bool) -> None:
    root = tmp_path / "s"
    scope = store_on(root).scope(KEY)
    scope.save(1)
    mark = root / HASH / naming.HELD
    with scope.locked():
        mark.rename(root / HASH / ".tmp-kept")
        if made_again:
            mark.write_bytes(b"another's")
        assert scope.save(2).seq == 1
    assert store_on(root).scope(KEY).load().state == 2
    assert (root / HASH / ".tmp-kept").read_bytes() == b"", "nothing is written into what has another name now"


def test_a_writer_leaves_the_mark_beside_what_it_could_not_remove(tmp_path: Path) -> None:
    class Broken(Filesystem):
        """One file cannot be removed, the next ones can."""

        broken = False

        def unlink(self, directory: Directory, name: str) -> None:
            if self.broken:
                self.broken = False
                raise OSError(errno.EIO, "I/O error")
            super().unlink(directory, name)

    root = tmp_path / "s"
    fs = Broken()
    scope = store_on(root, fs).scope(KEY)
    scope.save(0)
    fs.broken = True
    scope.save(1)
    assert len(temporary_files(root)) == 2, "what could not be removed, and the mark"
    scope.save(2)
    assert temporary_files(root) == []
    with scope.locked():
        fs.broken = True
        scope.save(3)
        scope.save(4)
    assert f"{HASH}/{naming.HELD}" in temporary_files(root), "a later save in the same block does not use the mark up"
    assert len(temporary_files(root)) == 2
    scope.save(5)
    assert temporary_files(root) == []


def test_an_interrupt_between_two_steps_leaves_the_mark_for_the_next_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    store_on(root).scope(KEY).save(0)
    whole = atomic_write.write_temporary

    def interrupted(*args: Any, **kwargs: Any) -> str:
        whole(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(atomic_write, "write_temporary", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store_on(root).scope(KEY).save(1)
    assert f"{HASH}/{naming.HELD}" in temporary_files(root)
    assert len(temporary_files(root)) == 2
    store_on(root).scope(KEY).save(2)
    assert temporary_files(root) == []


@each("full", [False, True])
def test_a_mark_that_is_a_directory_is_removed_if_it_is_empty(tmp_path: Path, *, full: bool) -> None:
    root = tmp_path / "s"
    scope = store_on(root).scope(KEY)
    scope.save(0)
    mark = root / HASH / naming.HELD
    mark.mkdir()
    if full:
        (mark / "foreign").touch()
    left_by_a_crash(root, HASH)
    scope.save(1)
    assert temporary_files(root) == ([f"{HASH}/{naming.HELD}"] if full else [])
    assert scope.save(2).seq == 2


def test_files_that_cannot_be_swept_stop_no_writer(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store_on(root).scope(KEY).save(1)
    (root / HASH / naming.HELD).write_bytes(b"")
    (root / HASH / ".tmp-directory").mkdir()
    (root / HASH / ".tmp-directory" / "foreign").touch()
    (root / HASH / ".tmp-empty").mkdir()
    left_by_a_crash(root, HASH)
    assert store_on(root).scope(KEY).save(2).seq == 1
    assert temporary_files(root) == [f"{HASH}/.tmp-directory"]


def test_a_mark_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store_on(root).scope(KEY).save(1)
    (root / HASH / naming.HELD).symlink_to(tmp_path / "elsewhere")
    assert store_on(root).scope(KEY).save(2).seq == 1
    assert not (tmp_path / "elsewhere").exists()
    assert temporary_files(root) == []


def test_a_put_without_a_lock_sweeps_files_older_than_an_hour(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = store_on(root)
    store.put(Artifact(b"first"))
    left_by_a_crash(root, naming.OBJECTS)
    fs = Watching()
    store_on(root, fs).put(Artifact(b"second"))
    assert set(fs.made) == {naming.OBJECTS}
    assert temporary_files(root) == [f"objects/{TEMPORARY}"], "another process may be writing it"
    codes = {finding.path: (finding.severity, finding.code) for finding in verify(store_on(root)).findings}
    assert codes[f"objects/{TEMPORARY}"] == ("residue", "temporary")
    assert {severity for severity, _ in codes.values()} == {"residue"}
    os.utime(root / "objects" / TEMPORARY, (time.time() - 3700, time.time() - 3700))
    kept = sha256(b"first")
    os.utime(root / naming.object_path(kept), (0, 0))
    store_on(root).put(Artifact(b"third"))
    assert temporary_files(root) == []
    assert (root / naming.object_path(kept)).exists()


def test_repeated_crashes_leave_only_the_files_of_the_last(tmp_path: Path) -> None:
    class Dead(BaseException):
        """Simulate the end of the process: later calls have no effect."""

    class Dying(Filesystem):
        alive = True

        def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
            self.alive = False
            raise Dead

        def unlink(self, directory: Directory, name: str) -> None:
            if self.alive:
                super().unlink(directory, name)

    root = tmp_path / "s"
    store_on(root).scope(KEY).save(0)
    for number in range(50):
        with pytest.raises(Dead):
            store_on(root, Dying()).scope(KEY).save(number)
        assert len(temporary_files(root)) == 2, "the mark, and what was to be the pointer"
    store_on(root).scope(KEY).save(1)
    assert temporary_files(root) == []


def test_a_blob_of_a_scope_that_is_put_without_its_lock_is_safe_from_the_sweep(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store_on(root).scope(KEY).save(1)

    class Interrupted(Watching):
        """Between the temporary file and its name, the next holder of the lock sweeps."""

        def link(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
            (root / HASH / naming.HELD).write_bytes(b"")
            store_on(root).scope(KEY).save(2)
            super().link(source_dir, source, target_dir, target)

    fs = Interrupted()
    try:
        store_on(root, fs).backend.put(f"{HASH}/blob", b"whole")
    except StatelineError as error:
        pytest.fail(f"swept: {error}")
    assert (root / HASH / "blob").read_bytes() == b"whole"
    assert fs.made == ["s"]


def test_a_full_disk_without_room_for_the_mark_does_not_stop_the_holder(tmp_path: Path) -> None:
    class Full(Filesystem):
        number = errno.ENOSPC

        def create(self, directory: Directory, name: str) -> int:
            raise OSError(self.number, os.strerror(self.number))

    root = tmp_path / "s"
    store_on(root).scope(KEY).save(1)
    fs = Full()
    fs.number = errno.EIO
    with pytest.raises(StorageError, match="I/O error"), store_on(root, fs).scope(KEY).locked():
        pytest.fail("other errors are reported")
    full = store_on(root, Full())
    with full.scope(KEY).locked():
        full.backend.remove(HASH)
    assert not (root / HASH).exists()
