#!/usr/bin/env python3
"""Which findings the repository itself explains, and which remain.

A finding is explained by, in this order: a line of the repository's own `.audit-allow`; being an obvious placeholder;
standing in a directory of tests or examples; the evidence that look_closer.py has gathered so far.
"""

from __future__ import annotations

import fnmatch
from typing import NamedTuple

from audit import task
from audit.repository import SUBMODULE, SYMLINK, Repository

ALLOW_FILE = b".audit-allow"
KINDS = ("leak", "large-file", "licence", "*")
DIRECTORIES = {"test", "tests", "testing", "testdata", "test-data", "spec", "specs", "fixture", "fixtures"}
DIRECTORIES |= {"__fixtures__", "__tests__", "example", "examples", "sample", "samples", "mocks", "__mocks__"}
MAX_IN_BRIEF = 20


class Allowed(NamedTuple):
    """One line of `.audit-allow`: findings of ``kind`` whose path or id fits ``pattern`` are fine for ``reason``."""

    line: int
    kind: str
    pattern: str
    reason: str

    def covers(self, finding: task.Json) -> bool:
        fits = fnmatch.fnmatchcase(finding["path"], self.pattern) or self.pattern == finding["id"]
        return self.kind in ("*", finding["kind"]) and fits


def explain(document: task.Json) -> dict[str, task.Json]:
    state = document["state"]
    allowed, mistakes = read_allow_file(Repository(document["input"]["repository"]))
    explained: dict[str, str] = {}
    unexplained: list[task.Json] = []
    for name, finding in sorted(state["findings"].items()):
        reason = why(finding, state["evidence"].get(name, {}), allowed)
        if reason:
            explained[name] = reason
        else:
            unexplained.append(finding)
    used = {a.line for a in allowed for finding in state["findings"].values() if a.covers(finding)}
    return {
        "explained": explained,
        "unexplained": [finding["id"] for finding in unexplained],
        "remaining": len(unexplained),
        "brief": brief(unexplained),
        "allow_file": {
            "lines": len(allowed),
            "covering_nothing": [a.line for a in allowed if a.line not in used],
            "mistakes": mistakes,
        },
    }


def read_allow_file(repository: Repository) -> tuple[list[Allowed], list[str]]:
    """The lines of `.audit-allow` at the repository's top, and what is wrong with those that cannot be used."""
    allowed: list[Allowed] = []
    mistakes: list[str] = []
    entry = next((e for e in repository.entries() if e.path == ALLOW_FILE and e.mode not in (SYMLINK, SUBMODULE)), None)
    text = (
        "".join(content.decode("utf-8", "replace") for _, content in repository.contents([(entry.oid, entry.size)]))
        if entry
        else ""
    )
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split(None, 2)
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3:
            mistakes.append(f"line {number} is not used: it needs a kind, a pattern and a reason")
        elif words[0] not in KINDS:
            mistakes.append(f"line {number} is not used: its kind is none of {', '.join(KINDS)}")
        else:
            allowed.append(Allowed(number, words[0], words[1], words[2].strip()[:200]))
    return allowed, mistakes


def why(finding: task.Json, evidence: task.Json, allowed: list[Allowed]) -> str | None:
    """Return a short explanation of ``finding``, or None."""
    line = next((a for a in allowed if a.covers(finding)), None)
    if line:
        return f".audit-allow, line {line.line}: {line.reason}"
    if finding.get("placeholder"):
        return "the value is a placeholder"
    directory = expected_directory(finding["path"])
    if directory:
        return f"it is in a directory named {directory}"
    return by_evidence(evidence)


def by_evidence(evidence: task.Json) -> str | None:
    if "nearby" in evidence:
        return f'line {evidence["nearby"]["line"]} near it says "{evidence["nearby"]["word"]}"'
    if "attributes" in evidence:
        return ".gitattributes says " + ", ".join(f"{k}={v}" for k, v in sorted(evidence["attributes"].items()))
    says = evidence.get("commits", {}).get("says")
    if says:
        return f'commit {says["commit"][:12]} says "{says["word"]}"'
    copy = next((path for path in evidence.get("copies", []) if expected_directory(path)), None)
    return f"a copy is in {copy}, where it is expected" if copy else None


def expected_directory(path: str) -> str | None:
    return next((name for name in path.split("/")[:-1] if name.lower() in DIRECTORIES), None)


def brief(findings: list[task.Json]) -> str:
    """The findings as lines for a person who is asked about them."""
    lines = [f"- {f['path'] or '(the repository)'}: {f['message']} [{f['id']}]" for f in findings[:MAX_IN_BRIEF]]
    if len(findings) > MAX_IN_BRIEF:
        lines.append(f"- and {len(findings) - MAX_IN_BRIEF} more")
    return "\n".join(lines)


if __name__ == "__main__":
    task.run(explain)
