"""Private keys in PEM (RFC 7468, 1421, 4880) inside a text: whole, or cut off at either end.

A key is its first line, its lines of base64 and its last line. The lines may be separated by line ends, by ``\\n`` as
in JSON and env files, by spaces, or each in quotes. Without its last line, a key ends with the last line of base64;
without its first line, it is the base64 in front of its last line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from stateline.redaction.tokens import RegexPattern

_BEGIN = "-----BEGIN"
_END = "-----END"
_MARK = f"{_BEGIN}|{_END}"
# Base64, with the escapes of line ends, of "/" and of whole URLs in it.
_BASE64 = r"[A-Za-z0-9+/=%\\]"
_SEPARATOR = r"""[\s"'`,>|]"""
_LABEL = r"(?:[ %A-Z0-9+]{0,40})PRIVATE(?: |%20|\+)KEY(?:(?: |%20|\+)BLOCK)?-----"
# Not beyond the next header, so that there is one way to split them.
_HEADER_VALUE = r"(?:(?!(?:Proc-Type|DEK-Info|Version|Comment|Charset|Hash): )[^\n\\]){0,200}"
_WHOLE = (
    rf"{_BEGIN}{_LABEL}"
    rf"(?:{_SEPARATOR}*+(?>(?:\\+[nrt])*)\+?"
    rf"(?:Proc-Type|DEK-Info|Version|Comment|Charset|Hash): {_HEADER_VALUE}){{0,6}}"
    rf"{_SEPARATOR}*+{_BASE64}{{16,}}+(?>(?:{_SEPARATOR}++{_BASE64}{{16,}}+)*)"
    rf"(?:{_SEPARATOR}++{_BASE64}{{1,15}}+){{0,2}}"
    rf"(?:{_SEPARATOR}*+{_END}{_LABEL})?"
)
_LAST_LINE = rf"{_END}{_LABEL}"
# Read from its end. The last line of a key is short, and those before it are not.
_BACKWARDS = (
    rf"{_SEPARATOR}*(?:{_BASE64}{{1,15}}{_SEPARATOR}+)?{_BASE64}{{16,}}+(?>(?:{_SEPARATOR}++{_BASE64}{{40,}}+)*)"
)
_LONGEST = 16384


class PrivateKeys:
    """Like :class:`~stateline.redaction.tokens.RegexPattern`, for secrets without a bound and with two ends."""

    name = "private key"
    needles = ("PRIVATE",)

    def may_match(self, text: str) -> bool:
        """Return true if a string of a value may hold one; ``text`` is the JSON text of the value."""
        return _BEGIN in text or _END in text

    def spans(self, text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the private keys in ``text[first:last]``."""
        if text.find("PRIVATE", first, last) < 0:
            return
        mark, whole, last_line, front = self._patterns
        done = behind = first
        while marked := mark.search(text, done, last):
            at = marked.start()
            found = whole.match(text, at, last)
            if found:
                done = found.end()
                while text[done - 1] == "\\":
                    done -= 1  # it escapes the next character
                yield found.start(), done
            elif found := last_line.match(text, at, last):
                before = front.match(text[max(behind, at - _LONGEST) : at][::-1])
                done = found.end()
                if before:
                    yield at - before.end(), done
            else:
                done = marked.end()
                continue
            behind = done

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(source) for source in (_MARK, _WHOLE, _LAST_LINE, _BACKWARDS))


PRIVATE_KEYS = PrivateKeys()
SecretPattern = RegexPattern | PrivateKeys
