"""Quick looks at JSON text: where none shows anything, no format of a secret is found in it. They cost a save that has
no secret nearly all that formats cost it, so each is made for speed.

One character is found at the speed of memory where it is missing, and a pattern that begins with one costs half of a
search for several. So each look begins with a *sign*, a rare character of what has to be there, and compares what
stands around it: for tokens as much of their needles as makes mistakes rare, for all others what the pattern demands at
least, in small letters. A look may show what no pattern finds, and never the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from functools import cached_property

from stateline.redaction.contextual_secrets import (
    ASSIGNED,
    HEADERS,
    HOOKS,
    KEY_NAMES,
    NAMES,
    PASSWORD,
    QUOTED,
    URLS,
    USER,
)
from stateline.redaction.private_keys import PRIVATE_KEYS
from stateline.redaction.tokens import RUN, SIGNS, TOKENS, Format, SecretPattern

_NONE: Set[Format] = frozenset()
_SHORT = 2048
_SPARED = 64


class _Sparing:
    """Spares a short-lived process patterns that take longer to compile than a few short texts to look through: for
    the first :data:`_SPARED` texts up to :data:`_SHORT` [bytes], each of ``needles`` is looked for by itself."""

    def __init__(self, needles: Iterable[bytes]) -> None:
        self._needles = tuple(needles)
        self._spared = _SPARED

    def _has_a_needle(self, text: bytes) -> bool:
        """False if the pattern need not be tried; true, without a look, where it is the faster way."""
        if self._spared <= 0 or len(text) > _SHORT:
            return True
        self._spared -= 1
        return any(needle in text for needle in self._needles)


class Place(_Sparing):
    """Something that stands in every JSON text, in small letters, in which one of ``formats`` finds anything.

    The pattern begins with a literal, and ``sign`` is in every text that it is in. If there are several formats, the
    pattern has an (empty) group for each, in their order, and takes no more than the literal, which others may share.
    """

    def __init__(self, sign: bytes, pattern: str, *formats: SecretPattern) -> None:
        super().__init__(needle.lower().encode() for format in formats for needle in format.needles)
        self.sign = sign
        self._formats = formats
        self._source = pattern

    def shown(self, lowered: bytes) -> Set[SecretPattern]:
        """Those formats that may find something."""
        if not self._has_a_needle(lowered) or self._pattern.search(lowered) is None:
            return _NONE
        return {self._formats[(found.lastindex or 1) - 1] for found in self._pattern.finditer(lowered)}

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(self._source.encode(), re.DOTALL)


_AUTHORIZATION, _BEARER, _BASIC, _COOKIE, _AWS_SECRET_KEY = HEADERS
_DATABRICKS = next(token for token in TOKENS if token.needles == ("dapi",))

# What may stand between a name and the sign that gives it a value.
_GAP = r"""["'`\\\])\x20t+]*+[:=>,%]"""
# Read from behind, each with a width of its own.
_SECRET = "|".join(
    f"(?<=ecret{access}key)" for access in ("", "[_-]", "access", "[_-]access", "access[_-]", "[_-]access[_-]")
)
_PRIVATE = r"(?<=private key)|(?<=private%20key)|(?<=private\+key)"
# A plain "key" is no secret's name, and would be found in many URLs.
_BEFORE_KEY = "".join(sorted({name[-4].lower() for name in KEY_NAMES}))
_ENDS = "|".join(sorted({name[-3:].lower() for name in NAMES if name.lower() != "key"}))
_VALUE = r"""["'`\\\[(]*+(?:b\\*+["'])?[^\s\x00-\x20\x7f"'`<>{}()\[\]$,;&]{8}"""

PLACES = (
    Place(b"z", f"z(?<=uthoriz)ation{_GAP}", _AUTHORIZATION),
    Place(
        b"b",
        r"b(?=earer(?: {1,8}|%20)[a-z0-9._~+/=-]{20}()|asic(?: {1,8}|%20)[a-z0-9+=%/\\]{8}())",
        *(_BEARER, _BASIC),
    ),
    Place(
        b"k",
        rf"k(?=(?<=ook)(?:ies?{_GAP}()|s\.slack()|s(?:\\*+/|%2f)[0-9]{{15}}())"
        rf"|ey(?:(?:{_SECRET}){_GAP}()|(?:{_PRIVATE})(?:(?: |%20|\+)block)?-----()))",
        *(_COOKIE, *HOOKS, _AWS_SECRET_KEY, PRIVATE_KEYS),
    ),
    Place(b"d", "dapi[0-9a-f]{32}", _DATABRICKS),
    Place(b"@", rf":\\*+/\\*+/{USER}:{PASSWORD}@", URLS[0]),
    Place(b"%", rf"%3a%2f%2f{QUOTED}*+%3a{QUOTED}++%40", URLS[1]),
    Place(b"=", rf"=(?<=[{_BEFORE_KEY}_.-]key=|.(?:{_ENDS})=)(?={_VALUE})", ASSIGNED),
    Place(b"%", rf"%(?<=[{_BEFORE_KEY}_.-]key%|.(?:{_ENDS})%)3d(?={_VALUE})", ASSIGNED),
)

_WIDTH = 4
"""So much of a needle is compared up to its sign; of one that begins with its sign, all is."""


class Signed(_Sparing):
    """The tokens whose needles have the same sign."""

    def __init__(self, sign: str, needles: list[tuple[str, Format]]) -> None:
        super().__init__(needle.encode() for needle, _ in needles)
        self.sign = sign.encode()
        self._behind: dict[str, list[tuple[bytes, Format]]] = {}
        self._ahead: dict[str, list[tuple[bytes, Format]]] = {}
        for needle, token in needles:
            head, _, tail = needle.partition(sign)
            parts, part = (self._behind, (head + sign)[-_WIDTH:]) if head else (self._ahead, tail)
            parts.setdefault(part, []).append((needle.encode(), token))

    def shown(self, encoded: bytes) -> Set[Format]:
        """Those tokens that may be in JSON text."""
        if not self._has_a_needle(encoded):
            return _NONE
        # One hit at a time: hostile texts have millions, of a few kinds.
        hits = set(map(re.Match.groups, self._pattern.finditer(encoded)))
        found: set[Format] = set()
        for groups in hits:
            ahead, behind = ((group or b"").decode("latin-1") for group in groups)
            pairs = list(self._ahead.get(ahead, ()))
            # Before what is narrower than was compared, anything stands.
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


def _signed() -> tuple[Signed, ...]:
    by_sign: dict[str, list[tuple[str, Format]]] = {sign: [] for sign in SIGNS}
    for token in TOKENS:
        for needle in token.needles:
            written = needle.replace("\\", "\\\\")  # as JSON does
            if sign := next((sign for sign in SIGNS if sign in written), ""):
                by_sign[sign].append((written, token))
    return tuple(Signed(sign, needles) for sign, needles in by_sign.items())


SIGNED = _signed()


def shown(encoded: bytes) -> set[SecretPattern]:
    """The formats that a quick look at JSON text shows: all that would find anything in it, and few others."""
    found: set[SecretPattern] = set()
    for signed in SIGNED:
        if signed.sign in encoded:
            found |= signed.shown(encoded)
    lowered = encoded.lower()
    for place in PLACES:
        if place.sign in lowered:
            found |= place.shown(lowered)
    return found
