"""Templates: text with CEL expressions in double braces. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from stateline.bundle import canonical
from stateline.machine.expressions.cel import compile_error, evaluate
from stateline.machine.expressions.cel_errors import CEL_STRING, ExpressionError
from stateline.machine.problems import printable
from stateline.machine.spec import Json

_TOKEN = re.compile(
    rf"(?P<string>{CEL_STRING.pattern})|(?P<word>[A-Za-z_]\w*)|(?P<sign>['\"{{}}])", re.DOTALL | re.ASCII
)


def render(template: str, names: Mapping[str, Json]) -> str:
    """Replace each ``{{ expression }}``: text as it is, anything else as canonical JSON.

    Inserted values are not rendered again. A literal ``{{`` is written ``{{ '{{' }}``. Raises
    :class:`ExpressionError` as :func:`evaluate` does, and for braces that are not closed.
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


def template_problems(template: str) -> list[str]:
    """Return every mistake in a template, each on one line."""
    found = []
    try:
        for _, expression in _split(template):
            if expression is not None and (error := compile_error(expression)) is not None:
                found.append(f"in {{{{{printable(expression)[:80]}}}}}: {_one_line(error)}")
    except ExpressionError as error:
        found.append(_one_line(error))
    return found


def expressions_in(template: str) -> list[str]:
    """Return the expressions of a template, up to the first mistake in its braces."""
    found = []
    with suppress(ExpressionError):
        for _, expression in _split(template):
            if expression is not None:
                found.append(expression)
    return found


def _one_line(error: ExpressionError) -> str:
    return error.message + (f"; {error.hint}" if error.hint else "")


def _split(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield pairs of literal text and the expression after it (None at the end). Raises on reaching a mistake."""
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


def _closing(template: str, start: int) -> int:
    """Return the index of the ``}}`` that closes the expression opened at ``start``, past strings and maps."""
    at, depth = start + 2, 0
    where = f"line {template.count(chr(10), 0, start) + 1}, column {start - template.rfind(chr(10), 0, start)}"
    while token := _TOKEN.search(template, at):
        at = token.end()
        sign = token["sign"]
        if sign in ("'", '"'):
            raise ExpressionError(f"a string in the {{{{ at {where} is not closed")
        if sign == "{":
            depth += 1
        elif sign == "}" and depth:
            depth -= 1
        elif sign == "}" and template.startswith("}", at):
            return at - 1
    hint = "close it with }}, or write {{ '{{' }} for braces as text"
    raise ExpressionError(f"the {{{{ at {where} is not closed", hint)
