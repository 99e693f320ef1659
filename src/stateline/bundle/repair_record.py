"""What a repair writes into the event of its snapshot, and how those who walk the chain read it. Pure.

A snapshot that is lost breaks the chain in two. The repair's own snapshot says so: it *declares* the loss and where the
chain resumes. Digests stay what they are; only that something is not there is excused, by what is newer than it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Pointer

MEMBER = "repaired"
"""The member of ``event`` that a repair writes; also the event's type."""
DECLARED = 1000
"""Most losses that one snapshot declares; a repair with more of them makes several snapshots."""
TOLD = 100
"""Most entries of a list in the event that is for people only; the rest is counted."""


class Lost(msgspec.Struct, frozen=True):
    """A snapshot that is lost: the ``seq`` it had, and its digest."""

    seq: int
    sha256: str


class Resumed(msgspec.Struct, frozen=True):
    """Where the chain goes on below a lost snapshot."""

    path: str
    seq: int
    sha256: str

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.path, self.sha256)


class Gap(msgspec.Struct, frozen=True):
    """A lost snapshot in the middle of a chain, and the newest one below it; None if nothing older survives."""

    lost: Lost
    resumes: Resumed | None


class _Declared(msgspec.Struct, frozen=True):
    gaps: list[Gap] = []
    objects: list[str] = []


class _Told(msgspec.Struct, frozen=True):
    sha256: str | None = None


class _Recorded(msgspec.Struct, frozen=True):
    gaps: list[Gap] = []
    lost: list[_Told] = []


def recorded_lost(event: Mapping[str, Json]) -> set[str]:
    """Digests of the snapshots that this event says are lost, on the chain or beyond its end: for people to read, no
    declaration. Of those beyond the end the record has at most ``TOLD``; the rest is only counted in it. Empty for what
    has not the shape of one."""
    try:
        recorded = msgspec.convert(event.get(MEMBER, {}), _Recorded)
    except msgspec.ValidationError:
        return set()
    return {gap.lost.sha256 for gap in recorded.gaps} | {told.sha256 for told in recorded.lost if told.sha256}


class Losses:
    """What the snapshots on a chain declare lost, gathered from the newest on. The newest word counts."""

    def __init__(self) -> None:
        self.gaps: dict[str, Gap] = {}
        self.objects: set[str] = set()
        self._taken: set[str] = set()

    def apply_losses(self, event: Mapping[str, Json]) -> None:
        """Add what this event declares. What has not the shape of a declaration declares nothing."""
        if MEMBER not in event:
            return
        try:
            declared = msgspec.convert(event[MEMBER], _Declared)
        except msgspec.ValidationError:
            return
        self.objects.update(declared.objects)
        for gap in declared.gaps:
            if _is_sound(gap) and gap.lost.sha256 not in self._taken:
                self.gaps.setdefault(gap.lost.sha256, gap)

    def gap(self, sha256: str) -> Gap | None:
        """The gap that begins with this snapshot, if it was declared. Each is given once: no walk goes in circles."""
        self._taken.add(sha256)
        return self.gaps.pop(sha256, None)


def _is_sound(gap: Gap) -> bool:
    """Whether following it leads down: to a lower ``seq``, or to the same snapshot under another name."""
    below = gap.resumes
    if not naming.is_sha256(gap.lost.sha256) or below is None:
        return naming.is_sha256(gap.lost.sha256)
    return (
        naming.is_sha256(below.sha256)
        and naming.snapshot_parts(below.path) is not None
        and (0 <= below.seq < gap.lost.seq or (below.seq, below.sha256) == (gap.lost.seq, gap.lost.sha256))
    )
