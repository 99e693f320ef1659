"""Stores of many scopes: what a command reads grows with their number and with nothing else, and memory hardly."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stress.corruption.sample_store import call
from stress.oracle import require
from stress.processes.metered import Command, observe

from stateline.bundle import canonical, naming

MIB = 1 << 20
BASE = 60 * MIB
"""Memory that a command may take for itself [bytes]; measured are about 40 MiB."""
EACH = 4096
"""Memory that a command may take for each scope [bytes]."""
SECONDS = 1800.0


def build(root: Path, count: int, say: Callable[[str], None]) -> Path:
    """A state dir with ``count`` runs of one machine, copies of one that was really begun; its path. Written without
    syncs and without the code under test."""
    root.mkdir(parents=True)
    state_dir, machine = root / "state dir", root / "machine.json"
    stages = {"ask": {"human": {"prompt": "Go on?"}}}
    machine.write_text(json.dumps({"stateline": 1, "name": "many", "stages": stages}))
    call(state_dir, "execute", str(machine), "--id", "first", "--no-input", exits=3)
    scope = state_dir / naming.scope_hash("run:first")
    first = json.loads(sorted(scope.glob("state-*"))[0].read_bytes())
    for number in range(count - 2):  # besides the first run and the machine's record
        _clone(state_dir, first, f"run-{number:06}")
        if number % 20_000 == 19_999:
            say(f"{number + 1} scopes made")
    return state_dir


def _clone(state_dir: Path, first: dict[str, Any], run: str) -> None:
    document = first | {"scope": f"run:{run}", "event": first["event"] | {"run": run}}
    data = canonical.encode(document, depth=canonical.FILE_DEPTH)
    sha = canonical.sha256(data)
    name = naming.snapshot_name(document["created_at"], sha)
    place = str(state_dir / naming.scope_hash(document["scope"]))
    os.mkdir(place, 0o700)
    pointer = canonical.encode({"path": name, "sha256": sha, "version": "1"})
    for path, content in ((name, data), ("latest.json", pointer)):
        fd = os.open(f"{place}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, content)
        os.close(fd)


def look(root: Path, state_dir: Path, seconds: float, *, together: bool = False) -> dict[str, Command]:
    """Every command that looks at all scopes, and some that must not; each in a process of its own, or (``together``,
    which is quicker) all in one."""
    place = ["--state-dir", str(state_dir)]
    calls = {
        "scopes": ["scopes"],
        "exec list": ["exec", "list"],
        "verify": ["verify"],
        "exec status": ["exec", "status", "first"],
        "log": ["log", "run:run-000001"],
        "show": ["show", "run:first"],
        "execute": ["execute", str(root / "machine.json"), "--answer", "1", "-i"],
        "run": ["run", "--state-scope", "one", "--set", "a=1"],
    }
    groups = [list(calls)] if together else [[name] for name in calls]
    seen: dict[str, Command] = {}
    for group in groups:
        found = observe(root / "report", [[*calls[name], *place] for name in group], seconds=seconds)
        require(not found.late and len(found.commands) == len(group), f"{group}: {found.said[-500:]}")
        seen |= dict(zip(group, found.commands, strict=True))
    return seen


def judge(seen: dict[str, Command], count: int) -> None:
    """Raise ``ViolationError`` where a command reads, lists or takes more than it may."""
    for name, command in seen.items():
        require(command.code in (0, 2, 3), f"{name} exits with {command.code}: {command.document}")
        whole = name in ("scopes", "exec list", "verify")
        require(command.peak < BASE + EACH * count, f"{name} takes {command.peak} bytes of memory")
        # Pointer and head of each scope, each once, and the lock of each run that is listed; and what belongs to one
        # scope or to the store.
        most = (3 if name == "exec list" else 2) * count + 40 if whole else 60
        require(command.opened <= most, f"{name} opens {command.opened} files for {count} scopes")
        require(command.read <= 2500 * most, f"{name} reads {command.read} bytes for {count} scopes")
        listings = {"scopes": 1, "exec list": 1, "verify": count + 300}.get(name, 4)
        require(command.listed <= listings, f"{name} lists {command.listed} directories")


def campaign(root: Path, *, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Make ``count`` scopes and look at them. Gives the summary. Raises ``ViolationError``."""
    began = time.monotonic()
    state_dir = build(root, count, say)
    seen = look(root, state_dir, SECONDS)
    judge(seen, count)
    figures = {
        name: {"opened": each.opened, "read": each.read, "listed": each.listed, "peak MiB": round(each.peak / MIB)}
        for name, each in seen.items()
    }
    return {"scopes": count, "commands": figures, "seconds": round(time.monotonic() - began, 1)}
