"""Check of a whole store. Collects all findings instead of stopping at the first, and only reads."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from stateline.bundle import naming
from stateline.errors import NewerVersionError, NotFoundError, StatelineError
from stateline.store.local.scan import scan_backend
from stateline.store.protocol import Inspectable
from stateline.store.store import Store
from stateline.verify.anchors import AnchorIndex, checked_anchors
from stateline.verify.chain import ChainCheck
from stateline.verify.findings import NOTE, Finding, Report, ScopeReport, anchored_note, has_damage, summarize
from stateline.verify.objects import ObjectCheck, unsafe_findings

_TOLERATED = "lost+found"
"""Directory that a file system keeps in its own root."""
_NOT_A_DIRECTORY = ("symlink", "not_regular")
"""Codes of a state dir that is not a directory."""


def verify(store: Store, key: str | None = None, anchors: Collection[str] = ()) -> Report:
    """Check the whole store, or the one scope ``key`` and the objects it names.

    Writes nothing, and may run while others write: a save in progress is never called damage.

    ``anchors`` are digests of snapshots that were kept elsewhere. One that is on no chain is damage (``anchor``), even
    if a repair has recorded it as lost: anybody who can write to the store can write that record.

    Each file is read once (again only if it looks damaged). Memory grows, by a few digests and names each, with the
    number of scopes, anchors, objects, findings, and snapshots in the largest scope, but not with their sizes. The
    meaning of a scope's state is not checked.

    Raises ``NotFoundError`` if there is no scope ``key`` and no anchors were given (with anchors that is a finding),
    ``StorageError`` when the state dir cannot be opened, ``UsageError`` for an anchor that is not a digest.
    """
    anchors = checked_anchors(anchors)
    nothing_read = AnchorIndex([], key, unreadable=True)
    store = Store(scan_backend(store.backend), redactor=store.redactor)
    places = store.backend if isinstance(store.backend, Inspectable) else None
    scopes = sorted(store.backend.scopes()) if places is None else []
    findings: list[Finding] = []
    if places is not None:
        findings += [*unsafe_findings(places, "", None), *_unsafe_parents(places)]
        if any(finding.code in _NOT_A_DIRECTORY for finding in findings):
            # Readers do not open it either. An unchecked store must not look like an intact one.
            findings.sort(key=lambda finding: finding.code not in _NOT_A_DIRECTORY)
            findings = [
                replace(found, severity="damage") if found.code in _NOT_A_DIRECTORY else found for found in findings
            ]
            return _report(findings, [], 0, anchors, nothing_read)
        names = sorted(places.top_names())
        if not names and isinstance(places.check_store_file(), NotFoundError):
            message = "there is no store here; an absent store is an empty one"
            findings.append(Finding("warning", "no_store", None, "", message))
        scopes = [name for name in names if naming.is_sha256(name)]
        if _store_file_is_newer(places, names, findings):
            return _report(findings, [], 0, anchors, nothing_read)
        if key is None:
            findings += _check_top(places, names)
    if key is not None:
        scope_hash = naming.scope_hash(naming.checked_key(key))
        scopes = [scope_hash] if scope_hash in scopes else []
        if not scopes:
            missing = NotFoundError(f"there is no scope {key}", hint="`stateline scopes` lists the scopes there are")
            if not anchors:
                raise missing
            findings.append(Finding("warning", "no_scope", key, "", missing.message))
    objects = ObjectCheck(store, places)
    if key is None:
        objects.list_objects()
    # One set for all scopes: there may be as many anchors as scopes.
    wanted = frozenset(anchors)
    reports = [_check_scope(store, scope, objects, wanted) for scope in scopes]
    if key is None:
        objects.add_unreferenced(certain=all(report.certain for report in reports))
    for report in reports:
        findings += report.findings
    index = AnchorIndex(reports, key, absent=key is not None and not scopes)
    return _report(findings + objects.findings, reports, objects.intact, anchors, index)


def _unsafe_parents(places: Inspectable) -> list[Finding]:
    try:
        above = places.parent_problems()
    except StatelineError:
        # A directory that cannot be examined cannot be passed either; opening the state dir gives the reason.
        return []
    return [Finding("unsafe", danger.code, None, "", f"{danger.reason}; to fix it: {danger.fix}") for danger in above]


def _report(
    findings: list[Finding], reports: list[ScopeReport], objects: int, anchors: Collection[str], index: AnchorIndex
) -> Report:
    findings = findings + [missing for anchor in anchors if (missing := index.finding(anchor)) is not None]
    ok = not has_damage(findings)
    heads = [report.head for report in reports if report.head is not None]
    return Report(
        ok=ok,
        scopes=sum(report.has_head for report in reports),
        snapshots=sum(report.snapshots for report in reports),
        objects=objects,
        findings=summarize(findings),
        heads=tuple(sorted(heads, key=lambda head: head.scope)),
        anchors=tuple(index.anchor(anchor) for anchor in anchors),
        note=anchored_note(len(anchors)) if anchors and ok else NOTE,
    )


def _store_file_is_newer(places: Inspectable, names: list[str], findings: list[Finding]) -> bool:
    """Check ``stateline.json``; return whether a newer Stateline must read the rest."""
    error = places.check_store_file()
    if error is not None:
        # It is made before anything else, and ``names`` were listed before it was examined: so ``names`` cannot hold a
        # scope of a store that is just being made.
        if not isinstance(error, NotFoundError):
            findings.append(Finding.of(error, None, naming.STORE_FILE))
        elif any(naming.is_sha256(name) or name == naming.OBJECTS for name in names):
            findings.append(Finding("damage", "missing", None, naming.STORE_FILE, error.message))
    return isinstance(error, NewerVersionError)


def _check_top(places: Inspectable, names: list[str]) -> list[Finding]:
    findings: list[Finding] = []
    for name in names:
        if name.startswith(naming.TEMPORARY):
            findings.append(Finding.temporary(None, name))
        elif name.startswith(naming.REMOVED):
            message = "a scope whose removal is unfinished; safe to remove while nobody writes"
            findings.append(Finding("residue", "removed", None, name, message))
        elif name == naming.STORE_FILE:
            findings += unsafe_findings(places, name, None)
        elif name not in (naming.OBJECTS, _TOLERATED) and not naming.is_sha256(name):
            findings.append(Finding.unknown_name(name, None, name))
    return findings


def _check_scope(store: Store, scope: str, objects: ObjectCheck, anchors: frozenset[str]) -> ScopeReport:
    """Check a scope, and check it again before anything is called damage.

    A scope that is removed and perhaps made again during the check looks broken once; real damage stays.
    """
    first = ChainCheck(store, scope, objects, anchors).run()
    if not has_damage(first.findings):
        return first
    seen = {(finding.code, finding.path) for finding in first.findings}
    second = ChainCheck(store, scope, objects, anchors).run()
    second.findings = [f for f in second.findings if f.severity != "damage" or (f.code, f.path) in seen]
    return second
