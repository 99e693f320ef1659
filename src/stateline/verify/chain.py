"""Check of one scope's directory, in a store that may be in use.

Names are listed first, then the pointer is read, then the chain is walked. A listed snapshot had been published before
the pointer was read, so one that the chain does not reach is a save in progress, crash residue, or damage. Snapshots on
the chain are only ever removed together with their scope.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Envelope, Link, Pointer
from stateline.bundle.repair_record import DeclaredLosses
from stateline.errors import IntegrityError, StatelineError
from stateline.store.integrity import wrong_kind
from stateline.store.protocol import BlobMissingError
from stateline.store.snapshot import Snapshot, parse_snapshot, read_snapshot
from stateline.store.store import Store
from stateline.verify.anchors import recorded_lost
from stateline.verify.classification import classify_error, misplaced_message, origin_problem
from stateline.verify.findings import Finding, ScopeReport
from stateline.verify.objects import ObjectCheck, unsafe_findings
from stateline.verify.off_chain import OffChainCheck, OffChainSnapshot


class ChainCheck:
    """One pass over a scope. ``anchors`` is one set for all scopes and is not copied."""

    def __init__(self, store: Store, scope: str, objects: ObjectCheck, anchors: frozenset[str] = frozenset()) -> None:
        self.store = store
        self.scope = scope
        self.objects = objects
        self.report = ScopeReport(scope)
        self._anchors = anchors
        self._names: set[str] = set()
        """Names of snapshots that were listed and not yet read."""
        self._broken_links: set[str] = set()
        """Digests that the chain names and that could not be read."""
        self._altered: list[tuple[str, int]] = []
        """Of altered files: the digest of their bytes, and the index of their finding."""
        self._chain: dict[bytes, int] = {}
        """Digest -> ``seq`` of each snapshot on the chain. Grows with the chain, as the names do."""
        self._losses = DeclaredLosses()
        self._resumed_at: int | None = None

    def run(self) -> ScopeReport:
        """Check the scope. Never raises for its content."""
        try:
            self._list()
        except StatelineError as error:
            self.report.add_error(error, "")
            self.report.certain = False
        else:
            self._check()
        return self.report

    def _check(self) -> None:
        report = self.report
        pointer, readable = self._pointer()
        if pointer is not None:
            report.has_head = True
            self._walk(pointer)
        off_chain = self._read_off_chain()
        if off_chain and readable:
            pointer = self._catch_up(pointer, off_chain)
        if self._anchors:
            self._find_anchors(off_chain)
        if not report.newer:
            check = OffChainCheck(self.store, report, self._chain, off_chain, frozenset(self._names))
            check.run(pointer_missing=readable and pointer is None)
        if report.key is not None:
            report.findings = [msgspec.structs.replace(finding, scope=report.key) for finding in report.findings]

    def _list(self) -> None:
        report = self.report
        self._add_unsafe("")
        for name in sorted(self.store.backend.list(self.scope)):
            path = f"{self.scope}/{name}"
            if naming.snapshot_parts(name) is not None:
                # Its mode and owner are checked when it is read.
                self._names.add(name)
            elif name.startswith(naming.TEMPORARY):
                report.findings.append(Finding.temporary(report.key, path))
            elif name not in (naming.POINTER, naming.LOCK):
                report.findings.append(Finding.unknown_name(name, report.key, path))
            else:
                if name == naming.LOCK and wrong_kind(self.store.backend, path):
                    report.add("damage", "not_regular", name, "the lock is not a regular file; nobody can hold it")
                self._add_unsafe(name)

    def _pointer(self) -> tuple[Pointer | None, bool]:
        """Return the pointer, and False if it could not be read."""
        try:
            return self.store.backend.read(self.scope), True
        except StatelineError as error:
            self.report.add_error(error, naming.POINTER)
            return None, False

    def _walk(self, pointer: Pointer | None, off_chain: dict[str, OffChainSnapshot] | None = None) -> None:
        """Walk from a pointer down to the first snapshot, or to one that is on the chain already."""
        child: Snapshot | None = None
        while pointer is not None:
            if bytes.fromhex(pointer.sha256) in self._chain:
                return
            listed = pointer.path in self._names
            self._names.discard(pointer.path)
            known = off_chain is not None and off_chain.pop(pointer.sha256, None) is not None
            if child is not None and not listed and self._is_declared_lost(pointer):
                pointer = self._cross_gap(child, pointer)
                continue
            snapshot = self._snapshot(
                pointer.path, partial(read_snapshot, self.store.backend, self.scope, pointer), known
            )
            if snapshot is None:
                self._broken_links.add(pointer.sha256)
                if pointer.sha256 in self._anchors:
                    self.report.anchors.unreadable[pointer.sha256] = f"{self.scope}/{pointer.path}"
                return
            self._add_to_chain(snapshot, child)
            envelope = snapshot.envelope
            if envelope.prev is None or envelope.prev_sha is None:
                self.report.complete = True
                return
            pointer, child = Pointer(envelope.prev, envelope.prev_sha), snapshot

    def _add_to_chain(self, snapshot: Snapshot, child: Snapshot | None) -> None:
        self._chain[bytes.fromhex(snapshot.sha256)] = snapshot.seq
        if child is None:
            self.report.head = Link(snapshot.envelope.scope, snapshot.seq, snapshot.sha256)
        if self._anchors:
            if snapshot.sha256 in self._anchors:
                self.report.anchors.on_chain[snapshot.sha256] = snapshot.seq
            self.report.anchors.recorded_lost.update(self._anchors & recorded_lost(snapshot.event))
        if child is not None and self._misordered(snapshot.envelope, child.envelope):
            message = f"seq or created_at do not follow those of {snapshot.path}"
            self.report.add("damage", "misordered", child.path, message)
        self._losses.add(snapshot.event)

    def _find_anchors(self, off_chain: dict[str, OffChainSnapshot]) -> None:
        """Record the anchors that are beside the chain, and those that a snapshot there names as its parent."""
        anchors = self.report.anchors
        anchors.off_chain = {sha: f"{self.scope}/{off_chain[sha].path}" for sha in self._anchors & off_chain.keys()}
        for item in off_chain.values():
            sha = item.prev_sha
            if sha not in self._anchors or sha in anchors.on_chain or sha in anchors.off_chain or item.prev is None:
                continue
            anchors.unreadable[sha] = f"{self.scope}/{item.prev}"

    def _is_declared_lost(self, pointer: Pointer) -> bool:
        """Return whether a snapshot is missing and a newer one declares it lost."""
        if pointer.sha256 not in self._losses.gaps:
            return False
        try:
            read_snapshot(self.store.backend, self.scope, pointer)
        except IntegrityError as error:
            return error.finding == "missing"
        except StatelineError:
            pass
        return False

    def _cross_gap(self, child: Snapshot, pointer: Pointer) -> Pointer | None:
        """Return where the chain resumes below a snapshot that was declared lost; None if nothing older survives."""
        gap = self._losses.take_gap(pointer.sha256)
        resumes = None if gap is None else gap.resumes
        older = "nothing older is left" if resumes is None else "only that record links it to what is older"
        message = f"lost, as a repair of this scope has recorded; {child.path} rests on it, and {older}"
        self.report.add("warning", "lost", pointer.path, message)
        if resumes is None:
            self.report.complete = True
            return None
        self._resumed_at = resumes.seq
        return resumes.pointer

    def _misordered(self, parent: Envelope, child: Envelope) -> bool:
        """Return whether two neighbours on the chain are out of order. Below a gap ``seq`` must be as declared."""
        expected, self._resumed_at = self._resumed_at, None
        wrong = parent.seq + 1 != child.seq if expected is None else not parent.seq == expected < child.seq
        return wrong or parent.created_at >= child.created_at

    def _read_off_chain(self) -> dict[str, OffChainSnapshot]:
        """Read the snapshots that were listed and are not on the chain, by sha."""
        off_chain: dict[str, OffChainSnapshot] = {}
        # Below a head of a newer version nothing was walked. Read the newest first then, as on a chain, so that objects
        # that they declare lost are not called damage where older snapshots name them.
        headless = self.report.newer
        for path in sorted(self._names, reverse=headless):
            snapshot = self._snapshot(path, partial(self._read_by_name, path), False)
            if snapshot is None:
                continue
            if headless:
                self._losses.add(snapshot.event)
            if snapshot.sha256 in off_chain or bytes.fromhex(snapshot.sha256) in self._chain:
                self.report.add("damage", "misplaced", path, "the same snapshot is here under another name too")
            else:
                e = snapshot.envelope
                off_chain[snapshot.sha256] = OffChainSnapshot(path, e.seq, e.created_at, e.prev_sha, e.prev)
        self._reclassify_altered(off_chain)
        return off_chain

    def _read_by_name(self, path: str) -> Snapshot | None:
        try:
            data = self.store.backend.get(f"{self.scope}/{path}", canonical.SNAPSHOT_LIMIT)
        except BlobMissingError:
            # It was listed a moment ago and nothing leads to it: its scope was removed.
            return None
        return parse_snapshot(self.scope, path, data)

    def _snapshot(self, path: str, read: Callable[[], Snapshot | None], known: bool) -> Snapshot | None:
        """Read a snapshot, and count and check it unless it is ``known``. None, with a finding, if it is damaged."""
        try:
            snapshot = read()
        except StatelineError as error:
            self.report.certain = False
            self._add_unsafe(path)
            self._add_damaged(error, path)
            return None
        if snapshot is not None and not known:
            self._add_unsafe(path)
            self.report.key = snapshot.envelope.scope
            self.report.snapshots += 1
            self.objects.check(snapshot, self._losses.objects)
            if snapshot.envelope.origin is not None:
                self._check_origin(snapshot.path, snapshot.envelope.origin)
        return snapshot

    def _add_damaged(self, error: StatelineError, path: str) -> None:
        """Add the finding for a damaged snapshot, by its name and bytes only, so that a repair finds the same."""
        sha = ""
        if isinstance(error, IntegrityError) and error.finding not in ("missing", "too_large"):
            try:
                data = self.store.backend.get(f"{self.scope}/{path}", canonical.SNAPSHOT_LIMIT)
                sha, error = canonical.sha256(data), classify_error(error, self.scope, path, data)
            except (StatelineError, BlobMissingError):
                pass
        self.report.add_error(error, path)
        findings = self.report.findings
        if sha and findings[-1].code == "altered":
            self._altered.append((sha, len(findings) - 1))

    def _reclassify_altered(self, off_chain: dict[str, OffChainSnapshot]) -> None:
        """Call an altered file misplaced if a snapshot with exactly its bytes is missing, or exists elsewhere."""
        known = self._broken_links | off_chain.keys() | {item.prev_sha for item in off_chain.values()}
        for sha, index in self._altered:
            if sha in known or bytes.fromhex(sha) in self._chain:
                finding = self.report.findings[index]
                message = misplaced_message(self.scope, finding.path.rpartition("/")[2])
                self.report.findings[index] = msgspec.structs.replace(finding, code="misplaced", message=message)

    def _catch_up(self, pointer: Pointer | None, off_chain: dict[str, OffChainSnapshot]) -> Pointer | None:
        """Walk again if saves finished meanwhile: their snapshots move from ``off_chain`` to the chain."""
        try:
            now = self.store.backend.read(self.scope)
        except StatelineError:
            return pointer
        if now is not None and now != pointer:
            self.report.has_head = True
            self._walk(now, off_chain)
        return now

    def _check_origin(self, path: str, origin: Link) -> None:
        """Check that the snapshot a fork began from exists or is declared lost."""
        problem = origin_problem(self.store, origin)
        if problem is None:
            return
        code, message = problem
        if code == "missing" and self._losses.take_gap(origin.sha256) is not None:
            self.report.add("warning", "lost", path, f"{message}, as a repair of this scope has recorded")
        else:
            self.report.add("damage", code, path, message)

    def _add_unsafe(self, name: str) -> None:
        self.report.findings += unsafe_findings(self.objects.places, f"{self.scope}/{name}", self.report.key)
