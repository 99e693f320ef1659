"""CEL expressions and conditions: right values, and an ExpressionError for everything else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.expressions.cel import compile_error, evaluate, evaluate_condition
from stateline.machine.expressions.cel_errors import NAMES, ExpressionError


def scope(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(NAMES) | values


def error_of(evaluation: Callable[[], Any]) -> ExpressionError | None:
    try:
        evaluation()
    except ExpressionError as error:
        found = error
    else:
        return None
    assert found.message.isprintable()
    assert len(found.message) < 1000
    return found


def refusal(expression: str, **values: Any) -> ExpressionError:
    error = error_of(lambda: evaluate(expression, scope(**values)))
    assert error is not None, expression[:100]
    return error


# The library cuts text at a NUL character; another test covers that.
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


def test_an_expression_has_its_value() -> None:
    names = scope(input={"n": 2, "f": 1.5, "big": 2**64 - 1, "items": [1, 2]}, visits={})
    failures = []
    for expression, value in (
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
    ):
        result = evaluate(expression, names)
        if (result, type(result)) != (value, type(value)):
            failures.append(f"{expression}: {result!r}")
    assert not failures, "\n".join(failures)


NOT_JSON = [
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
]


def test_a_result_that_is_not_json_is_refused() -> None:
    failures = [text for text in NOT_JSON if "not a JSON value" not in refusal(text).message]
    assert not failures, "\n".join(failures)


def test_an_error_that_the_library_returns_as_a_value_is_raised() -> None:
    for expression in ("1 / 0", "[1 / 0]", "{'a': 1 % 0}", "9223372036854775807 + 1", "int('x')"):
        refusal(expression)


def test_a_failed_evaluation_has_a_hint() -> None:
    failures = []
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("output.verdict.word == 'again'", {"output": {"verdict": {}}}, "check first with has(x.y)"),
        ("output['a b']", {"output": {}}, "in x"),
        *(("output.x", {"output": output}, "check first") for output in (None, 3, "text")),
        ("input.x + 1", {"input": {"x": 1.5}}, "double("),
        ("input.x + 1", {"input": {"x": 2**63}}, "double("),
        ("1 == ouput.x", {}, "did you mean 'output'?"),
        ("output == again", {}, "quotes"),
        ("[1].map(a, [1].map(b, nope()))", {}, "standard library"),
    ]
    for expression, values, hint in cases:
        if hint not in (found := refusal(expression, **values)).hint:
            failures.append(f"{expression} with {values}: {found.hint}")
    assert not failures, "\n".join(failures)


def test_a_compile_error_names_each_unknown_name_with_its_column() -> None:
    assert refusal("1 == ouput.x").message == "unknown name 'ouput' (column 6)"
    assert all(name in refusal("1 == ouput.x").hint for name in NAMES)
    both = refusal("foo + bar").message
    assert "'foo'" in both
    assert "'bar'" in both
    assert refusal("now() == 1").message.startswith("unknown function 'now'")
    found = compile_error("1 + 2.5")
    assert found is not None
    assert "double(" in found.hint


def test_a_name_without_a_value_is_refused() -> None:
    with pytest.raises(ExpressionError, match="no value here"):
        evaluate("output", {"input": 1})


def test_only_a_bool_decides_a_condition() -> None:
    for value in (True, False):
        assert evaluate_condition("output.ok", scope(output={"ok": value})) is value
    others: list[tuple[str, Any]] = [
        *(("output.ok", {"ok": value}) for value in (None, 0, 1, 1.0, "true", "", [], [True], {})),
        *((text, "yes") for text in ("!output", "output && true", "output ? true : false", "output || false")),
    ]
    failures = []
    for expression, output in others:
        values = scope(output=output)
        error = error_of(lambda expression=expression, values=values: evaluate_condition(expression, values))  # type: ignore[misc]
        if error is None or "compare it" not in error.hint:
            failures.append(f"{expression} with {output!r}: {error}")
    assert not failures, "\n".join(failures)


HOSTILE = [
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
]


def test_a_hostile_expression_is_refused_on_one_line() -> None:
    for expression in HOSTILE:
        refusal(expression)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_hostile_data_is_refused() -> None:
    values: list[Any] = [deep(131), deep(100_000), {"a": deep(100_000)}, "\ud800", {"\ud800": 1}, 2**64, float("nan")]
    for value in [*values, (1,), b"x", {1: 2}]:
        assert "`input` holds what JSON cannot" in refusal("input == state", input=value).message


def test_text_with_a_nul_character_is_refused_and_not_cut() -> None:
    for value in ("\0", "yes\0no", {"a": ["\\\0"]}, {"\0": 1}):
        assert "NUL" in refusal("output == 'yes'", output=value).message
    for text in ("\\u0000", "\\\\u0000", "u0000", "\\0"):
        assert evaluate("output", scope(output=text)) == text


def test_data_that_the_expression_does_not_name_is_not_examined() -> None:
    assert evaluate("input", scope(input=1, state=deep(100_000))) == 1


def test_huge_data_is_accepted() -> None:
    assert evaluate("state.text.size()", scope(state={"text": "x" * 5_000_000})) == 5_000_000


@given(st.text())
def test_any_text_is_a_value_or_an_expression_error(expression: str) -> None:
    error_of(lambda: evaluate(expression, scope()))


def test_importing_the_module_does_not_load_the_library() -> None:
    code = "import sys, stateline.machine.expressions.cel; sys.exit('cel_expr_python' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
