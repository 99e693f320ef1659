"""Words and signs of other languages in an expression that CEL does not read, and what CEL writes instead. Pure.

The library reports where its grammar breaks, which is mostly behind the mistake. So this looks at expressions that do
not compile, and only at those: what is said here may not be wrong about one that is right.
"""

from __future__ import annotations

import re

import msgspec

from stateline.machine.problems import did_you_mean

_WORDS = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "is": "==",
    "None": "null",
    "nil": "null",
    "undefined": "null",
    "NULL": "null",
    "True": "true",
    "False": "false",
    "TRUE": "true",
    "FALSE": "false",
}
_SIGNS = {
    "===": "==",
    "!==": "!=",
    "<>": "!=",
    "=": "==",
    "&": "&&",
    "|": "||",
    "=~": "x.matches(y)",
    "~=": "x.matches(y)",
    **dict.fromkeys(("+=", "-=", "*=", "/=", "++"), "the new value alone, as state.count + 1,"),
}
_TOKEN = re.compile(r"(?<![\w.])[A-Za-z_]\w*|===|!==|<>|=~|~=|==|!=|<=|>=|\+=|-=|\*=|/=|\+\+|&&|\|\||[=&|]", re.ASCII)

FUNCTIONS = (
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
)
"""Those of CEL's standard library that people ask for by another name."""
_SAID_INSTEAD = {
    "any": "exists(x, ...), as in state.todos.exists(x, x.done)",
    "count": "size(...)",
    "defined": "has(...)",
    "empty": "size(...) == 0",
    "endswith": "endsWith(...)",
    "float": "double(...)",
    "includes": "'x' in ..., or contains(...)",
    "isset": "has(...)",
    "len": "size(...)",
    "length": "size(...)",
    "match": "matches(...)",
    "startswith": "startsWith(...)",
    "str": "string(...)",
}


class Slip(msgspec.Struct, frozen=True):
    """What of an expression is not CEL: the ``words`` themselves, what is said of them, and what to write instead."""

    words: frozenset[str]
    message: str
    hint: str


def slip(expression: str, bare: str) -> Slip | None:
    """What is not CEL in an expression that does not compile; None where it is nothing that is known here. ``bare`` is
    the expression with its strings blanked out: nothing in them counts."""
    open_quote = re.search("['\"]", bare)
    if open_quote is not None:
        message = f"a string is not closed ({place(expression, open_quote.start())})"
        return Slip(frozenset(), message, "end it with the quote with which it begins")
    found: dict[str, tuple[int, str]] = {}
    for token in _TOKEN.finditer(bare):
        words, said = _instead(token[0], bare, token.start())
        if said:
            found.setdefault(words, (token.start(), said))
    if not found:
        return None
    written = ", ".join(f"{said} for `{words}`" for words, (_, said) in found.items())
    named = "; ".join(f"`{words}` is not CEL ({place(expression, at)})" for words, (at, _) in found.items())
    return Slip(frozenset(found), named, f"write {written}")


def _instead(word: str, bare: str, at: int) -> tuple[str, str]:
    """What CEL writes for the word or words that begin at that place; "" for what it reads, or what was told before."""
    before, after = bare[:at], bare[at + len(word) :]
    if word == "if":
        return "if", "condition ? a : b"
    if word == "not" and re.match(r"\s+in\b", after):
        return "not in", "!(x in y)"
    if word == "is" and re.match(r"\s+not\b", after):
        return "is not", "!="
    if word == "not" and re.search(r"\bis\s+$", before):
        return "is not", ""
    return word, _WORDS.get(word) or _SIGNS.get(word, "")


def place(expression: str, at: int) -> str:
    """Where the character at that index stands."""
    column = at - expression.rfind("\n", 0, at)
    line = expression.count("\n", 0, at) + 1
    return f"column {column}" if "\n" not in expression else f"line {line}, column {column}"


def function_hint(name: str) -> str:
    """What to call instead of a function that is not there."""
    if name.lower() in _SAID_INSTEAD:
        return f"write {_SAID_INSTEAD[name.lower()]}"
    return did_you_mean(name, list(FUNCTIONS)) or "see the functions of CEL's standard library"
