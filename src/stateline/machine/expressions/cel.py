"""Evaluate CEL expressions over seven names (docs/machines.md). Pure; failures are :class:`ExpressionError`s.

The library is the official ``cel-expr-python``. It returns evaluation errors as values, reads data lazily and has
limits: 100,000 characters, 32 levels, 10,000 iterations.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stateline.bundle import canonical
from stateline.errors import InvalidValueError
from stateline.machine.expressions.cel_errors import NAMES, ExpressionError, compile_error_of, evaluation_error_of
from stateline.machine.spec import Json

if TYPE_CHECKING:
    from cel_expr_python import cel  # type: ignore[import-untyped]  # ships stubs without the marker

_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUL = re.compile(rb"(?<!\\)(?>(?:\\\\)*)\\u0000")


def evaluate(expression: str, names: Mapping[str, Json]) -> Json:
    """Return the value of a CEL expression; numbers keep their JSON type. ``names`` holds values for ``NAMES``.

    Raises :class:`ExpressionError` when the expression does not compile, names something unknown or missing, fails,
    or has a value that JSON cannot hold (bytes, times, types, infinities, keys that are not strings).
    """
    program = compiled(expression)
    data = _referenced_values(expression, names)
    try:
        result = program.eval(data=data)
        kind = str(result.type())
        value = result.plain_value()
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise evaluation_error_of(str(error)) from None
    if kind in ("ERROR", "UNKNOWN"):
        raise evaluation_error_of(str(value))
    try:
        canonical.encode(value, depth=canonical.FILE_DEPTH)
    except InvalidValueError as refused:
        hint = "make it text with string(...)" if kind in ("BYTES", "TIMESTAMP", "DURATION") else refused.hint
        raise ExpressionError(f"the result is not a JSON value: {refused}", hint) from None
    return value


def evaluate_condition(expression: str, names: Mapping[str, Json]) -> bool:
    """Return the value of a condition. Raises :class:`ExpressionError` also when it is neither true nor false."""
    value = evaluate(expression, names)
    if value is True or value is False:
        return value
    kind = {"str": "text", "NoneType": "null", "list": "a list", "dict": "an object"}.get(type(value).__name__)
    raise ExpressionError(
        f"the condition gives {kind or 'a number'}, not true or false",
        "compare it, for example: output.verdict == 'yes'",
    )


def compile_error(expression: str) -> ExpressionError | None:
    """Return why ``expression`` does not compile; None when it does."""
    try:
        compiled(expression)
    except ExpressionError as error:
        return error
    return None


@functools.cache
def _environment() -> cel.Env:
    from cel_expr_python import cel

    return cel.NewEnv(variables=dict.fromkeys(NAMES, cel.Type.DYN))


@functools.lru_cache(maxsize=512)  # a check compiles each expression for its mistakes, and again for what it reads
def compiled(expression: str) -> cel.Expression:
    """Return the library's form of an expression. Raises :class:`ExpressionError`."""
    if not expression.strip():
        raise ExpressionError("the expression is empty", "write a CEL expression, for example: output.ok")
    try:
        expression.encode()
    except UnicodeEncodeError:
        raise ExpressionError("the expression holds a lone surrogate, which is not a character") from None
    try:
        return _environment().compile(expression)
    except RuntimeError as error:
        raise compile_error_of(expression, str(error)) from None


def _referenced_values(expression: str, names: Mapping[str, Json]) -> dict[str, Json]:
    """Return the values that ``expression`` may read, checked.

    The library crashes the process on data nested a few thousand levels deep, and cuts text at a NUL character.
    """
    words = set(_WORD.findall(expression))
    data = {name: names[name] for name in NAMES if name in words and name in names}
    for name, value in data.items():
        try:
            text = canonical.encode(value, depth=canonical.FILE_DEPTH)
        except InvalidValueError as refused:
            raise ExpressionError(f"`{name}` holds what JSON cannot: {refused}", refused.hint) from None
        if _NUL.search(text):
            message = f"`{name}` holds text with a NUL character, which CEL cannot read"
            raise ExpressionError(message, "leave it out of the output or input")
    return data
