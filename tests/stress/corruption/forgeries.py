"""Forgeries that a chain cannot reveal, in random stores: each one must pass a check without an anchor, and none
a check with the heads' shas from before."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from stress.corruption import audit_script, generated_stores
from stress.corruption.corruptions import ANY, DAMAGE, Corruption
from stress.corruption.detection import has_damage
from stress.corruption.sample_store import SampleStore, clear, fill
from stress.oracle import require

from stateline import Redactor, Store
from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Pointer
from stateline.store.local.backend import LocalBackend
from stateline.verify.checker import verify
from stateline.verify.findings import Report

Say = Callable[[str], None]
_UNSEEN = ANY - DAMAGE


def heads(sample: SampleStore) -> dict[str, str]:
    """By scope, what an auditor notes: the sha in the pointer."""
    return {scope: sample.document(f"{scope}/latest.json")["sha256"] for scope in sample.chains}


def cuts(sample: SampleStore) -> Iterator[Corruption]:
    """The newest snapshots of each chain removed, any number of them, with the pointer set back to what is left."""
    for scope, chain in sample.chains.items():
        for count in range(1, len(chain)):
            gone = sample.document(f"{scope}/{chain[-count]}")["event"].get("repaired", {})
            if gone.get("gaps") or gone.get("objects"):
                break  # what is older needs this one's word
            yield Corruption("tail cut off", f"{scope} by {count}", scope, _UNSEEN, _Cut(sample, scope, count))
        yield Corruption("all of a chain removed", scope, scope, _UNSEEN, _Cut(sample, scope, len(chain)))
        yield Corruption("scope taken away", scope, "", _UNSEEN, lambda root, s=scope: shutil.rmtree(root / s))


class _Cut:
    def __init__(self, sample: SampleStore, scope: str, count: int) -> None:
        chain = sample.chains[scope]
        loose = [place.path for place in sample.of("unacknowledged") if place.scope == scope]
        self.pointer = f"{scope}/latest.json"
        self.gone = [*loose, *(f"{scope}/{name}" for name in chain[-count:])]
        self.head = chain[-count - 1] if count < len(chain) else None
        self.sha = canonical.sha256(sample.read(f"{scope}/{self.head}")) if self.head else ""

    def __call__(self, root: Path) -> None:
        for path in self.gone:
            (root / path).unlink()
        if self.head is None:
            (root / self.pointer).unlink()
        else:
            fill(root / self.pointer, Pointer(self.head, self.sha).encode())


def rewritten(sample: SampleStore) -> Iterator[Corruption]:
    """The newest snapshots of each chain, any number of them, with another content, and all digests made to fit."""
    for scope, chain in sample.chains.items():
        for count in range(1, len(chain) + 1):
            kind = "chain written anew" if count == len(chain) else "end of a chain written anew"
            yield Corruption(kind, f"{scope} by {count}", scope, _UNSEEN, _Rewriting(sample, scope, count))
            before = chain[-count - 1 : -count]
            if [sample.document(f"{scope}/{chain[-count]}")["prev"]] != list(before):
                break  # a gap is below, which leads to the digests of what is there


class _Rewriting:
    def __init__(self, sample: SampleStore, scope: str, count: int) -> None:
        self.scope = scope
        self.gone = _Cut(sample, scope, count).gone
        self.files: dict[str, bytes] = {}
        self.head = Pointer("", "")
        for number, name in enumerate(sample.chains[scope][-count:]):
            document = sample.document(f"{scope}/{name}")
            document["event"]["forged"] = True
            if number:
                document |= {"prev": self.head.path, "prev_sha": self.head.sha256}
            data = canonical.encode(document, depth=canonical.FILE_DEPTH)
            sha = canonical.sha256(data)
            self.head = Pointer(naming.snapshot_name(document["created_at"], sha), sha)
            self.files[self.head.path] = data

    def __call__(self, root: Path) -> None:
        for path in self.gone:
            (root / path).unlink()
        for name, data in self.files.items():
            fill(root / self.scope / name, data)
        fill(root / self.scope / "latest.json", self.head.encode())


def exchanged(sample: SampleStore, other: Path) -> Corruption:
    """The whole store exchanged for the one in ``other``."""

    def act(root: Path) -> None:
        clear(root)
        shutil.copytree(other, root)

    return Corruption("store exchanged", str(other), "", _UNSEEN, act)


class Auditor:
    """Looks at each forgery without and with the anchors. ``counts``: of each kind how many there were, and how many
    were seen; ``wrong`` tells what was seen that cannot be, or not seen with an anchor."""

    def __init__(self, sample: SampleStore, script: Path | None, rng: Random) -> None:
        self.sample = sample
        self.script = script
        self.rng = rng
        self.heads = heads(sample)
        self.counts: dict[str, Counter[str]] = {}
        self.wrong: list[str] = []

    def look(self, anchors: list[str]) -> Report:
        store = Store(LocalBackend(str(self.sample.root)), redactor=Redactor())
        return verify(store, None, anchors)

    def require_found(self) -> None:
        """The good store has all anchors, each where it was noted; also once it has grown."""
        for grown in (False, True):
            if grown:
                for key in self.sample.keys.values():
                    Store(LocalBackend(str(self.sample.root)), redactor=Redactor()).scope(key).save({"n": "newer"})
            report = self.look([*self.heads.values()])
            found = {naming.scope_hash(anchor.scope): anchor.sha256 for anchor in report.anchors if anchor.scope}
            require(report.ok and found == self.heads, f"anchors of a good store are not found: {report.findings}")
        self.sample.restore()

    def judge(self, harm: Corruption, share: float) -> None:
        """Do it, look, and put everything back. ``share`` of the cases is shown to the script too."""
        anchors = [self.heads[harm.scope]] if harm.scope else [*self.heads.values()]
        harm.act(self.sample.root)
        without, with_anchor = self.look([]), self.look(anchors)
        counts = self.counts.setdefault(harm.kind, Counter())
        counts["forged"] += 1
        counts["seen without an anchor"] += has_damage(without.findings)
        counts["seen with an anchor"] += has_damage(with_anchor.findings)
        if has_damage(without.findings) or not has_damage(with_anchor.findings):
            told = [finding.message for finding in without.findings if finding.severity == "damage"]
            self.wrong.append(f"{harm.kind} ({harm.done}): without {told}, with {with_anchor.findings}")
        if self.script is not None and harm.scope and self.rng.random() < share:
            self._ask(self.script, harm, counts)
        self.sample.restore()

    def _ask(self, script: Path, harm: Corruption, counts: Counter[str]) -> None:
        known: tuple[list[str], ...] = ([], [self.heads[harm.scope]])
        said = [audit_script.script_says(script, self.sample.root, harm.scope, *anchors) for anchors in known]
        counts["shown to the script"] += 1
        counts["seen by the script without an anchor"] += said[0] != "intact"
        counts["seen by the script with an anchor"] += said[1] == "damage"
        if said != ["intact", "damage"]:
            self.wrong.append(f"{harm.kind} ({harm.done}): the script says {said}")


def campaign(
    root: Path, seed: str, *, stores: int, share: float, scripted: bool, until: float, say: Say
) -> dict[str, Any]:
    """All forgeries of ``stores`` drawn stores until ``until`` [monotonic s]; ``share`` of them is shown to the script
    of docs/format.md too, if ``scripted``. Gives the summary. Raises ``ViolationError``."""
    began = time.monotonic()
    totals: dict[str, Counter[str]] = {}
    done = 0
    while done < stores and time.monotonic() < until:
        place = root / f"store {done}"
        rng = Random(f"{seed}:{done}")
        sample = generated_stores.build(place, rng)
        other = generated_stores.build(place / "other", rng)
        script = place / "audit.sh"
        script.write_text(audit_script.script(), encoding="utf-8")
        auditor = Auditor(sample, script if scripted else None, rng)
        auditor.require_found()
        for harm in (*cuts(sample), *rewritten(sample), exchanged(sample, other.pristine)):
            auditor.judge(harm, share)
        require(not auditor.wrong, f"{len(auditor.wrong)} wrong:\n" + "\n".join(auditor.wrong[:20]))
        for kind, counts in auditor.counts.items():
            totals.setdefault(kind, Counter()).update(counts)
        shutil.rmtree(place)
        done += 1
        say(f"store {done}: {sum(counts['forged'] for counts in totals.values())} forgeries")
    found = {kind: dict(counts) for kind, counts in sorted(totals.items())}
    return {"stores": done, "forgeries": found, "seconds": round(time.monotonic() - began, 1)}
