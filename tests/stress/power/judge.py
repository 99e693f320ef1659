"""Invariants of a state dir after a power loss. ``stress.oracle`` reads the chains; the results of the store,
``verify`` and a repair say of the same disk is compared with that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from stress.oracle import Link, Tree, ViolationError, chain_of, keys_of, require, sha256, snapshots_of
from stress.power.disk import Acknowledgement, Image, ModelFs, Step
from stress.scenarios import EPOCH, NOTES, Note, Place

from stateline import Redactor, Store
from stateline.bundle.naming import scope_hash
from stateline.engine import calls, loop
from stateline.errors import IntegrityError
from stateline.service.repair import apply_repair
from stateline.store.local.backend import LocalBackend
from stateline.store.protocol import FAST
from stateline.verify.checker import verify
from stateline.verify.findings import Report

STATE_DIR = "/model/state dir"
AFTERWARDS = EPOCH + 10**15
"""[ns since 1970] at which somebody comes again after a power loss."""

_SCOPE = re.compile(r"[0-9a-f]{64}")


def intact_snapshots(tree: Tree) -> dict[str, list[str]]:
    """The shas of the intact snapshots of each scope, oldest first, whether something leads to them or not."""
    return {scope: [link.sha256 for link in links] for scope, links in snapshots_of(tree).items()}


class Promise(msgspec.Struct):
    """Promises for one scope: the shas of ``firm`` snapshots are on its chain, whatever happens; those of
    ``loose`` (saved ``fast``) may be."""

    firm: list[str]
    loose: list[str]

    def ends(self) -> list[list[str]]:
        """The chains that are right."""
        return [self.firm + self.loose[:count] for count in range(len(self.loose) + 1)]


class Before(msgspec.Struct, frozen=True):
    """Data from before a scenario, which must last: ``chains`` by scope, what was ``kept`` (blobs, with the scope they
    lie in), and the digests of all ``bytes`` that a repair must not delete."""

    chains: dict[str, list[str]]
    kept: dict[str, str] = {}
    bytes: frozenset[str] = frozenset()


class Promises:
    """All that was promised when the power went: chains by scope, blobs that are ``kept``, and what was ``coming``."""

    def __init__(self, before: Before, told: Iterable[Acknowledgement], coming: Acknowledgement | None) -> None:
        self.scopes = {scope: Promise(list(chain), []) for scope, chain in before.chains.items()}
        self.before = before
        self.mended = False
        self.kept = dict(before.kept)
        self.hurried: set[str] = set()
        self.effects: list[Note] = []
        for said in told:
            self._call_model(said.note)
        self.coming: Note | None = coming.note if coming else None
        if self.coming:
            self._hurry(self.coming)
        if self.coming and self.coming.what not in ("head", "removed"):
            self.coming = None

    def _hurry(self, note: Note) -> None:
        """Note what a power loss may leave torn: it was put, or is being put, by a ``fast`` writer."""
        if note.durability == FAST:
            self.hurried |= {note.scope, note.name} - {""}

    def _call_model(self, note: Note) -> None:
        self._hurry(note)
        promise = self.scopes.setdefault(note.scope, Promise([], []))
        self.mended = self.mended or note.what == "head"
        if note.what == "head" and note.durability == FAST:
            promise.loose.append(note.sha256)
        elif note.what == "head":
            promise.firm += [*promise.loose, note.sha256]
            promise.loose = []
        elif note.what == "removed":
            self.scopes[note.scope] = Promise([], [])
            self.kept = {name: scope for name, scope in self.kept.items() if scope != note.scope}
        elif note.what == "kept" and note.durability != FAST:
            self.kept[note.name] = note.scope
        elif note.what == "effect":
            self.effects.append(note)

    def key(self) -> str:
        """Equal for promises that are equal."""
        scopes = {scope: (promise.firm, promise.loose) for scope, promise in sorted(self.scopes.items())}
        return repr((scopes, sorted(self.kept), sorted(self.hurried), self.mended, self.effects, self.coming))

    def going(self) -> str | None:
        """The scope whose removal is under way."""
        return self.coming.scope if self.coming and self.coming.what == "removed" else None

    def right(self, scope: str) -> list[list[str]]:
        """The chains of a scope's hash that are right."""
        promise = self.scopes.get(scope, Promise([], []))
        ends = promise.ends()
        if self.coming and self.coming.scope == scope:
            ends.append([] if self.coming.what == "removed" else promise.firm + promise.loose + [self.coming.sha256])
        return ends

    def may_break(self, scope: str) -> bool:
        """Return whether the newest of that scope was, or is being, saved so that a power loss may leave it torn."""
        promise = self.scopes.get(scope, Promise([], []))
        coming = self.coming
        return bool(promise.loose) or bool(coming and coming.scope == scope and coming.durability == FAST)


class Judge:
    """Looks at one disk. ``root`` is a real directory for what a scenario needs besides; ``repairing``: the scenario
    repairs a store, so that it may be damaged until that is done; ``ordered``: a journal could have left the disk."""

    def __init__(
        self, image: Image, promises: Promises, root: Path, *, repairing: bool = False, ordered: bool = False
    ) -> None:
        self.ordered = ordered
        self.image = image
        self.promises = promises
        self.root = root
        self.repairing = repairing
        self.tree = image.tree(STATE_DIR)
        self.keys = keys_of(self.tree)
        self.damaged = repairing and not promises.mended

    def look(self) -> dict[str, list[str]]:
        """Check every reader and return the chains found. Raises :class:`ViolationError`."""
        require(not self.image.widest(STATE_DIR), "something is open to others")
        there = {sha256(data) for data in self.tree.values()}
        require(self.promises.before.bytes <= there, f"a repair deleted {self.promises.before.bytes - there}")
        found = self._chains(there)
        self._require_kept(self.tree, found)
        self._require_contexts(found)
        self._read(found)
        return {scope: [link.sha256 for link in chain] for scope, chain in found.items()}

    def _require_kept(self, tree: Tree, found: Mapping[str, object]) -> None:
        for name, scope in self.promises.kept.items():
            if scope == self.promises.going() and not found.get(scope):
                continue
            data = tree.get(name)
            require(data is not None, f"{name} was kept and is gone")
            # An object's name is its digest; a snapshot's ends in the first digits of it.
            label = name.removesuffix(".json").replace("/", "-").rpartition("-")[2]
            require(data is None or sha256(data).startswith(label), f"{name} was kept and is torn")

    def _require_contexts(self, found: dict[str, tuple[Link, ...]]) -> None:
        """The context that a run saved ``full`` names lasts as long as the run."""
        for chain in found.values():
            for link in chain:
                state = link.document["state"]
                context = state.get("context") if isinstance(state, dict) else None
                event = link.document["event"]
                if isinstance(context, dict) and "scope" in context and event["durability"] != FAST:
                    named, there = event["context"]["sha256"], found.get(scope_hash(context["scope"]), ())
                    sound = named in {each.sha256 for each in there}
                    require(sound, f"the context that {link.path} names is not on a sound chain")

    def _chains(self, there: set[str]) -> dict[str, tuple[Link, ...]]:
        scopes = {path[:64] for path in self.tree if _SCOPE.match(path)} | self.promises.scopes.keys()
        found: dict[str, tuple[Link, ...]] = {}
        for scope in scopes - {""}:
            may_break = self.damaged or self.promises.may_break(scope)
            try:
                chain = chain_of(self.tree, scope)
            except ViolationError as error:
                require(may_break, f"a chain is broken: {error}")
                firm = self.promises.scopes[scope].firm if scope in self.promises.scopes else []
                require(there.issuperset(firm), f"what was promised of {scope} is gone: {firm}")
                self.damaged = True
                continue
            right = self.promises.right(scope)
            shas = [link.sha256 for link in chain]
            require(shas in right or (self.damaged and self.repairing), f"{scope} holds {shas}, not one of {right}")
            found[scope] = chain
        return found

    def _read(self, found: dict[str, tuple[Link, ...]]) -> None:
        log: list[Step] = []
        fs = ModelFs(self.image, log)
        store = Store(LocalBackend(STATE_DIR, fs), redactor=Redactor())
        report = self._verified(store)
        for scope, chain in found.items():
            key = self.keys.get(scope)
            if key is None:
                continue
            try:
                head = store.scope(key).head()
            except IntegrityError:
                require(self.damaged, f"{key} cannot be loaded")
                continue
            wanted = chain[-1].sha256 if chain else None
            require((head.sha256 if head else None) == wanted, f"{key} loads another head")
        require(not log, f"reading wrote: {log}")
        self.damaged = self.damaged or not report.ok

    def _verified(self, store: Store) -> Report:
        report = verify(store)
        harmless = ("residue",) if "stateline.json" in self.tree else ("residue", "warning")
        broken = {finding.path for finding in report.findings if finding.severity == "damage"}
        worn = {path for path in broken if {path, path.partition("/")[0]} & self.promises.hurried}
        if worn and not self.repairing:
            require(worn == broken, f"verify found {report.findings}, and not all of it was put fast")
            self.damaged = True
        if not self.damaged:
            worse = [finding for finding in report.findings if finding.severity not in harmless]
            told = self.repairing and all(finding.severity == "warning" for finding in worse)
            require(report.ok and (not worse or told), f"verify found {worse}")
        return report

    # -- going on ----------------------------------------------------------------------------------------------------

    def go_on(self, found: dict[str, list[str]], log: list[Step] | None = None) -> Image:
        """Repair what may be damaged, and save: both must work, and ``verify`` must find nothing worse than residue.
        The disk afterwards; ``log`` gets what was done, and what was promised. Raises :class:`ViolationError`."""
        image = self.image.copy()
        said = [] if log is None else log
        fs = ModelFs(image, log)
        place = Place(STATE_DIR, self.root, lambda: fs, lambda note: said.append(Acknowledgement(note)), AFTERWARDS)
        if self.damaged:
            repaired = apply_repair(place.open(), None)
            require(repaired.ok, f"the repair left {repaired.findings} and {repaired.blocked}")
        # One scope is enough where all that is done is done again and again.
        keys = {NOTES} if log is not None else {NOTES, *self.keys.values()}
        for key in sorted(keys):
            self._save(place, key, found.get(scope_hash(key), []))
        after = Judge(image, self.promises, self.root, repairing=self.repairing or self.damaged)
        after.damaged = False
        after._verified(Store(LocalBackend(STATE_DIR, ModelFs(image)), redactor=Redactor()))
        self._require_kept(after.tree, found)
        for scope, promise in self.promises.scopes.items():
            if scope not in ("", self.promises.going()):
                now = {link.sha256 for link in chain_of(after.tree, scope)}
                require(now.issuperset(promise.firm), f"what was promised of {scope} is on no chain any more")
        return image

    def resume(self, resume: Callable[[Place], None]) -> None:
        """Go on with what the scenario began, on a copy: an effect that must not be repeated is not started again."""
        fs = ModelFs(self.image.copy())
        started: list[Note] = []
        place = Place(STATE_DIR, self.root, lambda: fs, lambda note: None, AFTERWARDS)
        with observe_effects(started.append):
            resume(place)
        before = {_visit(note) for note in self.promises.effects}
        again = [note.name for note in started if note.sha256 and _visit(note) in before]
        require(not again, f"started again: {again}")

    def _save(self, place: Place, key: str, chain: list[str]) -> None:
        scope = place.open().scope(key)
        before = scope.head()
        saved = scope.save({"after": len(chain), "text": "z" * 5000})
        require(saved.envelope.prev_sha == (before.sha256 if before else None), "the next save has another parent")
        require(
            self.damaged or self.repairing or saved.seq == len(chain), f"the next save of {key} is number {saved.seq}"
        )
        now = [link.sha256 for link in chain_of(place.seam().image.tree(STATE_DIR), saved.scope)]
        require(now[-1:] == [saved.sha256], f"the next save of {key} is not the end of its chain")
        require(self.damaged or now[:-1] == chain, f"the next save of {key} stands on {now[:-1]}, not on {chain}")
        names = place.seam().names(_scope(place, key))
        left = {name for name in names if name.startswith(".tmp-")}
        # The mark tells the next writer that there is something to sweep. Where no journal keeps names in order the
        # mark alone may be lost; what it told of then stays, as residue, and no more of it.
        if not self.ordered and f"{saved.scope}/.tmp-held" not in self.tree:
            left -= {path.rpartition("/")[2] for path in self.tree if path.startswith(f"{saved.scope}/.tmp-")}
        require(not left, f"the next save of {key} left {left}")


@contextmanager
def observe_effects(listener: Callable[[Note], None]) -> Iterator[None]:
    """Somebody hears of each effect just before it starts; ``sha256`` of the note is that of the snapshot with its
    intent, or "" for an effect that may be repeated."""
    perform = loop._perform

    def told(run: Any) -> Any:
        stage, effect = run.machine.stages[run.state.tree.stage], run.event["effect"]
        intent = "" if stage.repeatable else run.sha256
        listener(Note("effect", run.scope.hash, f"{stage.name}:{effect['key']}:{effect['attempt']}", intent))
        return perform(run)

    tool_run = calls._tool_run

    def called(run: Any, call: Any) -> Any:
        repeatable = run.machine.toolset.tools[call["name"]].repeatable
        key = run.event["calls"]["keys"][call["id"]]
        listener(Note("effect", run.scope.hash, f"{call['name']}:{key}:1", "" if repeatable else run.sha256))
        return tool_run(run, call)

    with mock.patch.object(loop, "_perform", told), mock.patch.object(calls, "_tool_run", called):
        yield


def _visit(note: Note) -> tuple[str, str]:
    """Which effect it is, whatever attempt."""
    return note.scope, note.name.rpartition(":")[0]


def _scope(place: Place, key: str) -> Any:
    fs = place.seam()
    return fs.open_directory(fs.open_root(place.path), scope_hash(key))


__all__ = [
    "AFTERWARDS",
    "STATE_DIR",
    "Before",
    "Judge",
    "Promises",
    "ViolationError",
    "chain_of",
    "intact_snapshots",
]
