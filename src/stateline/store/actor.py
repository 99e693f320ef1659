"""The actor that every event names: the user and the host of the process, and the person or agent that it acts for."""

from __future__ import annotations

import os
from functools import cache

from stateline.bundle.canonical import Json
from stateline.errors import UsageError

LONGEST = 256
"""Most characters of a name."""


def checked_name(name: str | None) -> str | None:
    """Return the name of an actor; None is "not set". Raises ``UsageError`` for one that is not a line of text."""
    if name is None or (name.strip() and len(name) <= LONGEST and name.isprintable()):
        return name
    raise UsageError(
        f"the actor's name is {name[:LONGEST]!r}; it must be 1 to {LONGEST} printable characters; nothing was changed",
        hint="for example --actor 'Ada Lovelace' or --actor review-bot",
    )


def actor_of(name: str | None) -> dict[str, Json]:
    """Return the member ``actor`` of an event that this process writes on behalf of ``name``."""
    user, host = _process()
    return {"user": user, "host": host} | ({} if name is None else {"name": name})


@cache
def _process() -> tuple[str, str]:
    return user_name(os.geteuid()), _as_text(os.uname().nodename)


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one without an entry, as in some containers."""
    import pwd

    try:
        return _as_text(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


def _as_text(name: str) -> str:
    # To the system, names are bytes of any encoding.
    return name.encode("utf-8", "backslashreplace").decode()
