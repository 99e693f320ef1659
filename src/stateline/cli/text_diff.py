"""Differences between two texts, by lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator

_LINES = 5000
"""Texts with more lines are not compared: that takes quadratic time."""
_BEFORE = 30
"""Equal characters before the first difference of two long lines."""


def unified(old: str, new: str) -> Iterator[tuple[str, str]]:
    """(sign, line): ``-`` for a line of ``old`` only, ``+`` of ``new`` only, `` `` of both, ``@`` where lines are left
    out. One equal line is kept around each difference."""
    before, after = old.split("\n") if old else [], new.split("\n") if new else []
    if not before or not after or len(before) + len(after) > _LINES:
        yield from (("-", line) for line in before)
        yield from (("+", line) for line in after)
        return
    import difflib

    for number, row in enumerate(difflib.unified_diff(before, after, n=1, lineterm="")):
        if number > 1:  # the first two name files
            yield ("@", row.strip("@ ")) if row.startswith("@@") else (row[0], row[1:])


def focused(old: str, new: str, width: int) -> tuple[str, str]:
    """Both texts, cut to ``width`` characters around the first difference."""
    pairs = enumerate(zip(old, new, strict=False))
    same = next((at for at, pair in pairs if pair[0] != pair[1]), min(len(old), len(new)))
    start = max(same - _BEFORE, 0) if max(len(old), len(new)) > width else 0
    return _window(old, start, width), _window(new, start, width)


def _window(text: str, start: int, width: int) -> str:
    shown = ("…" if start else "") + text[start:]
    return shown if len(shown) <= width else shown[: width - 1] + "…"
