"""The lock of a scope is an OS lock on its file, however that file was opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from stateline.bundle import naming
from stateline.errors import LockTimeoutError
from stateline.store.local.backend import LocalBackend
from stateline.store.store import Store

KEY = "notes:x"


def test_a_lock_that_was_taken_by_path_is_the_same_lock(tmp_path: Path) -> None:
    scope = Store.open(tmp_path / "s").scope(KEY)
    scope.save({})
    other = filelock.FileLock(tmp_path / "s" / scope.hash / naming.LOCK, fallback_to_soft=False)
    with scope.locked(), pytest.raises(filelock.Timeout):
        other.acquire(timeout=0)
    with other, pytest.raises(LockTimeoutError), scope.locked(0):
        pass
    with scope.locked(0):
        pass


def test_the_lock_file_is_private_under_any_umask(tmp_path: Path) -> None:
    store = f"Store.open({str(tmp_path / 's')!r}).scope({KEY!r})"
    code = f"import os; os.umask(0o777); from stateline import Store; {store}.save({{}})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    path = tmp_path / "s" / naming.scope_hash(KEY) / naming.LOCK
    assert path.stat().st_mode & 0o777 == 0o600
    Store.open(tmp_path / "s").scope(KEY).save({})


def test_a_process_that_inherited_the_open_file_does_not_keep_the_lock(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    assert isinstance(store.backend, LocalBackend)
    scope = store.scope(KEY)
    with scope.locked():
        (held,) = store.backend.directories._held.values()
        waiting = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[held._lock]
        )
    try:
        with Store.open(tmp_path / "s").scope(KEY).locked(0):
            pass
    finally:
        waiting.communicate(timeout=60)
