"""Problems in a machine file, with their positions: shared by the readers of formats and the check. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning"]
Path = tuple[str | int, ...]
"""Keys and indices from a file's root to a value."""
Position = tuple[int, int]
"""Line and column, both counted from 1; columns are characters."""

_MAX_PROBLEMS = 500
"""Most problems that are listed: a file of 16 MiB can hold millions."""
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_MAX_QUOTED = 80


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``machine check``. ``where`` is ``"line:column path.like.this"`` (without a path: the whole file);
    ``code`` is stable; ``hint`` says what to do next and may be empty."""

    severity: Severity
    code: str
    where: str
    message: str
    hint: str = ""


class Findings:
    """Collects problems and returns them in file order.

    ``positions`` maps a path to the beginning of its key (in an object) or item (in a list); a path without one has
    the position of its parent.
    """

    def __init__(self) -> None:
        self.positions: dict[Path, Position] = {}
        self._found: list[tuple[Position, Problem]] = []
        self._count = 0
        self._unreadable: set[Path] = set()
        self.failed = False

    @property
    def full(self) -> bool:
        """True when further problems are only counted, so that their messages need no work."""
        return len(self._found) >= _MAX_PROBLEMS

    def error(self, path: Path, code: str, message: str, hint: str = "", at: Position | None = None) -> None:
        """Report a mistake at ``path``; ``at`` overrides the position of ``path``."""
        if path in self._unreadable:
            return
        self.failed = True
        self._add("error", path, code, message, hint, at)

    def error_unreadable(self, path: Path, code: str, message: str, hint: str, at: Position) -> None:
        """Report a value that cannot be read; further mistakes at ``path`` follow from it and are dropped."""
        self.error(path, code, message, hint, at)
        self._unreadable.add(path)

    def warning(self, path: Path, code: str, message: str, hint: str = "") -> None:
        """Report something legal that is probably a mistake."""
        self._add("warning", path, code, message, hint, None)

    def problems(self) -> tuple[Problem, ...]:
        """Return all problems in file order: at most 500, and then one with the number of the others."""
        ordered = [problem for _, problem in sorted(self._found, key=lambda found: found[0])]
        if self._count > len(ordered):
            rest = f"{self._count - len(ordered)} more problems are not listed"
            severity: Severity = "error" if self.failed else "warning"
            ordered.append(Problem(severity=severity, code="too_many_problems", where="1:1", message=rest))
        return tuple(ordered)

    def position(self, path: Path) -> Position:
        """Return the position of ``path``, or of the nearest parent that has one."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, (1, 1))

    def _add(self, severity: Severity, path: Path, code: str, message: str, hint: str, at: Position | None) -> None:
        self._count += 1
        if self.full:
            return
        position = at or self.position(path)
        where = f"{position[0]}:{position[1]} {path_text(path)}".rstrip()
        problem = Problem(severity=severity, code=code, where=where, message=printable(message), hint=printable(hint))
        self._found.append((position, problem))


def path_text(path: Path) -> str:
    """Format ``("stages", "a", "routes", 0)`` as ``stages.a.routes[0]``; keys that are not plain words are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part and len(part) <= _MAX_QUOTED and _PLAIN.issuperset(part):
            text += f".{part}" if text else part
        else:
            text += f"[{quoted(part)}]"
    return text


def quoted(text: str) -> str:
    """Quote ``text`` for a message: on one line, without control sequences, cut when very long."""
    cut = text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…"
    return printable(repr(cut))


def printable(text: str) -> str:
    """Escape every character that does not print: a file's content must not control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def shell_hint(line: str) -> str:
    """Return the hint that a ``line`` with spaces runs only in a shell, with an argv that can be pasted."""
    import json

    words = ["sh", "-c", line if len(line) <= _MAX_QUOTED else "..."]
    return f"to run it in a shell, write {json.dumps(words, ensure_ascii=False)}"


def did_you_mean(word: str, known: list[str]) -> str:
    """Return ``did you mean 'x'?`` for the most similar of ``known``, or an empty string."""
    # Similarity takes quadratic time in the length, and a hostile file chooses the word and the candidates.
    if len(word) > _MAX_QUOTED:
        return ""
    import difflib

    close = difflib.get_close_matches(word, known[:200], n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""
