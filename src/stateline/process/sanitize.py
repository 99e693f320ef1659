"""Output of programs as text for messages: masked first, then cut, then made safe for terminals.

Messages become part of a run's state. Secrets are masked before anything else happens to a text: half a secret, or one
that is escaped as ``\\x0a``, would not be found later.
"""

from __future__ import annotations

from collections.abc import Callable

from stateline.bundle import canonical
from stateline.bundle.terminal import HARMFUL, HARMFUL_IN_LINES
from stateline.errors import InvalidValueError
from stateline.process.pipes import TAIL_KEPT

Mask = Callable[[str], str]
"""Masks the secrets in a text; must not make any part of it more than twice as long."""

_EXCERPT = 80  # characters of bad output that are shown
LONGEST_SECRET = 16 * 1024
"""Size of the text next to a cut that is never shown [bytes]. Text that was cut may begin or end inside a secret, and
such a piece cannot be found. This is the longest secret, in any of its spellings, that is masked for certain."""


def sanitize(text: str, *, lines: bool = False) -> str:
    r"""Escape (``\x1b``) all characters that could act on a terminal or forge a line: control characters, and those
    that turn or hide text. With ``lines``, line ends and tabs stay. The result is valid Unicode."""
    if lines:
        text = text.replace("\r\n", "\n")
    harmful = HARMFUL_IN_LINES if lines else HARMFUL
    table = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in harmful}
    return text.translate(table).encode("utf-8", "backslashreplace").decode("utf-8")


def excerpt(data: bytes, mask: Mask) -> str:
    """Return the beginning of ``data`` in one line; "" when too little of it is certain to be free of secrets."""
    text = mask_text(data[:TAIL_KEPT].decode("utf-8", "replace"), mask)
    if len(data) > TAIL_KEPT:
        text = text[: max(0, len(text) - masked_length(data[TAIL_KEPT - LONGEST_SECRET : TAIL_KEPT]))]
    return sanitize(text[:_EXCERPT])


def invalid_value_message(error: InvalidValueError, mask: Mask) -> str:
    """Return the message of ``error`` in one line. Secrets in the keys that it names, which it has escaped, are
    masked."""
    message = error.message
    if error.where:
        message = message.removesuffix(f" (at {error.where})")
        message += f" (at {_masked_pointer(error.where, mask)})"
    return sanitize(mask_text(_mask_repeated_key(message, mask), mask))


def mask_text(text: str, mask: Mask) -> str:
    """Mask the secrets in ``text``, including those with other line ends."""
    text = mask(text)
    # A program may have changed the line ends of its input. Where no secret contains any they stay as they are.
    joined = text.replace("\r\n", "\n")
    masked = mask(joined)
    return text if masked == joined else masked


def masked_length(data: bytes) -> int:
    """Return an upper bound for the length [characters] of ``data`` after masking. (Masking the text without ``data``
    would not do: that cut could go through a secret too.)"""
    return 2 * len(data.decode("utf-8", "replace"))


def _masked_pointer(where: str, mask: Mask) -> str:
    """Mask each key of the JSON Pointer ``where``, unescaped."""
    return "/".join(canonical.escape(mask_text(canonical.unescape(key), mask)) for key in where.split("/"))


def _mask_repeated_key(message: str, mask: Mask) -> str:
    """Mask the key in a message about a repeated key, which holds the key's ``repr``."""
    import ast
    import re

    found = re.search(r"holds the key (.*) twice in one object", message, re.DOTALL)
    if found is None:
        return message
    key = mask_text(str(ast.literal_eval(found[1])), mask)
    return message[: found.start(1)] + repr(key) + message[found.end(1) :]
