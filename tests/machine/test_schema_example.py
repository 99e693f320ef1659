"""Examples that fit a JSON Schema: each is valid, and there is none where none is known."""

from __future__ import annotations

import json
from typing import Any

from each_case import each
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from stateline.machine.expressions.json_schema import violations
from stateline.machine.expressions.schema_example import example, example_text


def shown(schema: Any) -> Any:
    """The example; ... for none."""
    text = example_text(schema)
    return json.loads(text.removeprefix("; for example: ")) if text else ...


@each(
    "schema, expected",
    [
        (True, "text"),
        ({}, "text"),
        (False, ...),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": ["null", "integer"], "minimum": 3}, 3),
        ({"const": {"a": 1}}, {"a": 1}),
        ({"enum": ["ship", "stop"]}, "ship"),
        ({"type": "string", "default": "later"}, "later"),
        ({"type": "string", "examples": ["soon"], "default": "later"}, "soon"),
        ({"type": "integer", "default": "not valid", "maximum": -2}, -2),
        ({"type": "integer", "exclusiveMinimum": 10}, 11),
        ({"type": "integer", "minimum": 5, "multipleOf": 6}, ...),
        ({"type": "string", "minLength": 6}, "texttt"),
        ({"maxLength": 2, "type": "string"}, "te"),
        ({"type": "string", "format": "date"}, "2026-11-20"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "text"),
        ({"type": "string", "pattern": "^[0-9]{4}$"}, ...),
        ({"type": "string", "minLength": 500}, ...),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"type": "array", "minItems": 2, "uniqueItems": True}, ...),
        (
            {
                "type": "object",
                "required": ["verdict", "why"],
                "properties": {"verdict": {"enum": ["yes", "no"]}, "why": {"$ref": "#/$defs/why"}, "more": {}},
                "$defs": {"why": {"type": "string"}},
                "additionalProperties": False,
            },
            {"verdict": "yes", "why": "text"},
        ),
        ({"properties": {"ok": {"type": "boolean"}}}, {"ok": False}),
        ({"type": "object"}, {}),
        ({"required": ["a"], "additionalProperties": {"type": "integer"}}, {"a": 1}),
        ({"allOf": [{"required": ["a"]}, {"properties": {"a": {"const": 1}}}]}, {"a": 1}),
        ({"allOf": [{"required": ["a"]}, {"required": ["b"]}]}, ...),
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": "text"}),
        ({"$ref": "#"}, ...),
        ({"required": ["next"], "properties": {"next": {"$ref": "#"}}}, ...),
        ({"$ref": "#/nowhere"}, ...),
        ({"type": "object", "required": [f"k{n}" for n in range(50)]}, ...),
    ],
)
def test_the_example_of_a_schema(schema: Any, expected: Any) -> None:
    assert shown(schema) == expected


KINDS = ("string", "integer", "number", "null", "array", "object")
SCHEMAS = st.recursive(
    st.booleans() | st.sampled_from([{"type": kind} for kind in KINDS]),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(0, 3),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "minimum": st.integers(-5, 5) | st.floats(-5, 5),
            "multipleOf": st.integers(1, 4),
            "enum": st.lists(st.integers() | st.text(max_size=3), min_size=1, max_size=2),
            "default": st.none() | st.text(max_size=3),
            "minLength": st.integers(0, 5),
        },
    ),
    max_leaves=8,
)  # fmt: skip


@each(
    "schema", [{"required": 5}, {"minimum": "x"}, {"items": 3, "minItems": "y"}, {"properties": [1], "required": ["a"]}]
)
def test_a_malformed_schema_has_no_example(schema: Any) -> None:
    assert example(schema) is UNSET
    assert shown(schema) is ...


@given(SCHEMAS)
def test_an_example_that_is_shown_is_valid(schema: Any) -> None:
    value = shown(schema)
    assert value is ... or violations(schema, value) == []
