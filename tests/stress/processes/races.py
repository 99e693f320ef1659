"""Several processes at one run: each task runs once, and all of them come to the same end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from stress import runs as chains
from stress.oracle import require
from stress.processes import conversations
from stress.processes.kills import Reference, Say, reference
from stress.processes.sample_workflow import TASKS, Ended, SampleWorkflow

from stateline import Store
from stateline.store.snapshot import Snapshot

PROCESSES = 6
_WAIT = "120"
"""Wait for the lock [s]: longer than the whole run takes."""

Round = Callable[[Path, Reference], dict[str, int]]


def campaign(root: Path, *, rounds: int, until: float, say: Say) -> dict[str, Any]:
    """Each kind of round ``rounds`` times, until ``until`` [monotonic s]. Gives the summary.

    Raises :class:`~stress.invariants.ViolationError` at the first broken invariant.
    """
    began = time.monotonic()
    wanted = reference(root / "reference", repeatable=False)
    done: dict[str, dict[str, int]] = {}
    for number in range(rounds):
        for name, play in ROUNDS.items():
            if time.monotonic() < until:
                counts = play(root / f"{name} {number}", wanted)
                so_far = done.setdefault(name, {})
                done[name] = {key: so_far.get(key, 0) + count for key, count in {"rounds": 1, **counts}.items()}
                say(f"{name}: {done[name]}")
    return {**done, "processes": PROCESSES, "seconds": round(time.monotonic() - began, 1)}


def one_call_each(root: Path, wanted: Reference) -> dict[str, int]:
    """Six times ``execute --id x`` at once, from nothing."""
    workflow = SampleWorkflow.build(root, repeatable=False)
    words = ("execute", "machine.json", "--id", "x", "--wait", _WAIT)
    processes = [workflow.start(*words, call=number) for number in range(PROCESSES)]
    ends = [Ended.of(process) for process in processes]
    require(all(ended.code == 0 for ended in ends), f"not all ended well: {ends}")
    _require_one_run(workflow, wanted)
    return {"calls": len(ends), "working": len({note.call for note in workflow.notes()})}


def turn_by_turn(root: Path, wanted: Reference) -> dict[str, int]:
    """Six shells, each with ``while stateline execute -i --id x; do :; done``."""
    workflow = SampleWorkflow.build(root, repeatable=False)
    ends: list[Ended] = []

    def loop(number: int) -> None:
        while True:
            ended = Ended.of(workflow.start("execute", "machine.json", "-i", "--id", "x", "--wait", _WAIT, call=number))
            ends.append(ended)
            if ended.code != 0:
                return

    shells = [threading.Thread(target=loop, args=(number,)) for number in range(PROCESSES)]
    for shell in shells:
        shell.start()
    for shell in shells:
        shell.join()
    wrong = [ended for ended in ends if ended.code not in (0, 2)]
    require(not wrong, f"not all ended well: {wrong}")
    _require_one_run(workflow, wanted)
    return {"calls": len(ends), "working": len({note.call for note in workflow.notes()})}


def from_nothing(root: Path, wanted: Reference) -> dict[str, int]:
    """Six times ``execute`` without an id: one of them starts a run, and the others go on with it. Who comes when it
    is complete starts another one."""
    workflow = SampleWorkflow.build(root, repeatable=False)
    words = ("execute", "machine.json", "--wait", _WAIT)
    processes = [workflow.start(*words, call=number, sleep=0.1) for number in range(PROCESSES)]
    ends = [Ended.of(process) for process in processes]
    require(all(ended.code == 0 for ended in ends), f"not all ended well: {ends}")
    found = sorted(chains.runs_of(workflow.state_dir).values(), key=lambda chain: chain[0].envelope.created_at)
    for before, after in pairwise(found):
        over, began = before[-1].envelope.created_at, after[0].envelope.created_at
        require(over < began, f"a run began at {began}, and the one before was complete at {over} only")
    for chain in found:
        _require_whole(workflow, chain, wanted)
    chains.require_once(workflow.notes(), repeatable=False)
    return {"calls": len(ends), "runs": len(found)}


ROUNDS: dict[str, Round] = {
    "execute --id": one_call_each,
    "execute -i --id": turn_by_turn,
    "execute": from_nothing,
    "a conversation": lambda root, wanted: conversations.at_once(root),
}


def _require_one_run(workflow: SampleWorkflow, wanted: Reference) -> None:
    found = chains.runs_of(workflow.state_dir)
    require(list(found) == ["run:x"], f"there are the runs {sorted(found)}")
    _require_whole(workflow, found["run:x"], wanted)
    notes = workflow.notes()
    chains.require_once(notes, repeatable=False)
    starts = sum(note.what == "start" for note in notes)
    require(starts == TASKS, f"{starts} tasks started, not {TASKS}")


def _require_whole(workflow: SampleWorkflow, chain: list[Snapshot], wanted: Reference) -> None:
    """One unbroken chain with the right end, its tasks' intents, and nothing beside it: nobody was killed."""
    require([snapshot.seq for snapshot in chain] == list(range(len(chain))), "the chain has gaps")
    residue = chains.residue_of(workflow.state_dir)
    require(not residue, f"nobody was killed, and yet there is {residue}")
    run = chain[0].envelope.scope.partition(":")[2]
    notes = [note for note in workflow.notes() if note.key.startswith(f"{run}:")]
    chains.require_saved_first(chain, notes, repeatable=False)
    store = Store.open(workflow.state_dir)
    require(chains.state_bytes(chain[-1]) == wanted.state, "ends in another state than the undisturbed run")
    require(chains.resolved_bytes(store, chain[-1]) == wanted.resolved, "ends in another state (objects resolved)")
