"""TOML machine files as raw trees: the library's values, with the place of everything, and nothing JSON lacks."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.definition.check import check
from stateline.machine.definition.formats.reader import read
from stateline.machine.problems import Path


def told(data: str | bytes) -> list[tuple[str, str]]:
    document = read(data if isinstance(data, bytes) else data.encode(), "m.toml")
    assert document.complete or document.findings.failed
    return [(problem.code, problem.where) for problem in document.findings.problems()]


@pytest.mark.parametrize(
    ("data", "code", "where"),
    [
        ("a = 1\nb = 2\na = 3\n", "duplicate_key", "3:1 a"),
        ("x = {a = 1, 'a' = 2}\n", "duplicate_key", "1:13 x.a"),
        ("a = 1\n\n  a = '''\n\n'''\n", "duplicate_key", "3:3 a"),
        ("[x.y]\n[z]\n[x.y]\n", "duplicate_key", "3:4 x.y"),
        ('"\\u0061" = 1\na = 2\n', "duplicate_key", "2:1 a"),
        ("a = 2026-11-20\n", "date", "1:1 a"),
        ("b = 1\na = [1, 2026-11-20 10:00:00Z]\n", "date", "2:9 a[1]"),
        ("a.b = 10:30:00\n", "date", "1:3 a.b"),
        ("a = inf\n", "number_range", "1:1 a"),
        ("a = [-nan]\n", "number_range", "1:6 a[0]"),
        ("a = 1e999\n", "number_range", "1:1 a"),
        ("a = 18446744073709551616\n", "number_range", "1:1 a"),
        ("a = -9223372036854775809\n", "number_range", "1:1 a"),
        ("a = 0x" + "f" * 9000 + "\n", "number_range", "1:1 a"),
        ("b = 1\na = " + "9" * 9000 + "\n", "number_range", "2:5"),
        ("a = \n", "syntax", "1:5"),
        ("a = yes\n", "syntax", "1:5"),
        ("a = [1\n", "syntax", "1:7"),
        ("\na b = 1\n", "syntax", "2:3"),
        ('a = "x\n', "syntax", "1:7"),
        ('a = "\\ud800"\n', "syntax", "1:12"),
        ("a = {b = 1,}\n", "syntax", "1:12"),
        ("a = 1\n[a.b]\n", "syntax", "2:5"),
        ("a = " + "[" * 100_000, "too_deep", "1:132"),
        ("a." * 100_000 + "b = 1\n", "too_deep", "1:257"),
        ("[" + "a." * 200 + "b]\n", "too_deep", "1:258"),
        (b"\xef\xbb\xbfa = 1\n", "encoding", "1:1"),
        (b"a = 1\nb = '\xff'\n", "encoding", "2:6"),
    ],
)
def test_toml_that_json_cannot_mean_is_refused_with_its_place(data: str | bytes, code: str, where: str) -> None:
    assert told(data) == [(code, where)]


SPELLINGS = """\
# a comment [with] = "signs"
'quoted key' = 1   # another
dotted . "key" = 0x1F
text = \"\"\"
  [not.a.table]
 \\"\"\" more \"\"\"\"\"
raw = '''it's [[no]] ''table'''''
empty = []
list = [ 1.5 , -2e3,  # a comment, with a comma
  [ {a = "}"} , {b.c = ']', 'd' = [true]} ],
]
[t . u]
x = "é # no comment"  # é
[[many]]
n = 1
[[many.inner]]
[[many.inner]]
deep.er = {}
[many.inner.table]
z = 1_000
[[many]]
[many.sub]
k = false
"""


def test_every_path_has_the_place_where_it_is_written() -> None:
    for text in (SPELLINGS, SPELLINGS.replace("\n", "\r\n")):
        document = read(text.encode(), "m.toml")
        assert document.findings.problems() == ()
        assert document.value == tomllib.loads(text)
        places = document.findings.positions
        assert set(places) == set(paths(document.value))
        for path, (line, column) in places.items():
            if path and isinstance(path[-1], str):
                rest = text.splitlines()[line - 1][column - 1 :]
                assert rest.lstrip("'\"").startswith(path[-1]), path
    assert places["list", 2, 1, "b", "c"] == (10, 20)
    assert places["many", 0, "inner", 1, "table", "z"] == (20, 1)
    assert places["many", 1] == (21, 1)
    assert places["list", 1] == (9, 16)


def paths(value: Any, path: Path = ()) -> list[Path]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in parts for found in paths(part, (*path, key)))]


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


@given(st.dictionaries(texts, trees, max_size=4), st.booleans())
def test_any_tree_is_read_as_it_was_written_and_no_place_is_missing(tree: dict[str, Any], tables: bool) -> None:
    plain = {key: part for key, part in tree.items() if not (tables and isinstance(part, dict))}
    text = "".join(f"{inline(key)} = {inline(part)}\n" for key, part in plain.items())
    for key, part in tree.items():
        if key not in plain:
            text += f"[{inline(key)}]\n" + "".join(f"{inline(k)} = {inline(v)}\n" for k, v in part.items())
    document = read(text.encode(), "m.toml")
    assert document.findings.problems() == ()
    assert json.dumps(document.value, sort_keys=True) == json.dumps(tree, sort_keys=True)
    assert set(document.findings.positions) == set(paths(tree))


@given(st.text(alphabet="[]{}=.,#\"'\\ \n\tab01-:_e\x7f\r", max_size=80))
def test_any_text_gives_a_tree_or_a_mistake(text: str) -> None:
    told(text)


def test_a_mistake_in_a_machine_is_told_at_its_key() -> None:
    text = 'stateline = 1\nname = "m"\n[stages.a]\ntask = ["x"]\nroutes = [{when = "true", to = "b"}]\n'
    problems = check(text.encode(), "m.toml")[1]
    assert [(problem.code, problem.where) for problem in problems] == [("unknown_stage", "5:27 stages.a.routes[0].to")]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ('a = """' + '\\"""' * 100_000, ["syntax"]),
        ('a = "' + '\\"' * 200_000, ["syntax"]),
        ('"""' * 100_001, ["syntax"]),
        ("a = [" + "{}, " * 20_000 + "]", []),
        ("a = [" + "[], " * 20_000 + "[", ["syntax"]),
        ("#" * 300_000, []),
        (" " * 300_000 + "=", ["syntax"]),
        ("a.b.c.d.e.f = 1\n" * 20_000, ["duplicate_key"]),
        ("a = 1.0" + ".0" * 100_000, ["syntax"]),
        ("[[a]]\n" * 20_000, []),
    ],
    ids=lambda part: repr(part)[:12],
)
def test_long_hostile_text_is_answered(text: str, codes: list[str]) -> None:
    """Each of them would take minutes if any step went over the rest of the text again."""
    assert [code for code, _ in told(text)] == codes
