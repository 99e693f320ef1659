"""A process that is forked while a lock is held has no part in the lock: neither to use it nor to give it away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stateline import Store
from stateline.verify.checker import verify

KEY = "notes:x"
BEGIN = """
import os, sys
from stateline import Store
from stateline.errors import LockTimeoutError
store = Store.open(sys.argv[1])
scope = store.scope("notes:x")
def in_a_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)
def others_may_hold_it():
    try:
        with Store.open(sys.argv[1]).scope("notes:x").locked(0):
            return True
    except LockTimeoutError:
        return False
"""


def printed(root: Path, code: str) -> list[str]:
    """The lines that a program prints which begins with ``BEGIN``."""
    Store.open(root).scope(KEY).save({"n": 0})
    command = [sys.executable, "-c", BEGIN + code, str(root)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split()


def test_a_forked_child_that_leaves_the_block_does_not_release_the_lock(tmp_path: Path) -> None:
    code = """
with scope.locked():
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    print(others_may_hold_it(), os.path.exists(f"{sys.argv[1]}/{scope.hash}/.tmp-held"), scope.save({"n": 1}).seq)
print(others_may_hold_it())
"""
    assert printed(tmp_path / "s", code) == ["False", "True", "1", "True"]


def test_a_forked_child_waits_for_its_parents_lock(tmp_path: Path) -> None:
    code = """
def in_the_block():
    try:
        scope.save({"who": "child"}, wait=0)
    except LockTimeoutError:
        print("waited", flush=True)
    with store.scope("notes:its own").locked():
        store.scope("notes:its own").save({"text": "t" * 5000})
with scope.locked():
    in_a_child(in_the_block)
    print(scope.load().seq, flush=True)
in_a_child(lambda: scope.save({"who": "child"}))
print(scope.load().seq)
"""
    assert printed(tmp_path / "s", code) == ["waited", "0", "1"]


def test_a_forked_child_takes_the_lock_after_the_parent_releases_it(tmp_path: Path) -> None:
    code = """
def in_the_block():
    os.read(come, 1)
    scope.save({"who": "child"})
    with scope.locked():
        print(others_may_hold_it(), flush=True)
    print(others_may_hold_it(), flush=True)
come, go = os.pipe()
with scope.locked():
    child = os.fork()
    if child == 0:
        in_the_block()
        sys.exit()
os.write(go, b"!")
os.waitpid(child, 0)
print(scope.load().seq)
"""
    assert printed(tmp_path / "s", code) == ["False", "True", "1"]


def test_a_parent_and_a_child_that_save_at_once_use_different_files(tmp_path: Path) -> None:
    code = """
for number in range(20):
    with scope.locked():
        child = os.fork()
        if child == 0:
            try:
                scope.save({"who": "child"}, wait=0)
            except LockTimeoutError:
                os._exit(7)
            os._exit(0)
        scope.save({"who": "parent", "number": number})
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
            print("saved under the parent's lock")
"""
    assert printed(tmp_path / "s", code) == []
    assert Store.open(tmp_path / "s").scope(KEY).load().seq == 20
    assert verify(Store.open(tmp_path / "s")).findings == ()
