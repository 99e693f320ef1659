"""Scenarios for the power-loss model, traces and fault injection: short programs of writers, each with what
was there before it.

Whoever runs one says where stores are opened and hears of each acknowledgement at the moment it is given. As a program
(``scenarios.py NAME STATE_DIR prepare|act|all``) it runs one on a real directory and prints a line for each
acknowledgement, in one write: what was printed was acknowledged.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripted_model import FixedModels

from stateline import Artifact, Redactor, Store
from stateline.bundle.envelope import Pointer
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare as prepare_context
from stateline.engine.dependencies import Dependencies
from stateline.errors import ConflictError
from stateline.model.protocol import ModelRequest, Reply, TextListener, ToolCall
from stateline.repair.quarantine import LocalQuarantine, quarantine_for
from stateline.service.execute import execute
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.repair import apply_repair
from stateline.service.run_document import Outcome
from stateline.service.runs import remove as remove_runs
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Filesystem
from stateline.store.protocol import FAST, FULL, Durability

EPOCH = 1_780_000_000_000_000_000
"""[ns since 1970] at which the first snapshot of a scenario is made."""

CHANGING = (
    "make_root",
    "make_directory",
    "create",
    "write",
    "sync_file",
    "sync_directory",
    "link",
    "unlink",
    "rename",
    "remove_directory",
    "open_lock",
)
"""Calls on the seam that change something: before each the power may go, and each may fail."""

Json = Any


class Note(msgspec.Struct, frozen=True):
    """Something that was acknowledged. ``what``: ``head`` (``name`` is the snapshot's path in its scope), ``kept`` (an
    object or a snapshot that no head leads to yet; ``name`` is the blob's), ``removed`` (a scope). ``scope`` is a
    scope's hash, or "" for an object."""

    what: str
    scope: str
    name: str = ""
    sha256: str = ""
    durability: str = FULL


Listener = Callable[[Note], None]


class Witness(LocalBackend):
    """The local backend as it is, with somebody who hears of each acknowledgement before the caller continues."""

    def __init__(self, path: str, fs: Filesystem | None, listener: Listener, durability: Durability) -> None:
        super().__init__(path, fs, durability=durability)
        self._listener = listener

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        scope = name.rpartition("/")[0]
        self._listener(Note("kept", "" if scope.startswith("objects") else scope, name, "", self.durability))

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        super().swap(scope, expected, new)
        self._listener(Note("head", scope, new.path, new.sha256, self.durability))

    def remove(self, scope: str) -> None:
        super().remove(scope)
        self._listener(Note("removed", scope))


class WitnessedQuarantine(LocalQuarantine):
    """A repair, with the same listener."""

    def __init__(self, backend: LocalBackend, stamp: str, listener: Listener) -> None:
        super().__init__(backend, stamp)
        self._listener = listener

    def replace_pointer(self, scope: str, new: Pointer) -> str | None:
        kept = super().replace_pointer(scope, new)
        self._listener(Note("head", scope, new.path, new.sha256))
        return kept


@quarantine_for.register
def _witnessed(backend: Witness, stamp: str) -> WitnessedQuarantine:
    return WitnessedQuarantine(backend, stamp, backend._listener)


class Place:
    """Environment of a scenario: ``path`` is the state dir, ``root`` a real directory for other files. ``began`` is the
    time of its first snapshot [ns since 1970]; each later one comes a millisecond later."""

    def __init__(
        self, path: str, root: Path, fs: Callable[[], Filesystem | None], listener: Listener, began: int = EPOCH
    ) -> None:
        self.path = path
        self.root = root
        self._fs = fs
        self._listener = listener
        self._ticks = itertools.count(began, 1_000_000)

    def open(self, durability: Durability = FULL) -> Store:
        """A store as another process would open it: nothing is remembered of the one before."""
        backend = Witness(self.path, self._fs(), self._listener, durability)
        return Store(backend, redactor=Redactor(), clock=lambda: next(self._ticks))

    def seam(self) -> Filesystem:
        """The seam, for what happens to a place from outside."""
        return self._fs() or Filesystem()


class Scenario(msgspec.Struct, frozen=True):
    """A scenario: ``prepare`` has happened long ago and is safe, ``act`` is what is looked at; it begins at the time
    ``began`` [ns since 1970]. ``resume`` continues with what it began, as its user would after a power loss.

    ``damaged``: the store is damaged when it begins. ``modelled``: it is for the model of power losses alone, which
    knows what another process did, what was put ``fast``, and what a repair may lose.
    """

    name: str
    act: Callable[[Place], None]
    prepare: Callable[[Place], None] = lambda place: None
    damaged: bool = False
    modelled: bool = False
    began: int = EPOCH + 10**12
    resume: Callable[[Place], None] = lambda place: None


NOTES = "notes:scenario"
OTHER = "notes:other"
BIG = "x" * 5000


def _one(place: Place) -> None:
    place.open().scope(NOTES).save({"n": 0})


def _first_save(place: Place) -> None:
    place.open().scope(NOTES).save({"n": 0, "text": BIG})


def _saves(place: Place) -> None:
    scope = place.open().scope(NOTES)
    for number in range(1, 4):
        scope.save({"n": number})
    # What another process saves costs other calls: it knows nothing.
    place.open().scope(NOTES).save({"n": 4})


def _two_writers(place: Place) -> None:
    one, two = place.open(), place.open()
    for number in range(1, 3):
        one.scope(NOTES).save({"n": number, "by": "one", "text": BIG})
        two.scope(OTHER).save({"n": number, "by": "two", "text": BIG})
        seen = one.scope(NOTES).load()
        two.scope(NOTES).save({"n": number, "by": "two"})
        try:
            one.scope(NOTES).save({"n": "lost"}, parent=seen)
        except ConflictError:
            continue
        raise AssertionError("a save on an old parent was taken")


def _large_values(place: Place) -> None:
    store = place.open()
    scope = store.scope(NOTES)
    first = {"a": {"deep": "a" * 9000, "also": "b" * 5000}, "c": BIG, "raw": Artifact(b"\0raw" * 2000, "image/png")}
    scope.save(first)
    scope.save({**first, "c": "y" * 5000})
    store.put(Artifact(b"kept by itself" * 500, "text/plain"))
    # The same bytes by another process: they are there, and may not be durable.
    place.open().scope(OTHER).save({"c": "y" * 5000})


def messages(first: int, count: int) -> list[Json]:
    return [{"role": "user", "content": f"{number}: " + "lorem ipsum " * 20} for number in range(first, first + count)]


def _list_begun(place: Place) -> None:
    place.open().scope(NOTES).save({"log": messages(0, 40)})


def _long_lists(place: Place) -> None:
    scope = place.open().scope(NOTES)
    scope.save({"log": messages(0, 60)})
    store = place.open()
    head = store.scope(NOTES).load()
    grown = store.append(head.state["log"], messages(60, 20))
    store.scope(NOTES).save({"log": grown, "n": 1})


def _context(place: Place) -> None:
    prepare_context(
        place.open(), ContextOptions(name="docs", context_request=ContextRequest(system="Be careful. " * 500))
    )


def _refine(place: Place) -> None:
    prepare_context(place.open(), ContextOptions(name="docs", context_request=ContextRequest(refine="Be brief.")))
    prepare_context(
        place.open(), ContextOptions(name="docs", context_request=ContextRequest(settings={"temperature": 0.2}))
    )


def _refine_again(place: Place) -> None:
    prepare_context(place.open(), ContextOptions(name="docs", context_request=ContextRequest(refine="Be kind.")))


def _machine(place: Place) -> str:
    path = place.root / "machine.json"
    stages: dict[str, Json] = {
        "work": {"task": ["/bin/echo", '{"report": "ok"}'], "default_next": "again"},
        "again": {"task": ["/bin/echo", "2"], "repeatable": True, "default_next": "ask"},
        "ask": {"human": {"prompt": "Go on?"}, "set": {"said": "output"}, "default_next": "done"},
        "done": {"end": {}},
    }
    path.write_text(json.dumps({"stateline": 1, "name": "scenario", "state": {"said": None}, "stages": stages}))
    return str(path)


def _turn(place: Place) -> None:
    machine = _machine(place)
    execute(place.open(), ExecuteOptions(machine=machine, run="scenario", call=CallOptions(one_turn=True)))
    execute(place.open(), ExecuteOptions(machine=machine, run="scenario"))
    execute(place.open(), ExecuteOptions(machine=machine, run="scenario", call=CallOptions(answer={"yes": True})))


def _turn_again(place: Place) -> None:
    machine = _machine(place)
    for _ in range(2):
        if execute(place.open(), ExecuteOptions(machine=machine, run="scenario")).status == "waiting":
            return


class _Talker:
    """A model that calls both tools once, and then answers."""

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        if any(message["role"] == "tool" for message in request.messages):
            return Reply(content="Done.")
        calls = [ToolCall("a", "look", {"at": "x"}), ToolCall("b", "act", {"n": 1})]
        return Reply(tool_calls=calls, finish="tool_calls")


def _converse(place: Place, *, one_turn: bool = False) -> Outcome:
    """Go on with a run whose model calls tools, of which one must not be called twice."""
    tools = [
        {"name": name, "description": "A tool.", "schema": {"type": "object"}, "argv": ["/bin/echo", name], **more}
        for name, more in (("look", {"repeatable": True}), ("act", {}))
    ]
    (place.root / "tools.json").write_text(json.dumps({"tools": tools}))
    stages: dict[str, Json] = {
        "talk": {"agent": {"prompt": "Look, then act.", "tools": ["look", "act"]}, "default_next": "done"},
        "done": {"end": {}},
    }
    path = place.root / "talk.json"
    path.write_text(json.dumps({"stateline": 1, "name": "talk", "tools": "tools.json", "stages": stages}))
    # One call at a time, so that the scenario is the same each time it is told.
    call = CallOptions(one_turn=one_turn, models=FixedModels(Dependencies(model=_Talker(), name="told/one", jobs=1)))
    return execute(place.open(), ExecuteOptions(machine=str(path), run="scenario", call=call))


def _conversation(place: Place) -> None:
    _converse(place, one_turn=True)
    _converse(place)


def _conversation_again(place: Place) -> None:
    _converse(place)


def _damaged(place: Place) -> None:
    """Five snapshots, of which the third is gone, and the pointer is torn."""
    scope = place.open().scope(NOTES)
    chain = [scope.save({"n": number, "text": f"{number}" * 5000}) for number in range(5)]
    harm(place, chain[2].scope, chain[2].path, None)
    harm(place, chain[2].scope, "latest.json", b'{"path":"st')


def harm(place: Place, where: str, name: str, data: bytes | None, *, lasting: bool = True) -> None:
    """Remove a file in a directory of the state dir, or write other bytes in its place, as nobody's save would;
    ``lasting``: synced."""
    fs = place.seam()
    root = fs.open_root(place.path)
    directory = root
    for part in filter(None, where.split("/")):
        directory = fs.open_directory(directory, part)
    with suppress(FileNotFoundError):
        fs.unlink(directory, name)
    if data is not None:
        fd = fs.create(directory, name)
        fs.write(fd, data)
        if lasting:
            fs.sync_file(fd)
        fs.close_file(fd)
    if lasting:
        fs.sync_directory(directory)


def _repair(place: Place) -> None:
    apply_repair(place.open(), None)
    place.open().scope(NOTES).save({"n": "after"})


def _run_done(place: Place) -> None:
    _turn(place)
    place.open().scope(NOTES).save({"n": 0, "text": BIG})


def _removal(place: Place) -> None:
    remove_runs(place.open(), ["scenario"])
    store = place.open()
    store.backend.remove(store.scope(NOTES).hash)
    store.scope(NOTES).save({"n": "anew", "text": BIG})


def _settle(place: Place) -> None:
    fast = place.open(FAST)
    scope = fast.scope(NOTES)
    for number in range(1, 4):
        scope.save({"n": number, "text": f"{number}" * 5000})
    place.open().scope(NOTES).save({"n": "full", "text": "3" * 5000})
    fast.scope(OTHER).save({"text": "3" * 5000})
    place.open().scope(OTHER).save({"n": "full", "text": "3" * 5000})
    # An object of a fast save that is no part of the past: it is found, and may not be durable.
    fast.scope(OTHER).save({"text": "4" * 5000})
    place.open().scope(NOTES).save({"n": "too", "text": "4" * 5000})


def _by_another(place: Place) -> None:
    """Another writer made directories a moment ago, and has synced nothing."""
    fs = place.seam()
    root = fs.open_root(place.path)
    for name in (place.open().scope(OTHER).hash, "objects"):
        fs.make_directory(root, name)
    fs.close_directory(root)
    place.open().scope(OTHER).save({"n": 1, "text": BIG})


def _made_root(place: Place) -> None:
    """Another writer made the state dir, and died before it was durable."""
    place.seam().make_root(place.path)
    _first_save(place)


def _fast_parts(place: Place) -> None:
    """Make a ``full`` save depend on ``fast`` objects outside its history: a list that it appends to, a value
    that it names."""
    fast = place.open(FAST)
    fast.scope(OTHER).save({"log": messages(0, 60)})
    store = place.open()
    grown = store.append(store.scope(OTHER).load().state["log"], messages(60, 20))
    store.scope(NOTES).save({"log": grown})
    value = fast.put_value({"a": "r" * 5000})
    place.open().scope(NOTES).save({"value": value})


def _fast_context(place: Place) -> None:
    """A run names a context that was saved ``fast``."""
    prepare_context(
        place.open(FAST), ContextOptions(name="docs", context_request=ContextRequest(system="Be careful. " * 500))
    )
    machine = _machine(place)
    execute(
        place.open(), ExecuteOptions(machine=machine, run="scenario", context="docs", call=CallOptions(one_turn=True))
    )


def _rotten(place: Place) -> None:
    """An object has other bytes, and something lies there that does not belong."""
    scope = place.open().scope(NOTES)
    saved = [scope.save({"n": number, "text": f"{number}" * 5000}) for number in range(3)]
    sha = saved[0].envelope.objects["/text"].sha256
    harm(place, f"objects/{sha[:2]}", sha, b"rotten")
    harm(place, "", "foreign.txt", b"whose is this")


def _interrupted(place: Place) -> None:
    """A writer died in the middle of a save: its mark and half a file lie there."""
    _one(place)
    scope = place.open().scope(NOTES).hash
    for name in (".tmp-held", ".tmp-0123456789abcdef"):
        harm(place, scope, name, b'{"half')


def _take_over(place: Place) -> None:
    place.open().scope(NOTES).save({"n": 1})
    place.open().scope(NOTES).save({"n": 2, "text": BIG})


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("first save", _first_save),
        Scenario("saves", _saves, _one),
        Scenario("two writers", _two_writers, _one),
        Scenario("large values", _large_values, _one),
        Scenario("long lists", _long_lists, _list_begun),
        Scenario("refine", _refine, _context, resume=_refine_again),
        Scenario("turn", _turn, resume=_turn_again),
        Scenario("conversation", _conversation, resume=_conversation_again),
        Scenario("repair", _repair, _damaged, damaged=True),
        Scenario("removal", _removal, _run_done),
        Scenario("settle", _settle, _one),
        Scenario("take over", _take_over, _interrupted),
        Scenario("by another", _by_another, _one, modelled=True),
        Scenario("made root", _made_root, modelled=True),
        Scenario("fast parts", _fast_parts, _one, modelled=True),
        Scenario("fast context", _fast_context, _one, modelled=True),
        Scenario("rotten", _repair, _rotten, damaged=True, modelled=True),
    )
}

SHARED = {name: scenario for name, scenario in SCENARIOS.items() if not scenario.modelled}
"""The scenarios that kills, errors, traces and real file systems are about, too."""


def _print(note: Note) -> None:
    os.write(1, msgspec.json.encode(note) + b"\n")


def main(name: str, state_dir: str, part: str = "all") -> None:
    """Run one scenario, or a part of it, on a real directory."""
    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory() as root:
        place = Place(os.path.abspath(state_dir), Path(root), lambda: None, _print)
        if part in ("prepare", "all"):
            scenario.prepare(place)
        if part in ("act", "all"):
            scenario.act(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
