"""Measures what Stateline costs: ``scripts/bench`` runs this.

Says on stderr what it does, and prints tables on stdout. Nothing here judges but the table of targets, and nothing
fails because something is slow.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import places, tables, targets
from benchmarks.measure import Failed

SUBJECTS = {
    "startup": "benchmarks.startup",
    "commits": "benchmarks.commits",
    "rivals": "benchmarks.rivals",
    "bytes": "benchmarks.volume",
    "growth": "benchmarks.growth",
    "verify": "benchmarks.verifying",
}
"""In the order in which they run: those that make many files come last."""
PAGE = places.CHECKOUT / "docs" / "performance.md"
KEPT = places.CHECKOUT / "benchmarks" / "results.json"
_INSTALLED = "STATELINE_BENCH_INSTALLED"
"""Set for the second start of this program, in the environment that was made for it."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run in seconds on this checkout; figures mean nothing"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured as JSON")
    parser.add_argument(
        "--write", action="store_true", help="renew benchmarks/results.json and the tables in docs/performance.md"
    )
    parser.add_argument("--tables", action="store_true", help="renew the tables from results.json; measure nothing")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where to make temporary stores (default: TMPDIR)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.subjects if name not in SUBJECTS]
    if unknown:
        parser.error(f"there is no subject {unknown[0]}; there are {', '.join(SUBJECTS)}")
    if arguments.quick and arguments.write:
        parser.error("figures of a quick run mean nothing and are not written")
    return arguments


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _start_again_installed() -> None:
    """Go on in an environment with an ordinary install: what users run is what is measured."""
    python = str(places.installed(_say))
    os.execve(python, [python, *sys.argv], {**os.environ, _INSTALLED: "1"})  # noqa: S606 (this very program)


def _measure(arguments: argparse.Namespace) -> tables.Document:
    names = arguments.subjects or list(SUBJECTS)
    # Resolved: strace tells real paths.
    root = Path(tempfile.mkdtemp(prefix="stateline-bench-", dir=arguments.dir)).resolve()
    subjects: dict[str, Any] = {}
    try:
        for name in names:
            facts = places.facts(root)
            module = importlib.import_module(SUBJECTS[name])
            try:
                rows = module.measure(root / name, quick=arguments.quick, say=_say)
            except Failed as error:
                # The others are worth having all the same.
                _say(f"error: {name}: {error}")
                continue
            subjects[name] = {
                "machine": facts,
                "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes").replace("+00:00", "Z"),
                "command": f"scripts/bench {name}{' --dir DIR' if arguments.dir else ''}",
                "quick": arguments.quick,
                "rows": rows,
            }
            # Before the next begins: what this one left in memory to be written would be written then. Nothing is
            # deleted until the end: an ext4 without a journal makes new files slowly for minutes after that.
            os.sync()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {"subjects": subjects}


def _judged(document: tables.Document) -> tables.Document:
    results = {name: found["rows"] for name, found in document["subjects"].items()}
    rows = [target.row() for target in targets.targets(results)]
    if tables.is_quick(document):
        for row in rows:
            del row["verdict"]
    return {**document, "targets": rows}


def _write(path: Path, document: tables.Document) -> None:
    path.write_text(json.dumps(_judged(document), indent=1, ensure_ascii=False) + "\n")


def _kept() -> tables.Document:
    kept: tables.Document = json.loads(KEPT.read_text()) if KEPT.exists() else {"subjects": {}}
    return kept


def main() -> int:
    arguments = _arguments()
    if arguments.tables:
        _say(f"renewed: {', '.join(tables.rewrite(PAGE, _kept()))}")
        return 0
    if not arguments.quick and _INSTALLED not in os.environ:
        _start_again_installed()
    document = _measure(arguments)
    for name in document["subjects"]:
        sys.stdout.write(f"## {name}\n\n{tables.text(document, name)}\n")
    sys.stdout.write(f"## targets\n\n{tables.target_table(document)}")
    if arguments.json:
        _write(arguments.json, document)
    if arguments.write:
        whole = {"subjects": {**_kept()["subjects"], **document["subjects"]}}
        _write(KEPT, whole)
        _say(f"renewed: {', '.join(tables.rewrite(PAGE, whole))}")
    return 0 if set(arguments.subjects or SUBJECTS) <= document["subjects"].keys() else 1


if __name__ == "__main__":
    sys.exit(main())
