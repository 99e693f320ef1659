"""Find what CEL expressions read, in the library's syntax tree. Pure.

The library gives its tree only as bytes: a ``cel.expr.CheckedExpr`` in the wire format of Protocol Buffers, within a
``google.protobuf.Any``. The numbers below are those of ``cel/expr/syntax.proto`` in the CEL specification.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stateline.machine.expressions.cel import compiled
from stateline.machine.expressions.cel_errors import ExpressionError

_ANY_VALUE, _CHECKED_EXPR = 2, 4
_CONST, _IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = range(3, 10)
_KINDS = range(_CONST, _COMPREHENSION + 1)
_STRING = 6
"""The kind of a constant that is text."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}

_Fields = list[tuple[int, memoryview]]
"""The fields of a message by number. Numbers other than lengths are not needed: they have their bytes as value."""


class Reference(msgspec.Struct, frozen=True):
    """Keys that an expression reads, from a name on: ``("state", "todos")`` for ``state.todos`` and
    ``state['todos']``. Ends before the first key that is computed. ``tested``: the expression only asks whether the
    last key exists, with ``has()`` or ``in``."""

    path: tuple[str, ...]
    tested: bool = False


def references(expression: str) -> list[Reference]:
    """Return what an expression reads; nothing if it does not compile. Variables of macros do not count."""
    try:
        tree = compiled(expression).serialize()
    except ExpressionError:
        return []
    checked = _only(_fields(memoryview(tree)), _ANY_VALUE)
    return list(_read(_only(_fields(checked), _CHECKED_EXPR), frozenset()))


def _read(expr: memoryview, variables: frozenset[str]) -> Iterator[Reference]:
    # The library bounds the depth of expressions.
    path, tested, rest = _chain(expr)
    if path and path[0] not in variables:
        yield Reference(path, tested)
    for part, bound in rest:
        yield from _read(part, variables | bound)


def _chain(expr: memoryview) -> tuple[tuple[str, ...], bool, list[tuple[memoryview, frozenset[str]]]]:
    """Return the name and the keys that ``expr`` reads (none if it does not begin with a name), whether it only tests
    the last, and the other expressions in it with the variables that each adds."""
    kind, fields = _node(expr)
    if kind == _IDENT:
        return (_text(_only(fields, 1)),), False, []
    if kind == _SELECT:
        path, _, rest = _chain(_only(fields, 1))
        tested = any(number == 3 for number, _ in fields)
        return (*path, _text(_only(fields, 2))) if path else (), tested, rest
    if kind == _CALL:
        function = _text(_only(fields, 2))
        arguments = [value for number, value in fields if number == 3]
        if function in ("_[_]", "@in"):
            container, key = arguments if function == "_[_]" else reversed(arguments)
            path, _, rest = _chain(container)
            name = _constant(key)
            if path and name is not None:
                return (*path, name), function == "@in", rest
        return (), False, [(value, frozenset()) for number, value in fields if number in (1, 3)]
    return (), False, list(_parts(kind, fields))


def _parts(kind: int, fields: _Fields) -> Iterator[tuple[memoryview, frozenset[str]]]:
    if kind == _LIST:
        yield from ((value, frozenset()) for number, value in fields if number == 1)
    elif kind == _STRUCT:
        entries = [_fields(value) for number, value in fields if number == 2]
        yield from ((value, frozenset()) for entry in entries for number, value in entry if number in (3, 4))
    elif kind == _COMPREHENSION:
        variables = frozenset(_text(value) for number, value in fields if number in (1, 3, 8))
        for number, value in fields:
            if number in (2, 4, 5, 6, 7):  # range and initial value are outside of the variables' scope
                yield value, frozenset() if number in (2, 4) else variables


def _node(expr: memoryview) -> tuple[int, _Fields]:
    kind, value = next((field for field in _fields(expr) if field[0] in _KINDS), (0, memoryview(b"")))
    return kind, _fields(value)


def _constant(expr: memoryview) -> str | None:
    """Return the text that ``expr`` is, or None."""
    kind, fields = _node(expr)
    return _text(_only(fields, _STRING)) if kind == _CONST and fields and fields[0][0] == _STRING else None


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _only(fields: _Fields, number: int) -> memoryview:
    return next((value for found, value in fields if found == number), memoryview(b""))


def _fields(message: memoryview) -> _Fields:
    found, at = [], 0
    while at < len(message):
        tag, at = _varint(message, at)
        start, kind = at, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            size, start = _varint(message, at)
            at = start + size
        else:
            at += _FIXED[kind]
        found.append((tag >> 3, message[start:at]))
    return found


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number at ``at`` and the index after it."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
