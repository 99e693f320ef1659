"""A scope's chain read with a JSON parser and SHA-256 alone, for judges that must not trust the store's own eyes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
from campaigns.chain import demand


def said_by(file: Path) -> list[list[str]]:
    """The words of each whole line of a file; a line that was cut acknowledges nothing. No file: nothing was said."""
    if not file.exists():
        return []
    return [line.split() for line in file.read_text().rpartition("\n")[0].splitlines()]


class Chain(msgspec.Struct, frozen=True):
    """What lies in a scope's directory. ``files`` maps each snapshot's sha to its document, ``names`` to its file's
    name; ``order`` are the shas from the first to the head, ``on_chain`` maps them to their places in it; ``loose`` are
    the shas beside the chain, ``temporary`` names of unfinished files."""

    state_dir: Path
    files: dict[str, dict[str, Any]]
    names: dict[str, str]
    order: list[str]
    on_chain: dict[str, int]
    loose: list[str]
    temporary: list[str]

    @classmethod
    def read(cls, state_dir: Path, key: str) -> Chain:
        """Read all of it. Raises ``Violated`` if the pointer, or what it leads to, is not as the format says."""
        scope = state_dir / hashlib.sha256(key.encode()).hexdigest()
        files: dict[str, dict[str, Any]] = {}
        names: dict[str, str] = {}
        temporary: list[str] = []
        for path in sorted(scope.iterdir()):
            if path.name.startswith("state-"):
                data = path.read_bytes()
                sha = hashlib.sha256(data).hexdigest()
                label = path.stem.rpartition("-")[2]
                demand(sha.startswith(label) and len(label) >= 8, f"{path.name} has the digest {sha}")
                demand(sha not in files, f"{path.name} is there twice")
                files[sha], names[sha] = json.loads(data), path.name
                demand(files[sha]["scope"] == key, f"{path.name} belongs to another scope")
            elif path.name.startswith(".tmp-"):
                temporary.append(path.name)
            else:
                demand(path.name in ("latest.json", "scope.lock"), f"{path.name} does not belong here")
        order = _order(json.loads((scope / "latest.json").read_bytes()), files, names)
        on_chain = {sha: place for place, sha in enumerate(order)}
        loose = [sha for sha in files if sha not in on_chain]
        return cls(state_dir, files, names, order, on_chain, loose, temporary)

    def states(self) -> list[dict[str, Any]]:
        """The states on the chain, oldest first, with null where an object stands."""
        return [self.files[sha]["state"] for sha in self.order]

    def values(self, place: str) -> list[Any]:
        """The objects at ``place`` (a JSON Pointer) of the states on the chain, oldest first; each has its digest."""
        found = []
        for sha in self.order:
            digest = self.files[sha]["objects"][place]["sha256"]
            data = (self.state_dir / "objects" / digest[:2] / digest).read_bytes()
            demand(hashlib.sha256(data).hexdigest() == digest, f"the object {digest} is altered")
            found.append(json.loads(data))
        return found

    def parent_of(self, sha: str) -> str | None:
        """The sha of a snapshot's parent, or None for a first one."""
        parent: str | None = self.files[sha]["prev_sha"]
        return parent


def _order(pointer: dict[str, Any], files: dict[str, dict[str, Any]], names: dict[str, str]) -> list[str]:
    """The chain from its first snapshot to the one that the pointer names. Raises ``Violated`` if it is not one."""
    order: list[str] = []
    path, sha = pointer["path"], pointer["sha256"]
    while sha is not None:
        demand(sha in files, f"the chain leads to {sha}, which is not there")
        demand(names[sha] == path, f"the chain calls {sha} {path}, and it is {names[sha]}")
        order.append(sha)
        path, sha = files[sha]["prev"], files[sha]["prev_sha"]
    order.reverse()
    for place, sha in enumerate(order):
        demand(files[sha]["seq"] == place, f"{names[sha]} has seq {files[sha]['seq']} at place {place}")
    times = [files[sha]["created_at"] for sha in order]
    demand(times == sorted(set(times)), "times do not rise along the chain")
    return order
