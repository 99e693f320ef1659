"""Independent reader of a state dir: heads, chains, and the files beside them, with a JSON parser and SHA-256 only.

The stress tests compare the store, ``verify`` and repairs with this reader. It follows docs/format.md and imports
nothing of the product, not even file names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

Json = Any
_Ref = tuple[str, str, int, bool]  # an object: path, digest, size [bytes], whether it names others in turn

Tree = Mapping[str, bytes]
"""The bytes of what lies in a state dir, by the path from there. A directory ends in a slash and has none; the state
dir itself is "". Without a state dir there is nothing."""

_SCOPE = re.compile(r"[0-9a-f]{64}")
_SNAPSHOT = re.compile(r"([0-9a-f]{64})/(state-[0-9TZ.-]+-([0-9a-f]{8}|[0-9a-f]{16}|[0-9a-f]{64})[.]json)")
_IMMUTABLE = re.compile(r"[0-9a-f]{64}/state-[^/]*|objects/(?:[^/]*/)*[0-9a-f]{64}")
_remembered = lru_cache(8192)  # a campaign meets the same bytes a million times


class ViolationError(AssertionError):
    """An invariant does not hold, or a file is not as the format says."""


def require(holds: bool, what: str) -> None:
    """Raise :class:`ViolationError` unless ``holds``. Unlike ``assert``, this also works under ``python -O``."""
    if not holds:
        raise ViolationError(what)


class Link(NamedTuple):
    """A snapshot: the name of its file, its digest, and what the file says."""

    path: str
    sha256: str
    document: Json


def tree_of(state_dir: str | Path) -> dict[str, bytes]:
    """All that lies in a directory. What is neither a file nor a directory has no bytes, and is not followed."""
    found = {}
    for path, seen in _entries(state_dir):
        found[path] = b""
        if stat.S_ISREG(seen.st_mode):
            with open(os.path.join(state_dir, path), "rb") as file:
                found[path] = file.read()
    return found


def strange_in(state_dir: str | Path) -> list[str]:
    """A sentence about each thing in a directory that is neither a file of mode 0600 nor a directory of 0700."""
    found = []
    for path, seen in _entries(state_dir):
        right = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o600}.get(stat.S_IFMT(seen.st_mode))
        if right is None:
            found.append(f"{path} is neither a file nor a directory")
        elif seen.st_mode & 0o777 != right:
            found.append(f"{path or state_dir} has the mode {seen.st_mode & 0o777:04o}")
    return found


def _entries(state_dir: str | Path) -> Iterator[tuple[str, os.stat_result]]:
    if not os.path.isdir(state_dir):
        return
    yield "", os.stat(state_dir)
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(os.path.join(state_dir, above)) as entries:
            for entry in entries:
                seen = entry.stat(follow_symlinks=False)
                path = f"{above}{entry.name}" + "/" * stat.S_ISDIR(seen.st_mode)
                waiting += [path] * path.endswith("/")
                yield path, seen


@_remembered
def sha256(data: bytes) -> str:
    """The SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def heads_of(tree: Tree) -> dict[str, str]:
    """The digest that each pointer names, by the scope's hash. Raises :class:`ViolationError` if one is no pointer."""
    paths = [path for path in tree if path[64:] == "/latest.json"]
    return {path[:64]: _read(path, _pointer, tree[path])[1] for path in paths}


def snapshots_of(tree: Tree) -> dict[str, list[Link]]:
    """The intact snapshots by the scope's hash, in the order of their names, whether something leads to them or not."""
    found: dict[str, list[Link]] = {}
    for path in sorted(tree):
        match = _SNAPSHOT.fullmatch(path)
        if match and sha256(tree[path]).startswith(match[3]):
            found.setdefault(match[1], []).append(Link(match[2], sha256(tree[path]), _document(tree[path])[0]))
    return found


def keys_of(tree: Tree) -> dict[str, str]:
    """The key of each scope of which a snapshot is intact, by its hash."""
    return {scope: links[0].document["scope"] for scope, links in snapshots_of(tree).items()}


def chain_of(tree: Tree, scope_hash: str) -> tuple[Link, ...]:
    """The chain that a scope's pointer leads to, oldest first, each snapshot and all that it names looked at; empty
    without a pointer. Raises :class:`ViolationError`."""
    where = f"{scope_hash}/latest.json"
    return chain_from(tree, scope_hash, *_read(where, _pointer, tree[where])) if where in tree else ()


def chain_from(tree: Tree, scope_hash: str, path: str, sha: str) -> tuple[Link, ...]:
    """The chain that ends with that snapshot, likewise. It continues below what a repair declared lost."""
    return _read(scope_hash, _walked, tree, scope_hash, path, sha)


def snapshot_of(tree: Tree, scope_hash: str, path: str, sha: str) -> Link:
    """Return one snapshot after checking all its objects. Raises :class:`ViolationError`."""
    return _read(scope_hash, _link, tree, scope_hash, path, sha, set(), set())


def _read(where: str, read: Callable[..., Any], *what: Any) -> Any:
    try:
        return read(*what)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ViolationError(f"{where}: {error!r}") from None


def _walked(tree: Tree, scope: str, path: str | None, sha: str) -> tuple[Link, ...]:
    links: list[Link] = []
    gaps, lost, sound, seq = {}, set(), set(), -1
    while path is not None:
        if sha in gaps and f"{scope}/{path}" not in tree:
            above, below = gaps.pop(sha)
            if below is None:
                return tuple(reversed(links))
            if below["seq"] >= above and below["sha256"] != sha:
                raise ValueError("a gap leads upwards")
            path, sha, seq = below["path"], below["sha256"], below["seq"]
            continue
        link = _link(tree, scope, path, sha, lost, sound)
        document = link.document
        if links and (document["seq"] != seq or document["created_at"] >= links[-1].document["created_at"]):
            raise ViolationError(
                f"{scope}/{path} has seq {document['seq']} and time {document['created_at']}, not before"
            )
        links.append(link)
        if repaired := document["event"].get("repaired"):
            lost.update(repaired["objects"])
            for gap in repaired["gaps"]:
                gaps.setdefault(gap["lost"]["sha256"], (gap["lost"]["seq"], gap["resumes"]))
        path, sha, seq = document["prev"], document["prev_sha"], document["seq"] - 1
    if seq != -1 or (sha is not None and document["origin"]["sha256"] != sha):
        raise ViolationError(f"{scope}/{links[-1].path} has seq {seq + 1} and no parent, or another origin")
    return tuple(reversed(links))


def _link(tree: Tree, scope: str, path: str, sha: str, lost: set[str], sound: set[_Ref]) -> Link:
    data = tree.get(f"{scope}/{path}")
    if data is None:
        raise ViolationError(f"{scope}/{path} of the digest {sha} is not there")
    if sha256(data) != sha or not sha.startswith(path[path.rindex("-") + 1 : -5]):
        raise ViolationError(f"{scope}/{path} ({len(data)} bytes) is not what {sha} names")
    document, refs = _document(data)
    if sha256(document["scope"].encode()) != scope:
        raise ViolationError(f"{scope}/{path} belongs to another scope")
    waiting = list(refs)
    while waiting:
        ref = waiting.pop()
        if ref in sound or (ref[1] in lost and ref[0] not in tree):
            continue
        data = tree.get(ref[0])
        if data is None:
            raise ViolationError(f"the object {ref[1]} is not there")
        if len(data) != ref[2] or sha256(data) != ref[1]:
            raise ViolationError(f"the object {ref[1]} is altered: {len(data)} bytes, not {ref[2]}, or others")
        sound.add(ref)
        if ref[3]:
            waiting += _document(data)[1]
    return Link(path, sha, document)


@_remembered
def _pointer(data: bytes) -> tuple[str, str]:
    said = json.loads(data)
    plain = json.dumps({"path": said["path"], "sha256": said["sha256"], "version": "1"}, separators=(",", ":"))
    if plain.encode() != data:
        raise ValueError(f"{data[:200]!r} is no pointer")
    return said["path"], said["sha256"]


@_remembered
def _document(data: bytes) -> tuple[Json, list[_Ref]]:
    document = json.loads(data)
    refs = []
    for ref in [*document["objects"].values(), *filter(None, [document.get("before")])]:
        sha, nested = ref["sha256"], ref["media_type"].startswith("application/vnd.stateline.")
        refs.append((f"objects/{sha[:2]}/{sha}", sha, ref["size"], nested))
    return document, refs


# -- everything in a state dir -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """Digests of all files in a state dir, by path, and the paths of its directories."""

    files: dict[str, str]
    directories: frozenset[str]

    @classmethod
    def of(cls, state_dir: str | Path) -> Picture:
        """Take a picture of the state dir, empty if there is none. Raises ``ViolationError`` for a wrong mode or
        type."""
        require_private(state_dir)
        tree = tree_of(state_dir)
        directories = frozenset(path[:-1] for path in tree if path.endswith("/"))
        return cls({path: sha256(tree[path]) for path in tree if path and path[-1] != "/"}, directories)

    def immutable(self) -> dict[str, str]:
        """Return snapshots and objects, which are written once."""
        return {path: sha for path, sha in self.files.items() if _IMMUTABLE.fullmatch(path)}


def require_private(state_dir: str | Path) -> None:
    """Require files of mode 0600 and directories of mode 0700, and nothing else."""
    strange = strange_in(state_dir)
    require(not strange, "; ".join(strange))


@dataclass
class Contents:
    """Files of a state dir, sorted by kind: ``snapshots`` by scope and name, ``temporary`` paths, and ``aside``, the
    bytes of files in quarantine or in a scope that is being removed."""

    tree: Tree
    snapshots: dict[str, dict[str, Link]] = field(default_factory=dict)
    temporary: list[str] = field(default_factory=list)
    aside: list[bytes] = field(default_factory=list)

    @classmethod
    def read(cls, state_dir: Path) -> Contents:
        """Read a state dir, which may be absent. Require that each file is private, whole, and under a valid name."""
        require_private(state_dir)
        tree = tree_of(state_dir)
        snapshots = snapshots_of(tree)
        contents = cls(tree, {scope: {link.path: link for link in links} for scope, links in snapshots.items()})
        for path in tree:
            if path and not path.endswith("/"):
                contents._sort(path)
        return contents

    def _sort(self, path: str) -> None:
        data = self.tree[path]
        top, _, base = path.partition("/")
        if path.rpartition("/")[2].startswith(".tmp-") and not top.startswith("."):
            self.temporary.append(path)
        elif top.startswith(("ext-", ".rm-")):
            self.aside.append(data)
        elif top.startswith(".tmp-"):
            self.temporary.append(path)
        elif top == "objects":
            sha = sha256(data)
            require(base == f"{sha[:2]}/{sha}", f"{path} holds other bytes")
        elif path == "stateline.json":
            require(json.loads(data)["format"] == "stateline/1", f"{path} is not whole")
        elif _SCOPE.fullmatch(top) and base == "latest.json":
            self.snapshots.setdefault(top, {})
        elif _SCOPE.fullmatch(top) and base.startswith("state-"):
            require(base in self.snapshots.get(top, {}), f"{path} holds other bytes")
        else:
            require(bool(_SCOPE.fullmatch(top)) and base == "scope.lock", f"{path} does not belong here")

    def pointers(self) -> dict[str, bytes]:
        """Return the bytes of each pointer by scope."""
        return {path[:64]: data for path, data in self.tree.items() if path[64:] == "/latest.json"}

    def chain(self, scope: str) -> list[str]:
        """Return the digests from the first snapshot to the head; empty without a pointer."""
        return [link.sha256 for link in chain_of(self.tree, scope)]

    def objects(self) -> set[str]:
        """Return the paths of the objects."""
        return {path for path in self.tree if path.startswith("objects/")}


@dataclass(frozen=True)
class Chain:
    """Directory of one scope. ``files`` maps digests to documents, ``names`` digests to file names. ``order`` has the
    digests from the first to the head, ``on_chain`` their positions, ``loose`` the digests beside the chain."""

    tree: Tree
    files: dict[str, dict[str, Any]]
    names: dict[str, str]
    order: list[str]
    on_chain: dict[str, int]
    loose: list[str]
    temporary: list[str]

    @classmethod
    def read(cls, state_dir: Path, key: str) -> Chain:
        """Read the scope ``key``. Raises ``ViolationError`` if the pointer or anything it leads to breaks the
        format."""
        contents = Contents.read(state_dir)
        tree, scope = contents.tree, sha256(key.encode())
        links = contents.snapshots.get(scope, {}).values()
        files = {link.sha256: link.document for link in links}
        require(len(files) == len(links), f"{key} holds a snapshot twice")
        require(all(document["scope"] == key for document in files.values()), f"{key} holds another scope's snapshots")
        require(f"{scope}/latest.json" in tree, f"{key} has no pointer")
        order = contents.chain(scope)
        on_chain = {sha: place for place, sha in enumerate(order)}
        loose = [sha for sha in files if sha not in on_chain]
        temporary = sorted(path[65:] for path in contents.temporary if path.startswith(scope))
        return cls(tree, files, {link.sha256: link.path for link in links}, order, on_chain, loose, temporary)

    def states(self) -> list[dict[str, Any]]:
        """Return the states on the chain, oldest first, with null in place of each object."""
        return [self.files[sha]["state"] for sha in self.order]

    def values(self, place: str) -> list[Any]:
        """Return the objects at the JSON Pointer ``place`` of the states on the chain, oldest first."""
        digests = [self.files[sha]["objects"][place]["sha256"] for sha in self.order]
        return [json.loads(self.tree[f"objects/{digest[:2]}/{digest}"]) for digest in digests]

    def parent_of(self, sha: str) -> str | None:
        """Return the digest of a snapshot's parent, or None for a first one."""
        parent: str | None = self.files[sha]["prev_sha"]
        return parent
