"""Errors of a strict playback: the expected recording, and the difference from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from each_case import each
from hypothesis import given
from hypothesis import strategies as st
from model.recording_samples import ask, put, talk

from stateline.errors import PlaybackMissError, StatelineError
from stateline.model.protocol import ModelRequest
from stateline.model.recordings import playback_miss
from stateline.model.recordings.playback import Playback


def miss(directory: Path, request: ModelRequest, used: Any = ()) -> PlaybackMissError:
    with pytest.raises(PlaybackMissError) as missed:
        Playback(directory, "strict", used).reply(request)
    return missed.value


def test_a_miss_names_the_recording_that_was_next_and_shows_a_diff_to_it(tmp_path: Path) -> None:
    for number, request in enumerate(talk(3), 1):
        put(tmp_path, number, request)
    asked = talk(2)[1]
    asked.messages[2]["content"] = "question two"
    error = miss(tmp_path, asked, [1])
    assert (error.expected, error.nearest) == (2, 2)
    assert error.message.split("\n") == [
        f"the request is not the one recorded in {tmp_path}/0002.json, which is next; nothing was played",
        f"--- {tmp_path}/0002.json",
        "+++ this request",
        "@@",
        "     },",
        "     {",
        '-      "content": "question 2",',
        '+      "content": "question two",',
        '       "role": "user"',
        "     }",
    ]
    assert "record again" in error.hint
    document = error.document()
    assert (document["code"], document["expected"], document["nearest"]) == ("playback_miss", 2, 2)
    assert isinstance(error, StatelineError)


def test_a_request_whose_turn_has_not_come_is_called_out_of_order(tmp_path: Path) -> None:
    for number in range(1, 6):
        put(tmp_path, number, ask(f"question {number}"))
    error = miss(tmp_path, ask("question 4"), [1])
    assert (error.expected, error.nearest) == (2, 4)
    assert f"It is the one of {tmp_path}/0004.json, out of its order" in error.message
    assert '-      "content": "question 2",' in error.message


def test_recordings_of_other_purposes_and_used_ones_are_not_the_nearest(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("the very words"))
    put(tmp_path, 2, ask("the very words", purpose="derive"))
    put(tmp_path, 3, ask("nothing alike"))
    assert miss(tmp_path, ask("the very words "), [1]).nearest == 3


def test_only_where_two_requests_part_is_shown(tmp_path: Path) -> None:
    old, new = talk(40)[-1], talk(40)[-1]
    new.messages[10]["content"] = "something else"
    lines = playback_miss.unified_diff(old.document(), new.document(), ("old", "new"))
    assert len(lines) == 9
    assert [line for line in lines if line[:1] in "+-"] == [
        "--- old",
        "+++ new",
        '-      "content": "question 6",',
        '+      "content": "something else",',
    ]


def test_a_long_prompt_is_compared_by_its_lines(tmp_path: Path) -> None:
    text = "\n".join(f"Rule {number}: be kind to users of kind {number}." for number in range(50))
    lines = playback_miss.unified_diff(
        ask(text).document(), ask(text.replace("Rule 30: be", "Rule 30: be not")).document(), ("old", "new")
    )
    assert len(lines) < 12
    assert r"-Rule 30: be kind to users of kind 30.\n" in lines
    assert r"+Rule 30: be not kind to users of kind 30.\n" in lines


@each(
    "old, new",
    [
        ("x" * 5_000_000, "x" * 4_999_999 + "y"),
        ("a" * 3_000_000, "b" * 3_000_000),
        ("\n".join(map(str, range(300_000))), "\n".join(map(str, range(300_000, 0, -1)))),
        ("{}\n" * 400_000, "}{\n" * 400_000),
        ("ab\n" * 200 + "c\n" * 100_000, "ba\n" * 200 + "d\n" * 100_000),
        ("", "y\n" * 1_000_000),
    ],
)
def test_large_requests_make_a_short_diff(tmp_path: Path, old: str, new: str) -> None:
    put(tmp_path, 1, ask(old))
    error = miss(tmp_path, ask(new))
    assert len(error.message) < 20_000
    assert error.message.count("\n") < 70
    assert "\n@@\n" in error.message


_text = st.text('ab\n\\"{} ', max_size=30)
_documents = st.builds(
    lambda texts, settings: {"messages": [{"content": text} for text in texts], "settings": settings},
    st.lists(_text, max_size=6),
    st.dictionaries(st.sampled_from("abc"), _text, max_size=3),
)


@given(old=_documents, new=_documents)
def test_a_diff_is_empty_for_equal_requests_only_and_its_lines_are_theirs(old: Any, new: Any) -> None:
    lines = playback_miss.unified_diff(old, new, ("old", "new"))
    assert bool(lines) == (old != new)
    assert (playback_miss.changed_members(old, new) == "nothing") == (old == new)
    if not lines:
        return
    assert lines[:3] == ["--- old", "+++ new", "@@"]
    assert any(line[0] in "+-" for line in lines[3:])
    joined = {
        name: json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
        for name, value in (("-", old), ("+", new))
    }
    for line in lines[3:]:
        if line.startswith(("-", "+")):
            assert line[1:] in joined[line[0]]
        elif line.startswith(" "):
            assert line[1:] in joined["-"]
            assert line[1:] in joined["+"]


def test_where_two_requests_differ_is_said_in_words() -> None:
    old, new = talk(3)[-1], talk(3, settings={"top_p": 1})[-1]
    assert playback_miss.changed_members(old.document(), new.document()) == "settings"
    assert playback_miss.changed_members(old.document(), talk(2)[-1].document()) == "messages from number 4 on"
    new.messages[1]["content"] = "else"
    assert playback_miss.changed_members(old.document(), new.document()) == "messages from number 2 on, settings"
