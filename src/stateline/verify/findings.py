"""What ``verify`` and ``scopes`` report: typed findings, sorted by what must be done about them."""

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
    "A chain proves that nothing was changed inside it. It cannot show that snapshots were cut off its end cleanly, "
    "that all of it was written anew, that a scope was taken away whole, that the store was exchanged for another, or "
    "that what is declared lost was taken away on purpose, with another past put below it: "
    "compare a head's sha with one kept elsewhere (`stateline verify --anchor SHA`)."
)
"""What no check of a store can see from inside it."""


def bound(count: int) -> str:
    """What stands for ``NOTE`` when that many anchors were given, and all of them were found."""
    anchors = "1 anchor" if count == 1 else f"{count} anchors"
    return (
        f"Bound by {anchors}: what has their shas, and what that rests on, is as it was when they were noted. What is "
        "newer than they are is bound by none, nor is a scope without one of its own, or what lies below a gap that "
        "was declared since."
    )


SHOWN = 10
"""How many findings of one code are told one by one, where each is harmless and thousands may come together."""

_ORDER: tuple[Severity, ...] = ("damage", "unsafe", "warning", "residue")


class Finding(msgspec.Struct, frozen=True):
    """One fact about a store.

    ``severity``: ``damage`` is what no legal crash leaves behind; ``residue`` is what one does, and is harmless
    where locks hold; ``unsafe`` is a place that others may change; ``warning`` is the rest. ``code`` is stable.
    ``scope`` is the key of the scope concerned, or None; ``path`` is relative to the state dir ("" for itself).
    """

    severity: Severity
    code: str
    scope: str | None
    path: str
    message: str

    @classmethod
    def of(cls, error: StatelineError, scope: str | None, path: str) -> Finding:
        """The finding for an error that reading ``path`` raised."""
        if isinstance(error, IntegrityError):
            return cls("damage", error.finding, scope, path, error.message)
        if isinstance(error, NewerVersionError):
            return cls("warning", "newer_version", scope, path, error.message)
        if isinstance(error, UnsafePathError):
            return cls("damage", "not_regular", scope, path, error.message)
        # It may be gone the next time, but what cannot be read cannot be vouched for.
        return cls("damage", "unreadable", scope, path, error.message)

    @classmethod
    def stray(cls, name: str, scope: str | None, path: str) -> Finding:
        """The finding for ``path``, whose last part ``name`` this version gives no meaning."""
        if name.startswith(f"{naming.EXTENSION}repair-"):
            return cls("warning", "extension", scope, path, "what a repair set aside; not looked into")
        if name.startswith(naming.EXTENSION):
            return cls("warning", "extension", scope, path, "an extension of a newer version; not looked into")
        return cls("damage", "foreign_file", scope, path, "nothing of this name belongs here")

    def document(self) -> dict[str, Json]:
        """As it stands in ``--format json``."""
        return msgspec.structs.asdict(self)


class Anchor(msgspec.Struct, frozen=True):
    """A digest that was kept outside the store, and where the snapshot that has it stands on its chain; None and None
    if it is on none."""

    sha256: str
    scope: str | None = None
    seq: int | None = None


class Report(msgspec.Struct, frozen=True):
    """What was checked, and what was found. ``ok``: nothing is damaged. Counts are of what is intact: ``scopes`` that
    have a head, ``snapshots`` and ``objects`` read. ``note`` says what such a check cannot see; ``heads`` are the
    intact heads, by key, to be kept elsewhere for that; ``anchors`` says where those are that were given. If all of
    them were found and nothing is damaged, ``note`` says what they bind."""

    ok: bool
    scopes: int
    snapshots: int
    objects: int
    findings: tuple[Finding, ...]
    heads: tuple[Link, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    note: str = NOTE

    def document(self) -> dict[str, Json]:
        """As it stands in ``--format json``."""
        lists = ("findings", "heads", "anchors")
        return msgspec.structs.asdict(self) | {
            name: [msgspec.structs.asdict(item) for item in getattr(self, name)] for name in lists
        }


def has_damage(findings: Iterable[Finding]) -> bool:
    """Whether one of the findings is damage."""
    return any(finding.severity == "damage" for finding in findings)


def gathered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, then by path. Damage and warnings are all there; of residue, unsafe places and extensions the
    first ``SHOWN`` of each code, then one finding that counts the rest: a foreign-owned copy has one for every file."""
    groups: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.code), []).append(finding)
    told: list[Finding] = []
    for (severity, code), group in groups.items():
        group.sort(key=lambda finding: finding.path)
        rest = group[SHOWN + 1 :] and group[SHOWN:]
        if not rest or (severity in ("damage", "warning") and code != "extension"):
            told += group
        else:
            told += group[:SHOWN]
            message = f"and {len(rest)} more like the {SHOWN} before, from here on"
            told.append(Finding(severity, code, None, rest[0].path, message))
    # Stable: within a severity the groups and paths stay together.
    return tuple(sorted(told, key=lambda finding: (_ORDER.index(finding.severity), finding.code)))
