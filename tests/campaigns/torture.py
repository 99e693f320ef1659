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

from campaigns import audits, damage, kills, limits, mends, races, saves
from campaigns.chain import Violated

from stateline.errors import StatelineError

SUITES = ("kills", "points", "runs", "saves", "damage", "audits", "repairs", "limits")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__)
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="kills of each kind (default 200)")
    parser.add_argument(
        "--cases",
        type=int,
        default=100_000,
        metavar="N",
        help="bytes changed by the suite damage; audits compares a hundredth, repairs mends a two-hundredth of that "
        "(default 100000)",
    )
    parser.add_argument("--scopes", type=int, default=100_000, metavar="N", help="of the suite limits (default 100000)")
    parser.add_argument("--minutes", type=float, default=30.0, metavar="M", help="stop after that time (default 30)")
    parser.add_argument(
        "--seed", default=None, metavar="S", help="makes the choices repeatable; the system's timing is not"
    )
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _suite(name: str, root: Path, arguments: argparse.Namespace, until: float) -> dict[str, Any]:
    seed = f"{arguments.seed}:{name}"
    if name == "runs":
        return races.campaign(root, rounds=5, until=until, say=_say)
    if name == "saves":
        return saves.campaign(root, seed, writers=8, each=200, until=until, say=_say)
    if name == "limits":
        return limits.campaign(root, count=arguments.scopes, say=_say)
    if name == "damage":
        return damage.campaign(root, seed, cases=arguments.cases, until=until, say=_say)
    if name == "audits":
        if shutil.which("jq") is None:
            return {"skipped": "jq is not installed"}
        return audits.campaign(root, seed, cases=arguments.cases // 100, until=until, say=_say)
    if name == "repairs":
        return mends.campaign(root, seed, cases=arguments.cases // 200, until=until, say=_say)
    repeatable, points = name.endswith("repeatable"), name.startswith("points")
    if points and shutil.which("strace") is None:
        return {"skipped": "strace is not installed"}
    return kills.campaign(
        root, seed, repeatable=repeatable, kills=arguments.kills, until=until, say=_say, points=points
    )


def main() -> int:
    arguments = _arguments()
    arguments.seed = arguments.seed or os.urandom(4).hex()
    _say(f"seed {arguments.seed}")
    until = time.monotonic() + 60 * arguments.minutes
    wanted = SUITES if arguments.suite == "all" else (arguments.suite,)
    twofold = ("kills", "points")
    names = [f"{name}{kind}" for name in wanted for kind in ((", repeatable", ", once") if name in twofold else ("",))]
    summary: dict[str, Any] = {"seed": arguments.seed, "ok": True, "suites": {}}
    root = Path(tempfile.mkdtemp(prefix="stateline torture "))
    for name in names:
        _say(f"== {name}")
        try:
            summary["suites"][name] = _suite(name, root / name, arguments, until)
        except (Violated, StatelineError) as error:
            summary["ok"] = False
            summary["suites"][name] = {"violated": str(error), "place": str(root / name)}
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    if summary["ok"]:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
