"""Find the stages and the state that CEL expressions read. Pure."""

from __future__ import annotations

import re

import msgspec

from stateline.machine.expressions.cel import compiled
from stateline.machine.expressions.cel_errors import ExpressionError

_KEY = r"""'[^'\\]*'|"[^"\\]*\""""
_STRING = r"""'''.*?'''|"{3}.*?"{3}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
# A name that is called is a function, not a key.
_PATH = rf"(?<![\w.])(?:state|outputs|visits)\b(?:\s*\.\s*\w+\b(?!\s*\()|\s*\[\s*(?:{_KEY})\s*\])*"
_token = re.compile(
    rf"(?P<key>{_KEY})\s+in\s+(?P<within>{_PATH})|(?P<has>\bhas\s*\(\s*)?(?P<path>{_PATH})|{_STRING}|//[^\n]*",
    re.DOTALL,
)
_step = re.compile(rf"\w+|{_KEY}")


class Reference(msgspec.Struct, frozen=True):
    """Keys that an expression reads, from ``state``, ``outputs`` or ``visits`` on: ``("state", "todos")`` for
    ``state.todos`` and ``state['todos']``. Ends before the first key that is computed. ``tested``: the expression only
    asks whether the last key exists, with ``has()`` or ``in``."""

    path: tuple[str, ...]
    tested: bool = False


def references(expression: str) -> list[Reference]:
    """Return what an expression reads; nothing if it does not compile. Variables of macros must have other names."""
    try:
        compiled(expression)
    except ExpressionError:
        return []
    found = []
    for match in _token.finditer(expression):
        if text := match["path"] or match["within"]:
            steps = [*_step.findall(text), *([match["key"]] if match["key"] else [])]
            found.append(Reference(tuple(step.strip("'\"") for step in steps), bool(match["key"] or match["has"])))
    return found
