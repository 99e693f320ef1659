"""Many processes save to one scope while one after the other is killed: what was acknowledged stays, in one chain."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from stress.invariants import lines_of
from stress.oracle import Chain, require
from stress.processes.fork_server import ForkServer

from stateline import Store
from stateline.bundle import naming
from stateline.verify.checker import verify

if TYPE_CHECKING:
    from stress.processes.kills import Say

KEY = "notes:torture"
EVERY = 0.05
"""[s] from kill to kill."""
WAIT = 600.0
"""[s] that a writer waits for its turn: as long as all others may take."""
_STALL = 120.0
"""[s] without a finished save after which something must be wrong."""
_POLL = 0.01
"""[s] between looks at the writers."""
_PAUSE = 0.2
"""[s] that a reader rests after each round, so that the writers have the processors."""


def text_of(writer: int, number: int) -> str:
    """Return the text of a save: long enough to become an object."""
    return f"{writer}:{number} " * 1200


def write(state_dir: str, key: str, durability: Any, writer: int, first: int, last: int) -> None:
    """Save the numbers ``first`` to ``last`` (exclusive), each with its writer and something that becomes an object;
    prints each number and sha once it is acknowledged."""
    scope = Store.open(state_dir, durability=durability).scope(key)
    for number in range(first, last):
        saved = scope.save({"writer": writer, "number": number, "text": text_of(writer, number)}, wait=WAIT)
        # One write: a kill cuts before or after the line, never in it.
        os.write(1, f"{number} {saved.sha256}\n".encode())


def read(state_dir: str, keys: list[str], stop: str) -> None:
    """Read until there is a file ``stop``: heads never go back, what leads to them is whole, and ``verify`` finds
    nothing but residue. Prints ``verified N`` after each round, with the number of snapshots. Raises otherwise."""
    last: dict[str, int] = {}
    while not os.path.exists(stop):
        store = Store.open(state_dir)
        for key in keys:
            # A walk of all would take longer than the saves; the rest is what verify reads.
            walk = store.scope(key).walk()
            newest = [snapshot.seq for snapshot, _ in zip(walk, range(50), strict=False)]
            if newest:
                require(newest[0] >= last.get(key, 0), f"{key} went back from {last.get(key)} to {newest[0]}")
                require(newest == list(range(newest[0], newest[0] - len(newest), -1)), f"{key} has gaps: {newest}")
                last[key] = newest[0]
                head = store.scope(key).load()
                state: Any = store.resolve(head.state)
                require(state["text"] == text_of(state["writer"], state["number"]), f"{head.path} holds something else")
        report = verify(store)
        worse = [f for f in report.findings if f.severity != "residue" and f.code != "no_store"]
        require(report.ok and not worse, f"verify found {worse}")
        os.write(1, f"verified {report.snapshots}\n".encode())
        time.sleep(_PAUSE)


class Writer:
    """A writer that is started again, after its last acknowledged save, whenever it was killed."""

    def __init__(self, server: ForkServer, root: Path, name: int, *, key: str, each: int, durability: str) -> None:
        self.name = name
        self.key = key
        self.killed: Counter[int] = Counter()
        self._nursery = server
        self._each = each
        self._durability = durability
        self._state_dir = root / "state dir"
        self._said = root / f"said {name}"
        self._started = False

    def acknowledged(self) -> list[tuple[int, str]]:
        """(number, sha) of each save that was acknowledged."""
        return [(int(number), sha) for number, sha in lines_of(self._said)]

    def next(self) -> int:
        """The number of the first save that is not acknowledged."""
        with suppress(FileNotFoundError):
            return self._said.read_bytes().count(b"\n")
        return 0

    def is_done(self) -> bool:
        """Return whether it is through; one that died is started again. Raises ``ViolationError`` if it failed by
        itself."""
        code = self._nursery.code(self.name) if self._started else -9
        require(code in (None, 0, -9), f"the writer {self.name} ended with {code}")
        if code == -9:
            args = (str(self._state_dir), self.key, self._durability, self.name, self.next(), self._each)
            self._nursery.start(self.name, self._said, "saves", "write", *args)
            self._started = True
        return code == 0

    def kill(self, *, look: bool) -> dict[str, Any] | None:
        """SIGKILL it if it runs: what was seen then (see ``ForkServer.kill``), or None if it had ended."""
        place = str(self._state_dir / naming.scope_hash(self.key)) if look else ""
        seen = self._nursery.kill(self.name, look=place)
        if seen is None:
            return None
        # The save that was under way may be on the chain although nobody was told.
        self.killed[self.next()] += 1
        if seen.get("held"):
            head = seen["head"] or {}
            seen["moved"] = (head.get("writer"), head.get("number")) == (self.name, self.next())
        return seen


class _Killer:
    """Kills one writer after the other, and counts what it met: half of them were chosen by the dice alone, half held
    the lock a moment before; half are stopped for a look."""

    def __init__(self, server: ForkServer, crew: list[Writer], seed: str) -> None:
        self._nursery = server
        self._crew = crew
        self._dice = Random(seed)
        self.counts: Counter[str] = Counter(kills=0)

    def kill(self) -> None:
        victim, aimed, look = self._dice.choice(self._crew), self._dice.random() < 0.5, self._dice.random() < 0.5
        holder = self._nursery.holder() if aimed else None
        if holder is not None and holder < len(self._crew):
            victim = self._crew[holder]
        seen = victim.kill(look=look)
        if seen is None:
            return
        self.counts["kills"] += 1
        if look:
            self.counts["looked at"] += 1
            half_done = seen["held"] and (seen["temporary"] or seen["mark"] or seen["published"] or seen["moved"])
            self.counts["in a commit"] += bool(half_done)
            for what in ("held", "temporary", "mark", "published", "moved"):
                self.counts[what] += bool(seen.get(what))


def campaign(
    root: Path,
    seed: str,
    *,
    writers: int,
    each: int,
    until: float,
    say: Say,
    durability: str = "full",
    scopes: int = 1,
    readers: int = 0,
    killing: bool = True,
) -> dict[str, Any]:
    """Let ``writers`` processes save ``each`` snapshots to one of ``scopes`` scopes, while ``readers`` read, and one
    writer is killed every ``EVERY`` seconds until ``until`` [monotonic s]; from then on, or without ``killing``, nobody
    is killed. Gives the summary. Raises ``ViolationError``."""
    began = time.monotonic()
    root.mkdir(parents=True)
    keys = [KEY if scopes == 1 else f"{KEY}{number}" for number in range(scopes)]
    with ForkServer.opened() as server:
        crew = [
            Writer(server, root, name, key=keys[name % scopes], each=each, durability=durability)
            for name in range(writers)
        ]
        audience = range(writers, writers + readers)
        for reader in audience:
            said = root / f"said {reader}"
            server.start(reader, said, "saves", "read", str(root / "state dir"), keys, str(root / "stop"))
        killer = _Killer(server, crew, seed)
        _watch(crew, killer, until=until if killing else began, say=say)
        (root / "stop").touch()
        rounds = sum(_rounds(server, root, reader) for reader in audience)
    took = time.monotonic() - began
    summary = {**_judge(root, crew, keys, each), **dict(killer.counts), "durability": durability, "scopes": scopes}
    if readers:
        summary["rounds of readers"] = rounds
    return {**summary, "seconds": round(took, 1)}


def _watch(crew: list[Writer], killer: _Killer, *, until: float, say: Say) -> None:
    """See the writers through to their end."""
    done, changed, due = 0, time.monotonic(), time.monotonic() + EVERY
    while sum([writer.is_done() for writer in crew]) < len(crew):  # every one is asked: asking starts it
        time.sleep(_POLL)
        now = time.monotonic()
        if due <= now < until:
            killer.kill()
            due = max(due + EVERY, now)
        through = sum(writer.next() for writer in crew)
        if through // 500 > done // 500:
            say(f"{through} saves, {dict(killer.counts)}")
        changed = changed if through == done else now
        done = through
        require(now - changed <= _STALL, f"no save was finished in {_STALL:g} s")


def _rounds(server: ForkServer, root: Path, reader: int) -> int:
    """Wait for a reader; how many rounds it made."""
    deadline = time.monotonic() + _STALL
    while (code := server.code(reader)) is None:
        require(time.monotonic() < deadline, f"the reader {reader} does not end")
        time.sleep(_POLL)
    require(code == 0, f"a reader ended with {code}")
    rounds = len(lines_of(root / f"said {reader}"))
    require(rounds > 0, "a reader read nothing")
    return rounds


def _judge(root: Path, crew: list[Writer], keys: list[str], each: int) -> dict[str, Any]:
    """Everything acknowledged is there once, in one chain; what is there besides, a kill explains."""
    state_dir = root / "state dir"
    chains = {key: Chain.read(state_dir, key) for key in keys}
    kills = sum(writer.killed.total() for writer in crew)
    for writer in crew:
        _judge_writer(writer, chains[writer.key], each)
    counts = Counter[str]()
    for key, chain in chains.items():
        texts = {state["writer"]: state for state in chain.states()}
        require(set(texts) == {writer.name for writer in crew if writer.key == key}, f"{key} holds saves of others")
        for state, text in zip(chain.states(), chain.values("/text"), strict=True):
            require(text == text_of(state["writer"], state["number"]), f"a snapshot of {key} holds something else")
        for sha in chain.loose:
            # Whoever dies before the first pointer leaves a first snapshot, which follows nothing.
            follows = chain.parent_of(sha)
            require(
                follows is None or follows in chain.on_chain, f"{sha} is beside the chain and follows nothing on it"
            )
        require(not chain.temporary, f"every writer ended well, and {chain.temporary} was left")
        counts.update(snapshots=len(chain.order), beside=len(chain.loose))
    saves = len(crew) * each
    require(counts["snapshots"] + counts["beside"] <= saves + kills, f"{counts} from {saves} saves and {kills} kills")
    store = Store.open(state_dir)
    report = verify(store)
    worse = [finding for finding in report.findings if finding.severity != "residue"]
    require(report.ok and not worse, f"verify found {worse}")
    require(report.snapshots == counts.total(), f"verify read {report.snapshots} snapshots of {counts}")
    if not kills:
        require(counts["snapshots"] == saves, f"nobody was killed, and there are {counts}")
        require(not report.findings, f"nobody was killed, and verify found {report.findings}")
    return {"writers": len(crew), "saves": saves, **counts, "residue": len(report.findings)}


def _judge_writer(writer: Writer, chain: Chain, each: int) -> None:
    acknowledged = writer.acknowledged()
    require([number for number, _ in acknowledged] == list(range(each)), f"the writer {writer.name} left out saves")
    lost = [sha for _, sha in acknowledged if sha not in chain.on_chain]
    require(not lost, f"acknowledged and lost: {lost}")
    found = Counter(state["number"] for state in chain.states() if state["writer"] == writer.name)
    order = [chain.on_chain[sha] for _, sha in acknowledged]
    require(order == sorted(order), f"the saves of the writer {writer.name} are not in its order")
    for number in range(each):
        times, most = found[number], 1 + writer.killed[number]
        require(1 <= times <= most, f"save {number} of the writer {writer.name} is there {times} times")
    require(found.total() == sum(found[number] for number in range(each)), f"the writer {writer.name} saved more")
