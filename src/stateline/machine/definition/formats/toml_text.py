"""TOML with the place of everything in it. ``tomllib`` gives the values; a scan of the same text finds the places.

No library for Python keeps the places of keys. The scan knows only where words begin and end and what encloses them;
what the text means, and whether it is TOML at all, is the library's to say.
"""

from __future__ import annotations

import re
import tomllib

from stateline.machine.definition.formats.document import Document, UnreadableError
from stateline.machine.definition.formats.trees import read_tree
from stateline.machine.problems import Path, Position

# Possessive, and the closing quotes may be missing: the scan takes linear time for text that is not TOML, too. Around a
# lookahead an atomic group stands for a possessive repeat: up to Python 3.11.2 that one goes on from a wrong place.
_TOKEN = re.compile(
    r'(?P<text>"""(?>(?:[^"\\]++|\\.|"(?!""))*)(?:"{3,5}|\\?\Z)|\'\'\'(?>(?:[^\']++|\'(?!\'\'))*)(?:\'{3,5}|\Z)'
    r'|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?)'
    r"|(?P<mark>[\[\]{},.=\n])|(?P<word>[^\s\[\]{},.=\"'#]++)|(?P<end>\Z)|(?P<junk>.)",
    re.DOTALL,
)
_SPACE = re.compile(r"(?:[ \t\r]|#[^\n]*+)*+")
_WHERE = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)")
_REPEATED = ("Cannot overwrite", "Duplicate inline table key", "Cannot declare", "Cannot mutate")
_LONG_NUMBER = re.compile(r"[0-9](?:_?[0-9]){4299}")


def read_toml(document: Document) -> None:
    """Fill ``document`` from its text."""
    document.text = document.text.replace("\r\n", "\n")
    places = _Places(document)
    try:
        # First, because it bounds the depth: the library would take quadratic time, or the whole stack.
        places.find()
        tree = tomllib.loads(document.text)
    except tomllib.TOMLDecodeError as error:
        _note(document, places, str(error))
    except ValueError:  # an integer of thousands of digits, which Python does not even convert
        found = _LONG_NUMBER.search(document.text)
        place = _place_of(document.text, found.start() if found else 0)
        document.findings.error((), "number_range", "a number is out of range", "write it as text, in quotes", at=place)
    except UnreadableError:
        pass
    else:
        read_tree(document, tree)


def _note(document: Document, places: _Places, words: str) -> None:
    where = _WHERE.search(words)
    message = words[: where.start()] if where else words
    if message.startswith(_REPEATED) and places.repeated:
        # The library tells where the second value ends; what its key is called and where it stands is known here.
        path, place = places.repeated
        document.add_key({str(path[-1]): None}, path, place)
        return
    if where and where[1]:
        place = (int(where[1]), int(where[2]))
    else:
        place = _place_of(document.text, len(document.text.rstrip("\n")))
    hint = "text needs quotes; what is in braces stands on one line; each table is written once"
    document.findings.error((), "syntax", f"not TOML: {message}", hint, at=place)


def _place_of(text: str, at: int) -> Position:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


class _Places:
    """Walks over the text and remembers where each key and each item of an array begins. Text that is not TOML gives
    some places, never an error. ``repeated`` is the first key that stands twice, where it stands again."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._at = 0
        self._line, self._line_start = 1, 0
        self._tables: dict[Path, int] = {}  # how many tables an array of tables has so far
        self._made: set[Path] = set()
        self.repeated: tuple[Path, Position] | None = None
        self._token = ""
        self._kind = "mark"
        self._place: Position = (1, 1)

    def find(self) -> None:
        """Remember all places. Raises ``UnreadableError`` for what is nested too deep."""
        self._document.set_position((), (1, 1))
        base: Path = ()
        self._advance()
        while self._kind != "end":
            if self._token == "[":
                base = self._header()
            elif self._token != "\n":
                self._member(base)
            self._advance()

    def _advance(self) -> None:
        text = self._document.text
        start = self._skip()
        found = _TOKEN.match(text, start)
        if found is None:
            raise AssertionError(start)
        # Line ends stand in tokens (of their own, or in long texts), never in the space between them.
        self._line += text.count("\n", self._at, start)
        self._place = (self._line, start - self._line_start + 1)
        self._line += text.count("\n", start, found.end())
        last = text.rfind("\n", start, found.end())
        if last >= 0:
            self._line_start = last + 1
        self._token, self._kind, self._at = found[0], found.lastgroup or "end", found.end()

    def _skip(self) -> int:
        space = _SPACE.match(self._document.text, self._at)
        return space.end() if space else self._at

    def _header(self) -> Path:
        """``[a.b]`` or ``[[a.b]]``: the path of the table whose members follow."""
        begin = self._place
        self._advance()
        many = self._token == "["
        if many:
            self._advance()
        last = self._place
        path = self._key(())
        while self._token == ".":
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
            self._advance()
            last = self._place
            path = self._key(path)
        if many:
            self._advance()  # the second bracket
            self._document.check_depth(path, begin)
            index = self._tables.get(path, 0)
            self._tables[path] = index + 1
            path = (*path, index)
            self._document.set_position(path, begin)
        else:
            self._make(path, last)
        self._document.check_depth(path, begin)
        return path

    def _key(self, path: Path) -> Path:
        """One part of a key below ``path``; what follows it is the token then."""
        self._document.check_depth(path, self._place)
        name = self._token
        if self._kind == "text":
            try:
                name = next(iter(tomllib.loads(f"{name}=0")))
            except tomllib.TOMLDecodeError:
                pass  # the library will say so
        path = (*path, name)
        self._document.set_position(path, self._place)
        self._advance()
        return path

    def _member(self, path: Path) -> None:
        """``a.b = value``; the token after the value is left to be read."""
        last = self._place
        path = self._key(path)
        while self._token == ".":
            self._advance()
            last = self._place
            path = self._key(path)
        self._make(path, last)
        self._advance()  # the equals sign
        self._value(path)

    def _make(self, path: Path, place: Position) -> None:
        if path in self._made and self.repeated is None:
            self.repeated = path, place
        self._made.add(path)

    def _value(self, path: Path) -> None:
        """One value; the token is its last one then."""
        if self._token == "[":
            self._items(path)
        elif self._token == "{":
            self._members(path)
        elif self._kind == "word":
            self._rest_of_scalar()

    def _rest_of_scalar(self) -> None:
        """A number or a date may hold dots and one space, so it may be of several tokens."""
        text = self._document.text
        while (at := self._skip()) < len(text) and text[at] not in ",]}\n":
            self._advance()

    def _items(self, path: Path) -> None:
        self._document.check_depth(path, self._place)
        index = 0
        while True:
            self._advance()
            if self._token in ("]", ""):
                return
            if self._token not in (",", "\n"):
                self._document.set_position((*path, index), self._place)
                self._value((*path, index))
                index += 1

    def _members(self, path: Path) -> None:
        self._document.check_depth(path, self._place)
        while True:
            self._advance()
            if self._token in ("}", ""):
                return
            if self._token not in (",", "\n"):
                self._member(path)
