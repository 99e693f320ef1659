"""How a request differs from a recorded one, for people: which recording is nearest, and where the two part. Pure.

Requests may be of many megabytes, and conversations share most of what they say. So likeness is told from a bounded
sample of words, and a diff begins at the first difference and ends after a bounded stretch: nothing here takes time by
the square of a request.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from stateline.bundle.canonical import Json

_SAMPLE = 64 * 1024
"""How much of a request's beginning, and of its end, is looked at for likeness [characters]."""
_CANDIDATES = 64
_LOOKED_AT = 32 * 1024 * 1024
"""After so many characters of candidates no further one is looked at."""
_STRETCH = 64 * 1024
"""How much of each text is compared from the first difference on [characters]."""
_COMPARED = 600
"""Lines of that stretch that are matched up: matching takes time by the square of them."""
_WIDTH = 140
_NEAR = 4 * _WIDTH
_SHOWN = 60
_CONTEXT = 2

_word = re.compile(r"\w+|\\n")


def nearest(asked: dict[str, Json], candidates: Iterable[tuple[int, dict[str, Json]]], *, otherwise: int) -> int:
    """The number of the candidate that is most like ``asked``, the first of equals; ``otherwise`` if there are none.
    How many are looked at is bounded, so the likeliest should come first."""
    wanted = _words(_compact(asked))
    best, found, budget = -1.0, otherwise, _LOOKED_AT
    for number, request in islice(candidates, _CANDIDATES):
        text = _compact(request)
        like = _likeness(wanted, _words(text))
        if like > best:
            best, found = like, number
        budget -= len(text)
        if budget <= 0:
            break
    return found


def _compact(request: dict[str, Json]) -> str:
    return msgspec.json.encode(request, order="sorted").decode()


def _words(text: str) -> Counter[str]:
    """What likeness is told from: the words of the text's ends, and how often each stands there."""
    if len(text) > 2 * _SAMPLE:
        text = text[:_SAMPLE] + " " + text[-_SAMPLE:]
    return Counter(_word.findall(text))


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    """From 0.0 (no word in common) to 1.0 (the same words)."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 1.0


def members(old: dict[str, Json], new: dict[str, Json]) -> str:
    """In which members two requests differ, in words."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if name == "messages" and isinstance(before, list) and isinstance(after, list):
            pairs = enumerate(zip(before, after, strict=False))
            at = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
            name = f"messages from number {at + 1} on"
        found.append(name)
    return ", ".join(found) or "nothing"


def unified(old: dict[str, Json], new: dict[str, Json], names: tuple[str, str]) -> list[str]:
    """A unified diff of two requests as indented JSON, in at most some sixty lines; none if they are equal. Long lines
    are broken, and texts at their line ends."""
    before, after = _pretty(old), _pretty(new)
    at = _first_difference(before, after)
    if at < 0:
        return []
    start = _begin(before, at)
    left, left_cut = _lines(before, start)
    right, right_cut = _lines(after, start)
    rows = [f"--- {names[0]}", f"+++ {names[1]}", *_hunks(left, right)]
    if len(rows) > _SHOWN:
        return [*rows[:_SHOWN], f"... {len(rows) - _SHOWN} more lines"]
    return [*rows, "... and what follows"] if left_cut or right_cut else rows


def _pretty(request: dict[str, Json]) -> str:
    """Indented JSON, with a line end after each that is written out in a string."""
    return msgspec.json.format(_compact(request), indent=2).replace("\\n", "\\n\n")


def _first_difference(one: str, other: str) -> int:
    """Where two texts part, -1 if nowhere."""
    if one == other:
        return -1
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        # Comparing is quick, and only what is not known yet is compared.
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _begin(text: str, at: int) -> int:
    """Where to begin to show what differs at ``at``: some lines before, or in the middle of a line that is too long."""
    begin, floor = at, max(at - _NEAR, 0)
    for _ in range(_CONTEXT + 1):
        found = text.rfind("\n", floor, begin)
        if found < 0:
            return begin + 1 if begin < at else 0 if not floor else at - _WIDTH // 2
        begin = found
    return begin + 1


def _lines(text: str, start: int) -> tuple[list[str], bool]:
    """The lines of a stretch of text, long ones broken, and whether there is more."""
    cut = len(text) > start + _STRETCH
    found: list[str] = []
    for line in text[start : start + _STRETCH].split("\n"):
        found += [line[at : at + _WIDTH] for at in range(0, len(line), _WIDTH)] or [""]
    if cut and len(found) > 1:
        found.pop()  # a part of a line only
    return found[:_COMPARED], cut or len(found) > _COMPARED


def _hunks(left: list[str], right: list[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, left, right)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        # Without line numbers: there is no file that has these lines.
        yield "@@"
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (" " + line for line in left[a:b])
                continue
            yield from ("-" + line for line in left[a:b])
            yield from ("+" + line for line in right[c:d])
