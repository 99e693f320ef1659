"""Repairs what was harmed, and judges the result by the store as it was: nothing intact is touched, what is lost is
named, the newest surviving state is the head's, and the run can go on."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from stress.corruption.audit_script import drawn
from stress.corruption.corruptions import Corruption
from stress.corruption.sample_store import CONTEXT, RUN, SampleStore, build, call
from stress.oracle import require

from stateline.bundle.canonical import sha256
from stateline.bundle.envelope import Pointer
from stateline.bundle.naming import scope_hash

Tree = dict[str, bytes | str]


def tree(root: Path) -> Tree:
    """Return the contents of a directory: bytes of files, targets of links, kinds of the rest."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = "directory" if path.is_dir() else "other"
    return found


class Survivors:
    """Rest of a store after corruption, computed from the bytes before it."""

    def __init__(self, sample: SampleStore) -> None:
        self.sample = sample
        self.now = tree(sample.root)
        self.good = {place.path for place in sample.places if self.now.get(place.path) == sample.read(place.path)}
        self._needs: dict[str, set[str]] = {}

    def is_whole(self, path: str) -> bool:
        """Return whether a snapshot is there with all the objects that it needs."""
        return path in self.good and self._objects(path) <= self.good

    def _objects(self, path: str) -> set[str]:
        """Paths of all objects that a snapshot, node or chunk needs."""
        if path not in self._needs:
            document = json.loads(self.sample.read(path))
            needed: set[str] = set()
            for ref in [*document["objects"].values(), *filter(None, [document.get("before")])]:
                inner = f"objects/{ref['sha256'][:2]}/{ref['sha256']}"
                needed.add(inner)
                if ref["media_type"].startswith("application/vnd.stateline."):
                    needed |= self._objects(inner)
            self._needs[path] = needed
        return self._needs[path]

    def newest(self, scope: str) -> list[str]:
        """The snapshots whose state the head may have: the newest whole one on the chain; a whole one that follows the
        chain and was never acknowledged; the one before the head, if the pointer names it, as after a crash."""
        chain = [f"{scope}/{name}" for name in reversed(self.sample.chains[scope])]
        loose = [place.path for place in self.sample.of("unacknowledged") if place.scope == scope]
        whole = [path for path in chain if self.is_whole(path)]
        pointer = self.now.get(f"{scope}/latest.json")
        back = [path for path in chain[1:2] if path in whole and pointer == self._pointer(path)]
        return [path for path in loose if self.is_whole(path)] + back + whole[:1]

    def _pointer(self, path: str) -> bytes:
        return Pointer(path.rpartition("/")[2], sha256(self.sample.read(path))).encode()

    def untouched(self) -> list[str]:
        """Scopes in which nothing was harmed, and nothing that they need."""
        found = []
        for scope, chain in self.sample.chains.items():
            here = {path for path in self.now if path.startswith(f"{scope}/")}
            before = {place.path for place in self.sample.places if place.path.startswith(f"{scope}/")}
            if here == before and before <= self.good and all(self.is_whole(f"{scope}/{name}") for name in chain):
                found.append(scope)
        return found

    def knows(self, scope: str) -> bool:
        """Return whether anything in a scope's directory still tells what was there."""
        return any(path.startswith(f"{scope}/") and path in self.good for path in self.now)

    def _left_no_trace(self, path: str, scope: str, data: bytes) -> bool:
        """Return whether a snapshot is gone, and all that named it is damaged: only numbers can tell that it was there,
        and none do right below a lost head."""
        name = sha256(data).encode()
        held = [self.sample.read(other) for other in self.good if other.startswith(f"{scope}/")]
        return path not in self.now and not any(name in other for other in held)

    def unnamed(self, after: Tree, named: set[str]) -> list[str]:
        """Require that nothing on a chain, or needed by it, has left its place and is not among ``named`` (digests,
        names and paths). An object need not be, if all snapshots that need it are."""
        found = []
        for place in self.sample.of("snapshot", "object"):
            data = self.sample.read(place.path)
            if after.get(place.path) == data or named & _names(place.path, data):
                continue
            if place.role == "object":
                owners = [owner for owner in self.sample.of("snapshot") if place.path in self._objects(owner.path)]
                # A snapshot that is lost itself says no longer what it needed.
                left = [owner for owner in owners if owner.path in self.good]
                if all(named & _names(owner.path, self.sample.read(owner.path)) for owner in left):
                    continue
            elif not self.knows(place.scope) or self._left_no_trace(place.path, place.scope, data):
                continue
            found.append(place.path)
        return found


def _names(path: str, data: bytes) -> set[str]:
    return {path, path.rpartition("/")[2], sha256(data)}


class RepairTrial:
    """Repairs after each harm, and counts what came of it."""

    def __init__(self, sample: SampleStore) -> None:
        self.sample = sample
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def repair(self, harms: list[Corruption]) -> None:
        """Do the harms, repair, judge, and put everything back."""
        try:
            for harm in harms:
                harm.act(self.sample.root)
            for problem in self._apply_and_check():
                self.wrong.append(" and ".join(f"{harm.kind} ({harm.done})" for harm in harms) + f": {problem}")
        except OSError:
            # The second of two harms found its file gone.
            self.counts["impossible"] += 1
        finally:
            self.sample.restore()

    def _apply_and_check(self) -> list[str]:
        root = self.sample.root
        survivors = Survivors(self.sample)
        damaged = call(root, "verify", exits=None)["code"] == 5
        plan = call(root, "repair", exits=None)
        problems = [] if tree(root) == survivors.now else ["the plan wrote something"]
        if plan["code"] != (5 if damaged else 0):
            problems.append(f"the plan exits with {plan['code']}: {plan}")
        done = call(root, "repair", "--apply", exits=None)
        after = tree(root)
        if "error" in done:
            return [*problems, f"--apply refused: {done['error']}"]
        if not damaged:
            self.counts["nothing to do"] += 1
            return problems if after == survivors.now else [*problems, "repaired what was not damaged"]
        if any(blocked["code"] == "newer_version" for blocked in done["blocked"]):
            # That scope is left as it is, whatever is damaged in it.
            self.counts["left to a newer version"] += 1
            return problems
        self.counts["repaired" if done["ok"] else "not repaired"] += 1
        problems += self._judged(survivors, plan, done, after)
        again = call(root, "repair", "--apply", exits=None)
        if again["code"] != 0 or again.get("actions") or tree(root) != after:
            problems.append(f"a second repair did more: {again}")
        return problems + self._goes_on(survivors)

    def _judged(self, survivors: Survivors, plan: dict[str, Any], done: dict[str, Any], after: Tree) -> list[str]:
        problems = []
        if done["code"] != 0 or not done["ok"] or call(self.sample.root, "verify", exits=None)["code"] != 0:
            problems.append(f"not repaired: {done}")
        for scope in survivors.untouched():
            mine = {path for path in {*after, *survivors.now} if path.startswith(scope)}
            if any(after.get(path) != survivors.now.get(path) for path in mine):
                problems.append(f"touched the intact scope {scope}")
        for document, what in ((plan, "the plan"), (done, "the repair")):
            problems += self._named(survivors, document, after, what)
        for scope in self.sample.chains:
            problems += self._head(survivors, scope, after)
        return problems

    def _named(self, survivors: Survivors, document: dict[str, Any], after: Tree, what: str) -> list[str]:
        named = {entry[name] for entry in document["lost"] for name in ("sha256", "path")}
        unnamed = survivors.unnamed(after, named)
        return [f"{what} does not name what is lost: {unnamed}"] if unnamed else []

    def _head(self, survivors: Survivors, scope: str, after: Tree) -> list[str]:
        newest = survivors.newest(scope)
        pointer = after.get(f"{scope}/latest.json")
        if not isinstance(pointer, bytes):
            # A first snapshot without a pointer is what a crash leaves of a first save.
            begun = len(self.sample.chains[scope]) > 1 or f"{scope}/latest.json" in survivors.now
            return [f"{scope} has no head, and {newest[0]} was whole"] if newest and begun and scope in after else []
        head = json.loads(after[f"{scope}/{json.loads(pointer)['path']}"])
        states = [json.loads(self.sample.read(path)) for path in newest]
        if any((head["state"], head["objects"]) == (state["state"], state["objects"]) for state in states):
            return []
        return [f"the head of {self.sample.keys[scope]} has not the state of {newest}, but seq {head['seq']}"]

    def _goes_on(self, survivors: Survivors) -> list[str]:
        """The run's next call waits again or is over. Where the context's snapshot that the run began with is lost, it
        says so (exit code 5) and changes nothing."""
        root = self.sample.root
        if not (root / scope_hash(RUN)).exists():
            self.counts["run lost"] += 1
            return []
        words = ("execute", str(self.sample.machine), "--id", RUN.partition(":")[2])
        outcome = call(root, *words, "--answer", '{"yes": false}', exits=None)
        if (outcome.get("error") or {}).get("code") == "no_open_request":
            # It continues from a state in which it waits for nobody.
            outcome = call(root, *words, "--no-input", exits=None)
        self.counts[f"execute exits with {outcome['code']}"] += 1
        scope = scope_hash(CONTEXT)
        context = survivors.is_whole(f"{scope}/{self.sample.chains[scope][-1]}")
        sound = outcome["code"] in (0, 3) or (outcome["code"] == 5 and not context)
        if (outcome.get("error") or {}).get("code") == "newer_version":
            return []
        if sound and call(root, "verify", exits=None)["code"] == 0:
            return []
        return [f"the run does not go on: {outcome}"]


def campaign(root: Path, seed: str, *, cases: int, until: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Repair after ``cases`` harms, every fourth of them a double one, until ``until`` [monotonic s]. Gives the
    summary. Raises ``ViolationError``."""
    began = time.monotonic()
    sample = build(root)
    trial = RepairTrial(sample)
    # Nothing is repaired in a place that others may use; the operator must fix that.
    random_corruptions = drawn(sample, Random(seed), cases + cases // 4 + cases // 10)
    harms = [harm for harm in random_corruptions if harm.kind != "opened to others"]
    done = 0
    while harms and done < cases and time.monotonic() < until:
        count = 2 if done % 4 == 0 and len(harms) > 1 else 1
        trial.repair([harms.pop() for _ in range(count)])
        done += 1
        if done % 100 == 0:
            say(f"{done} repairs, {len(trial.wrong)} wrong")
    require(not trial.wrong, f"{len(trial.wrong)} wrong repairs:\n" + "\n".join(trial.wrong[:20]))
    return {"cases": done, "outcomes": dict(trial.counts), "seconds": round(time.monotonic() - began, 1)}
