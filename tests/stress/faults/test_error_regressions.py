"""Errors that one step of the store gives, each of which was taken wrongly once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from stress.faults.cases import copy
from stress.faults.injection import Failing, Fault, Script
from stress.invariants import fresh_store
from stress.oracle import Picture

from stateline import Store
from stateline.bundle import naming
from stateline.errors import DurabilityUnknownError, StorageError
from stateline.service.repair import apply_repair
from stateline.store.local import filesystem as seam
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem, Stat

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
LITTER = ".tmp-0123456789abcdef"


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def litter(root: Path) -> list[str]:
    return sorted(path.name for path in (root / HASH).glob(f"{naming.TEMPORARY}*"))


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every ``close`` reports an error, as it may, and closes; what was closed."""
    closed: list[int] = []
    close = os.close

    def failing(fd: int) -> None:
        closed.append(fd)
        close(fd)
        raise refused(errno.EIO)

    monkeypatch.setattr(seam.os, "close", failing)
    return closed


def test_closing_the_handle_of_a_directory_never_fails_and_happens_once(tmp_path: Path, closed: list[int]) -> None:
    fs = Filesystem()
    directory = fs.open_root(str(tmp_path))
    fd = directory.fd
    fs.close_directory(directory)
    del directory
    assert closed == [fd], "a second close could hit what somebody else has opened meanwhile"


def test_an_unclosed_handle_is_closed_silently(
    tmp_path: Path, closed: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = Filesystem().open_root(str(tmp_path))
    fd = directory.fd
    del directory
    assert closed == [fd]
    assert capsys.readouterr().err == ""


def test_an_abandoned_listing_is_closed_silently(tmp_path: Path, closed: list[int]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    fs = Filesystem()
    directory = fs.open_root(str(tmp_path))
    names = fs.names(directory)
    assert next(names) in ("one", "two")
    names.close()  # type: ignore[attr-defined]  # a generator
    assert len(closed) == 1


def test_a_save_that_cannot_close_its_directories_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    scope = fresh_store(str(root)).scope(KEY)
    scope.save(0)
    close = os.close

    def failing(fd: int) -> None:
        directory = os.path.isdir(f"/proc/self/fd/{fd}")
        close(fd)
        if directory:
            raise refused(errno.EIO)

    with monkeypatch.context() as patched:
        patched.setattr(seam.os, "close", failing)
        saved = scope.save({"n": 1, "text": "x" * 5000})
    assert fresh_store(str(root)).scope(KEY).load() == saved


def test_a_new_file_whose_mode_cannot_be_set_is_not_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(tmp_path: Path, step: str) -> None:
        def failing(*args: Any) -> None:
            raise refused(errno.EIO)

        opened: list[int] = []
        whole = os.open

        def noted(*args: Any, **kwargs: Any) -> int:
            opened.append(whole(*args, **kwargs))
            return opened[-1]

        fs = Filesystem()
        directory = fs.open_root(str(tmp_path))
        before = os.umask(0o277)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(seam.os, "fchmod", failing)
                patched.setattr(seam.os, "open", noted)
                with pytest.raises(OSError, match="Input/output error"):
                    getattr(fs, step)(directory, "new")
        finally:
            os.umask(before)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(opened[-1])

    for_each(check, ["create", "open_lock"], root=tmp_path)


def test_a_rename_that_was_done_but_returned_an_error_is_detected(tmp_path: Path) -> None:
    """A network mount may move the pointer and lose the answer."""

    class Lossy(Filesystem):
        def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
            super().rename(source_dir, source, target_dir, target)
            raise refused(errno.EIO)

    root = tmp_path / "s"
    fresh_store(str(root)).scope(KEY).save(0)
    saved = Store(LocalBackend(str(root), Lossy())).scope(KEY).save(1)
    assert fresh_store(str(root)).scope(KEY).load() == saved
    assert litter(root) == []
    assert fresh_store(str(root)).scope(KEY).save(2).seq == 2


def test_an_unverifiable_rename_reports_that_the_head_may_have_moved(tmp_path: Path) -> None:
    def check(tmp_path: Path, moved: bool) -> None:
        class Blind(Filesystem):
            blind = False

            def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
                self.blind = True
                if moved:
                    super().rename(source_dir, source, target_dir, target)
                raise refused(errno.EIO)

            def read(self, directory: Directory, name: str, limit: int) -> tuple[bytes, Stat]:
                if self.blind and name == naming.POINTER:
                    raise refused(errno.EIO)
                return super().read(directory, name, limit)

        root, fs = tmp_path / "s", Blind()
        fresh_store(str(root)).scope(KEY).save(0)
        store = Store(LocalBackend(str(root), fs))
        with pytest.raises(DurabilityUnknownError) as caught:
            store.scope(KEY).save(1)
        assert "stateline verify" in caught.value.hint
        assert len(litter(root)) == (1 if moved else 2), "the mark stays, so that the next holder sweeps"
        fs.blind = False
        with pytest.raises(StorageError, match="failed earlier"):
            store.scope(KEY).save(2)
        seen = fresh_store(str(root)).scope(KEY).load()
        assert seen.seq == moved
        assert fresh_store(str(root)).scope(KEY).save(2).envelope.prev_sha == seen.sha256
        assert litter(root) == []

    for_each(check, [True, False], root=tmp_path)


def test_a_file_that_could_not_be_swept_once_is_swept_by_the_next_holder(tmp_path: Path) -> None:
    def check(tmp_path: Path, method: str) -> None:
        root = tmp_path / "s"
        fresh_store(str(root)).scope(KEY).save(0)
        for name in (naming.HELD, LITTER):
            (root / HASH / name).write_bytes(b"half")
            (root / HASH / name).chmod(0o600)
        dry = Script()
        with Store(LocalBackend(str(root), Failing(dry))).scope(KEY).locked():
            pass
        assert litter(root) == []
        for name in (naming.HELD, LITTER):
            (root / HASH / name).write_bytes(b"half")
            (root / HASH / name).chmod(0o600)
        script = Script(Fault(dry.calls.index(method) + 1, "EIO"))
        assert Store(LocalBackend(str(root), Failing(script))).scope(KEY).save(1).seq == 1
        assert script.struck == [method]
        assert litter(root) == [naming.HELD, LITTER][::-1], "the mark stays beside it"
        assert fresh_store(str(root)).scope(KEY).save(2).seq == 2
        assert litter(root) == []

    for_each(check, ["names", "unlink"], root=tmp_path)


def test_a_repair_writes_nothing_more_after_a_sync_of_a_directory_failed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    keys = [f"notes:{number}" for number in range(3)]
    for key in keys:
        scope = fresh_store(str(root)).scope(key)
        for number in range(3):
            saved = scope.save(number)
        (root / scope.hash / saved.path).write_bytes(b"{")
    first = first_sync_of_a_repair(root)
    before = Picture.of(str(root))
    script = Script(Fault(first, "EIO"))
    store = Store(LocalBackend(str(root), Failing(script)))
    done = apply_repair(store, None)
    assert script.struck == ["sync_directory"]
    assert not done.ok
    assert done.exit_code == StorageError.exit_code
    after = Picture.of(str(root))
    assert after.files == before.files, "neither of this scope nor of the others"
    with pytest.raises(StorageError, match="failed earlier"):
        store.scope("notes:another").save(1)
    assert apply_repair(fresh_store(str(root)), None).ok


def first_sync_of_a_repair(root: Path) -> int:
    """The number of the first sync of a directory in a repair, which is done to a copy."""
    copied, script = root.with_name("copy"), Script()
    copy(str(root), str(copied))
    assert apply_repair(Store(LocalBackend(str(copied), Failing(script))), None).ok
    return script.calls.index("sync_directory") + 1
