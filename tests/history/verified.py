"""A chain that is verified, and what is read off the report."""

from __future__ import annotations

from pathlib import Path

from stateline.verify.findings import Finding, Report

KEY = "notes:x"
BIG = "x" * 5000
NODE = {"body": "a" * 4094, "note": "b" * 3000, "tail": "c" * 3000}


def codes(report: Report) -> list[tuple[str, str]]:
    return sorted((finding.severity, finding.code) for finding in report.findings)


def only(report: Report) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def tree(place: Path) -> list[tuple[str, int, int, int]]:
    found = []
    for path in [place, *place.rglob("*")]:
        raw = path.lstat()
        found.append((str(path), raw.st_mode, raw.st_mtime_ns, raw.st_size))
    return sorted(found)
