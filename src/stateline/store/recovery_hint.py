"""What a writer says when it meets damage: what is left, and what to do. Loaded only then."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from stateline.bundle import canonical, naming
from stateline.errors import IntegrityError, StatelineError
from stateline.store.integrity import Objects
from stateline.store.protocol import BlobMissingError
from stateline.store.snapshot import Snapshot

if TYPE_CHECKING:
    from stateline.store.store import Scope


def with_way_out(scope: Scope, error: IntegrityError) -> IntegrityError:
    """``Scope.with_way_out``."""
    newest = newest_intact(scope)
    found = f"the newest intact snapshot is {newest.path} (seq {newest.seq})" if newest else "no snapshot is intact"
    key = shlex.quote(scope.key)
    return IntegrityError(
        f"{error.message}. Nothing was changed; {found}.",
        finding=error.finding,
        hint=f"`stateline verify {key}` lists all damage; `stateline repair {key}` plans how to go on",
    )


def newest_intact(scope: Scope) -> Snapshot | None:
    """``Scope.newest_intact``."""
    store = scope.store
    objects = Objects(store)
    names = sorted((n for n in store.backend.list(scope.hash) if naming.snapshot_parts(n)), reverse=True)
    for name in names:
        try:
            data = store.backend.get(f"{scope.hash}/{name}", canonical.SNAPSHOT_LIMIT)
            snapshot = store.parse_snapshot(scope.hash, name, data)
            if not objects.faults(snapshot.envelope.objects.values()):
                return snapshot
        except (StatelineError, BlobMissingError):
            # What cannot be read, or must not be believed, is not the one that is looked for.
            continue
    return None
