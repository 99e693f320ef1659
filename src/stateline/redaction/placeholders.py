"""Values in the format of a secret for which a file is not refused: examples, and passwords of the user's own machine.

Masking does not use this. A real secret must not pass because an example stands beside it or is glued to it, so nothing
else may be left of a match once the examples are removed from it.
"""

from __future__ import annotations

import re

from stateline.redaction.contextual_secrets import is_plain

_LONGEST = 120
"""Longest example [characters]; nobody would recognise a longer one."""
_SHORTEST_SECRET = 8

_MARKER = r"(?i:example)|(.)\1{7}"
# Keys in the manuals of AWS; then a word that begins with "example", the word itself, and rows of one character.
_EXAMPLES = (
    r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{9}EXAMPLE(?![A-Za-z0-9])"
    r"|(?:wJalrXUtnFEMI[\\/]+K7MDENG[\\/+]+bPxRfiCY|je7MtGbClwBF[\\/]+2Zp9Utk[\\/]+h3yCo8nvb)EXAMPLEKEY(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])(?i:example)[A-Za-z0-9]{0,32}"
    r"|(?i:example)"
    r"|(.)\1{3,}"
)
# Narrower than the words of masking: random letters with a few "-" look like those.
_WORD = r"[A-Za-z][a-z]{0,14}|[A-Z]{2,15}"
_PIECE = r"[^-_./=:;,+#?&%\s\\]+"

_HEADER = r"x-(?:[a-z]+[0-9]{0,3}-)*[a-z]+[0-9]{0,3}"
_LINK = r"https?:(?:\\*/){2}[^?@]*"

_AT_USER = r"(?:/|%2[Ff])([^/:@%]+)(?::|%3[Aa])$"
# Reserved (RFC 2606), or the user's own machine.
_AT_HOST = (
    r"(?i:@|%40)(?i:localhost|127\.0\.0\.1|\[::1\]"
    r"|(?:[a-z0-9-]+\.)*example\.(?:com|org|net))(?!\.?[A-Za-z0-9-])"
)
_AROUND = 120


def is_harmless(kind: str, text: str, start: int, end: int) -> bool:
    """Return true if ``text[start:end]``, by its format a secret of ``kind``, is clearly an example, or opens
    nothing."""
    found = text[start:end]
    if kind == "Authorization header" and re.fullmatch(f"{_HEADER}|{_LINK}", found):
        return True
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    if kind == "password in a URL" and _is_default_password(found, before, after):
        return True
    return len(found) <= _LONGEST and re.search(_MARKER, found) is not None and not _holds_secret(found)


def _holds_secret(text: str) -> bool:
    """Return true if ``text`` holds more than words after its examples are removed."""
    pieces = re.findall(_PIECE, re.sub(_EXAMPLES, " ", text))
    return sum(len(piece) for piece in pieces if not re.fullmatch(_WORD, piece)) >= _SHORTEST_SECRET


def _is_default_password(password: str, before: str, after: str) -> bool:
    """Return true for a password that is a word, the user's name, or for a reserved or local host."""
    if is_plain(password) or re.match(_AT_HOST, after):
        return True
    user = re.search(_AT_USER, before)
    return user is not None and user[1] == password
