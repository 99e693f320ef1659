"""Fast checks of JSON text: a format that no check reports does not occur in it. They are nearly all that formats cost
a save without secrets, so they are made for speed.

A search for one character that is missing runs at the speed of memory, and a pattern that begins with one costs half of
a search for several. So each check begins with a *sign*, a rare character that must occur, and compares the characters
around it: for tokens enough of their needles to make false reports rare, for all others the least that the pattern
requires, in lower case. A check may report a format that does not occur, and never misses one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from functools import cached_property

from stateline.redaction.contextual_secrets import (
    ASSIGNED,
    HEADERS,
    KEY_NAME_ENDS,
    NAME_ENDS,
    PASSWORD,
    QUOTED,
    URLS,
    USER,
    WEBHOOKS,
)
from stateline.redaction.private_keys import PRIVATE_KEYS, SecretPattern
from stateline.redaction.tokens import RUN, SIGNS, TOKENS, RegexPattern

ALL_PATTERNS: Sequence[SecretPattern] = (*TOKENS, *HEADERS, *URLS, *WEBHOOKS, ASSIGNED, PRIVATE_KEYS)
"""Every format of a secret: rule 3 of :mod:`~stateline.redaction.redactor`."""

_NONE: Set[RegexPattern] = frozenset()
_SHORT = 2048
_UNCOMPILED = 64


class _Check:
    """Base of the checks. It saves short-lived processes the time to compile expressions: for the first
    :data:`_UNCOMPILED` texts up to :data:`_SHORT` [bytes], each of ``needles`` is searched for instead."""

    def __init__(self, needles: Iterable[bytes]) -> None:
        self._needles = tuple(needles)
        self._uncompiled = _UNCOMPILED

    def _may_have_needle(self, text: bytes) -> bool:
        """Return false if the expression need not be tried; true without a search where the expression is faster."""
        if self._uncompiled <= 0 or len(text) > _SHORT:
            return True
        self._uncompiled -= 1
        return any(needle in text for needle in self._needles)


class ContextCheck(_Check):
    """An expression that matches every JSON text, in lower case, in which one of ``formats`` occurs.

    It begins with a literal, and ``sign`` is in every text that it matches. With several formats, the expression has an
    (empty) group for each, in their order, and consumes no more than the literal, which they share.
    """

    def __init__(self, sign: bytes, pattern: str, *formats: SecretPattern) -> None:
        super().__init__(needle.lower().encode() for format in formats for needle in format.needles)
        self.sign = sign
        self._formats = formats
        self._source = pattern

    def candidates(self, lowered: bytes) -> Set[SecretPattern]:
        """Return the formats that may occur."""
        if not self._may_have_needle(lowered) or self._pattern.search(lowered) is None:
            return _NONE
        return {self._formats[(found.lastindex or 1) - 1] for found in self._pattern.finditer(lowered)}

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(self._source.encode(), re.DOTALL)


_AUTHORIZATION, _BEARER, _BASIC, _COOKIE, _AWS_SECRET_KEY = HEADERS
_DATABRICKS = next(token for token in TOKENS if token.needles == ("dapi",))

# Characters between a name and the sign of an assignment.
_GAP = r"""["'`\\\])\x20t+]*+[:=>,%]"""
# Lookbehinds of different widths.
_SECRET = "|".join(
    f"(?<=ecret{access}key)" for access in ("", "[_-]", "access", "[_-]access", "access[_-]", "[_-]access[_-]")
)
_PRIVATE = r"(?<=private key)|(?<=private%20key)|(?<=private\+key)"
# A plain "key" is not a secret's name, and occurs in many URLs.
_BEFORE_KEY = "".join(sorted({name[-4].lower() for name in KEY_NAME_ENDS}))
_ENDS = "|".join(sorted({name[-3:].lower() for name in NAME_ENDS if name.lower() != "key"}))
_VALUE = r"""["'`\\\[(]*+(?:b\\*+["'])?[^\s\x00-\x20\x7f"'`<>{}()\[\]$,;&]{8}"""

CONTEXT_CHECKS = (
    ContextCheck(b"z", f"z(?<=uthoriz)ation{_GAP}", _AUTHORIZATION),
    ContextCheck(
        b"b",
        r"b(?=earer(?: {1,8}|%20)[a-z0-9._~+/=-]{20}()|asic(?: {1,8}|%20)[a-z0-9+=%/\\]{8}())",
        *(_BEARER, _BASIC),
    ),
    ContextCheck(
        b"k",
        rf"k(?=(?<=ook)(?:ies?{_GAP}()|s\.slack()|s(?:\\*+/|%2f)[0-9]{{15}}())"
        rf"|ey(?:(?:{_SECRET}){_GAP}()|(?:{_PRIVATE})(?:(?: |%20|\+)block)?-----()))",
        *(_COOKIE, *WEBHOOKS, _AWS_SECRET_KEY, PRIVATE_KEYS),
    ),
    ContextCheck(b"d", "dapi[0-9a-f]{32}", _DATABRICKS),
    ContextCheck(b"@", rf":\\*+/\\*+/{USER}:{PASSWORD}@", URLS[0]),
    ContextCheck(b"%", rf"%3a%2f%2f(?>{QUOTED}*)%3a(?>{QUOTED}+)%40", URLS[1]),
    ContextCheck(b"=", rf"=(?<=[{_BEFORE_KEY}_.-]key=|.(?:{_ENDS})=)(?={_VALUE})", ASSIGNED),
    ContextCheck(b"%", rf"%(?<=[{_BEFORE_KEY}_.-]key%|.(?:{_ENDS})%)3d(?={_VALUE})", ASSIGNED),
)

_WIDTH = 4
"""Most characters of a needle that are compared up to its sign; a needle that begins with its sign is compared
whole."""


class TokenCheck(_Check):
    """The tokens whose needles have the same sign."""

    def __init__(self, sign: str, needles: list[tuple[str, RegexPattern]]) -> None:
        super().__init__(needle.encode() for needle, _ in needles)
        self.sign = sign.encode()
        self._behind: dict[str, list[tuple[bytes, RegexPattern]]] = {}
        self._ahead: dict[str, list[tuple[bytes, RegexPattern]]] = {}
        for needle, token in needles:
            head, _, tail = needle.partition(sign)
            parts, part = (self._behind, (head + sign)[-_WIDTH:]) if head else (self._ahead, tail)
            parts.setdefault(part, []).append((needle.encode(), token))

    def candidates(self, encoded: bytes) -> Set[RegexPattern]:
        """Return the tokens that may occur in JSON text."""
        if not self._may_have_needle(encoded):
            return _NONE
        # One hit at a time: hostile texts have millions, of a few kinds.
        hits = set(map(re.Match.groups, self._pattern.finditer(encoded)))
        found: set[RegexPattern] = set()
        for groups in hits:
            ahead, behind = ((group or b"").decode("latin-1") for group in groups)
            pairs = list(self._ahead.get(ahead, ()))
            # A shorter needle has any characters in front.
            pairs += [pair for first in range(_WIDTH) for pair in self._behind.get(behind[first:], ())]
            found.update(token for needle, token in pairs if needle in encoded)
        return found

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        sign, nothing = re.escape(self.sign.decode()), "(?!)()"
        ahead = f"(?=({'|'.join(map(re.escape, self._ahead))}))" if self._ahead else nothing
        # Cheapest first: the one character before the sign, and the run behind it.
        before = re.escape("".join({part[-2] for part in self._behind}))
        padded = "|".join("." * (_WIDTH - len(part)) + re.escape(part) for part in self._behind)
        behind = f"(?<=[{before}]{sign})(?=[A-Za-z0-9_-]{{{RUN}}})(?<=({padded}))" if self._behind else nothing
        return re.compile(f"{sign}(?:{ahead}|{behind})".encode(), re.DOTALL)


def _token_checks() -> tuple[TokenCheck, ...]:
    by_sign: dict[str, list[tuple[str, RegexPattern]]] = {sign: [] for sign in SIGNS}
    for token in TOKENS:
        for needle in token.needles:
            written = needle.replace("\\", "\\\\")  # as JSON does
            if sign := next((sign for sign in SIGNS if sign in written), ""):
                by_sign[sign].append((written, token))
    return tuple(TokenCheck(sign, needles) for sign, needles in by_sign.items())


TOKEN_CHECKS = _token_checks()


def candidates(encoded: bytes) -> set[SecretPattern]:
    """Return the formats that may occur in JSON text: all that do, and few others."""
    found: set[SecretPattern] = set()
    for check in TOKEN_CHECKS:
        if check.sign in encoded:
            found |= check.candidates(encoded)
    lowered = encoded.lower()
    for context in CONTEXT_CHECKS:
        if context.sign in lowered:
            found |= context.candidates(lowered)
    return found


def present(encoded: bytes, *, known: bool = False) -> list[SecretPattern]:
    """Return the formats that may occur in a value whose JSON text is ``encoded``, and never miss one.

    Each candidate's expression is tried. If one matches, or a ``known`` value is there too, all candidates are
    returned: masks may expose a format that did not match.
    """
    found = candidates(encoded)
    if not found:
        return []
    ordered = [pattern for pattern in ALL_PATTERNS if pattern in found]
    if known:
        return ordered
    text = encoded.decode("utf-8", "surrogatepass")
    return ordered if any(pattern.may_match(text) for pattern in ordered) else []
