"""The time of a snapshot: a microsecond later than its parent's at least."""

from __future__ import annotations

import datetime

from stateline.errors import IntegrityError


def following(now: int, after: str | None) -> str:
    """The time ``now`` [ns since 1970] as envelopes hold it, or the first one later than ``after`` if that is later.

    Raises ``IntegrityError`` for an ``after`` that no time can follow.
    """
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=now // 1000)
    if after is not None:
        try:
            next_one = datetime.datetime.fromisoformat(after) + datetime.timedelta(microseconds=1)
        except (ValueError, OverflowError):
            raise IntegrityError(
                f"no time can follow the head's created_at, {after}; nothing was written",
                finding="malformed",
                hint="nothing was changed; `stateline verify` lists all damage, `stateline repair` plans how to go on",
            ) from None
        moment = max(moment, next_one)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
