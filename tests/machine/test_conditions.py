"""CEL conditions, expressions and templates: right values, and a ExpressionError for everything else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.expressions.cel import (
    NAMES,
    ExpressionError,
    decide,
    evaluate,
    problem,
    render,
    template_problems,
)


def scope(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(NAMES) | values


def refusal(expression: str, **values: Any) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        evaluate(expression, scope(**values))
    assert "\n" not in caught.value.message
    return caught.value


# The library cuts text at a NUL character; that such data is refused is a test of its own.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner),
    max_leaves=12,
)


@given(json_values)
def test_every_json_value_comes_back_with_its_type(value: Any) -> None:
    again = evaluate("state", scope(state=value))
    assert json.dumps(again, sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("input.n + 1", 3),
        ("input.f + 0.5", 2.0),
        ("input.big", 2**64 - 1),
        ("input.items.map(i, i * 2)", [2, 4]),
        ("{'a': [null, true]}", {"a": [None, True]}),
        ("input.n == 2.0", True),
        ("has(input.nothing)", False),
        ("'n' in input", True),
        ("visits.size() > 0 || output == null", True),
        ("'again'.matches('^a.*n$')", True),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_an_expression_has_its_value(expression: str, value: Any) -> None:
    names = scope(input={"n": 2, "f": 1.5, "big": 2**64 - 1, "items": [1, 2]}, visits={})
    result = evaluate(expression, names)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    "expression",
    [
        "b'x'",
        "[b'x']",
        "{'a': timestamp('2020-01-01T00:00:00Z')}",
        "duration('1s')",
        "type(1)",
        "[int]",
        "1.0 / 0.0",
        "0.0 / 0.0",
        "[1e400]",
        "{1: 2}",
        "{true: 1}",
        "[{'a': {1u: 2}}]",
    ],
)
def test_a_result_that_is_not_json_is_refused(expression: str) -> None:
    assert "not a JSON value" in refusal(expression).message


@pytest.mark.parametrize("expression", ["1 / 0", "[1 / 0]", "{'a': 1 % 0}", "9223372036854775807 + 1", "int('x')"])
def test_an_error_that_the_library_gives_back_as_a_value_is_raised(expression: str) -> None:
    refusal(expression)


def test_a_missing_key_hints_at_has_with_the_whole_path() -> None:
    error = refusal("output.verdict.word == 'again'", output={"verdict": {}})
    assert error.message == "the key 'word' is missing"
    assert "has(output.verdict.word)" in error.hint


def test_a_missing_key_in_brackets_hints_at_in() -> None:
    assert "in x" in refusal("output['a b']", output={}).hint


def test_a_key_of_something_that_is_no_object_is_refused_with_a_hint() -> None:
    for output in (None, 3, "text"):
        assert "has(output.x)" in refusal("output.x", output=output).hint


@pytest.mark.parametrize("value", [1.5, 2**63])
def test_mixing_kinds_of_numbers_hints_at_double(value: Any) -> None:
    error = refusal("input.x + 1", input={"x": value})
    assert "double(" in error.hint
    assert "+ does not take" in error.message


def test_mixing_literal_numbers_is_found_when_compiling() -> None:
    found = problem("1 + 2.5")
    assert found is not None
    assert "double(" in found


def test_an_unknown_name_is_told_with_its_column_and_the_nearest_name() -> None:
    error = refusal("1 == ouput.x")
    assert error.message == "unknown name 'ouput' (column 6)"
    assert "did you mean 'output'?" in error.hint
    assert all(name in error.hint for name in NAMES)


def test_a_bare_word_hints_at_quotes() -> None:
    assert "quotes" in refusal("output == again").hint


def test_every_unknown_name_is_told() -> None:
    assert "'foo'" in (text := problem("foo + bar") or "")
    assert "'bar'" in text


def test_an_unknown_function_is_told_as_one() -> None:
    assert refusal("now() == 1").message.startswith("unknown function 'now'")


def test_a_name_that_was_not_given_is_refused() -> None:
    with pytest.raises(ExpressionError, match="no value here"):
        evaluate("output", {"input": 1})


@pytest.mark.parametrize("value", [True, False])
def test_a_condition_is_decided_by_a_bool(value: bool) -> None:
    assert decide("output.ok", scope(output={"ok": value})) is value


@pytest.mark.parametrize("value", [None, 0, 1, 1.0, "true", "", [], [True], {}])
def test_a_condition_that_gives_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ExpressionError, match="not true or false") as caught:
        decide("output.ok", scope(output={"ok": value}))
    assert "compare it" in caught.value.hint


@pytest.mark.parametrize("expression", ["!output", "output && true", "output ? true : false", "output || false"])
def test_a_part_of_a_condition_that_is_no_bool_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        decide(expression, scope(output="yes"))
    assert "compare it" in caught.value.hint


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "  \n",
        "(" * 1000 + "1" + ")" * 1000,
        "(" * 500_000,
        "'" + "a" * 200_000 + "'",
        "[" * 90_000,
        "+".join(["1"] * 20_000),
        "input" + ".a" * 5000,
        "true?1:" * 2000 + "2",
        "'\ud800'",
        "\ud800",
        "a\x00b",
        "'\\ud800'",
        "99999999999999999999",
        "{'a': 1, 'a': 2}",
        "1 2",
        "in",
        "/* */ 1",
        "optional.of(1)",
        "google.protobuf.Any{}",
        "'a'.matches('(')",
        "[1,2,3,4,5,6,7,8,9,0].map(a,[1,2,3,4,5,6,7,8,9,0].map(b,[1,2,3,4,5,6,7,8,9,0].map(c,"
        "[1,2,3,4,5,6,7,8,9,0].map(d,[1,2,3,4,5,6,7,8,9,0].map(e, 1)))))",
    ],
)
def test_a_hostile_expression_is_refused_on_one_line(expression: str) -> None:
    error = refusal(expression)
    assert error.message.isprintable()
    assert len(error.message) < 1000


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [deep(131), deep(100_000), {"a": deep(100_000)}, "\ud800", {"\ud800": 1}, 2**64, float("nan"), (1,), b"x", {1: 2}],
)
def test_hostile_data_is_refused(value: Any) -> None:
    error = refusal("input == state", input=value)
    assert "`input` holds what JSON cannot" in error.message


@pytest.mark.parametrize("value", ["\0", "yes\0no", {"a": ["\\\0"]}, {"\0": 1}])
def test_text_with_a_nul_character_is_refused_and_not_cut(value: Any) -> None:
    assert "NUL" in refusal("output == 'yes'", output=value).message


@pytest.mark.parametrize("value", ["\\u0000", "\\\\u0000", "u0000", "\\0"])
def test_text_that_only_looks_like_an_escaped_nul_is_taken(value: str) -> None:
    assert evaluate("output", scope(output=value)) == value


def test_data_that_the_expression_does_not_name_is_not_looked_at() -> None:
    assert evaluate("input", scope(input=1, state=deep(100_000))) == 1


def test_huge_data_is_taken() -> None:
    assert evaluate("state.text.size()", scope(state={"text": "x" * 5_000_000})) == 5_000_000


@given(st.text())
def test_any_text_is_a_value_or_a_condition_error(expression: str) -> None:
    try:
        evaluate(expression, scope())
        message = ""
    except ExpressionError as error:
        message = error.message
    assert message.isprintable()


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{{ input.name }}", "Ann"),
        ("{{input.name}}{{ input.name }}", "AnnAnn"),
        ("a {{ input.n }} b", "a 2 b"),
        ("{{ input.f }}", "2.0"),
        ("{{ input.z }}", '{"a":[null,true],"b":"ü"}'),
        ("{{ output }}", "null"),
        ("{{ '{{' }}", "{{"),
        ("{{ '}}' }}", "}}"),
        ('{{ "it\'s }}" }}', "it's }}"),
        ("{{ 'a\\'}}' }}", "a'}}"),
        ("{{ r'}}\\d' }}", "}}\\d"),
        ("{{ '''a'}}''' }}", "a'}}"),
        ("{{ {'a': {'b': 1}} }}", '{"a":{"b":1}}'),
        ("{{ {'a': {'b': 1}}}}", '{"a":{"b":1}}'),
        ("a } b }} c { d", "a } b }} c { d"),
        ("{{\n  input.name\n}}\n", "Ann\n"),
        ("{{ input.trick }}", "{{ input.name }}"),
    ],
)
def test_a_template_is_rendered(template: str, text: str) -> None:
    data = {"name": "Ann", "n": 2, "f": 2.0, "z": {"b": "ü", "a": [None, True]}, "trick": "{{ input.name }}"}
    assert render(template, scope(input=data)) == text
    assert template_problems(template) == []


@pytest.mark.parametrize(
    "template",
    [
        "{{",
        "a {{ input",
        "{{ 'a }}",
        "{{ input }",
        "{{ { }}",
        "{{ }}",
        "{{}}",
        "{{ nope }}",
        "{{ 1 + }}",
        "\ud800",
        "{{ ' }}",
    ],
)
def test_a_broken_template_is_refused_when_rendered_and_when_checked(template: str) -> None:
    with pytest.raises(ExpressionError):
        render(template, scope())
    assert len(template_problems(template)) == 1


def test_an_unclosed_template_tells_its_place() -> None:
    assert "line 2, column 4" in template_problems("a\nbc {{ input")[0]


def test_every_expression_of_a_template_is_checked_up_to_where_it_breaks_off() -> None:
    found = template_problems("{{ foo }} {{ input }} {{ bar }} {{ input")
    assert ["'foo'" in found[0], "'bar'" in found[1], "not closed" in found[2], len(found)] == [True, True, True, 3]


@given(st.text(st.characters(exclude_characters="{\0", exclude_categories=["Cs"])))
def test_text_without_braces_is_its_own_rendering(text: str) -> None:
    assert render(text, {}) == text
    assert render("{{ input }}", {"input": text}) == text


@given(st.text(alphabet="{}'\"\\ r\nab.input", max_size=40))
def test_any_template_is_text_or_a_condition_error(template: str) -> None:
    try:
        assert isinstance(render(template, scope(input="x")), str)
        assert template_problems(template) == []
    except ExpressionError:
        pass


def test_a_long_unclosed_template_is_refused_quickly() -> None:
    for text in ("{{ " * 200_000, "{{ " + "'a' + " * 100_000, "{{" + "{" * 500_000, "{{ r" + "'''" * 100_000):
        assert len(template_problems(text)) == 1


def test_importing_the_module_loads_no_cel() -> None:
    code = "import sys, stateline.machine.expressions.cel; sys.exit('cel_expr_python' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
