"""Numbers as ranges, compared with Python sets."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import RequestError
from stateline.model.recordings import recording
from stateline.service import exchanges
from stateline.service.exchanges import HIGHEST, MOST, Numbers

_some = st.lists(st.one_of(st.integers(1, 30), st.integers(1, HIGHEST)))


@given(_some)
def test_numbers_are_a_set_of_the_added_ones(said: list[int]) -> None:
    found = Numbers(said)
    assert list(found) == sorted(set(said))
    assert len(found) == len(set(said))


@given(_some, _some)
def test_ranges_round_trip_and_do_not_overlap(said: list[int], more: list[int]) -> None:
    ranges = Numbers(said).ranges()
    assert all(first <= last for first, last in ranges)
    assert all(one[1] + 1 < other[0] for one, other in itertools.pairwise(ranges))
    again = Numbers.read(ranges)
    assert (again.ranges(), len(again)) == (ranges, len(set(said)))
    for number in more:
        again.add(number)
    assert list(again) == sorted({*said, *more})
    assert again.ranges() == Numbers(sorted({*said, *more})).ranges(), "the order of adding says nothing"


@given(st.integers(1, 1000), st.integers(1, 300))
def test_consecutive_numbers_are_one_range(first: int, count: int) -> None:
    assert Numbers(range(first, first + count)).ranges() == [[first, first + count - 1]]


def test_returned_ranges_are_copies() -> None:
    found = Numbers([1, 2])
    found.ranges()[0][1] = 99
    assert list(found) == [1, 2]


def test_malformed_ranges_are_refused_without_expanding_them(tmp_path: Path) -> None:
    def check(_: Path, ranges: Any) -> None:
        with pytest.raises(ValueError, match=r"range|numbers"):
            Numbers.read(ranges)

    for_each(
        check,
        [
            (ranges,)
            for ranges in [
                [[0, 1]],
                [[-5, -1]],
                [[2, 1]],
                [[1, 2], [2, 3]],
                [[1, 2], [3, 4]],
                [[5, 6], [1, 2]],
                [[1, HIGHEST + 1]],
                [[1, HIGHEST]],
                [[1, MOST + 1]],
                [[1, MOST // 2], [MOST, MOST + MOST // 2]],
            ]
        ],
        root=tmp_path,
    )


def test_the_bounds_are_those_of_recordings_and_hold_when_numbers_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HIGHEST == recording.HIGHEST
    assert len(Numbers.read([[1, MOST]])) == MOST
    monkeypatch.setattr(exchanges, "MOST", 3)
    found = Numbers([1, 2, 3])
    found.add(2)
    with pytest.raises(RequestError):
        found.add(9)
    assert found.ranges() == [[1, 3]]
