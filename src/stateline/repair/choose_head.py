"""The choice of a damaged scope's head: which intact snapshots belong to its chain, and where the chain has gaps.

Pure: an inventory in, data out. The newest snapshots are kept. One that is lost in the middle costs only itself: the
chain has a gap there and resumes at the newest snapshot below it.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from stateline.bundle.envelope import Pointer
from stateline.bundle.repair_record import DeclaredLosses, Gap, Lost, Resumed
from stateline.repair.inventory import IntactSnapshot


class Lineage(msgspec.Struct, kw_only=True):
    """A chain, newest first. ``gaps`` and ``objects`` are losses that nothing on it declares yet.

    ``refused`` is set if a snapshot is out of order below its child: then it is damaged, and the rest must not be used.
    """

    chain: list[IntactSnapshot]
    gaps: list[Gap]
    objects: list[str]
    refused: IntactSnapshot | None = None

    @property
    def tip(self) -> IntactSnapshot:
        return self.chain[0]

    @property
    def content(self) -> IntactSnapshot | None:
        """The newest snapshot without lost objects."""
        return next((item for item in self.chain if not item.lost), None)


def choose_head(items: dict[str, IntactSnapshot], pointer: Pointer | None) -> IntactSnapshot | None:
    """Return where the chain begins: the head that the pointer names if it is intact, else the newest tip.

    The newest tip need not be that of the longest chain: an older one may have come back from a backup. A pointer that
    was set back by more than the one snapshot of a crash is moved forward again. Taking one that was never acknowledged
    loses nothing.
    """
    parents = {item.prev_sha for item in items.values()}
    tips = [item for item in items.values() if item.sha256 not in parents]
    head = find_head(items, pointer)
    if head is not None:
        tips = [tip for tip in tips if tip.seq >= head.seq + 2 and _descends(tip, head, items)] or [head]
    return max(tips, key=lambda item: (item.created_at, item.seq, item.sha256), default=None)


def find_head(items: dict[str, IntactSnapshot], pointer: Pointer | None) -> IntactSnapshot | None:
    """Return the snapshot that the pointer names, if it is intact and has the pointer's path."""
    head = items.get(pointer.sha256) if pointer is not None else None
    return head if head is not None and pointer is not None and head.path == pointer.path else None


def _descends(tip: IntactSnapshot, head: IntactSnapshot, items: dict[str, IntactSnapshot]) -> bool:
    at: IntactSnapshot | None = tip
    while at is not None and at.seq > head.seq:
        below = items.get(at.prev_sha or "")
        at = below if below is not None and below.path == at.prev and at.follows(below) else None
    return at == head


def trace(tip: IntactSnapshot, items: dict[str, IntactSnapshot]) -> Lineage:
    """Return the chain from ``tip`` down, across declared gaps and those found now."""
    return _Trace(tip, items).run()


class _Trace:
    def __init__(self, tip: IntactSnapshot, items: dict[str, IntactSnapshot]) -> None:
        self.items = items
        self.losses = DeclaredLosses()
        self.line = Lineage(chain=[tip], gaps=[], objects=[])
        self._objects: dict[str, None] = {}
        self._by_seq: dict[int, list[IntactSnapshot]] = {}
        self._lengths: dict[str, int] = {}
        for item in items.values():
            self._by_seq.setdefault(item.seq, []).append(item)
        self._seqs = sorted(self._by_seq)

    def run(self) -> Lineage:
        at: IntactSnapshot | None = self.line.tip
        while at is not None:
            # An object may be declared lost only by a newer snapshot; this one's declarations count for older ones.
            self._objects.update(dict.fromkeys(sha for sha in at.lost if sha not in self.losses.objects))
            self.losses.add(at.declares)
            at = self._below(at)
            if at is not None:
                self.line.chain.append(at)
        self.line.objects = list(self._objects)
        return self.line

    def _below(self, at: IntactSnapshot) -> IntactSnapshot | None:
        if at.prev is None or at.prev_sha is None:
            if at.origin_lost and at.prev_sha is not None and self.losses.take_gap(at.prev_sha) is None:
                lost = Lost(at.origin.seq if at.origin else 0, at.prev_sha)
                self.line.gaps.append(Gap(lost, None))
            return None
        parent = self._named(at.prev, at.prev_sha)
        if parent is not None:
            if not at.follows(parent):
                self.line.refused = parent
                return None
            return parent
        return self._cross_gap(at, at.prev, Lost(at.seq - 1, at.prev_sha))

    def _named(self, path: str, sha256: str) -> IntactSnapshot | None:
        item = self.items.get(sha256)
        return item if item is not None and item.path == path else None

    def _cross_gap(self, at: IntactSnapshot, path: str, lost: Lost) -> IntactSnapshot | None:
        """Return where the chain resumes below a lost snapshot: as declared, else at the newest that fits."""
        gap = self.losses.take_gap(lost.sha256)
        while gap is not None and gap.resumes is not None:
            below = self._named(gap.resumes.path, gap.resumes.sha256)
            if below is not None:
                if below.seq != gap.resumes.seq or below.seq >= at.seq or below.created_at >= at.created_at:
                    self.line.refused = below
                    return None
                return below
            path, lost = gap.resumes.path, Lost(gap.resumes.seq, gap.resumes.sha256)
            gap = self.losses.take_gap(lost.sha256)
        if gap is not None:
            return None
        below = self._newest_below(at, path, lost)
        resumes = None if below is None else Resumed(below.path, below.seq, below.sha256)
        self.line.gaps.append(Gap(lost, resumes))
        return below

    def _newest_below(self, at: IntactSnapshot, path: str, lost: Lost) -> IntactSnapshot | None:
        """Return the newest snapshot that may be next below the lost one; of several, the one with the longest past."""
        same = self.items.get(lost.sha256)
        if same is not None and same.seq == lost.seq and at.created_at > same.created_at:
            return same
        # The lost snapshot's time is in its name.
        time = path[len("state-") :].rpartition("-")[0]
        for index in range(bisect_left(self._seqs, lost.seq) - 1, -1, -1):
            below = self._by_seq[self._seqs[index]]
            fitting = [item for item in below if item.time < time and item.created_at < at.created_at]
            if fitting:
                return max(fitting, key=lambda item: (self._length(item), item.created_at, item.sha256))
        return None

    def _length(self, item: IntactSnapshot) -> int:
        """Return how many snapshots can be reached from this one without a gap."""
        path: list[IntactSnapshot] = []
        at: IntactSnapshot | None = item
        while at is not None and at.sha256 not in self._lengths:
            path.append(at)
            parent = self._named(at.prev, at.prev_sha) if at.prev and at.prev_sha else None
            at = parent if parent is not None and at.follows(parent) else None
        length = self._lengths[at.sha256] if at is not None else 0
        for passed in reversed(path):
            length += 1
            self._lengths[passed.sha256] = length
        return length
