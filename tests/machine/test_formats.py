"""YAML and JSON machine files as raw trees: the same meaning, strict, with the place of everything."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

import yaml
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.definition.formats.document import Document
from stateline.machine.definition.formats.reader import read
from stateline.machine.problems import Problem


def found(data: bytes | str, name: str = "m.yaml") -> tuple[Problem, ...]:
    return read(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data, name).findings.problems()


def value(data: str, name: str = "m.yaml") -> Any:
    document = read(data.encode(), name)
    assert document.findings.problems() == ()
    assert document.complete
    return document.value


NORWAY = [
    "yes",
    "no",
    "on",
    "off",
    "y",
    "n",
    "Yes",
    "NO",
    "True",
    "FALSE",
    "TRUE",
    "Null",
    "NULL",
    "~",
    "2026-11-20",
    "2001-12-14t21:59:43.10-05:00",
    "1:30",
    "190:20:30",
    "0o17",
    "017",
    "0x1f",
    "0b11",
    "1_000",
    "+1",
    ".5",
    "1.",
    "1.e3",
    "-.5",
    ".inf",
    "-.inf",
    ".Inf",
    ".nan",
    ".NaN",
    "NaN",
    "Infinity",
    "1e",
    "0x",
    "12e03x",
    "=",
    "<<",
    "-",
    "1,000",
    "00",
    "-01",
    "\u0661",
]


def test_what_json_does_not_know_is_text() -> None:
    def one_case(text: str) -> None:
        assert value(f"key: {text}\n") == {"key": text}
        assert value(f"- {text}\n") == [text]

    for_each(one_case, [(case,) for case in [word for word in NORWAY if word not in ("<<", "-")]])


def test_a_key_is_always_text() -> None:
    def one_case(text: str) -> None:
        assert value(f"{text}: 1\n") == {text: 1}

    for_each(one_case, ["yes", "on", "1", "true", "null", "1:30", "2026-11-20", "~", "1.0"])


def test_json_words_and_numbers_have_their_json_type() -> None:
    def one_case(text: str) -> None:
        expected = json.loads(text)
        for data, name in ((f"[{text}]", "m.json"), (f"- {text}\n", "m.yaml"), (f"[{text}]", "m.yml")):
            again = value(data, name)
            assert again == [expected]
            assert type(again[0]) is type(expected)

    for_each(
        one_case,
        [
            "null",
            "true",
            "false",
            "0",
            "-0",
            "17",
            "-17",
            "1.0",
            "1.5e3",
            "1E-2",
            "1e5",
            "0.1",
            "18446744073709551615",
            "-9223372036854775808",
        ],
    )


def test_what_is_quoted_is_text() -> None:
    def one_case(text: str) -> None:
        assert isinstance(value(f"key: {text}\n")["key"], str)

    for_each(one_case, ["'1'", '"true"', "'null'", "|-\n    1", ">-\n    true", "''"])


def test_an_empty_yaml_value_is_null() -> None:
    assert value("a:\nb: [x, ]\nc: ''\n") == {"a": None, "b": ["x"], "c": ""}


def test_yaml_takes_what_people_write() -> None:
    text = "---  # comment\na: é\nb: |\n  two\n  lines\nc: {d: [1, 'x']}\n? e\n: f\n...\n"
    assert value(text) == {"a": "é", "b": "two\nlines\n", "c": {"d": [1, "x"]}, "e": "f"}


def test_a_yaml_file_that_is_not_plain_is_refused_with_its_place() -> None:
    def one_case(data: bytes | str, code: str, where: str) -> None:
        problems = found(data)
        assert [(problem.code, problem.where) for problem in problems] == [(code, where)]
        assert problems[0].severity == "error"
        assert problems[0].hint

    for_each(
        one_case,
        [
            ("a: 1\nb: 2\na: 3\n", "duplicate_key", "3:1 a"),
            ("x: {a: 1, 'a': 2}\n", "duplicate_key", "1:11 x.a"),
            ("x:\n  - {1: 1, '1': 2}\n", "duplicate_key", "2:12 x[0].1"),
            ("a: !!str 1\n", "yaml_tag", "1:4 a"),
            ("a: !!python/object/apply:os.system [x]\n", "yaml_tag", "1:4 a"),
            ("a: ! 1\n", "yaml_tag", "1:4 a"),
            ("a: ! 1e999\n", "yaml_tag", "1:4 a"),
            ("!x a: 1\n", "yaml_tag", "1:1 a"),
            ("a: &x 1\n", "yaml_anchor", "1:4 a"),
            ("a: [1, *x]\n", "yaml_alias", "1:8 a[1]"),
            ("a:\n  <<: {b: 1}\n", "yaml_merge", "2:3 a"),
            ("a: 1\n?\n: 2\n", "bad_key", "2:2"),
            ("a: 1\n? [x, y]\n: 2\n", "bad_key", "2:3"),
            ("a: 1\n---\nb: 2\n", "multiple_documents", "2:1"),
            ("%YAML 1.1\n---\na: 1\n", "yaml_directive", "1:1"),
            ("a: 1e999\n", "number_range", "1:4 a"),
            ("a: -9223372036854775809\n", "number_range", "1:4 a"),
            ("a: 18446744073709551616\n", "number_range", "1:4 a"),
            ("a: " + "9" * 10_000 + "\n", "number_range", "1:4 a"),
            ("a: b: c\n", "syntax", "1:5"),
            ("a:\n\tb: 1\n", "syntax", "2:1"),
            ("a: [1\n", "syntax", "2:1"),
            ("a: @x\n", "syntax", "1:4"),
            ("", "syntax", "1:1"),
            ("# nothing\n", "syntax", "1:1"),
            ('a: "\\ud800"\n', "syntax", "1:7"),
            ("é: \x07\n", "syntax", "1:4"),
            ("a: 1\nb: \x00\n", "syntax", "2:4"),
            ("é:\n  x: " + "[" * 200 + "\n", "too_deep", "2:132"),
            ("[" * 100_000, "too_deep", "1:129"),
            ("- " * 50_000, "too_deep", "1:257"),
            (b"\xef\xbb\xbfa: 1\n", "encoding", "1:1"),
            (b"a: 1\nb: \xc3\xa9\xff\n", "encoding", "2:5"),
            ("a: 1\n".encode("utf-16"), "encoding", "1:1"),
            ("a: \ud800\n", "encoding", "1:4"),
            (b" " * (16 * 1024 * 1024 + 1), "too_large", "1:1"),
        ],
    )


def test_a_json_file_that_is_not_strict_is_refused_with_its_place() -> None:
    def one_case(data: bytes | str, code: str, where: str) -> None:
        problems = found(data, "m.json")
        assert [(problem.code, problem.where) for problem in problems] == [(code, where)]

    for_each(
        one_case,
        [
            ('{"a": 1,\n "b": 2, "a": 3}', "duplicate_key", "2:10 a"),
            ('{"a": {"\\u0062": 1, "b": 2}}', "duplicate_key", "1:21 a.b"),
            ('{"a": NaN}', "syntax", "1:7"),
            ('{"a": -Infinity}', "syntax", "1:7"),
            ('{"a": 01}', "syntax", "1:7"),
            ('{"a": 1.}', "syntax", "1:7"),
            ('{"a": .5}', "syntax", "1:7"),
            ('{"a": +1}', "syntax", "1:7"),
            ('{"a": 0x1f}', "syntax", "1:7"),
            ('{"a": yes}', "syntax", "1:7"),
            ('{"a": \u0661}', "syntax", "1:7"),
            ('{"a": 1e999}', "number_range", "1:7 a"),
            ('{"a": [1, 18446744073709551616]}', "number_range", "1:11 a[1]"),
            ('{"a": 1,}', "syntax", "1:9"),
            ('{"a": [1,]}', "syntax", "1:10"),
            ('{"a": 1 // c\n}', "syntax", "1:9"),
            ("{'a': 1}", "syntax", "1:2"),
            ("{a: 1}", "syntax", "1:2"),
            ('{"a" 1}', "syntax", "1:6"),
            ('{"a": 1} {}', "syntax", "1:10"),
            ('{"a": [1, 2}', "syntax", "1:12"),
            ('{"a": \n', "syntax", "2:1"),
            ("", "syntax", "1:1"),
            ('{"a": "b\nc"}', "syntax", "1:7 a"),
            ('{"a": "b\tc"}', "syntax", "1:7 a"),
            ('{"a": "\\x"}', "syntax", "1:7 a"),
            ('{"a": "b', "syntax", "1:7 a"),
            ('{"é": "\\ud800"}', "encoding", "1:7 ['é']"),
            ('{"\\udc00": 1}', "encoding", "1:2"),
            ('{"\xa0": 1}\xa0', "syntax", "1:9"),
            ("[" * 100_000, "too_deep", "1:129"),
            ('{"a":' * 100_000, "too_deep", "1:641"),
            (b'\xef\xbb\xbf{"a": 1}', "encoding", "1:1"),
            (b'{"a": "\xff"}', "encoding", "1:8"),
        ],
    )


def test_json_escapes_that_yaml_does_not_know_are_read() -> None:
    assert value('{"a\\/b":\t"\\ud83d\\ude00\\u0000\\b"\r\n}', "m.json") == {"a/b": "😀\x00\b"}


def test_an_alias_bomb_is_refused_without_being_expanded() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    began = time.monotonic()
    problems = found("\n".join(lines))
    assert {problem.code for problem in problems} == {"yaml_anchor", "yaml_alias"}
    assert time.monotonic() - began < 5


def test_every_recoverable_mistake_is_reported_in_file_order() -> None:
    problems = found("a: !x 1\nb: &y 2\nc: *y\na: 1e999\n")
    assert [(problem.code, problem.where.split()[0]) for problem in problems] == [
        ("yaml_tag", "1:4"),
        ("yaml_anchor", "2:4"),
        ("yaml_alias", "3:4"),
        ("duplicate_key", "4:1"),
        ("number_range", "4:4"),
    ]


def test_very_many_mistakes_are_cut_and_counted() -> None:
    problems = found("- *x\n" * 2000)
    assert len(problems) == 501
    assert problems[-1].message == "1500 more problems are not listed"


def test_another_ending_is_refused() -> None:
    def one_case(name: str) -> None:
        (problem,) = found("a: 1\n", name)
        assert problem.code == "unknown_format"
        assert ".json, .py, .toml, .yaml, .yml" in problem.message
        assert problem.message.isprintable()

    for_each(one_case, ["m.ini", "m", "", "yaml", "m.yaml.bak", "dir.yaml/m", "m.\x1b[0m", "m\x00"])


def test_the_ending_says_the_format() -> None:
    def one_case(name: str) -> None:
        assert value("a: yes\n", name) == {"a": "yes"}

    for_each(one_case, ["m.YAML", "x/y z/m.yml", "C:\\x\\m.Yaml"])


def test_every_path_has_its_place() -> None:
    def one_case(data: str, name: str) -> None:
        places = read(data.encode(), name).findings.positions
        assert set(places) == {(), ("a",), ("a", 0), ("a", 0, "b"), ("a", 0, "c"), ("a", 1), ("a", 1, 0), ("a", 1, 1)}
        lines = data.splitlines()
        for path, (line, column) in places.items():
            if path and isinstance(path[-1], str):
                assert lines[line - 1][column - 1 :].lstrip('"').startswith(path[-1])
        assert (places[("a", 1, 1)], name) in (((5, 6), "m.yaml"), ((5, 6), "m.json"))

    for_each(
        one_case,
        [
            ("a:\n  - b: 1\n    c: x\n  - [y,\n     z]\n", "m.yaml"),
            ('{"a":\n  [{ "b": 1,\n     "c": "x"},\n   ["y",\n     "z"]]}', "m.json"),
        ],
    )


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(NORWAY),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


class _Plain(yaml.SafeDumper):
    """Writes no anchors; floats as Python does, everything else as the dumper decides."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.1 knows 1.0e+20 only, and would write the text "1e5" without quotes; what is tested here is JSON's spelling.
_Plain.add_representer(float, lambda dumper, x: dumper.represent_scalar("tag:yaml.org,2002:float", repr(x)))
_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?[0-9][0-9.]*[eE][+-]?[0-9]+$"), list("-0123456789")
)


def same(left: Any, right: Any) -> bool:
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@given(trees, st.sampled_from([None, 2]), st.booleans())
def test_json_text_is_read_as_the_standard_library_reads_it(tree: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    assert same(value(text, "m.json"), json.loads(text))


@given(trees, st.sampled_from([False, None]))
def test_yaml_and_json_of_the_same_tree_are_read_the_same(tree: Any, style: bool | None) -> None:
    text = yaml.dump(tree, Dumper=_Plain, default_flow_style=style)
    assert same(value(text), value(json.dumps(tree), "m.json"))


@given(st.binary(max_size=200), st.sampled_from(["m.yaml", "m.json", "m.toml", "m.py"]))
def test_random_bytes_give_a_tree_or_problems(data: bytes, name: str) -> None:
    document: Document = read(data, name)
    assert document.complete or document.findings.failed
    assert all(problem.message.isprintable() for problem in document.findings.problems())


@given(
    st.text(alphabet="{}[]\"':,#&*!|>%@`-?\\ \n\tab01.e<~\ud800\u2028", max_size=60),
    st.sampled_from(["m.yaml", "m.json", "m.toml"]),
)
def test_random_syntax_gives_a_tree_or_problems(text: str, name: str) -> None:
    document = read(text.encode("utf-8", "surrogatepass"), name)
    assert document.complete or document.findings.failed
    json.dumps(document.value, allow_nan=False)


def test_no_float_that_was_read_is_infinite() -> None:
    assert math.isfinite(value("a: 1.7976931348623157e308\n")["a"])


def test_a_large_file_is_read_in_reasonable_time() -> None:
    text = json.dumps({f"k{i}": {"v": i, "text": "x" * 20} for i in range(20_000)}, indent=1)
    began = time.monotonic()
    assert same(value(text, "m.json"), value(text, "m.yaml"))
    assert time.monotonic() - began < 20


def test_no_json_text_takes_quadratic_time() -> None:
    def one_case(text: str) -> None:
        began = time.monotonic()
        assert found(text, "m.json")
        assert time.monotonic() - began < 5

    for_each(one_case, ['"' + "\\a" * 100_000, '"a' * 200_001, "9" * 300_000, "[" + " " * 1_000_000, ":" * 100_000])
