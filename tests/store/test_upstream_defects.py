"""Defects measured in the one public system that had tried this before, each shown not to be here.

The numbers are those of the survey behind the design. What needs the command line is shown there; here stands the
store's part. Longer tests of the same promises: test_store, test_local, test_processes, test_readers_write_nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from each_case import each

from stateline import Store
from stateline.bundle import canonical, naming
from stateline.errors import (
    ConflictError,
    IntegrityError,
    InvalidValueError,
    LockTimeoutError,
    NewerVersionError,
    NotFoundError,
    StatelineError,
    StorageError,
    UnsafePathError,
)
from stateline.store.integrity import newest_intact
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.snapshot import parse_snapshot

KEY = "context:docs"
HASH = naming.scope_hash(KEY)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "s"


def local(root: Path, **options: Any) -> Store:
    return Store(LocalBackend(str(root)), **options)


def head_file(root: Path) -> Path:
    return root / HASH / local(root).scope(KEY).load().path


def test_d2_scopes_that_take_turns_each_keep_their_head(root: Path) -> None:
    for number in range(5):
        local(root).scope("context:a").save({"n": number})
        local(root).scope("context:b").save({"n": -number})
    assert local(root).scope("context:a").load().state == {"n": 4}
    assert local(root).scope("context:b").load().state == {"n": -4}


@each("blank", ["", "ab", None, "0" * 63, "A" * 64])
def test_d3_a_pointer_without_a_full_digest_is_never_trusted(root: Path, blank: str | None) -> None:
    saved = local(root).scope(KEY).save({"n": 1})
    pointer = canonical.encode({"version": "1", "path": saved.path, "sha256": blank})
    (root / HASH / "latest.json").write_bytes(pointer)
    with pytest.raises(IntegrityError):
        local(root).scope(KEY).load()


def test_d4_a_lock_file_left_behind_costs_nothing_and_a_held_lock_is_never_ignored(root: Path) -> None:
    local(root).scope(KEY).save(1)
    (root / HASH / "scope.lock").write_text("ts=0 token=of-a-dead-process")
    local(root).scope(KEY).save(2, wait=0)
    raised: list[BaseException] = []

    def waiter() -> None:
        with pytest.raises(LockTimeoutError) as caught:
            local(root).scope(KEY).save(3, wait=0.1)
        raised.append(caught.value)

    with local(root).scope(KEY).locked():
        thread = threading.Thread(target=waiter)
        thread.start()
        thread.join()
    assert len(raised) == 1
    assert local(root).scope(KEY).load().state == 2, "no write without the lock"


def test_d5_the_second_of_two_refinements_of_one_parent_is_a_conflict(root: Path) -> None:
    parent = local(root).scope(KEY).save({"prompt": "base"})
    mine = local(root).scope(KEY).save({"prompt": "base, mine"}, parent=parent)
    with pytest.raises(ConflictError):
        local(root).scope(KEY).save({"prompt": "base, theirs"}, parent=parent)
    assert local(root).scope(KEY).load() == mine


def test_d6_a_failed_read_changes_nothing_and_damage_names_the_last_intact_snapshot(root: Path) -> None:
    good = local(root).scope(KEY).save(1)
    local(root).scope(KEY).save(2)

    class Sick(Filesystem):
        def read(self, directory: Directory, name: str, limit: int) -> bytes:
            raise OSError(5, "Input/output error")

    before = sorted(os.listdir(root / HASH))
    with pytest.raises(StorageError):
        Store(LocalBackend(str(root), Sick())).scope(KEY).load()
    assert sorted(os.listdir(root / HASH)) == before
    assert local(root).scope(KEY).load().state == 2
    head_file(root).write_bytes(b"damage")
    with pytest.raises(IntegrityError, match=good.path):
        local(root).scope(KEY).save(3)
    assert newest_intact(local(root).backend, HASH) == good
    assert sorted(os.listdir(root / HASH)) == before, "nothing is renamed or moved aside"


def test_d7_a_pointer_of_a_newer_version_is_left_untouched(root: Path) -> None:
    local(root).scope(KEY).save(1)
    path = root / HASH / "latest.json"
    newer = path.read_bytes().replace(b'"version":"1"', b'"version":"2"')
    path.write_bytes(newer)
    for call in (local(root).scope(KEY).load, lambda: local(root).scope(KEY).save(2)):
        with pytest.raises(NewerVersionError):
            call()
    assert path.read_bytes() == newer


def test_d8_every_link_of_the_chain_is_the_parent_files_own_digest_and_is_checked(root: Path) -> None:
    # What once made the digest differ: things to redact, wide integers.
    for number in range(3):
        local(root).scope(KEY).save({"n": 2**60 + number, "api_key": "sk-0123456789abcdef"})
    for child in local(root).scope(KEY).walk():
        if child.envelope.prev is not None:
            data = (root / HASH / child.envelope.prev).read_bytes()
            assert child.envelope.prev_sha == hashlib.sha256(data).hexdigest()
    for path in (root / HASH).glob("state-*"):
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"tool_version"', b'"tool_Version"'))
        with pytest.raises(IntegrityError):
            list(local(root).scope(KEY).walk())
        path.write_bytes(data)


def test_d9_created_at_increases_under_any_clock_and_is_utc_to_the_microsecond(root: Path) -> None:
    for time_ns in (10**18, 10**18, 10**18 - 10**9, 0):
        local(root, clock=lambda time_ns=time_ns: time_ns).scope(KEY).save(time_ns)
    times = [snapshot.envelope.created_at for snapshot in local(root).scope(KEY).walk()][::-1]
    assert times == [f"2001-09-09T01:46:40.00000{number}Z" for number in range(4)]


def test_d12_loading_creates_nothing_and_changes_no_mode(root: Path) -> None:
    with pytest.raises(NotFoundError):
        local(root).scope(KEY).load()
    assert not root.exists()
    local(root).scope(KEY).save(1)
    (root / HASH / "scope.lock").unlink()
    os.chmod(root, 0o775)
    before = sorted(str(path) for path in root.rglob("*"))
    local(root).scope(KEY).load()
    assert sorted(str(path) for path in root.rglob("*")) == before
    assert stat.S_IMODE(root.stat().st_mode) == 0o775


@each("kind", ["symlink", "fifo", "0644", "group-writable directory"])
def test_d13_a_writer_takes_no_symlink_fifo_loose_file_or_shared_directory(root: Path, kind: str) -> None:
    local(root).scope(KEY).save(1)
    path = head_file(root)
    if kind == "0644":
        os.chmod(path, 0o644)
    elif kind == "group-writable directory":
        os.chmod(root, 0o770)
    else:
        os.rename(path, root / HASH / "moved")
        os.mkfifo(path, 0o600) if kind == "fifo" else path.symlink_to("moved")
    with pytest.raises(UnsafePathError) as caught:
        local(root).scope(KEY).save(2)
    assert caught.value.exit_code == 6


def test_d17_each_cause_has_its_own_error_with_a_hint(root: Path) -> None:
    def cause(name: str) -> StatelineError:
        place = root.parent / name.replace(" ", "-")
        if name != "absent":
            local(place).scope(KEY).save(1)
            path = head_file(place)
            if name == "tampered":
                path.write_bytes(path.read_bytes().replace(b'"state":1', b'"state":2'))
            elif name == "truncated":
                os.truncate(path, 9)
            elif name == "missing":
                path.unlink()
            elif name == "not regular":
                path.unlink()
                path.mkdir()
            elif name == "newer":
                (place / "stateline.json").write_bytes(b'{"format":"stateline/9"}')
        with pytest.raises(StatelineError) as caught:
            local(place).scope(KEY).load()
        return caught.value

    found = {name: cause(name) for name in ("absent", "tampered", "truncated", "missing", "not regular", "newer")}
    told = {name: (error.code, getattr(error, "finding", "")) for name, error in found.items()}
    assert told == {
        "absent": ("not_found", ""),
        "tampered": ("integrity", "altered"),
        "truncated": ("integrity", "truncated"),
        "missing": ("integrity", "missing"),
        "not regular": ("unsafe", ""),
        "newer": ("newer_version", ""),
    }
    assert all(error.hint for error in found.values())


def test_d20_a_failed_save_leaves_no_temporary_file_and_a_new_directory_is_durable_in_its_parent(root: Path) -> None:
    class Full(Filesystem):
        synced: list[str] = []  # noqa: RUF012  one instance, one test

        def write(self, fd: int, data: bytes | memoryview) -> int:
            raise OSError(28, "No space left on device")

        def sync_directory(self, directory: Directory) -> None:
            super().sync_directory(directory)
            self.synced.append(directory.path)

    with pytest.raises(StorageError):
        Store(LocalBackend(str(root), Full())).scope(KEY).save(1)
    assert os.listdir(root) == []
    assert Full.synced == [str(root.parent), str(root.parent.parent)]
    (root / ".tmp-0123456789abcdef").write_bytes(b"of a crash")
    assert local(root).scope(KEY).save(1).seq == 0, "crash residue stops no writer"


def test_d21_an_unknown_option_is_an_error_and_never_a_save(root: Path) -> None:
    with pytest.raises(TypeError):
        local(root).scope(KEY).save(1, dry_run=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Store.open(root, read_only=True)  # type: ignore[call-arg]
    assert not root.exists()


def test_d22_unknown_fields_wide_integers_and_bad_text_are_kept_exactly_or_refused(root: Path) -> None:
    state = {"wide": [2**53 + 1, 2**64 - 1, -(2**63)], "html": "<&>", "nul": "\x00"}
    saved = local(root).scope(KEY).save(state)
    assert local(root).scope(KEY).load().state == state
    for bad in ("\ud800", 2**64):
        with pytest.raises(InvalidValueError):
            local(root).scope(KEY).save({"x": bad})
    bundle = json.loads(saved.data) | {"version": "1.7", "from_the_future": [1]}
    data = canonical.encode(bundle)
    kept = parse_snapshot(HASH, naming.snapshot_name(bundle["created_at"], canonical.sha256(data)), data)
    assert kept.envelope.extra == {"from_the_future": [1]}
    assert canonical.encode(kept.envelope.document()) == data
