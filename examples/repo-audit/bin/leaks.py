#!/usr/bin/env python3
"""Access keys and private keys in tracked files and in history. What is found never leaves this program: a finding
holds the kind of key, its place, its length, and a fingerprint by which two findings can be told to be the same key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from audit import task
from audit.names import identity, shown
from audit.patterns import Match, found_in, is_placeholder
from audit.repository import SUBMODULE, Repository, is_binary

MAX_LINES = 20


def leaks(document: task.Json) -> dict[str, task.Json]:
    repository = Repository(document["input"]["repository"])
    places: dict[str, list[bytes]] = {}
    sizes: dict[str, int] = {}
    for entry in repository.entries():
        if entry.mode != SUBMODULE:
            places.setdefault(entry.oid, []).append(entry.path)
            sizes[entry.oid] = entry.size
    tracked = look(repository, places, sizes.items(), "tracked")
    known = {finding["fingerprint"] for finding in tracked}
    past = {blob.oid: blob for blob in repository.history_blobs() if blob.oid not in places}
    paths = {oid: [blob.path] for oid, blob in past.items()}
    gone = look(repository, paths, ((oid, blob.size) for oid, blob in past.items()), "history")
    findings = tracked + [finding for finding in gone if finding["fingerprint"] not in known]
    return {"cut": repository.cut, **task.keep(findings)}


def look(
    repository: Repository, paths: dict[str, list[bytes]], blobs: Iterable[tuple[str, int]], where: str
) -> list[dict[str, task.Json]]:
    """One finding for each key in each file, sorted by path and line."""
    found: dict[str, dict[str, task.Json]] = {}
    for oid, content in repository.contents(blobs):
        if is_binary(content):
            continue
        for match in found_in(content):
            line = content.count(b"\n", 0, match.start) + 1
            for path in paths[oid]:
                add(found, about(match, path, oid, where), line)
    return sorted(found.values(), key=lambda finding: (finding["path"], finding["lines"][0], finding["id"]))


def add(found: dict[str, dict[str, task.Json]], finding: dict[str, task.Json], line: int) -> None:
    """The same key at several lines of a file (or in several versions of it) is one finding."""
    kept = found.setdefault(finding["id"], finding)
    if kept["blob"] == finding["blob"] and line not in kept["lines"] and len(kept["lines"]) < MAX_LINES:
        kept["lines"].append(line)


def about(match: Match, path: bytes, oid: str, where: str) -> dict[str, task.Json]:
    fingerprint = hashlib.sha256(b"repo-audit\0" + match.value).hexdigest()[:16]
    place = "tracked" if where == "tracked" else "no longer tracked, but still in history"
    return {
        "id": identity("leak", match.rule.encode(), path, fingerprint.encode()),
        "kind": "leak",
        "rule": match.rule,
        "path": shown(path),
        "where": where,
        "blob": oid,
        "lines": [],
        "fingerprint": fingerprint,
        "placeholder": is_placeholder(match),
        "message": f"{match.rule}: {match.literal}... ({len(match.value)} characters; {place})",
    }


if __name__ == "__main__":
    task.run(leaks)
