"""Mistakes of people who know another language: an expression that CEL does not read, and the hint that mends it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.definition.check import check
from stateline.machine.expressions.cel import mistake

SLIPS = [
    ("output.a = 1", "`=` is not CEL (column 10)", "write == for `=`"),
    ("output.a === 1", "`===` is not CEL (column 10)", "write == for `===`"),
    ("output.a <> 1", "`<>` is not CEL (column 10)", "write != for `<>`"),
    ("output.a!=1 & true", "`&` is not CEL (column 13)", "write && for `&`"),
    ("not output.a", "`not` is not CEL (column 1)", "write ! for `not`"),
    ("output.a and output.b", "`and` is not CEL (column 10)", "write && for `and`"),
    ("input or state", "`or` is not CEL (column 7)", "write || for `or`"),
    ("output == None", "`None` is not CEL (column 11)", "write null for `None`"),
    ("output == True", "`True` is not CEL (column 11)", "write true for `True`"),
    ("output is null", "`is` is not CEL (column 8)", "write == for `is`"),
    ("output is not null", "`is not` is not CEL (column 8)", "write != for `is not`"),
    ("'x' not in output", "`not in` is not CEL (column 5)", "write !(x in y) for `not in`"),
    ("if output.a then 1 else 2", "`if` is not CEL (column 1)", "write condition ? a : b for `if`"),
    ("state.n += 1", "`+=` is not CEL (column 9)", "write the new value alone, as state.count + 1, for `+=`"),
    ("output == 'x", "a string is not closed (column 11)", "end it with the quote with which it begins"),
    ("len(state.todos) > 1", "unknown function 'len' (column 4)", "write size(...)"),
    ("state.name.startswith('a')", "unknown function 'startswith' (column 22)", "write startsWith(...)"),
    ("contain(output, 'x')", "unknown function 'contain' (column 8)", "did you mean 'contains'?"),
    ("state.todos.any(x, x.done)", "unknown function 'any' (column 16)", "write exists(x, ...)"),
    ("input &&\nnot output", "`not` is not CEL (line 2, column 1)", "write ! for `not`"),
]


@pytest.mark.parametrize(("expression", "message", "hint"), SLIPS)
def test_another_languages_word_is_named_with_its_place_and_what_cel_writes(
    expression: str, message: str, hint: str
) -> None:
    found = mistake(expression)
    assert found is not None
    assert message in found.message
    assert found.hint.startswith(hint)


def test_several_slips_are_told_at_once_and_each_once() -> None:
    found = mistake("not output.a and not output.b and output.c = None")
    assert found is not None
    assert found.hint == "write ! for `not`, && for `and`, == for `=`, null for `None`"
    assert found.message.count("not CEL") == 4


@pytest.mark.parametrize(
    "expression",
    ["output == 'not = and None'", 'output.x == "a = b"', "output.map(x, x).size() == 1", "output['is'] != null"],
)
def test_words_in_strings_are_no_mistake(expression: str) -> None:
    assert mistake(expression) is None
    broken = mistake(f"{expression} +")
    assert broken is not None
    assert "not CEL" not in broken.message


def test_a_slip_does_not_hide_a_name_that_is_unknown() -> None:
    found = mistake("outptu.x == None")
    assert found is not None
    assert "`None` is not CEL (column 13)" in found.message
    assert "unknown name 'outptu' (column 1)" in found.message


def problems(**members: Any) -> list[tuple[str, str, str]]:
    stages = {"first": {"task": ["true"], "routes": [{"when": members.pop("when"), "to": "last"}]}, "last": {"end": {}}}
    document = {"stateline": 1, "name": "m", **members, "stages": stages}
    machine, found = check(json.dumps(document).encode(), "m.json")
    assert machine is None
    return [(problem.code, problem.message, problem.hint) for problem in found if problem.severity == "error"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("todos", "state.todos"), ("done", "state.done"), ("size_of", "input.size_of"), ("last", "outputs.last")],
)
def test_a_single_name_that_the_file_knows_is_shown_with_its_root(name: str, meant: str) -> None:
    found = problems(
        when=f"true && {name} == 1",
        state={"todos": []},
        state_schema={"type": "object", "properties": {"done": {}}},
        input={"type": "object", "properties": {"size_of": {}, "todos": {}}},
    )
    assert found == [("bad_expression", f"unknown name {name!r} (column 9)", f"did you mean {meant}?")]


def test_a_misspelt_field_is_shown_as_well() -> None:
    ((_, _, hint),) = problems(when="state_todos == []", state={"todos": []})
    assert hint.startswith("did you mean 'state.todos'?")


def test_the_place_in_the_file_is_told_with_the_place_in_the_expression() -> None:
    text = b"""\
stateline: 1
name: m
state: {todos: []}
stages:
  first:
    agent: {prompt: "Rank {{ todos }}"}
    set: {n: "len(state.todos)"}
"""
    _, found = check(text, "m.yaml")
    assert [(problem.where.split()[0], problem.message, problem.hint) for problem in found] == [
        ("6:13", "in {{ todos }}: unknown name 'todos' (column 2); did you mean state.todos?", ""),
        ("7:11", "unknown function 'len' (column 4)", "write size(...)"),
    ]


PIECES = st.sampled_from(
    [
        "output",
        ".a",
        " = ",
        " == ",
        "not ",
        " and ",
        "None",
        "'",
        '"',
        "=",
        "!",
        "&",
        "if ",
        "x",
        "\n",
        "(",
        ")",
        "ä",
        "1",
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_whatever_is_written_gets_one_line_that_says_what_is_wrong(expression: str) -> None:
    found = mistake(expression, {"x": "state.x"})
    if found is not None:
        assert found.message
        assert "\n" not in found.message + found.hint


def test_expressions_are_evaluated_without_what_explains_mistakes() -> None:
    code = (
        "import sys; from stateline.machine.expressions.cel import ExpressionError, evaluate; evaluate('1 + 1', {});"
        "before = 'stateline.machine.expressions.cel_hints' in sys.modules\n"
        "try: evaluate('len(input)', {'input': []})\n"
        "except ExpressionError as error: print(before, error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("False write size(...)")
