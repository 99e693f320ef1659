"""JSON Schema checks: mistakes with pointers, in bounded time, without access outside the schema."""

from __future__ import annotations

import http.server
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.expressions.json_schema import problems, violations


def test_a_usable_schema_has_no_problems() -> None:
    def one_case(schema: Any) -> None:
        assert problems(schema) == []

    for_each(
        one_case,
        [
            True,
            {},
            {"type": "object", "required": ["a"]},
            {"$ref": "#"},
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"type": "string"}}},
            {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}},
            {"$ref": "https://json-schema.org/draft/2020-12/schema"},
            {"$id": "http://example.org/mine", "$ref": "http://example.org/mine#/$defs/a", "$defs": {"a": {}}},
            {"pattern": "^[a-z]{1,64}@.{0,255}$"},
        ],
    )


def test_a_schema_is_an_object_or_a_bool() -> None:
    def one_case(schema: Any) -> None:
        assert problems(schema) == ["a JSON Schema is an object, true or false"]
        assert len(violations(schema, 1)) == 1

    for_each(one_case, [None, 3, "x", '{"type":"object"}', [], 1.5])


def test_every_mistake_of_a_schema_is_reported_with_its_pointer() -> None:
    found = problems({"properties": {"a/b": {"type": "strng"}, "c": {"minimum": "q"}}, "required": 3})
    assert [text.split(":")[0] for text in found] == ["/properties/a~1b/type", "/properties/c/minimum", "/required"]


def test_a_dangling_reference_is_reported() -> None:
    assert "/$defs/nope" in problems({"$ref": "#/$defs/nope"})[0]


def test_a_pattern_that_could_take_long_is_refused() -> None:
    def one_case(pattern: str) -> None:
        assert "/properties/x/pattern" in problems({"properties": {"x": {"pattern": pattern}}})[0]

    for_each(one_case, ["(", "(?=a)b", r"(a)\1", "(a{1000}){1000}", "^(a{0,1000}){0,99}$"])


def test_a_catastrophic_pattern_is_quick() -> None:
    def one_case(pattern: str) -> None:
        began = time.monotonic()
        violations({"pattern": pattern}, "a" * 100_000 + "!")
        assert time.monotonic() - began < 5

    for_each(one_case, ["(a+)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "(a|a)*b"])


class _Counting(http.server.BaseHTTPRequestHandler):
    hits = 0

    def do_GET(self) -> None:
        type(self).hits += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        return


def test_no_reference_is_ever_fetched_from_the_network() -> None:
    def one_case(keyword: str) -> None:
        _Counting.hits = 0
        with http.server.HTTPServer(("127.0.0.1", 0), _Counting) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            schema = {keyword: f"http://127.0.0.1:{server.server_port}/schema.json"}
            found = problems(schema), violations(schema, 1)
            problems({"properties": {"a": schema}})
            violations({"properties": {"a": schema}}, {"a": 1})
            server.shutdown()
            thread.join()
        assert all(found)
        assert _Counting.hits == 0

    for_each(one_case, ["$ref", "$dynamicRef", "$schema"])


def test_no_reference_is_ever_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"type": "string"}))
    monkeypatch.chdir(tmp_path)
    for reference in ((tmp_path / "s.json").as_uri(), "s.json", "./s.json", "/s.json", "json-schema:///s.json"):
        assert problems({"$ref": reference})
        assert problems({"$id": "file:///", "properties": {"a": {"$ref": reference}}})
        # With the file's schema this value would pass.
        assert violations({"$ref": reference}, "text")


def test_violations_tell_the_pointer_of_each_place() -> None:
    schema = {"properties": {"a/b": {"items": {"type": "integer"}}}, "required": ["c"]}
    found = violations(schema, {"a/b": [1, "x", "y"]})
    assert [text.split(":")[0] for text in sorted(found)] == ["/a~1b/1", "/a~1b/2", "the value"]


@given(st.integers(0, 60))
def test_at_most_twenty_violations_are_reported(count: int) -> None:
    assert len(violations({"items": {"type": "integer"}}, ["x"] * count)) == min(count, 20)


def test_only_the_first_violation_of_a_large_value_is_reported() -> None:
    found = violations({"items": {"type": "integer"}}, ["x"] * 50_000)
    assert len(found) == 1
    assert found[0].startswith("/0: ")


def test_a_large_value_that_fits_has_no_violations() -> None:
    assert violations({"items": {"type": "string"}}, ["x"] * 50_000) == []


def test_a_message_never_quotes_a_large_value_in_full() -> None:
    assert all(len(text) < 1000 for text in violations({"type": "integer", "maxLength": 1}, "s" * 60_000))


def test_a_schema_whose_parts_multiply_is_refused() -> None:
    def one_case(keyword: str) -> None:
        definitions: dict[str, Any] = {
            f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 1}"}]} for i in range(60)
        }
        schema = {"$ref": "#/$defs/a0", "$defs": definitions | {"a60": {"type": "integer"}}}
        assert "more than" in problems(schema)[0]
        assert len(violations(schema, "x")) == 1

    for_each(one_case, ["allOf", "anyOf", "oneOf"])


def test_references_with_escaped_names_are_followed() -> None:
    definitions: dict[str, Any] = {f"a/{i}": {"allOf": [{"$ref": f"#/$defs/a~1{i + 1}"}] * 2} for i in range(60)}
    assert "more than" in problems({"$ref": "#/$defs/a~10", "$defs": definitions | {"a/60": {}}})[0]


def test_a_very_long_chain_of_references_is_refused() -> None:
    definitions: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5000)}
    assert problems({"$ref": "#/$defs/a0", "$defs": definitions | {"a5000": {}}})


def deep(levels: int, key: str | None = None) -> Any:
    value: Any = 1 if key is None else {}
    for _ in range(levels):
        value = [value] if key is None else {key: value}
    return value


def test_a_bomb_of_depth_is_refused_on_both_sides() -> None:
    assert problems(deep(100_000, "not"))
    assert violations(deep(100_000, "not"), 1)
    assert violations({"items": {"$ref": "#"}}, deep(100_000))
    assert violations({"items": {"$ref": "#"}}, deep(128)) == []


def test_a_value_that_json_cannot_hold_never_passes() -> None:
    def one_case(value: Any) -> None:
        assert len(violations(True, value)) == 1
        assert len(problems({"const": value})) == 1

    for_each(one_case, [(case,) for case in ["\ud800", 2**64, float("nan"), (1,), {1: 2}, b"x"]])


def test_an_integer_is_what_json_schema_says() -> None:
    def one_case(value: Any, fits: bool) -> None:
        assert (violations({"type": "integer"}, value) == []) is fits

    for_each(one_case, [(1, True), (1.0, True), (1.5, False), (True, False), (2**64 - 1, True)])


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-9, 9)
        | st.sampled_from(
            ["#", "object", "string", "#/properties/a", "(", "http://x.invalid/", "file:///etc/hostname"]
        ),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "$ref",
                        "$id",
                        "$schema",
                        "$anchor",
                        "type",
                        "allOf",
                        "not",
                        "properties",
                        "items",
                        "pattern",
                        "const",
                        "a",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=15,
    )
)
def test_any_json_is_a_schema_or_has_problems(schema: Any) -> None:
    found = problems(schema)
    assert all(text.isprintable() for text in found)
    if found:
        assert violations(schema, 1)
    else:
        assert all(not text.startswith("the schema cannot be used") for text in violations(schema, 1))
