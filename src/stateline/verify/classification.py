"""Classification of damaged snapshots and of missing origins of forks. Verify and repair use the same."""

from __future__ import annotations

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Link, read_envelope
from stateline.errors import IntegrityError, StatelineError
from stateline.store.protocol import BlobMissingError
from stateline.store.snapshot import is_truncated, parse_snapshot
from stateline.store.store import Store

_REASONS = {
    "misplaced": "it is an intact snapshot of another name or scope",
    "altered": "its bytes do not have the digest in its name",
    "truncated": "its bytes do not have the digest in its name, and their end is missing",
}


def misplaced_message(scope: str, name: str) -> str:
    """Return the message for an intact snapshot under a ``name`` that is not its own."""
    return f"the snapshot {scope}/{name} is misplaced: {_REASONS['misplaced']}"


def classify_error(error: IntegrityError, scope: str, name: str, data: bytes) -> IntegrityError:
    """Return ``error``, raised when the snapshot ``name`` was read, or a more precise one.

    Depends on name and bytes only, and not on what led to the file.
    """
    parts = naming.snapshot_parts(name)
    if parts is None or canonical.sha256(data).startswith(parts[1]):
        return error
    code = "truncated" if is_truncated(data) else "altered"
    try:
        envelope = read_envelope(data, name)
        moved = envelope.created_at.replace(":", "") != parts[0]
        if moved and not _only_time_altered(data, envelope.created_at, parts):
            code = "misplaced"
    except StatelineError:
        # Not an intact snapshot, so it cannot belong to another place.
        pass
    if code == error.finding:
        return error
    return IntegrityError(f"the snapshot {scope}/{name} is {code}: {_REASONS[code]}", finding=code, hint=error.hint)


def _only_time_altered(data: bytes, created_at: str, parts: tuple[str, str]) -> bool:
    """Return whether these bytes have the digest in the name once ``created_at`` is that of the name."""
    time, label = parts
    hour = time.index("T") + 1
    original = f"{time[: hour + 2]}:{time[hour + 2 : hour + 4]}:{time[hour + 4 :]}"
    # In canonical form no member comes before this one.
    restored = data.replace(f'"created_at":"{created_at}"'.encode(), f'"created_at":"{original}"'.encode(), 1)
    return canonical.sha256(restored).startswith(label)


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
