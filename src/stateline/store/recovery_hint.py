"""Hints for recovery from damage: the newest intact snapshot, and the commands to run. Loaded only when needed."""

from __future__ import annotations

import shlex

from stateline.bundle import canonical, naming
from stateline.errors import IntegrityError, StatelineError
from stateline.store.integrity import ObjectChecker
from stateline.store.protocol import Backend, BlobMissingError
from stateline.store.snapshot import Snapshot, parse_snapshot


def with_recovery_hint(backend: Backend, key: str, error: IntegrityError) -> IntegrityError:
    """Return ``error`` of the scope ``key`` with its newest intact snapshot and the commands that help."""
    newest = newest_intact(backend, naming.scope_hash(key))
    found = f"the newest intact snapshot is {newest.path} (seq {newest.seq})" if newest else "no snapshot is intact"
    argument = shlex.quote(key)
    return IntegrityError(
        f"{error.message}. Nothing was changed; {found}.",
        finding=error.finding,
        hint=f"`stateline verify {argument}` lists all damage; `stateline repair {argument}` plans a repair",
    )


def newest_intact(backend: Backend, scope: str) -> Snapshot | None:
    """Return the newest snapshot of the scope with this hash that is intact, its objects included, or None.

    The pointer is not used. Reads from the newest, and stops at the first intact one.
    """
    objects = ObjectChecker(backend)
    names = sorted((name for name in backend.list(scope) if naming.snapshot_parts(name)), reverse=True)
    for name in names:
        try:
            snapshot = parse_snapshot(scope, name, backend.get(f"{scope}/{name}", canonical.SNAPSHOT_LIMIT))
            if not objects.faults(snapshot.envelope.objects.values()):
                return snapshot
        except (StatelineError, BlobMissingError):
            # Not readable, or not to be trusted: not the one wanted.
            continue
    return None
