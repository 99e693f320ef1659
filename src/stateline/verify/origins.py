"""The origin of a fork: the snapshot of another scope that its first snapshot names."""

from __future__ import annotations

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Link
from stateline.errors import StatelineError
from stateline.store.protocol import BlobMissingError
from stateline.store.snapshot import parse_snapshot
from stateline.store.store import Store


def origin_problem(store: Store, origin: Link) -> tuple[str, str] | None:
    """Return (code, message) of what is wrong with a fork's origin, or None. Never raises for the other scope's files.

    The origin must exist: ``exec rm`` refuses to remove a scope that a fork names.
    """
    scope = naming.scope_hash(origin.scope)
    try:
        for name in store.backend.list(scope):
            parts = naming.snapshot_parts(name)
            if parts is None or not origin.sha256.startswith(parts[1]):
                continue
            data = store.backend.get(f"{scope}/{name}", canonical.SNAPSHOT_LIMIT)
            if canonical.sha256(data) == origin.sha256:
                found = parse_snapshot(scope, name, data)
                if found.seq != origin.seq:
                    return "misordered", f"its origin has seq {found.seq}, not {origin.seq}"
                return None
    except (StatelineError, BlobMissingError):
        # That damage is a finding of the other scope; here the origin was just not found.
        pass
    return "missing", f"its origin {origin.sha256} is not in the scope {origin.scope}"
