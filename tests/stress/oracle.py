"""What a state dir says, read with a JSON parser and SHA-256 alone: its heads, its chains, and what lies beside them.

Judges compare with this what the store, ``verify`` and a repair say of the same bytes. Both are built apart:
nothing of the store or of its format's code is imported here, not even names of files. The rule is docs/format.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

Json = Any
_Ref = tuple[str, str, int, bool]  # an object: path, digest, size [bytes], whether it names others in turn

Tree = Mapping[str, bytes]
"""The bytes of what lies in a state dir, by the path from there. A directory ends in a slash and has none; the state
dir itself is "". Without a state dir there is nothing."""

_SNAPSHOT = re.compile(r"([0-9a-f]{64})/(state-[0-9TZ.-]+-([0-9a-f]{8}|[0-9a-f]{16}|[0-9a-f]{64})[.]json)")
_remembered = lru_cache(8192)  # a campaign meets the same bytes a million times


class Broken(AssertionError):
    """Something is not as the format says."""


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
    """The digest that each pointer names, by the scope's hash. Raises :class:`Broken` if one is no pointer."""
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
    without a pointer. Raises :class:`Broken`."""
    where = f"{scope_hash}/latest.json"
    return chain_from(tree, scope_hash, *_read(where, _pointer, tree[where])) if where in tree else ()


def chain_from(tree: Tree, scope_hash: str, path: str, sha: str) -> tuple[Link, ...]:
    """The chain that ends with that snapshot, likewise. It goes on below what a repair declared lost."""
    return _read(scope_hash, _walked, tree, scope_hash, path, sha)


def snapshot_of(tree: Tree, scope_hash: str, path: str, sha: str) -> Link:
    """That snapshot, with all its objects looked at. Raises :class:`Broken`."""
    return _read(scope_hash, _link, tree, scope_hash, path, sha, set(), set())


def _read(where: str, read: Callable[..., Any], *what: Any) -> Any:
    try:
        return read(*what)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Broken(f"{where}: {error!r}") from None


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
            raise Broken(f"{scope}/{path} has seq {document['seq']} and time {document['created_at']}, not before")
        links.append(link)
        if repaired := document["event"].get("repaired"):
            lost.update(repaired["objects"])
            for gap in repaired["gaps"]:
                gaps.setdefault(gap["lost"]["sha256"], (gap["lost"]["seq"], gap["resumes"]))
        path, sha, seq = document["prev"], document["prev_sha"], document["seq"] - 1
    if seq != -1 or (sha is not None and document["origin"]["sha256"] != sha):
        raise Broken(f"{scope}/{links[-1].path} has seq {seq + 1} and no parent, or another origin")
    return tuple(reversed(links))


def _link(tree: Tree, scope: str, path: str, sha: str, lost: set[str], sound: set[_Ref]) -> Link:
    data = tree.get(f"{scope}/{path}")
    if data is None:
        raise Broken(f"{scope}/{path} of the digest {sha} is not there")
    if sha256(data) != sha or not sha.startswith(path[path.rindex("-") + 1 : -5]):
        raise Broken(f"{scope}/{path} ({len(data)} bytes) is not what {sha} names")
    document, refs = _document(data)
    if sha256(document["scope"].encode()) != scope:
        raise Broken(f"{scope}/{path} belongs to another scope")
    waiting = list(refs)
    while waiting:
        ref = waiting.pop()
        if ref in sound or (ref[1] in lost and ref[0] not in tree):
            continue
        data = tree.get(ref[0])
        if data is None:
            raise Broken(f"the object {ref[1]} is not there")
        if len(data) != ref[2] or sha256(data) != ref[1]:
            raise Broken(f"the object {ref[1]} is altered: {len(data)} bytes, not {ref[2]}, or others")
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
