"""Size of the exchange numbers that a run stores of its playback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each

from stateline import Store
from stateline.bundle import canonical
from stateline.engine.record import load_run
from stateline.errors import IntegrityError
from stateline.model.protocol import ModelRequest, Reply
from stateline.model.recordings.recorder import Recorder
from stateline.service.exchanges import ModelOptions
from stateline.service.execute import execute, resume
from stateline.service.model_setup import Models
from stateline.service.options import CallOptions, ExecuteOptions

TURNS = 300


class Counting:
    """A model that replies with how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    def reply(self, request: ModelRequest, told: Any = None) -> Reply:
        self.count += 1
        return Reply(content=str(self.count))


@pytest.fixture
def machine(tmp_path: Path) -> str:
    return new_machine(tmp_path)


def new_machine(tmp_path: Path) -> str:
    agent = {"agent": {"prompt": "Go."}, "routes": [{"when": f"visits.think < {TURNS}", "to": "think"}]}
    (tmp_path / "m.json").write_text(json.dumps({"stateline": 1, "name": "m", "stages": {"think": agent}}))
    return str(tmp_path / "m.json")


def recorded(place: Path, text: str, count: int = 10) -> str:
    recorder = Recorder(Counting(), place)
    for _ in range(count):
        recorder.reply(ModelRequest(model="m", messages=[{"role": "user", "content": text}]))
    return str(place)


def call(store: Store, one_turn: bool = False, **said: Any) -> CallOptions:
    models = Models(store, ModelOptions(**said))
    return CallOptions(one_turn=one_turn, models=models)


def test_event_size_does_not_grow_with_the_turns_of_a_playback(tmp_path: Path) -> None:
    def check(tmp_path: Path, text: str, stale: list[Any]) -> None:
        machine = new_machine(tmp_path)
        store = Store.in_memory()
        playback = recorded(tmp_path / "rec", text, TURNS)
        how = call(store, playback=playback, playback_mode="sequential")
        done = execute(store, ExecuteOptions(machine=machine, run="r", call=how))
        assert (done.status, done.output, done.turn) == ("complete", str(TURNS), TURNS)
        events = [snapshot.event for snapshot in store.scope("run:r").walk()][::-1]
        assert events[-1]["exchanges"]["used"] == [[1, TURNS]]
        assert events[-1]["exchanges"].get("stale", []) == stale
        assert [event["exchanges"]["used"] for event in events[1:4]] == [[[1, 1]], [[1, 2]], [[1, 3]]]
        sizes = [len(canonical.encode(event)) for event in events[10:-1]]
        assert max(sizes) - min(sizes) < 32, "but for the digits of what is counted"

    for_each(check, [("Go.", []), ("Go on.", [[1, TURNS]])], root=tmp_path)


def test_calls_of_one_turn_record_the_same_numbers_as_one_call(tmp_path: Path, machine: str) -> None:
    store = Store.in_memory()
    playback = recorded(tmp_path / "rec", "Go.")
    execute(store, ExecuteOptions(machine=machine, run="r", call=call(store, True, playback=playback)))
    for turn in range(2, 8):
        resume(store, "r", call(store, True))
        assert store.scope("run:r").load().event["exchanges"]["used"] == [[1, turn]]
    assert load_run(store, "r").state.outputs == {"think": "7"}


def test_malformed_exchange_numbers_in_an_event_are_damage(tmp_path: Path) -> None:
    def check(tmp_path: Path, used: Any, name: str) -> None:
        machine = new_machine(tmp_path)
        store = Store.in_memory()
        playback = recorded(tmp_path / "rec", "Go.")
        execute(store, ExecuteOptions(machine=machine, run="r", call=call(store, True, playback=playback)))
        head = store.scope("run:r").load()
        event = head.event | {"exchanges": head.event["exchanges"] | {name: used}}
        store.scope("run:r").save(head.state, event=event, parent=head, masked=True)
        with pytest.raises(IntegrityError, match="how its run records or plays back"):
            resume(store, "r", call(store, True))
        assert store.scope("run:r").load().seq == head.seq + 1

    for_each(
        check,
        [
            (used, name)
            for used in [[[1, 10**9]], [[1, 10**8]], [[2, 1]], [[1, 2], [2, 3]], [1, 2], [[1]], [[1, 2, 3]], "x"]
            for name in ["used", "stale"]
        ],
        root=tmp_path,
    )


def test_an_event_with_a_relative_recording_path_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(tmp_path: Path, directory: str, mode: str) -> None:
        machine = new_machine(tmp_path)
        store = Store.in_memory()
        playback = recorded(tmp_path / "rec", "Go.")
        execute(store, ExecuteOptions(machine=machine, run="r", call=call(store, True, playback=playback)))
        head = store.scope("run:r").load()
        kept = head.event["exchanges"] | {"dir": directory, "mode": mode}
        store.scope("run:r").save(head.state, event=head.event | {"exchanges": kept}, parent=head, masked=True)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(IntegrityError, match="how its run records or plays back"):
            resume(store, "r", call(store, True))
        assert store.scope("run:r").load().seq == head.seq + 1

    for_each(
        check,
        [
            (directory, mode)
            for directory in ["", "\0", "/a\0b", "rec", "./rec", "../rec"]
            for mode in ["record", "playback"]
        ],
        root=tmp_path,
    )
