"""One scope's directory, checked against a store that may be alive.

The order makes that safe: names are listed first, then the pointer is read, then the chain is walked. Whatever was
listed had been published before the pointer was read, so what the chain does not reach is a save under way, crash
residue, or damage; and a snapshot on the chain is never removed again, but with its whole scope.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Envelope, Link, Pointer
from stateline.bundle.repair_record import Losses, recorded_lost
from stateline.errors import IntegrityError, NewerVersionError, StatelineError
from stateline.store.integrity import out_of_kind
from stateline.store.protocol import BlobMissingError
from stateline.store.store import Snapshot, Store
from stateline.verify.digest_mismatch import judged, misplaced
from stateline.verify.findings import Finding, Severity
from stateline.verify.objects import Inventory, unsafe
from stateline.verify.origins import origin_problem


class Loose(msgspec.Struct, frozen=True):
    """A snapshot that the chain does not reach: what is needed to tell why."""

    path: str
    seq: int
    created_at: str
    prev_sha: str | None
    prev: str | None


class ChainCheck:
    """One pass over a scope. ``findings``, ``snapshots`` (intact ones), ``has_head`` and ``head`` (if it is intact) are
    the result; ``certain`` is False when a snapshot could not be read, so that nobody knows what it names, and
    ``newer`` True when something is of a newer version. Of the digests in ``anchors`` (one set for all scopes; it is
    not copied), ``anchored`` has those on the chain with their ``seq``, ``given_up`` those that a repair on the chain
    has recorded as lost, ``beside`` the paths of those that lie intact beside the chain, and ``named`` the paths where
    something says that one is which could not be read. Nothing else that grows with the chain outlives :meth:`run`."""

    def __init__(self, store: Store, scope: str, inventory: Inventory, anchors: frozenset[str] = frozenset()) -> None:
        self.store = store
        self.scope = scope
        self.inventory = inventory
        self.findings: list[Finding] = []
        self.snapshots = 0
        self.has_head = False
        self.head: Link | None = None
        self.anchored: dict[str, int] = {}
        self.given_up: set[str] = set()
        self.beside: dict[str, str] = {}
        self.named: dict[str, str] = {}
        self._anchors = anchors
        self.certain = True
        self.newer = False
        self.complete = False
        self.key: str | None = None
        self._names: set[str] = set()
        # Digests that are named and lead to nothing good, and of altered files their digest and finding.
        self._sought: set[str | None] = set()
        self._altered: list[tuple[str, int]] = []
        # Digest -> seq of all that is on the chain; the only thing that grows with it, besides the names.
        self._chain: dict[bytes, int] = {}
        self._losses = Losses()
        self._resumed_at: int | None = None

    def run(self) -> ChainCheck:
        """Check the scope; findings are complete afterwards. Never raises for what lies there."""
        try:
            self._list()
        except StatelineError as error:
            self._error(error, "")
            self.certain = False
        else:
            self._check()
        # Who checks a whole store keeps all checks to its end.
        self._names, self._sought, self._altered, self._chain = set(), set(), [], {}
        self._losses = Losses()
        return self

    def _check(self) -> None:
        pointer, readable = self._pointer()
        if pointer is not None:
            self.has_head = True
            self._walk(pointer)
        loose = self._rest()
        if loose and readable:
            pointer = self._catch_up(pointer, loose)
        if self._anchors:
            self._adrift(loose)
        if not self.newer:
            self._judge(loose, pointer, readable)
        if self.key is not None:
            self.findings = [msgspec.structs.replace(finding, scope=self.key) for finding in self.findings]

    # -- reading ---------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        self._look("")
        for name in sorted(self.store.backend.list(self.scope)):
            if naming.snapshot_parts(name) is not None:
                # Looked at when it is read: what was opened tells both.
                self._names.add(name)
                continue
            if name.startswith(naming.TEMPORARY):
                self._found(
                    "residue", "temporary", name, "a file that was being written; safe to remove when nobody writes"
                )
                continue
            elif name not in (naming.POINTER, naming.LOCK):
                self.findings.append(Finding.stray(name, self.key, f"{self.scope}/{name}"))
                continue
            elif name == naming.LOCK and out_of_kind(self.store.backend, f"{self.scope}/{name}"):
                self._found("damage", "not_regular", name, "the lock is not a regular file; nobody can hold it")
            self._look(name)

    def _pointer(self) -> tuple[Pointer | None, bool]:
        """The pointer, and whether there was none or a readable one."""
        try:
            return self.store.backend.read(self.scope), True
        except StatelineError as error:
            self._error(error, naming.POINTER)
            return None, False

    def _walk(self, pointer: Pointer | None, loose: dict[str, Loose] | None = None) -> None:
        """From a pointer down to the first snapshot, or to one that is on the chain already."""
        child: Snapshot | None = None
        while pointer is not None:
            if bytes.fromhex(pointer.sha256) in self._chain:
                return
            listed = pointer.path in self._names
            self._names.discard(pointer.path)
            known = loose is not None and loose.pop(pointer.sha256, None) is not None
            if child is not None and not listed and self._is_lost(pointer):
                pointer = self._over_the_gap(child, pointer)
                continue
            snapshot = self._snapshot(pointer.path, partial(self.store.read_snapshot, self.scope, pointer), known)
            if snapshot is None:
                self._sought.add(pointer.sha256)
                if pointer.sha256 in self._anchors:
                    self.named[pointer.sha256] = f"{self.scope}/{pointer.path}"
                return
            self._chain[bytes.fromhex(snapshot.sha256)] = snapshot.seq
            if child is None:
                self.head = Link(snapshot.envelope.scope, snapshot.seq, snapshot.sha256)
            if self._anchors:
                self._moor(snapshot)
            if child is not None and self._misordered(snapshot.envelope, child.envelope):
                self._found(
                    "damage", "misordered", child.path, f"seq or created_at do not follow those of {snapshot.path}"
                )
            self._losses.apply_losses(snapshot.event)
            envelope = snapshot.envelope
            if envelope.prev is None or envelope.prev_sha is None:
                self.complete = True
                return
            pointer, child = Pointer(envelope.prev, envelope.prev_sha), snapshot

    def _moor(self, snapshot: Snapshot) -> None:
        """Note which of the anchors a snapshot on the chain has, or says are lost."""
        if snapshot.sha256 in self._anchors:
            self.anchored[snapshot.sha256] = snapshot.seq
        self.given_up.update(self._anchors.intersection(recorded_lost(snapshot.event)))

    def _adrift(self, loose: dict[str, Loose]) -> None:
        """Note which of the anchors lie beside the chain, and which ones what lies there names as its parents."""
        self.beside = {sha: f"{self.scope}/{loose[sha].path}" for sha in self._anchors & loose.keys()}
        for item in loose.values():
            sha = item.prev_sha
            if sha in self._anchors and item.prev is not None and sha not in self.anchored and sha not in self.beside:
                self.named[sha] = f"{self.scope}/{item.prev}"

    def _is_lost(self, pointer: Pointer) -> bool:
        """Whether a snapshot is not there, and a newer one says so."""
        if pointer.sha256 not in self._losses.gaps:
            return False
        try:
            self.store.read_snapshot(self.scope, pointer)
        except IntegrityError as error:
            return error.finding == "missing"
        except StatelineError:
            pass
        return False

    def _over_the_gap(self, child: Snapshot, pointer: Pointer) -> Pointer | None:
        """Where the chain resumes below a snapshot that was declared lost."""
        gap = self._losses.gap(pointer.sha256)
        older = "nothing older is left" if gap is None or gap.resumes is None else "what is older on that record alone"
        message = f"lost, as a repair of this scope has recorded; {child.path} rests on it, and {older}"
        self._found("warning", "lost", pointer.path, message)
        if gap is None or gap.resumes is None:
            self.complete = True
            return None
        self._resumed_at = gap.resumes.seq
        return gap.resumes.pointer

    def _misordered(self, parent: Envelope, child: Envelope) -> bool:
        """Whether two neighbours on the chain do not follow each other. Below a gap ``seq`` is as declared."""
        expected, self._resumed_at = self._resumed_at, None
        wrong = parent.seq + 1 != child.seq if expected is None else not parent.seq == expected < child.seq
        return wrong or parent.created_at >= child.created_at

    def _rest(self) -> dict[str, Loose]:
        """Read what was listed and is not on the chain: sha -> Loose."""
        loose: dict[str, Loose] = {}
        # Below a head of a newer version nothing was walked: the newest comes first, as on the chain, so that what it
        # declares lost is not called damage where older ones name it.
        headless = self.newer
        for path in sorted(self._names, reverse=headless):
            snapshot = self._snapshot(path, partial(self._by_name, path), False)
            if snapshot is not None and headless:
                self._losses.apply_losses(snapshot.event)
            if snapshot is not None and (snapshot.sha256 in loose or bytes.fromhex(snapshot.sha256) in self._chain):
                self._found("damage", "misplaced", path, "the same snapshot lies here under another name too")
            elif snapshot is not None:
                e = snapshot.envelope
                loose[snapshot.sha256] = Loose(path, e.seq, e.created_at, e.prev_sha, e.prev)
        self._find_again(loose)
        return loose

    def _by_name(self, path: str) -> Snapshot | None:
        try:
            data = self.store.backend.get(f"{self.scope}/{path}", canonical.SNAPSHOT_LIMIT)
        except BlobMissingError:
            # Listed a moment ago, and nothing leads to it: its scope was removed.
            return None
        return self.store.parse_snapshot(self.scope, path, data)

    def _snapshot(self, path: str, read: Callable[[], Snapshot | None], known: bool) -> Snapshot | None:
        """Read one, count it and check what it names, unless it is ``known``; None with a finding if it is damaged."""
        try:
            snapshot = read()
        except StatelineError as error:
            self.certain = False
            self._look(path)
            self._damaged(error, path)
            return None
        if snapshot is not None and not known:
            self._look(path)
            self.key = snapshot.envelope.scope
            self.snapshots += 1
            self.inventory.check(snapshot, self._losses.objects)
            if snapshot.envelope.origin is not None:
                self._origin(snapshot.path, snapshot.envelope.origin)
        return snapshot

    def _damaged(self, error: StatelineError, path: str) -> None:
        """The finding for a damaged snapshot, by its name and bytes: a repair, which knows no more, says the same."""
        sha = ""
        if isinstance(error, IntegrityError) and error.finding not in ("missing", "too_large"):
            try:
                data = self.store.backend.get(f"{self.scope}/{path}", canonical.SNAPSHOT_LIMIT)
                sha, error = canonical.sha256(data), judged(error, self.scope, path, data)
            except (StatelineError, BlobMissingError):
                pass
        self._error(error, path)
        if sha and self.findings[-1].code == "altered":
            self._altered.append((sha, len(self.findings) - 1))

    def _find_again(self, loose: dict[str, Loose]) -> None:
        """What seemed altered is only misplaced if just these bytes are sought, or are there once more."""
        known = self._sought | loose.keys() | {item.prev_sha for item in loose.values()}
        for sha, index in self._altered:
            if sha in known or bytes.fromhex(sha) in self._chain:
                found = self.findings[index]
                message = misplaced(self.scope, found.path.rpartition("/")[2])
                self.findings[index] = msgspec.structs.replace(found, code="misplaced", message=message)

    def _catch_up(self, pointer: Pointer | None, loose: dict[str, Loose]) -> Pointer | None:
        """Saves that ended while the chain was walked took their snapshots from ``loose`` into the chain."""
        try:
            now = self.store.backend.read(self.scope)
        except StatelineError:
            return pointer
        if now is not None and now != pointer:
            self.has_head = True
            self._walk(now, loose)
        return now

    def _origin(self, path: str, origin: Link) -> None:
        """The snapshot that a fork began from must be there, or be declared lost."""
        problem = origin_problem(self.store, origin)
        if problem is not None and problem[0] == "missing" and self._losses.gap(origin.sha256) is not None:
            self._found("warning", "lost", path, f"{problem[1]}, as a repair of this scope has recorded")
        elif problem is not None:
            self._found("damage", problem[0], path, problem[1])

    # -- judging ---------------------------------------------------------------------------------------------------

    def _judge(self, loose: dict[str, Loose], pointer: Pointer | None, readable: bool) -> None:
        """Tell crash residue among ``loose`` from damage."""
        lost = readable and pointer is None and (not self.certain or any(item.seq for item in loose.values()))
        if lost:
            self._found(
                "damage", "missing", naming.POINTER, "the pointer is missing, and more than a first save is here"
            )
        # Where does the chain end? Only if that is known can a lone first snapshot be residue.
        grounded = self.complete or (readable and pointer is None and not lost)
        parents = {item.prev_sha for item in loose.values()}
        tips = sorted((item.seq, item.created_at, sha) for sha, item in loose.items() if sha not in parents)
        beside = self._on_chain({item.seq for item in loose.values()})
        strays: set[bytes] = set()
        for _, _, sha in reversed(tips):
            claimed = self._piece(sha, loose)
            piece = list(claimed.values())
            last = piece[-1]
            parent = None if last.prev_sha is None else bytes.fromhex(last.prev_sha)
            joined = parent is not None and parent in self._chain
            # What stands right after a parent on the chain follows it; a place further on is another parent's.
            right_after = parent is not None and parent not in strays and self._chain.get(parent) == last.seq - 1
            rival = beside.get(last.seq) if last.seq == 0 or right_after else None
            if len(piece) == 1 and (joined or (last.seq == 0 and grounded)):
                self._never_acknowledged(last, next(reversed(claimed)).hex(), rival)
            else:
                self._orphaned(piece, joined, rival)
            grounded = grounded or last.seq == 0
            strays.update(claimed)
            self._chain.update((digest, item.seq) for digest, item in claimed.items())

    def _on_chain(self, places: set[int]) -> dict[int, str]:
        """The names of the snapshots on the chain that have one of these ``seq``, as the walk read them: a copy under
        another name is no part of it."""
        digests = {digest.hex(): seq for digest, seq in self._chain.items() if seq in places}
        labels = {digest[: naming.LABEL]: digest for digest in digests}
        found: dict[int, str] = {}
        with suppress(StatelineError):
            for name in self.store.backend.list(self.scope) if digests else ():
                # What the walk has read is not among these any more.
                parts = None if name in self._names else naming.snapshot_parts(name)
                digest = labels.get(parts[1][: naming.LABEL]) if parts else None
                if parts and digest and digest.startswith(parts[1]):
                    found[digests[digest]] = name
        return found

    def _piece(self, sha: str, loose: dict[str, Loose]) -> dict[bytes, Loose]:
        """The run of loose snapshots from a tip down to where it ends or meets what is known."""
        piece: dict[bytes, Loose] = {}
        at: str | None = sha
        while at is not None and at in loose and bytes.fromhex(at) not in self._chain:
            piece[bytes.fromhex(at)] = loose[at]
            at = loose[at].prev_sha
        return piece

    def _never_acknowledged(self, item: Loose, sha: str, rival: str | None) -> None:
        if item.seq and not self._follows(item):
            self._found("damage", "misordered", item.path, "it names a parent on the chain and does not follow it")
            return
        if rival is None:
            message = "published and never made head: a crash, a save under way, or the pointer was set back"
            self._found("residue", "unacknowledged", item.path, message)
            return
        fork = f"{_rivals(item, rival)} is on the chain, and this one is not"
        look = f"look with `stateline show {sha}`, and whether locks hold on this file system"
        parts = naming.snapshot_parts(rival)
        if parts is not None and parts[0] < item.created_at.replace(":", ""):
            # A save that crashed is over before the next one begins.
            why = "the lock does not hold here, it was put here, or the clocks of the writers differ or were set back"
            message = f"it is the newer one, which no crash leaves: {why}; it may hold what was acknowledged: {look}"
            self._found("warning", "forked", item.path, f"{fork}; {message}")
            return
        why = "it crashed before it was made head; or the lock does not hold here and the other overtook it, or the"
        message = f"{why} pointer was set back: then it may hold what was acknowledged: {look}"
        self._found("residue", "unacknowledged", item.path, f"{fork}: {message}")

    def _follows(self, item: Loose) -> bool:
        parts = naming.snapshot_parts(item.prev or "")
        return (
            item.prev_sha is not None
            and parts is not None
            and self._chain[bytes.fromhex(item.prev_sha)] + 1 == item.seq
            and item.prev_sha.startswith(parts[1])
            and parts[0] < item.created_at.replace(":", "")
        )

    def _orphaned(self, piece: list[Loose], joined: bool, rival: str | None) -> None:
        first, last = piece[-1], piece[0]
        span = (
            f"snapshot {last.seq}" if len(piece) == 1 else f"the {len(piece)} snapshots from {first.seq} to {last.seq}"
        )
        why = "the pointer was set back, or a second chain was put here" if joined else "what led there is lost"
        if rival is not None:
            why = "the pointer was set back, or a second chain was put here"
            why = f"{_rivals(first, rival)} is on the chain, {first.path} is not; the lock does not hold here, or {why}"
        self._found("damage", "orphaned", last.path, f"{span} cannot be reached from the head: {why}")

    # -- telling ---------------------------------------------------------------------------------------------------

    def _look(self, name: str) -> None:
        if self.inventory.places is not None:
            self.findings += unsafe(self.inventory.places, f"{self.scope}/{name}", self.key)

    def _error(self, error: StatelineError, name: str) -> None:
        # What a newer version wrote may follow rules of its own, so nothing beside it can be called lost.
        self.newer = self.newer or isinstance(error, NewerVersionError)
        self.findings.append(Finding.of(error, self.key, f"{self.scope}/{name}".rstrip("/")))

    def _found(self, severity: Severity, code: str, name: str, message: str) -> None:
        self.findings.append(Finding(severity, code, self.key, f"{self.scope}/{name}".rstrip("/"), message))


def _rivals(item: Loose, rival: str) -> str:
    """The beginning of what is said of a fork, which ends with the snapshot that is on the chain."""
    return f"two snapshots follow {item.prev}: {rival}" if item.seq else f"there are two first snapshots: {rival}"
