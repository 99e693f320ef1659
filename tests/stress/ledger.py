"""What judges of real directories share: what the oracle cannot read breaks an invariant, ``verify`` finds residue
only, and in a scope's directory there is a chain and what lies beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from stress.invariants import ViolationError, require
from stress.oracle import Broken, Tree, chain_of, sha256, snapshots_of, tree_of

from stateline import Store
from stateline.verify.checker import verify
from stateline.verify.findings import Report


@contextmanager
def demanding() -> Iterator[None]:
    """What the oracle cannot read is an invariant that does not hold: ``Broken`` becomes ``ViolationError``."""
    try:
        yield
    except Broken as error:
        raise ViolationError(str(error)) from error


def require_only_residue(store: Store, *, mended: bool = False) -> Report:
    """``verify`` finds what a crash leaves at most, a store without its own file included; where something was
    ``mended``, the records of that too. Raises ``ViolationError``."""
    harmless = ("no_store", "extension", "lost") if mended else ("no_store",)
    report = verify(store)
    worse = [
        found
        for found in report.findings
        if found.severity != "residue" and not (found.severity == "warning" and found.code in harmless)
    ]
    require(report.ok and not worse, f"verify found {worse}")
    return report


def said_by(file: Path) -> list[list[str]]:
    """The words of each whole line of a file; a line that was cut acknowledges nothing. No file: nothing was said."""
    if not file.exists():
        return []
    return [line.split() for line in file.read_text().rpartition("\n")[0].splitlines()]


class Chain(msgspec.Struct, frozen=True):
    """What lies in a scope's directory. ``files`` maps each snapshot's sha to its document, ``names`` to its file's
    name; ``order`` are the shas from the first to the head, ``on_chain`` maps them to their places in it; ``loose`` are
    the shas beside the chain, ``temporary`` names of unfinished files, ``tree`` is the whole state dir."""

    tree: Tree
    files: dict[str, dict[str, Any]]
    names: dict[str, str]
    order: list[str]
    on_chain: dict[str, int]
    loose: list[str]
    temporary: list[str]

    @classmethod
    @demanding()
    def read(cls, state_dir: Path, key: str) -> Chain:
        """Read all of it. Raises ``ViolationError`` if the pointer, or what it leads to, is not as the format says."""
        tree = tree_of(state_dir)
        scope = sha256(key.encode())
        snapshots = snapshots_of(tree).get(scope, [])
        files = {link.sha256: link.document for link in snapshots}
        names = {link.sha256: link.path for link in snapshots}
        require(len(files) == len(snapshots), f"{key} holds a snapshot twice")
        temporary: list[str] = []
        for name in {path[65:] for path in tree if path.startswith(f"{scope}/")} - {"", *names.values()}:
            require(not name.startswith("state-"), f"{name} has another digest")
            if name.startswith(".tmp-"):
                temporary.append(name)
            else:
                require(name in ("latest.json", "scope.lock"), f"{name} does not belong here")
        require(all(document["scope"] == key for document in files.values()), f"{key} holds another scope's snapshots")
        require(f"{scope}/latest.json" in tree, f"{key} has no pointer")
        order = [link.sha256 for link in chain_of(tree, scope)]
        on_chain = {sha: place for place, sha in enumerate(order)}
        loose = [sha for sha in files if sha not in on_chain]
        return cls(tree, files, names, order, on_chain, loose, sorted(temporary))

    def states(self) -> list[dict[str, Any]]:
        """The states on the chain, oldest first, with null where an object stands."""
        return [self.files[sha]["state"] for sha in self.order]

    def values(self, place: str) -> list[Any]:
        """The objects at ``place`` (a JSON Pointer) of the states on the chain, oldest first."""
        digests = [self.files[sha]["objects"][place]["sha256"] for sha in self.order]
        return [json.loads(self.tree[f"objects/{digest[:2]}/{digest}"]) for digest in digests]

    def parent_of(self, sha: str) -> str | None:
        """The sha of a snapshot's parent, or None for a first one."""
        parent: str | None = self.files[sha]["prev_sha"]
        return parent
