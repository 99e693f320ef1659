"""The holder of a scope's lock: tested by readers without writing, and named in the error of a writer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from each_case import Failures

from stateline.bundle import naming
from stateline.errors import LockTimeoutError
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Filesystem
from stateline.store.local.lock import _program
from stateline.store.store import Store

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
HOLDER = """
import sys
from stateline import Store
with Store.open(sys.argv[1]).scope(sys.argv[2]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""
TESTER = """
import sys
from stateline.store.local.backend import LocalBackend
backend = LocalBackend(sys.argv[1])
print("testing", flush=True)
while True:
    assert backend.is_locked(sys.argv[2]) in (True, False)
"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists locks")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.open(tmp_path / "s").scope(KEY).save(1)
    return tmp_path / "s"


def start(code: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def test_the_holder_of_a_lock_is_seen_and_named(root: Path) -> None:
    backend = LocalBackend(str(root))
    assert backend.is_locked(HASH) is False
    with start(HOLDER, str(root), KEY) as holder:
        assert backend.is_locked(HASH) is True
        with pytest.raises(LockTimeoutError) as caught:
            Store(backend).scope(KEY).save(2, wait=0)
        holder.communicate()
    assert backend.is_locked(HASH) is False
    if sys.platform == "linux":
        assert caught.value.holder == f"process {holder.pid} ({os.path.basename(sys.executable)})"
    assert caught.value.message.startswith(f"{caught.value.holder} holds the lock of {KEY}; waited 0 s")


@on_linux
def test_another_thread_is_named_as_one(root: Path) -> None:
    def waiter() -> None:
        with pytest.raises(LockTimeoutError) as caught:
            Store.open(root).scope(KEY).save(2, wait=0)
        holders.append(caught.value.holder)

    holders: list[str] = []
    with Store.open(root).scope(KEY).locked():
        thread = threading.Thread(target=waiter)
        thread.start()
        thread.join()
    assert holders == ["another thread of this process"]


def test_a_system_that_names_no_holder_changes_only_the_words(root: Path) -> None:
    class Silent(Filesystem):
        def lock_holder(self, identity: tuple[int, int]) -> tuple[int, list[str]] | None:
            raise FileNotFoundError

    silent = Store(LocalBackend(str(root), Silent()))
    with start(HOLDER, str(root), KEY) as holder:
        with pytest.raises(LockTimeoutError) as caught:
            silent.scope(KEY).save(2, wait=0)
        holder.communicate()
    assert caught.value.holder == "another process"


def test_of_a_command_line_only_the_program_and_its_command_are_named() -> None:
    failures = Failures()
    for words, name in [
        (["/usr/bin/python3", "-I", "-m", "stateline", "execute", "secret", ""], "stateline execute"),
        (["/usr/bin/python3", "/opt/bin/stateline", "--actor", "secret", "run", ""], "stateline"),
        (["/opt/bin/stateline"], "stateline"),
        (["/bin/sh", "-c", "secret", ""], "sh"),
        ([""], ""),
        ([], ""),
    ]:
        with failures.case(words):
            assert _program(words) == name
    failures.check()


def test_readers_that_test_the_lock_make_no_writer_fail(root: Path) -> None:
    with start(TESTER, str(root), HASH) as one, start(TESTER, str(root), HASH) as two:
        try:
            scope = Store.open(root, durability="fast").scope(KEY)
            for n in range(100):
                scope.save(n, wait=0)
        finally:
            one.kill()
            two.kill()


def test_a_lock_that_cannot_be_tested_is_unknown_and_nothing_is_made_or_followed(root: Path) -> None:
    lock = root / HASH / naming.LOCK
    failures = Failures()

    def absent() -> None:
        pass

    def fifo() -> None:
        os.mkfifo(lock)

    def symlink() -> None:
        lock.symlink_to(root / naming.STORE_FILE)

    for make, expected in [(absent, False), (fifo, None), (symlink, None), (lock.mkdir, None)]:
        with failures.case(make):
            with suppress(FileNotFoundError):
                lock.rmdir() if lock.is_dir() and not lock.is_symlink() else lock.unlink()
            make()
            before = sorted(os.listdir(root / HASH))
            assert LocalBackend(str(root)).is_locked(HASH) is expected
            assert sorted(os.listdir(root / HASH)) == before
    failures.check()
    assert LocalBackend(str(root)).is_locked("0" * 64) is False
    assert LocalBackend(str(root / "absent")).is_locked(HASH) is False
    assert not (root / "absent").exists()
