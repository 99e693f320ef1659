"""Files of exchanges: writing, reading and refusals."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from each_case import each
from hypothesis import given
from hypothesis import strategies as st
from model.recording_samples import ModelRecord, Scripted, ask, put, read_exchanges, talk

from stateline.errors import (
    InvalidValueError,
    NewerVersionError,
    NotFoundError,
    RequestError,
    StatelineError,
    StorageError,
    UnsafePathError,
    UsageError,
)
from stateline.model.protocol import ModelRequest, Reply, ToolCall, ToolSpec, Usage
from stateline.model.recordings import record_directory, recorder, recording
from stateline.model.recordings.exchange import INVALID_FILE_HINT, LIMIT, Exchange, parse_exchange, render
from stateline.model.recordings.record_directory import check_directory
from stateline.model.recordings.recorder import Recorder
from stateline.process.signals import Interrupted, Signals
from stateline.redaction.redactor import Redactor
from stateline.store.local.filesystem import Filesystem

SECRET = "sk-live-0123456789abcdef"


def use_filesystem(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Filesystem]) -> None:
    """Let all modules of recordings use the file system that ``make`` returns."""
    for module in (record_directory, recorder, recording):
        monkeypatch.setattr(module, "Filesystem", make)


def recorded(directory: Path, request: ModelRequest, reply: Reply, **how: Any) -> tuple[Reply, Exchange]:
    """Return the recorder's reply, and the exchanges that it recorded."""
    returned = Recorder(Scripted([reply]), directory, **how).reply(request)
    return returned, read_exchanges(directory)[-1]


# -- what is written ---------------------------------------------------------------------------------------------------


def test_an_exchange_is_one_indented_file_with_sorted_keys_and_the_digest_of_its_request(tmp_path: Path) -> None:
    request = ask("hello", key="run:3:0:ab", settings={"temperature": 0.2})
    Recorder(Scripted([Reply(content="hi")]), tmp_path / "rec").reply(request)
    text = (tmp_path / "rec" / "0001.json").read_text("utf-8")
    document = json.loads(text)
    assert text == json.dumps(document, indent=2, sort_keys=True) + "\n"
    assert document == {
        "version": "1",
        "purpose": "turn",
        "digest": request.digest(),
        "key": "run:3:0:ab",
        "request": request.document(),
        "reply": {"content": "hi", "tool_calls": [], "finish": "stop", "usage": None, "model": ""},
    }


def test_everything_of_a_reply_comes_back_as_it_was(tmp_path: Path) -> None:
    calls = [ToolCall("c1", "search", {"q": "ä", "deep": [1, 2.5, None, {"x": True}]}), ToolCall("c2", "look", {})]
    reply = Reply(content="text", tool_calls=calls, finish="tool_calls", usage=Usage(12, 34), model="one-2026")
    request = ask(
        "x", tools=[ToolSpec("search", "finds", {"type": "object"})], output_schema={"type": "object"}, purpose="derive"
    )
    returned, kept = recorded(tmp_path / "rec", request, reply)
    assert returned == kept.reply == reply
    assert (kept.request, kept.digest, kept.purpose) == (request.document(), request.digest(), "derive")
    assert (kept.number, kept.edited) == (1, False)


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_number = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | _number | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_members = st.dictionaries(_text, _json, max_size=3)
_replies = st.builds(
    Reply,
    content=_text,
    tool_calls=st.lists(st.builds(ToolCall, id=_text, name=_text, arguments=_members), max_size=3),
    finish=st.sampled_from(["stop", "tool_calls"]),
    usage=st.none() | st.builds(Usage, input=st.integers(0, 10**9), output=st.integers(0, 10**9)),
    model=_text,
)
_requests = st.builds(
    ModelRequest,
    model=_text,
    messages=st.lists(_members, max_size=3),
    tools=st.lists(st.builds(ToolSpec, name=_text, description=_text, parameters=_members), max_size=2),
    settings=_members,
    output_schema=_json,
    purpose=st.sampled_from(["turn", "derive", "refine"]),
)


@given(request=_requests, reply=_replies)
def test_whatever_is_written_is_read_back_equal(request: ModelRequest, reply: Reply) -> None:
    document = {
        "version": "1",
        "purpose": request.purpose,
        "digest": request.digest(),
        "request": request.document(),
        "reply": msgspec.to_builtins(reply),
    }
    found = parse_exchange(7, render(document), "it")
    assert found == Exchange(
        number=7, purpose=request.purpose, digest=request.digest(), request=request.document(), reply=reply
    )


def test_a_file_holds_nothing_that_acts_on_a_terminal(tmp_path: Path) -> None:
    nasty = "\x1b[31m\x9b2J\u202e\x7f\ufeff\u2028"
    returned, kept = recorded(tmp_path / "rec", ask(nasty), Reply(content=nasty))
    text = (tmp_path / "rec" / "0001.json").read_text("utf-8")
    assert not set(nasty) - set("[31m2J") & set(text)
    assert returned.content == kept.outcome().content == kept.request["messages"][0]["content"] == nasty


def test_the_directory_is_made_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Recorder(ModelRecord(), tmp_path / "a" / "rec").reply(ask("x"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "rec").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "rec" / "0001.json").stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "a" / "rec") == ["0001.json"]


def test_recording_goes_on_after_the_highest_number_and_never_over_a_file(tmp_path: Path) -> None:
    for number in (3, 9999):
        put(tmp_path / "rec", number, ask(f"old {number}"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "rec").iterdir()}
    recorder = Recorder(ModelRecord(), tmp_path / "rec")
    recorder.reply(ask("new"))
    recorder.reply(ask("newer"))
    assert recorder.used == [10000, 10001]
    assert [exchange.number for exchange in read_exchanges(tmp_path / "rec")] == [3, 9999, 10000, 10001]
    assert all((tmp_path / "rec" / name).read_bytes() == data for name, data in before.items())


def test_what_the_model_says_is_heard_while_it_is_recorded(tmp_path: Path) -> None:
    heard: list[str] = []
    Recorder(Scripted([Reply(content="hi")]), tmp_path / "rec").reply(ask("x"), heard.append)
    assert heard == ["hi"]


def test_nothing_is_touched_before_the_first_request(tmp_path: Path) -> None:
    Recorder(ModelRecord(), tmp_path / "rec")
    check_directory(tmp_path / "rec")
    assert not (tmp_path / "rec").exists()


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_no_secret_reaches_the_directory(tmp_path: Path) -> None:
    redactor = Redactor([("KEY", SECRET)])
    request = ask(f"use {SECRET}", key=f"run-{SECRET}:1:0:ab", settings={"api_key": "anything", SECRET: 1})
    reply = Reply(content=f"I used {SECRET}", tool_calls=[ToolCall("c", "login", {"password": "hunter2", "k": SECRET})])
    returned, kept = recorded(tmp_path / "rec", request, reply, mask=lambda value: redactor.redact(value)[0])
    data = (tmp_path / "rec" / "0001.json").read_bytes()
    assert SECRET.encode() not in data
    assert b"hunter2" not in data
    assert b"anything" not in data
    assert kept.request["messages"][0]["content"] == "use [REDACTED]"
    # The run goes on with what a playback will give it.
    assert returned == kept.reply
    assert returned.tool_calls[0].arguments == {"password": "[REDACTED]", "k": "[REDACTED]"}


def test_the_digest_is_that_of_the_masked_request_so_it_fits_and_tells_nothing(tmp_path: Path) -> None:
    redactor = Redactor([("KEY", SECRET)])
    _, kept = recorded(tmp_path / "rec", ask(SECRET), Reply(content="x"), mask=lambda value: redactor.redact(value)[0])
    assert not kept.edited
    assert kept.digest == ask("[REDACTED]").digest() != ask(SECRET).digest()


def test_a_secret_that_reads_like_a_word_of_the_format_costs_the_recording_at_most(tmp_path: Path) -> None:
    for number, word in enumerate(("messages", "tool_calls", "arguments", "settings", "output_schema")):
        redactor = Redactor([("KEY", word)])
        reply = Reply(content="paid", tool_calls=[ToolCall("c", "t", {"a": 1})])
        recorder = Recorder(
            Scripted([reply]), tmp_path / str(number), mask=lambda value, r=redactor: r.redact(value)[0]
        )
        assert recorder.reply(ask("x")) == reply
        assert [exchange.number for exchange in read_exchanges(tmp_path / str(number))] == recorder.used
        assert len(recorder.used) + len(recorder.warnings) == 1


# -- what stands in the way --------------------------------------------------------------------------------------------


@each("mode", [0o777, 0o770, 0o720, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused_before_anything_is_sent(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "rec"
    place.mkdir()
    place.chmod(mode)
    model = ModelRecord()
    with pytest.raises(UnsafePathError, match="others may use it; nothing was recorded or sent") as refused:
        Recorder(model, place).reply(ask("x"))
    assert f"chmod go-w {place}" in refused.value.hint
    with pytest.raises(UnsafePathError):
        check_directory(place)
    assert (model.calls, os.listdir(place)) == (0, [])
    assert stat.S_IMODE(place.stat().st_mode) == mode


def test_a_directory_that_others_may_only_look_at_is_good_enough(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir(mode=0o755)
    Recorder(ModelRecord(), tmp_path / "rec").reply(ask("x"))
    assert len(read_exchanges(tmp_path / "rec")) == 1


def test_a_symlink_a_file_and_what_lies_below_a_file_are_no_directories_to_record_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("mine")
    model = ModelRecord()
    for name, error in (
        ("link", UnsafePathError),
        ("link/", UnsafePathError),
        ("file", UnsafePathError),
        ("file/x", StorageError),
    ):
        with pytest.raises(error):
            Recorder(model, f"{tmp_path}/{name}").reply(ask("x"))
        with pytest.raises(error):
            check_directory(f"{tmp_path}/{name}")
    for name in ("", "a\0b"):
        with pytest.raises(UsageError):
            Recorder(model, name).reply(ask("x"))
    assert (model.calls, os.listdir(tmp_path / "real"), (tmp_path / "file").read_text()) == (0, [], "mine")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir(mode=0o700)
    os.chown(tmp_path / "rec", 12345, 12345)
    with pytest.raises(UnsafePathError, match="belongs to user 12345"):
        Recorder(ModelRecord(), tmp_path / "rec").reply(ask("x"))


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_request_that_could_not_be_read_again_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    model = ModelRecord()
    too_large = ask("a" * LIMIT)
    for request in (
        ask("\ud800"),
        ask("x", settings={"x": float("nan")}),
        ask("x", settings={"x": deep(127)}),
        too_large,
    ):
        with pytest.raises(RequestError):
            Recorder(model, tmp_path / "rec").reply(request)
    assert model.calls == 0
    assert not (tmp_path / "rec").exists()


class Failing(Filesystem):
    """Refuses one call, by name, with an errno."""

    def __init__(self, call: str, number: int) -> None:
        self.call, self.number = call, number

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("call"):
            number = self.number

            def refuse(*_: object) -> Any:
                raise OSError(number, os.strerror(number))

            return refuse
        return super().__getattribute__(name)


@each("call", ["create", "write", "sync_file", "close_file", "link"])
@each("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE])
def test_a_reply_that_was_paid_for_is_returned_though_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    (tmp_path / "rec").mkdir(mode=0o700)
    use_filesystem(monkeypatch, lambda: Failing(call, number))
    recorder = Recorder(Scripted([Reply(content="paid"), Reply(content="again")]), tmp_path / "rec")
    assert recorder.reply(ask("x")) == Reply(content="paid")
    assert recorder.reply(ask("y")) == Reply(content="again")
    assert recorder.used == []
    assert len(recorder.warnings) == 2
    assert os.strerror(number) in recorder.warnings[0]
    assert "it is used, and is missing there" in recorder.warnings[0]
    monkeypatch.undo()
    assert read_exchanges(tmp_path / "rec") == []


def test_a_full_disk_costs_the_recording_and_not_the_reply(disk: Any) -> None:
    recorder = Recorder(Scripted([Reply(content="small"), Reply(content="x" * 300_000)]), disk.path / "rec")
    recorder.reply(ask("x"))
    disk.leave(64 * 1024)
    assert recorder.reply(ask("y")).content == "x" * 300_000
    assert "No space left" in recorder.warnings[0]
    assert os.listdir(disk.path / "rec") == ["0001.json"]
    assert len(read_exchanges(disk.path / "rec")) == 1


def test_a_directory_that_cannot_be_synced_is_warned_of_and_the_exchange_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_filesystem(monkeypatch, lambda: Failing("sync_directory", errno.EIO))
    recorder = Recorder(Scripted([Reply(content="paid")]), tmp_path / "rec")
    assert recorder.reply(ask("x")).content == "paid"
    assert recorder.used == [1]
    assert "may not survive a power loss" in recorder.warnings[0]


def test_a_reply_that_cannot_be_kept_is_returned_as_it_is(tmp_path: Path) -> None:
    for number, reply in enumerate([Reply(content="\ud800"), Reply(content="a" * LIMIT)]):
        recorder = Recorder(Scripted([reply]), tmp_path / str(number))
        assert recorder.reply(ask("x")) is reply
        assert len(recorder.warnings) == 1
        assert read_exchanges(tmp_path / str(number)) == []


class Linkless(Filesystem):
    """A file system without hard links."""

    def link(self, *_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_without_hard_links_no_file_is_written_over_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_filesystem(monkeypatch, Linkless)

    class Racing(ModelRecord):
        def reply(self, request: ModelRequest, told: Any = None) -> Reply:
            put(tmp_path / "rec", 1, ask("somebody else's"))
            return super().reply(request, told)

    recorder = Recorder(Racing(), tmp_path / "rec")
    recorder.reply(ask("mine"))
    assert [exchange.outcome().content for exchange in read_exchanges(tmp_path / "rec")] == ["reply 1", "to mine"]
    assert sorted(os.listdir(tmp_path / "rec")) == ["0001.json", "0002.json"]


def test_the_number_that_somebody_took_meanwhile_is_left_to_them(tmp_path: Path) -> None:
    class Racing(ModelRecord):
        def reply(self, request: ModelRequest, told: Any = None) -> Reply:
            for number in (1, 2):
                put(tmp_path / "rec", number, ask(f"theirs {number}"))
            return super().reply(request, told)

    recorder = Recorder(Racing(), tmp_path / "rec")
    recorder.reply(ask("mine"))
    assert recorder.used == [3]
    assert [exchange.outcome().content for exchange in read_exchanges(tmp_path / "rec")] == [
        "reply 1",
        "reply 2",
        "to mine",
    ]


def test_the_same_exchange_recorded_twice_is_two_exchanges(tmp_path: Path) -> None:
    recorder = Recorder(Scripted([Reply(content="same")] * 3), tmp_path / "rec")
    for _ in range(3):
        recorder.reply(ask("same"))
    assert recorder.used == [1, 2, 3]


# -- after a crash -----------------------------------------------------------------------------------------------------


def test_a_reply_that_was_recorded_and_lost_is_not_paid_for_again(tmp_path: Path) -> None:
    request = ask("x", key="run:3:0:ab")
    Recorder(Scripted([Reply(content="paid once")]), tmp_path / "rec", used=[]).reply(request)
    # The process died here, before the run knew of it.
    model, heard = Scripted([Reply(content="next")]), []
    recorder = Recorder(model, tmp_path / "rec", used=[])
    assert recorder.reply(request, heard.append).content == "paid once"
    assert (recorder.used, model.asked, heard) == ([1], [], ["paid once"])
    assert recorder.reply(ask("y", key="run:4:0:ab")).content == "next"
    assert recorder.used == [1, 2]


def test_a_signal_between_the_reply_and_its_file_waits_for_the_file(tmp_path: Path) -> None:
    def mask(value: Any) -> Any:
        if value == "paid":
            os.kill(os.getpid(), signal.SIGTERM)
        return value

    model, request = Scripted([Reply(content="paid")]), ask("x", key="run:3:0:ab")
    with pytest.raises(Interrupted), Signals():
        Recorder(model, tmp_path / "rec", mask, used=[]).reply(request)
    assert [exchange.outcome().content for exchange in read_exchanges(tmp_path / "rec")] == ["paid"]
    # The run did not hear of it; the next call does, and nobody is paid again.
    assert Recorder(model, tmp_path / "rec", used=[]).reply(request).content == "paid"
    assert len(model.asked) == 1


def test_a_second_attempt_of_the_same_call_is_sent(tmp_path: Path) -> None:
    request = ask("x", key="run:3:0:ab")
    recorder = Recorder(Scripted([Reply(content="no JSON"), Reply(content="{}")]), tmp_path / "rec", used=[])
    assert recorder.reply(request).content == "no JSON"
    assert recorder.reply(request).content == "{}"
    # And in a process of its own, told of the first by the run.
    assert Recorder(Scripted([Reply(content="[]")]), tmp_path / "rec", used=[1, 2]).reply(request).content == "[]"


@each(
    "other",
    [
        ask("x", key="run:4:0:ab"),  # another call
        ask("y", key="run:3:0:ab"),  # another request, since a flag has changed
        ask("x"),  # nobody said which call it is
    ],
)
def test_only_the_same_call_of_the_same_request_is_taken_from_the_recording(
    tmp_path: Path, other: ModelRequest
) -> None:
    Recorder(Scripted([Reply(content="old")]), tmp_path / "rec", used=[]).reply(ask("x", key="run:3:0:ab"))
    assert Recorder(Scripted([Reply(content="new")]), tmp_path / "rec", used=[]).reply(other).content == "new"


@each("purpose", ["derive", "refine"])
def test_what_is_made_of_a_prompt_is_asked_for_again_since_it_may_have_been_refused(
    tmp_path: Path, purpose: Any
) -> None:
    request = ask("x", key="context:demo:0", purpose=purpose)
    for content in ("no such thing", "fine"):
        model = Scripted([Reply(content=content)])
        assert Recorder(model, tmp_path / "rec", used=[]).reply(request).content == content


def test_a_caller_that_does_not_say_what_it_knows_always_asks(tmp_path: Path) -> None:
    request = ask("x", key="run:3:0:ab")
    for content in ("one", "two"):
        assert Recorder(Scripted([Reply(content=content)]), tmp_path / "rec").reply(request).content == content


def test_what_cannot_be_understood_does_not_keep_a_call_from_being_recorded(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir(mode=0o700)
    (tmp_path / "rec" / "0001.json").write_text("torn")
    (tmp_path / "rec" / "0002.json").write_text("{}")
    recorder = Recorder(ModelRecord(), tmp_path / "rec", used=[])
    recorder.reply(ask("x", key="k"))
    assert recorder.used == [3]


@each("make", [lambda path: path.symlink_to("nowhere"), os.mkfifo, os.mkdir])
def test_what_no_playback_would_open_is_refused_before_anything_is_sent(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    place, model = tmp_path / "rec", ModelRecord()
    recorder = Recorder(model, place)
    recorder.reply(ask("x"))
    make(place / "0007.json")
    for call in (lambda: recorder.reply(ask("y")), lambda: check_directory(place), lambda: read_exchanges(place)):
        with pytest.raises(RequestError, match="not a regular file") as refused:
            call()
        assert (str(place / "0007.json") in refused.value.message, refused.value.hint) == (True, INVALID_FILE_HINT)
    assert (model.calls, sorted(os.listdir(place))) == (1, ["0001.json", "0007.json"])


# -- what is read ------------------------------------------------------------------------------------------------------


def test_exchanges_come_in_the_order_of_their_numbers_and_not_of_their_names(tmp_path: Path) -> None:
    # Sorted by name, 10000.json stands before 1001.json and 9999.json.
    numbers = [10000, 2, 1001, 9999, 1, 100000, 12, 10001]
    for number in numbers:
        put(tmp_path / "rec", number, ask(f"question {number}"))
    found = read_exchanges(tmp_path / "rec")
    assert [exchange.number for exchange in found] == sorted(numbers)
    assert [exchange.outcome().content for exchange in found] == [f"reply {number}" for number in sorted(numbers)]


def test_twelve_turns_are_read_in_the_order_in_which_they_were_recorded(tmp_path: Path) -> None:
    recorder = Recorder(ModelRecord(), tmp_path / "rec")
    replies = [recorder.reply(request) for request in talk(12)]
    assert [exchange.reply for exchange in read_exchanges(tmp_path / "rec")] == replies


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path / "rec", 5, ask("x"))
    for name in (
        "notes.md",
        "0001.json.bak",
        "turn-1.json",
        ".tmp-0123456789abcdef",
        "0001",
        "\u0660\u0660\u0660\u0661.json",
        "-001.json",
    ):
        (tmp_path / "rec" / name).write_text("{")
    (tmp_path / "rec" / "below").mkdir()
    assert [exchange.number for exchange in read_exchanges(tmp_path / "rec")] == [5]


@each("name", ["1.json", "00001.json", "0000.json", "010000.json", "9" * 30 + ".json", "1000000000.json"])
def test_a_number_that_is_spelt_otherwise_is_refused_so_that_no_turn_is_missed(tmp_path: Path, name: str) -> None:
    put(tmp_path / "rec", 1, ask("x"))
    (tmp_path / "rec" / name).write_text("{}")
    with pytest.raises(RequestError, match="not named like an exchange") as refused:
        read_exchanges(tmp_path / "rec")
    assert name in refused.value.message
    (tmp_path / "rec").chmod(0o700)
    model = ModelRecord()
    with pytest.raises(RequestError, match="not named like an exchange"):
        Recorder(model, tmp_path / "rec").reply(ask("y"))
    assert model.calls == 0


def changed(**members: Any) -> dict[str, Any]:
    request = ask("x")
    good = {
        "version": "1",
        "purpose": "turn",
        "digest": request.digest(),
        "request": request.document(),
        "reply": {"content": "x"},
    }
    return {name: value for name, value in {**good, **members}.items() if value is not ...}


BAD: dict[str, tuple[Any, str]] = {
    "no object": ([], "Expected `object`"),
    "no version": (changed(version=...), "missing required field `version`"),
    "a version that is a number": (changed(version=1), "Expected `str`"),
    "a version that is none": (changed(version="one"), "the version is 'one'"),
    "neither a reply nor an error": (changed(reply=...), "exactly one of `reply` and `error`"),
    "a reply and an error": (changed(error={"kind": "model", "message": "x"}), "exactly one of `reply` and `error`"),
    "an error of no kind": (changed(reply=..., error={"kind": "bad", "message": "x"}), "Invalid enum value 'bad'"),
    "an error with more": (
        changed(reply=..., error={"kind": "reply", "message": "", "code": 1}),
        "unknown field `code`",
    ),
    "a failed call that was refused": (
        changed(reply=..., error={"kind": "model", "message": "x"}, refused="no"),
        "`refused` needs a `reply`",
    ),
    "another purpose": (changed(purpose="chat"), "Invalid enum value 'chat'"),
    "an unknown member": (changed(usage={}), "unknown field `usage`"),
    "a misspelt reply": (changed(reply={"contents": "x"}), "unknown field `contents`"),
    "a reply that was cut": (changed(reply={"content": "x", "finish": "length"}), "Invalid enum value 'length'"),
    "a call without a name": (changed(reply={"tool_calls": [{"id": "c", "arguments": {}}]}), "`name`"),
    "arguments that are text": (
        changed(reply={"tool_calls": [{"id": "c", "name": "t", "arguments": "{}"}]}),
        r"\$.reply.tool_calls\[0\].arguments",
    ),
    "usage that is no number": (changed(reply={"content": "x", "usage": {"input": "1"}}), "Expected `int`"),
    "no messages": (changed(request={"model": "m"}), "missing required field `messages`"),
    "messages that are text": (changed(request={**ask("x").document(), "messages": "hi"}), "Expected `array`"),
    "a request with a time": (changed(request={**ask("x").document(), "timeout": 3}), "unknown field `timeout`"),
}


@each("what", BAD)
def test_a_file_of_another_shape_is_refused_by_name_with_what_is_wrong(tmp_path: Path, what: str) -> None:
    document, message = BAD[what]
    put(tmp_path, 1, ask("x"))
    (tmp_path / "0002.json").write_text(json.dumps(document))
    with pytest.raises(RequestError, match=message) as refused:
        read_exchanges(tmp_path)
    assert str(tmp_path / "0002.json") in refused.value.message
    assert refused.value.hint


TEXTS = {
    "empty": b"",
    "torn": b'{"version": "1", "purp',
    "not UTF-8": b'{"version": "\xff"}',
    "a key twice": b'{"version": "1", "version": "1"}',
    "NaN": b'{"version": NaN}',
    "a bomb": b"[" * 100_000,
    "two documents": b"{} {}",
}


@each("what", TEXTS)
def test_a_file_that_is_no_json_is_refused_by_name(tmp_path: Path, what: str) -> None:
    (tmp_path / "0001.json").write_bytes(TEXTS[what])
    with pytest.raises(InvalidValueError) as refused:
        read_exchanges(tmp_path)
    assert str(tmp_path / "0001.json") in refused.value.message


def test_an_exchange_of_a_newer_version_is_told_apart(tmp_path: Path) -> None:
    put(tmp_path, 1, ask("x"), version="2", more=[])
    with pytest.raises(NewerVersionError, match="version 2"):
        read_exchanges(tmp_path)


def test_links_pipes_directories_and_huge_files_are_refused_without_being_read(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", 1, ask("x"))
    for number, (make, said) in enumerate(
        [
            (lambda path: path.symlink_to(tmp_path / "elsewhere" / "0001.json"), "not a regular file"),
            (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
            (lambda path: path.symlink_to("nowhere"), "not a regular file"),
            (os.mkfifo, "not a regular file"),
            (os.mkdir, "not a regular file"),
            (lambda path: (path.touch(), os.truncate(path, LIMIT + 1)), "over the limit"),
        ]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        make(place / "0001.json")
        with pytest.raises(RequestError, match=said) as refused:
            read_exchanges(place)
        assert str(place / "0001.json") in refused.value.message


@each("call, what", [("open_root", ""), ("names", ""), ("read", "/0001.json")])
def test_what_the_system_will_not_read_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, what: str
) -> None:
    put(tmp_path, 1, ask("x"))
    use_filesystem(monkeypatch, lambda: Failing(call, errno.EIO))
    with pytest.raises(StorageError) as refused:
        read_exchanges(tmp_path)
    assert refused.value.message == f"cannot read {tmp_path}{what}: Input/output error; nothing was changed"


@each("call", ["open_root", "stat_path", "names", "make_root"])
def test_a_place_that_cannot_be_used_is_found_out_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    use_filesystem(monkeypatch, lambda: Failing(call, errno.EACCES))
    model = ModelRecord()
    with pytest.raises(StorageError, match="Permission denied; nothing was sent to the model"):
        Recorder(model, tmp_path / "rec").reply(ask("x"))
    assert model.calls == 0


def test_a_directory_is_read_through_a_symlink_and_changed_in_nothing(tmp_path: Path) -> None:
    put(tmp_path / "rec", 1, ask("x"))
    (tmp_path / "rec").chmod(0o555)
    (tmp_path / "link").symlink_to("rec")
    assert len(read_exchanges(tmp_path / "link")) == 1
    assert stat.S_IMODE((tmp_path / "rec").stat().st_mode) == 0o555


def test_white_space_and_the_order_of_keys_do_not_matter_to_the_digest(tmp_path: Path) -> None:
    path = put(tmp_path, 1, ask("x", settings={"a": 1, "b": 2.0}))
    before = read_exchanges(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7, sort_keys=True))
    assert read_exchanges(tmp_path) == before
    assert not before[0].edited


def test_a_request_that_was_edited_counts_as_it_is_now(tmp_path: Path) -> None:
    path = put(tmp_path, 1, ask("old words"))
    path.write_text(path.read_text().replace("old words", "new words"))
    (found,) = read_exchanges(tmp_path)
    assert found.edited
    assert found.digest == ask("new words").digest()


def test_a_reply_may_be_edited_freely(tmp_path: Path) -> None:
    path = put(tmp_path, 1, ask("x"), "old words")
    path.write_text(path.read_text().replace("old words", "new words"))
    (found,) = read_exchanges(tmp_path)
    assert (found.edited, found.outcome().content) == (False, "new words")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_exchange_or_a_typed_error(data: bytes) -> None:
    try:
        parse_exchange(1, data, "it")
    except StatelineError:
        pass


@given(
    document=_json,
    name=st.sampled_from(["version", "purpose", "digest", "request", "reply", "error", "refused", "key", "x"]),
)
def test_any_member_is_read_or_a_typed_error(document: Any, name: str) -> None:
    try:
        found = parse_exchange(1, json.dumps({**changed(), name: document}).encode(), "it")
        assert name in ("digest", "key", "refused") or (name == "reply" and document == {})
        assert found.outcome().content == ("" if name == "reply" else "x")
    except StatelineError:
        pass


# -- where there is none -----------------------------------------------------------------------------------------------


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        with pytest.raises(NotFoundError, match="nothing to play back"):
            read_exchanges(tmp_path / name)
