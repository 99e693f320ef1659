"""Invariants that hold after any fault: acknowledged data is there, ``verify`` finds residue at most, writers continue.

The independent ``oracle`` judges first; the product is then compared with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from stress import oracle
from stress.oracle import Contents, Picture, ViolationError, require
from stress.scenarios import NOTES, Note

from stateline import Store
from stateline.errors import StatelineError
from stateline.redaction.redactor import Redactor
from stateline.service.repair import apply_repair
from stateline.store.local.backend import LocalBackend
from stateline.store.protocol import FAST, FULL
from stateline.verify.checker import verify
from stateline.verify.findings import Report

LOCK_WAIT = 1.0
"""[s] within which the next writer gets a scope's lock."""


class Acknowledged:
    """Everything that the writers of a store were told. ``heads``: snapshots of each scope, oldest first; ``kept``:
    names of durable blobs; ``removed``: scopes that are gone; ``count``: acknowledged heads."""

    survives: tuple[str, ...] = (FULL,)
    """Durabilities whose acknowledged blobs survive the fault."""

    def __init__(self) -> None:
        self.heads: dict[str, list[Note]] = {}
        self.kept: set[str] = set()
        self.removed: set[str] = set()
        self.count = 0

    def apply(self, *notes: Note) -> None:
        """Apply acknowledgements in order."""
        for note in notes:
            self.count += note.what == "head"
            if note.what == "head":
                self.heads.setdefault(note.scope, []).append(note)
                self.removed.discard(note.scope)
            elif note.what == "removed":
                self.heads.pop(note.scope, None)
                self.removed.add(note.scope)
                self.kept = {name for name in self.kept if not name.startswith(note.scope)}
            elif note.durability in self.survives:
                self.kept.add(note.name)

    def sort(self) -> None:
        """Sort the heads by name: of two writers, the later one may report first."""
        for heads in self.heads.values():
            heads.sort(key=lambda note: note.name)

    def durable(self, scope: str) -> list[Note]:
        """Return the snapshots that must survive a power loss: all up to the last one saved ``full``."""
        heads = self.heads.get(scope, [])
        last = max((number for number, note in enumerate(heads) if note.durability == FULL), default=-1)
        return heads[: last + 1]

    def digests(self, scope: str) -> list[str]:
        """Return the digests of the acknowledged snapshots of a scope, oldest first."""
        return [note.sha256 for note in self.heads.get(scope, [])]


class Expectation(Acknowledged):
    """Acknowledgements, and the state dir ``before`` them. ``damaged``: it was damaged, and nothing is known of its
    pointers until one is acknowledged; ``removes``: a scope may disappear as a whole."""

    survives = (FULL, FAST)

    def __init__(self, before: Contents, *, damaged: bool = False, removes: bool = False) -> None:
        super().__init__()
        self.before = before
        self.damaged = self.repaired = damaged
        self.removes = removes
        for scope in () if damaged else before.pointers():
            self.heads[scope] = [Note("head", scope, sha256=sha) for sha in before.chain(scope)]

    def apply(self, *notes: Note) -> None:
        """Apply acknowledgements; a new head ends the damage."""
        super().apply(*notes)
        self.damaged = self.damaged and not any(note.what == "head" for note in notes)

    def judge(self, state_dir: Path) -> Contents:
        """Require all invariants that hold right after a writer died, and return the contents of the state dir."""
        contents = Contents.read(state_dir)
        if self.damaged:
            self._require_nothing_lost(contents)
            return contents
        if self.removes:
            # A removal that was not acknowledged yet may be complete.
            self.apply(*(Note("removed", scope) for scope in set(self.heads) - set(contents.snapshots)))
        for scope in {*self.heads, *contents.snapshots}:
            self._judge_scope(contents, scope)
        gone = self.kept - contents.tree.keys()
        require(not gone, f"acknowledged and missing: {gone}")
        if "stateline.json" in contents.tree:
            require_only_residue(Store.open(state_dir), repaired=self.repaired)
        return contents

    def _judge_scope(self, contents: Contents, scope: str) -> None:
        known, chain = self.digests(scope), contents.chain(scope)
        require([sha for sha in chain if sha in set(known)] == known, f"{scope}: acknowledged {known}, found {chain}")
        # The head may be one snapshot more: a save that was complete but not acknowledged.
        later = chain[chain.index(known[-1]) + 1 :] if known else chain
        require(len(later) <= 1, f"{scope}: {later} were never acknowledged")
        loose = [link for link in contents.snapshots.get(scope, {}).values() if link.sha256 not in set(chain)]
        unfinished = [link.path for link in loose if f"{scope}/{link.path}" not in self.kept]
        require(len(unfinished) <= 1, f"{scope}: more than one save was unfinished: {unfinished}")
        for link in loose:
            require(link.document["prev_sha"] in {None, *chain}, f"{scope}/{link.path} has no parent")

    def _require_nothing_lost(self, contents: Contents) -> None:
        """Require that an unfinished repair kept every intact file under its name."""
        for scope, snapshots in self.before.snapshots.items():
            for name, link in snapshots.items():
                require(contents.snapshots[scope].get(name) == link, f"a repair lost {scope}/{name}")
        for scope, torn in self.before.pointers().items():
            there = contents.tree.get(f"{scope}/latest.json")
            require(torn == there or torn in contents.aside, "the damaged pointer is gone")
        require(self.before.objects() <= contents.objects(), "a repair lost an object")


def require_only_residue(store: Store | str, *, repaired: bool = False) -> Report | None:
    """Require that ``verify`` finds residue at most, a missing store file included; after a repair also its records.
    A path that does not exist passes."""
    if isinstance(store, str):
        if not os.path.isdir(store):
            return None
        store = fresh_store(store)
    harmless = ("no_store", "extension", "lost") if repaired else ("no_store",)
    report = verify(store)
    worse = [
        found
        for found in report.findings
        if found.severity != "residue" and not (found.severity == "warning" and found.code in harmless)
    ]
    require(report.ok and not worse, f"verify found {worse}")
    return report


def require_reported(error: StatelineError, *, damaged: bool = False) -> None:
    """Require that an error says what happened, what was not changed and what to do next, and that it reports damage
    only if there is some."""
    require(bool(error.message), f"{type(error).__name__} has no message")
    require(bool(error.hint), f"{type(error).__name__} has no hint: {error.message}")
    text = error.message + " " + error.hint
    words = ("unchanged", "untouched", "nothing", "not changed", "as it was")
    require(any(word in text.lower() for word in words), f"it does not say what was not changed: {text}")
    require(damaged or error.exit_code in (1, 4), f"{error.code}, exit {error.exit_code}: {error.message}")


def require_poisoned(store: Store, state_dir: str, key: str) -> None:
    """Require that a store writes nothing more after one of its syncs failed."""
    before = Picture.of(state_dir)
    try:
        store.scope(key).save({"n": "after a failed sync"}, wait=LOCK_WAIT)
    except StatelineError:
        pass
    else:
        raise ViolationError("a store saved again although one of its syncs had failed")
    require(Picture.of(state_dir) == before, "a store wrote again although one of its syncs had failed")


def fresh_store(state_dir: str) -> Store:
    """Open the store as another process does."""
    return Store(LocalBackend(state_dir), redactor=Redactor())


def chain_of(state_dir: str, scope: str) -> list[str]:
    """Return the digests of a scope's chain, newest first, after checking every byte; [] without a pointer."""
    return [link.sha256 for link in oracle.chain_of(oracle.tree_of(state_dir), scope)][::-1]


def head_of(state_dir: str, scope: str) -> str:
    """Return the digest in a scope's pointer, or ""."""
    return oracle.heads_of(oracle.tree_of(state_dir)).get(scope, "")


def keys_of(state_dir: str) -> dict[str, str]:
    """Return the key of every scope that holds a snapshot, by its hash."""
    return oracle.keys_of(oracle.tree_of(state_dir))


def repair_again(state_dir: str) -> None:
    """Require that another repair finishes what the first one left."""
    done = apply_repair(fresh_store(state_dir), None, wait=LOCK_WAIT)
    require(done.ok, f"a second repair does not finish the first: {done.findings} {done.blocked}")


def require_next_save(state_dir: str, keys: dict[str, str]) -> None:
    """Require that another writer can save to each of the scopes ``keys`` (by hash), and sweeps temporary files."""
    for scope, key in keys.items():
        before = head_of(state_dir, scope)
        saved = fresh_store(state_dir).scope(key).save({"n": "next"}, wait=LOCK_WAIT)
        left = [name for name in os.listdir(Path(state_dir) / scope) if name.startswith(".tmp-")]
        require(not left, f"after the next save {left} is in {key}")
        require(saved.envelope.prev_sha == (before or None), f"the next save of {key} has another parent")


def save_next(state_dir: Path) -> Note:
    """Save as another writer and lock every scope. Require that all temporary files are swept by then."""
    store = Store.open(state_dir)
    saved = store.scope(NOTES).save({"n": "next", "text": "next" * 2000})
    for hashed in list(store.backend.scopes()):
        with store.backend.lock(hashed, wait=5.0):
            pass
    left = [path for path in Contents.read(state_dir).temporary if "/" in path and path.index("/") == 64]
    require(not left, f"never swept: {left}")
    return Note("head", saved.scope, saved.path, saved.sha256)


def require_among(links: Iterable[tuple[str, str]], chain: list[tuple[str, str]], message: str) -> None:
    """Require that all ``links`` (file name or "", digest) are on the chain, in that order."""
    steps = iter(chain)
    missing = [(name, sha) for name, sha in links if not any(sha == its and name in ("", own) for own, its in steps)]
    require(not missing, f"{message}: {missing}")


def lines_of(file: Path) -> list[list[str]]:
    """Return the words of each complete line of a file; a line that was cut off acknowledges nothing."""
    if not file.exists():
        return []
    return [line.split() for line in file.read_text().rpartition("\n")[0].splitlines()]
