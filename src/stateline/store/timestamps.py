"""Times of snapshots: strictly increasing within a scope, regardless of the clock."""

from __future__ import annotations

import datetime

from stateline.errors import IntegrityError
from stateline.store.protocol import DAMAGE_HINT


def next_timestamp(now: int, after: str | None = None) -> str:
    """Return the time ``now`` [ns since 1970] as envelopes hold it, or one microsecond past ``after`` if that is later.

    Raises ``IntegrityError`` for an ``after`` that no time can follow (31 February, the last microsecond of 9999).
    """
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=now // 1000)
    if after is not None:
        try:
            earliest = datetime.datetime.fromisoformat(after) + datetime.timedelta(microseconds=1)
        except (ValueError, OverflowError):
            message = f"no time can follow the head's created_at, {after}; nothing was written"
            raise IntegrityError(message, finding="malformed", hint=DAMAGE_HINT) from None
        moment = max(moment, earliest)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
