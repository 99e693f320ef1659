"""Several processes on one store: nothing is lost, and a dead holder blocks no writer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stateline import Store
from stateline.bundle import naming
from stateline.errors import LockTimeoutError
from stateline.store.local.backend import LocalBackend

KEY = "notes:x"
HASH = naming.scope_hash(KEY)

# Says what is acknowledged only after it is: one line for each save, written at once.
SAVER = """
import os, sys
from stateline import Store
from stateline.store.local.backend import LocalBackend
root, count, times, *keys = sys.argv[1:]
store = Store(LocalBackend(root))
for number in range(int(count)):
    for key in keys:
        state = {"by": os.getpid(), "n": number, "big": f"{os.getpid()} {number} " * int(times)}
        saved = store.scope(key).save(state, wait=120)
        os.write(1, f"{key} {saved.seq} {saved.sha256}\\n".encode())
"""

HOLDER = """
import sys, time
from stateline import Store
from stateline.store.local.backend import LocalBackend
with Store(LocalBackend(sys.argv[1])).scope(sys.argv[2]).locked():
    print("held", flush=True)
    time.sleep(600)
"""


def start(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True)


@contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def local(root: Path) -> Store:
    return Store(LocalBackend(str(root)))


def acknowledged(output: str) -> list[tuple[str, int, str]]:
    lines = [line.split() for line in output.splitlines()]
    # The last line of a killed process may be cut short; then the save was not acknowledged.
    return [(line[0], int(line[1]), line[2]) for line in lines if len(line) == 3 and len(line[2]) == 64]


def test_1600_saves_of_8_processes_are_one_unbroken_chain(tmp_path: Path) -> None:
    processes = [start(SAVER, str(tmp_path / "s"), "200", "10", KEY) for _ in range(8)]
    with ended(*processes):
        outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    chain = list(local(tmp_path / "s").scope(KEY).walk())
    assert [snapshot.seq for snapshot in chain] == list(range(1599, -1, -1))
    told = {(seq, sha) for output in outputs for _, seq, sha in acknowledged(output)}
    assert told == {(snapshot.seq, snapshot.sha256) for snapshot in chain}
    times = [snapshot.envelope.created_at for snapshot in chain]
    assert times == sorted(set(times), reverse=True)


def test_two_scopes_interleaved_by_two_processes_keep_separate_heads(tmp_path: Path) -> None:
    keys = ("notes:a", "notes:b")
    processes = [start(SAVER, str(tmp_path / "s"), "20", "10", *order) for order in (keys, keys[::-1])]
    with ended(*processes):
        assert [process.wait(60) for process in processes] == [0, 0]
    for key in keys:
        chain = list(local(tmp_path / "s").scope(key).walk())
        assert [snapshot.seq for snapshot in chain] == list(range(39, -1, -1))
        assert {snapshot.envelope.scope for snapshot in chain} == {key}


def test_a_lock_whose_holder_died_is_free_at_once(tmp_path: Path) -> None:
    store = local(tmp_path / "s")
    store.scope(KEY).save(1)
    holder = start(HOLDER, str(tmp_path / "s"), KEY)
    with ended(holder):
        assert read_line(holder) == "held\n"
        holder.kill()
        holder.wait()
        assert store.scope(KEY).save(2, wait=0.0).seq == 1


def test_a_writer_waits_for_a_live_holder_and_then_reports_it(tmp_path: Path) -> None:
    store = local(tmp_path / "s")
    store.scope(KEY).save(1)
    holder = start(HOLDER, str(tmp_path / "s"), KEY)
    with ended(holder):
        assert read_line(holder) == "held\n"
        began = time.monotonic()
        with pytest.raises(LockTimeoutError) as caught:
            store.scope(KEY).save(2, wait=0.3)
        assert 0.29 <= time.monotonic() - began < 60
        assert caught.value.exit_code == 4
        assert "--wait" in caught.value.hint
        assert store.scope(KEY).load().state == 1, "readers do not wait"
        assert store.scope("notes:other").save(1, wait=0.0).seq == 0, "other scopes do not wait"
    assert store.scope(KEY).save(2, wait=1.0).seq == 1


def test_many_processes_that_make_the_store_at_once_agree_on_it(tmp_path: Path) -> None:
    for attempt in range(3):
        root = tmp_path / str(attempt) / "s"
        processes = [start(SAVER, str(root), "1", "600", f"notes:{number}", KEY) for number in range(6)]
        with ended(*processes):
            assert [process.wait(60) for process in processes] == [0] * 6
        assert len(list(local(root).heads())) == 7
        assert local(root).scope(KEY).load().seq == 5
