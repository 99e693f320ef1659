"""Failed calls and refused replies in a recording, and their playback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from each_case import each
from hypothesis import given, settings
from hypothesis import strategies as st
from model.recording_samples import Scripted, ask, put, read_exchanges

from stateline.errors import PlaybackMissError, RequestError
from stateline.model.protocol import FailureKind, ModelCallError, ModelRequest, Reply
from stateline.model.recordings.exchange import FailureRecord
from stateline.model.recordings.playback import MODES, Playback
from stateline.model.recordings.recorder import Recorder
from stateline.redaction.redactor import Redactor

SECRET = "sk-live-0123456789abcdef"
DOWN = ModelCallError("model", "openai answered with status 503: down (tried 3 times)", "try again later")


def heard(model: Any, request: ModelRequest) -> str | tuple[str, str, str, bool]:
    """The reply's text, or how the call failed."""
    try:
        return str(model.reply(request).content)
    except ModelCallError as failed:
        return failed.kind, failed.message, failed.hint, failed.sent


def turn(run: str, seq: int, text: str = "x", birth: str = "aa") -> ModelRequest:
    """A turn of a run, with the key that the engine gives it."""
    return ask(text, key=f"{run}:{seq}:0:{birth}")


def derive(text: str = "x", model: str = "test/one") -> ModelRequest:
    """The call that derives a context."""
    return ask(text, key=f"context:demo:0:{text}", purpose="derive", model=model)


def record(place: Path, *exchanged: tuple[ModelRequest, Any]) -> None:
    """Record, each as a process of its own; a pair of a reply and a word is a reply that was refused with that word."""
    for request, came in exchanged:
        reply, word = came if isinstance(came, tuple) else (came, "")
        answer = Reply(content=reply) if isinstance(reply, str) else reply
        recorder = Recorder(Scripted([answer]), place)
        try:
            recorder.reply_judged(request, lambda _, word=word: word)
        except ModelCallError:
            pass
        assert recorder.warnings == []


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_failure_is_kept_in_the_place_of_a_reply(tmp_path: Path) -> None:
    recorder = Recorder(Scripted([ModelCallError("timeout", "too slow", "wait", sent=False)]), tmp_path)
    assert heard(recorder, ask("x")) == ("timeout", "too slow", "wait", False)
    document = json.loads((tmp_path / "0001.json").read_text("utf-8"))
    assert document["error"] == {"kind": "timeout", "message": "too slow", "hint": "wait", "sent": False}
    assert "reply" not in document
    assert recorder.used == [1]


def test_a_failure_is_masked_and_the_run_hears_what_was_kept(tmp_path: Path) -> None:
    redactor = Redactor([("KEY", SECRET)])
    model = Scripted([ModelCallError("model", f"no such key: {SECRET}", f"not {SECRET}")])
    recorder = Recorder(model, tmp_path, lambda value: redactor.redact(value)[0])
    said = heard(recorder, ask("x"))
    assert said == ("model", "no such key: [REDACTED]", "not [REDACTED]", True)
    assert SECRET not in (tmp_path / "0001.json").read_text("utf-8")
    assert heard(Playback(tmp_path), ask("x")) == said


def test_a_failure_that_cannot_be_kept_is_raised_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stateline.model.recordings.recorder.publish", refuse)
    recorder = Recorder(Scripted([DOWN]), tmp_path)
    assert heard(recorder, ask("x")) == (DOWN.kind, DOWN.message, DOWN.hint, True)
    assert recorder.used == []
    assert "a failure of the model could not be recorded" in recorder.warnings[0]


def test_a_failure_that_the_run_never_heard_of_is_not_asked_for_again(tmp_path: Path) -> None:
    request = turn("r", 3)
    heard(Recorder(Scripted([DOWN]), tmp_path, used=[]), request)
    # The process died here. What was recorded happened, and a playback will give it.
    model = Scripted([Reply(content="well")])
    recorder = Recorder(model, tmp_path, used=[])
    assert heard(recorder, request) == (DOWN.kind, DOWN.message, DOWN.hint, True)
    assert (recorder.used, model.asked) == ([1], [])
    # Another attempt of the same call has the same key and digest, and is sent.
    assert heard(recorder, request) == "well"
    assert heard(Recorder(Scripted([Reply(content="later")]), tmp_path, used=[1, 2]), request) == "later"


def test_a_refused_reply_is_kept_with_the_reason_and_the_judge_hears_what_is_kept(tmp_path: Path) -> None:
    redactor = Redactor([("KEY", SECRET)])
    judged: list[Reply] = []

    def judge(reply: Reply) -> str:
        judged.append(reply)
        return f"not JSON: {SECRET}"

    recorder = Recorder(Scripted([Reply(content=f"{SECRET}!")]), tmp_path, lambda value: redactor.redact(value)[0])
    reply = recorder.reply_judged(derive(), judge)
    (kept,) = read_exchanges(tmp_path)
    assert judged == [reply]
    assert (kept.reply, kept.refused) == (reply, "not JSON: [REDACTED]")
    assert SECRET not in (tmp_path / "0001.json").read_text("utf-8")


def test_a_message_that_somebody_wrote_into_a_file_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"), reply=None, error={"kind": "model", "message": "\x1b[31mred", "hint": "\u202e"})
    path = tmp_path / "0001.json"
    document = json.loads(path.read_text("utf-8"))
    del document["reply"]
    path.write_text(json.dumps(document), "utf-8")
    assert heard(Playback(tmp_path), ask("x")) == ("model", "\\x1b[31mred", "\\u202e", True)


# -- what is played ----------------------------------------------------------------------------------------------------


@each("mode", MODES)
def test_a_failure_and_the_attempt_after_it_play_in_their_order(tmp_path: Path, mode: Any) -> None:
    record(tmp_path, (turn("r", 1), DOWN), (turn("r", 1), DOWN), (turn("r", 1), "well"), (turn("r", 4, "y"), "done"))
    playback = Playback(tmp_path, mode)
    asked = [turn("other", 1), turn("other", 1), turn("other", 1), turn("other", 4, "y")]
    failed = (DOWN.kind, DOWN.message, DOWN.hint, True)
    assert [heard(playback, request) for request in asked] == [failed, failed, "well", "done"]
    assert (playback.used, playback.closing()) == ([1, 2, 3, 4], [])
    # Isolated calls: each knows what was used.
    for used in range(4):
        assert (
            heard(Playback(tmp_path, mode, range(1, used + 1)), asked[used]) == [failed, failed, "well", "done"][used]
        )


@each("mode", MODES)
def test_a_failure_at_the_end_of_a_run_plays_at_its_end(tmp_path: Path, mode: Any) -> None:
    record(tmp_path, (turn("r", 1), "well"), (turn("r", 3, "y"), DOWN))
    playback = Playback(tmp_path, mode)
    assert heard(playback, turn("s", 1)) == "well"
    assert heard(playback, turn("s", 3, "y")) == (DOWN.kind, DOWN.message, DOWN.hint, True)
    assert playback.closing() == []


@each("mode", MODES)
def test_a_run_that_was_given_up_does_not_stand_before_the_one_that_worked(tmp_path: Path, mode: Any) -> None:
    # The second began on the chain of the first (--force): the id is the same, and the draw is another.
    record(tmp_path, (turn("a", 1), DOWN), (turn("a", 5, birth="bb"), DOWN), (turn("b", 1), "well"))
    playback = Playback(tmp_path, mode)
    assert heard(playback, turn("c", 1)) == "well"
    assert (playback.used, playback.closing()) == ([3], [])
    with pytest.raises(PlaybackMissError):
        playback.reply(turn("c", 2, "z"))


@each("mode", ["hybrid", "strict"])
def test_a_run_that_ended_in_a_failure_plays_where_no_other_is_of_its_request(tmp_path: Path, mode: Any) -> None:
    record(tmp_path, (turn("a", 1, "first"), DOWN), (turn("b", 1, "second"), "well"))
    assert heard(Playback(tmp_path, mode), turn("c", 1, "first")) == (DOWN.kind, DOWN.message, DOWN.hint, True)
    assert heard(Playback(tmp_path, mode), turn("c", 1, "second")) == "well"


@each("mode", MODES)
@each("first", [("no JSON", "it is no JSON"), DOWN])
def test_a_derivation_that_came_to_nothing_does_not_stand_before_the_one_that_was_saved(
    tmp_path: Path, mode: Any, first: Any
) -> None:
    record(tmp_path, (derive("old flags"), first), (derive(), first), (derive(), "{}"), (turn("r", 1), "well"))
    playback = Playback(tmp_path, mode)
    assert heard(playback, derive()) == "{}"
    assert heard(playback, turn("s", 1)) == "well"
    assert (playback.used, playback.closing()) == ([3, 4], [])


@each("mode", MODES)
def test_a_derivation_that_was_always_refused_is_refused_again(tmp_path: Path, mode: Any) -> None:
    record(tmp_path, (derive(), ("one", "no")), (derive(), ("two", "no")))
    assert heard(Playback(tmp_path, mode), derive()) == "two"


@each("mode", MODES)
def test_a_derivation_that_was_lost_before_its_context_was_saved_is_not_played(tmp_path: Path, mode: Any) -> None:
    record(tmp_path, (derive(), "lost"), (derive(), ("bad", "no")), (derive(), "saved"), (turn("r", 1), "well"))
    assert heard(Playback(tmp_path, mode), derive()) == "saved"


def test_the_model_of_a_recording_is_that_of_the_derivation_that_was_saved(tmp_path: Path) -> None:
    record(tmp_path, (derive(model="test/small"), ("no", "no")), (derive(model="test/large"), "{}"))
    assert Playback(tmp_path).model() == "test/large"
    (tmp_path / "0002.json").unlink()
    assert Playback(tmp_path).model() == "test/small"


def test_a_failure_that_somebody_wrote_is_played_as_it_stands(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"), "unused")
    path = tmp_path / "0001.json"
    document = json.loads(path.read_text("utf-8"))
    document["error"] = {"kind": "reply", "message": "cut"}
    del document["reply"]
    path.write_text(json.dumps(document), "utf-8")
    put(tmp_path, 2, ask("x"), "well", key="r:1:0:aa")
    playback = Playback(tmp_path)
    assert [heard(playback, ask("x")) for _ in range(2)] == [("reply", "cut", "", True), "well"]


def test_contexts_that_somebody_wrote_are_played_in_their_order(tmp_path: Path) -> None:
    for number, content in enumerate(("one", "two"), 1):
        put(tmp_path, number, ask("x", purpose="derive"), content)
    playback = Playback(tmp_path)
    assert [heard(playback, ask("x", purpose="derive")) for _ in range(2)] == ["one", "two"]


_kinds = st.sampled_from(["model", "timeout", "reply"])
_outcomes = st.one_of(
    st.text("abc", min_size=1, max_size=3),
    st.builds(lambda kind, text, sent: (kind, text, "", sent), _kinds, st.text("xyz", max_size=3), st.booleans()),
)


@settings(max_examples=40)
@given(came=st.lists(st.tuples(st.sampled_from("pq"), _outcomes), min_size=1, max_size=8), mode=st.sampled_from(MODES))
def test_whatever_one_run_met_it_meets_again_in_the_same_order(
    tmp_path_factory: pytest.TempPathFactory, came: list[tuple[str, Any]], mode: Any
) -> None:
    place = tmp_path_factory.mktemp("recording")
    asked = [turn("r", number, text) for number, (text, _) in enumerate(came, 1)]
    script = [Reply(content=said) if isinstance(said, str) else failed(*said) for _, said in came]
    recorder = Recorder(Scripted(script), place, used=[])
    recorded = [heard(recorder, request) for request in asked]
    assert recorded == [said for _, said in came]
    playback = Playback(place, mode)
    again = []
    for request in asked:
        playback = Playback(place, mode, playback.used)  # in isolated calls
        again.append(heard(playback, request))
    assert (again, playback.closing()) == (recorded, [])


def failed(kind: FailureKind, message: str, hint: str, sent: bool) -> ModelCallError:
    """The failure as an exception."""
    return FailureRecord(kind=kind, message=message, hint=hint, sent=sent).error()


# -- how a call ended --------------------------------------------------------------------------------------------------


@each("bound", ["", "timeout"])
@each("again", [False, True])
def test_a_failure_keeps_whether_it_was_lost_and_which_bound_ended_it(
    tmp_path: Path, again: bool, bound: Literal["", "timeout"]
) -> None:
    failed = ModelCallError("timeout", "gone")
    failed.retryable, failed.bound = again, bound
    for made in (lambda: Recorder(Scripted([failed]), tmp_path), lambda: Playback(tmp_path)):
        model: Any = made()
        with pytest.raises(ModelCallError) as raised:
            model.reply(ask("x"))
        assert (raised.value.retryable, raised.value.bound) == (again, bound)
    error = json.loads((tmp_path / "0001.json").read_text("utf-8"))["error"]
    assert [name for name in ("again", "bound") if name in error] == ["again"] * again + ["bound"] * bool(bound)


@each(
    "said",
    [
        {"reply": {"content": "x", "calls": 0}},
        {"reply": {"content": "x", "calls": 2**53}},
        {"reply": {"content": "x", "usage": {"input": 2**53, "output": 0}}},
        {"error": {"kind": "model", "message": "x", "calls": 2**53}},
        {"error": {"kind": "model", "message": "x", "came": 2**53}},
        {"error": {"kind": "model", "message": "x", "usage": {"input": 0, "output": 2**53}}},
        {"error": {"kind": "model", "message": "x", "bound": "max_tokens"}},
    ],
)
def test_a_count_that_no_run_can_keep_is_none_of_an_exchange(tmp_path: Path, said: dict[str, Any]) -> None:
    path = put(tmp_path, 1, ask("x"))
    document = json.loads(path.read_text("utf-8"))
    del document["reply"]
    path.write_text(json.dumps(document | said), "utf-8")
    with pytest.raises(RequestError, match="is not an exchange"):
        read_exchanges(tmp_path)


# -- a call that nothing is known of any more --------------------------------------------------------------------------


def test_a_recorder_recalls_what_its_caller_does_not_know_of_and_asks_nobody(tmp_path: Path) -> None:
    asked = turn("r", 1)
    assert Recorder(Scripted([]), tmp_path / "none", used=()).recall(asked) is None
    assert not (tmp_path / "none").exists()
    Recorder(Scripted([Reply(content="Paid.")]), tmp_path, used=()).reply(asked)
    assert Recorder(Scripted([]), tmp_path).recall(asked) is None  # nobody says what is known
    assert Recorder(Scripted([]), tmp_path, used=[1]).recall(asked) is None
    recorder = Recorder(Scripted([]), tmp_path, used=())
    assert recorder.recall(turn("r", 1, text="y")) is None
    recalled, told = recorder.recall(asked), []
    assert recalled is not None
    assert recorder.used == []
    assert recalled.reply(asked, told.append).content == "Paid."
    assert (recorder.used, told) == ([1], ["Paid."])
