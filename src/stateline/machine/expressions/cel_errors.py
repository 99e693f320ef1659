"""Turn the error reports of the CEL library, several lines with pictures, into one line and a hint. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stateline.machine.problems import did_you_mean, printable, quoted

NAMES = ("input", "state", "outputs", "output", "context", "error", "visits")
"""The names that an expression may use."""
# Raw strings first: in them a backslash does not hide the closing quote. The prefix must not be the end of a word.
CEL_STRING = re.compile(
    r"(?:[rR][bB]?|[bB][rR])(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*+'|\"[^\"\n]*+\")"
    r"|[bB]?(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*+'|\"(?:\\.|[^\"\\\n])*+\")",
    re.DOTALL,
)

_MAX_MESSAGE = 500
"""Longest message [characters]: the library repeats the expression."""
_QUOTE_HINT = "text in an expression needs its own quotes: 'text'"
_COMPARE_HINT = "compare it, for example: output.verdict == 'yes'"
_COMPILE_ERROR = re.compile(r"^ERROR: <input>:(-?\d+):(-?\d+): (.*)$", re.MULTILINE)
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_COMPILE_OVERLOAD = re.compile(r"no matching overload for '([^']+)' applied to '([^']*)'")
_EVALUATION_OVERLOAD = re.compile(r"No matching overloads found : ([^\s(]+)(?:\((.*)\))?")
_STATUS = re.compile(r"^(?:[A-Z_]+: )|(?: \[[A-Z_]+\])$")
_MISSING = re.compile(r'Key not found in map : "(.*)"', re.DOTALL)
_TYPES = {"int64": "int", "uint64": "uint", "null_type": "null", "dyn": "any"}
_NUMBERS = {"int", "uint", "double"}


class ExpressionError(Exception):
    """An expression or template that cannot be read, or without a usable value. ``hint`` says what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def compile_error_of(expression: str, report: str, name_hints: Mapping[str, str]) -> ExpressionError:
    """Return the error for an expression that does not compile. Operators of other languages are reported first."""
    if "codepoint limit" in report:
        return ExpressionError("the expression is longer than 100000 characters", "compute it in a task instead")
    if "recursion" in report:
        return ExpressionError("the expression nests deeper than 32 levels", "split it into several `set` entries")
    from stateline.machine.expressions.cel_hints import foreign_syntax

    foreign = foreign_syntax(expression, CEL_STRING.sub(lambda string: " " * len(string[0]), expression))
    messages, hints = ([], []) if foreign is None else ([foreign.message], [foreign.hint])
    report = _STATUS.sub("", report)
    for line, column, words in _COMPILE_ERROR.findall(report)[:3]:
        unknown = _UNDECLARED.search(words)
        # A syntax error is reported after the foreign operator that caused it, so it adds nothing.
        if foreign is None or (unknown and unknown[1].split(".")[0] not in foreign.tokens):
            message, hint, at = _compile_message(expression, words, (int(line), int(column)), name_hints)
            # The variable of an unknown macro is an unknown name as well, so the function's hint goes first.
            hints.insert(0 if message.startswith("unknown function") else len(hints), hint)
            where = f"column {at}" if "\n" not in expression else f"line {line}, column {at}"
            messages.append(f"{message} ({where})")
    if not messages:
        messages.append(report.splitlines()[0] if report else "it cannot be read")
    return ExpressionError(printable("; ".join(messages)[:_MAX_MESSAGE]), next(filter(None, hints), ""))


def _compile_message(
    expression: str, words: str, position: tuple[int, int], name_hints: Mapping[str, str]
) -> tuple[str, str, int]:
    """Return message, hint and the column where the mistake begins."""
    line, column = position
    if unknown := _UNDECLARED.search(words):
        source = "".join(expression.split("\n")[line - 1 : line])
        # The library reports a call at its opening parenthesis, a.b.c at a dot, a bare name at its first letter.
        if source[column - 1 : column] == "(":
            from stateline.machine.expressions.cel_hints import function_hint

            return f"unknown function {quoted(unknown[1])}", function_hint(unknown[1]), column
        name = unknown[1].split(".")[0]
        begin = source.rfind(name, 0, column - 1) + 1 if source[column - 1 : column] == "." else column
        return f"unknown name {quoted(name)}", _name_hint(name, name_hints), begin or column
    if overload := _COMPILE_OVERLOAD.search(words):
        return *_overload(overload[1], overload[2]), column
    message = re.sub(r" expecting \{.*", "", words).removeprefix("Syntax error: ").strip()
    message = message.replace("mismatched input '<EOF>'", "the expression is incomplete")
    return message or "it cannot be read", "", column


def _name_hint(name: str, name_hints: Mapping[str, str]) -> str:
    if name in name_hints:
        return f"did you mean {name_hints[name]}?"
    guess = did_you_mean(name, [*NAMES, *name_hints.values()]) or _QUOTE_HINT
    return f"{guess} (known names: {', '.join(NAMES)})"


def evaluation_error_of(expression: str, report: str) -> ExpressionError:
    """Return the error for an evaluation that failed, with a hint for the usual causes."""
    report = _STATUS.sub("", report)
    message, hint = report.splitlines()[0] if report else "the evaluation failed", ""
    if missing := _MISSING.search(report):
        message, hint = f"the key {quoted(missing[1])} is missing", _has_hint(expression, missing[1])
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


def _has_hint(expression: str, key: str) -> str:
    """Suggest ``has()``, which needs the whole path, so it is taken from the expression where possible."""
    path = re.search(r"[A-Za-z_][\w.]*\." + re.escape(key) + r"\b", expression)
    if path:
        return f"check first: has({path[0]}) && ..., or has({path[0]}) ? {path[0]} : null"
    return "check first with has(x.y), or with 'y' in x for keys in brackets"


def _overload(operator: str, operands: str) -> tuple[str, str]:
    """Explain operands of the wrong types. CEL does not convert: 1 + 1.5 is an error."""
    words = re.findall(r"\w+", operands)
    kinds = [_TYPES.get(word, word) for word in words]
    sign = operator.strip("_") if operator.startswith(("_", "!", "-", "@")) and operator.strip("_") else operator
    if operator in ("!_", "_&&_", "_||_", "<jump_condition>", "_?_:_"):
        return "a part of the condition is not true or false", _COMPARE_HINT
    message = f"{sign} does not take {' and '.join(kinds) or 'these values'}"
    if len(set(kinds)) == len(kinds) == 2 and set(kinds) <= _NUMBERS:
        return message, "make both numbers double: double(x) + 1.5"
    return message, "convert with double(), int() or string()"
