"""Replies assembled from pieces, and their validation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from each_case import each
from hypothesis import given
from hypothesis import strategies as st

from stateline.model.protocol import ModelCallError, ModelRequest
from stateline.model.providers.sdk import closed, unfenced
from stateline.model.reply_validation import PartialCall, PartialReply, TextBuffer, complete_reply, new_ids

REQUEST = ModelRequest(model="m", messages=[])


@given(st.text(st.sampled_from("aé\x00\U0001f600\ud83d\ude00"), max_size=8), st.lists(st.integers(0, 40), max_size=5))
def test_a_text_is_the_same_in_whatever_pieces_it_comes(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    bounds = [0, *sorted({2 * cut for cut in cuts if 2 * cut < len(units)}), len(units)]
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(bounds)]
    heard: list[str] = []
    comes = TextBuffer(heard.append)
    try:
        whole_text = units.decode("utf-16-le")
    except UnicodeDecodeError:
        # What no text may hold is refused, by the piece that shows it or at the end.
        with pytest.raises(ModelCallError):
            _take(comes, pieces)
    else:
        assert _take(comes, pieces) == "".join(heard) == whole_text
    for piece in heard:
        piece.encode()


def _take(comes: TextBuffer, pieces: list[str]) -> str:
    for piece in pieces:
        comes.add(piece)
    return comes.end()


@given(
    st.lists(st.one_of(st.none(), st.integers(), st.sampled_from(["", "a", "b", "call_1", "call_2", "\n", "x" * 300])))
)
def test_ids_are_all_different_and_the_same_each_time(given_ids: list[Any]) -> None:
    used = {"b", "call_3"}
    ids = new_ids(given_ids, used)
    assert len(ids) == len(given_ids)
    assert len({*ids, *used}) == len(ids) + len(used)
    assert ids == new_ids(given_ids, used)
    for one in ("a", "call_1", "call_2"):
        assert one not in given_ids or ids[given_ids.index(one)] == one
    assert used == {"b", "call_3"}


@each("said, kept", [("m" * 10_000, "m" * 200), ("m" * 200, "m" * 200), ("a\nb", ""), (7, "")])
def test_a_long_name_of_a_model_is_cut(said: Any, kept: str) -> None:
    draft = PartialReply()
    draft.text.add("Hi.")
    draft.finish, draft.model = "stop", said
    assert complete_reply(draft, {"stop": "stop"}, ModelRequest(model="m", messages=[])).model == kept


def test_too_many_calls_are_refused() -> None:
    draft = PartialReply()
    for _ in range(1000):
        draft.add_call("a", "f")
    with pytest.raises(ModelCallError, match="more than 1000 tools"):
        draft.add_call("a", "f")


def test_arguments_that_nest_deeper_than_a_run_can_keep_are_refused() -> None:
    draft = PartialReply()
    draft.finish = "stop"
    called = PartialCall("a", "f")
    called.add('{"a":' * 125 + "1" + "}" * 125)
    draft.calls = [called]
    with pytest.raises(ModelCallError, match="nested deeper"):
        complete_reply(draft, {"stop": "stop"}, REQUEST)


@each(
    "text, inner",
    [
        ('```json\n{"n": 1}\n```', '{"n": 1}'),
        ("\n```\n[1,\n2]\n```\n", "[1,\n2]"),
        ('{"n": 1}', '{"n": 1}'),
        ("See:\n```json\n1\n```", "See:\n```json\n1\n```"),
        ("```json\n1", "```json\n1"),
        ("```python\n1\n```", "```python\n1\n```"),
    ],
)
def test_only_a_fence_around_all_of_it_is_taken_off(text: str, inner: str) -> None:
    assert unfenced(text) == inner


def test_taking_off_a_fence_is_quick_on_hostile_text() -> None:
    # Quadratic or worse would not end within the time of a test run.
    hostile = "```json\n" + "\n \t" * 200_000 + "x"
    assert unfenced(hostile) == hostile


@each(
    "schema, is_closed",
    [
        ({"type": "string"}, True),
        ({"type": "object"}, False),
        ({"type": "object", "additionalProperties": False}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {"type": "object"}}, "additionalProperties": False}, False),
        ({"type": "array", "items": {"type": "object"}}, False),
        ({"anyOf": [{"type": "object", "properties": {"a": {}}}]}, False),
    ],
)
def test_a_schema_is_closed_if_each_of_its_objects_is(schema: Any, is_closed: bool) -> None:
    assert closed(schema) is is_closed
