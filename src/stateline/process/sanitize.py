"""What a program wrote, cut down to what may be kept in a message: masked first, then cut, then made harmless.

Messages become part of a run's state. Secrets are masked before anything else is done to a text: half a secret, or one
that is written out as ``\\x0a``, is found by nobody later.
"""

from __future__ import annotations

from collections.abc import Callable

from stateline.bundle import canonical
from stateline.bundle.terminal import HARMFUL, HARMFUL_IN_LINES
from stateline.errors import InvalidValueError
from stateline.process.pipes import KEPT, TAIL

Mask = Callable[[str], str]
"""Takes the secrets out of a text; must not make any part of it more than twice as long."""

_EXCERPT = 80  # characters of bad output that are shown
# Text of which only a part is at hand may begin or end inside a secret, and that piece of it cannot be found. So this
# much [bytes] next to such a cut is never shown: the longest secret, in any of its spellings, that is masked for sure.
_LONGEST_SECRET = 16 * 1024


def shown(text: str, *, lines: bool = False) -> str:
    r"""``text`` with all that could act on a terminal or forge a line written out (``\x1b``): control characters, and
    those that turn or hide text. With ``lines``, line ends and tabs stay. The result is valid Unicode."""
    if lines:
        text = text.replace("\r\n", "\n")
    harmful = HARMFUL_IN_LINES if lines else HARMFUL
    table = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in harmful}
    return text.translate(table).encode("utf-8", "backslashreplace").decode("utf-8")


def last_words(kept: bytes, cut: bool, mask: Mask) -> str:
    """The end of a stream, at most ``TAIL`` [bytes] before what is harmful is written out. ``kept`` is the end of it
    that is at hand, ``cut`` whether anything came before. Bytes that are not text count as the three of the character
    that stands for them."""
    text = masked(kept.decode("utf-8", "replace"), mask)
    if cut:
        text = text[_unsafe(kept[:_LONGEST_SECRET]) :]
    data = text.encode("utf-8", "replace")
    if not cut and len(data) <= TAIL:
        return shown(text, lines=True).strip()
    whole = data[-TAIL:].lstrip(bytes(range(0x80, 0xC0)))  # the cut may have gone through a character
    return "..." + shown(whole.decode("utf-8"), lines=True).rstrip()


def excerpt(data: bytes, mask: Mask) -> str:
    """How ``data`` begins, in one line; "" when too little of it is sure to be free of secrets."""
    text = masked(data[:KEPT].decode("utf-8", "replace"), mask)
    if len(data) > KEPT:
        text = text[: max(0, len(text) - _unsafe(data[KEPT - _LONGEST_SECRET : KEPT]))]
    return shown(text[:_EXCERPT])


def refusal(refused: InvalidValueError, mask: Mask) -> str:
    """The message of ``refused``, in one line, with secrets masked in the keys it names, which it has escaped."""
    message = refused.message
    if refused.where:
        message = message.removesuffix(f" (at {refused.where})")
        message += f" (at {_place(refused.where, mask)})"
    return shown(masked(_repeated_key(message, mask), mask))


def masked(text: str, mask: Mask) -> str:
    """``text`` without its secrets, those with other line ends included."""
    text = mask(text)
    # A program may have changed the line ends of what it was given. Where that hides no secret they stay as they are.
    joined = text.replace("\r\n", "\n")
    without = mask(joined)
    return text if without == joined else without


def _unsafe(data: bytes) -> int:
    """How many characters of the masked text may come from ``data``: no mask is twice as long as what it hides. (To
    mask without ``data`` would not do: that cut could go through a secret as well.)"""
    return 2 * len(data.decode("utf-8", "replace"))


def _place(where: str, mask: Mask) -> str:
    """The JSON Pointer ``where`` with each key masked as it really is."""
    return "/".join(canonical.escape(masked(canonical.unescape(key), mask)) for key in where.split("/"))


def _repeated_key(message: str, mask: Mask) -> str:
    """``message`` with the key in it, which stands there as ``repr`` writes it, masked as it really is."""
    import ast
    import re

    found = re.search(r"holds the key (.*) twice in one object", message, re.DOTALL)
    if found is None:
        return message
    key = masked(str(ast.literal_eval(found[1])), mask)
    return message[: found.start(1)] + repr(key) + message[found.end(1) :]
