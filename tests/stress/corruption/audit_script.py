"""The shell script of docs/format.md and ``verify`` side by side: of a harmed scope both must say the same."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from stress.corruption import corruptions, detection
from stress.corruption.corruptions import Corruption
from stress.corruption.sample_store import SampleStore, build, call
from stress.oracle import require

from stateline import Redactor, Store
from stateline.errors import NewerVersionError, StatelineError
from stateline.store.local.backend import LocalBackend
from stateline.verify.checker import verify

PAGE = Path(__file__).resolve().parents[3] / "docs" / "format.md"
SECONDS = 600.0
"""[s] for one run of the script; it takes a few at most, but on a machine that has much else to do."""


def script() -> str:
    """The auditor's script as the page has it."""
    found = re.search(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    require(found is not None, "docs/format.md has no script")
    return found[1] if found else ""


def script_says(path: Path, state_dir: Path, scope: str, *anchors: str) -> str:
    """``intact``, ``damage``, ``newer``, or what went wrong."""
    done = subprocess.run(
        ["sh", str(path), str(state_dir), scope, *anchors],
        capture_output=True,
        timeout=SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    said = done.stderr.decode("utf-8", "replace")
    return {0: "intact", 1: "damage", 2: "newer"}.get(done.returncode, f"exit {done.returncode}: {said[-300:]}")


def verify_says(state_dir: Path, key: str, *anchors: str) -> str:
    """The same words for what ``verify`` finds in one scope."""
    try:
        report = verify(Store(LocalBackend(str(state_dir)), redactor=Redactor()), key, anchors)
    except NewerVersionError:
        return "newer"
    except StatelineError:
        # Nothing of that scope can be opened: it is gone, or no directory.
        return "damage"
    if not report.ok:
        return "damage"
    return "newer" if any(finding.code == "newer_version" for finding in report.findings) else "intact"


def drawn(sample: SampleStore, rng: Random, count: int) -> list[Corruption]:
    """``count`` harms: a third of them changed bytes, the rest of all other kinds, each kind about as often."""
    flips = list(corruptions.every_flip(sample, rng, small=0, most=400))
    # Files are chosen first, so that the small ones are not drowned by the large.
    by_file: dict[str, list[Corruption]] = {}
    for harm in flips:
        by_file.setdefault(harm.done.partition("[")[0], []).append(harm)
    by_kind: dict[str, list[Corruption]] = {}
    for harm in detection.structural(sample, rng):
        by_kind.setdefault(harm.kind, []).append(harm)
    groups = [by_file, by_kind, by_kind]
    chosen = []
    for number in range(count):
        group = groups[number % 3]
        chosen.append(rng.choice(group[rng.choice(sorted(group))]))
    return chosen


class Audit:
    """Asks both about one harm after the other. ``pairs`` counts what they said, ``differ`` tells disagreements."""

    def __init__(self, sample: SampleStore, path: Path, rng: Random) -> None:
        self.sample = sample
        self.path = path
        self.rng = rng
        self.pairs: Counter[str] = Counter()
        self.differ: list[str] = []

    def ask(self, harm: Corruption, *, repaired: Corruption | None = None) -> None:
        """Do the harm and ask. With ``repaired``, that one is done and repaired first, so that the chain has gaps."""
        scope = harm.scope or self.rng.choice(sorted(self.sample.chains))
        try:
            if repaired is not None:
                repaired.act(self.sample.root)
                call(self.sample.root, "repair", "--apply", exits=None)
            harm.act(self.sample.root)
            self._note(harm, scope, repaired)
        except OSError:
            # What the repair set aside cannot be harmed any more.
            self.pairs["impossible"] += 1
        finally:
            self.sample.restore()

    def _note(self, harm: Corruption, scope: str, repaired: Corruption | None) -> None:
        root = self.sample.root
        both = (script_says(self.path, root, scope), verify_says(root, self.sample.keys[scope]))
        self.pairs[both[0] if both[0] == both[1] else " against ".join(both)] += 1
        if both[0] != both[1]:
            before = f"after the repair of {repaired.kind} ({repaired.done}), " if repaired else ""
            said = f"the script says {both[0]}, verify {both[1]}"
            self.differ.append(f"{before}{harm.kind} ({harm.done}), scope {scope}: {said}")


def compare(audit: Audit, cases: list[Corruption], until: float, say: Callable[[str], None]) -> int:
    """Ask about each of the cases, every fifth of them in a store that was repaired, until ``until`` [monotonic s]; how
    many."""
    done = 0
    while cases and time.monotonic() < until:
        harm = cases.pop()
        audit.ask(harm, repaired=audit.rng.choice(cases) if cases and done % 5 == 0 else None)
        done += 1
        if done % 200 == 0:
            say(f"{done} audits, {len(audit.differ)} disagreements")
    return done


def campaign(root: Path, seed: str, *, cases: int, until: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Compare the two on ``cases`` harms until ``until`` [monotonic s]. Gives the summary. Raises
    ``ViolationError``."""
    began = time.monotonic()
    rng = Random(seed)
    sample = build(root)
    path = root / "audit.sh"
    path.write_text(script(), encoding="utf-8")
    for scope, key in sample.keys.items():
        both = (script_says(path, sample.root, scope), verify_says(sample.root, key))
        require(both == ("intact", "intact"), f"a good scope is {both}")
    audit = Audit(sample, path, rng)
    done = compare(audit, drawn(sample, rng, cases), until, say)
    require(not audit.differ, f"{len(audit.differ)} disagreements:\n" + "\n".join(audit.differ[:20]))
    return {"cases": done, "verdicts": dict(audit.pairs), "seconds": round(time.monotonic() - began, 1)}
