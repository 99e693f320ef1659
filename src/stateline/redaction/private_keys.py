"""Private keys in PEM (RFC 7468, 1421, 4880) inside a text: whole, or cut off at either end.

A key is the line that begins it, its lines of base64 and the line that ends it, however the lines are apart: by line
ends, by ``\\n`` as JSON and env files write it, by spaces, or each in quotes. Without the line that ends it, it goes on
as long as there are lines of a key; without the one that begins it, it is what stands in front of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARK = "-----(?:BEGIN|END)"
_BEGIN = "-----BEGIN"
_END = "-----END"
# Base64, with the escapes of line ends, of "/" and of whole URLs in it.
_BASE64 = r"[A-Za-z0-9+/=%\\]"
_APART = r"""[\s"'`,>|]"""
_LABEL = r"(?:[ %A-Z0-9+]{0,40})PRIVATE(?: |%20|\+)KEY(?:(?: |%20|\+)BLOCK)?-----"
# Not beyond the next of them, so that there is one way to cut them.
_SAID = r"(?:(?!(?:Proc-Type|DEK-Info|Version|Comment|Charset|Hash): )[^\n\\]){0,200}"
_WHOLE = (
    rf"{_BEGIN}{_LABEL}"
    rf"(?:{_APART}*+(?:\\+[nrt])*+\+?(?:Proc-Type|DEK-Info|Version|Comment|Charset|Hash): {_SAID}){{0,6}}"
    rf"{_APART}*+{_BASE64}{{16,}}+(?:{_APART}++{_BASE64}{{16,}}+)*+(?:{_APART}++{_BASE64}{{1,15}}+){{0,2}}"
    rf"(?:{_APART}*+{_END}{_LABEL})?"
)
_LAST_LINE = rf"{_END}{_LABEL}"
# Read from its end. The last line of a key is short, and those before it are not.
_FRONT = rf"{_APART}*(?:{_BASE64}{{1,15}}{_APART}+)?{_BASE64}{{16,}}+(?:{_APART}++{_BASE64}{{40,}}+)*+"
_LONGEST = 16384


class PrivateKeys:
    """Like :class:`~stateline.redaction.tokens.Format`, for what has no bound and two ends."""

    name = "private key"
    needles: tuple[str, ...] = ("PRIVATE",)

    def __init__(self) -> None:
        self._patterns: tuple[re.Pattern[str], ...] = ()

    def matches(self, text: str) -> bool:
        """Whether there may be one in the strings of a value whose JSON text is ``text``."""
        return "-----BEGIN" in text or "-----END" in text

    def spans(self, text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Where private keys stand in ``text[first:last]``."""
        if text.find("PRIVATE", first, last) < 0:
            return
        mark, whole, last_line, front = self._compiled()
        done = behind = first
        while marked := mark.search(text, done, last):
            at = marked.start()
            found = whole.match(text, at, last)
            if found:
                done = found.end()
                while text[done - 1] == "\\":
                    done -= 1  # it escapes what follows
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

    def _compiled(self) -> tuple[re.Pattern[str], ...]:
        if not self._patterns:
            self._patterns = tuple(re.compile(source) for source in (_MARK, _WHOLE, _LAST_LINE, _FRONT))
        return self._patterns


PRIVATE_KEYS = PrivateKeys()
