"""Declarations of loss in the events of a scope's snapshots, and how a walk along the chain reads them.

A lost snapshot breaks the chain in two. The snapshot that a repair appends declares the loss and says where the chain
resumes. Digests never change: a declaration only excuses that something older is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Pointer

MEMBER = "repaired"
"""Member of ``event`` that a repair writes; also the event's type."""


class Lost(msgspec.Struct, frozen=True):
    """``seq`` and digest of a lost snapshot."""

    seq: int
    sha256: str


class Resumed(msgspec.Struct, frozen=True):
    """The snapshot at which the chain continues below a lost one."""

    path: str
    seq: int
    sha256: str

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.path, self.sha256)


class Gap(msgspec.Struct, frozen=True):
    """A lost snapshot in the middle of a chain, and the newest one below it (None: nothing older survives)."""

    lost: Lost
    resumes: Resumed | None


class _Declaration(msgspec.Struct, frozen=True):
    gaps: list[Gap] = []
    objects: list[str] = []


class DeclaredLosses:
    """Losses declared by the snapshots of a chain, collected from the newest one on. The newest declaration counts."""

    def __init__(self) -> None:
        self.gaps: dict[str, Gap] = {}
        self.objects: set[str] = set()
        self._used: set[str] = set()

    def add(self, event: Mapping[str, Json]) -> None:
        """Add what this event declares: nothing if its ``repaired`` member is malformed."""
        if MEMBER not in event:
            return
        try:
            declared = msgspec.convert(event[MEMBER], _Declaration)
        except msgspec.ValidationError:
            return
        self.objects.update(declared.objects)
        for gap in declared.gaps:
            if _is_sound(gap) and gap.lost.sha256 not in self._used:
                self.gaps.setdefault(gap.lost.sha256, gap)

    def take_gap(self, sha256: str) -> Gap | None:
        """Return the declared gap that begins with this snapshot, once: so no walk runs in circles."""
        self._used.add(sha256)
        return self.gaps.pop(sha256, None)


def _is_sound(gap: Gap) -> bool:
    """Return true if the gap leads down: to a lower ``seq``, or to the same snapshot under another name."""
    below = gap.resumes
    if not naming.is_sha256(gap.lost.sha256) or below is None:
        return naming.is_sha256(gap.lost.sha256)
    return (
        naming.is_sha256(below.sha256)
        and naming.snapshot_parts(below.path) is not None
        and (0 <= below.seq < gap.lost.seq or (below.seq, below.sha256) == (gap.lost.seq, gap.lost.sha256))
    )
