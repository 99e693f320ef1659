"""Arguments are masked by the names of their keys before anybody asks a schema: a tool that wants a value under the
name of a secret could never get it, so its manifest is refused."""

from __future__ import annotations

import json
from typing import Any

from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import InvalidManifestError
from stateline.machine.definition.check import check
from stateline.machine.problems import Problem
from stateline.redaction.masking import PLACEHOLDER
from stateline.redaction.redactor import Redactor
from stateline.tools.check import check_manifest

TEXT = {"type": "string"}
NAMES = ("token", "secret", "cookie", "api_key", "X-Api-Key", "sessionToken", "max_token", "page_token", "key")


def manifest(schema: Any) -> bytes:
    tool = {"name": "lookup", "description": "Find a word.", "schema": schema, "argv": ["cat"]}
    return json.dumps({"tools": [tool]}).encode()


def found(schema: Any) -> list[Problem]:
    """Return the problems of a tool with this schema."""
    try:
        check_manifest(manifest(schema))
    except InvalidManifestError as error:
        return list(error.problems)
    return []


def places(schema: Any) -> list[str]:
    """The paths of the properties that are refused, without those of the tool and its schema."""
    problems = found(schema)
    assert {problem.code for problem in problems} <= {"masked_property"}
    return [problem.where.partition(" ")[2].removeprefix("tools[0].schema").lstrip(".") for problem in problems]


def wants(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_a_property_named_like_a_secret_is_refused_with_its_path_and_the_ways_out() -> None:
    (problem,) = found(wants(word=TEXT, token=TEXT))
    assert problem.where.endswith("tools[0].schema.properties.token")
    assert "'token'" in problem.message
    assert PLACEHOLDER in problem.message
    assert "rename" in problem.hint
    assert "`env`" in problem.hint


@given(st.sampled_from(NAMES) | st.text(max_size=8).flatmap(lambda text: st.just(f"{text}token")))
def test_a_name_is_refused_exactly_where_its_value_would_be_masked(name: str) -> None:
    masked = Redactor().redact({name: "the"})[0] != {name: "the"}
    assert bool(found(wants(**{name: TEXT}))) == masked


def test_it_is_found_at_any_depth() -> None:
    def check(schema: Any, place: str) -> None:
        assert places(schema) == [place]

    for_each(
        check,
        [
            (wants(login=wants(cookie=TEXT)), "properties.login.properties.cookie"),
            (wants(all={"type": "array", "items": wants(secret=TEXT)}), "properties.all.items.properties.secret"),
            ({"type": "object", "allOf": [{}, wants(api_key=TEXT)]}, "allOf[1].properties.api_key"),
            ({"type": "object", "$defs": {"login": wants(token=TEXT)}}, "['$defs'].login.properties.token"),
            (wants() | {"patternProperties": {"^x": wants(token=TEXT)}}, "patternProperties['^x'].properties.token"),
            ({"type": "object", "additionalProperties": wants(token=TEXT)}, "additionalProperties.properties.token"),
            ({"type": "object", "required": ["word", "token"]}, "required[1]"),
            (wants(properties=wants(token=TEXT)), "properties.properties.properties.token"),
            (wants(const=wants(token=TEXT)), "properties.const.properties.token"),
            (wants(token=wants(user=TEXT)), "properties.token"),
            (wants(token={"type": ["string", "null"]}), "properties.token"),
            (wants(token={}), "properties.token"),
            (wants(token=True), "properties.token"),
        ],
    )


def test_schemas_without_masked_properties_have_no_mistake() -> None:
    def check(schema: Any) -> None:
        assert found(schema) == []

    for_each(
        check,
        [
            wants(token={"type": "integer"}),
            wants(token={"type": ["number", "boolean", "null"]}) | {"required": ["token"]},
            wants(word={"const": {"properties": {"token": "x"}}}),
            wants(word={"enum": [wants(token=TEXT)]}),
            wants(word={"default": wants(token=TEXT), "examples": [wants(token=TEXT)]}),
            {"type": "object", "$defs": {"token": TEXT}, "properties": {"word": {"$ref": "#/$defs/token"}}},
            {"type": "object", "additionalProperties": TEXT},
            wants(max_tokens=TEXT, page_token=TEXT, token_count=TEXT, key=TEXT),
        ],
    )


def test_all_mistakes_are_reported_together() -> None:
    assert places(wants(token=TEXT, word=TEXT, cookie=TEXT) | {"required": ["token"]}) == [
        "properties.token",
        "properties.cookie",
    ]


def test_a_schema_that_nests_deep_is_read_all_the_same() -> None:
    schema: Any = wants(token=TEXT)
    for _ in range(25):
        schema = wants(a=schema)
    assert len(found(schema)) == 1


def test_an_output_schema_that_asks_for_a_secrets_name_is_refused_likewise() -> None:
    agent = {"prompt": "Who?", "output_schema": wants(user=TEXT, password=TEXT)}
    machine = {"stateline": 1, "name": "m", "stages": {"a": {"agent": agent}}}
    _, problems = check(json.dumps(machine).encode(), "m.json")
    (problem,) = problems
    assert problem.code == "masked_property"
    assert problem.where.endswith("stages.a.agent.output_schema.properties.password")
    assert "rename" in problem.hint
