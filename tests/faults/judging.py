"""What must hold of a state dir on which a writer was killed: looked at by a walk of its own, over files and JSON, and
by ``verify``.

Every demand raises :class:`campaigns.chain.Violated`.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from campaigns.chain import demand
from crash.workloads import NOTES, Note

from stateline import Store
from stateline.bundle import naming
from stateline.history.verify import verify

Json = Any

_SNAPSHOT = re.compile(r"state-[0-9TZ.-]+-(?P<label>[0-9a-f]{8,64})\.json")
_SCOPE = re.compile(r"[0-9a-f]{64}")


class Tree(msgspec.Struct):
    """What lies in a state dir. ``snapshots``: by scope, name to (sha, document); ``pointers``: by scope, the bytes;
    ``objects``: digest to size [bytes]; ``temporary``: paths of temporary files; ``aside``: bytes of what a repair set
    aside, and of what is being removed."""

    snapshots: dict[str, dict[str, tuple[str, Json]]] = {}
    pointers: dict[str, bytes] = {}
    objects: dict[str, int] = {}
    temporary: list[str] = []
    aside: list[bytes] = []

    def chain(self, scope: str) -> list[tuple[str, str]]:
        """(sha, name) from the head back to the first, over what a repair declared lost; empty without a pointer."""
        if scope not in self.pointers:
            return []
        pointer = json.loads(self.pointers[scope])
        chain: list[tuple[str, str]] = []
        resumes: dict[str, Json] = {}
        sha, name = pointer["sha256"], pointer["path"]
        while sha is not None:
            found = self.snapshots[scope].get(name)
            if found is None and sha in resumes:
                below = resumes.pop(sha)
                sha, name = (below["sha256"], below["path"]) if below else (None, None)
                continue
            demand(found is not None and found[0] == sha, f"{scope}/{name} of the digest {sha} is not there")
            assert found is not None
            chain.append((sha, name))
            document = found[1]
            for gap in document["event"].get("repaired", {}).get("gaps", []):
                resumes[gap["lost"]["sha256"]] = gap["resumes"]
            self._demand_objects(document["objects"], set(document["event"].get("repaired", {}).get("objects", [])))
            sha, name = document["prev_sha"], document["prev"]
        return chain

    def _demand_objects(self, table: dict[str, Json], lost: set[str]) -> None:
        for ref in table.values():
            there = self.objects.get(ref["sha256"]) == ref["size"]
            demand(there or ref["sha256"] in lost, f"the object {ref['sha256']} is not there")


def look(state_dir: Path) -> Tree:
    """Everything in a state dir, which may be absent. Demands that each file is whole, under a name that belongs there,
    and that nobody else may use it."""
    tree = Tree()
    for path in sorted(state_dir.rglob("*")) if state_dir.exists() else []:
        info = path.lstat()
        name = str(path.relative_to(state_dir))
        kind = stat.S_IFMT(info.st_mode)
        demand(kind in (stat.S_IFREG, stat.S_IFDIR), f"{name} is neither a file nor a directory")
        mode = 0o700 if kind == stat.S_IFDIR else 0o600
        demand(stat.S_IMODE(info.st_mode) == mode, f"{name} has the mode {stat.S_IMODE(info.st_mode):o}")
        if kind == stat.S_IFREG:
            _sort(tree, path, name)
    return tree


def _sort(tree: Tree, path: Path, name: str) -> None:
    data = path.read_bytes()
    sha = hashlib.sha256(data).hexdigest()
    top, _, base = name.partition("/")
    if path.name.startswith(naming.TEMPORARY) and not top.startswith("."):
        tree.temporary.append(name)
    elif top.startswith((naming.EXTENSION, naming.REMOVED)):
        tree.aside.append(data)
    elif top.startswith(naming.TEMPORARY):
        tree.temporary.append(name)
    elif top == "objects":
        demand(base == f"{sha[:2]}/{sha}", f"{name} holds other bytes")
        tree.objects[sha] = len(data)
    elif name == naming.STORE_FILE:
        demand(json.loads(data)["format"] == "stateline/1", f"{name} is not whole")
    elif _SCOPE.fullmatch(top) and base == naming.POINTER:
        tree.pointers[top] = data
        tree.snapshots.setdefault(top, {})
    elif _SCOPE.fullmatch(top) and (label := _SNAPSHOT.fullmatch(base)):
        demand(sha.startswith(label["label"]), f"{name} holds other bytes")
        tree.snapshots.setdefault(top, {})[base] = (sha, json.loads(data))
    else:
        demand(bool(_SCOPE.fullmatch(top)) and base == naming.LOCK, f"{name} does not belong here")


class Expectation(msgspec.Struct):
    """What is known of a place. ``chains``: by scope, the shas that must be on its chain, oldest first; ``kept``: paths
    that must be there; ``before``: what lay there at the beginning. ``damaged``: it was damaged then, and nothing is
    known of its pointers until one is acknowledged; ``vanishing``: a scope may be gone as a whole; ``warnings``: what
    ``verify`` may say beside residue, (severity, code)."""

    chains: dict[str, list[str]]
    kept: set[str]
    before: Tree
    damaged: bool = False
    vanishing: bool = False
    warnings: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, tree: Tree, *, damaged: bool = False, vanishing: bool = False) -> Expectation:
        """What is known of a place that nobody has touched."""
        chains = {} if damaged else {scope: [sha for sha, _ in tree.chain(scope)][::-1] for scope in tree.pointers}
        # A repair leaves two warnings behind for ever.
        warnings = {("warning", "lost"), ("warning", "extension")} if damaged else set()
        return cls(chains, set(), tree, damaged, vanishing, frozenset(warnings))

    def heed(self, notes: Iterable[Note]) -> None:
        """Learn of acknowledgements, in their order."""
        for note in notes:
            if note.what == "head":
                self.chains.setdefault(note.scope, []).append(note.sha256)
                self.damaged = False
            elif note.what == "kept":
                self.kept.add(note.name)
            else:
                self.chains.pop(note.scope, None)
                self.kept = {name for name in self.kept if not name.startswith(note.scope)}


def judge(state_dir: Path, expected: Expectation) -> Tree:
    """Demand all that must hold right after a death; what lies there."""
    tree = look(state_dir)
    if expected.damaged:
        _demand_nothing_lost(tree, expected.before)
        return tree
    if expected.vanishing:
        # Whole, or not at all: a removal that nobody was told of may have come to its end.
        for scope in set(expected.chains) - set(tree.snapshots):
            expected.heed([Note("removed", scope)])
    for scope in {*expected.chains, *tree.snapshots}:
        _judge_scope(tree, scope, expected)
    gone = [name for name in expected.kept if not _is_there(tree, name)]
    demand(not gone, f"acknowledged and not there: {gone}")
    if (state_dir / naming.STORE_FILE).exists():
        report = verify(Store.open(state_dir))
        worse = [
            finding
            for finding in report.findings
            if finding.severity != "residue" and (finding.severity, finding.code) not in expected.warnings
        ]
        demand(report.ok and not worse, f"verify found {worse}")
    return tree


def _judge_scope(tree: Tree, scope: str, expected: Expectation) -> None:
    known = expected.chains.get(scope, [])
    chain = [sha for sha, _ in tree.chain(scope)][::-1]
    on_it = [sha for sha in chain if sha in set(known)]
    demand(on_it == known, f"{scope}: acknowledged {known}, on the chain are {chain}")
    # One snapshot more may be the head: the whole of an unacknowledged save.
    later = chain[chain.index(known[-1]) + 1 :] if known else chain
    demand(len(later) <= 1, f"{scope}: {later} were never acknowledged")
    snapshots = tree.snapshots.get(scope, {})
    loose = {name: found for name, found in snapshots.items() if found[0] not in set(chain)}
    kept = [name for name in loose if f"{scope}/{name}" in expected.kept]
    demand(len(loose) - len(kept) <= 1, f"{scope}: more than one save was under way: {sorted(loose)}")
    for name, (_, document) in loose.items():
        demand(document["prev_sha"] in {None, *chain}, f"{scope}/{name} stands on nothing")


def _is_there(tree: Tree, name: str) -> bool:
    place, _, base = name.rpartition("/")
    return base in tree.objects if place.startswith("objects") else base in tree.snapshots.get(place, {})


def _demand_nothing_lost(tree: Tree, before: Tree) -> None:
    """As long as a repair is under way, all that was intact is there under its own name."""
    for scope, snapshots in before.snapshots.items():
        for name, (sha, _) in snapshots.items():
            demand(tree.snapshots[scope].get(name, ("",))[0] == sha, f"{scope}/{name} was lost by a repair")
        torn = before.pointers[scope]
        demand(tree.pointers.get(scope) == torn or torn in tree.aside, "the damaged pointer is gone")
    demand(set(before.objects) <= set(tree.objects), "an object was lost by a repair")


def save_next(state_dir: Path) -> Note:
    """The next save of somebody else, and a lock on every scope there is: what was half written is gone then."""
    store = Store.open(state_dir)
    saved = store.scope(NOTES).save({"n": "next", "text": "next" * 2000})
    for hashed in list(store.backend.scopes()):
        with store.backend.lock(hashed, wait=5.0):
            pass
    left = [name for name in look(state_dir).temporary if _SCOPE.fullmatch(name.partition("/")[0])]
    demand(not left, f"never swept: {left}")
    return Note("head", saved.scope, saved.path, saved.sha256)
