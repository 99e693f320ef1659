"""Mask secrets in a text that arrives in pieces."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

# White space, and the ends of sentences in scripts that write none.
_BREAK = re.compile(r".*[\s\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]", re.DOTALL)
_CONTEXT = 32 * 1024
"""Text that is masked again with each piece [characters]: a key's name comes before its value, and a private key has
many lines. Above this, half of it is dropped."""


class MaskedStream:
    """Shows a text up to the last white space, and the rest at its end.

    The shown text equals the mask of the whole text, for secrets without white space. Of other secrets, the first words
    may be shown before the secret is recognized; nothing of them is shown after that.
    """

    def __init__(self, show: Callable[[str], None], mask: Callable[[str], str] | None = None) -> None:
        """``mask`` (default: by the environment's secrets) returns a text with its secrets masked."""
        self._show = show
        self._mask = mask
        self._held: list[str] = []
        self._text = self._shown = ""

    def write(self, piece: str) -> None:
        """Add a piece of the text."""
        found = _BREAK.match(piece)
        if found is None:
            self._held.append(piece)
            return
        decided = "".join([*self._held, piece[: found.end()]])
        self._held = [piece[found.end() :]]
        self._add(decided)

    def end(self) -> None:
        """Show the rest of the text. The next piece begins another text."""
        rest = "".join(self._held)
        self._held = []
        if rest:
            self._add(rest)
        self._text = self._shown = ""

    def _add(self, decided: str) -> None:
        self._text += decided
        masked = self._masked(self._text)
        # If more differs than the new part, a secret reaches back over white space.
        same = os.path.commonprefix([self._shown, masked])  # noqa: RUF071 (by characters, as texts are compared)
        new = masked[len(same) :]
        self._shown = masked
        if new:
            self._show(new)
        if len(self._text) > _CONTEXT:
            self._text = self._text[-_CONTEXT // 2 :]
            self._shown = self._masked(self._text)

    def _masked(self, text: str) -> str:
        if self._mask is None:
            from stateline.redaction.redactor import Redactor

            redactor = Redactor.from_environment(os.environ)
            self._mask = lambda plain: str(redactor.redact(plain)[0])
        return self._mask(text)
