"""The formats of secrets together, and which of them a value may hold: rule 3 of :mod:`~stateline.bundle.redact`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from stateline.bundle.credentials import ASSIGNED, HEADERS, HOOKS, URLS, assigns
from stateline.bundle.private_keys import PRIVATE_KEYS, PrivateKeys
from stateline.bundle.tokens import TOKENS, Format, long_runs

# Both have the same face: `needles`, one of which is in every text with such a secret; `matches`; `spans`.
Spotter: TypeAlias = "Format | PrivateKeys"


def _literals(spotters: Sequence[Spotter], *, lower: bool = False) -> list[tuple[bytes, Spotter]]:
    """Flat, since going through them is most of what a small value costs."""
    pairs = [(needle.lower() if lower else needle, spotter) for spotter in spotters for needle in spotter.needles]
    return [(needle.encode(), spotter) for needle, spotter in dict.fromkeys(pairs)]


ALL: Sequence[Spotter] = (*TOKENS, *HEADERS, *URLS, *HOOKS, ASSIGNED, PRIVATE_KEYS)
_HEADERS = [pair for pair in _literals(HEADERS, lower=True) if b"%" not in pair[0]]
_QUOTED_HEADERS = [pair for pair in _literals(HEADERS, lower=True) if b"%" in pair[0]]
_URLS = _literals(URLS)
_HOOKS = _literals(HOOKS)
# By a sign in the literal: looking for one byte costs a fiftieth of looking for several.
_SIGNS = (b"_", b"-", b".", b":", b"/", b"%")
_TOKENS = {
    sign: [pair for pair in _literals(TOKENS) if sign in pair[0] and not any(map(pair[0].__contains__, _SIGNS[:place]))]
    for place, sign in enumerate(_SIGNS)
}
_PLAIN_TOKENS = [pair for pair in _literals(TOKENS) if not any(map(pair[0].__contains__, _SIGNS))]


def present(encoded: bytes, *, known: bool = False) -> list[Spotter]:
    """Those that may find something in a value whose JSON text is ``encoded``; none that would is left out.

    First literals, at the speed of C; only where they show something, patterns are tried. If one of those matches, or a
    ``known`` value is there as well, all that the literals show are meant: masks may lay bare what did not match.
    """
    lowered = encoded.lower()
    found = [spotter for needle, spotter in _HEADERS if needle in lowered]
    if b"%" in encoded:
        found += [spotter for needle, spotter in _QUOTED_HEADERS if needle in lowered]
    if b"-----" in encoded and b"PRIVATE" in encoded:
        found.append(PRIVATE_KEYS)
    if b"@" in encoded or (b"%" in encoded and b"%40" in encoded):
        found += [spotter for needle, spotter in _URLS if needle in encoded]
    if assigns(lowered):
        found.append(ASSIGNED)
    if runs := long_runs(encoded):
        found += [spotter for needle, spotter in _PLAIN_TOKENS if needle in runs]
        for sign, pairs in _TOKENS.items():
            if sign in runs:
                found += [spotter for needle, spotter in pairs if needle in runs]
        if b"hooks" in encoded:
            found += [spotter for needle, spotter in _HOOKS if needle in encoded]
    if not found:
        return found
    found = list(dict.fromkeys(found))
    if known:
        return found
    text = encoded.decode("utf-8", "surrogatepass")
    return found if any(spotter.matches(text) for spotter in found) else []
