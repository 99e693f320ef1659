"""The snapshot that a repair appends: an older state, unchanged, on top of the newest intact snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from stateline._version import __version__
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Envelope
from stateline.store.protocol import FAST
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot, publish, require_known_version
from stateline.store.timestamps import next_timestamp


def republish(scope: Scope, tip: Snapshot, content: Snapshot, event: Mapping[str, Json]) -> Snapshot:
    """Append the state and objects of ``content`` to ``tip``. The pointer stays; the lock must be held.

    Raises ``NewerVersionError`` if a newer version wrote one of them, ``InvalidValueError``, ``StorageError``.
    """
    require_known_version(tip)
    require_known_version(content)
    store = scope.store
    # The damaged past cannot be made durable here, so what rests on a fast snapshot is fast too.
    fast = tip.event.get("durability") == FAST
    return publish(
        scope.store.backend,
        Envelope(
            seq=tip.seq + 1,
            created_at=next_timestamp(store.clock(), tip.envelope.created_at),
            tool_version=__version__,
            scope=scope.key,
            prev_sha=tip.sha256,
            prev=tip.path,
            kind=content.envelope.kind,
            event={**event, "durability": FAST if fast else store.backend.durability},
            state=content.envelope.state,
            objects=content.envelope.objects,
        ),
    )
