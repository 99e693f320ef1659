"""Two calls at one thing: one that works, and one that comes while it does. Never two effects for one turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress.oracle import require
from stress.processes.sample_workflow import Ended, SampleWorkflow
from stress.runs import runs_of

from stateline import Store
from stateline.store.snapshot import Snapshot
from stateline.verify.checker import verify

if TYPE_CHECKING:
    from stress.processes.kills import Say

_TAKES = 0.8
"""Duration of a task [s]: the other call must have started waiting by then."""
_LONG, _SHORT = "60", "0.1"
"""Wait of the other call for the lock [s]."""
_STARTS = 60.0
"""[s] in which a task must have started."""
TURN = ("execute", "machine.json", "-i", "--id", "x")
RESUME = ("exec", "resume", "x", "-i")

Contest = Callable[[Path], dict[str, int]]


def campaign(root: Path, *, rounds: int, until: float, say: Say) -> dict[str, Any]:
    """Each contest ``rounds`` times, until ``until`` [monotonic s]. Gives the summary. Raises ``ViolationError``."""
    began = time.monotonic()
    done: dict[str, int] = {}
    for number in range(rounds):
        for name, contest in CONTESTS.items():
            if time.monotonic() < until:
                calls = contest(root / f"{name} {number}")["calls"]
                done[name] = done.get(name, 0) + 1
                say(f"{name}: {calls} calls")
    return {**done, "seconds": round(time.monotonic() - began, 1)}


def patient(root: Path) -> dict[str, int]:
    """While a turn is performed, ``execute -i`` and ``exec resume -i`` wait, and each performs the next one."""
    workflow = _begun(root)
    first = workflow.start(*TURN, call=0, sleep=_TAKES)
    _await_start(workflow, 1)
    others = [workflow.start(*words, "--wait", _LONG, call=1 + n, sleep=0.1) for n, words in enumerate((TURN, RESUME))]
    ends = [Ended.of(process) for process in (first, *others)]
    require([ended.code for ended in ends] == [0, 0, 0], f"not all ended well: {ends}")
    notes = workflow.notes()
    require([note.what for note in notes] == ["start", "end"] * 3, f"tasks ran at once: {notes}")
    require(len({note.key for note in notes}) == 3, f"one turn was performed twice: {notes}")
    require(len({_document(ended)["head"] for ended in ends}) == 3, "two calls report the same turn")
    return {"calls": len(ends)}


def impatient(root: Path) -> dict[str, int]:
    """While a turn is performed, all that would change the run get exit 4 after a small ``--wait``, and change
    nothing."""
    words = (TURN, RESUME, ("exec", "rm", "x"), (*TURN, "--force"))
    takes = 4 * _TAKES
    while True:
        workflow = _begun(root / f"{takes:g}")
        first = workflow.start(*TURN, call=0, sleep=takes)
        _await_start(workflow, 1)
        ends = _at_once(workflow, *[(*other, "--wait", _SHORT) for other in words])
        if first.poll() is None:
            break
        # The others came too late; the machine is slow.
        Ended.of(first)
        takes *= 2
    winner = Ended.of(first)
    require(winner.code == 0, f"the first call ended with {winner}")
    require([ended.code for ended in ends] == [4] * len(words), f"not all were refused: {ends}")
    require(all(_document(ended)["error"]["hint"] for ended in ends), f"a refusal without a hint: {ends}")
    [chain] = runs_of(workflow.state_dir).values()
    require(chain[-1].sha256 == _document(winner)["head"], "the head is not that of the turn")
    require(len(workflow.notes()) == 2, f"more than one effect: {workflow.notes()}")
    return {"calls": 1 + len(ends)}


def removal(root: Path) -> dict[str, int]:
    """``exec rm`` waits for the turn, and then the run is wholly gone."""
    workflow = _begun(root)
    first = workflow.start(*TURN, call=0, sleep=_TAKES)
    _await_start(workflow, 1)
    gone = Ended.of(workflow.start("exec", "rm", "x", "--wait", _LONG, call=1))
    ended = Ended.of(first)
    require((ended.code, gone.code) == (0, 0), f"not both ended well: {ended} {gone}")
    require(runs_of(workflow.state_dir) == {}, "the run is still there")
    require(
        [note.what for note in workflow.notes()] == ["start", "end"], f"the task did not run once: {workflow.notes()}"
    )
    require(verify(Store.open(workflow.state_dir)).ok, "the removal left damage")
    return {"calls": 2}


def mending(root: Path) -> dict[str, int]:
    """``repair --apply`` of a run with an old damage waits for the turn, keeps it, and declares what is lost."""
    workflow = _begun(root)
    for _ in range(2):
        Ended.of(workflow.start(*TURN, call=0))
    [chain] = runs_of(workflow.state_dir).values()
    old = workflow.state_dir / chain[1].scope / chain[1].path
    old.write_bytes(old.read_bytes().replace(b'"seq":1', b'"seq":2'))
    before = len(workflow.notes())
    first = workflow.start(*TURN, call=0, sleep=_TAKES)
    _await_start(workflow, before + 1)
    mended = Ended.of(workflow.start("repair", "--apply", "--wait", _LONG, call=1))
    ended = Ended.of(first)
    require((ended.code, mended.code) == (0, 0), f"not both ended well: {ended} {mended}")
    [after] = runs_of(workflow.state_dir).values()
    require(_document(ended)["head"] in {snapshot.sha256 for snapshot in after}, "the turn is not on the chain")
    require(verify(Store.open(workflow.state_dir)).ok, "the repair left damage")
    keys = [note.key for note in workflow.notes() if note.what == "start"]
    require(len(keys) == len(set(keys)), f"one turn was performed twice: {keys}")
    return {"calls": 4}


def answers(root: Path) -> dict[str, int]:
    """Of two bare answers at once one is taken and the other is refused; the same named one twice is one answer."""
    workflow = _begun(root)
    ask = {"human": {"prompt": "?"}}
    stages = {"a": {**ask, "default_next": "b"}, "b": {**ask, "default_next": "done"}, "done": {"end": {}}}
    (workflow.root / "machine.json").write_text(json.dumps({"stateline": 1, "name": "asks", "stages": stages}))
    asked = _document(Ended.of(workflow.start(*TURN, call=0)))["waiting"]["requestId"]
    named = json.dumps({"requestId": asked, "answer": "one"})
    ends = _at_once(workflow, *[(*RESUME, "--answer", named, "--wait", _LONG)] * 2)
    require([ended.code for ended in ends] == [3, 3], f"not both were taken: {ends}")
    require(_document(ends[0]) == _document(ends[1]), "the same answer twice gives two documents")
    bare = [(*RESUME, "--answer", json.dumps(text), "--wait", _LONG) for text in ("left", "right")]
    ends = _at_once(workflow, *bare)
    # Who comes when the other is done finds a run that asks nothing.
    codes = sorted(ended.code for ended in ends)
    require(codes[0] in (1, 2, 4) and codes in ([1, 2], [2, 4]), f"not one of both was taken: {ends}")
    [chain] = runs_of(workflow.state_dir).values()
    require([snapshot.event["type"] for snapshot in chain].count("answered") == 2, "more than one answer was taken")
    won = next(text for ended, text in zip(ends, ("left", "right"), strict=True) if ended.code == 2)
    require(chain[-1].state["outputs"] == {"a": "one", "b": won}, f"the answer {won} is not the output")
    return {"calls": 5}


def contexts(root: Path) -> dict[str, int]:
    """Two processes make the first store and one context at once, then refine it at once, then demand one head."""
    workflow = _begun(root)
    words = ("run", "--state-scope", "demo", "--wait", _LONG)
    made = _at_once(workflow, *[(*words, "--system", text) for text in ("S", "T")])
    require([ended.code for ended in made] == [0, 0], f"not both ended well: {made}")
    require(len(_demo(workflow)) == 1, "the context was derived twice")
    refined = _at_once(workflow, *[(*words, "--refine-text", text) for text in ("one", "two")])
    require([ended.code for ended in refined] == [0, 0], f"not both refined: {refined}")
    chain = _demo(workflow)
    require(sorted(chain[-1].state["prompts"]["developer"]) == ["one", "two"], "a refinement is lost")
    require(len(chain) == 3, f"{len(chain)} snapshots of one context and two refinements")
    parent = ("--parent", chain[-1].sha256)
    ends = _at_once(workflow, *[(*words, *parent, "--refine-text", text) for text in ("three", "four")])
    require(sorted(ended.code for ended in ends) == [0, 4], f"not one of both was refused: {ends}")
    require(_demo(workflow)[-1].state["refinements"]["count"] == 3, "the refused refinement is there")
    require(not verify(Store.open(workflow.state_dir)).findings, "nobody was killed, and verify found something")
    return {"calls": 6}


CONTESTS: dict[str, Contest] = {
    "waiting": patient,
    "exit 4": impatient,
    "rm": removal,
    "repair": mending,
    "answers": answers,
    "contexts": contexts,
}


def _begun(root: Path) -> SampleWorkflow:
    return SampleWorkflow.build(root, repeatable=False)


def _await_start(workflow: SampleWorkflow, count: int) -> None:
    """Wait until the tasks have said ``count`` things: the newest has started."""
    deadline = time.monotonic() + _STARTS
    while len(workflow.notes()) < count:
        require(time.monotonic() < deadline, "no task starts")
        time.sleep(0.01)


def _at_once(workflow: SampleWorkflow, *calls: tuple[str, ...]) -> list[Ended]:
    processes = [workflow.start(*words, call=number) for number, words in enumerate(calls)]
    return [Ended.of(process) for process in processes]


def _document(ended: Ended) -> dict[str, Any]:
    if ended.document is None:
        raise AssertionError(f"no document: {ended}")
    return ended.document


def _demo(workflow: SampleWorkflow) -> list[Snapshot]:
    return list(Store.open(workflow.state_dir).scope("context:demo").walk())[::-1]
