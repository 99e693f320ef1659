"""The formats of secrets together, and which of them a value may hold: rule 3 of :mod:`~stateline.bundle.redact`."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.bundle.credentials import ASSIGNED, HEADERS, HOOKS, URLS
from stateline.bundle.looks import shown
from stateline.bundle.private_keys import PRIVATE_KEYS
from stateline.bundle.tokens import TOKENS, Spotter

ALL: Sequence[Spotter] = (*TOKENS, *HEADERS, *URLS, *HOOKS, ASSIGNED, PRIVATE_KEYS)


def present(encoded: bytes, *, known: bool = False) -> list[Spotter]:
    """Those that may find something in a value whose JSON text is ``encoded``; none that would is left out.

    If a quick look shows none, that is all. Else their patterns are tried, and if one of them matches, or a ``known``
    value is there as well, all that were shown are meant: masks may lay bare what did not match.
    """
    found = shown(encoded)
    if not found:
        return []
    ordered = [spotter for spotter in ALL if spotter in found]
    if known:
        return ordered
    text = encoded.decode("utf-8", "surrogatepass")
    return ordered if any(spotter.matches(text) for spotter in ordered) else []
