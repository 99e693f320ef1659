"""Parsing of answers, and the names of default contexts, against independent oracles."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.contexts.context import ContextRequest, default_name, derive, refine
from stateline.errors import InvalidValueError
from stateline.service.answers import parse_answer

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_json_is_parsed_in_every_spelling(value: object, indent: int | None, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    assert parse_answer(f" {text}\n".encode()) == value


@given(st.text())
def test_text_that_is_not_json_is_a_string(text: str) -> None:
    data = text.encode()
    try:
        json.loads(data)
    except ValueError:
        answer = parse_answer(data)
        if not data.strip():
            assert answer is msgspec.UNSET
        else:
            assert isinstance(answer, str)
            assert text.startswith(answer)
            assert text[len(answer) :] in ("", "\n", "\r", "\r\n")


@given(st.binary(max_size=40))
def test_any_bytes_are_accepted_or_refused(data: bytes) -> None:
    try:
        answer = parse_answer(data)
    except InvalidValueError:
        return
    assert answer is msgspec.UNSET or json.dumps(answer)


def test_white_space_is_not_an_answer(tmp_path: Path) -> None:
    def check(_: Path, data: bytes) -> None:
        assert parse_answer(data) is msgspec.UNSET

    for_each(check, [(data,) for data in [b"", b" ", b"\n\r\t"]], root=tmp_path)


@given(st.tuples(st.text(), st.text(), st.text()), st.tuples(st.text(), st.text(), st.text()))
def test_two_different_triples_never_share_a_context(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (default_name(*one) == default_name(*other)) == (one == other)


@given(st.lists(st.text(min_size=1), max_size=5), st.dictionaries(st.text(), st.integers(0, 9), max_size=3))
def test_refinements_are_appended_and_counted(texts: list[str], settings: dict[str, int]) -> None:
    context = derive(ContextRequest(system="S", settings={"kept": 1}))
    before = json.dumps(context)
    for text in texts:
        context = refine(context, ContextRequest(refine=text, settings=settings))
    assert context["prompts"] == {"system": "S", "developer": texts}
    assert context["settings"] == ({"kept": 1} | settings if texts else {"kept": 1})
    assert context["refinements"]["count"] == len(texts)
    assert json.dumps(derive(ContextRequest(system="S", settings={"kept": 1}))) == before
