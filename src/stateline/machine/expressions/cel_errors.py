"""Turn the error reports of the CEL library, several lines with pictures, into one line and a hint. Pure."""

from __future__ import annotations

import re

from stateline.machine.problems import did_you_mean, printable, quoted

NAMES = ("input", "state", "outputs", "output", "context", "error", "visits")
"""The names that an expression may use."""
# Raw strings first: in them a backslash does not hide the closing quote. The prefix must not be the end of a word.
CEL_STRING = re.compile(
    r"(?:[rR][bB]?|[bB][rR])(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*+'|\"[^\"\n]*+\")"
    r"|[bB]?(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?>(?:\\.|[^'\\\n])*)'|\"(?>(?:\\.|[^\"\\\n])*)\")",
    re.DOTALL,
)

_MAX_MESSAGE = 500
"""Longest message [characters]: the library repeats the expression."""
_QUOTE_HINT = "text in an expression needs its own quotes: 'text'"
_HAS_HINT = "check first with has(x.y), or with 'y' in x for keys in brackets"
_COMPARE_HINT = "compare it, for example: output.verdict == 'yes'"
_COMPILE_ERROR = re.compile(r"^ERROR: <input>:(-?\d+):(-?\d+): (.*)$", re.MULTILINE)
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_COMPILE_OVERLOAD = re.compile(r"no matching overload for '([^']+)' applied to '([^']*)'")
_EVALUATION_OVERLOAD = re.compile(r"No matching overloads found : ([^\s(]+)(?:\((.*)\))?")
_STATUS = re.compile(r"^(?:[A-Z_]+: )|(?: \[[A-Z_]+\])$")
_MISSING = re.compile(r'Key not found in map : "(.*)"', re.DOTALL)
_TOKEN = re.compile(r"(?<![\w.])(?:not\s+in|is\s+not|[A-Za-z_]\w*)\b|[=!]==|<>|[-+*/=!<>~]=|=~|&&|\|\||[=&|]", re.ASCII)
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
"""Replacements of words and operators of other languages, for hints."""
_TYPES = {"int64": "int", "uint64": "uint", "null_type": "null", "dyn": "any"}


class ExpressionError(Exception):
    """An expression or template that cannot be read, or without a usable value. ``hint`` says what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def compile_error_of(expression: str, report: str) -> ExpressionError:
    """Return the error for an expression that does not compile. The library reports where its grammar fails, mostly
    after the mistake, so open strings and operators of other languages are reported first."""
    if "codepoint limit" in report:
        return ExpressionError("the expression is longer than 100000 characters", "compute it in a task instead")
    if "recursion" in report:
        return ExpressionError("the expression nests deeper than 32 levels", "split it into several `set` entries")
    bare = CEL_STRING.sub(lambda string: " " * len(string[0]), expression)
    if quote := re.search("['\"]", bare):
        where = _where(expression, quote.start())
        return ExpressionError(f"a string is not closed ({where})", "end it with the quote that begins it")
    foreign: dict[str, int] = {}
    for match in _TOKEN.finditer(bare):
        token = " ".join(match[0].split())
        if token in _REPLACEMENTS:
            foreign.setdefault(token, match.start())
    messages = [f"`{token}` is not CEL ({_where(expression, at)})" for token, at in foreign.items()]
    hints = ["write " + ", ".join(f"{_REPLACEMENTS[token]} for `{token}`" for token in foreign)] if foreign else []
    report = _STATUS.sub("", report)
    for line, column, words in _COMPILE_ERROR.findall(report)[:3]:
        unknown = _UNDECLARED.search(words)
        # A syntax error is reported after the foreign operator that caused it, so it adds nothing.
        if not foreign or (unknown and unknown[1].split(".")[0] not in foreign):
            message, hint, at = _compile_message(expression, words, (int(line), int(column)))
            hints.append(hint)
            where = f"column {at}" if "\n" not in expression else f"line {line}, column {at}"
            messages.append(f"{message} ({where})")
    if not messages:
        messages.append(report.splitlines()[0] if report else "it cannot be read")
    return ExpressionError(printable("; ".join(messages)[:_MAX_MESSAGE]), next(filter(None, hints), ""))


def _where(expression: str, index: int) -> str:
    column = index - expression.rfind("\n", 0, index)
    return (
        f"column {column}"
        if "\n" not in expression
        else f"line {expression.count(chr(10), 0, index) + 1}, column {column}"
    )


def _compile_message(expression: str, words: str, position: tuple[int, int]) -> tuple[str, str, int]:
    """Return message, hint and the column where the mistake begins."""
    line, column = position
    if unknown := _UNDECLARED.search(words):
        source = "".join(expression.split("\n")[line - 1 : line])
        # The library reports a call at its opening parenthesis, a.b.c at a dot, a bare name at its first letter.
        if source[column - 1 : column] == "(":
            length = unknown[1] in ("len", "length", "count")
            hint = "size(x) gives the length" if length else "see the functions of CEL's standard library"
            return f"unknown function {quoted(unknown[1])}", hint, column
        name = unknown[1].split(".")[0]
        begin = source.rfind(name, 0, column - 1) + 1 if source[column - 1 : column] == "." else column
        hint = f"{did_you_mean(name, list(NAMES)) or _QUOTE_HINT} (known names: {', '.join(NAMES)})"
        return f"unknown name {quoted(name)}", hint, begin or column
    if overload := _COMPILE_OVERLOAD.search(words):
        return *_overload(overload[1], overload[2]), column
    message = re.sub(r" expecting \{.*", "", words).removeprefix("Syntax error: ").strip()
    message = message.replace("mismatched input '<EOF>'", "the expression is incomplete")
    return message or "it cannot be read", "", column


def evaluation_error_of(report: str) -> ExpressionError:
    """Return the error for an evaluation that failed, with a hint for the usual causes."""
    report = _STATUS.sub("", report)
    message, hint = report.splitlines()[0] if report else "the evaluation failed", ""
    if missing := _MISSING.search(report):
        message, hint = f"the key {quoted(missing[1])} is missing", _HAS_HINT
    elif overload := _EVALUATION_OVERLOAD.search(report):
        message, hint = _overload(overload[1], overload[2] or "")
    elif "SELECT to non-message" in report or "Invalid container type" in report:
        message = "a key is looked up in something that is not an object"
        hint = "check first, for example: output != null && has(output.x)"
    elif "No value with name" in report:
        message = f"a name has no value here: {message}"
    elif "Iteration budget" in report:
        message, hint = "the expression goes through more than 10000 items", "compute it in a task instead"
    return ExpressionError(printable(message[:_MAX_MESSAGE]), hint)


def _overload(operator: str, operands: str) -> tuple[str, str]:
    """Explain operands of the wrong types. CEL does not convert: 1 + 1.5 is an error."""
    words = re.findall(r"\w+", operands)
    kinds = [_TYPES.get(word, word) for word in words]
    sign = operator.strip("_") if operator.startswith(("_", "!", "-", "@")) and operator.strip("_") else operator
    if operator in ("!_", "_&&_", "_||_", "<jump_condition>", "_?_:_"):
        return "a part of the condition is not true or false", _COMPARE_HINT
    message = f"{sign} does not take {' and '.join(kinds) or 'these values'}"
    return message, "convert with double(), int() or string()"
