"""Templates: text with CEL expressions in double braces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.expressions.cel_errors import NAMES, ExpressionError
from stateline.machine.expressions.templates import render, template_problems


def scope(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(NAMES) | values


def test_a_template_is_rendered() -> None:
    data = {"name": "Ann", "n": 2, "f": 2.0, "z": {"b": "ü", "a": [None, True]}, "trick": "{{ input.name }}"}
    failures = []
    for template, text in (
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
    ):
        if (found := render(template, scope(input=data))) != text or template_problems(template):
            failures.append(f"{template!r}: {found!r}")
    assert not failures, "\n".join(failures)


BROKEN = [
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
]


def test_a_broken_template_is_refused_when_rendered_and_when_checked() -> None:
    for template in BROKEN:
        with pytest.raises(ExpressionError):
            render(template, scope())
        assert len(template_problems(template)) == 1, template


def test_every_expression_of_a_template_is_checked_up_to_an_unclosed_one() -> None:
    found = template_problems("{{ foo }} {{ input }} {{ bar }} {{ input")
    assert ["'foo'" in found[0], "'bar'" in found[1], "not closed" in found[2], len(found)] == [True, True, True, 3]
    assert "line 2, column 4" in template_problems("a\nbc {{ input")[0]


@given(st.text(st.characters(exclude_characters="{\0", exclude_categories=["Cs"])))
def test_text_without_braces_is_rendered_unchanged(text: str) -> None:
    assert render(text, {}) == text
    assert render("{{ input }}", {"input": text}) == text


@given(st.text(alphabet="{}'\"\\ r\nab.input", max_size=40))
def test_any_template_is_text_or_an_expression_error(template: str) -> None:
    try:
        assert isinstance(render(template, scope(input="x")), str)
        assert template_problems(template) == []
    except ExpressionError:
        pass


def test_a_long_unclosed_template_is_refused_without_quadratic_time() -> None:
    for text in ("{{ " * 200_000, "{{ " + "'a' + " * 100_000, "{{" + "{" * 500_000, "{{ r" + "'''" * 100_000):
        assert len(template_problems(text)) == 1
