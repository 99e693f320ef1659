"""A text that is shown while it comes, with its secrets masked although they come in pieces."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

# White space, and what ends a sentence in scripts that write none.
_BREAK = re.compile(r".*[\s\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]", re.DOTALL)
_REMEMBERED = 32 * 1024
"""So much of what was shown is looked at again [characters]: a key's name stands before it, and a private key has many
lines. Over that, half of it is forgotten."""


class Masked:
    """Shows a text as far as it is decided: up to the last white space, and the rest when it has ended.

    What is shown is what masking the whole text would give, for secrets without white space. Of others the first words
    may have been shown when they are recognized, and no more of them follows.
    """

    def __init__(self, show: Callable[[str], None], mask: Callable[[str], str] | None = None) -> None:
        """``mask`` (default: by the environment's secrets) gives a text with its secrets masked."""
        self._show = show
        self._mask = mask
        self._held: list[str] = []
        self._text = self._shown = ""

    def hear(self, piece: str) -> None:
        """The next piece of the text."""
        found = _BREAK.match(piece)
        if found is None:
            self._held.append(piece)
            return
        decided = "".join([*self._held, piece[: found.end()]])
        self._held = [piece[found.end() :]]
        self._tell(decided)

    def end(self) -> None:
        """The text has ended: show the rest of it. What is heard next is another text."""
        rest = "".join(self._held)
        self._held = []
        if rest:
            self._tell(rest)
        self._text = self._shown = ""

    def _tell(self, decided: str) -> None:
        self._text += decided
        masked = self._masked(self._text)
        # More than what is new differs only where a secret reaches back over white space.
        new = masked[_alike(self._shown, masked) :]
        self._shown = masked
        if new:
            self._show(new)
        if len(self._text) > _REMEMBERED:
            self._text = self._text[-_REMEMBERED // 2 :]
            self._shown = self._masked(self._text)

    def _masked(self, text: str) -> str:
        if self._mask is None:
            from stateline.redaction.redactor import Redactor

            redactor = Redactor.from_environment(os.environ)
            self._mask = lambda plain: str(redactor.redact(plain)[0])
        return self._mask(text)


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    if other.startswith(one):
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
