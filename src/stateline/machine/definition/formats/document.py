"""A machine file being read: the tree so far, the positions in the file, the problems. And the rules of all formats."""

from __future__ import annotations

import math
import re

from stateline.bundle.canonical import DEPTH, INT_MAX, INT_MIN
from stateline.machine.problems import Findings, Path, Position, quoted
from stateline.machine.spec import Json

_MAX_POSITIONS = 100_000
"""Positions take more memory than values do; no machine written by hand has as many."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<float>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?")
_WORDS: dict[str, Json] = {"null": None, "true": True, "false": False}


class UnreadableError(Exception):
    """The rest of the text cannot be read. The problem is in the findings."""


class Document:
    """A file being read. ``value`` is the tree so far; ``complete`` is False when reading stopped before the end."""

    def __init__(self) -> None:
        self.text = ""
        self.value: Json = None
        self.complete = False
        self.findings = Findings()

    def fatal(self, code: str, message: str, position: Position, hint: str = "", path: Path = ()) -> UnreadableError:
        """Report a mistake after which nothing can be read. Return the exception for the caller to raise."""
        self.findings.error(path, code, message, hint, at=position)
        return UnreadableError()

    def too_deep(self, position: Position) -> UnreadableError:
        """Report nesting beyond the depth of values in format 1. Return the exception for the caller to raise."""
        return self.fatal("too_deep", f"nested deeper than {DEPTH} levels", position, "flatten the file")

    def check_depth(self, path: Path, position: Position) -> None:
        """Raise :class:`UnreadableError` for a list or an object at ``path`` that is nested too deep."""
        if len(path) >= DEPTH:
            raise self.too_deep(position)

    def add_key(self, seen: dict[str, Json], path: Path, position: Position) -> None:
        """Set the position of the key at the end of ``path``, or report it as a duplicate of one in ``seen``."""
        if path[-1] in seen:
            first = self.findings.positions.get(path)
            line = f" on line {first[0]}" if first else ""
            message = f"the key {quoted(str(path[-1]))} is already there{line}"
            self.findings.error(path, "duplicate_key", message, "keep one of the two", at=position)
        else:
            self.set_position(path, position)

    def set_position(self, path: Path, position: Position) -> None:
        """Record where ``path`` begins, unless that is known; a path without a position has its parent's."""
        if not self.positions_full:
            self.findings.positions.setdefault(path, position)

    @property
    def positions_full(self) -> bool:
        """True when no more positions are recorded."""
        return len(self.findings.positions) >= _MAX_POSITIONS

    def checked_text(self, text: str, path: Path, position: Position) -> str:
        """Return ``text``, with lone surrogates reported and replaced."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            message = "a lone surrogate is not a character"
            self.findings.error(path, "encoding", message, "write the character", at=position)
            return text.encode("utf-8", "replace").decode()
        return text

    def scalar(self, text: str, path: Path, position: Position) -> Json:
        """Return the value of an unquoted scalar: JSON's words and numbers have a type, anything else is text."""
        if text in _WORDS:
            return _WORDS[text]
        number = _NUMBER.fullmatch(text)
        if number is None:
            return self.checked_text(text, path, position)
        if number["float"] or number["power"]:
            value = float(text)
            if math.isfinite(value):
                return value
        # More digits than any number in range has; converting very long ones takes quadratic time.
        elif len(text) <= 20 and INT_MIN <= int(text) <= INT_MAX:
            return int(text)
        message = f"the number {quoted(text)} is out of range"
        self.findings.error(path, "number_range", message, "write it as text, in quotes", at=position)
        return 0


def position_of(text: str, index: int) -> Position:
    """Return the position of the character at ``index``."""
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)
