"""What every reader of a format fills: the tree, the places, the mistakes. And the rules that all formats share."""

from __future__ import annotations

import math
import re

from stateline.machine.problems import Findings, Path, Position, quoted
from stateline.machine.spec import Json

DEPTH = 128
"""How deep lists and objects may nest, as in every value that format 1 holds."""
_MOST_PLACES = 100_000
"""Places take more memory than values do; no machine that people write has as many."""
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""Integers that format 1 holds."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<float>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?")
_WORDS: dict[str, Json] = {"null": None, "true": True, "false": False}


class UnreadableError(Exception):
    """The text cannot be read any further. The mistake has been noted."""


class Document:
    """A file being read. ``value`` is the tree so far; ``whole`` is False when reading stopped before the end."""

    def __init__(self) -> None:
        self.text = ""
        self.value: Json = None
        self.complete = False
        self.findings = Findings()

    def fatal(self, code: str, message: str, place: Position, hint: str = "", path: Path = ()) -> UnreadableError:
        """Note a mistake after which nothing can be read; raise what this gives."""
        self.findings.error(path, code, message, hint, at=place)
        return UnreadableError()

    def check_depth(self, path: Path, place: Position) -> None:
        """A list or an object begins at ``path``. Raises :class:`UnreadableError` when that is too deep."""
        if len(path) >= DEPTH:
            raise self.fatal("too_deep", f"nested deeper than {DEPTH} levels", place, "flatten the file")

    def add_key(self, seen: dict[str, Json], path: Path, place: Position) -> None:
        """The key at the end of ``path`` begins at ``place``; ``seen`` are the keys before it in the same object."""
        if path[-1] in seen:
            first = self.findings.positions.get(path)
            line = f" on line {first[0]}" if first else ""
            message = f"the key {quoted(str(path[-1]))} is already there{line}"
            self.findings.error(path, "duplicate_key", message, "keep one of the two", at=place)
        else:
            self.set_position(path, place)

    def set_position(self, path: Path, place: Position) -> None:
        """``path`` begins at ``place``, unless a place is known; a part without one has its parent's."""
        if not self.positions_full:
            self.findings.positions.setdefault(path, place)

    @property
    def positions_full(self) -> bool:
        """Whether no more places are remembered."""
        return len(self.findings.positions) >= _MOST_PLACES

    def checked_text(self, text: str, path: Path, place: Position) -> str:
        """``text``, or the same without its lone surrogates, which are noted."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            self.findings.error(
                path, "encoding", "a lone surrogate is not a character", "write the character", at=place
            )
            return text.encode("utf-8", "replace").decode()
        return text

    def scalar(self, text: str, path: Path, place: Position) -> Json:
        """What an unquoted scalar means. Only JSON's own words and numbers have a type; anything else is text."""
        if text in _WORDS:
            return _WORDS[text]
        number = _NUMBER.fullmatch(text)
        if number is None:
            return self.checked_text(text, path, place)
        if number["float"] or number["power"]:
            value = float(text)
            if math.isfinite(value):
                return value
        # More digits than any number in range has; converting very long ones costs quadratic time.
        elif len(text) <= 20 and INT_MIN <= int(text) <= INT_MAX:
            return int(text)
        self.findings.error(
            path, "number_range", f"the number {quoted(text)} is out of range", "write it as text, in quotes", at=place
        )
        return 0
