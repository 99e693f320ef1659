"""Typed findings of ``verify`` and ``scopes``, sorted by what must be done about them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Link
from stateline.errors import IntegrityError, NewerVersionError, StatelineError, UnsafePathError

Severity = Literal["damage", "residue", "unsafe", "warning"]

NOTE = (
    "A chain proves that nothing inside it was changed. It cannot show that snapshots were cut off its end cleanly, "
    "that the whole chain was rewritten, that a scope was removed, that the store was replaced by another, or that "
    "declared losses were removed on purpose and another past put below them: "
    "compare a head's sha with one kept elsewhere (`stateline verify --anchor SHA`)."
)
"""Changes that no check from inside a store can detect."""

SHOWN = 10
"""Most findings listed one by one for a code of which thousands may occur and each is harmless."""

_ORDER: tuple[Severity, ...] = ("damage", "unsafe", "warning", "residue")


def anchored_note(count: int) -> str:
    """Return the note that replaces ``NOTE`` when ``count`` anchors were given and all of them were found."""
    anchors = "1 anchor" if count == 1 else f"{count} anchors"
    return (
        f"Bound by {anchors}: the snapshots with these shas, and all that they rest on, are as they were when the "
        "anchors were noted. Not bound: newer snapshots, scopes without an anchor, and what is below a gap that was "
        "declared since."
    )


class Document(msgspec.Struct, frozen=True):
    """Base of results that are printed as JSON."""

    def document(self) -> dict[str, Json]:
        """Return the result as in ``--format json``."""
        document: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(self))
        return document


class Finding(Document, frozen=True):
    """One fact about a store.

    ``severity``: ``damage`` is left by no legal crash; ``residue`` is left by one, and harmless where locks hold;
    ``unsafe`` is a place that others may change; ``warning`` is the rest. ``code`` is stable. ``scope`` is a key or
    None; ``path`` is relative to the state dir ("" for the state dir itself).
    """

    severity: Severity
    code: str
    scope: str | None
    path: str
    message: str

    @classmethod
    def of(cls, error: StatelineError, scope: str | None, path: str) -> Finding:
        """Return the finding for an error that reading ``path`` raised."""
        if isinstance(error, IntegrityError):
            return cls("damage", error.finding, scope, path, error.message)
        if isinstance(error, NewerVersionError):
            return cls("warning", "newer_version", scope, path, error.message)
        if isinstance(error, UnsafePathError):
            return cls("damage", "not_regular", scope, path, error.message)
        # The error may pass, but a file that cannot be read cannot be vouched for.
        return cls("damage", "unreadable", scope, path, error.message)

    @classmethod
    def unknown_name(cls, name: str, scope: str | None, path: str) -> Finding:
        """Return the finding for ``path``, whose last part ``name`` has no meaning in this version."""
        if name.startswith(f"{naming.EXTENSION}repair-"):
            return cls("warning", "extension", scope, path, "set aside by a repair; not examined")
        if name.startswith(naming.EXTENSION):
            return cls("warning", "extension", scope, path, "an extension of a newer version; not examined")
        return cls("damage", "foreign_file", scope, path, "no file of this name belongs here")

    @classmethod
    def temporary(cls, scope: str | None, path: str) -> Finding:
        """Return the finding for a temporary file."""
        return cls("residue", "temporary", scope, path, "an unfinished file; safe to remove while nobody writes")


class Anchor(msgspec.Struct, frozen=True):
    """A digest that was kept outside the store, and the place of its snapshot on a chain (None if on no chain)."""

    sha256: str
    scope: str | None = None
    seq: int | None = None


class Report(Document, frozen=True):
    """Result of ``verify``. ``ok``: nothing is damaged.

    Counts are of intact ``scopes`` (with a head), ``snapshots`` and ``objects``. ``heads`` are the intact heads by key;
    ``anchors`` are the given anchors with their places. ``note`` says what such a check cannot see or, if nothing is
    damaged and all anchors were found, what they bind.
    """

    ok: bool
    scopes: int
    snapshots: int
    objects: int
    findings: tuple[Finding, ...]
    heads: tuple[Link, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    note: str = NOTE


def has_damage(findings: Iterable[Finding]) -> bool:
    """Return whether one of the findings is damage."""
    return any(finding.severity == "damage" for finding in findings)


def summarize(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, then path, and shorten long lists of harmless ones.

    Damage and warnings are kept whole. Of residue, unsafe places and extensions the first ``SHOWN`` of each code are
    kept, and one more finding counts the rest: a store copied by another user has one for every file.
    """
    groups: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.code), []).append(finding)
    kept: list[Finding] = []
    for (severity, code), group in groups.items():
        group.sort(key=lambda finding: finding.path)
        rest = group[SHOWN + 1 :] and group[SHOWN:]
        if not rest or (severity in ("damage", "warning") and code != "extension"):
            kept += group
        else:
            kept += group[:SHOWN]
            message = f"and {len(rest)} more like the {SHOWN} above, from this path on"
            kept.append(Finding(severity, code, None, rest[0].path, message))
    # The sort is stable: within a severity, groups and paths keep their order.
    return tuple(sorted(kept, key=lambda finding: (_ORDER.index(finding.severity), finding.code)))


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
