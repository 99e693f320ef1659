"""What is said where recordings are looked for and none are: which directories near by hold some."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator

from stateline.errors import NotFoundError

_ENTRIES = 20_000
"""How many names are looked at: the parent may be a home directory."""
_IN_ONE = 500
"""How many of them in one directory below the parent: the others have their turn too."""
_SHOWN = 8
_EXCHANGE = re.compile(r"(?!0000)(?:[0-9]{4}|[1-9][0-9]{4,8})\.json")


def no_directory(path: str) -> NotFoundError:
    """There is no directory ``path``."""
    what = "is not a directory" if os.path.lexists(path) else "does not exist"
    return _not_found(f"{path} {what}, so there is nothing to play back", path)


def no_recordings(path: str) -> NotFoundError:
    """``path`` is a directory without exchanges."""
    return _not_found(f"{path} holds no recordings (0001.json, 0002.json ...)", path)


def _not_found(message: str, path: str) -> NotFoundError:
    near = list(recordings_near(path))
    if not near:
        return NotFoundError(message, hint="name a directory that `--record` has written to")
    named = ", ".join(near[:_SHOWN]) + (f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else "")
    return NotFoundError(f"{message}; recordings near by: {named}", hint="name one of them with --playback")


def recordings_near(path: str) -> list[str]:
    """Directories with recordings in ``path``, beside it and one level below those, sorted, spelt as ``path`` is: from
    the current directory if it is relative. A bounded look that follows no symlink; what cannot be read is left out."""
    start = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(start) and start != os.path.dirname(start):
        start = os.path.dirname(start)
    budget = _ENTRIES
    found = []
    # Breadth first: what is nearest is found before the budget is spent. What was asked for comes before its siblings.
    waiting = deque([(os.path.abspath(path), 1), (start, 0)])
    seen = set()
    while waiting and budget > 0:
        place, depth = waiting.popleft()
        if place in seen:
            continue
        seen.add(place)
        below = []
        for name, is_directory in _entries(place, min(budget, _IN_ONE if depth else budget)):
            budget -= 1
            if is_directory:
                below.append(name)
            elif _EXCHANGE.fullmatch(name) and place not in found:
                found.append(place)
        if depth < 2:
            waiting.extend((os.path.join(place, name), depth + 1) for name in sorted(below))
    here = os.getcwd()
    return sorted(place if os.path.isabs(path) else os.path.relpath(place, here) for place in found)


def _entries(place: str, limit: int) -> Iterator[tuple[str, bool]]:
    """Names of files and of directories, and whether it is a directory."""
    try:
        with os.scandir(place) as entries:
            for count, entry in enumerate(entries):
                if count >= limit:
                    return
                if entry.is_dir(follow_symlinks=False):
                    yield entry.name, True
                elif entry.is_file(follow_symlinks=False):
                    yield entry.name, False
    except OSError:
        return
