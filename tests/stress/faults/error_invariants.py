"""Is everything there that was acknowledged? Judged by ``stress.oracle``, then by the store itself.

An error, wherever it comes, may cost the change that was being made. It never costs what was acknowledged before, and
it leaves a place in which the next writer can go on.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from stress import ledger, oracle
from stress.invariants import ViolationError, require

from stateline import Store
from stateline.bundle import naming
from stateline.errors import StatelineError
from stateline.redaction.redactor import Redactor
from stateline.service.repair import apply_repair
from stateline.store.local.backend import LocalBackend

SOON = 1.0
"""[s] within which somebody else gets a scope's lock."""


class Picture(msgspec.Struct, frozen=True):
    """All files below a place: the SHA-256 of each by its path, and the path of each directory."""

    files: dict[str, str]
    directories: frozenset[str]

    @classmethod
    def of(cls, root: str) -> Picture:
        """As the place is now; modes are looked at on the way."""
        strange = oracle.strange_in(root)
        require(not strange, "; ".join(strange))
        tree = oracle.tree_of(root)
        directories = frozenset(path[:-1] for path in tree if path.endswith("/"))
        return cls({path: oracle.sha256(tree[path]) for path in tree if path and path[-1] != "/"}, directories)

    def lasting(self) -> dict[str, str]:
        """Snapshots and objects, which are written once."""
        return {path: sha for path, sha in self.files.items() if is_lasting(path)}


def is_lasting(path: str) -> bool:
    """Whether a snapshot or an object has that path in a state dir."""
    place, _, name = path.rpartition("/")
    return (naming.is_sha256(place) and name.startswith("state-")) or (
        place.startswith(naming.OBJECTS) and naming.is_sha256(name)
    )


@ledger.demanding()
def chain_of(root: str, scope: str) -> list[str]:
    """The digests of a scope's chain, newest first, every byte of it and of its objects looked at; [] without a
    pointer. Raises :class:`ViolationError`."""
    return [link.sha256 for link in oracle.chain_of(oracle.tree_of(root), scope)][::-1]


def require_told(error: StatelineError, *, damaged: bool = False) -> None:
    """An error says what happened, what was left untouched and what to do next; and does not call damage what only
    could not be read, unless there is some."""
    require(bool(error.message), f"{type(error).__name__} says nothing")
    require(bool(error.hint), f"{type(error).__name__} has no hint: {error.message}")
    said = error.message + " " + error.hint
    words = ("untouched", "nothing", "as it was")
    require(any(word in said.lower() for word in words), f"it does not say what was left untouched: {said}")
    require(damaged or error.exit_code in (1, 4), f"it is called {error.code}, exit {error.exit_code}: {error.message}")


def require_poisoned(store: Store, root: str, key: str) -> None:
    """A store whose sync of something failed writes nothing more."""
    before = Picture.of(root)
    try:
        store.scope(key).save({"n": "after a failed sync"}, wait=SOON)
    except StatelineError:
        pass
    else:
        raise ViolationError("a store saved again although a sync of it had failed")
    require(Picture.of(root) == before, "a store wrote again although a sync of it had failed")


def fresh(root: str) -> Store:
    """The store as another process opens it."""
    return Store(LocalBackend(root), redactor=Redactor())


def keys_of(path: str) -> dict[str, str]:
    """The key of every scope in a place that holds a snapshot, by its hash."""
    return oracle.keys_of(oracle.tree_of(path))


def require_only_residue(root: str, *, mended: bool = False) -> None:
    """``verify`` sees what a crash leaves at most; where something was ``mended``, the records of that too."""
    if os.path.isdir(root):
        ledger.require_only_residue(fresh(root), mended=mended)


def mend(root: str) -> None:
    """Another repair ends what the first one left."""
    done = apply_repair(fresh(root), None, wait=SOON)
    require(done.ok, f"a second repair does not mend what the first left: {done.findings} {done.blocked}")


def require_next_save(root: str, keys: dict[str, str]) -> None:
    """Somebody else saves to each of the scopes ``keys`` (by hash) at once, and nothing half written is left there."""
    for scope, key in keys.items():
        store = fresh(root)
        before = head_of(root, scope)
        saved = store.scope(key).save({"n": "next"}, wait=SOON)
        litter = [name for name in os.listdir(Path(root) / scope) if name.startswith(naming.TEMPORARY)]
        require(not litter, f"after the next save {litter} lies in {key}")
        require(saved.envelope.prev_sha == (before or None), f"the next save of {key} stands on another head")


@ledger.demanding()
def head_of(root: str, scope: str) -> str:
    """The digest that a scope's pointer names, or ""."""
    return oracle.heads_of(oracle.tree_of(root)).get(scope, "")
