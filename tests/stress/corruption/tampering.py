"""The harms of the suites ``damage`` and ``audits``, done to many stores that are drawn from the seed."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from stress.corruption import audit_script, corruptions, detection, generated_stores
from stress.corruption.corruptions import Corruption
from stress.corruption.detection import Judge
from stress.corruption.sample_store import SampleStore
from stress.oracle import require

Say = Callable[[str], None]


def random_flips(sample: SampleStore, rng: Random, count: int) -> Iterator[Corruption]:
    """About ``count`` changed bytes, half of them in one bit: of each position in files of up to 1 KiB and of many in
    larger ones both; all of these if there are no more than ``count``."""
    seed = rng.getrandbits(64)
    there = sum(1 for _ in corruptions.every_flip(sample, Random(seed), small=0, most=256, bits=True))
    for harm in corruptions.every_flip(sample, Random(seed), small=0, most=256, bits=True):
        if count >= there or rng.random() * there < count:
            yield harm


def random_corruptions(sample: SampleStore, rng: Random, most: int) -> list[Corruption]:
    """Up to ``most`` of each other kind, in any order."""
    kinds: dict[str, list[Corruption]] = {}
    for harm in detection.structural(sample, rng):
        kinds.setdefault(harm.kind, []).append(harm)
    drawn = [harm for kind in sorted(kinds) for harm in rng.sample(kinds[kind], min(most, len(kinds[kind])))]
    rng.shuffle(drawn)
    return drawn


class Totals:
    """Totals over all stores so far. ``compared`` counts the verdicts of the script and ``verify``."""

    def __init__(self) -> None:
        self.stores = self.scopes = self.snapshots = self.objects = 0
        self.flips = self.others = 0
        self.verdicts: dict[str, Counter[str]] = {}
        self.compared: Counter[str] = Counter()

    def add(self, judge: Judge) -> None:
        sample = judge.sample
        self.stores += 1
        self.scopes += len(sample.keys)
        self.snapshots += len(sample.of("snapshot", "unacknowledged"))
        self.objects += len(sample.of("object", "unreferenced"))
        for kind, verdicts in judge.counts.items():
            self.verdicts.setdefault(kind, Counter()).update(verdicts)

    def summary(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("stores", "scopes", "snapshots", "objects")},
            "bytes changed": self.flips,
            "other harms": self.others,
            "verdicts": {kind: dict(sorted(found.items())) for kind, found in sorted(self.verdicts.items())},
            "script and verify": dict(sorted(self.compared.items())),
        }


def campaign(
    root: Path, seed: str, *, stores: int, cases: int, each: int, compared: int, until: float, say: Say
) -> dict[str, Any]:
    """Build ``stores`` of them, one after the other, and do to each about ``cases`` changes of a byte, up to ``each``
    harms of every other kind, and ``compared`` harms of which the script is asked as well (0 where there is no ``jq``),
    until ``until`` [monotonic s]. Gives the summary. Raises ``ViolationError``."""
    began = time.monotonic()
    totals = Totals()
    for number in range(stores):
        if time.monotonic() > until:
            break
        place = root / f"store {number}"
        rng = Random(f"{seed}:{number}")
        sample = generated_stores.build(place, rng)
        judge = Judge(sample)
        totals.flips += detection.flip_all(judge, random_flips(sample, rng, cases), until, 500, say)
        sample.restore()
        totals.others += detection.corrupt_all(judge, iter(random_corruptions(sample, rng, each)), until, say)
        judge.require()
        totals.add(judge)
        totals.compared.update(compare(sample, place, rng, compared, until, say))
        audited = totals.compared.total()
        say(f"store {number}: {totals.flips} bytes changed, {totals.others} other harms, {audited} audits")
        shutil.rmtree(place)
    return totals.summary() | {"seconds": round(time.monotonic() - began, 1)}


def compare(sample: SampleStore, place: Path, rng: Random, count: int, until: float, say: Say) -> Counter[str]:
    """Compare the script and ``verify`` on the intact store and on ``count`` corrupted ones. Raises ``ViolationError``
    where they differ."""
    if not count:
        return Counter()
    path = place / "audit.sh"
    path.write_text(audit_script.script(), encoding="utf-8")
    for scope, key in sample.keys.items():
        both = (audit_script.script_says(path, sample.root, scope), audit_script.verify_says(sample.root, key))
        require(both == ("intact", "intact"), f"a good scope is {both}")
    audit = audit_script.Audit(sample, path, rng)
    audit_script.compare(audit, audit_script.drawn(sample, rng, count), until, say)
    require(not audit.differ, f"{len(audit.differ)} disagreements:\n" + "\n".join(audit.differ[:20]))
    return audit.pairs
