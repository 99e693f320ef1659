"""A model's reply that was refused, as the event of the failed attempt keeps it: masked, and bounded in size."""

from __future__ import annotations

from typing import Any

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.record import mask_calls
from stateline.errors import InvalidValueError
from stateline.redaction.redactor import Redactor

LIMIT = 64 * 1024
"""Largest part of a reply that is kept [characters of its text, then bytes of its calls]."""


def refused_reply(redactor: Redactor, reply: dict[str, Json]) -> tuple[dict[str, Json], int]:
    """Return ``event.refused`` for a reply of any shape, and the number of masked values. Values that format 1 cannot
    hold, and everything over :data:`LIMIT`, are left out."""
    counts = []

    def mask(value: Json) -> Json:
        value, count = redactor.redact(value)
        counts.append(count)
        return value

    content: Any = reply.get("content")
    whole = content.encode("utf-8", "backslashreplace").decode() if isinstance(content, str) else ""
    text = str(mask(whole))
    kept: dict[str, Json] = {"content": text[:LIMIT], "tool_calls": []}
    left = LIMIT - len(text)
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
