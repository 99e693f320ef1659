"""Is everything here as it was acknowledged? Collects what it finds and never stops at the first. Only reads."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from stateline.bundle import naming
from stateline.errors import NewerVersionError, NotFoundError, StatelineError
from stateline.store.local.scan import reading_all
from stateline.store.protocol import Places
from stateline.store.store import Store
from stateline.verify.anchors import AnchorIndex, checked
from stateline.verify.chain import ChainCheck
from stateline.verify.findings import NOTE, Finding, Report, bound, gathered, has_damage
from stateline.verify.objects import Inventory, unsafe

_TOLERATED = "lost+found"
"""What the file system itself keeps in the root of a disk of its own."""
_NO_DIRECTORY = ("symlink", "not_regular")
"""Codes of a state dir that is no directory."""


def verify(store: Store, key: str | None = None, anchors: Collection[str] = ()) -> Report:
    """Check the whole store, or the one scope ``key`` and the objects it names. Writes nothing, and may run while
    others write: what they are writing is never called damage.

    ``anchors`` are digests of snapshots that somebody kept elsewhere. One that is on no chain that was checked is
    damage (``anchor``), also where a repair has recorded it as lost: who can write here can write that as well.

    Each file is read once (again only what looks damaged). Memory grows with the number of scopes, of anchors, of
    snapshots in the largest scope and of objects in the store, by a few digests and names each, not with their sizes;
    and with the number of findings. What a scope's state means is not judged.

    Raises ``NotFoundError`` for a ``key`` whose scope does not exist, if no anchors are given (with anchors that is a
    finding, since they are missing then), ``StorageError`` when the state dir cannot be opened, ``UsageError`` for an
    anchor that is no digest.
    """
    anchors = checked(anchors)
    unread = AnchorIndex([], key, unread=True)
    store = reading_all(store)
    places = store.backend if isinstance(store.backend, Places) else None
    scopes = sorted(store.backend.scopes()) if places is None else []
    findings: list[Finding] = []
    if places is not None:
        findings += [*unsafe(places, "", None), *_above(places)]
        blocked = [finding for finding in findings if finding.code in _NO_DIRECTORY]
        if blocked:
            # Not opened, by readers neither. That nothing was checked must not look like a store in order.
            others = [finding for finding in findings if finding.code not in _NO_DIRECTORY]
            return _report(
                [*(replace(finding, severity="damage") for finding in blocked), *others], [], 0, anchors, unread
            )
        names = sorted(places.top())
        if not names and isinstance(places.examine(), NotFoundError):
            message = "there is no store here; an absent store is an empty one"
            findings.append(Finding("warning", "no_store", None, "", message))
        scopes = [name for name in names if naming.is_sha256(name)]
        newer = _store_file(places, names, findings)
        if newer:
            return _report(findings, [], 0, anchors, unread)
        if key is None:
            findings += _top(places, names)
    if key is not None:
        scopes = _only(key, scopes)
        if not scopes:
            missing = NotFoundError(f"there is no scope {key}", hint="`stateline scopes` lists the scopes there are")
            if not anchors:
                raise missing
            findings.append(Finding("warning", "no_scope", key, "", missing.message))
    inventory = Inventory(store, places)
    if key is None:
        inventory.take_stock()
    # One set for all scopes: there may be as many anchors as scopes.
    sought = frozenset(anchors)
    checks = [_settled(store, scope, inventory, sought) for scope in scopes]
    if key is None:
        inventory.leftovers(certain=all(check.certain for check in checks))
    for check in checks:
        findings += check.findings
    moorings = AnchorIndex(checks, key, absent=key is not None and not scopes)
    return _report(findings + inventory.findings, checks, inventory.intact, anchors, moorings)


def _above(places: Places) -> list[Finding]:
    """One finding for each directory in which others may put something else in the state dir's place."""
    try:
        above = places.above()
    except StatelineError:
        # What cannot be looked at cannot be passed either; opening the state dir tells why.
        return []
    return [Finding("unsafe", found.code, None, "", f"{found.reason}; to mend it: {found.fix}") for found in above]


def _report(
    findings: list[Finding], checks: list[ChainCheck], objects: int, anchors: Collection[str], moorings: AnchorIndex
) -> Report:
    findings = findings + [adrift for anchor in anchors if (adrift := moorings.finding(anchor)) is not None]
    ok = not has_damage(findings)
    heads = [check.head for check in checks if check.head is not None]
    return Report(
        ok=ok,
        scopes=sum(check.has_head for check in checks),
        snapshots=sum(check.snapshots for check in checks),
        objects=objects,
        findings=gathered(findings),
        heads=tuple(sorted(heads, key=lambda head: head.scope)),
        anchors=tuple(moorings.anchor(anchor) for anchor in anchors),
        note=bound(len(anchors)) if anchors and ok else NOTE,
    )


def _only(key: str, scopes: list[str]) -> list[str]:
    """The one scope that ``key`` is, if it exists."""
    scope = naming.scope_hash(naming.checked_key(key))
    return [scope] if scope in scopes else []


def _store_file(places: Places, names: list[str], findings: list[Finding]) -> bool:
    """Check ``stateline.json``; whether it says that a newer Stateline must read the rest."""
    error = places.examine()
    if error is not None:
        # Without anything beside it there is no store yet. It is made before anything else, so ``names``, which were
        # listed before, cannot hold a scope of a store that is only coming to be.
        absent = isinstance(error, NotFoundError)
        if not absent:
            findings.append(Finding.of(error, None, naming.STORE_FILE))
        elif any(naming.is_sha256(name) or name == naming.OBJECTS for name in names):
            findings.append(Finding("damage", "missing", None, naming.STORE_FILE, error.message))
    return isinstance(error, NewerVersionError)


def _top(places: Places, names: list[str]) -> list[Finding]:
    findings: list[Finding] = []
    for name in names:
        if name.startswith(naming.TEMPORARY):
            message = "a file that was being written; safe to remove when nobody writes"
            findings.append(Finding("residue", "temporary", None, name, message))
        elif name.startswith(naming.REMOVED):
            message = "a scope that was being removed; safe to remove when nobody writes"
            findings.append(Finding("residue", "removed", None, name, message))
        elif name == naming.STORE_FILE:
            findings += unsafe(places, name, None)
        elif name not in (naming.OBJECTS, _TOLERATED) and not naming.is_sha256(name):
            findings.append(Finding.stray(name, None, name))
    return findings


def _settled(store: Store, scope: str, inventory: Inventory, anchors: frozenset[str]) -> ChainCheck:
    """Check a scope; look again before anything is called damage. A scope that is removed, or removed and begun anew,
    while it is read looks broken once; what is damaged stays so."""
    first = ChainCheck(store, scope, inventory, anchors).run()
    if not has_damage(first.findings):
        return first
    seen = {(finding.code, finding.path) for finding in first.findings}
    again = ChainCheck(store, scope, inventory, anchors).run()
    again.findings = [f for f in again.findings if f.severity != "damage" or (f.code, f.path) in seen]
    return again
