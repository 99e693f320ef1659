"""Make an example that fits a JSON Schema, for messages. Pure.

The value is built from the keywords that most schemas have, and shown only if the validator accepts it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import msgspec

from stateline.bundle import canonical
from stateline.machine.expressions.json_schema import resolve, violations
from stateline.machine.spec import Json

_LONGEST = 200
"""Longest example that is shown [bytes]."""
_MAX_PARTS = 100
_MAX_MEMBERS = 8
_FORMATS = {
    "date": "2026-11-20",
    "date-time": "2026-11-20T09:26:59Z",
    "time": "09:26:59Z",
    "duration": "PT1H",
    "email": "name@example.org",
    "hostname": "example.org",
    "ipv4": "192.0.2.1",
    "uri": "https://example.org",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
}
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_TYPE_OF = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": (*_COMPARED, "multipleOf"),
}
"""The type that a schema without one has most likely, by its keywords."""


class _Impossible(Exception):
    """No value is known that could fit."""


def example(schema: Json, *, given: bool = True) -> Json:
    """Return a value that very likely fits ``schema``; UNSET if none is known. Does not load the validator. ``given``:
    take values that the schema itself gives as examples or defaults."""
    try:
        return _Builder(schema, given).value(schema)
    except (_Impossible, ArithmeticError, AttributeError, KeyError, TypeError, ValueError):  # of a malformed schema
        return msgspec.UNSET


def example_text(schema: Json) -> str:
    """Return ``"; for example: "`` and a value that fits ``schema``, as JSON; "" if none is known or it is long."""
    for given in (True, False):  # a default need not be valid
        value = example(schema, given=given)
        if value is not msgspec.UNSET and not violations(schema, value):
            text = canonical.encode(value, depth=canonical.FILE_DEPTH).decode()
            if len(text.encode()) <= _LONGEST:
                return f"; for example: {text}"
    return ""


class _Builder:
    """Builds one value; ``given`` as in :func:`example`."""

    def __init__(self, root: Json, given: bool) -> None:
        self._root = root
        self._given = given
        self._left = _MAX_PARTS

    def value(self, schema: Json) -> Json:
        """Return a value. Raises :class:`_Impossible`; other errors of a schema that is not valid pass through."""
        self._left -= 1
        if self._left < 0 or schema is False:
            raise _Impossible
        if not isinstance(schema, dict):
            return "text"
        schema = self._merged(schema)
        if "const" in schema:
            return schema["const"]
        if self._given:
            for known in (*_list(schema.get("examples")), *([schema["default"]] if "default" in schema else [])):
                return known
        if schema.get("enum"):
            return schema["enum"][0]
        build = {
            "object": self._object,
            "array": self._array,
            "integer": self._number,
            "number": self._number,
            "string": self._string,
        }
        kind = _type_of(schema)
        # Never yes: an example may be pasted as an approval.
        return build[kind](schema) if kind in build else {"boolean": False}.get(kind)

    def _merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return ``schema`` with what it refers to, all of ``allOf`` and the first of ``anyOf`` and ``oneOf``."""
        for _ in range(_MAX_PARTS):
            rest = dict(schema)
            parts = [resolve(rest.pop("$ref"), self._root, {})] if isinstance(rest.get("$ref"), str) else []
            parts += _list(rest.pop("allOf", None))
            parts += [options[0] for name in ("anyOf", "oneOf") if (options := _list(rest.pop(name, None)))]
            if not parts:
                return rest
            for part in parts:
                if part is None or part is False:
                    raise _Impossible
                if isinstance(part, dict):
                    rest = _joined(part, rest)
            schema = rest
        raise _Impossible

    def _object(self, schema: dict[str, Any]) -> Json:
        properties = schema.get("properties") or {}
        names = list(dict.fromkeys(schema.get("required") or []))
        least = schema.get("minProperties", 0 if names else 1)
        names += [name for name in properties if name not in names][: max(least - len(names), 0)]
        if len(names) > _MAX_MEMBERS:
            raise _Impossible
        others = schema.get("additionalProperties", True)
        return {name: self.value(properties.get(name, others)) for name in names}

    def _array(self, schema: dict[str, Any]) -> Json:
        first = _list(schema.get("prefixItems"))
        count = min(max(schema.get("minItems", 1), len(first)), schema.get("maxItems", _MAX_MEMBERS))
        if count > _MAX_MEMBERS:
            raise _Impossible
        if schema.get("items") is False:
            count = min(count, len(first))
        schemas = [*first, *[schema.get("items", True)] * count][:count]
        return [self.value(item) for item in schemas]

    def _number(self, schema: dict[str, Any]) -> Json:
        ends, step = [schema[name] for name in _COMPARED if name in schema], schema.get("multipleOf", 1)
        near = [end + more for more in (0, step, -step) for end in ends]
        steps = [math.ceil(end / step) * step for end in ends]
        middle = [] if _type_of(schema) == "integer" else [sum(ends) / 2]
        for value in (1, 0, *near, *steps, *middle):
            limits_kept = all(fits(value, schema[name]) for name, fits in _COMPARED.items() if name in schema)
            if limits_kept and ("multipleOf" not in schema or value % step == 0):
                return value
        raise _Impossible

    def _string(self, schema: dict[str, Any]) -> Json:
        text = _FORMATS.get(str(schema.get("format")), "text")
        least, most = schema.get("minLength", 0), schema.get("maxLength", _LONGEST)
        if least > _LONGEST:
            raise _Impossible
        return (text * math.ceil(max(least, 1) / len(text)))[: most if most >= least else least]


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return both schemas in one, as far as their members can be joined; ``second`` wins."""
    joined = {**first, **second}
    if isinstance(first.get("properties"), dict) and isinstance(second.get("properties"), dict):
        joined["properties"] = {**first["properties"], **second["properties"]}
    joined |= {
        name: [*_list(first.get(name)), *_list(second.get(name))]
        for name in ("required", "allOf")
        if name in first and name in second
    }
    return joined


def _type_of(schema: dict[str, Any]) -> str:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        kinds = next((kind for kind in kinds if kind != "null"), "null")
    if isinstance(kinds, str):
        return kinds
    return next((kind for kind, keywords in _TYPE_OF.items() if any(word in schema for word in keywords)), "string")


def _list(value: Json) -> list[Any]:
    return value if isinstance(value, list) else []
