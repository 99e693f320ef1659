"""Reading never writes: seen from outside (the tree before and after) and from below (the system calls)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stateline import Artifact, Store
from stateline.store.local.backend import LocalBackend

READER = """
import sys
from stateline import Store
from stateline.errors import StatelineError
from stateline.store.local.backend import LocalBackend
from stateline.store.integrity import newest_intact
mark = open(sys.argv[2], "rb")
store = Store(LocalBackend(sys.argv[1]))
found = 0
for key in ("notes:x", "notes:none"):
    try:
        scope = store.scope(key)
        scope.head()
        store.resolve(scope.load().state)
        for snapshot in scope.walk():
            found += 1
        newest_intact(store.backend, scope.hash)
    except StatelineError:
        pass
try:
    for head in store.heads():
        found += 1
except StatelineError:
    pass
list(store.backend.list(scope.hash))
mark.close()
print(found)
"""
WRITING = (
    "mkdir,mkdirat,unlink,unlinkat,rmdir,rename,renameat,renameat2,link,linkat,symlink,symlinkat,truncate,ftruncate"
)
WRITING += ",chmod,fchmod,fchmodat,chown,fchown,fchownat,lchown,utime,utimes,utimensat,futimesat,mknod,mknodat"
WRITING += ",fsync,fdatasync,flock,setxattr,fsetxattr,lsetxattr,fallocate"
OPENING = "open,openat,openat2,creat"


def file_attributes(root: Path) -> dict[str, tuple[int, int, int, int, bytes]]:
    found = {}
    for path in [root, *root.rglob("*")]:
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (info.st_mode, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, data)
    return found


@pytest.fixture(params=["whole", "loose modes", "damaged", "absent", "empty"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "a place" / "s"
    root.parent.mkdir()
    if request.param == "absent":
        return root
    if request.param == "empty":
        root.mkdir()
        return root
    store = Store(LocalBackend(str(root)))
    for number in range(3):
        store.scope("notes:x").save({"n": number, "big": "x" * 5000, "art": Artifact(b"raw")})
    if request.param == "loose modes":
        os.chmod(root, 0o777)
    if request.param == "damaged":
        next(root.glob("*/state-*")).write_bytes(b"damage")
        (root / "stateline.json").unlink()
    return root


def run(args: list[str], root: Path, mark: Path) -> subprocess.CompletedProcess[str]:
    mark.touch()
    command = [*args, sys.executable, "-B", "-c", READER, str(root), str(mark)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


def test_the_tree_is_the_same_after_reading(root: Path, tmp_path: Path) -> None:
    before = file_attributes(root.parent) if root.parent.exists() else {}
    run([], root, tmp_path / "mark")
    assert file_attributes(root.parent) == before


def test_no_system_call_of_a_reader_changes_anything(root: Path, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([strace, "-f", "-o", os.devnull, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace cannot run here: {probe.stderr.decode()[:100]}")
    trace = tmp_path / "trace"
    run([strace, "-f", "-y", "-o", str(trace), "-e", f"trace={WRITING},{OPENING}"], root, tmp_path / "mark")
    # What the interpreter does before the reader begins is not the store's.
    lines = trace.read_text().split(f'"{tmp_path / "mark"}"', 1)[1].splitlines()
    writes = [line for line in lines if re.search(r"O_(CREAT|WRONLY|RDWR|TRUNC|APPEND|TMPFILE)", line)]
    writes += [line for line in lines if re.match(rf"\d+ +({WRITING.replace(',', '|')})\(", line)]
    assert writes == []
    if root.exists():
        assert any(root.name in line for line in lines), "the reader was seen at work"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only tree")
def test_a_read_only_tree_is_read(tmp_path: Path) -> None:
    root = tmp_path / "s"
    saved = Store(LocalBackend(str(root))).scope("notes:x").save({"big": "x" * 5000})
    for path in [*root.rglob("*"), root]:
        os.chmod(path, 0o500 if path.is_dir() else 0o400)
    try:
        reader = Store(LocalBackend(str(root)))
        assert reader.scope("notes:x").load() == saved
        assert reader.resolve(saved.state) == {"big": "x" * 5000}
    finally:
        for path in [root, *root.rglob("*")]:
            os.chmod(path, 0o700)
