"""Files whose bytes are not those of the digest in their name: one name for each such damage, whoever finds it."""

from __future__ import annotations

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import read_envelope
from stateline.errors import IntegrityError, StatelineError
from stateline.store.truncation import torn

_WHAT = {
    "misplaced": "it is an intact snapshot of another name or scope",
    "altered": "its bytes are not those of the digest in its name",
    "truncated": "its bytes are not those of the digest in its name, and their end is missing",
}


def misplaced(scope: str, name: str) -> str:
    """The message for an intact snapshot that lies under ``name``, which is not its own."""
    return f"the snapshot {scope}/{name} is misplaced: {_WHAT['misplaced']}"


def _is_altered_time(data: bytes, created_at: str, parts: tuple[str, str]) -> bool:
    """Whether these are the bytes that belong to the name, but for their time."""
    time, label = parts
    hour = time.index("T") + 1
    true = f"{time[: hour + 2]}:{time[hour + 2 : hour + 4]}:{time[hour + 4 :]}"
    # In canonical form no member stands before this one.
    mended = data.replace(f'"created_at":"{created_at}"'.encode(), f'"created_at":"{true}"'.encode(), 1)
    return canonical.sha256(mended).startswith(label)


def judged(error: IntegrityError, scope: str, name: str, data: bytes) -> IntegrityError:
    """``error``, which reading the snapshot ``name`` raised, or a better one, now that its bytes are known. It depends
    on name and bytes alone, and not on what led there."""
    parts = naming.snapshot_parts(name)
    if parts is None or canonical.sha256(data).startswith(parts[1]):
        return error
    code: str = torn(data)
    try:
        envelope = read_envelope(data, name)
        if envelope.created_at.replace(":", "") != parts[0] and not _is_altered_time(data, envelope.created_at, parts):
            code = "misplaced"
    except StatelineError:
        # No snapshot of any place.
        pass
    if code == error.finding:
        return error
    return IntegrityError(f"the snapshot {scope}/{name} is {code}: {_WHAT[code]}", finding=code, hint=error.hint)
