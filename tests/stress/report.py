"""Latest results of the suites, stored as JSON, and their table in docs/reliability.md."""

from __future__ import annotations

import datetime
import json
import platform
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec

CHECKOUT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = CHECKOUT / "docs" / "reliability.md"
_MOST = 8
"""Counts in a table that a line shows."""
_TABLE = re.compile(r"<!-- torture -->\n.*?<!-- /torture -->", re.DOTALL)


class Run(msgspec.Struct, frozen=True):
    """One invocation: the seed, the other ``options`` as written, and the commit; ``scenarios``
    if not all ran."""

    seed: str
    options: str
    commit: str
    scenarios: tuple[str, ...] = ()


def keep(suite: str, run: Run, found: dict[str, Any]) -> None:
    """Keep what a suite found, in the place of what it found before, and renew the table. What was found with some
    scenarios alone has a place of its own, ``SUITE: SCENARIO, ...``."""
    results = load()
    results[": ".join(filter(None, [suite, ", ".join(run.scenarios)]))] = {
        "command": f"scripts/torture --suite {shlex.quote(suite)} --seed {shlex.quote(run.seed)} {run.options}",
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": run.commit,
        "system": f"{platform.system()} {platform.release().partition('-')[0]}, Python {platform.python_version()}",
        "found": found,
    }
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    # As it is read back: the order of what is kept is the file's.
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")


def load() -> dict[str, Any]:
    """Return the stored results by suite."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return results


def renewed(page: str, results: dict[str, Any]) -> str:
    """The page with the table of ``results``. Raises ValueError for a page without a place for it."""
    if not _TABLE.search(page):
        raise ValueError("there are no lines `<!-- torture -->` and `<!-- /torture -->`")
    table = "\n".join(_row(suite, results[suite]) for suite in sorted(results))
    head = "| suite, and how it was run | found | at |\n| --- | --- | --- |"
    return _TABLE.sub(lambda _: f"<!-- torture -->\n\n{head}\n{table}\n\n<!-- /torture -->", page)


def _row(suite: str, result: dict[str, Any]) -> str:
    found = "; ".join(f"{name} {_number(value)}" for name, value in figures(result["found"]))
    return f"| **{suite}** `{_number(result['command'])}` | {found} | {result['day']}, `{result['commit']}` |"


def figures(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """The numbers and words at the top of a summary, and small tables of counts; the rest is for programs."""
    told: list[tuple[str, Any]] = []
    for name, value in found.items():
        if isinstance(value, str | int | float):
            told.append((name.replace("_", " "), value))
        elif isinstance(value, dict) and 0 < len(value) <= _MOST and all(type(each) is int for each in value.values()):
            parts = ", ".join(f"{each} {_number(count)}" for each, count in sorted(value.items()))
            told.append((name.replace("_", " "), f"({parts})"))
    return told


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "\\|").replace("\n", " ")
    return f"{value:,}"


def commit() -> str:
    """The commit that is checked out, with ``-dirty`` if something was changed."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "unknown"
