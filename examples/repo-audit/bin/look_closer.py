#!/usr/bin/env python3
"""Looks closer at what nobody has explained yet, a little deeper each time it is called: first at the lines around a
finding and at what .gitattributes says of its file, then at the commits that touched the file, then for other places
that hold the same. It gathers evidence; explain.py judges it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from audit import task
from audit.names import raw, shown
from audit.repository import Commit, Repository, is_binary

AROUND = 2  # lines before and after a finding
WORDS = re.compile(
    rb"\b(example|sample|dummy|fake|placeholder|fixture|made up|not real|revoked|expired|test (?:key|data))s?\b", re.I
)
COMMIT_WORDS = re.compile(
    r"\b(example|sample|dummy|fake|placeholder|fixture|test data|vendor(?:ed|ing)?|revoked?|rotated?)s?\b", re.I
)
ATTRIBUTES = ("linguist-generated", "linguist-vendored", "filter")
LOOKS_AT = ("the lines around it and .gitattributes", "the commits that touched it", "other places that hold the same")
MAX_COPIES = 10
SPECIFIC = 10  # files; the subject of a commit that touched more says nothing about one of them


def look_closer(document: task.Json) -> dict[str, task.Json]:
    state = document["state"]
    repository = Repository(document["input"]["repository"])
    open_findings = [state["findings"][name] for name in state["unexplained"] if name in state["findings"]]
    looks: list[Callable[..., dict[str, dict[str, task.Json]]]] = [around, commits, copies]
    depth = state["depth"]
    if not 0 <= depth < len(looks):
        raise task.Problem(f"there is no look number {depth + 1}; the last one is {len(looks)}")
    evidence = looks[depth](repository, open_findings, state["findings"])
    return {"looked_at": LOOKS_AT[depth], "evidence": evidence, "deeper": depth + 1 < len(looks), "cut": repository.cut}


def around(repository: Repository, findings: list[task.Json], _: task.Json) -> dict[str, dict[str, task.Json]]:
    """Words near a leak that say what it is, and attributes of large files. Only the word is kept, never the line."""
    evidence: dict[str, dict[str, task.Json]] = {}
    leaks = [finding for finding in findings if finding["kind"] == "leak"]
    sizes = repository.sizes({finding["blob"] for finding in leaks})
    contents = repository.contents((oid, size) for oid, size in sorted(sizes.items()))
    nearby = {oid: content.split(b"\n") for oid, content in contents if not is_binary(content)}
    for finding in leaks:
        said = word_near(nearby.get(finding["blob"], []), finding["lines"])
        if said:
            evidence[finding["id"]] = {"nearby": said}
    for finding in findings:
        if finding["kind"] == "large-file" and finding["where"] == "tracked":
            attributes = attributes_of(repository, finding["path"])
            if attributes:
                evidence[finding["id"]] = {"attributes": attributes}
    return evidence


def word_near(lines: list[bytes], numbers: list[int]) -> dict[str, task.Json] | None:
    """The first telling word near *every* place of the key: one place without a word leaves it unexplained."""
    first = None
    for number in numbers:
        start = max(number - 1 - AROUND, 0)
        hits = [(i + 1, m[1]) for i in range(start, min(number + AROUND, len(lines))) if (m := WORDS.search(lines[i]))]
        if not hits:
            return None
        first = first or {"line": hits[0][0], "word": hits[0][1].decode().lower()}
    return first


def attributes_of(repository: Repository, path: str) -> dict[str, str]:
    listed = repository.git("check-attr", "--cached", "-z", *ATTRIBUTES, "--", os.fsdecode(raw(path)))
    fields = listed.rstrip(b"\n").decode("utf-8", "replace").split("\0")
    found = dict(zip(fields[1::3], fields[2::3], strict=False))
    return {name: value for name, value in found.items() if value not in {"unspecified", "unset", "false"}}


def commits(repository: Repository, findings: list[task.Json], _: task.Json) -> dict[str, dict[str, task.Json]]:
    """Of each file: how many commits touched it, the oldest of them, and the newest whose subject says what it is."""
    wanted = {raw(finding["path"]) for finding in findings if finding["path"]}
    touching: dict[bytes, list[Commit]] = {path: [] for path in wanted}
    for commit in repository.commits(changes="names", everywhere=True):
        for path in wanted & commit.changes.keys():
            touching[path].append(commit)
    evidence = {}
    for finding in findings:
        touched = touching.get(raw(finding["path"]), []) if finding["path"] else []
        if touched:
            evidence[finding["id"]] = {"commits": described(touched)}
    return evidence


def described(touched: list[Commit]) -> dict[str, task.Json]:
    oldest = touched[-1]
    specific = (commit for commit in touched if len(commit.changes) <= SPECIFIC)
    telling = next((commit for commit in specific if COMMIT_WORDS.search(commit.subject)), None)
    word = COMMIT_WORDS.search(telling.subject) if telling else None
    return {
        "count": len(touched),
        "oldest": {"commit": oldest.oid, "day": oldest.day},
        "says": {"commit": telling.oid, "word": word[1].lower()} if telling and word else None,
    }


def copies(
    repository: Repository, findings: list[task.Json], everything: dict[str, task.Json]
) -> dict[str, dict[str, task.Json]]:
    """Other paths that hold the same key, or the same content as a large file."""
    by_content: dict[str, list[str]] = {}
    for entry in repository.entries():
        by_content.setdefault(entry.oid, []).append(shown(entry.path))
    by_key: dict[str, list[str]] = {}
    for finding in everything.values():
        if finding["kind"] == "leak":
            by_key.setdefault(finding["fingerprint"], []).append(finding["path"])
    evidence = {}
    for finding in findings:
        if finding["kind"] == "licence":
            continue
        same = by_key[finding["fingerprint"]] if finding["kind"] == "leak" else by_content.get(finding["blob"], [])
        others = sorted(set(same) - {finding["path"]})
        if others:
            evidence[finding["id"]] = {"copies": others[:MAX_COPIES]}
    return evidence


if __name__ == "__main__":
    task.run(look_closer)
