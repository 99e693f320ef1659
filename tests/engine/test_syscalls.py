"""Commands that read write nothing, and how often a turn waits for the disk: seen from below, by strace, and from
outside, by the tree before and after."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from each_case import for_each

MACHINE = {
    "stateline": 1,
    "name": "read",
    "state": {"big": ""},
    "stages": {
        "first": {"task": ["/bin/echo", "0"], "repeatable": True, "default_next": "again"},
        "again": {"task": ["/bin/echo", "1"], "repeatable": True, "default_next": "once"},
        "once": {"task": ["/bin/echo", "2"], "default_next": "large"},
        "large": {
            "task": ["/bin/sh", "-c", "printf '\"%05000d\"' 7"],
            "repeatable": True,
            "set": {"big": "output"},
            "default_next": "ask",
        },
        "ask": {"human": {"prompt": "Go on from {{ outputs.once }}?"}},
    },
}
READING = [
    "scopes",
    "log run:done",
    "log run:done -n 2 --format json",
    "log run:done -p",
    "diff run:done~1 run:done",
    "show run:done",
    "show run:done~2 --resolve",
    "show run:done --raw",
    "show context:docs",
    "verify",
    "verify run:done --format json",
    "exec list",
    "exec status",
    "exec status waiting --format json",
    "exec show waiting",
    "exec history done",
    "machine check machine.json",
    "execute machine.json --dry-run",
    "execute machine.json -i --id waiting --dry-run",
    "execute machine.json --id waiting --answer true --dry-run",
    "execute machine.json --id done --dry-run",
    "execute machine.json --id done --force --dry-run",
    "execute machine.json --id new --dry-run --state-scope docs",
    "run --state-scope docs --system other --dry-run",
    "run --state-scope docs --refine-text more --dry-run",
    "run --state-scope new --system fresh --dry-run",
]
ABSENT = ["scopes", "verify", "exec list", "execute machine.json --dry-run", "run --state-scope x --system y --dry-run"]

CHANGING = (
    "mkdir,mkdirat,unlink,unlinkat,rmdir,rename,renameat,renameat2,link,linkat,symlink,symlinkat,truncate,ftruncate,"
    "chmod,fchmod,fchmodat,?fchmodat2,chown,fchown,fchownat,lchown,utime,utimes,utimensat,futimesat,mknod,mknodat,"
    "fsync,fdatasync,sync,syncfs,sync_file_range,msync,flock,setxattr,fsetxattr,lsetxattr,fallocate"
)
OPENING = "open,openat,?openat2,creat"
SYNCS = {
    # Three saves (4 each): the machine file's record, the run's first snapshot, the turn. The machine's two objects (2
    # each). What is made for them: the state dir (1) and what it is in (1), stateline.json (2), two scopes (1 each),
    # objects/ (1) and two directories in it (1 each).
    "the first turn of a store": 25,
    # The same three saves and the run's scope (1). The machine's objects are there: they and their directories are
    # synced all the same (2 each), since whoever put them may not have done so.
    "the first turn of a run": 17,
    # A save: the snapshot, its directory, the pointer, its directory again.
    "repeatable": 4,
    # The intent is saved before.
    "not repeatable": 8,
    # A save, the object, its directory, and the directory that is made for it.
    "one new object": 7,
    "what waits": 0,
    "an answer": 4,
}
"""Number of waits for the disk in one call of `execute -i`."""


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "STATELINE_STATE_DIR": str(root / "state dir"), "PYTHONDONTWRITEBYTECODE": "1"}


IN_TURN = """
import contextlib, os, sys
from stateline.cli.main import run
for number, words in enumerate(sys.argv[1:]):
    with contextlib.suppress(FileNotFoundError):
        os.open(f"/command {number}", os.O_RDONLY)
    assert run(words.split()) in (0, 1, 2, 3), words
"""
"""A program that runs one command after the other; in a trace each is preceded by a file that it does not find."""


def stateline(
    root: Path, *words: str, under: tuple[str, ...] = (), program: tuple[str, ...] = ("-m", "stateline")
) -> subprocess.CompletedProcess[str]:
    command = [*under, sys.executable, *program, *words]
    return subprocess.run(
        command, cwd=root, env=environment(root), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def traced(
    root: Path, trace: Path, *words: str, calls: str, program: tuple[str, ...] = ("-m", "stateline")
) -> list[str]:
    """The lines of strace for one command, which must not fail for a reason of strace's."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([strace, "-f", "-o", os.devnull, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace cannot trace here: {probe.stderr.decode('utf-8', 'replace')[:100]}")
    under = (strace, "-f", "-y", "-o", str(trace), "-e", f"trace={calls}")
    done = stateline(root, *words, under=under, program=program)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    return trace.read_text().splitlines()


def picture(root: Path) -> dict[str, tuple[int, int, int, int, bytes]]:
    found = {}
    for path in [root, *root.rglob("*")]:
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (info.st_mode, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, data)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine file and a state dir with a run that waits, one that is complete, and a context of two snapshots."""
    root = tmp_path_factory.mktemp("a place")
    (root / "machine.json").write_text(json.dumps(MACHINE))
    for expected, words in [
        (3, "execute machine.json --id done"),
        (0, "exec resume done --answer true"),
        (3, "execute machine.json --id waiting"),
        (0, "run --state-scope docs --system helpful"),
        (0, "run --state-scope docs --refine-text short"),
    ]:
        done = stateline(root, *words.split())
        assert done.returncode == expected, done.stderr
    return root


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A machine file, and no state dir."""
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    return tmp_path


def require_nothing_written(lines: list[str]) -> None:
    harmless = re.compile(r'"/dev/(null|tty)"')
    testing = re.compile(r"flock\(.*(LOCK_SH\|LOCK_NB|LOCK_UN)\)")  # of a file that is opened read-only
    opened = [line for line in lines if re.search(r"O_(CREAT|WRONLY|RDWR|TRUNC|APPEND|TMPFILE)|creat\(", line)]
    names = CHANGING.replace("?", "").replace(",", "|")
    changed = [line for line in lines if re.match(rf"\d+ +({names})\(", line)]
    assert [line for line in opened if not harmless.search(line)] == []
    assert [line for line in changed if not testing.search(line)] == []


def traced_in_turn(root: Path, trace: Path, commands: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each of the commands with its lines of strace."""
    lines = traced(root, trace, *commands, calls=f"{CHANGING},{OPENING}", program=("-c", IN_TURN))
    starts = [at for at, line in enumerate(lines) if re.search(r'"/command \d+"', line)]
    assert len(starts) == len(commands)
    for words, start, end in zip(commands, starts, [*starts[1:], len(lines)], strict=True):
        yield words, lines[start:end]


def test_a_reading_command_changes_nothing(tmp_path: Path, root: Path) -> None:
    def check(words: str, lines: list[str]) -> None:
        assert any("state dir" in line or "machine check" in words for line in lines), "the command was seen at work"
        require_nothing_written(lines)

    before = picture(root)
    for_each(check, traced_in_turn(root, tmp_path / "trace", READING))
    assert picture(root) == before


def test_a_store_that_is_absent_stays_absent(empty: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = picture(empty)
    trace = tmp_path_factory.mktemp("trace") / "t"
    for_each(lambda _, lines: require_nothing_written(lines), traced_in_turn(empty, trace, ABSENT))
    assert picture(empty) == before


def test_reading_commands_leave_the_tree_alone_where_nothing_can_be_traced(root: Path) -> None:
    before = picture(root)
    for words in READING[::5]:
        assert stateline(root, *words.split()).returncode in (0, 1, 2, 3)
    assert picture(root) == before


@pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")
def test_a_turn_waits_for_the_disk_as_often_as_is_documented(empty: Path) -> None:
    trace = empty / "trace"

    def syncs(*words: str) -> int:
        lines = traced(
            empty, trace, "execute", "machine.json", "-i", *words, calls="fsync,fdatasync,sync,syncfs,sync_file_range"
        )
        return sum("sync" in line.partition("(")[0] for line in lines)

    counted = {
        "the first turn of a store": syncs("--id", "x"),
        "the first turn of a run": syncs("--id", "y"),
        "repeatable": syncs("--id", "x"),
        "not repeatable": syncs("--id", "x"),
        "one new object": syncs("--id", "x"),
        "what waits": syncs("--id", "x"),
        "an answer": syncs("--id", "x", "--answer", "true"),
    }
    assert counted == SYNCS
