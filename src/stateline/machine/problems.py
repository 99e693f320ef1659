"""Mistakes in a machine file, with their places. What the readers of formats and the check share. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning"]
Path = tuple[str | int, ...]
"""The way from a file's root to a value: keys and indices."""
Position = tuple[int, int]
"""Line and column, both counted from 1; a column counts characters."""

_MOST = 500
"""A file of 16 MiB can hold millions of mistakes; nobody reads more than the first screens."""
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_LONGEST_KEY = 80


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``machine check``. ``where`` is ``"line:column path.like.this"`` (without a path: the whole file);
    ``code`` is stable; ``hint`` says what to do next and may be empty."""

    severity: Severity
    code: str
    where: str
    message: str
    hint: str = ""


class Findings:
    """Collects problems and gives them in file order. ``places`` maps a path to where its key (in an object) or its
    item (in a list) begins; a path that is not there takes the place of what encloses it. ``meant`` says what a name
    that stands alone in an expression may stand for: ``todos`` for ``state.todos``."""

    def __init__(self, places: dict[Path, Position] | None = None) -> None:
        self.positions: dict[Path, Position] = {} if places is None else places
        self.name_hints: dict[str, str] = {}
        self._found: list[tuple[Position, Problem]] = []
        self._count = 0
        self._unreadable: set[Path] = set()
        self.failed = False

    @property
    def full(self) -> bool:
        """Whether further problems are only counted, so that work on their wording would be lost."""
        return len(self._found) >= _MOST

    def error(self, path: Path, code: str, message: str, hint: str = "", at: Position | None = None) -> None:
        """Note a mistake at ``path``; ``at`` is a better place than the one ``places`` has."""
        if path in self._unreadable:
            return
        self.failed = True
        self._note("error", path, code, message, hint, at)

    def error_unreadable(self, path: Path, code: str, message: str, hint: str, at: Position) -> None:
        """Note a value that cannot be read; what is missed in its place is no mistake of its own."""
        self.error(path, code, message, hint, at)
        self._unreadable.add(path)

    def warning(self, path: Path, code: str, message: str, hint: str = "") -> None:
        """Note something legal that is probably not meant."""
        self._note("warning", path, code, message, hint, None)

    def problems(self) -> tuple[Problem, ...]:
        """All that was noted, in file order; at most 500 and then one more that says how many are left out."""
        ordered = [problem for _, problem in sorted(self._found, key=lambda found: found[0])]
        if self._count > len(ordered):
            rest = f"{self._count - len(ordered)} more problems are not listed"
            severity: Severity = "error" if self.failed else "warning"
            ordered.append(Problem(severity=severity, code="too_many_problems", where="1:1", message=rest))
        return tuple(ordered)

    def position(self, path: Path) -> Position:
        """Where ``path`` begins, or what encloses it as far as that is known."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, (1, 1))

    def _note(self, severity: Severity, path: Path, code: str, message: str, hint: str, at: Position | None) -> None:
        self._count += 1
        if len(self._found) >= _MOST:
            return
        place = at or self.position(path)
        where = f"{place[0]}:{place[1]} {path_text(path)}".rstrip()
        problem = Problem(severity=severity, code=code, where=where, message=printable(message), hint=printable(hint))
        self._found.append((place, problem))


def path_text(path: Path) -> str:
    """``("stages", "a", "routes", 0)`` as ``stages.a.routes[0]``; keys that are not plain words are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part and len(part) <= _LONGEST_KEY and _PLAIN.issuperset(part):
            text += f".{part}" if text else part
        else:
            text += f"[{quoted(part)}]"
    return text


def quoted(text: str) -> str:
    """``text`` in quotes for a message: one line, nothing a terminal would obey, cut when very long."""
    cut = text if len(text) <= _LONGEST_KEY else text[:_LONGEST_KEY] + "…"
    return printable(repr(cut))


def printable(text: str) -> str:
    """``text`` with every character that does not print escaped: a file's content must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def did_you_mean(word: str, known: list[str]) -> str:
    """``did you mean 'x'?`` for the most similar of ``known``, or an empty string."""
    # Similarity is quadratic in the length, and a hostile file chooses both the word and the number of candidates.
    if len(word) > _LONGEST_KEY:
        return ""
    import difflib

    close = difflib.get_close_matches(word, known[:200], n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""
