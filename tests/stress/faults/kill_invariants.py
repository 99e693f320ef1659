"""What must hold of a state dir on which a writer was killed: looked at by the oracle of ``campaigns.judges``, and by
``verify``.

Every demand raises :class:`stress.invariants.ViolationError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from stress import oracle
from stress.invariants import require
from stress.ledger import demanding, require_only_residue
from stress.oracle import Link
from stress.scenarios import NOTES, Note

from stateline import Store
from stateline.bundle import naming

_SCOPE = re.compile(r"[0-9a-f]{64}")


class Seen(msgspec.Struct):
    """What lies in a state dir: the ``tree``, and in it ``snapshots`` (by scope, by name), ``temporary`` (paths of
    temporary files) and ``aside`` (bytes of what a repair set aside, and of what is being removed)."""

    tree: oracle.Tree
    snapshots: dict[str, dict[str, Link]] = {}
    temporary: list[str] = []
    aside: list[bytes] = []

    def pointers(self) -> dict[str, bytes]:
        """The bytes of each pointer, by scope."""
        ends = f"/{naming.POINTER}"
        return {path.removesuffix(ends): data for path, data in self.tree.items() if path.endswith(ends)}

    def chain(self, scope: str) -> list[str]:
        """The shas from the first to the head; empty without a pointer."""
        return [link.sha256 for link in oracle.chain_of(self.tree, scope)]

    def objects(self) -> set[str]:
        """The paths of the objects."""
        return {path for path in self.tree if path.startswith("objects/")}


def look(state_dir: Path) -> Seen:
    """Everything in a state dir, which may be absent. Demands that each file is whole, under a name that belongs there,
    and that nobody else may use it."""
    strange = oracle.strange_in(state_dir)
    require(not strange, "; ".join(strange))
    tree = oracle.tree_of(state_dir)
    snapshots = oracle.snapshots_of(tree)
    seen = Seen(tree, {scope: {link.path: link for link in links} for scope, links in snapshots.items()})
    for path in tree:
        if path and not path.endswith("/"):
            _sort(seen, path)
    return seen


def _sort(seen: Seen, path: str) -> None:
    data = seen.tree[path]
    top, _, base = path.partition("/")
    if path.rpartition("/")[2].startswith(naming.TEMPORARY) and not top.startswith("."):
        seen.temporary.append(path)
    elif top.startswith((naming.EXTENSION, naming.REMOVED)):
        seen.aside.append(data)
    elif top.startswith(naming.TEMPORARY):
        seen.temporary.append(path)
    elif top == "objects":
        sha = oracle.sha256(data)
        require(base == f"{sha[:2]}/{sha}", f"{path} holds other bytes")
    elif path == naming.STORE_FILE:
        require(json.loads(data)["format"] == "stateline/1", f"{path} is not whole")
    elif _SCOPE.fullmatch(top) and base == naming.POINTER:
        seen.snapshots.setdefault(top, {})
    elif _SCOPE.fullmatch(top) and base.startswith("state-"):
        require(base in seen.snapshots.get(top, {}), f"{path} holds other bytes")
    else:
        require(bool(_SCOPE.fullmatch(top)) and base == naming.LOCK, f"{path} does not belong here")


class Expectation(msgspec.Struct):
    """What is known of a place. ``chains``: by scope, the shas that must be on its chain, oldest first; ``kept``: paths
    that must be there; ``before``: what lay there at the beginning. ``damaged``: it was damaged then, and nothing is
    known of its pointers until one is acknowledged; ``mended``: a repair has left, or will leave, its records;
    ``vanishing``: a scope may be gone as a whole."""

    chains: dict[str, list[str]]
    kept: set[str]
    before: Seen
    damaged: bool = False
    mended: bool = False
    vanishing: bool = False

    @classmethod
    def of(cls, seen: Seen, *, damaged: bool = False, vanishing: bool = False) -> Expectation:
        """What is known of a place that nobody has touched."""
        chains = {} if damaged else {scope: seen.chain(scope) for scope in seen.pointers()}
        return cls(chains, set(), seen, damaged, damaged, vanishing)

    def apply_losses(self, notes: Iterable[Note]) -> None:
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


@demanding()
def judge(state_dir: Path, expected: Expectation) -> Seen:
    """Demand all that must hold right after a death; what lies there."""
    seen = look(state_dir)
    if expected.damaged:
        _require_nothing_lost(seen, expected.before)
        return seen
    if expected.vanishing:
        # Whole, or not at all: a removal that nobody was told of may have come to its end.
        for scope in set(expected.chains) - set(seen.snapshots):
            expected.apply_losses([Note("removed", scope)])
    for scope in {*expected.chains, *seen.snapshots}:
        _judge_scope(seen, scope, expected)
    gone = expected.kept - seen.tree.keys()
    require(not gone, f"acknowledged and not there: {gone}")
    if naming.STORE_FILE in seen.tree:
        require_only_residue(Store.open(state_dir), mended=expected.mended)
    return seen


def _judge_scope(seen: Seen, scope: str, expected: Expectation) -> None:
    known = expected.chains.get(scope, [])
    chain = seen.chain(scope)
    on_it = [sha for sha in chain if sha in set(known)]
    require(on_it == known, f"{scope}: acknowledged {known}, on the chain are {chain}")
    # One snapshot more may be the head: the whole of an unacknowledged save.
    later = chain[chain.index(known[-1]) + 1 :] if known else chain
    require(len(later) <= 1, f"{scope}: {later} were never acknowledged")
    loose = [link for link in seen.snapshots.get(scope, {}).values() if link.sha256 not in set(chain)]
    under_way = [link.path for link in loose if f"{scope}/{link.path}" not in expected.kept]
    require(len(under_way) <= 1, f"{scope}: more than one save was under way: {under_way}")
    for link in loose:
        require(link.document["prev_sha"] in {None, *chain}, f"{scope}/{link.path} stands on nothing")


def _require_nothing_lost(seen: Seen, before: Seen) -> None:
    """As long as a repair is under way, all that was intact is there under its own name."""
    for scope, snapshots in before.snapshots.items():
        for name, link in snapshots.items():
            require(seen.snapshots[scope].get(name) == link, f"{scope}/{name} was lost by a repair")
    for scope, torn in before.pointers().items():
        there = seen.tree.get(f"{scope}/{naming.POINTER}")
        require(torn == there or torn in seen.aside, "the damaged pointer is gone")
    require(before.objects() <= seen.objects(), "an object was lost by a repair")


def save_next(state_dir: Path) -> Note:
    """The next save of somebody else, and a lock on every scope there is: what was half written is gone then."""
    store = Store.open(state_dir)
    saved = store.scope(NOTES).save({"n": "next", "text": "next" * 2000})
    for hashed in list(store.backend.scopes()):
        with store.backend.lock(hashed, wait=5.0):
            pass
    left = [name for name in look(state_dir).temporary if _SCOPE.fullmatch(name.partition("/")[0])]
    require(not left, f"never swept: {left}")
    return Note("head", saved.scope, saved.path, saved.sha256)
