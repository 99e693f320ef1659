"""Cutting the power of writers: they are started, heard, and outlive the file system that they write to."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO, Any

import msgspec
from stress.invariants import Acknowledged
from stress.oracle import require
from stress.power import crash_writer
from stress.power.crash_writer import Ending, Orders
from stress.power.images import Image, power_off
from stress.scenarios import Note

from stateline.bundle.naming import scope_hash
from stateline.store.protocol import FULL

PATIENCE = 120.0
"""[s] after which a writer must have ended, with power or without."""
TYPED = ("storage", "durability_unknown")
"""Errors that a writer may meet when the power goes."""


class Cut(msgspec.Struct, frozen=True):
    """When the power goes: ``how`` is ``moment`` (``seconds`` after the writers were prepared), ``acknowledgement``
    (right after that many, ``after``) or ``call`` (the writer does it itself, before its call ``at``)."""

    how: str
    seconds: float
    flag: int
    at: int = 0
    after: int = 0


class Crash(msgspec.Struct, frozen=True):
    """One crash: ``heard`` heads were acknowledged, ``endings`` says how the writers ended."""

    cut: Cut
    heard: int
    endings: Counter[str]


class Usual(msgspec.Struct, frozen=True):
    """Costs of an undisturbed scenario: calls on the seam, acknowledgements, time [s]."""

    calls: int
    notes: int
    seconds: float


class Switch:
    """The power of an image, as it is cut from outside; the second time nothing happens."""

    def __init__(self, image: Image, flag: int) -> None:
        self.image = image
        self.flag = flag
        self.is_off = False

    def off(self) -> None:
        if not self.is_off:
            self.is_off = True
            # The writer may have done it: what is off may refuse to be opened.
            with contextlib.suppress(OSError):
                power_off(str(self.image.switch), self.flag)


class Crew:
    """Writers that speak into one pipe."""

    def __init__(self, crew: list[Orders], errors: IO[bytes]) -> None:
        self._ear, mouth = os.pipe()
        self._rest = b""
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for orders in crew:
                words = [sys.executable, crash_writer.__file__, msgspec.json.encode(orders).decode()]
                self.processes.append(subprocess.Popen(words, stdout=mouth, stderr=errors))
        finally:
            os.close(mouth)

    def hear(self, until: float) -> list[Note | Ending] | None:
        """Return new messages, waiting until ``until`` [monotonic s] at most; None when all writers have ended."""
        ready, _, _ = select.select([self._ear], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return []
        data = os.read(self._ear, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_said(line) for line in lines]

    def end(self) -> list[int]:
        """Their exit codes; whoever still lives is killed."""
        for process in self.processes:
            # Who has closed the pipe is about to end.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        self.close()
        return [process.returncode for process in self.processes]

    def close(self) -> None:
        """Kill whoever still lives, and listen no more."""
        for process in self.processes:
            process.kill()
            process.wait()
        if self._ear >= 0:
            os.close(self._ear)
            self._ear = -1


def _said(line: bytes) -> Note | Ending:
    kind = json.loads(line)["what"]
    return msgspec.json.decode(line, type=Note if kind in ("head", "kept", "removed") else Ending)


@contextlib.contextmanager
def _working(crew: list[Orders]) -> Iterator[tuple[Crew, IO[bytes]]]:
    with tempfile.TemporaryFile() as errors:
        writers = Crew(crew, errors)
        try:
            yield writers, errors
        finally:
            writers.close()


def undisturbed(orders: Orders) -> Usual:
    """Let a scenario be told to its end, and measure it. Raises ``ViolationError`` if that fails."""
    notes, began, ending = 0, 0.0, None
    with _working([orders]) as (crew, errors):
        until = time.monotonic() + PATIENCE
        while (said := crew.hear(until)) is not None and time.monotonic() < until:
            for what in said:
                if isinstance(what, Ending):
                    began, notes = (time.monotonic(), 0) if what.what == "prepared" else (began, notes)
                    ending = what
                else:
                    notes += 1
        seconds = time.monotonic() - began
        codes = crew.end()
        require(ending is not None and ending.what == "done", f"{orders.scenario} ends with {codes}: {_told(errors)}")
    assert ending is not None
    return Usual(ending.calls, notes, seconds)


def struck(image: Image, crew: list[Orders], acknowledged: Acknowledged, cut: Cut) -> Crash:
    """Start writers, cut their power, hear them to their end. Raises ``ViolationError`` for a writer that ends
    otherwise than at the end of its scenario or with an error that fits.

    On ext4 nothing is a promise that is said after the cut by several writers, or by any whose disk was stopped under
    the file system. They live on, which nobody does in a power loss; and where another's sync, or the journal's own
    thread, met the failed commit first, Linux tells them of a sync that was not done (docs/reliability.md). What is
    said before the cut stands in the pipe before it.
    """
    deaf = image.kind.system == "ext4" and (len(crew) > 1 or image.kind.way == "disk")
    heard, notes, prepared, endings = 0, 0, 0, []
    switch = Switch(image, cut.flag)
    with _working(crew) as (writers, errors):
        last = time.monotonic() + PATIENCE
        moment = last
        while (said := writers.hear(min(moment, last))) is not None:
            for what in said:
                if isinstance(what, Note):
                    if deaf and switch.is_off:
                        continue
                    acknowledged.apply(what)
                    heard += what.what == "head"
                    notes += prepared > 0
                    if cut.after and notes == cut.after and prepared:
                        switch.off()
                elif what.what == "prepared":
                    prepared += 1
                    if cut.how == "moment" and prepared == 1:
                        moment = time.monotonic() + cut.seconds
                elif what.what == "cut":
                    switch.is_off = True
                else:
                    endings.append(what)
            if time.monotonic() >= moment:
                switch.off()
                moment = last
            require(time.monotonic() < last, f"a writer neither ends nor speaks after {PATIENCE:g} s")
        codes = writers.end()
        switch.off()
        told = _told(errors)
    require(len(endings) == len(crew) and not told, f"writers ended with {codes} and {endings}: {told}")
    fitting = (*TYPED, "integrity") if crew[0].scenario == "repair" else TYPED
    odd = [ending for ending in endings if ending.what == "error" and ending.name not in fitting]
    require(not odd, f"writers met {odd}")
    return Crash(cut, heard, Counter(ending.name or ending.what for ending in endings))


def command_line(image: Image, state_dir: Path, acknowledged: Acknowledged, cut: Cut, rng: Random) -> Crash:
    """Call ``stateline`` again and again until the power is cut, and once after that. Raises ``ViolationError`` for a
    call that ends otherwise than documented."""
    stages: dict[str, Any] = {
        "work": {"task": ["/bin/echo", json.dumps("x" * 9000)], "repeatable": True, "default_next": "again"},
        "again": {"task": ["/bin/echo", '"y"'], "repeatable": True, "default_next": "work"},
    }
    switch = Switch(image, cut.flag)
    heard, endings = 0, Counter[str]()
    with tempfile.TemporaryDirectory() as root:
        machine = Path(root) / "machine.json"
        machine.write_text(json.dumps({"stateline": 1, "name": "doomed", "stages": stages}))
        last = time.monotonic() + cut.seconds
        while True:
            words = ["execute", str(machine), "-i", "--id", "doomed", "--no-input"]
            process = _call(state_dir, words)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, last - time.monotonic()))
                over = time.monotonic() >= last
                was_off = switch.is_off
                if over:
                    switch.off()
                out, told = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
                process.wait()
            document = json.loads(out)
            code = (document.get("error") or {}).get("code", "advanced")
            require(b"Traceback" not in told, told.decode(errors="replace"))
            require(code in (*TYPED, "advanced"), f"{words} gives {document} with {process.returncode}")
            require(process.returncode == (0 if code == "advanced" else 1), f"{words} exits with {process.returncode}")
            endings[code] += 1
            if code == "advanced":
                heard += 1
                acknowledged.apply(Note("head", scope_hash("run:doomed"), "", document["head"], FULL))
            if was_off or (over and rng.random() < 0.5):
                return Crash(cut, heard, endings)


def _call(state_dir: Path, words: list[str]) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "stateline", *words, "--state-dir", str(state_dir), "--format", "json"]
    return subprocess.Popen(
        program,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=str(Path(words[1]).parent),
    )


def _told(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace")[-2000:]
