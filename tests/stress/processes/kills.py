"""Runs whose calls die of SIGKILL at random moments, until they are complete all the same.

The moments are spread over the usual duration of a call, some of them right at its start. In half of the cases the
task dies as well, in the others it lives on as an orphan. After every call the whole store is looked at.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from stress import runs as chains
from stress.oracle import require
from stress.processes.sample_workflow import Ended, SampleWorkflow, children_of
from stress.processes.task import output_of

from stateline import Store
from stateline.store.snapshot import Snapshot

Say = Callable[[str], None]

_SHARES = (0.1, 0.3, 0.6)
"""Shares of the kills within the first 30 ms, anywhere in a call, and late in it, when Python has started."""
_MOST = 40
"""Kills that one run takes before it is left alone, so that every run is seen to its end."""
_SWEPT = 100
"""The same for a run that is swept."""
STEPS = (
    "?rename,?renameat,renameat2",
    "?link,linkat",
    "fsync",
    "?unlink,unlinkat",
    "write",
    "fchmod",
    "mkdirat",
    "?mkdir",
)
"""The system calls of which a commit consists, and a call's writes to its task and to stdout; names that only some
systems have with a question mark. strace counts each name for itself."""
_TIMED = 3
"""Turns that are timed."""


class Reference(msgspec.Struct, frozen=True):
    """Final state of an undisturbed run, and durations [s]: of the whole run, and of one turn."""

    state: bytes
    resolved: bytes
    whole: float
    turn: float


class Tally(msgspec.Struct):
    """Totals of a suite. ``kills`` counts processes that died of SIGKILL, ``struck`` what they were at;
    ``groups`` is how many tasks died with them. ``unknown`` counts calls that found an effect with an unknown outcome,
    ``retries`` and ``answers`` what was said of it; ``overlapped`` attempts that ran again after a kill."""

    runs: int = 0
    calls: int = 0
    kills: int = 0
    groups: int = 0
    unknown: int = 0
    retries: int = 0
    answers: int = 0
    tasks: int = 0
    overlapped: int = 0
    struck: Counter[str] = msgspec.field(default_factory=Counter)
    residue: Counter[str] = msgspec.field(default_factory=Counter)


def reference(root: Path, *, repeatable: bool) -> Reference:
    """Run the machine undisturbed, and time some turns of another run."""
    workflow = SampleWorkflow.build(root, repeatable=repeatable)
    began = time.monotonic()
    ended = Ended.of(workflow.start(*workflow.whole, call=0))
    whole = time.monotonic() - began
    require(ended.code == 0, f"the undisturbed run ended with {ended}")
    began = time.monotonic()
    for _ in range(_TIMED):
        ended = Ended.of(workflow.start("execute", "machine.json", "-i", "--id", "turns", call=1))
        require(ended.code == 0, f"an undisturbed turn ended with {ended}")
    turn = (time.monotonic() - began) / _TIMED
    store = Store.open(workflow.state_dir)
    head = store.scope("run:whole").load()
    return Reference(chains.state_bytes(head), chains.resolved_bytes(store, head), whole, turn)


def campaign(
    root: Path, seed: str, *, repeatable: bool, kills: int, until: float, say: Say, points: bool = False
) -> dict[str, Any]:
    """Disturb run after run until there were ``kills`` kills, or until ``until`` [monotonic s]. Gives the summary.

    With ``points`` the kills come not at random moments but at one system call after the other (needs strace).

    Raises :class:`~stress.invariants.ViolationError` at the first broken invariant; the place is then left as it is.
    """
    began = time.monotonic()
    wanted = reference(root / "reference", repeatable=repeatable)
    kind = Sweep if points else Trial
    tally = disturb(lambda at, rng, tally: kind(at, rng, wanted, tally, repeatable), root, seed, (kills, until), say)
    return {**msgspec.to_builtins(tally), "seconds": round(time.monotonic() - began, 1)}


def disturb(
    trial: Callable[[Path, Random, Tally], Trial], root: Path, seed: str, most: tuple[int, float], say: Say
) -> Tally:
    """One trial after the other, until there were so many kills or that time [monotonic s] has come.

    Raises :class:`~stress.invariants.ViolationError` at the first broken invariant; the place is then left as it is.
    """
    tally, (kills, until) = Tally(), most
    while tally.kills < kills and time.monotonic() < until:
        number = tally.runs
        trial(root / f"run {number}", Random(f"{seed}:{number}"), tally).run(kills, until)
        tally.runs += 1
        say(f"{tally.kills} kills, {tally.runs} runs, {tally.calls} calls")
    return tally


class Trial:
    """One run, from nothing to its end, with what is known of it from outside."""

    kind: type[SampleWorkflow] = SampleWorkflow

    def __init__(self, root: Path, rng: Random, wanted: Reference, tally: Tally, repeatable: bool) -> None:
        self.workflow = self.kind.build(root, repeatable=repeatable)
        self.rng = rng
        self.wanted = wanted
        self.tally = tally
        self.repeatable = repeatable
        self.id = "torture" if rng.random() < 0.5 else None
        self.turns = rng.choice((0.0, 0.5, 1.0))
        self.left = rng.randint(5, _MOST)
        self.sleep = rng.choice((0.0, 0.03))
        self.call = 0
        self.chain: list[Snapshot] = []
        self.settled: dict[str, int] = {}
        self.retries = 0
        self.residue: Counter[str] = Counter()
        self.before: Counter[str] = Counter()

    def run(self, kills: int, until: float) -> None:
        """Call, kill, look, until the run is complete; the last calls are left alone."""
        while self._status() != "complete":
            calm = self.left <= 0 or self.tally.kills >= kills or time.monotonic() >= until
            words = self._words(calm)
            before = self.chain
            ended = self._perform(words, calm)
            self._look(ended)
            if ended.code == -signal.SIGKILL:
                self.left -= 1
                self.tally.kills += 1
                self.tally.struck[self._struck(before)] += 1
            else:
                self._judge(words, ended, before)
        self._finish()

    # -- calling ---------------------------------------------------------------------------------------------------

    def _status(self) -> str:
        return self.chain[-1].envelope.state["status"] if self.chain else ""

    def _phase(self, chain: list[Snapshot]) -> str:
        return chain[-1].envelope.state["tree"]["phase"] if chain else "absent"

    def _words(self, calm: bool) -> list[str]:
        """The next call: a go at the run, or word of an effect whose outcome is unknown. Calls that are left alone
        perform all turns at once."""
        turn = ["-i"] if self.rng.random() < self.turns and not calm else []
        name = self.chain[-1].envelope.scope.partition(":")[2] if self.chain else None
        if self._status() == "waiting" and self.rng.random() < 0.9:
            return self._answer(str(name), turn)
        if name is not None and self.rng.random() < 0.3:
            # An operator who knows what happened need not ask first to retry it.
            knows = self._phase(self.chain) == "started" and self.rng.random() < 0.5
            return ["exec", "resume", name, *["--retry"] * knows, *turn]
        return ["execute", "machine.json", *(["--id", self.id] if self.id else []), *turn]

    def _answer(self, name: str, turn: list[str]) -> list[str]:
        store = Store.open(self.workflow.state_dir)
        state = store.resolve({name: self.chain[-1].state[name] for name in ("state", "outputs", "tree")})
        stage = state["tree"]["stage"]
        # What always fails has no output that could be given.
        if stage == "broken" or self.rng.random() < 0.5:
            return ["exec", "resume", name, "--retry", *turn]
        output = output_of({**state, "stage": stage, "error": state["tree"]["cause"]})
        given = ["--request", self.chain[-1].event["waiting"]["requestId"], "--answer", json.dumps(output)]
        if self.rng.random() < 0.5:
            return ["exec", "resume", name, *given, *turn]
        return ["execute", "machine.json", "--id", name, *given, *turn]

    def _perform(self, words: list[str], calm: bool) -> Ended:
        self.call += 1
        self.tally.calls += 1
        self.retries += "--retry" in words
        return Ended.of(self.workflow.start(*words, call=self.call) if calm else self._start_and_kill(words))

    def _start_and_kill(self, words: list[str]) -> subprocess.Popen[bytes]:
        """A process that was killed, unless it had ended before that."""
        one_turn = "-i" in words
        usual = self.wanted.turn + self.sleep if one_turn else self.wanted.whole + self.workflow.tasks * self.sleep
        spans = ((0, 0.03), (0, 1.1 * usual), (0.6 * usual, 1.1 * usual))
        moment = self.rng.uniform(*self.rng.choices(spans, _SHARES)[0])
        with_task = self.rng.random() < 0.5
        process = self.workflow.start(*words, call=self.call, sleep=self.sleep)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            self.tally.groups += kill(process, with_task=with_task)
        return process

    # -- looking ---------------------------------------------------------------------------------------------------

    def _look(self, ended: Ended) -> None:
        """Require all invariants that hold after every call, however it ended."""
        found = chains.runs_of(self.workflow.state_dir)
        require(len(found) <= 1, f"one machine file, and yet there are the runs {sorted(found)}")
        chain = next(iter(found.values()), [])
        shas = [snapshot.sha256 for snapshot in chain]
        known = [snapshot.sha256 for snapshot in self.chain]
        require(shas[: len(known)] == known, f"the head went back: {known} was there, now there is {shas}")
        self.chain = chain
        if ended.document is not None and "head" in ended.document:
            require(ended.document["head"] in shas, f"acknowledged and lost: {ended.document['head']}")
        self.residue, self.before = chains.residue_of(self.workflow.state_dir), self.residue
        self._check_tasks()

    def _struck(self, before: list[Snapshot]) -> str:
        """Return the step at which the process died, as far as visible from outside."""
        if self.residue != self.before:
            return "a commit"
        if Counter(note.what for note in self.workflow.notes() if note.call == self.call)["start"]:
            return "a task, or after one"
        return "after a save" if len(self.chain) > len(before) else "before anything"

    def _check_tasks(self) -> None:
        notes = self.workflow.notes()
        chains.require_saved_first(self.chain, notes, repeatable=self.repeatable)
        chains.require_once(notes, repeatable=self.repeatable)
        again = [n for n in notes if n.what == "start" and n.call > self.settled.get(n.key, n.call)]
        require(not again, f"finished, saved, and started again: {again}")
        for key in chains.settled_keys(self.chain):
            self.settled.setdefault(key, self.call)
        retried = [at for at, snapshot in enumerate(self.chain) if snapshot.event["type"] == "retried"]
        require(len(retried) <= self.retries, f"{len(retried)} retries on the chain, {self.retries} were asked for")
        for at in retried:
            before, after = (chains.key_of(self.chain[place]) for place in (at - 1, at))
            require(before == after, f"a retry changed the key from {before} to {after}")
        if not self.repeatable:
            self._require_unasked_once(notes)

    def _require_unasked_once(self, notes: list[Any]) -> None:
        """A visit's task starts once, and once more for each retry that the operator or the retry policy gave."""
        allowed: Counter[str | None] = Counter()
        for snapshot in self.chain:
            # A failure that leads to another visit bears that visit's key, and is no permission for it.
            retried = snapshot.event["type"] == "failed" and not snapshot.event["transitions"]
            allowed[chains.key_of(snapshot)] += retried or snapshot.event["type"] == "retried"
        starts = Counter(note.key for note in notes if note.what == "start")
        for key, count in starts.items():
            require(count <= 1 + allowed[key], f"the task of the visit {key} started {count} times unasked")

    def _judge(self, words: list[str], ended: Ended, before: list[Snapshot]) -> None:
        """Require all invariants that hold after a call that was not killed."""
        require(ended.code in ((0, 2) if self.repeatable else (0, 2, 3)), f"{words} ended with {ended}")
        require(ended.document is not None, f"{words} gave no document: {ended}")
        waiting = (ended.document or {})["waiting"]
        phase = self._phase(before)
        if ended.code == 3:
            self.tally.unknown += 1
            require(waiting["kind"] == "unknown_outcome", f"waits for {waiting}")
            require(phase in ("started", "unknown"), f"an outcome became unknown although the run was {phase}")
        else:
            require(len(self.chain) > len(before), f"{words} changed nothing: {ended}")
            require(phase != "started" or "--retry" in words, f"an effect was lost and nobody was asked: {ended}")

    def _finish(self) -> None:
        self._require_same_end(Store.open(self.workflow.state_dir))
        verified = Ended.of(self.workflow.start("verify", call=self.call))
        require(verified.code == 0, f"verify ended with {verified}")
        self.tally.residue += self.residue
        types = Counter(snapshot.event["type"] for snapshot in self.chain)
        self.tally.retries += types["retried"]
        self.tally.answers += types["answered"]
        starts = [note for note in self.workflow.notes() if note.what == "start"]
        self.tally.tasks += len(starts)
        self.tally.overlapped += len(starts) - len({(note.key, note.attempt) for note in starts})

    def _require_same_end(self, store: Store) -> None:
        head = self.chain[-1]
        require(chains.resolved_bytes(store, head) == self.wanted.resolved, "ends in another state (objects resolved)")
        require(chains.state_bytes(head) == self.wanted.state, "ends in another state than the undisturbed run")


class Sweep(Trial):
    """One run, turn by turn, whose calls die just before their first system call of a kind, their second, and so on. A
    turn that is not saved is called again, so that each of its steps is reached; when a call gets through because it
    has no more of that kind, it is the next kind's turn."""

    def __init__(self, root: Path, rng: Random, wanted: Reference, tally: Tally, repeatable: bool) -> None:
        super().__init__(root, rng, wanted, tally, repeatable)
        self.turns = 1.0
        self.left = _SWEPT
        self.step = self.point = 0
        # To begin a run takes more steps than three turns: only every other run is swept from its very first step.
        self.calm_calls = tally.runs % 2 == 0

    def _start_and_kill(self, words: list[str]) -> subprocess.Popen[bytes]:
        if self.calm_calls:
            self.calm_calls = False
            return self.workflow.start(*words, call=self.call)
        self.point += 1
        calls = STEPS[self.step]
        inject = f"inject={calls}:signal=KILL:when={self.point}"
        under = ("strace", "-qq", "-o", os.devnull, "-e", f"trace={calls}", "-e", inject)
        process = self.workflow.start(*words, call=self.call, under=under)
        if process.wait() != -signal.SIGKILL:
            self.step, self.point = (self.step + 1) % len(STEPS), 0
        return process


def kill(process: subprocess.Popen[bytes], *, with_task: bool) -> int:
    """SIGKILL the process, and with ``with_task`` the groups of the tasks it has started; how many groups that were."""
    children: list[int] = []
    if with_task:
        # Stopped first, so that no task is started between the look and the kill.
        process.send_signal(signal.SIGSTOP)
        if process.returncode is not None:  # it had just ended
            return 0
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        children = children_of(process.pid)
    process.kill()
    for child in children:
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            # Not yet the leader of a group of its own, or gone.
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
    return len(children)
