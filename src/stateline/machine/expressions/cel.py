"""Conditions, ``set`` expressions and templates: CEL over the seven names of the contract. Pure, and fails closed.

The library is the official ``cel-expr-python``. It gives evaluation errors back as values, reads data lazily and has
limits of its own (100,000 characters, 32 levels, 10,000 iterations); whatever it says becomes a ExpressionError here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from stateline.bundle import canonical
from stateline.errors import InvalidValueError
from stateline.machine.problems import did_you_mean, printable, quoted
from stateline.machine.spec import Json

if TYPE_CHECKING:
    from cel_expr_python import cel  # type: ignore[import-untyped]  # ships stubs without the marker

NAMES = ("input", "state", "outputs", "output", "context", "error", "visits")
"""What an expression may name."""

_NOTHING: Mapping[str, str] = {}
_LONGEST = 500
"""Most characters of what the library says that are passed on: it repeats the expression."""
_QUOTE_HINT = "text in an expression needs quotes of its own: 'text'"
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_COMPILE_ERROR = re.compile(r"^ERROR: <input>:(-?\d+):(-?\d+): (.*)$", re.MULTILINE)
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_OVERLOAD = re.compile(r"no matching overload for '([^']+)' applied to '([^']*)'")
_OVERLOAD_THEN = re.compile(r"No matching overloads found : ([^\s(]+)(?:\((.*)\))?")
_STATUS = re.compile(r"^(?:[A-Z_]+: )|(?: \[[A-Z_]+\])$")
_MISSING = re.compile(r'Key not found in map : "(.*)"', re.DOTALL)
_TYPES = {"int64": "int", "uint64": "uint", "null_type": "null", "dyn": "any"}
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
_NUMBERS = {"int", "uint", "double"}
# Raw strings first: in them a backslash does not hide the closing quote. The prefix must not be the end of a word.
_CEL_STRING = re.compile(
    r"(?:[rR][bB]?|[bB][rR])(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*+'|\"[^\"\n]*+\")"
    r"|[bB]?(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*+'|\"(?:\\.|[^\"\\\n])*+\")",
    re.DOTALL,
)


class ExpressionError(Exception):
    """An expression or template that cannot be read, or that has no usable value. ``hint`` says what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def evaluate(expression: str, names: Mapping[str, Json]) -> Json:
    """The value of a CEL expression; numbers keep their JSON type. ``names`` holds values for ``NAMES``.

    Raises :class:`ExpressionError` when the expression does not compile, names something unknown or missing, fails,
    or has a value that JSON cannot hold (bytes, times, types, infinities, keys that are not strings).
    """
    program = _compile(expression)
    data = _used(expression, names)
    try:
        result = program.eval(data=data)
        kind = str(result.type())
        value = result.plain_value()
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        _raise_failure(expression, str(error))
    if kind in ("ERROR", "UNKNOWN"):
        _raise_failure(expression, str(value))
    try:
        canonical.encode(value, depth=canonical.FILE_DEPTH)
    except InvalidValueError as refused:
        hint = "make it text with string(...)" if kind in ("BYTES", "TIMESTAMP", "DURATION") else refused.hint
        raise ExpressionError(f"the result is not a JSON value: {refused}", hint) from None
    return value


def decide(expression: str, names: Mapping[str, Json]) -> bool:
    """Whether a condition holds. Raises :class:`ExpressionError` also when the result is anything but true or false."""
    value = evaluate(expression, names)
    if value is True or value is False:
        return value
    kind = {"str": "text", "NoneType": "null", "list": "a list", "dict": "an object"}.get(type(value).__name__)
    raise ExpressionError(
        f"the condition gives {kind or 'a number'}, not true or false",
        "compare it, for example: output.verdict == 'yes'",
    )


def render(template: str, names: Mapping[str, Json]) -> str:
    """``template`` with each ``{{ expression }}`` replaced: text as it is, anything else as canonical JSON.

    What was put in is not read again. Raises :class:`ExpressionError` as :func:`evaluate` does, and for braces that are
    not closed. A literal ``{{`` is written ``{{ '{{' }}``.
    """
    parts = []
    for text, expression in _split(template):
        parts.append(text)
        if expression is not None:
            value = evaluate(expression, names)
            parts.append(
                value if isinstance(value, str) else canonical.encode(value, depth=canonical.FILE_DEPTH).decode()
            )
    return "".join(parts)


def mistake(expression: str, meant: Mapping[str, str] = _NOTHING) -> ExpressionError | None:
    """Why ``expression`` does not compile; None when it does. ``meant`` says what a name that stands alone, and is
    unknown so, may stand for: ``todos`` for ``state.todos``."""
    try:
        _compile(expression, meant)
    except ExpressionError as error:
        return error
    return None


def problem(expression: str) -> str | None:
    """Like :func:`mistake`, with message and hint on one line."""
    error = mistake(expression)
    return None if error is None else _line(error)


def template_problems(template: str, meant: Mapping[str, str] = _NOTHING) -> list[str]:
    """Every mistake in a template, each on one line. ``meant`` as in :func:`mistake`."""
    found = []
    try:
        for _, expression in _split(template):
            if expression is not None and (error := mistake(expression, meant)) is not None:
                found.append(f"in {{{{{printable(expression)[:80]}}}}}: {_line(error)}")
    except ExpressionError as error:
        found.append(_line(error))
    return found


def _line(error: ExpressionError) -> str:
    return error.message + (f"; {error.hint}" if error.hint else "")


@functools.cache
def _environment() -> cel.Env:
    from cel_expr_python import cel

    return cel.NewEnv(variables=dict.fromkeys(NAMES, cel.Type.DYN))


def _compile(expression: str, meant: Mapping[str, str] = _NOTHING) -> cel.Expression:
    if not expression.strip():
        raise ExpressionError("the expression is empty", "write a CEL expression, for example: output.ok")
    try:
        expression.encode()
    except UnicodeEncodeError:
        raise ExpressionError("the expression holds a lone surrogate, which is not a character") from None
    try:
        return _environment().compile(expression)
    except RuntimeError as error:
        raise _compile_error(expression, str(error), meant) from None


def _compile_error(expression: str, text: str, meant: Mapping[str, str]) -> ExpressionError:
    """The library's report, several lines with pictures, as one line; what is known to be another language's first."""
    if "codepoint limit" in text:
        return ExpressionError("the expression is longer than 100000 characters", "compute it in a task instead")
    if "recursion" in text:
        return ExpressionError("the expression nests deeper than 32 levels", "split it into several `set` entries")
    from stateline.machine.expressions.cel_hints import slip

    known = slip(expression, _CEL_STRING.sub(lambda string: " " * len(string[0]), expression))
    text = _STATUS.sub("", text)
    messages, hints = ([], []) if known is None else ([known.message], [known.hint])
    for line, column, words in _COMPILE_ERROR.findall(text)[:3]:
        unknown = _UNDECLARED.search(words)
        # Where its grammar breaks is behind the slip that broke it.
        if known is None or (unknown and unknown[1].split(".")[0] not in known.words):
            message, hint, at = _compile_message(expression, words, (int(line), int(column)), meant)
            # Of what a function that is unknown goes through, the names are unknown as well.
            hints.insert(0 if message.startswith("unknown function") else len(hints), hint)
            where = f"column {at}" if "\n" not in expression else f"line {line}, column {at}"
            messages.append(f"{message} ({where})")
    if not messages:
        messages.append(text.splitlines()[0] if text else "it cannot be read")
    return ExpressionError(printable("; ".join(messages)[:_LONGEST]), next(filter(None, hints), ""))


def _compile_message(
    expression: str, words: str, place: tuple[int, int], meant: Mapping[str, str]
) -> tuple[str, str, int]:
    """Message, hint and the column where the mistake begins."""
    line, column = place
    if unknown := _UNDECLARED.search(words):
        source = "".join(expression.split("\n")[line - 1 : line])
        # A call is reported at its opening parenthesis, a.b.c at a dot, a name alone at its first letter.
        if source[column - 1 : column] == "(":
            from stateline.machine.expressions.cel_hints import function_hint

            return f"unknown function {quoted(unknown[1])}", function_hint(unknown[1]), column
        name = unknown[1].split(".")[0]
        begin = source.rfind(name, 0, column - 1) + 1 if source[column - 1 : column] == "." else column
        return f"unknown name {quoted(name)}", _name_hint(name, meant), begin or column
    if overload := _OVERLOAD.search(words):
        return *_overload(overload[1], overload[2]), column
    message = re.sub(r" expecting \{.*", "", words).removeprefix("Syntax error: ").strip()
    message = message.replace("mismatched input '<EOF>'", "the expression breaks off here")
    return message or "it cannot be read", "", column


def _name_hint(name: str, meant: Mapping[str, str]) -> str:
    """What may be meant by a name that is unknown."""
    if name in meant:
        return f"did you mean {meant[name]}?"
    guess = did_you_mean(name, [*NAMES, *meant.values()]) or _QUOTE_HINT
    return f"{guess} (known names: {', '.join(NAMES)})"


def _used(expression: str, names: Mapping[str, Json]) -> dict[str, Json]:
    """The values that ``expression`` may touch. The library crashes the process on data nested a few thousand levels
    deep and cuts text at a NUL character, so what reaches it has been checked."""
    words = set(_WORD.findall(expression))
    data = {name: names[name] for name in NAMES if name in words and name in names}
    for name, value in data.items():
        try:
            text = canonical.encode(value, depth=canonical.FILE_DEPTH)
        except InvalidValueError as refused:
            raise ExpressionError(f"`{name}` holds what JSON cannot: {refused}", refused.hint) from None
        if _NUL.search(text):
            raise ExpressionError(
                f"`{name}` holds text with a NUL character, which CEL cannot read",
                "leave it out of the output or input",
            )
    return data


def _raise_failure(expression: str, text: str) -> NoReturn:
    """Raise what an evaluation that failed said, with a hint where the way out is known."""
    text = _STATUS.sub("", text)
    message, hint = text.splitlines()[0] if text else "the evaluation failed", ""
    if missing := _MISSING.search(text):
        message, hint = f"the key {quoted(missing[1])} is missing", _has_hint(expression, missing[1])
        if missing[1] == "length":
            from stateline.machine.expressions.cel_hints import function_hint

            hint = f"{function_hint('length')} for how many items there are; {hint}"
    elif overload := _OVERLOAD_THEN.search(text):
        message, hint = _overload(overload[1], overload[2] or "")
    elif "SELECT to non-message" in text or "Invalid container type" in text:
        message = "a key is looked up in something that is not an object"
        hint = "check first, for example: output != null && has(output.x)"
    elif "No value with name" in text:
        message = "a name has no value here: " + text.splitlines()[0]
    elif "Iteration budget" in text:
        message, hint = "the expression goes through more than 10000 items", "compute it in a task instead"
    raise ExpressionError(printable(message[:_LONGEST]), hint)


def _has_hint(expression: str, key: str) -> str:
    """``has()`` needs the whole path, so it is taken from the expression where it can be found."""
    path = re.search(r"[A-Za-z_][\w.]*\." + re.escape(key) + r"\b", expression)
    if path:
        return f"ask first: has({path[0]}) && ..., or has({path[0]}) ? {path[0]} : null"
    return "ask first with has(x.y), or with 'y' in x for keys in brackets"


def _overload(operator: str, operands: str) -> tuple[str, str]:
    """CEL does not convert: 1 + 1.5 is an error there, and JSON decides whether a number is an int or a double."""
    words = re.findall(r"\w+", operands)
    kinds = [_TYPES.get(word, word) for word in words]
    sign = operator.strip("_") if operator.startswith(("_", "!", "-", "@")) and operator.strip("_") else operator
    if operator in ("!_", "_&&_", "_||_", "<jump_condition>", "_?_:_"):
        return "a part of the condition is not true or false", "compare it, for example: output.verdict == 'yes'"
    message = f"{sign} does not take {' and '.join(kinds) or 'these values'}"
    if len(kinds) == 2 and set(kinds) <= _NUMBERS and len(set(kinds)) == 2:
        return message, "make both numbers double: double(x) + 1.5"
    return message, "convert with double(), int() or string()"


def _split(template: str) -> Iterator[tuple[str, str | None]]:
    """A template as pairs of literal text and the expression after it (None at the end). What stands before a mistake
    is given before the mistake is raised."""
    try:
        template.encode()
    except UnicodeEncodeError:
        raise ExpressionError("the template holds a lone surrogate, which is not a character") from None
    at = 0
    while (start := template.find("{{", at)) >= 0:
        end = _closing(template, start)
        yield template[at:start], template[start + 2 : end]
        at = end + 2
    yield template[at:], None


_TOKEN = re.compile(
    rf"(?P<string>{_CEL_STRING.pattern})|(?P<word>[A-Za-z_]\w*)|(?P<sign>['\"{{}}])", re.DOTALL | re.ASCII
)


def _closing(template: str, start: int) -> int:
    """The index of the ``}}`` that ends the expression opened at ``start``; braces in strings and maps do not."""
    at, depth = start + 2, 0
    place = f"line {template.count(chr(10), 0, start) + 1}, column {start - template.rfind(chr(10), 0, start)}"
    while token := _TOKEN.search(template, at):
        at = token.end()
        sign = token["sign"]
        if sign in ("'", '"'):
            raise ExpressionError(f"a string in the {{{{ at {place} is not closed")
        if sign == "{":
            depth += 1
        elif sign == "}" and depth:
            depth -= 1
        elif sign == "}" and template.startswith("}", at):
            return at - 1
    raise ExpressionError(
        f"the {{{{ at {place} is not closed", "close it with }}, or write {{ '{{' }} for braces as text"
    )
