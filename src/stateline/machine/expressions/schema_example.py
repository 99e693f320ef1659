"""Make an example that fits a JSON Schema, for messages: from the keywords that most schemas have. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from stateline.bundle import canonical
from stateline.machine.expressions.json_schema import resolve, violations
from stateline.machine.spec import Json

_LONGEST = 200  # [bytes] of an example that is shown
_DEEPEST = 4
_MOST = 8
"""Most members of an object, items of an array, and parts of ``allOf``."""
_FORMATS = {"date": "2026-11-20", "date-time": "2026-11-20T09:26:59Z"}
_TYPES = {"properties": "object", "required": "object", "items": "array", "minimum": "number", "maximum": "number"}


def example(schema: Json, *, given: bool = True) -> Json:
    """Return a value that very likely fits ``schema``; UNSET if none is known. Does not load the validator. ``given``:
    take values that the schema itself gives as examples or defaults."""
    try:
        return _value({} if schema is None else schema, schema, given, 0)
    except (AttributeError, LookupError, TypeError, ValueError):  # too deep or large, or a malformed schema
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


def _value(schema: Json, root: Json, given: bool, depth: int) -> Json:
    schema = _merged(schema, root, depth)
    for name in ("const", "examples", "default", "enum") if given else ("const", "enum"):
        if name in schema:
            return schema[name][0] if name in ("examples", "enum") else schema[name]
    kind = _type_of(schema)
    if kind == "object":
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        names = schema.get("required") or list(properties)[:1]
        return {name: _value(properties.get(name, others), root, given, depth + 1) for name in names[:_MOST]}
    if kind == "array":
        count = schema.get("minItems", min(1, schema.get("maxItems", 1)))
        return [_value(schema.get("items", True), root, given, depth + 1)] * min(count, _MOST)
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return min(least, schema.get("maximum", schema.get("exclusiveMaximum", least + 1) - 1))
    if kind in ("boolean", "null"):
        return {"boolean": False}.get(kind)  # never yes: an example may be pasted as an approval
    text = _FORMATS.get(str(schema.get("format")), "text")
    return text.ljust(min(schema.get("minLength", 0), _LONGEST), "t")[: schema.get("maxLength", _LONGEST)]


def _merged(schema: Json, root: Json, depth: int) -> dict[str, Any]:
    """Return ``schema`` with what it refers to, all of ``allOf`` and the first of ``anyOf`` and ``oneOf``."""
    if schema in (False, None) or depth > _DEEPEST:
        raise ValueError
    if schema is True:
        return {}
    parts = [resolve(schema["$ref"], root, {})] if "$ref" in schema else []
    parts += [*schema.get("allOf", [])[:_MOST], *schema.get("anyOf", [])[:1], *schema.get("oneOf", [])[:1]]
    for part in parts:
        schema = {**_merged(part, root, depth + 1), **schema}
    return dict(schema)


def _type_of(schema: dict[str, Any]) -> str:
    """Return the type, of several the first but null; without one the likeliest by the keywords."""
    kinds = schema.get("type", next((kind for word, kind in _TYPES.items() if word in schema), "string"))
    return str(kinds if isinstance(kinds, str) else next((kind for kind in kinds if kind != "null"), "null"))
