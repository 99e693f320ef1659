"""Snapshots that the chain does not reach: crash residue, or damage."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from stateline.bundle import naming
from stateline.errors import StatelineError
from stateline.store.store import Store
from stateline.verify.findings import ScopeReport


class OffChainSnapshot(msgspec.Struct, frozen=True):
    """An intact snapshot that the chain does not reach."""

    path: str
    seq: int
    created_at: str
    prev_sha: str | None
    prev: str | None


class OffChainCheck:
    """Adds to ``report`` a finding for each branch of snapshots beside the chain.

    ``chain`` maps the digests on the chain to their ``seq``; branches are added to it. ``names`` are the names of files
    that are not on the chain.
    """

    def __init__(
        self,
        store: Store,
        report: ScopeReport,
        chain: dict[bytes, int],
        off_chain: Mapping[str, OffChainSnapshot],
        names: frozenset[str],
    ) -> None:
        self.store = store
        self.report = report
        self.chain = chain
        self.off_chain = off_chain
        self.names = names

    def run(self, *, pointer_missing: bool) -> None:
        """Classify the branches, the newest first."""
        items = self.off_chain.values()
        lost = pointer_missing and (not self.report.certain or any(item.seq for item in items))
        if lost:
            message = "the pointer is missing, and there is more here than a first save leaves"
            self.report.add("damage", "missing", naming.POINTER, message)
        # A lone first snapshot is residue only if the end of the chain is known.
        end_known = self.report.complete or (pointer_missing and not lost)
        parents = {item.prev_sha for item in items}
        tips = sorted((item.seq, item.created_at, sha) for sha, item in self.off_chain.items() if sha not in parents)
        rivals = self._names_on_chain({item.seq for item in items})
        seen: set[bytes] = set()
        for _, _, sha in reversed(tips):
            branch = self._branch(sha)
            snapshots = list(branch.values())
            last = snapshots[-1]
            parent = None if last.prev_sha is None else bytes.fromhex(last.prev_sha)
            joined = parent is not None and parent in self.chain
            if len(snapshots) == 1 and (joined or (last.seq == 0 and end_known)):
                # Only a snapshot right after its parent on the chain competes for that place.
                adjacent = parent is not None and parent not in seen and self.chain.get(parent) == last.seq - 1
                self._add_unacknowledged(last, sha, rivals.get(last.seq) if last.seq == 0 or adjacent else None)
            else:
                self._add_orphaned(snapshots, joined)
            end_known = end_known or last.seq == 0
            seen.update(branch)
            self.chain.update((digest, item.seq) for digest, item in branch.items())

    def _names_on_chain(self, seqs: set[int]) -> dict[int, str]:
        """Return the file names, by ``seq``, of the snapshots on the chain with one of ``seqs``, without copies."""
        digests = {digest.hex(): seq for digest, seq in self.chain.items() if seq in seqs}
        labels = {digest[: naming.LABEL]: digest for digest in digests}
        found: dict[int, str] = {}
        with suppress(StatelineError):
            for name in self.store.backend.list(self.report.scope) if digests else ():
                parts = None if name in self.names else naming.snapshot_parts(name)
                digest = labels.get(parts[1][: naming.LABEL]) if parts else None
                if parts and digest and digest.startswith(parts[1]):
                    found[digests[digest]] = name
        return found

    def _branch(self, sha: str) -> dict[bytes, OffChainSnapshot]:
        """Return the snapshots from a tip down to where they end or join what is known."""
        branch: dict[bytes, OffChainSnapshot] = {}
        at: str | None = sha
        while at is not None and at in self.off_chain and bytes.fromhex(at) not in self.chain:
            branch[bytes.fromhex(at)] = self.off_chain[at]
            at = self.off_chain[at].prev_sha
        return branch

    def _add_unacknowledged(self, item: OffChainSnapshot, sha: str, rival: str | None) -> None:
        if item.seq and not self._follows_parent(item):
            self.report.add("damage", "misordered", item.path, "its parent is on the chain, and it does not follow it")
            return
        if rival is None:
            message = "published and never made head: a crash, a save in progress, or the pointer was set back"
            self.report.add("residue", "unacknowledged", item.path, message)
            return
        same = f"two snapshots follow {item.prev}" if item.seq else "there are two first snapshots"
        fork = f"{same}: {rival} is on the chain, this one is not"
        look = f"look with `stateline show {sha}`, and check whether locks hold on this file system"
        parts = naming.snapshot_parts(rival)
        if parts is not None and parts[0] < item.created_at.replace(":", ""):
            # A save that crashed is over before the next one begins.
            why = "the lock does not hold here, it was put here, or the writers' clocks differ or were set back"
            message = f"this one is newer, which no crash leaves: {why}; it may have been acknowledged: {look}"
            self.report.add("warning", "forked", item.path, f"{fork}; {message}")
            return
        why = "it crashed before it was made head; or it may have been acknowledged, if the lock does not hold here"
        self.report.add("residue", "unacknowledged", item.path, f"{fork}: {why} or the pointer was set back: {look}")

    def _follows_parent(self, item: OffChainSnapshot) -> bool:
        parts = naming.snapshot_parts(item.prev or "")
        return (
            item.prev_sha is not None
            and parts is not None
            and self.chain[bytes.fromhex(item.prev_sha)] + 1 == item.seq
            and item.prev_sha.startswith(parts[1])
            and parts[0] < item.created_at.replace(":", "")
        )

    def _add_orphaned(self, branch: list[OffChainSnapshot], joined: bool) -> None:
        first, last = branch[-1], branch[0]
        span = f"the {len(branch)} snapshots from {first.seq} to {last.seq}" if branch[1:] else f"snapshot {last.seq}"
        why = "the pointer was set back, or a second chain was put here" if joined else "what led there is lost"
        self.report.add("damage", "orphaned", last.path, f"{span} cannot be reached from the head: {why}")
