"""Special files where a file should be: commands end in bounded time and memory, and report the cause."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import each
from stress.corruption.sample_store import call, clear
from stress.processes.metered import Command, observe

from stateline.bundle import naming

GIB = 1 << 30
SECONDS = 120.0
"""[s] for a process that takes about one."""
MEMORY = 100 << 20
"""[bytes]; a file of 1 GiB that is read would not fit."""
READ = 1 << 20
"""[bytes] that a command may read of a store of a few KiB."""


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GIB)
    path.chmod(0o600)


def bind(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket may only be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o20600, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root can make a device")


SPARSE = "a sparse file of 1 GiB"
THINGS: dict[str, Callable[[Path], object]] = {
    SPARSE: sparse,
    "a FIFO": lambda path: os.mkfifo(path, 0o600),
    "a socket": bind,
    "a symlink to a device": lambda path: path.symlink_to("/dev/zero"),
    "a symlink to itself": lambda path: path.symlink_to(path.name),
    "a device": device,
    "a directory": lambda path: path.mkdir(mode=0o700),
}


class Hostile:
    """A waiting run in a new store, and the paths of files that can be replaced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state dir"
        self.machine = root / "machine.json"
        stages = {
            "work": {"task": ["sh", "-c", "echo '\"'$(printf %05000d 7)'\"'"], "default_next": "ask"},
            "ask": {"human": {"prompt": "Go on?"}},
        }
        self.machine.write_text(json.dumps({"stateline": 1, "name": "m", "stages": stages}))
        call(self.state, "execute", str(self.machine), "--id", "r", "--no-input", exits=3)
        self.scope = self.state / naming.scope_hash("run:r")
        chain = sorted(self.scope.glob("state-*"))
        sha = json.loads(chain[-1].read_bytes())["objects"]["/outputs/work"]["sha256"]
        self.stored = {
            "store file": self.state / naming.STORE_FILE,
            "pointer": self.scope / naming.POINTER,
            "head": chain[-1],
            "object": self.state / naming.object_path(sha),
            "lock": self.scope / naming.LOCK,
        }

    def stored_commands(self) -> list[list[str]]:
        """Commands that meet what is stored: readers first, then writers, which must change nothing."""
        words = [
            ["verify"],
            ["scopes"],
            ["exec", "list"],
            ["log", "run:r"],
            ["show", "run:r", "--resolve"],
            ["exec", "status", "r"],
            ["repair"],
            ["execute", str(self.machine), "--id", "r", "--answer", "1", "--dry-run"],
            ["execute", str(self.machine), "--id", "r", "--answer", "1"],
        ]
        return [[*each, "--state-dir", str(self.state)] for each in words]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    return Hostile(tmp_path_factory.mktemp("hostile"))


def judged(commands: tuple[Command, ...], what: str, read: int = READ) -> None:
    """Every exit is one of the table, every failure has its code, nothing large was held, and not more than ``read``
    [bytes] was read by one command."""
    for command in commands:
        document: Any = command.document
        assert command.code in (0, 1, 3, 5, 6, 64), (what, command)
        if "error" in document and command.code != 0 and document.keys() == {"error"}:
            assert document["error"]["code"] not in ("internal", "error"), (what, document)
        assert command.peak < MEMORY, (what, command.peak)
        assert command.read < read, (what, command.read)


@each("thing", THINGS)
def test_special_files_in_the_store_are_reported_and_never_read_or_waited_for(
    built: Hostile, tmp_path: Path, thing: str
) -> None:
    aside = tmp_path / "aside"
    for place, path in built.stored.items():
        path.rename(aside)
        try:
            THINGS[thing](path)
            if (place, thing) == ("object", SPARSE):
                os.truncate(path, GIB // 4)  # only its digest tells what it is, so it is read to its end
            words = built.stored_commands()
            if (place, thing) == ("lock", SPARSE):
                words.pop()  # the lock's content means nothing, so the answer would be taken
            elif (place, thing) == ("object", SPARSE):
                words = [words[0], words[4], words[6]]
            seen = observe(tmp_path / "report", words, seconds=SECONDS)
            what = f"{thing} as {place}: {seen.said[-800:]}"
            assert not seen.late, what
            assert len(seen.commands) == len(words), what
            judged(seen.commands, what, READ + (GIB if (place, thing) == ("object", SPARSE) else 0))
            codes = {each[0]: command.code for each, command in zip(words, seen.commands, strict=True)}
            harmless = (place, thing) == ("lock", SPARSE)
            assert (codes["verify"], codes["repair"]) == ((0, 0) if harmless else (5, 5)), what
            assert seen.commands[-1].code in ((0,) if harmless else (5, 6)), what
        finally:
            clear(path)
            aside.rename(path)
        call(built.state, "verify", exits=0)


@each("thing", THINGS)
def test_special_files_in_place_of_a_users_file_are_reported(built: Hostile, tmp_path: Path, thing: str) -> None:
    hostile = tmp_path / "hostile.json"
    THINGS[thing](hostile)
    try:
        place = ["--state-dir", str(tmp_path / "state dir")]
        words = [
            ["machine", "check", str(hostile)],
            ["execute", str(hostile)],
            ["execute", str(hostile), "--dry-run"],
        ]
        if thing != "a FIFO":
            # A pipe that is named as input is waited for, as the shell's `<(...)` needs it.
            words.append(["execute", str(built.machine), "--input", f"@{hostile}"])
            words.append(["run", "--state-scope", "x", "--refine-file", str(hostile)])
        seen = observe(tmp_path / "report", [[*each, *place] for each in words], seconds=SECONDS)
        what = f"{thing}: {seen.said[-800:]}"
        assert not seen.late, what
        assert len(seen.commands) == len(words), what
        judged(seen.commands, what, 40 << 20)
        refused = [command.code for command in seen.commands if not command.document.get("plan")]
        assert set(refused) <= {1, 6, 64}, what
        assert not (tmp_path / "state dir").exists()
    finally:
        clear(hostile)
