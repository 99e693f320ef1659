"""Harms a small store in every way there is, and demands that ``verify`` says so: never silent, never an exception."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from stress.corruption import corruptions, foreign_files
from stress.corruption.corruptions import Corruption
from stress.corruption.sample_store import SampleStore, build, call
from stress.oracle import ViolationError

from stateline import Redactor, Store
from stateline.store.local.backend import LocalBackend
from stateline.verify.checker import verify
from stateline.verify.findings import Finding, Report

Say = Callable[[str], None]

SLOW = 10.0
"""[s] that no look at so small a store may take, however busy the machine is."""
_TOLD = 20
"""Number of violations reported before the suite gives up."""


def structural(sample: SampleStore, rng: Random) -> Iterator[Corruption]:
    """All harms that are no change of a single byte."""
    yield from corruptions.truncated(sample, rng)
    yield from corruptions.removed(sample)
    yield from corruptions.replaced(sample)
    yield from corruptions.swapped(sample)
    yield from corruptions.overwritten(sample, rng)
    yield from corruptions.cut(sample)
    yield from corruptions.moved(sample)
    yield from foreign_files.added(sample)
    yield from foreign_files.replayed(sample)
    yield from foreign_files.pointed(sample)
    yield from foreign_files.store_files(sample)
    yield from foreign_files.opened(sample)
    yield from foreign_files.directories_replaced(sample)


class Judge:
    """Says what a check made of each harm, and counts. ``wrong`` collects what must not be."""

    def __init__(self, sample: SampleStore) -> None:
        self.sample = sample
        self.counts: dict[str, Counter[str]] = {}
        self.wrong: list[str] = []
        self._usual = {scope: self._facts(self.look(scope)) for scope in ("", *sample.keys)}

    def look(self, scope: str) -> Report:
        """``verify`` of one scope, or of all ("")."""
        store = Store(LocalBackend(str(self.sample.root)), redactor=Redactor())
        return verify(store, self.sample.keys[scope] if scope else None)

    def _facts(self, report: Report) -> set[tuple[str, str, str]]:
        return {(finding.severity, finding.code, finding.path) for finding in report.findings}

    def verdict(self, scope: str) -> str:
        """``damage``; ``told`` if there is a finding that a good store has not; else ``silent``. Whatever is raised is
        a verdict of its own: no harm to a file may stop a check of all, nor surprise one of a scope."""
        try:
            report = self.look(scope)
        except Exception as error:  # noqa: BLE001 (any exception at all is what is looked for)
            return f"raised {type(error).__name__}: {error}"
        if not report.ok:
            return "damage" if has_damage(report.findings) else "not ok without damage"
        return "told" if self._facts(report) - self._usual[scope] else "silent"

    def check(self, harm: Corruption, *, whole: bool = False) -> str:
        """Look at the store that was harmed so; the verdict. ``whole``: at all of it, not at the scope alone."""
        began = time.monotonic()
        verdict = self.verdict("" if whole else harm.scope)
        self.counts.setdefault(harm.kind, Counter())[verdict.partition(":")[0]] += 1
        if verdict not in harm.expect:
            self.wrong.append(f"{harm.kind} ({harm.done}): {verdict}, not {' or '.join(sorted(harm.expect))}")
        if time.monotonic() - began > SLOW:
            self.wrong.append(f"{harm.kind} ({harm.done}): took {time.monotonic() - began:.0f} s")
        return verdict

    def require(self) -> None:
        """Raise :class:`ViolationError` if anything was wrong."""
        if self.wrong:
            raise ViolationError(f"{len(self.wrong)} wrong verdicts:\n" + "\n".join(self.wrong[:_TOLD]))

    def summary(self) -> dict[str, Any]:
        """Cases and verdicts by kind."""
        return {kind: dict(sorted(verdicts.items())) for kind, verdicts in sorted(self.counts.items())}


def has_damage(findings: tuple[Finding, ...]) -> bool:
    """Return whether one of them is damage."""
    return any(finding.severity == "damage" for finding in findings)


def flip_all(judge: Judge, cases: Iterator[Corruption], until: float, whole: int, say: Say) -> int:
    """Change single bytes, each put back before the next, until ``until`` [monotonic s]; how many. Each ``whole``-th is
    also looked for in the whole store."""
    done = 0
    last: tuple[Path, bytes] | None = None
    for harm in cases:
        path = harm.done.partition("[")[0]
        file = judge.sample.root / path
        if last is not None and last[0] != file:
            last[0].write_bytes(last[1])
        if last is None or last[0] != file:
            last = (file, judge.sample.read(path))
        harm.act(judge.sample.root)
        judge.check(harm)
        done += 1
        if done % whole == 0:
            judge.check(harm, whole=True)
        if done % 20_000 == 0:
            say(f"{done} bytes changed, {len(judge.wrong)} wrong")
        if time.monotonic() > until or len(judge.wrong) > 100 * _TOLD:
            break
    if last is not None:
        last[0].write_bytes(last[1])
    return done


def corrupt_all(judge: Judge, cases: Iterator[Corruption], until: float, say: Say) -> int:
    """Do each harm to a fresh copy and check the scope concerned and the whole store; how many. Each 40th is shown to
    the command line too, which must exit 5 where damage is found and 0 elsewhere."""
    done = 0
    for harm in cases:
        harm.act(judge.sample.root)
        verdict = judge.check(harm, whole=True)
        if harm.scope and "taken" not in harm.kind:
            judge.check(harm)
        if done % 40 == 0:
            _require_exit(judge, harm, verdict)
        judge.sample.restore()
        done += 1
        if done % 1000 == 0:
            say(f"{done} harms, {len(judge.wrong)} wrong")
        if time.monotonic() > until:
            break
    return done


def _require_exit(judge: Judge, harm: Corruption, verdict: str) -> None:
    code = call(judge.sample.root, "verify", exits=None)["code"]
    if code != (5 if verdict == "damage" else 0):
        judge.wrong.append(f"{harm.kind} ({harm.done}): `verify` exits with {code} for {verdict}")


def campaign(root: Path, seed: str, *, cases: int, until: float, say: Say) -> dict[str, Any]:
    """At most ``cases`` changed bytes, then all other harms, until ``until`` [monotonic s]. Gives the summary. Raises
    :class:`ViolationError`."""
    began = time.monotonic()
    rng = Random(seed)
    sample = build(root)
    judge = Judge(sample)
    small, most = _sizes(sample, cases)
    bytes_changed = flip_all(judge, corruptions.every_flip(sample, rng, small=small, most=most), until, 500, say)
    sample.restore()
    others = corrupt_all(judge, structural(sample, rng), until, say)
    judge.require()
    seconds = round(time.monotonic() - began, 1)
    return {"bytes changed": bytes_changed, "other harms": others, "verdicts": judge.summary(), "seconds": seconds}


def _sizes(sample: SampleStore, cases: int) -> tuple[int, int]:
    """(largest file whose bytes take all values, most bytes of one file) so that there are about ``cases`` flips."""
    small = 200 if cases >= 50_000 else 0
    total = sum(min(len(sample.read(place.path)), 1 << 20) for place in sample.places)
    return small, 1 << 20 if cases >= total else max(16, cases // (4 * len(sample.places)))
