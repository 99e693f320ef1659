"""A model's reply that was refused, as the event of the failed attempt keeps it: masked, and bounded in size."""

from __future__ import annotations

from typing import Any

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.record import mask_calls
from stateline.errors import InvalidValueError
from stateline.store.objects import ObjectStore

LIMIT = 64 * 1024
"""Largest part of a reply that is kept [characters of its text, then bytes of its calls]; less where the limit of a
snapshot is lowered."""
_SHARE = 8
"""A snapshot has room for so many parts of that size."""


def refused_reply(store: ObjectStore, reply: dict[str, Json]) -> tuple[dict[str, Json], int]:
    """Return ``event.refused`` for a reply of any shape, and the number of masked values. Values that format 1 cannot
    hold, and everything over :data:`LIMIT`, are left out."""
    limit = min(LIMIT, store.limits.snapshot // _SHARE)
    counts = []

    def mask(value: Json) -> Json:
        value, count = store.redactor.redact(value)
        counts.append(count)
        return value

    content: Any = reply.get("content")
    whole = content.encode("utf-8", "backslashreplace").decode() if isinstance(content, str) else ""
    text = str(mask(whole))
    kept: dict[str, Json] = {"content": text[:limit], "tool_calls": []}
    left = limit - len(text)
    calls: Any = reply.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        try:
            (masked,) = mask_calls(mask, [call])
            left -= len(canonical.encode(masked))
        except InvalidValueError:
            left = -1
        if left < 0:
            break
        kept["tool_calls"].append(masked)
    return kept | ({"cut": True} if left < 0 else {}), sum(counts)
