"""Expressions that are valid in other languages but not in CEL, and their hints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.expressions.cel import compile_error

FOREIGN = [
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
    ("output == 'x", "a string is not closed (column 11)", "end it with the quote that begins it"),
    ("len(state.todos) > 1", "unknown function 'len' (column 4)", "size(x)"),
    ("foo(state.todos) > 1", "unknown function 'foo' (column 4)", "see the functions of CEL"),
    ("input &&\nnot output", "`not` is not CEL (line 2, column 1)", "write ! for `not`"),
]


def test_an_operator_of_another_language_is_reported_with_its_column_and_replacement() -> None:
    failures = []
    for expression, message, hint in FOREIGN:
        found = compile_error(expression)
        if found is None or message not in found.message or not found.hint.startswith(hint):
            failures.append(f"{expression}: {found} ({found.hint if found else ''})")
    assert not failures, "\n".join(failures)


def test_several_foreign_operators_are_reported_once_each() -> None:
    found = compile_error("not output.a and not output.b and output.c = None")
    assert found is not None
    assert found.hint == "write ! for `not`, && for `and`, == for `=`, null for `None`"
    assert found.message.count("not CEL") == 4


def test_words_in_strings_are_not_examined() -> None:
    for expression in (
        "output == 'not = and None'",
        'output.x == "a = b"',
        "output.map(x, x).size() == 1",
        "output['is'] != null",
    ):
        assert compile_error(expression) is None
        broken = compile_error(f"{expression} +")
        assert broken is not None
        assert "not CEL" not in broken.message


def test_a_foreign_operator_does_not_hide_an_unknown_name() -> None:
    found = compile_error("outptu.x == None")
    assert found is not None
    assert "`None` is not CEL (column 13)" in found.message
    assert "unknown name 'outptu' (column 1)" in found.message


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
def test_any_expression_that_does_not_compile_gets_a_message_on_one_line(expression: str) -> None:
    found = compile_error(expression)
    if found is not None:
        assert found.message
        assert "\n" not in found.message + found.hint
