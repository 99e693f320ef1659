"""What must hold of a state dir after a power loss. The chains are read here from JSON and digests alone; what the
store, ``verify`` and a repair say of the same disk is compared with that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from campaigns.chain import Violated, demand
from crash.disk import Image, ModelFs, Said, Step, sha256
from crash.workloads import EPOCH, NOTES, Note, Place

from stateline import Redactor, Store
from stateline.bundle.naming import scope_hash
from stateline.engine import loop
from stateline.errors import IntegrityError
from stateline.history.findings import Report
from stateline.history.verify import verify
from stateline.service.repair import apply_repair
from stateline.store.local import LocalBackend
from stateline.store.protocol import FAST

STATE_DIR = "/model/state dir"
AFTERWARDS = EPOCH + 10**15
"""[ns since 1970] at which somebody comes again after a power loss."""

_SCOPE = re.compile(r"[0-9a-f]{64}")
_facts: dict[bytes, Any] = {}

Tree = dict[str, bytes]


class Broken(Exception):
    """A chain cannot be read from its head to its first snapshot."""


class Link(msgspec.Struct, frozen=True):
    """A snapshot as its file says it."""

    path: str
    sha256: str
    scope: str


def chain_of(tree: Tree, scope: str) -> tuple[Link, ...]:
    """The chain of a scope's hash, oldest first, every digest and every object looked at; empty without a pointer.

    Raises :class:`Broken`.
    """
    pointer = tree.get(f"{scope}/latest.json")
    if pointer is None:
        return ()
    gaps: dict[str, Any] = {}
    try:
        said = _parsed(pointer)
        path, sha = said["path"], said["sha256"]
        links = []
        while path is not None:
            if f"{scope}/{path}" not in tree and sha in gaps:
                # A repair has declared it lost, and where the chain goes on.
                below = gaps.pop(sha) or {"path": None, "sha256": None}
                path, sha = below["path"], below["sha256"]
                continue
            data = tree[f"{scope}/{path}"]
            _demand_digest(data, sha, path)
            document = _parsed(data)
            links.append(Link(path, sha, document["scope"]))
            _demand_objects(tree, document)
            for gap in document["event"].get("repaired", {}).get("gaps", []):
                gaps.setdefault(gap["lost"]["sha256"], gap["resumes"])
            path, sha = document["prev"], document["prev_sha"]
    except (KeyError, ValueError, TypeError) as error:
        raise Broken(f"{scope}: {error!r}") from None
    return tuple(reversed(links))


def survivors_of(tree: Tree) -> dict[str, list[str]]:
    """The shas of the intact snapshots of each scope, oldest first, whether something leads to them or not."""
    found: dict[str, list[str]] = {}
    for path in sorted(tree):
        scope, _, name = path.partition("/")
        if _SCOPE.fullmatch(scope) and name.startswith("state-") and sha256(tree[path]).startswith(name[-13:-5]):
            found.setdefault(scope, []).append(sha256(tree[path]))
    return found


def _parsed(data: bytes) -> Any:
    found = _facts.get(data)
    if found is None:
        if len(_facts) > 50_000:
            _facts.clear()
        found = _facts[data] = json.loads(data)
    return found


def _demand_digest(data: bytes, sha: str, what: str) -> None:
    if sha256(data) != sha:
        raise Broken(f"{what} is not what leads to it says")


def _demand_objects(tree: Tree, document: Any) -> None:
    for ref in [*document["objects"].values(), *filter(None, [document.get("before")])]:
        sha = ref["sha256"]
        data = tree[f"objects/{sha[:2]}/{sha}"]
        _demand_digest(data, sha, f"the object {sha}")
        if ref["media_type"].startswith("application/vnd.stateline."):
            _demand_objects(tree, _parsed(data))


class Promise(msgspec.Struct):
    """What was promised of one scope: the shas of ``firm`` snapshots are on its chain, whatever happens; those of
    ``loose`` (saved ``fast``) may be. ``past`` is what lies before the story."""

    firm: list[str]
    loose: list[str]

    def ends(self) -> list[list[str]]:
        """The chains that are right."""
        return [self.firm + self.loose[:count] for count in range(len(self.loose) + 1)]


class Promises:
    """All that was promised when the power went: chains by scope, blobs that are ``kept``, and what was ``coming``."""

    def __init__(self, past: dict[str, list[str]], told: Iterable[Said], coming: Said | None) -> None:
        self.scopes = {scope: Promise(list(chain), []) for scope, chain in past.items()}
        self.past = past
        self.mended = False
        self.kept: dict[str, str] = {}
        self.hurried: set[str] = set()
        self.effects: list[Note] = []
        for said in told:
            self._hear(said.note)
        self.coming: Note | None = coming.note if coming else None
        if self.coming:
            self._hurry(self.coming)
        if self.coming and self.coming.what not in ("head", "removed"):
            self.coming = None

    def _hurry(self, note: Note) -> None:
        """Note what a power loss may leave torn: it was put, or is being put, by a ``fast`` writer."""
        if note.durability == FAST:
            self.hurried |= {note.scope, note.name} - {""}

    def _hear(self, note: Note) -> None:
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
        return repr((scopes, sorted(self.kept), self.effects, self.coming))

    def right(self, scope: str) -> list[list[str]]:
        """The chains of a scope's hash that are right."""
        promise = self.scopes.get(scope, Promise([], []))
        ends = promise.ends()
        if self.coming and self.coming.scope == scope:
            ends.append([] if self.coming.what == "removed" else promise.firm + promise.loose + [self.coming.sha256])
        return ends

    def may_break(self, scope: str) -> bool:
        """Whether the newest of that scope was, or is being, saved so that a power loss may leave it torn."""
        promise = self.scopes.get(scope, Promise([], []))
        coming = self.coming
        return bool(promise.loose) or bool(coming and coming.scope == scope and coming.durability == FAST)


class Judge:
    """Looks at one disk. ``root`` is a real directory for what a story needs besides; ``repairing``: the story repairs
    a store, so that it may be damaged until that is done."""

    def __init__(self, image: Image, promises: Promises, root: Path, *, repairing: bool = False) -> None:
        self.image = image
        self.promises = promises
        self.root = root
        self.repairing = repairing
        self.tree = image.tree(STATE_DIR)
        self.damaged = repairing and not promises.mended

    def look(self) -> dict[str, list[str]]:
        """What reading must say; the chains that were found. Raises :class:`Violated`."""
        demand(not self.image.widest(STATE_DIR), "something is open to others")
        if self.repairing:
            there = {sha256(data) for data in self.tree.values()}
            gone = [sha for chain in self.promises.past.values() for sha in chain if sha not in there]
            demand(not gone, f"a repair lost what was intact: {gone}")
        found = self._chains()
        coming = self.promises.coming
        going = coming.scope if coming and coming.what == "removed" else None
        for name, scope in self.promises.kept.items():
            if scope == going and not found.get(scope):
                continue
            there = self.tree.get(name)
            demand(there is not None, f"{name} was kept and is gone")
            if there is not None and not scope:
                demand(sha256(there) == name.rpartition("/")[2], f"{name} was kept and is torn")
        self._read(found)
        return found

    def _chains(self) -> dict[str, list[str]]:
        scopes = {path[:64] for path in self.tree if _SCOPE.match(path)} | self.promises.scopes.keys()
        found: dict[str, list[str]] = {}
        for scope in scopes - {""}:
            may_break = self.damaged or self.promises.may_break(scope)
            try:
                chain = [link.sha256 for link in chain_of(self.tree, scope)]
            except Broken as error:
                demand(may_break, f"a chain is broken: {error}")
                self.damaged = True
                continue
            right = self.promises.right(scope)
            if chain not in right and may_break and not self.repairing:
                # An older pointer is as legal as a torn one.
                demand(any(chain == end[: len(chain)] for end in right), f"{scope} holds {chain}, not one of {right}")
                self.damaged = True
            demand(chain in right or may_break, f"{scope} holds {chain}, not one of {right}")
            found[scope] = chain
        return found

    def _read(self, found: dict[str, list[str]]) -> None:
        log: list[Step] = []
        fs = ModelFs(self.image, log)
        store = Store(LocalBackend(STATE_DIR, fs), redactor=Redactor())
        report = self._verified(store)
        for scope, chain in found.items():
            key = self._key(scope)
            if key is None:
                continue
            try:
                head = store.scope(key).head()
            except IntegrityError:
                demand(self.damaged, f"{key} cannot be loaded")
                continue
            demand((head.sha256 if head else None) == (chain[-1] if chain else None), f"{key} loads another head")
        demand(not log, f"reading wrote: {log}")
        self.damaged = self.damaged or not report.ok

    def _verified(self, store: Store) -> Report:
        report = verify(store)
        harmless = ("residue",) if "stateline.json" in self.tree else ("residue", "warning")
        broken = {finding.path for finding in report.findings if finding.severity == "damage"}
        worn = {path for path in broken if {path, path.partition("/")[0]} & self.promises.hurried}
        if worn and not self.repairing:
            demand(worn == broken, f"verify found {report.findings}, and not all of it was put fast")
            self.damaged = True
        if not self.damaged:
            worse = [finding for finding in report.findings if finding.severity not in harmless]
            told = self.repairing and all(finding.severity == "warning" for finding in worse)
            demand(report.ok and (not worse or told), f"verify found {worse}")
        return report

    def _key(self, scope: str) -> str | None:
        for path, data in self.tree.items():
            if path.startswith(f"{scope}/state-"):
                try:
                    return str(_parsed(data)["scope"])
                except (ValueError, KeyError, TypeError):
                    continue
        return None

    # -- going on ----------------------------------------------------------------------------------------------------

    def go_on(self, found: dict[str, list[str]], log: list[Step] | None = None) -> Image:
        """Repair what may be damaged, and save: both must work, and ``verify`` must find nothing worse than residue.
        The disk afterwards; ``log`` gets what was done, and what was promised. Raises :class:`Violated`."""
        image = self.image.copy()
        said = [] if log is None else log
        fs = ModelFs(image, log)
        place = Place(STATE_DIR, self.root, lambda: fs, lambda note: said.append(Said(note)), AFTERWARDS)
        if self.damaged:
            repaired = apply_repair(place.open(), None)
            demand(repaired.ok, f"the repair left {repaired.findings} and {repaired.blocked}")
        keys = {NOTES, *filter(None, (self._key(scope) for scope in found))}
        for key in sorted(key for key in keys if key.startswith("notes:")):
            self._save(place, key, found.get(scope_hash(key), []))
        after = Judge(image, self.promises, self.root, repairing=self.repairing or self.damaged)
        after.damaged = False
        after._verified(Store(LocalBackend(STATE_DIR, ModelFs(image)), redactor=Redactor()))
        return image

    def resume(self, resume: Callable[[Place], None]) -> None:
        """Go on with what the story began, on a copy: an effect that must not be repeated is not started again."""
        fs = ModelFs(self.image.copy())
        started: list[Note] = []
        place = Place(STATE_DIR, self.root, lambda: fs, lambda note: None, AFTERWARDS)
        with effects_told(started.append):
            resume(place)
        again = [note.name for note in started if note.sha256 and note in self.promises.effects]
        demand(not again, f"started again: {again}")

    def _save(self, place: Place, key: str, chain: list[str]) -> None:
        scope = place.open().scope(key)
        before = scope.head()
        saved = scope.save({"after": len(chain), "text": "z" * 5000})
        demand(saved.envelope.prev_sha == (before.sha256 if before else None), "the next save has another parent")
        demand(
            self.damaged or self.repairing or saved.seq == len(chain), f"the next save of {key} is number {saved.seq}"
        )
        now = [link.sha256 for link in chain_of(place.seam().image.tree(STATE_DIR), saved.scope)]
        demand(now[-1:] == [saved.sha256], f"the next save of {key} is not the end of its chain")
        demand(self.damaged or now[:-1] == chain, f"the next save of {key} stands on {now[:-1]}, not on {chain}")
        names = place.seam().names(_scope(place, key))
        left = {name for name in names if name.startswith(".tmp-")}
        # The mark tells the next writer that there is something to sweep. Where no journal keeps names in order the
        # mark alone may be lost; what it told of then stays, as residue, and no more of it.
        if f"{saved.scope}/.tmp-held" not in self.tree:
            left -= {path.rpartition("/")[2] for path in self.tree if path.startswith(f"{saved.scope}/.tmp-")}
        demand(not left, f"the next save of {key} left {left}")


@contextmanager
def effects_told(listener: Callable[[Note], None]) -> Iterator[None]:
    """Somebody hears of each effect just before it starts; ``sha256`` of the note is that of the snapshot with its
    intent, or "" for an effect that may be repeated."""
    perform = loop._perform

    def told(run: Any) -> Any:
        stage, effect = run.machine.stages[run.state.tree.stage], run.event["effect"]
        intent = "" if stage.repeatable else run.sha256
        listener(Note("effect", run.scope.hash, f"{stage.name}:{effect['key']}:{effect['attempt']}", intent))
        return perform(run)

    with mock.patch.object(loop, "_perform", told):
        yield


def _scope(place: Place, key: str) -> Any:
    fs = place.seam()
    return fs.open_directory(fs.open_root(place.path), scope_hash(key))


__all__ = ["AFTERWARDS", "STATE_DIR", "Broken", "Judge", "Promises", "Violated", "chain_of", "survivors_of"]
