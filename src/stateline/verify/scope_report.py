"""Result of checking one scope."""

from __future__ import annotations

import msgspec

from stateline.bundle.envelope import Link
from stateline.errors import NewerVersionError, StatelineError
from stateline.verify.findings import Finding, Severity


class AnchorTrace(msgspec.Struct):
    """Anchors met in one scope, by digest: those on the chain with their ``seq``, those that a repair on the chain
    recorded as lost, and the paths of those that are intact beside the chain or that could not be read."""

    on_chain: dict[str, int] = {}
    recorded_lost: set[str] = set()
    off_chain: dict[str, str] = {}
    unreadable: dict[str, str] = {}


class ScopeReport(msgspec.Struct):
    """Findings and counts of one scope. ``snapshots`` counts intact ones, ``head`` is set if it is intact.

    ``certain`` is False when a snapshot could not be read, so that what it names is unknown; ``newer`` is True when
    something is of a newer version; ``complete`` when the chain was walked down to its first snapshot.
    """

    scope: str
    findings: list[Finding] = []
    snapshots: int = 0
    has_head: bool = False
    head: Link | None = None
    key: str | None = None
    certain: bool = True
    newer: bool = False
    complete: bool = False
    anchors: AnchorTrace = msgspec.field(default_factory=AnchorTrace)

    def add(self, severity: Severity, code: str, name: str, message: str) -> None:
        """Add a finding for the file ``name`` of this scope ("" for the directory)."""
        self.findings.append(Finding(severity, code, self.key, f"{self.scope}/{name}".rstrip("/"), message))

    def add_error(self, error: StatelineError, name: str) -> None:
        """Add the finding for an error that reading the file ``name`` raised."""
        # A newer version may follow other rules, so nothing beside its files can be called lost.
        self.newer = self.newer or isinstance(error, NewerVersionError)
        self.findings.append(Finding.of(error, self.key, f"{self.scope}/{name}".rstrip("/")))
