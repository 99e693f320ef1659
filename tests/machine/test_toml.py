"""TOML machine files as raw trees: the values of tomllib, and nothing that JSON lacks."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.definition.check import check
from stateline.machine.definition.formats.reader import read


def problems_of(data: str | bytes) -> list[tuple[str, str]]:
    document = read(data if isinstance(data, bytes) else data.encode(), "m.toml")
    assert document.complete or document.findings.failed
    return [(problem.code, problem.where) for problem in document.findings.problems()]


REFUSED: list[tuple[str | bytes, str, str]] = [
    ("a = 1\nb = 2\na = 3\n", "duplicate_key", "3:6"),
    ("x = {a = 1, 'a' = 2}\n", "duplicate_key", "1:20"),
    ("[x.y]\n[z]\n[x.y]\n", "duplicate_key", "3:5"),
    ("a = 1\n[a.b]\n", "duplicate_key", "2:5"),
    ("a = 2026-11-20\n", "date", "1:1 a"),
    ("b = 1\na = [1, 2026-11-20 10:00:00Z]\n", "date", "1:1 a[1]"),
    ("a.b = 10:30:00\n", "date", "1:1 a.b"),
    ("a = inf\n", "number_range", "1:1 a"),
    ("a = [-nan]\n", "number_range", "1:1 a[0]"),
    ("a = 1e999\n", "number_range", "1:1 a"),
    ("a = 18446744073709551616\n", "number_range", "1:1 a"),
    ("a = -9223372036854775809\n", "number_range", "1:1 a"),
    ("a = 0x" + "f" * 9000 + "\n", "number_range", "1:1 a"),
    ("b = 1\na = " + "9" * 9000 + "\n", "number_range", "1:1"),
    ("a = \n", "syntax", "1:5"),
    ("a = yes\n", "syntax", "1:5"),
    ("a = [1\n", "syntax", "1:1"),
    ("\na b = 1\n", "syntax", "2:3"),
    ('a = "x\n', "syntax", "1:7"),
    ('a = "\\ud800"\n', "syntax", "1:12"),
    ("a = " + "[" * 100_000, "too_deep", "1:1"),
    ("a = " + "[" * 130 + "]" * 130, "too_deep", "1:1"),
    ("b = 1\n" + "a." * 100_000 + "b = 1\n", "too_deep", "2:1"),
    ("[" + "a." * 200 + "b]\n", "too_deep", "1:1"),
    (b"\xef\xbb\xbfa = 1\n", "encoding", "1:1"),
    (b"a = 1\nb = '\xff'\n", "encoding", "2:6"),
]


def test_toml_without_a_meaning_in_json_is_refused() -> None:
    failures = []
    for data, code, where in REFUSED:
        found = problems_of(data)
        if found != [(code, where)]:
            failures.append(f"{data[:40]!r}: {found}, not {code} at {where}")
    assert not failures, "\n".join(failures)


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{inline(key)} = {inline(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
trees = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["[a]", "a = 1", '"""', "'''", "#", "\\", "}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=15,
)


@given(st.dictionaries(texts, trees, max_size=4))
def test_any_tree_is_read_as_it_was_written(tree: dict[str, Any]) -> None:
    document = read("".join(f"{inline(key)} = {inline(part)}\n" for key, part in tree.items()).encode(), "m.toml")
    assert document.findings.problems() == ()
    assert json.dumps(document.value, sort_keys=True) == json.dumps(tree, sort_keys=True)


@given(st.text(alphabet="[]{}=.,#\"'\\ \n\tab01-:_e\x7f\r", max_size=80))
def test_any_text_gives_a_tree_or_a_mistake(text: str) -> None:
    problems_of(text)


def test_a_mistake_in_a_machine_is_reported_with_its_key_path() -> None:
    text = 'stateline = 1\nname = "m"\n[stages.a]\ntask = ["x"]\nroutes = [{when = "true", to = "b"}]\n'
    problems = check(text.encode(), "m.toml")[1]
    assert [(problem.code, problem.where) for problem in problems] == [("unknown_stage", "1:1 stages.a.routes[0].to")]


def test_long_hostile_text_is_answered_without_quadratic_time() -> None:
    for text, codes in (
        ('a = """' + '\\"""' * 100_000, ["syntax"]),
        ('a = "' + '\\"' * 200_000, ["syntax"]),
        ('"""' * 100_001, ["syntax"]),
        ("a = [" + "{}, " * 20_000 + "]", []),
        ("#" * 300_000, []),
        ("a.b.c.d.e.f = 1\n" * 20_000, ["duplicate_key"]),
        ("a = 1.0" + ".0" * 100_000, ["too_deep"]),
        ("[[a]]\n" * 20_000, []),
    ):
        assert [code for code, _ in problems_of(text)] == codes, text[:20]
