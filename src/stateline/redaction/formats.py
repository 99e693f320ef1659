"""The formats of secrets together, and which of them a value may hold: rule 3 of :mod:`~stateline.redaction.redactor`."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.redaction.contextual_secrets import ASSIGNED, HEADERS, HOOKS, URLS
from stateline.redaction.prefilter import shown
from stateline.redaction.private_keys import PRIVATE_KEYS
from stateline.redaction.tokens import TOKENS, SecretPattern

ALL: Sequence[SecretPattern] = (*TOKENS, *HEADERS, *URLS, *HOOKS, ASSIGNED, PRIVATE_KEYS)


def present(encoded: bytes, *, known: bool = False) -> list[SecretPattern]:
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
