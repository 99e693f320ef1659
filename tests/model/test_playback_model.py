"""The three modes of playback against an oracle: random recordings, random requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model.recording_samples import Scripted, ask

from stateline.errors import PlaybackMissError
from stateline.model.protocol import ModelRequest, Reply, ToolCall, Usage
from stateline.model.recordings.exchange import Exchange, file_name
from stateline.model.recordings.playback import MODES, Playback
from stateline.model.recordings.recorder import Recorder


# Few words and few purposes: most requests fit some recording, and many fit several.
def requests(*models: str) -> st.SearchStrategy[ModelRequest]:
    return st.builds(
        lambda text, purpose, model: ask(text, purpose=purpose, model=model),
        st.sampled_from("abc"),
        st.sampled_from(["turn", "derive"]),
        st.sampled_from(models),
    )


_recorded = requests("test/one", "test/two")
_requests = requests("test/one", "test/two", "", "")  # none is named where none is configured
_numbers = st.lists(st.integers(1, 20_000), max_size=8, unique=True)
_modes = st.sampled_from(MODES)


@st.composite
def exchanges(draw: st.DrawFn) -> list[Exchange]:
    """Any recordings, in any order."""
    found = []
    for number in draw(_numbers.filter(bool)):
        request = draw(_recorded)
        found.append(
            Exchange(
                number=number,
                purpose=request.purpose,
                digest=request.digest(),
                request=request.document(),
                reply=Reply(content=f"reply {number}"),
            )
        )
    return found


@contextmanager
def directory_of(recorded: list[Exchange]) -> Iterator[Path]:
    with TemporaryDirectory() as name:
        for exchange in recorded:
            document = {
                "version": "1",
                "purpose": exchange.purpose,
                "digest": exchange.digest,
                "request": exchange.request,
                "reply": {"content": exchange.outcome().content},
            }
            (Path(name) / file_name(exchange.number)).write_text(json.dumps(document))
        yield Path(name)


def fits(exchange: Exchange, request: ModelRequest) -> bool:
    model = exchange.request["model"] if request.model == "" else request.model
    return exchange.request == {**request.document(), "model": model}


def oracle(mode: str, recorded: list[Exchange], asked: list[ModelRequest]) -> tuple[list[str], list[int]]:
    """Return the reply to each request ("miss" for none), and the numbers that are left."""
    waiting = sorted(recorded, key=lambda exchange: exchange.number)
    said = []
    for request in asked:
        mine = [exchange for exchange in waiting if exchange.purpose == request.purpose]
        fitting = [exchange for exchange in mine if fits(exchange, request)]
        if mode == "strict":
            chosen = mine[:1] if mine[:1] == fitting[:1] else []
        else:
            chosen = (fitting + mine)[:1] if mode == "hybrid" else mine[:1]
        waiting = [exchange for exchange in waiting if exchange not in chosen]
        said.append(chosen[0].reply.content if chosen else "miss")
    return said, [exchange.number for exchange in waiting]


def said(playback: Playback, request: ModelRequest) -> str:
    try:
        return playback.reply(request).content
    except PlaybackMissError:
        return "miss"


@given(mode=_modes, recorded=exchanges(), asked=st.lists(_requests, max_size=10))
def test_the_modes_play_what_the_oracle_says(mode: Any, recorded: list[Exchange], asked: list[ModelRequest]) -> None:
    with directory_of(recorded) as directory:
        playback = Playback(directory, mode)
        found = [said(playback, request) for request in asked]
        assert (found, playback.unplayed()) == oracle(mode, recorded, asked)
        # None is used twice, and what is warned of is what does not fit.
        assert len(playback.used) == len(set(playback.used)) == len(asked) - found.count("miss")
        by_number = {exchange.number: exchange for exchange in recorded}
        played = [(request, int(text.split()[1])) for request, text in zip(asked, found, strict=True) if text != "miss"]
        assert playback.stale == [number for request, number in played if not fits(by_number[number], request)]
        assert len(playback.warnings) == (len(playback.stale) if mode == "hybrid" else 0)
        assert not (mode == "strict" and playback.stale)
        assert len(playback.closing()) == bool(playback.unplayed()) + bool(playback.stale)


@given(data=st.data(), mode=_modes, recorded=exchanges(), asked=st.lists(_requests, max_size=8))
def test_a_playback_cut_anywhere_into_processes_says_the_same(
    data: st.DataObject, mode: Any, recorded: list[Exchange], asked: list[ModelRequest]
) -> None:
    with directory_of(recorded) as directory:
        whole = Playback(directory, mode)
        expected = [said(whole, request) for request in asked]
        kept = "[[], []]"  # what the run's last snapshot holds
        playback = Playback(directory, mode)
        found = []
        for request in asked:
            # Before each request: the same process, another one, or some that die before what they were given is saved.
            if data.draw(st.booleans()):
                for _ in range(data.draw(st.integers(0, 2))):
                    used, stale = json.loads(kept)
                    said(Playback(directory, mode, used, stale=stale), request)
                used, stale = json.loads(kept)
                playback = Playback(directory, mode, used, stale=stale)
            found.append(said(playback, request))
            kept = json.dumps([playback.used, playback.stale])
        assert found == expected
        assert (playback.used, playback.stale) == (whole.used, whole.stale)


_replies = st.builds(
    Reply,
    content=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            id=st.sampled_from(["c1", "c2"]),
            name=st.sampled_from(["search", "look"]),
            arguments=st.dictionaries(st.sampled_from("xy"), st.integers(-9, 9) | st.none()),
        ),
        max_size=2,
    ),
    usage=st.none() | st.builds(Usage, input=st.integers(0, 9), output=st.integers(0, 9)),
)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(mode=_modes, exchanged=st.lists(st.tuples(_recorded, _replies), min_size=1, max_size=14), alone=st.booleans())
def test_what_was_recorded_plays_back_equal_and_in_order(
    room: Path, mode: Any, exchanged: list[tuple[ModelRequest, Reply]], alone: bool
) -> None:
    place = room / f"{len(list(room.iterdir()))}"
    recorder = Recorder(Scripted([reply for _, reply in exchanged]), place)
    recorded = [recorder.reply(request) for request, _ in exchanged]
    assert recorded == [reply for _, reply in exchanged]
    assert (recorder.used, recorder.warnings) == (list(range(1, len(exchanged) + 1)), [])
    playback = Playback(place, mode)
    for request, reply in exchanged:
        if alone:
            playback = Playback(place, mode, playback.used)
        assert playback.reply(request) == reply
    assert playback.used == recorder.used
    assert playback.closing() == playback.warnings == []


@given(mode=_modes, recorded=exchanges(), asked=_requests)
def test_a_miss_changes_nothing_and_is_the_same_again(mode: Any, recorded: list[Exchange], asked: ModelRequest) -> None:
    with directory_of(recorded) as directory:
        playback = Playback(directory, mode)
        misses = []
        for _ in range(2):
            try:
                playback.reply(asked)
            except PlaybackMissError as missed:
                misses.append(missed.document())
                assert (playback.used, playback.stale) == ([], [])
                assert len(playback.unplayed()) == len(recorded)
            else:
                return
        assert misses[0] == misses[1]
        assert misses[0]["hint"]
