"""Anchors: digests of snapshots that an auditor kept outside the store, and where each was found.

Pure: reads the reports of the scopes, not the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.bundle.repair_record import MEMBER, Gap
from stateline.errors import UsageError
from stateline.verify.findings import Anchor, Finding, ScopeReport, has_damage

_COMPARE = "a repair cannot fix this: compare with a backup"
_FIRST = "fix the other findings first, then verify again"
_UPGRADE = "verify it with the newer version"
_RESTORE = "restore that file from a backup: a repair would only record it as lost"


class _LostSnapshot(msgspec.Struct, frozen=True):
    sha256: str | None = None


class _RepairRecord(msgspec.Struct, frozen=True):
    gaps: list[Gap] = []
    lost: list[_LostSnapshot] = []


def checked_anchors(anchors: Collection[str]) -> tuple[str, ...]:
    """Return the anchors in their order, each once. Raises ``UsageError`` for one that is not a digest."""
    for text in anchors:
        if not naming.is_sha256(text):
            hint = "an anchor is the whole sha of a snapshot: 64 lower-case hex digits"
            raise UsageError(f"{text[:80]!a} is not an anchor", hint=hint)
    return tuple(dict.fromkeys(anchors))


def recorded_lost(event: Mapping[str, Json]) -> set[str]:
    """Return the digests that a repair's event lists as lost; empty if its record is malformed.

    This list is for people: of snapshots above the chain's end it names at most the first hundred.
    """
    try:
        record = msgspec.convert(event.get(MEMBER, {}), _RepairRecord)
    except msgspec.ValidationError:
        return set()
    return {gap.lost.sha256 for gap in record.gaps} | {lost.sha256 for lost in record.lost if lost.sha256}


class AnchorIndex:
    """Anchors by digest, collected once from the reports of all scopes.

    ``key`` is the one scope that was read (None: all), ``absent`` means that it does not exist, and ``unreadable`` that
    the store could not be read at all.
    """

    def __init__(
        self, reports: Sequence[ScopeReport], key: str | None = None, *, absent: bool = False, unreadable: bool = False
    ) -> None:
        self.key = key
        self.absent = absent
        self.uncertain = unreadable or any(not report.certain or report.newer for report in reports)
        # No two chains share a snapshot, since each names its scope.
        self._found = {
            sha: Anchor(sha, report.key, seq) for report in reports for sha, seq in report.anchors.on_chain.items()
        }
        self._missing: dict[str, Finding] = {}
        # The first explanation counts: a repair's record, then an intact file, then a mere reference.
        for report in reports:
            for sha in report.anchors.recorded_lost:
                self._explain(sha, report, "", f"a repair of this scope has recorded it as lost; {_COMPARE}")
        for report in reports:
            for sha, path in report.anchors.off_chain.items():
                self._explain(sha, report, path, f"it is at {path}, {_off_chain_reason(report)}")
        for report in reports:
            step = _UPGRADE if report.newer else _RESTORE
            for sha, path in report.anchors.unreadable.items():
                self._explain(sha, report, path, f"{path} should hold it, and could not be read; {step}")

    def _explain(self, sha: str, report: ScopeReport, path: str, reason: str) -> None:
        self._missing.setdefault(sha, _missing_anchor(sha, report.key, path, reason))

    def anchor(self, sha: str) -> Anchor:
        """Return the anchor with its place."""
        return self._found.get(sha) or Anchor(sha)

    def finding(self, sha: str) -> Finding | None:
        """Return the finding for an anchor that is on no chain that was read; None if it is on one."""
        if sha in self._found:
            return None
        return self._missing.get(sha) or _missing_anchor(sha, None, "", self._unknown_reason())

    def _unknown_reason(self) -> str:
        if self.absent:
            reason = f"there is no scope {self.key}: it was removed, or this is another store"
            return f"{reason}; without a KEY all scopes are searched; {_COMPARE}"
        only = "" if self.key is None else f"only the scope {self.key} was read, and without a KEY all are searched; "
        if self.uncertain:
            unread = "files that are missing, damaged or of a newer version were not read and may hold it"
            return f"{only}{unread}; {_FIRST}"
        return f"{only}it was cut off, rewritten or removed, or this is another store; {_COMPARE}"


def _off_chain_reason(report: ScopeReport) -> str:
    if report.newer:
        return f"but a newer version wrote what may lead there; {_UPGRADE}"
    damaged = has_damage(report.findings)
    if damaged and not report.complete:
        return f"but what should lead there is missing or damaged; {_FIRST}"
    step = _FIRST if damaged else _COMPARE
    return f"beside the chain: a crash left it there, it is a fork, or the pointer was set back; {step}"


def _missing_anchor(sha: str, scope: str | None, path: str, reason: str) -> Finding:
    return Finding("damage", "anchor", scope, path, f"the anchor {sha} is on no chain that was read: {reason}")
