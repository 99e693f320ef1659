"""A scenario recorded, and judged after every power loss; and what came after it, judged in the same way."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock

import msgspec
from stress.oracle import ViolationError, sha256
from stress.power.disk import Acknowledgement, Image, ModelFs, Step
from stress.power.judge import STATE_DIR, Before, Judge, Promises, chain_of, intact_snapshots, observe_effects
from stress.power.losses import Crash, Losses, fingerprint, points
from stress.scenarios import Note, Place, Scenario


class Record(msgspec.Struct, frozen=True):
    """Record of a scenario: the disk before it, each step, the inodes' modes, and the earlier data that must last."""

    base: Image
    log: list[Step]
    modes: dict[int, int]
    before: Before


class Count(msgspec.Struct):
    """``steps`` is how long the scenario is, ``points`` at how many moments of it, and of what came after, the power
    was taken. ``crashes`` is how many disks were come to, ``distinct`` how many of them differ in a name or a byte,
    ``bare`` not counting bytes of temporary files. ``judged`` were all that differ in that or in what had been
    promised; ``twice`` of those came of a second crash, ``unordered`` were left by no journal."""

    steps: int = 0
    points: int = 0
    crashes: int = 0
    distinct: int = 0
    bare: int = 0
    judged: int = 0
    twice: int = 0
    unordered: int = 0


@contextmanager
def predictable(first: int = 0) -> Iterator[None]:
    """The store draws its names from a counter: the same scenario gives the same disk each time."""
    counter = itertools.count(first)
    with mock.patch.object(os, "urandom", lambda size: (next(counter) % 256**size).to_bytes(size, "big")):
        yield


def record(scenario: Scenario, root: Path) -> Record:
    """Let a scenario happen."""
    image = Image.empty(os.path.dirname(STATE_DIR))
    log: list[Step] = []
    with predictable():
        prepared = ModelFs(image)
        scenario.prepare(Place(STATE_DIR, root, lambda: prepared, lambda note: None))
        base = image.copy()
        before = _before(base.tree(STATE_DIR), damaged=scenario.damaged)
        fs = ModelFs(image, log)

        def listener(note: Note) -> None:
            log.append(Acknowledgement(note))

        with observe_effects(listener):
            scenario.act(Place(STATE_DIR, root, lambda: fs, listener, scenario.began))
    return Record(base, log, dict(image.modes), before)


def _before(tree: dict[str, bytes], *, damaged: bool) -> Before:
    if not damaged:
        heads = [path.partition("/")[0] for path in tree if path.endswith("/latest.json")]
        return Before({scope: [link.sha256 for link in chain_of(tree, scope)] for scope in heads})
    # A pointer that can be read is no loss, and what is half written is nobody's.
    mine = {path: data for path, data in tree.items() if data and "/.tmp-" not in path}
    lasting = (data for path, data in mine.items() if not (path.endswith("/latest.json") and data.endswith(b"}")))
    return Before(intact_snapshots(tree), bytes=frozenset(map(sha256, lasting)))


class Trial:
    """Judges the crashes of a scenario. ``limit`` images for each crash; every ``again``-th of the disks that were come
    to is crashed a second time, while its reader continues (0: none). ``shuffled``: in a random order, which finds a
    violation early that only late crashes show."""

    def __init__(self, scenario: Scenario, rng: Random, *, limit: int, again: int = 0, shuffled: bool = False) -> None:
        self.scenario = scenario
        self.rng = rng
        self.limit = limit
        self.again = again
        self.shuffled = shuffled
        self.count = Count()
        self.seen: set[bytes] = set()
        self.disks: set[bytes] = set()
        self.bare: set[bytes] = set()
        self.resumed: set[str] = set()

    def run(self) -> Count:
        """All of it. Raises ``ViolationError`` with the scenario's steps at the first broken promise."""
        with tempfile.TemporaryDirectory() as root:
            found = record(self.scenario, Path(root))
            self.count.steps = len(found.log)
            self.count.points += points(found.log)
            losses = Losses(found.base, found.log, self.limit, self.rng)
            crashes = losses.crashes(found.modes)
            if self.shuffled:
                every = list(crashes)
                crashes = iter(self.rng.sample(every, len(every)))
            for crash in crashes:
                self._first(crash, found, Path(root))
        return self.count

    def _is_new(self, crash: Crash, promises: Promises, ordered: bool, *, again: bool = False) -> bool:
        self.count.crashes += 1
        tree = crash.image.tree(STATE_DIR)
        case = fingerprint(tree, promises.key(), ordered, again)
        if case in self.seen:
            return False
        self.seen.add(case)
        self.disks.add(fingerprint(tree))
        self.bare.add(fingerprint({path: b"" if "/.tmp-" in path else data for path, data in tree.items()}))
        self.count.judged += 1
        self.count.distinct, self.count.bare = len(self.disks), len(self.bare)
        self.count.unordered += not crash.ordered
        return True

    def _first(self, crash: Crash, found: Record, root: Path) -> None:
        promises = Promises(found.before, crash.told, crash.coming)
        if not self._is_new(crash, promises, crash.ordered):
            return
        twice = self.again and self.count.judged % self.again == 0
        log: list[Step] | None = [] if twice else None
        judge = Judge(crash.image, promises, root, repairing=self.scenario.damaged, ordered=crash.ordered)
        try:
            chains = judge.look()
            with predictable(1 << 32):
                if self._is_to_be_resumed(chains, promises):
                    judge.resume(self.scenario.resume)
                after = judge.go_on(chains, log)
        except Exception as error:
            raise ViolationError(self._report(crash, found.log, error)) from error
        if log is not None and not judge.damaged:
            # What a removal took away that was under way is promised no more.
            kept = {
                name: scope for name, scope in promises.kept.items() if scope != promises.going() or chains.get(scope)
            }
            second = Record(crash.image, log, dict(after.modes), Before(chains, kept, found.before.bytes))
            self._second(second, root, self._report(crash, found.log, None), crash.ordered)

    def _is_to_be_resumed(self, chains: dict[str, list[str]], promises: Promises) -> bool:
        """Once for each state of the chains, and for one in ten besides: what a scenario continues from are its
        heads."""
        case = repr((sorted(chains.items()), promises.effects))
        new = case not in self.resumed
        self.resumed.add(case)
        return new or self.rng.random() < 0.1

    def _second(self, found: Record, root: Path, before: str, ordered: bool) -> None:
        self.count.points += points(found.log)
        losses = Losses(found.base, found.log, self.limit, self.rng)
        for crash in losses.crashes(found.modes):
            promises = Promises(found.before, crash.told, crash.coming)
            if not self._is_new(crash, promises, ordered and crash.ordered, again=True):
                continue
            self.count.twice += 1
            ordered_twice = ordered and crash.ordered
            judge = Judge(crash.image, promises, root, repairing=self.scenario.damaged, ordered=ordered_twice)
            judge.damaged = False
            try:
                chains = judge.look()
                with predictable(1 << 40):
                    judge.go_on(chains)
            except Exception as error:
                raise ViolationError(f"{before}\nand again, {self._report(crash, found.log, error)}") from error

    def _report(self, crash: Crash, log: list[Step], error: Exception | None) -> str:
        lines = [f"{self.scenario.name}: the power went after step {crash.at} of {len(log)}"]
        lines += [f"  {at}: {_short(step)}" for at, step in enumerate(log[: crash.at])][-12:]
        tree = crash.image.tree(STATE_DIR)
        lines += ["  what was left:", *(f"    {path} {data[:40]!r} ({len(data)})" for path, data in tree.items())]
        if error is not None:
            lines += [f"{type(error).__name__}: {error}"]
        return "\n".join(lines)


def _short(step: Step) -> str:
    text = repr(step)
    return text if len(text) < 200 else f"{text[:200]}..."
