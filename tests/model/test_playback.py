"""Playback: the order of replies, warnings, and continuing in another process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from each_case import each
from model.recording_samples import ModelRecord, ask, put, talk

from stateline.errors import InvalidValueError, NotFoundError, PlaybackMissError, RequestError
from stateline.model.protocol import ModelRequest
from stateline.model.recordings.playback import MODES, Playback
from stateline.model.recordings.recorder import Recorder
from stateline.redaction.redactor import Redactor


def record(directory: Path, requests: list[ModelRequest]) -> list[str]:
    """Record a conversation; what was said."""
    recorder = Recorder(ModelRecord(), directory)
    return [recorder.reply(request).content for request in requests]


def isolated(directory: Path, mode: Any, requests: list[ModelRequest]) -> tuple[list[str], list[int], list[str]]:
    """One ``Playback`` for each request, as isolated calls have it: what is said, used, and warned of."""
    said, used, warnings = [], [], []
    for request in requests:
        playback = Playback(directory, mode, used)
        said.append(playback.reply(request).content)
        used = playback.used
        warnings += playback.warnings
    return said, used, warnings


# -- the predecessor's defects -----------------------------------------------------------------------------------------


@each("mode", MODES)
def test_twelve_turns_play_in_the_order_of_their_numbers(tmp_path: Path, mode: Any) -> None:
    requests = talk(12)
    said = record(tmp_path / "rec", requests)
    playback = Playback(tmp_path / "rec", mode)
    assert [playback.reply(request).content for request in requests] == said
    assert playback.used == list(range(1, 13))
    assert playback.warnings == playback.closing() == playback.unplayed() == []


def test_the_order_of_numbers_holds_where_that_of_names_is_another(tmp_path: Path) -> None:
    for number in (10001, 9999, 10000, 10, 9):
        put(tmp_path, number, ask(f"recorded {number}"))
    playback = Playback(tmp_path, "sequential")
    said = [playback.reply(ask("anything")).content for _ in range(5)]
    assert said == [f"reply {number}" for number in (9, 10, 9999, 10000, 10001)]


@each("mode", MODES)
def test_isolated_calls_go_on_where_the_last_one_stopped(tmp_path: Path, mode: Any) -> None:
    # Two stages that ask the same again and again: without a position each call would get the first reply.
    requests = [ask("a"), ask("b")] * 6
    for number, request in enumerate(requests, 1):
        put(tmp_path, number, request)
    said, used, warnings = isolated(tmp_path, mode, requests)
    assert said == [f"reply {number}" for number in range(1, 13)]
    assert (used, warnings) == (list(range(1, 13)), [])


def test_hybrid_never_plays_a_recording_twice(tmp_path: Path) -> None:
    for number, text in enumerate(["a", "b", "c", "d"], 1):
        put(tmp_path, number, ask(text))
    playback = Playback(tmp_path)
    # What was found by its digest is not given again to a request that nothing fits.
    said = [playback.reply(ask(text)).content for text in ("c", "?", "a", "?")]
    assert said == ["reply 3", "reply 1", "reply 2", "reply 4"]
    with pytest.raises(PlaybackMissError, match="all 4 recordings"):
        playback.reply(ask("a"))


def test_hybrid_tells_of_every_reply_that_was_recorded_for_another_request(tmp_path: Path) -> None:
    record(tmp_path / "rec", talk(3))
    changed = talk(3, settings={"temperature": 1})
    playback = Playback(tmp_path / "rec", "hybrid")
    assert [playback.reply(request).content for request in changed] == [f"to question {n}" for n in (1, 2, 3)]
    assert [warning.split(" was played")[0] for warning in playback.warnings] == [
        f"{tmp_path}/rec/{number:04d}.json" for number in (1, 2, 3)
    ]
    assert "different: settings" in playback.warnings[0]
    assert playback.stale == [1, 2, 3]
    assert playback.closing() == [
        f"3 of 3 recordings in {tmp_path}/rec played for requests that differ from the recorded ones: "
        "0001, 0002, 0003; record them again"
    ]


def test_one_recording_that_did_not_fit_is_told_by_itself(tmp_path: Path) -> None:
    record(tmp_path / "rec", talk(2))
    playback = Playback(tmp_path / "rec", "hybrid")
    playback.reply(talk(2)[0])
    playback.reply(talk(2, settings={"temperature": 1})[1])
    assert len(playback.closing()) == 1
    assert [warning.split(" was played")[0] for warning in playback.warnings] == [f"{tmp_path}/rec/0002.json"]


def test_a_changed_prompt_is_noticed_in_strict_mode_and_nothing_is_played(tmp_path: Path) -> None:
    record(tmp_path / "rec", talk(2))
    playback = Playback(tmp_path / "rec", "strict")
    with pytest.raises(PlaybackMissError):
        playback.reply(ask("question one"))
    assert (playback.used, playback.unplayed()) == ([], [1, 2])
    assert playback.reply(talk(2)[0]).content == "to question 1"


def test_recordings_that_were_not_played_are_reported(tmp_path: Path) -> None:
    requests = [*talk(12), ask("make a context", purpose="derive")]
    record(tmp_path / "rec", requests)
    playback = Playback(tmp_path / "rec", used=[1, 2, 4])
    assert playback.unplayed() == [3, *range(5, 14)]
    assert playback.closing() == [
        f"10 of 13 recordings in {tmp_path}/rec not played: 0003, 0005, 0006, 0007, 0008, 0009, 0010, 0011 and 2 more"
    ]
    # A context that was there already is not made again; whoever knows that asks for turns only.
    assert playback.unplayed(["turn"]) == [3, *range(5, 13)]
    assert "0013" not in playback.closing(["turn"])[0]


def test_a_missing_directory_is_a_typed_error_and_so_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    for name in ("none", "sets"):
        with pytest.raises(NotFoundError):
            Playback(tmp_path / name)


# -- the modes ---------------------------------------------------------------------------------------------------------


def test_sequential_plays_in_order_whatever_is_asked_and_reports_at_the_end(tmp_path: Path) -> None:
    for number, text in enumerate(["a", "b"], 1):
        put(tmp_path, number, ask(text))
    playback = Playback(tmp_path, "sequential")
    assert [playback.reply(ask(text)).content for text in ("b", "b")] == ["reply 1", "reply 2"]
    assert (playback.warnings, playback.stale) == ([], [1])
    assert "0001" in playback.closing()[0]


def test_the_stale_ones_of_earlier_calls_are_reported_too(tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path, number, ask("a"))
    playback = Playback(tmp_path, "sequential", [1], stale=[1])
    playback.reply(ask("b"))
    assert playback.stale == [1, 2]


def test_one_summary_replaces_the_warnings_of_a_playback_in_which_nothing_matched(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("a"))
    playback = Playback(tmp_path, "hybrid")
    playback.reply(ask("b"))
    assert len(playback.warnings) == 1
    assert len(playback.closing()) == 1
    assert playback.warnings == []


@each("mode", MODES)
def test_each_purpose_has_an_order_of_its_own(tmp_path: Path, mode: Any) -> None:
    requests = [
        ask("context", purpose="derive"),
        ask("first"),
        ask("tighten", purpose="refine"),
        ask("second"),
    ]
    for number, request in enumerate(requests, 1):
        put(tmp_path, number, request)
    # The context is restored, so that nothing is derived; the turns come first, then somebody refines.
    playback = Playback(tmp_path, mode)
    assert [playback.reply(requests[place]).content for place in (1, 3, 2)] == ["reply 2", "reply 4", "reply 3"]
    assert playback.unplayed() == [1]
    assert playback.warnings == []


def test_a_purpose_that_was_never_recorded_is_told_from_one_that_is_used_up(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"))
    playback = Playback(tmp_path)
    with pytest.raises(PlaybackMissError, match="holds no recording for `derive` among its 1"):
        playback.reply(ask("x", purpose="derive"))
    playback.reply(ask("x"))
    with pytest.raises(PlaybackMissError, match="the one recording for `turn`") as used_up:
        playback.reply(ask("x"))
    assert "the run is unchanged" in used_up.value.message
    assert used_up.value.hint
    assert (used_up.value.expected, used_up.value.exit_code, used_up.value.code) == (None, 1, "playback_miss")


def test_a_recording_needs_no_model_to_be_named_and_heeds_one_that_is(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"))
    put(tmp_path, 2, ask("y", model="test/two"))
    playback = Playback(tmp_path, "strict")
    with pytest.raises(PlaybackMissError) as missed:
        playback.reply(ask("x", model="test/two"))
    assert '+  "model": "test/two",' in missed.value.message
    with pytest.raises(PlaybackMissError) as missed:
        playback.reply(ask("z", model=""))
    assert "model" not in missed.value.message.split("@@")[1]
    assert [playback.reply(ask(text, model="")).content for text in "xy"] == ["reply 1", "reply 2"]
    assert playback.stale == []
    hybrid = Playback(tmp_path)
    assert [hybrid.reply(ask(text, model="")).content for text in "yz"] == ["reply 2", "reply 1"]
    assert "(different: messages from number 1 on)" in hybrid.warnings[0]


def test_what_is_no_part_of_the_request_makes_no_difference(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x", key="one", timeout=3.0))
    assert Playback(tmp_path, "strict").reply(ask("x", key="two", timeout=9.0)).content == "reply 1"


def test_the_text_is_heard_at_once_and_an_empty_one_is_not(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"), "hello")
    put(
        tmp_path, 2, ask("x"), reply={"tool_calls": [{"id": "c", "name": "t", "arguments": {}}], "finish": "tool_calls"}
    )
    heard: list[str] = []
    playback = Playback(tmp_path)
    playback.reply(ask("x"), heard.append)
    assert playback.reply(ask("x"), heard.append).tool_calls[0].name == "t"
    assert heard == ["hello"]


# -- going on ----------------------------------------------------------------------------------------------------------


@each("mode", MODES)
def test_a_reply_that_was_played_and_lost_is_played_again(tmp_path: Path, mode: Any) -> None:
    requests = talk(3)
    said = record(tmp_path / "rec", requests)
    saved = Playback(tmp_path / "rec", mode)
    saved.reply(requests[0])
    # The process dies before what it was given is saved; so the run knows of one exchange only.
    for _ in range(3):
        again = Playback(tmp_path / "rec", mode, [1])
        assert again.reply(requests[1]).content == said[1]
        assert again.used == [1, 2]


def test_what_was_used_is_in_the_order_of_use(tmp_path: Path) -> None:
    for number, text in enumerate("abc", 1):
        put(tmp_path, number, ask(text))
    assert isolated(tmp_path, "hybrid", [ask(text) for text in "cab"])[1] == [3, 1, 2]


def test_the_caller_s_list_is_not_changed(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"))
    used: list[int] = []
    Playback(tmp_path, used=used).reply(ask("x"))
    assert used == []


def test_a_reply_that_nobody_could_be_told_of_is_not_used(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"))

    def closed(text: str) -> None:
        raise BrokenPipeError

    playback = Playback(tmp_path)
    with pytest.raises(BrokenPipeError):
        playback.reply(ask("x"), closed)
    assert playback.used == []
    assert playback.reply(ask("x")).content == "reply 1"


@each("mode", MODES)
def test_a_request_that_has_no_digest_is_refused_and_uses_nothing(tmp_path: Path, mode: Any) -> None:
    put(tmp_path, 1, ask("x"))
    heard: list[str] = []
    playback = Playback(tmp_path, mode)
    with pytest.raises(InvalidValueError):
        playback.reply(ask("\ud800"), heard.append)
    assert (heard, playback.unplayed()) == ([], [1])


def test_recordings_that_went_away_since_they_were_played_are_told_of(tmp_path: Path) -> None:
    put(tmp_path, 3, ask("x"))
    playback = Playback(tmp_path, used=[1, 2])
    assert playback.warnings == [f"0001, 0002 of {tmp_path} were played before and are missing now"]
    assert playback.reply(ask("x")).content == "reply 3"


def test_only_as_many_files_are_read_as_it_takes(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"))
    put(tmp_path, 2, ask("y"))
    (tmp_path / "0003.json").write_text("torn")
    playback = Playback(tmp_path)
    playback.reply(ask("x"))
    playback.reply(ask("y"))
    with pytest.raises(RequestError, match=r"0003\.json"):
        playback.reply(ask("z"))
    assert playback.used == [1, 2]


def test_playing_back_changes_nothing_in_the_directory(tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path / "rec", number, ask(f"{number}"))
    before = sorted((path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "rec").iterdir())
    (tmp_path / "rec").chmod(0o500)
    playback = Playback(tmp_path / "rec")
    playback.reply(ask("1"))
    playback.closing()
    after = sorted((path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "rec").iterdir())
    assert after == before


# -- edited by people, masked for them ---------------------------------------------------------------------------------


def test_a_request_that_was_edited_is_told_of_once_and_compared_as_it_is(tmp_path: Path) -> None:
    path = put(tmp_path, 1, ask("old words"))
    path.write_text(path.read_text().replace("old words", "new words"))
    playback = Playback(tmp_path, "strict")
    with pytest.raises(PlaybackMissError):
        playback.reply(ask("old words"))
    assert playback.reply(ask("new words")).content == "reply 1"
    assert len(playback.warnings) == 1
    assert f"{path}: the request was edited" in playback.warnings[0]


def test_a_secret_in_the_request_is_masked_before_it_is_compared(tmp_path: Path) -> None:
    redactor = Redactor([("KEY", "sk-live-0123456789")])

    def mask(value: Any) -> Any:
        return redactor.redact(value)[0]

    request = ask("use sk-live-0123456789")
    Recorder(ModelRecord(lambda _: "ok"), tmp_path / "rec", mask).reply(request)
    assert Playback(tmp_path / "rec", "strict", mask=mask).reply(request).content == "ok"
    with pytest.raises(PlaybackMissError) as missed:
        Playback(tmp_path / "rec", "strict", mask=mask).reply(ask("drop sk-live-0123456789"))
    assert "sk-live" not in str(missed.value)


def test_neither_sdk_is_loaded_and_no_network(tmp_path: Path) -> None:
    import subprocess
    import sys

    put(tmp_path, 1, ask("x"))
    code = (
        "import sys\n"
        "from stateline.model.recordings.playback import Playback\n"
        "from stateline.model.protocol import ModelRequest\n"
        "request = ModelRequest(model='test/one', messages=[{'role': 'user', 'content': 'x'}])\n"
        "print(Playback(sys.argv[1], 'strict').reply(request).content)\n"
        "print({'openai', 'anthropic', 'httpx', 'socket', 'ssl', 'difflib', 'asyncio'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["reply 1", "set()"]
    assert os.listdir(tmp_path) == ["0001.json"]
