"""Is everything there that was acknowledged? Judged with nothing but JSON and SHA-256, then by the store itself.

An error, wherever it comes, may cost the change that was being made. It never costs what was acknowledged before, and
it leaves a place in which the next writer can go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stateline import Store
from stateline.bundle import canonical, naming
from stateline.bundle.redact import Redactor
from stateline.errors import StatelineError
from stateline.history.verify import verify
from stateline.service.repair import apply_repair
from stateline.store.local import LocalBackend

Json = Any
NODES = ("application/vnd.stateline.node+json", "application/vnd.stateline.list+json")
SOON = 1.0
"""[s] within which somebody else gets a scope's lock."""


class Harm(AssertionError):
    """Something is not as it must be."""


def demand(holds: bool, what: str) -> None:
    """Raise :class:`Harm` unless ``holds``."""
    if not holds:
        raise Harm(what)


class Picture(msgspec.Struct, frozen=True):
    """All files below a place: the SHA-256 of each by its path, and the path of each directory."""

    files: dict[str, str]
    directories: frozenset[str]

    @classmethod
    def of(cls, root: str) -> Picture:
        """As the place is now; modes are looked at on the way."""
        files: dict[str, str] = {}
        directories: set[str] = set()
        for path, entry in _entries(root, ""):
            if entry.is_dir(follow_symlinks=False):
                directories.add(path)
            else:
                with open(entry.path, "rb") as file:
                    files[path] = hashlib.sha256(file.read()).hexdigest()
        return cls(files, frozenset(directories))

    def lasting(self) -> dict[str, str]:
        """Snapshots and objects, which are written once."""
        return {path: sha for path, sha in self.files.items() if is_lasting(path)}


def is_lasting(path: str) -> bool:
    """Whether a snapshot or an object has that path in a state dir."""
    place, _, name = path.rpartition("/")
    return (naming.is_sha256(place) and name.startswith("state-")) or (
        place.startswith(naming.OBJECTS) and naming.is_sha256(name)
    )


def _entries(root: str, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(os.path.join(root, below)) as entries:
        found = list(entries)
    for entry in found:
        path = f"{below}/{entry.name}" if below else entry.name
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        demand(not mode & 0o077, f"{path} has the mode {mode:04o}")
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(root, path)


def chain_of(root: str, scope: str) -> list[str]:
    """The digests of a scope's chain, newest first, every byte of it and of its objects looked at; [] without a
    pointer. Raises :class:`Harm`."""
    pointer = _document(root, f"{scope}/{naming.POINTER}", None)
    if pointer is None:
        return []
    chain: list[str] = []
    path, sha = pointer["path"], pointer["sha256"]
    while path is not None:
        snapshot = _document(root, f"{scope}/{path}", sha)
        demand(snapshot is not None, f"{scope}/{path}, which something names, is not there")
        chain.append(sha)
        _objects(root, snapshot, f"{scope}/{path}")
        path, sha = snapshot["prev"], snapshot["prev_sha"]
    return chain


def _objects(root: str, holder: Json, where: str) -> None:
    for ref in [*holder["objects"].values(), *([holder["before"]] if holder.get("before") else [])]:
        name = f"{naming.OBJECTS}/{ref['sha256'][:2]}/{ref['sha256']}"
        data = _bytes(root, name)
        demand(data is not None, f"{name}, which {where} names, is not there")
        assert data is not None
        demand(len(data) == ref["size"], f"{name} has {len(data)} bytes")
        demand(hashlib.sha256(data).hexdigest() == ref["sha256"], f"{name} has other bytes")
        if ref["media_type"] in NODES:
            _objects(root, json.loads(data), name)


def _document(root: str, path: str, sha: str | None) -> Json:
    data = _bytes(root, path)
    if data is None:
        return None
    if sha is not None:
        demand(hashlib.sha256(data).hexdigest() == sha, f"{path} has other bytes")
    return json.loads(data)


def _bytes(root: str, path: str) -> bytes | None:
    try:
        with open(os.path.join(root, path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def demand_told(error: StatelineError, *, damaged: bool = False) -> None:
    """An error says what happened, what was left untouched and what to do next; and does not call damage what only
    could not be read, unless there is some."""
    demand(bool(error.message), f"{type(error).__name__} says nothing")
    demand(bool(error.hint), f"{type(error).__name__} has no hint: {error.message}")
    said = error.message + " " + error.hint
    words = ("untouched", "nothing", "as it was")
    demand(any(word in said.lower() for word in words), f"it does not say what was left untouched: {said}")
    demand(damaged or error.exit_code in (1, 4), f"it is called {error.code}, exit {error.exit_code}: {error.message}")


def demand_poisoned(store: Store, root: str, key: str) -> None:
    """A store whose sync of something failed writes nothing more."""
    before = Picture.of(root)
    try:
        store.scope(key).save({"n": "after a failed sync"}, wait=SOON)
    except StatelineError:
        pass
    else:
        raise Harm("a store saved again although a sync of it had failed")
    demand(Picture.of(root) == before, "a store wrote again although a sync of it had failed")


def fresh(root: str) -> Store:
    """The store as another process opens it."""
    return Store(LocalBackend(root), redactor=Redactor())


def keys_of(path: str) -> dict[str, str]:
    """The key of every scope in a place that holds a snapshot, by its hash."""
    found: dict[str, str] = {}
    if os.path.isdir(path):
        backend = fresh(path).backend
        for scope in backend.scopes():
            names = sorted(name for name in backend.list(scope) if naming.snapshot_parts(name))
            if names:
                found[scope] = json.loads(backend.get(f"{scope}/{names[0]}", canonical.SNAPSHOT_LIMIT))["scope"]
    return found


def demand_only_residue(root: str, *, mended: bool = False) -> None:
    """``verify`` sees what a crash leaves at most; where something was ``mended``, the records of that too."""
    if not os.path.isdir(root):
        return
    harmless = ("no_store", "extension", "lost") if mended else ("no_store",)
    report = verify(fresh(root))
    worse = [found for found in report.findings if found.severity != "residue" and found.code not in harmless]
    demand(report.ok and not worse, f"verify finds {worse}")


def mend(root: str) -> None:
    """Another repair ends what the first one left."""
    done = apply_repair(fresh(root), None, wait=SOON)
    demand(done.ok, f"a second repair does not mend what the first left: {done.findings} {done.blocked}")


def demand_next_save(root: str, keys: dict[str, str]) -> None:
    """Somebody else saves to each of the scopes ``keys`` (by hash) at once, and nothing half written is left there."""
    for scope, key in keys.items():
        store = fresh(root)
        before = head_of(root, scope)
        saved = store.scope(key).save({"n": "next"}, wait=SOON)
        litter = [name for name in os.listdir(Path(root) / scope) if name.startswith(naming.TEMPORARY)]
        demand(not litter, f"after the next save {litter} lies in {key}")
        demand(saved.envelope.prev_sha == (before or None), f"the next save of {key} stands on another head")


def head_of(root: str, scope: str) -> str:
    """The digest that a scope's pointer names, or ""."""
    pointer = _document(root, f"{scope}/{naming.POINTER}", None)
    return "" if pointer is None else str(pointer["sha256"])
