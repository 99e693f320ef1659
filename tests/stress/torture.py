"""Test the promises of docs/reliability.md; ``scripts/torture`` runs this.

Prints the seed and the progress on stderr and one JSON document on stdout. Exit code 1: a promise was broken or a suite
failed to run; the directory with the evidence is kept and named. Exit code 0: no suite found a violation; skipped
suites say why.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stress import report
from stress.oracle import ViolationError
from stress.suites import SUITES, Amounts, Call

from stateline.errors import StatelineError


def _arguments() -> argparse.Namespace:
    width = max(map(len, SUITES)) + 2
    listing = "\n".join(f"  {name:{width}}{suite.about}" for name, suite in SUITES.items())
    parser = argparse.ArgumentParser(
        prog="scripts/torture",
        description=__doc__,
        epilog=f"suites:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Amounts()
    parser.add_argument("--suite", action="append", metavar="NAME", help="repeatable (default: all suites)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        metavar="M",
        help="total time (default 60); running work is then stopped, which takes long for `limits`",
    )
    parser.add_argument("--seed", metavar="S", help="repeat the random choices; the timing of the system differs")
    parser.add_argument(
        "--scenario",
        action="append",
        default=[],
        metavar="NAME",
        help="scenario of the suites power, syscalls and errors; repeatable (default: all scenarios)",
    )
    parser.add_argument("--write", action="store_true", help="store the figures and update docs/reliability.md")
    amounts = {
        "states": "distinct disks in `power`",
        "crashes": "power losses in `filesystems`",
        "kills": "kills of each kind",
        "cases": "bytes changed in `damage`; other suites take a part",
        "scopes": "scopes in `limits`",
    }
    for name, about in amounts.items():
        default = getattr(usual, name)
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{about} (default {default})")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.suite or () if name not in SUITES]
    if unknown:
        parser.error(f"unknown suite {unknown[0]!r}; --help lists them")
    for name in (arguments.suite or SUITES) if arguments.scenario else ():
        strange = [scenario for scenario in arguments.scenario if scenario not in SUITES[name].scenarios]
        if strange:
            known = ", ".join(SUITES[name].scenarios) or "none"
            parser.error(f"the suite {name} has no scenario {strange[0]!r}; it has {known}")
    if arguments.minutes <= 0:
        parser.error("--minutes must be positive")
    return arguments


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _options(arguments: argparse.Namespace, amounts: Amounts) -> str:
    """Return the options that differ from their defaults, as written."""
    usual = Amounts()
    given = [f"--{name} {getattr(amounts, name)}" for name in amounts.__struct_fields__]
    left = {f"--{name} {getattr(usual, name)}" for name in amounts.__struct_fields__}
    scenarios = [f"--scenario {shlex.quote(scenario)}" for scenario in arguments.scenario]
    return " ".join([*(word for word in given if word not in left), *scenarios, f"--minutes {arguments.minutes:g}"])


def main() -> int:
    arguments = _arguments()
    # SIGTERM must unmount images first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seed = arguments.seed or os.urandom(4).hex()
    _say(f"seed {seed}")
    end = time.monotonic() + 60 * arguments.minutes
    wanted = arguments.suite or list(SUITES)
    amounts = Amounts(arguments.states, arguments.crashes, arguments.kills, arguments.cases, arguments.scopes)
    summary: dict[str, Any] = {"seed": seed, "ok": True, "suites": {}}
    root = Path(tempfile.mkdtemp(prefix="stateline torture "))
    scenarios = tuple(arguments.scenario)
    commit, options = report.commit(), _options(arguments, amounts)
    for number, name in enumerate(wanted):
        _say(f"== {name}")
        # Unused time of a suite goes to the next ones.
        left = sum(SUITES[later].share for later in wanted[number:])
        until = time.monotonic() + (end - time.monotonic()) * SUITES[name].share / left
        try:
            found = SUITES[name].perform(Call(root / name, f"{seed}:{name}", until, _say, amounts, scenarios))
        except (ViolationError, StatelineError) as error:
            found = {"violated": str(error), "place": str(root / name)}
        except Exception as error:  # noqa: BLE001 (one broken suite must not lose the figures of the others)
            found = {"broke_down": traceback.format_exc(), "why": repr(error), "place": str(root / name)}
        summary["ok"] = summary["ok"] and not {"violated", "broke_down"} & found.keys()
        summary["suites"][name] = found
        if isinstance(found.get("skipped"), str):
            _say(f"skipped: {found['skipped']}")
        elif arguments.write:
            report.keep(name, report.Run(seed, options, commit, scenarios), found)
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    if summary["ok"]:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
