#!/usr/bin/env python3
"""Files larger than the limit, among the tracked ones and anywhere in history."""

from __future__ import annotations

from audit import task
from audit.names import identity, shown
from audit.repository import SUBMODULE, Entry, Repository


def sizes(document: task.Json) -> dict[str, task.Json]:
    limit = limit_of(document["state"])
    repository = Repository(document["input"]["repository"])
    entries = [entry for entry in repository.entries() if entry.mode != SUBMODULE]
    tracked = {entry.oid for entry in entries}
    findings = [about(entry, "tracked", limit) for entry in largest_first(entries, limit)]
    past = [Entry("", blob.oid, blob.path, blob.size) for blob in repository.history_blobs() if blob.oid not in tracked]
    findings += [about(entry, "history", limit) for entry in largest_first(past, limit)]
    return {"max_file_bytes": limit, "cut": repository.cut, **task.keep(findings)}


def limit_of(state: task.Json) -> int:
    limit = state["limits"]["max_file_bytes"]
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise task.Problem(f"max_file_bytes must be a whole number of bytes above 0, and is {limit!r}")
    return limit


def largest_first(entries: list[Entry], limit: int) -> list[Entry]:
    return sorted((entry for entry in entries if entry.size > limit), key=lambda e: (-e.size, e.path, e.oid))


def about(entry: Entry, where: str, limit: int) -> dict[str, task.Json]:
    place = "tracked" if where == "tracked" else "no longer tracked, but still in history"
    return {
        "id": identity("large-file", entry.oid.encode(), entry.path),
        "kind": "large-file",
        "rule": f"large-{where}",
        "path": shown(entry.path),
        "where": where,
        "blob": entry.oid,
        "bytes": entry.size,
        "message": f"{entry.size:,} bytes ({place}; the limit is {limit:,})",
    }


if __name__ == "__main__":
    task.run(sizes)
