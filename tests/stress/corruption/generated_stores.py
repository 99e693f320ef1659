"""Stores drawn from a seed: scopes of every kind and length, values of every size, and what crashes, removals and
repairs leave. Nothing in one is damaged."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

from stress.corruption.sample_store import SampleStore, described

from stateline import Artifact, Redactor, Store
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.service.execute import execute
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.repair import apply_repair
from stateline.store.local.backend import LocalBackend
from stateline.store.protocol import FAST, FULL
from stateline.store.scope import Scope

LONGEST = 12
"""Most snapshots of a chain of notes before it is repaired."""
EPOCH = 1_780_000_000_000_000_000
"""[ns since 1970] of the first snapshot."""
_LEFT = 6
"""Most unreferenced objects, and saves without a pointer: a check tells only so many harmless findings one by one."""


def build(root: Path, rng: Random) -> SampleStore:
    """Make a store under ``root``, which must not exist, and copies beside it."""
    root.mkdir(parents=True)
    maker = _Maker(root, rng)
    for number in range(rng.randint(1, 3)):
        maker.notes(f"notes:{number} of an embedder", rng.randint(1, LONGEST))
    for make in (maker.contexts, maker.run, maker.repaired, maker.removed, maker.bare):
        if rng.random() < 0.6:
            make()
    if rng.random() < 0.4:
        # Made, and nothing in it yet: an empty scope.
        (maker.state_dir / f"{rng.getrandbits(256):064x}").mkdir(mode=0o700)
    maker.litter()
    sample = described(maker.state_dir, maker.machine)
    unreferenced = sample.of("unreferenced")
    if len(unreferenced) <= _LEFT:
        return sample
    for place in unreferenced[_LEFT:]:
        (sample.root / place.path).unlink()
    for copy in (sample.pristine, sample.elsewhere):
        shutil.rmtree(copy)
    return described(maker.state_dir, maker.machine)


class _Values:
    """Draws values. ``shared`` ones come from a small pool, so that scopes have objects in common."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._pool = [letter * 4200 for letter in "xyz"]
        self._number = itertools.count()

    def text(self, size: int) -> str:
        """A text that no other value has."""
        mark = f"{next(self._number)}:{self.rng.getrandbits(32):08x} "
        return (mark * (size // len(mark) + 1))[:size]

    def messages(self, count: int) -> list[Any]:
        return [{"role": "user", "content": self.text(self.rng.choice((20, 120, 400)))} for _ in range(count)]

    def any(self, *, shared: bool) -> Any:
        """A value of one of the shapes that are kept in different ways."""
        draw = self.rng.choice(("small", "small", "object", "node", "artifact", "list", "shared", "deep"))
        if draw == "shared":
            return self.rng.choice(self._pool) if shared else self.text(4200)
        if draw == "object":
            return self.text(self.rng.randint(4094, 5000))
        if draw == "node":
            return {"body": self.text(4094), "note": self.text(3000), "tail": [self.text(1200), None, 1.5]}
        if draw == "artifact":
            data = self.rng.randbytes(self.rng.randint(1, 600))
            return Artifact(data, self.rng.choice(("image/png", "text/plain", "application/octet-stream")))
        if draw == "list":
            return self.messages(self.rng.randint(2, 90))
        if draw == "deep":
            return {"a": {"b": [{"c": self.text(4200)}, {"c": None}]}, "é": "\U0001f600\x7f"}
        return self.rng.choice((0, -1, 1.0, 1e-7, None, True, "", "text", [], {}, {"n": [1, 2, {"m": "t"}]}))


class _Maker:
    """Fills one state dir. ``machine`` is the file of its run, if it has one."""

    def __init__(self, root: Path, rng: Random) -> None:
        self.state_dir = root / "state dir"
        self.machine = root / "machine.json"
        self.rng = rng
        self.values = _Values(rng)
        self._ticks = itertools.count()
        self._loose = 0
        # At least one object lies in every store.
        self._first: Any = self.values.text(4300)

    def store(self) -> Store:
        """Open the store as another process does, with either durability."""
        backend = LocalBackend(str(self.state_dir), durability=self.rng.choice((FULL, FAST)))
        return Store(backend, redactor=Redactor(), clock=lambda: EPOCH + next(self._ticks) * 1_000_000)

    def notes(self, key: str, length: int, *, shared: bool = True) -> Scope:
        """A chain of ``length`` snapshots that share some values. Now and then a save was not acknowledged."""
        state: dict[str, Any] = {"n": 0, "first": self._first} if shared else {"n": 0}
        for number in range(length):
            self._change(state, number, shared)
            self._save(key, state, crash=self.rng.random() < 0.12)
        if self.rng.random() < 0.3:
            self._save(key, state | {"n": -1}, crash=True)
        return self.store().scope(key)

    def _change(self, state: dict[str, Any], number: int, shared: bool) -> None:
        if self.rng.random() < 0.15:
            return  # saved again as it was
        state["n"] = number
        name = f"v{self.rng.randrange(5)}"
        if isinstance(state.get(name), list) and self.rng.random() < 0.7:
            state[name] = state[name] + self.values.messages(self.rng.randint(1, 25))
        elif self.rng.random() < 0.2:
            state.pop(name, None)
        else:
            state[name] = self.values.any(shared=shared)

    def _save(self, key: str, state: dict[str, Any], *, crash: bool = False) -> None:
        """Save; with ``crash`` take the pointer back, as if the writer had died before it."""
        scope = self.store().scope(key)
        pointer = self.state_dir / scope.hash / "latest.json"
        before = pointer.read_bytes() if pointer.exists() else None
        scope.save(state, event=self.rng.choice(({}, {"why": "because"})))
        if not crash or self._loose >= _LEFT:
            return
        self._loose += 1
        if before is None:
            pointer.unlink()
        else:
            pointer.write_bytes(before)
        if self.rng.random() < 0.5:
            # Another process came later, and its save follows the same parent.
            self.store().scope(key).save(state | {"n": -2})

    def contexts(self) -> None:
        """One context or two: derived, then refined some times."""
        for number in range(self.rng.randint(1, 2)):
            name = f"docs-{number}"
            size = self.rng.choice((10, 4500))
            prepare(
                self.store(), ContextOptions(name=name, context_request=ContextRequest(system=self.values.text(size)))
            )
            for refinement in range(self.rng.randint(0, 5)):
                told = ContextRequest(refine=self.values.text(30), settings={"limit": refinement})
                prepare(self.store(), ContextOptions(name=name, context_request=told))

    def run(self) -> None:
        """A run that stopped in one of its phases: between turns, waiting, failed or complete."""
        shell = ["sh", "-c", f'echo \'{{"report": "{self.values.text(self.rng.choice((20, 4200)))}"}}\'']
        last: dict[str, Any] = self.rng.choice(({"end": {}}, {"task": ["false"]}))
        stages: dict[str, Any] = {
            "work": {"task": shell, "default_next": "again"},
            "again": {"task": ["echo", "2"], "repeatable": True, "default_next": "ask"},
            "ask": {"human": {"prompt": "Go on?"}, "set": {"said": "output"}, "default_next": "done"},
            "done": last,
        }
        machine = {"stateline": 1, "name": "drawn", "state": {"said": None}, "stages": stages}
        self.machine.write_text(json.dumps(machine))
        for turn in range(self.rng.randint(1, 5)):
            call = CallOptions(one_turn=True, answer={"yes": turn}) if turn == 3 else CallOptions(one_turn=True)
            outcome = execute(self.store(), ExecuteOptions(machine=str(self.machine), run="drawn", call=call))
            if outcome.exit_code not in (0, 3):
                break

    def repaired(self) -> None:
        """A chain of which some of the middle was lost, and which a repair lets go on; once or twice."""
        key = "notes:repaired"
        # Values of its own: what is declared lost here must not be needed by another scope, nor come back.
        scope = self.notes(key, self.rng.randint(5, 9), shared=False)
        for _ in range(self.rng.randint(1, 2)):
            chain = [snapshot.path for snapshot in scope.walk(scope.load())]
            for name in self.rng.sample(chain[1:], min(self.rng.randint(1, 2), len(chain) - 1)):
                (self.state_dir / scope.hash / name).unlink()
            if self.rng.random() < 0.4:
                table = scope.load().envelope.objects
                for ref in list(table.values())[:1]:
                    (self.state_dir / "objects" / ref.sha256[:2] / ref.sha256).unlink()
            if self.rng.random() < 0.3:
                (self.state_dir / scope.hash / "latest.json").write_bytes(b'{"torn')
            apply_repair(self.store(), key)
            for number in range(self.rng.randint(0, 3)):
                self._save(key, {"n": number, "anew": self.values.text(self.rng.choice((20, 4200)))})

    def removed(self) -> None:
        """A scope that was removed, and one that was being removed when the process died."""
        store = self.store()
        done = store.scope("notes:gone").save({"big": self.values.text(4300)})
        store.backend.remove(done.scope)
        if self.rng.random() < 0.5:
            under_way = store.scope("notes:going").save({"n": 0, "small": "text"})
            (self.state_dir / under_way.scope).rename(self.state_dir / ".rm-0123456789abcdef-01234567")

    def bare(self) -> None:
        """First saves that ended before their pointer, in a scope that has nothing else."""
        for number in range(self.rng.randint(1, 2)):
            scope = self.store().scope("notes:never acknowledged")
            scope.save({"n": number, "big": self.values.text(4200)})
            (self.state_dir / scope.hash / "latest.json").unlink()

    def litter(self) -> None:
        """Temporary files of writers that died, and an object that nobody came to name."""
        if self.rng.random() < 0.5:
            self.store().put(Artifact(self.rng.randbytes(100)))
        scopes = sorted(path for path in self.state_dir.iterdir() if len(path.name) == 64)
        shelf = min((self.state_dir / "objects").iterdir())
        for place in (self.state_dir, self.rng.choice(scopes), shelf):
            if self.rng.random() < 0.5:
                (place / ".tmp-0123456789abcdef").write_bytes(b'{"half')
                (place / ".tmp-0123456789abcdef").chmod(0o600)
