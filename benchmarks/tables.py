"""Results as Markdown tables, written between markers of a document whose prose is somebody's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.measure import Row
from benchmarks.targets import Results, targets

Document = dict[str, Any]
"""Result of a run: ``subjects`` {name: {"machine", "measured_at", "command", "rows"}} and ``targets``."""

_COLUMNS: dict[str, dict[str, str]] = {
    "startup": {
        "what": "command",
        "cpu_ms": "CPU [ms]",
        "ratio": "x",
        "modules": "modules",
        "brought_by_libraries": "of them brought by libraries",
        "not_needed": "not needed",
        "heaviest_not_needed": "the heaviest of those",
    },
    "commits": {
        "what": "save",
        "save_ms": "save [ms]",
        "plain_ms": "plain calls [ms]",
        "ratio": "x",
        "replayed_ms": "all its calls [ms]",
        "ratio_replayed": "x all its calls",
        "save_cpu_ms": "CPU of a save [ms]",
        "plain_cpu_ms": "CPU of the plain calls [ms]",
        "syncs": "syncs",
        "syscalls": "system calls",
        "bytes_written": "bytes written",
    },
    "growth": {
        "what": "command",
        "length": "length",
        "cpu_ms": "CPU [ms]",
        "cpu_ratio": "x",
        "wall_ms": "time [ms]",
        "wall_ratio": "x",
    },
    "verify": {
        "what": "snapshots of",
        "files": "files",
        "bytes": "bytes",
        "verify_ms": "verify [ms]",
        "sha256sum_ms": "sha256sum [ms]",
        "ratio": "x",
        "cpu_ratio": "x, CPU",
        "hashlib_ms": "hashlib [ms]",
        "hashlib_ratio": "x hashlib",
    },
    "bytes": {
        "what": "a turn with",
        "turn": "turn",
        "bytes_written": "bytes written",
        "snapshot_bytes": "of them the snapshot",
        "new_files": "new files",
        "new_objects": "of them objects",
        "syncs": "syncs",
    },
    "rivals": {
        "what": "save of 2 KiB",
        "version": "version",
        "warm_ms": "in a warm process [ms]",
        "ratio": "x plain calls",
        "fresh_cpu_ms": "CPU of a fresh process [ms]",
        "fresh_ratio": "x `python -c pass`",
        "syncs": "syncs",
    },
}


def text(document: Document, subject: str) -> str:
    """One subject's tables, with what they were measured on."""
    found = document["subjects"][subject]
    table = _table([list(_COLUMNS[subject].values())], found["rows"], list(_COLUMNS[subject]))
    notes = _syscalls(found["rows"]) if subject == "commits" else ""
    return f"{_measured(found)}\n\n{table}{notes}"


def target_table(document: Document) -> str:
    """Target, reached, verdict; of all subjects that the document holds. A quick run has no verdicts."""
    results: Results = {name: found["rows"] for name, found in document["subjects"].items()}
    rows: list[Row] = []
    for target in targets(results):
        rows.append(
            {
                "what": target.what,
                "limit": f"≤ {_number(target.limit)} {target.unit}",
                "reached": "" if target.reached is None else f"{_number(target.reached)} {target.unit}",
                "verdict": target.verdict,
            }
        )
    columns = {"what": "what", "limit": "target", "reached": "reached", "verdict": "verdict"}
    said = ""
    if is_quick(document):
        del columns["verdict"]
        said = "Figures of a quick run mean nothing, and are not judged.\n\n"
    return said + _table([list(columns.values())], rows, list(columns))


def is_quick(document: Document) -> bool:
    """Return whether a part of it comes from a quick run, whose figures mean nothing."""
    return any(found["quick"] for found in document["subjects"].values())


def rewrite(path: Path, document: Document) -> list[str]:
    """Put the tables between ``<!-- bench:NAME -->`` and ``<!-- /bench -->``; the names that were found. What stands
    outside the markers, and a subject that the document does not hold, is left as it is."""
    found: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name != "targets" and name not in document["subjects"]:
            return match[0]
        found.append(name)
        table = target_table(document) if name == "targets" else text(document, name)
        return f"<!-- bench:{name} -->\n\n{table}\n<!-- /bench -->"

    old = path.read_text()
    new = re.sub(r"<!-- bench:(\w+) -->\n.*?<!-- /bench -->", replaced, old, flags=re.DOTALL)
    path.write_text(new)
    return found


def _measured(found: dict[str, Any]) -> str:
    machine = found["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"`{found['command']}`, {found['measured_at']}, commit {machine['source'] or 'unknown'}: "
        f"{machine['cpus']} CPUs ({machine['processor']}), {machine['system']}, {machine['file_system']}, "
        f"Python {machine['python']}, {versions}; before it, load {machine['load'][0]} and "
        f"{machine.get('create_us', 'unknown')} us to make a file."
    )


def _syscalls(rows: list[Row]) -> str:
    lines = [
        f"- {row['what']}: " + ", ".join(f"{name} {count}" for name, count in row["syscall_names"].items())
        for row in rows
        if row.get("syscall_names")
    ]
    return "\nThe system calls of one save:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _table(head: list[list[str]], rows: list[Row], columns: list[str]) -> str:
    lines = [*head, ["---"] * len(columns)]
    lines += [[_cell(row, column) for column in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(row: Row, column: str) -> str:
    value = row.get(column)
    if "skipped" in row and column != "what":
        return f"skipped: {row['skipped']}" if column == "warm_ms" else ""
    if isinstance(value, list):
        return ", ".join(str(item) for item in value[:3])
    return "" if value is None else _number(value) if isinstance(value, int | float) else str(value)


def _number(value: float) -> str:
    whole = value == int(value) and (isinstance(value, int) or abs(value) >= 100)
    return f"{int(value):,}" if whole else f"{value:g}"
