"""Hints for expressions that are valid in other languages but not in CEL. Pure.

The library reports where its grammar fails, which is mostly after the mistake. Only expressions that do not compile
are examined here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stateline.machine.problems import did_you_mean

_REPLACEMENTS = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "not in": "!(x in y)",
    "is": "==",
    "is not": "!=",
    "if": "condition ? a : b",
    "None": "null",
    "True": "true",
    "False": "false",
    "===": "==",
    "!==": "!=",
    "<>": "!=",
    "=": "==",
    "&": "&&",
    "|": "||",
}
_TOKEN = re.compile(r"(?<![\w.])(?:not\s+in|is\s+not|[A-Za-z_]\w*)\b|[=!]==|<>|[-+*/=!<>~]=|=~|&&|\|\||[=&|]", re.ASCII)
_FUNCTIONS = [
    "all",
    "bool",
    "bytes",
    "contains",
    "double",
    "duration",
    "endsWith",
    "exists",
    "exists_one",
    "filter",
    "has",
    "int",
    "map",
    "matches",
    "size",
    "startsWith",
    "string",
    "timestamp",
    "type",
    "uint",
]
"""Functions of CEL's standard library."""
_FUNCTION_ALIASES = {
    "any": "exists(x, ...), as in state.todos.exists(x, x.done)",
    "count": "size(...)",
    "defined": "has(...)",
    "endswith": "endsWith(...)",
    "float": "double(...)",
    "includes": "contains(...), or 'x' in ...",
    "len": "size(...)",
    "length": "size(...)",
    "startswith": "startsWith(...)",
    "str": "string(...)",
}


class ForeignSyntax(NamedTuple):
    """The ``tokens`` of an expression that are not CEL, with a message and a hint."""

    tokens: frozenset[str]
    message: str
    hint: str


def foreign_syntax(expression: str, bare: str) -> ForeignSyntax | None:
    """Return what is not CEL in an expression that does not compile; None if that is unknown. ``bare`` is the
    expression with its strings blanked out."""
    open_quote = re.search("['\"]", bare)
    if open_quote is not None:
        message = f"a string is not closed ({_where(expression, open_quote.start())})"
        return ForeignSyntax(frozenset(), message, "end it with the quote that begins it")
    found: dict[str, int] = {}
    for match in _TOKEN.finditer(bare):
        token = " ".join(match[0].split())
        if token in _REPLACEMENTS:
            found.setdefault(token, match.start())
    if not found:
        return None
    message = "; ".join(f"`{token}` is not CEL ({_where(expression, at)})" for token, at in found.items())
    return ForeignSyntax(
        frozenset(found), message, "write " + ", ".join(f"{_REPLACEMENTS[token]} for `{token}`" for token in found)
    )


def _where(expression: str, index: int) -> str:
    column = index - expression.rfind("\n", 0, index)
    line = expression.count("\n", 0, index) + 1
    return f"column {column}" if "\n" not in expression else f"line {line}, column {column}"


def function_hint(name: str) -> str:
    """Suggest a function of CEL for an unknown one."""
    if name.lower() in _FUNCTION_ALIASES:
        return f"write {_FUNCTION_ALIASES[name.lower()]}"
    return did_you_mean(name, _FUNCTIONS) or "see the functions of CEL's standard library"
