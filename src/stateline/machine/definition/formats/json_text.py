"""JSON machine files, with positions. The standard library's reader gives no positions and accepts more."""

from __future__ import annotations

import re

from stateline.machine.definition.formats.document import Document, UnreadableError
from stateline.machine.problems import Path, Position, quoted
from stateline.machine.spec import Json

# Possessive, so that nothing is matched again in a shorter form: that would take quadratic time.
_TOKEN = re.compile(
    r"[ \t\n\r]*+(?:(?P<sign>[{}\[\],:])|"
    r'(?P<string>"(?>(?:[^"\\]|\\.)*)"?)|(?P<word>[^ \t\n\r{}\[\],:"]++)|(?P<end>\Z))',
    re.DOTALL,
)
_SCALAR = re.compile(r"null|true|false|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def read_json(document: Document) -> None:
    """Fill ``document`` from its text."""
    parser = _Parser(document)
    try:
        document.value = parser.value(())
        parser.advance()
        if parser.token:
            raise parser.unexpected("the end of the file")
        document.complete = True
    except UnreadableError:
        pass


class _Parser:
    """Recursive-descent parser. ``token`` is the current token (empty at the end), ``position`` its beginning."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._at = 0
        self._line = 1
        self._line_start = 0
        self.token = ""
        self.position: Position = (1, 1)

    def advance(self) -> None:
        """Read the next token."""
        text = self._document.text
        match = _TOKEN.match(text, self._at)
        if match is None:  # every character begins some token
            raise AssertionError(self._at)
        group = match.lastgroup or "end"
        start = match.start(group)
        # Tokens hold no legal line breaks, so only the white space between them is counted.
        self._line += text.count("\n", self._at, start)
        newline = text.rfind("\n", self._at, start)
        if newline >= 0:
            self._line_start = newline + 1
        self.position = (self._line, start - self._line_start + 1)
        self.token = match[group]
        self._at = match.end()

    def value(self, path: Path) -> Json:
        """Read one value."""
        self.advance()
        return self._value_here(path)

    def unexpected(self, wanted: str) -> UnreadableError:
        """Report that another token was ``wanted`` here. Return the exception for the caller to raise."""
        found = quoted(self.token) if self.token else "the end of the file"
        hint = "JSON has no comments, no trailing commas, no single quotes and no NaN"
        return self._document.fatal("syntax", f"not JSON: {wanted} is expected, not {found}", self.position, hint)

    def _value_here(self, path: Path) -> Json:
        self._document.set_position(path, self.position)
        if self.token == "{":
            return self._object(path)
        if self.token == "[":
            return self._list(path)
        if self.token.startswith('"'):
            return self._string(path)
        if _SCALAR.fullmatch(self.token):
            return self._document.scalar(self.token, path, self.position)
        raise self.unexpected("a value")

    def _object(self, path: Path) -> dict[str, Json]:
        self._document.check_depth(path, self.position)
        members: dict[str, Json] = {}
        self.advance()
        if self.token == "}":
            return members
        while True:
            if not self.token.startswith('"'):
                raise self.unexpected("a key in double quotes")
            name = self._string(path)
            self._document.add_key(members, (*path, name), self.position)
            self.advance()
            if self.token != ":":
                raise self.unexpected("a colon")
            members[name] = self.value((*path, name))
            self.advance()
            if self.token == "}":
                return members
            if self.token != ",":
                raise self.unexpected("a comma or }")
            self.advance()

    def _list(self, path: Path) -> list[Json]:
        self._document.check_depth(path, self.position)
        items: list[Json] = []
        self.advance()
        if self.token == "]":
            return items
        while True:
            items.append(self._value_here((*path, len(items))))
            self.advance()
            if self.token == "]":
                return items
            if self.token != ",":
                raise self.unexpected("a comma or ]")
            self.advance()

    def _string(self, path: Path) -> str:
        import json

        try:
            text: str = json.loads(self.token)
        except ValueError as error:
            reason = str(error).split(":")[0]
            raise self._document.fatal("syntax", f"not JSON: {reason}", self.position, path=path) from None
        return self._document.checked_text(text, path, self.position)
