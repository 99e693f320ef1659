"""Conversations with a model that calls tools, cut off at random moments, and by several processes at once.

A kill may strike the pre-stage, the wait for a reply, the save of one, or any of the tools that run together. A reply
that was saved is never asked for again; a tool that must not be repeated never runs again unasked; the end is the same.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from stress import runs as chains
from stress.oracle import require
from stress.processes import conversation_call
from stress.processes.kills import Reference, Say, Tally, Trial, disturb
from stress.processes.sample_workflow import Ended, Note, SampleWorkflow

from stateline import Store
from stateline.bundle import canonical
from stateline.store.snapshot import Snapshot

PROCESSES = 6
_TOOLS = ("look", "push", "fail")
_STRUCK = {"context": "the pre-stage's model", "model": "the model of the run"}


class Talk(SampleWorkflow, frozen=True):
    """A directory with a machine whose agents call tools, and a program that has the model in its own process."""

    @classmethod
    def build(cls, root: Path, *, repeatable: bool) -> Talk:
        """With ``repeatable`` false neither a call of the model nor one of ``push`` or ``fail`` may be repeated."""
        root.mkdir(parents=True)
        shutil.copyfile(conversation_call.__file__, root / "conversation_call.py")
        tools = [
            {
                "name": name,
                "description": f"It can {name}.",
                "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
                "argv": [sys.executable, "-I", "-S", "conversation_call.py", "tool", name],
                "env": ["TORTURE_LOG", "TORTURE_CALL", "TORTURE_SLEEP"],
                "repeatable": repeatable or name == "look",
            }
            for name in _TOOLS
        ]
        (root / "tools.json").write_text(json.dumps({"tools": tools}))
        again = [{"when": f"size(state.said) < {conversation_call.ANSWERS}", "to": "think"}]
        stages: dict[str, Any] = {
            "think": {
                "agent": {"prompt": "think: {{ state.said }}", "tools": list(_TOOLS)},
                "set": {"said": "state.said + [output]"},
                "routes": again,
                "default_next": "sum",
            },
            "sum": {"agent": {"prompt": "sum: {{ state.said }}", "tools": list(_TOOLS)}, "default_next": "done"},
        }
        stages = {name: {**stage, "repeatable": repeatable} for name, stage in stages.items()} | {"done": {"end": {}}}
        machine = {"stateline": 1, "name": "talk", "tools": "tools.json", "state": {"said": []}, "stages": stages}
        (root / "talk.json").write_text(json.dumps(machine, indent=1))
        return cls(root)

    @property
    def tasks(self) -> int:
        return conversation_call.REPLIES + conversation_call.CALLED + 2

    @property
    def whole(self) -> list[str]:
        return []

    def program(self, words: Sequence[str]) -> list[str]:
        if words[:1] == ("verify",):
            return super().program(words)
        return [sys.executable, conversation_call.__file__, *words]


def campaign(root: Path, seed: str, *, repeatable: bool, kills: int, until: float, say: Say) -> dict[str, Any]:
    """Cut off conversation after conversation until there were ``kills`` kills, or until ``until`` [monotonic s]. Gives
    the summary. Raises :class:`~stress.invariants.ViolationError` at the first broken invariant."""
    began = time.monotonic()
    wanted = reference(root / "reference", repeatable=repeatable)
    tally = disturb(
        lambda at, rng, tally: Interrupted(at, rng, wanted, tally, repeatable), root, seed, (kills, until), say
    )
    return {**msgspec.to_builtins(tally), "seconds": round(time.monotonic() - began, 1)}


def reference(root: Path, *, repeatable: bool) -> Reference:
    """A conversation that nobody disturbed; what a turn takes is the whole by the number of replies."""
    workflow = Talk.build(root, repeatable=repeatable)
    began = time.monotonic()
    ended = Ended.of(workflow.start(call=0))
    require(ended.code == 0, f"the undisturbed conversation ended with {ended}")
    whole = time.monotonic() - began
    counted = Counter(note.stage for note in workflow.notes() if note.what == "start")
    asked = {"context": 2, "model": conversation_call.REPLIES}
    require(counted.total() == workflow.tasks and asked.items() <= counted.items(), f"not the script: {counted}")
    state, resolved = _ends(Store.open(workflow.state_dir))
    return Reference(state, resolved, whole, 0.3 + whole / conversation_call.REPLIES)


def _ends(store: Store) -> tuple[bytes, bytes]:
    """Return the final states of the run and its context, without the digest of the context's snapshot, which has
    times."""
    run, context = (
        store.scope(key).load() for key in (f"run:{conversation_call.RUN}", f"context:{conversation_call.CONTEXT}")
    )
    link = run.event["context"]
    require(link["sha256"] == context.sha256, f"the run goes by {link}, the context is {context.sha256}")
    bare = {name: value for name, value in store.resolve(run.state).items() if name not in ("context", "machine")}
    document = json.loads(run.data)
    stored = {"state": {**document["state"], "context": None}, "objects": document["objects"]}
    state = canonical.encode(stored, depth=canonical.FILE_DEPTH)
    return state, canonical.encode([bare, store.resolve(context.state)], depth=canonical.FILE_DEPTH)


class Interrupted(Trial):
    """One conversation, from nothing to its end, with what is known of it from outside."""

    kind = Talk

    def __init__(self, root: Path, rng: Random, wanted: Reference, tally: Tally, repeatable: bool) -> None:
        super().__init__(root, rng, wanted, tally, repeatable)
        self.sleep = rng.choice((0.0, 0.05, 0.2))
        self.context: list[str] = []

    def _words(self, calm: bool) -> list[str]:
        turn = ["-i"] if self.rng.random() < self.turns and not calm else []
        if self._status() == "waiting" and self.rng.random() < 0.9:
            return [*self._word_of_it(), *turn]
        if self._in_doubt(self.chain) and self.rng.random() < 0.1:
            # An operator who knows what happened need not ask first.
            return ["--retry", *turn]
        return turn

    def _word_of_it(self) -> list[str]:
        """Return the operator's answer about a lost effect: retry it, or its outcome."""
        tree = self._tree()
        started = [call for call in tree["pending"] if call["type"] == "tool" and call["status"] == "started"]
        if self.rng.random() < 0.4 or (started and started[0]["name"] == "fail"):
            return ["--retry"]
        request = ["--request", self.chain[-1].event["waiting"]["requestId"]]
        if started:
            result = conversation_call.result_of(started[0]["name"], started[0]["arguments"]["n"])
            return [*request, "--answer", json.dumps(result)]
        messages = tree["conversation"]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        said = sum(message["role"] == "assistant" for message in messages)
        text, calls = conversation_call.line_of(tree["stage"], said, results)
        used = [
            {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]} for call in calls
        ]
        content = [{"type": "text", "text": text}, *used]
        return [*request, "--answer", json.dumps({"type": "llm_response", "response": {"content": content}})]

    def _tree(self) -> Any:
        return Store.open(self.workflow.state_dir).resolve(self.chain[-1].state)["tree"]

    def _in_doubt(self, chain: list[Snapshot]) -> bool:
        """Return whether an effect may have started of which nobody can know what became."""
        return bool(chain) and chain[-1].event["type"] in ("intended", "calls_intended", "lost")

    def _look(self, ended: Ended) -> None:
        before = self.context
        self.context = [snapshot.sha256 for snapshot in reversed(list(self._context_chain()))]
        require(self.context[: len(before)] == before, f"the context went back: {before}, now {self.context}")
        require(len(self.context) <= 2, f"the context was made or refined more than once: {self.context}")
        super()._look(ended)

    def _context_chain(self) -> list[Snapshot]:
        scope = Store.open(self.workflow.state_dir).scope(f"context:{conversation_call.CONTEXT}")
        return list(scope.walk()) if self.workflow.state_dir.exists() and scope.head() is not None else []

    def _check_tasks(self) -> None:
        notes = self.workflow.notes()
        starts = [note for note in notes if note.what == "start"]
        self._require_saved_first(starts)
        again = [note for note in starts if note.call > self.settled.get(note.key, note.call)]
        require(not again, f"saved, and asked for or run again: {again}")
        for key in self._settled():
            self.settled.setdefault(key, self.call)
        twice = [each for each, count in Counter((n.key, n.call) for n in starts).items() if count > 1]
        require(not twice, f"started twice in one call: {twice}")
        retried = [at for at, snapshot in enumerate(self.chain) if snapshot.event["type"] == "retried"]
        require(len(retried) <= self.retries, f"{len(retried)} retries on the chain, {self.retries} were asked for")
        allowed = Counter(key for at in retried for key in self._due(self.chain[at]))
        for key, count in Counter(note.key for note in starts if self._once(note)).items():
            require(count <= 1 + allowed[key], f"the effect {key} started {count} times unasked")

    def _once(self, note: Note) -> bool:
        return not self.repeatable and note.stage not in ("context", "look")

    def _due(self, snapshot: Snapshot) -> set[str]:
        """The keys of the effects that are due after a snapshot."""
        own = chains.key_of(snapshot)
        return {*snapshot.event.get("calls", {}).get("keys", {}).values(), *([own] if own else [])}

    def _require_saved_first(self, starts: list[Note]) -> None:
        due = {key for snapshot in self.chain for key in self._due(snapshot)}
        intents = [s for s in self.chain if s.event["type"] in ("intended", "calls_intended")]
        intended = {key for snapshot in intents for key in self._due(snapshot)}
        for note in starts:
            require(note.stage == "context" or note.key in due, f"{note} started although no snapshot has its key")
            require(not self._once(note) or note.key in intended, f"{note} started although its intent was not saved")

    def _settled(self) -> set[str]:
        """The keys of replies and results that are saved: those of the context, of the run's model, of its tools."""
        done = set(chains.settled_keys(self.chain))
        for before, after in zip(self.chain, self.chain[1:], strict=False):
            if "call" in after.event:
                done.add(before.event["calls"]["keys"][after.event["call"]["id"]])
        asked = {note.key for note in self.workflow.notes() if note.stage == "context"}
        return done | {key for key in asked if int(key.split(":")[2]) < len(self.context)}

    def _struck(self, before: list[Snapshot]) -> str:
        notes = [note for note in self.workflow.notes() if note.call == self.call]
        open_ = Counter(n.key for n in notes if n.what == "start") - Counter(n.key for n in notes if n.what == "end")
        if self.residue != self.before:
            return "a commit"
        if open_:
            return _STRUCK.get(next(note.stage for note in notes if note.key in open_), "tools")
        return "between effects" if notes else "before anything"

    def _judge(self, words: list[str], ended: Ended, before: list[Snapshot]) -> None:
        require(ended.code in ((0, 2) if self.repeatable else (0, 2, 3)), f"{words} ended with {ended}")
        require(ended.document is not None, f"{words} gave no document: {ended}")
        if ended.code == 3:
            self.tally.unknown += 1
            waiting = (ended.document or {})["waiting"]
            require(waiting["kind"] == "unknown_outcome", f"waits for {waiting}")
        else:
            require(len(self.chain) > len(before), f"{words} changed nothing: {ended}")

    def _require_same_end(self, store: Store) -> None:
        state, resolved = _ends(store)
        require(resolved == self.wanted.resolved, "ends in another state (objects resolved)")
        require(state == self.wanted.state, "ends in another state than the undisturbed conversation")


def at_once(root: Path) -> dict[str, int]:
    """Six processes begin and go on with one conversation, whose effects must not be repeated: each happens once. What
    it ends in is compared with one that had a process of its own."""
    ends: list[bytes] = []
    for name, count in (("alone", 1), ("together", PROCESSES)):
        workflow = Talk.build(root / name, repeatable=False)
        processes = [workflow.start("--once", "--wait", "120", call=number) for number in range(count)]
        ended = [Ended.of(process) for process in processes]
        require(all(each.code == 0 for each in ended), f"not all ended well: {ended}")
        starts = Counter(note.key for note in workflow.notes() if note.what == "start")
        require(set(starts.values()) == {1}, f"something happened more than once: {starts}")
        require(len(starts) == workflow.tasks - 1, f"{len(starts)} effects, not {workflow.tasks - 1}")
        require(not chains.residue_of(workflow.state_dir), "nobody was killed, and yet there is residue")
        ends += [_ends(Store.open(workflow.state_dir))[1]]
    require(ends[0] == ends[1], "ends in another state than the conversation of one process")
    return {"calls": PROCESSES, "working": len({note.call for note in workflow.notes()})}
