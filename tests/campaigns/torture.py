"""Proves the claims about durability, damage and repair: ``scripts/torture`` runs this.

Prints the seed and the progress on stderr and one JSON document on stdout. Exit code 1: an invariant does not hold; the
place is then kept and named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from campaigns import report
from campaigns.chain import Violated
from campaigns.suites import SUITES, Amounts, Call

from stateline.errors import StatelineError


def _arguments() -> argparse.Namespace:
    width = max(map(len, SUITES)) + 2
    told = "\n".join(f"  {name:{width}}{suite.about}" for name, suite in SUITES.items())
    parser = argparse.ArgumentParser(
        prog="scripts/torture",
        description=__doc__,
        epilog=f"suites:\n{told}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Amounts()
    parser.add_argument("--suite", action="append", choices=SUITES, help="one of them; may be repeated (default: all)")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M", help="for all of it (default 60)")
    parser.add_argument("--seed", metavar="S", help="makes the choices repeatable; the system's timing is not")
    parser.add_argument("--write", action="store_true", help="keep the figures, and renew them in docs/reliability.md")
    parser.add_argument("--states", type=int, default=usual.states, metavar="N", help="distinct disks of `power`")
    parser.add_argument("--crashes", type=int, default=usual.crashes, metavar="N", help="of `filesystems`")
    parser.add_argument("--kills", type=int, default=usual.kills, metavar="N", help="of each kind")
    parser.add_argument(
        "--cases", type=int, default=usual.cases, metavar="N", help="bytes changed by `damage`; other suites do a part"
    )
    parser.add_argument("--scopes", type=int, default=usual.scopes, metavar="N", help="of `limits`")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    arguments = _arguments()
    seed = arguments.seed or os.urandom(4).hex()
    _say(f"seed {seed}")
    end = time.monotonic() + 60 * arguments.minutes
    wanted = arguments.suite or list(SUITES)
    amounts = Amounts(arguments.states, arguments.crashes, arguments.kills, arguments.cases, arguments.scopes)
    summary: dict[str, Any] = {"seed": seed, "ok": True, "suites": {}}
    root = Path(tempfile.mkdtemp(prefix="stateline torture "))
    for number, name in enumerate(wanted):
        _say(f"== {name}")
        # What one suite leaves of its share goes to the others.
        left = sum(SUITES[later].share for later in wanted[number:])
        until = time.monotonic() + (end - time.monotonic()) * SUITES[name].share / left
        try:
            found = SUITES[name].perform(Call(root / name, f"{seed}:{name}", until, _say, amounts))
        except (Violated, StatelineError) as error:
            summary["ok"] = False
            found = {"violated": str(error), "place": str(root / name)}
        summary["suites"][name] = found
        if arguments.write and "skipped" not in found:
            report.keep(name, seed, found)
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    if summary["ok"]:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
