"""The snapshot that a repair appends: an older state as it stands, on top of the newest snapshot there is."""

from __future__ import annotations

from collections.abc import Mapping

from stateline._version import __version__
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Envelope
from stateline.store.protocol import FAST
from stateline.store.snapshot import Snapshot, require_known_version
from stateline.store.store import Scope


def republish(scope: Scope, tip: Snapshot, content: Snapshot, event: Mapping[str, Json]) -> Snapshot:
    """Append to ``tip`` the state of ``content``, objects and all, without moving the pointer. The lock must be held.

    Raises ``NewerVersionError`` on top of what a newer version wrote, ``InvalidValueError``, ``StorageError``.
    """
    require_known_version(tip)
    require_known_version(content)
    store = scope.store
    # The past is not settled here, since it is what is broken; as long as it is fast, so is what rests on it.
    fast = tip.event.get("durability") == FAST
    return scope.seal(
        Envelope(
            seq=tip.seq + 1,
            created_at=store.now(tip.envelope.created_at),
            tool_version=__version__,
            scope=scope.key,
            prev_sha=tip.sha256,
            prev=tip.path,
            kind=content.envelope.kind,
            event={**event, "durability": FAST if fast else store.backend.durability},
            state=content.envelope.state,
            objects=content.envelope.objects,
        )
    )
