"""Real commands whose system calls fail: strace lets the n-th of a kind, or all from the n-th on, give an error.

A command is watched once, to see which of its calls have to do with the state dir; only these are made to fail, so that
the start of the interpreter is left out of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
from stress.faults.cases import Verdict, copy
from stress.invariants import chain_of, keys_of, repair_again, require_next_save, require_only_residue
from stress.oracle import Picture, ViolationError, require
from stress.scenarios import SCENARIOS, SHARED, Place

from stateline.bundle import naming
from stateline.errors import StatelineError
from stateline.service.execute import execute
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.store.local.filesystem import Filesystem

CALLS = (
    *(
        "fsync",
        "write",
        "openat",
        "linkat",
        "renameat",
        "renameat2",
        "rename",
        "unlinkat",
        "mkdirat",
        "mkdir",
        "fchmod",
    ),
    *("close", "flock", "newfstatat", "fstat", "statx", "getdents64", "read", "lseek", "readlink", "readlinkat"),
)
ERRORS = ("EIO", "ENOSPC", "EMFILE", "EACCES")
WAYS = {"once": "{}", "sticky": "{}+"}
FEW = 3
"""Number of EINTRs in a row: Python retries after each (PEP 475), so an endless series would never return."""
DOCUMENTED = (0, 1, 2, 3, 4, 5, 6, 64)
_DEADLINE = 60.0
"""[s] for one command; far above what any of them takes."""
_STRACE = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", os.devnull]
_PROGRAM = [sys.executable, "-m", "stateline"]
_SCENARIOS = str(Path(__file__).resolve().parents[1] / "scenarios.py")


class Target(msgspec.Struct, frozen=True):
    """A program to disturb. ``{files}`` in a word is where the machine file lies, ``{state}`` the state dir.
    ``scenario`` is what has happened before; ``prints`` how stdout is to be read."""

    words: tuple[str, ...]
    scenario: str = "library"
    prints: str = "document"


def _command(*words: str, scenario: str = "library") -> Target:
    return Target((*_PROGRAM, *words, "--state-dir", "{state}", "--format", "json"), scenario)


def _told(name: str) -> Target:
    return Target((sys.executable, _SCENARIOS, name, "{state}", "act"), name, "notes")


TARGETS = {
    "execute, a turn": _command("execute", "{files}/machine.json", "-i", "--id", "begun"),
    "execute, a new run": _command("execute", "{files}/machine.json", "-i", "--id", "new"),
    "run --state-scope": _command("run", "--state-scope", "docs", "--refine-text", "Be kind."),
    "repair --apply": _command("repair", "--apply", scenario="repair"),
    "verify": _command("verify"),
    "log": _command("log", "notes:scenario", "-p"),
    "exec rm": _command("exec", "rm", "scenario"),
    **{f"scenario: {name}": _told(name) for name in SHARED if name not in ("turn", "repair")},
}


class Shot(msgspec.Struct, frozen=True):
    """The call ``call`` number ``at`` (from 1) of a command gives ``error``: ``once``, ``sticky`` (from then on), or a
    few times."""

    call: str
    at: int
    error: str
    way: str

    def words(self) -> list[str]:
        """Return the options for strace."""
        when = f"{self.at}..{self.at + FEW - 1}" if self.way == "few" else WAYS[self.way].format(self.at)
        return ["-e", f"trace={self.call}", "-e", f"inject={self.call}:error={self.error}:when={when}"]


class Done(msgspec.Struct, frozen=True):
    """A shot, and what came of it."""

    name: str
    shot: Shot
    verdict: Verdict


def unusable() -> str:
    """Why strace cannot be used here, or ""."""
    strace = shutil.which("strace")
    if sys.platform != "linux" or strace is None:
        return "strace is not installed"
    probe = subprocess.run(
        [strace, "-f", "--seccomp-bpf", "-o", os.devnull, "-e", "trace=fsync", "true"], capture_output=True, check=False
    )
    return f"strace cannot trace here: {probe.stderr.decode(errors='replace')[:100]}" if probe.returncode else ""


def _library(place: Place) -> None:
    """Lists, a context, a run that is done and one that is begun, and the file of their machine."""
    for name in ("long lists", "refine", "turn"):
        SCENARIOS[name].prepare(place)
        SCENARIOS[name].act(place)
    machine = str(place.root / "machine.json")
    execute(place.open(), ExecuteOptions(machine=machine, run="begun", call=CallOptions(one_turn=True)))


class CommandRunner:
    """Runner of commands, one after the other, each on a fresh copy below the new directory ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = root / "files"
        self.files.mkdir(parents=True)
        self.state = str(root / "state dir")
        self._before: dict[str, tuple[str, Picture, dict[str, str]]] = {}

    def shots(self, name: str) -> Iterator[Shot]:
        """All that can be tried on a command."""
        for call, numbers in self._touching(name).items():
            for at in numbers:
                for error in ERRORS:
                    yield Shot(call, at, error, "once")
                    yield Shot(call, at, error, "sticky")
                yield Shot(call, at, "EINTR", "once")
                yield Shot(call, at, "EINTR", "few")

    def fire(self, name: str, shot: Shot) -> Done:
        """Run the command with that error, and judge."""
        before, keys = self._renewed(name)
        done = self._run(name, [*_STRACE, *shot.words()])
        target = TARGETS[name]
        wrong: list[str] = []
        outcome = str(done.returncode)
        checks = (
            lambda: _require_output(done, target, shot),
            lambda: _require_kept(self.state, target, before, done.stdout),
            lambda: _require_usable(self.state, target, keys),
        )
        for check in checks:
            try:
                check()
            except ViolationError as error:
                wrong.append(str(error))
            except (StatelineError, OSError) as error:
                wrong.append(f"{type(error).__name__} afterwards: {error}")
        return Done(name, shot, Verdict(outcome, "; ".join(wrong)))

    def _renewed(self, name: str) -> tuple[Picture, dict[str, str]]:
        """A fresh copy of what the command begins with; its picture, and its scopes."""
        scenario = TARGETS[name].scenario
        if scenario not in self._before:
            base = str(self.root / f"before {len(self._before)}")
            place = Place(base, self.files, Filesystem, lambda note: None)
            (_library if scenario == "library" else SCENARIOS[scenario].prepare)(place)
            found = Picture.of(base) if os.path.isdir(base) else Picture({}, frozenset())
            self._before[scenario] = base, found, keys_of(base)
        base, found, keys = self._before[scenario]
        shutil.rmtree(self.state, ignore_errors=True)
        if os.path.isdir(base):
            copy(base, self.state)
        return found, keys

    def _run(self, name: str, under: list[str], *more: str) -> subprocess.CompletedProcess[bytes]:
        words = [word.format(files=self.files, state=self.state) for word in TARGETS[name].words] + [*more]
        # No files of compiled modules, and always the same order: the n-th call is the n-th the next time too.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        return subprocess.run(
            [*under, *words],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE,
            check=False,
        )

    def _touching(self, name: str) -> dict[str, list[int]]:
        """The numbers of a command's calls, by kind, that have to do with the state dir."""
        self._renewed(name)
        trace = self.root / "trace"
        calls = ",".join(f"?{call}" for call in CALLS)
        done = self._run(name, ["strace", "-f", "-y", "-qq", "-s", "4096", "-o", str(trace), "-e", f"trace={calls}"])
        require(done.returncode in DOCUMENTED, f"{name} ends with {done.returncode} undisturbed: {done.stderr!r}")
        counted: Counter[str] = Counter()
        touching: dict[str, list[int]] = {}
        first = ""
        for line in trace.read_text(errors="replace").splitlines():
            process, _, rest = line.partition(" ")
            first = first or process
            found = re.match(r" *(\w+)\(", rest)
            if process != first or found is None:
                continue
            counted[found[1]] += 1
            if self.state in rest:
                touching.setdefault(found[1], []).append(counted[found[1]])
        return touching


def _require_output(done: subprocess.CompletedProcess[bytes], target: Target, shot: Shot) -> None:
    """The exit code is a documented one, and the words are whole."""
    said = done.stderr.decode(errors="replace")
    # A scenario is a plain program: where its last words cannot be written, Python itself ends with 120.
    own = {120} if target.prints == "notes" and shot.call in ("write", "close") and shot.way != "once" else set()
    require(done.returncode in {*DOCUMENTED, *own}, f"exit code {done.returncode}: {said[-300:]}")
    # Where writing fails for good, so does writing to stdout; where opening does, Python reads no more of itself.
    mute = shot.call in ("write", "close") and shot.way != "once"
    if target.prints == "notes":
        last = said.strip().splitlines()[-1:] or [""]
        mute = mute or shot.way != "once"
        require(mute or done.returncode == 0 or last[0].startswith("stateline.errors."), f"ended with {last[0][:300]}")
        return
    require("Traceback" not in said and "Exception ignored" not in said, f"a traceback: {said[-600:]}")
    if mute and not done.stdout:
        return
    lines = done.stdout.splitlines()
    require(len(lines) == 1, f"{len(lines)} lines on stdout: {done.stdout[:300]!r} {said[-300:]}")
    document = json.loads(lines[0])
    error = document.get("error")
    if error is not None:
        require(bool(error["message"] and error["hint"]), f"says too little: {error}")
        # While every read fails, Python cannot load its own modules either.
        unloadable = shot.call == "read" and shot.way != "once" and error["message"].startswith("OSError")
        require(error["code"] != "internal" or unloadable, f"reported as a bug: {error}")
    if target.scenario == "library":
        _require_no_damage(done.returncode, document, target)


def _require_no_damage(code: int, document: Any, target: Target) -> None:
    """Nothing was damaged, so nothing may be called so but what could not be read."""
    found = [finding for finding in document.get("findings", []) if finding["severity"] == "damage"]
    codes = {finding["code"] for finding in found}
    require(codes <= {"unreadable", "orphaned"}, f"called damaged, and only unreadable: {found}")
    require(code not in (5, 6) or "unreadable" in codes, f"exit code {code} where nothing is damaged: {document}")


def _require_kept(state: str, target: Target, before: Picture, said: bytes) -> None:
    """All that was acknowledged is there: before, and by what was printed."""
    found = Picture.of(state) if os.path.isdir(state) else Picture({}, frozenset())
    shas = set(found.files.values())
    removes = any(word in ("rm", "removal") for word in target.words)
    for path, sha in before.immutable().items():
        gone = path not in found.files
        if gone and (removes and not path.startswith(naming.OBJECTS)):
            continue
        require(
            sha in shas if target.scenario == "repair" else found.files.get(path) == sha, f"{path} is altered or gone"
        )
    if target.scenario == "repair":
        return
    scopes = [path for path in {*found.directories, *before.directories} if naming.is_sha256(path)]
    chains = {scope: chain_of(state, scope) for scope in scopes}
    heads = {scope: _head_before(before, scope) for scope in chains}
    for note in _notes(said) if target.prints == "notes" else _acknowledged(said):
        scope, sha = note
        if sha:
            heads[scope] = sha
        else:
            heads.pop(scope, None)
    known = {sha for chain in chains.values() for sha in chain}
    for scope, sha in heads.items():
        chain = chains.get(scope, []) if scope else known
        require(not sha or sha in chain or (removes and not chain), f"acknowledged and lost: {sha}")


def _head_before(before: Picture, scope: str) -> str:
    """Every snapshot that was there and is lasting was acknowledged; the chain must hold the newest of them."""
    names = sorted(path for path in before.immutable() if path.startswith(f"{scope}/"))
    return before.files[names[-1]] if names else ""


def _notes(said: bytes) -> Iterator[tuple[str, str]]:
    for line in said.splitlines():
        note = json.loads(line)
        if note["what"] in ("head", "removed"):
            yield note["scope"], note["sha256"]


def _acknowledged(said: bytes) -> Iterator[tuple[str, str]]:
    for line in said.splitlines():
        document = json.loads(line)
        if "head" in document:
            yield "", document["head"]


def _require_usable(state: str, target: Target, keys: dict[str, str]) -> None:
    """Others go on, and find residue at most."""
    if target.scenario == "repair":
        repair_again(state)
    require_only_residue(state, repaired=target.scenario == "repair")
    require_next_save(state, {**keys, naming.scope_hash("notes:scenario"): "notes:scenario"})


def together(stages: list[CommandRunner], work: list[tuple[str, Shot]], until: float) -> Iterator[Done]:
    """All of ``work``, one command at a time on each stage, until ``until`` [monotonic s]."""
    waiting: SimpleQueue[tuple[str, Shot]] = SimpleQueue()
    for each in work:
        waiting.put(each)

    def play(stage: CommandRunner, results: SimpleQueue[Done | None]) -> None:
        try:
            while time.monotonic() < until:
                results.put(stage.fire(*waiting.get_nowait()))
        except Empty:
            pass
        finally:
            results.put(None)

    results: SimpleQueue[Done | None] = SimpleQueue()
    with ThreadPoolExecutor(len(stages)) as pool:
        players = [pool.submit(play, stage, results) for stage in stages]
        left = len(players)
        while left:
            done = results.get()
            if done is None:
                left -= 1
            else:
                yield done
        for player in players:
            player.result()
