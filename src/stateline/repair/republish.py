"""The snapshot that a repair appends: an older state, unchanged, and an event that declares the losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from stateline._version import __version__
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Envelope
from stateline.bundle.repair_record import MEMBER
from stateline.repair.choose_head import Lineage
from stateline.repair.report import Loss
from stateline.store.protocol import FAST
from stateline.store.scope import Scope, with_actor
from stateline.store.snapshot import Snapshot, publish, require_known_version
from stateline.store.timestamps import next_timestamp

DECLARED = 1000
"""Most losses that one snapshot declares; a repair with more of them appends several snapshots."""
LISTED = 100
"""Most entries of a list that is for people only; the rest is counted."""

Carry = Callable[[Snapshot, bool], dict[str, Json]]
"""Returns the members that a repair's event repeats from the snapshot whose state it takes over. The second argument is
True if newer snapshots were lost, or may have been."""


def carry_all(content: Snapshot, newer_lost: bool) -> dict[str, Json]:
    """Repeat all members but those that were about that one save. Fits any scope."""
    own = ("type", "durability", "redactions", "actor", MEMBER)
    return {name: value for name, value in content.event.items() if name not in own}


def record(content: Snapshot, lost: list[Loss], moved: list[str]) -> dict[str, Json]:
    """Return the part of the record that is for people, bounded. ``moved`` are the new paths of files set aside."""
    newer: list[Json] = [
        {"seq": loss.seq, "sha256": loss.sha256, "path": loss.path, "why": loss.why} for loss in lost if loss.newer
    ]
    return {
        "from": {"seq": content.seq, "sha256": content.sha256},
        "lost": newer[:LISTED],
        "lost_count": len(newer),
        "set_aside": list(moved[:LISTED]),
        "set_aside_count": len(moved),
    }


def declarations(line: Lineage) -> Iterator[dict[str, Json]]:
    """Yield what the chain must declare, split among as many snapshots as it takes; at least one."""
    gaps, objects = line.gaps, line.objects
    first = True
    while gaps or objects or first:
        first = False
        room = DECLARED - len(gaps[:DECLARED])
        yield {"gaps": msgspec.to_builtins(gaps[:DECLARED]), "objects": list(objects[:room])}
        gaps, objects = gaps[DECLARED:], objects[room:]


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
        store.backend,
        Envelope(
            seq=tip.seq + 1,
            created_at=next_timestamp(store.clock(), tip.envelope.created_at),
            tool_version=__version__,
            scope=scope.key,
            prev_sha=tip.sha256,
            prev=tip.path,
            kind=content.envelope.kind,
            event={
                **with_actor(store, dict(event), masked=True),
                "durability": FAST if fast else store.backend.durability,
            },
            state=content.envelope.state,
            objects=content.envelope.objects,
        ),
    )
