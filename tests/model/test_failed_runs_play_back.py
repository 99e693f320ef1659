"""Runs that met failures of the model, recorded and played back without a model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from each_case import each
from model_server import ModelServer, Say
from scripted_model import write_machine

from stateline import Store
from stateline.contexts.context import ContextRequest
from stateline.errors import RequestError
from stateline.model.recordings.playback import MODES
from stateline.service.exchanges import ModelOptions
from stateline.service.execute import execute, resume
from stateline.service.model_setup import Models
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.run import RunOptions, run
from stateline.service.run_document import Outcome

QUICK = {"retry-after-ms": "5"}
CONTEXT = '{"prompts": {"system": "Be brief.", "developer": []}, "settings": {"temperature": 0.5}}'
END: dict[str, Any] = {"end": {}}


def call(store: Store, one_turn: bool = False, **models: Any) -> CallOptions:
    """A call with the models that its flags mean."""
    voice = Models(store, ModelOptions(**models), environ={})
    return CallOptions(one_turn=one_turn, models=voice)


def told(store: Store, id: str = "r") -> Any:
    """The run's last state, everything filled in."""
    head = store.scope(f"run:{id}").head()
    assert head is not None
    return store.resolve(head.state)


def recorded(path: str, place: Path, *script: Say) -> tuple[Store, Outcome]:
    """A run that was recorded, of a model that says just this."""
    store = Store.in_memory()
    with ModelServer(*script) as server:
        said = call(store, model="openai/m", base_url=server.url, record=str(place))
        outcome = execute(store, ExecuteOptions(machine=path, run="r", call=said))
        assert server.script == []
    return store, outcome


def played(path: str, place: Path, mode: str) -> tuple[Store, Outcome]:
    """The same run, played back in one call."""
    store = Store.in_memory()
    said = call(store, playback=str(place), playback_mode=mode)
    return store, execute(store, ExecuteOptions(machine=path, run="r", call=said))


def played_alone(path: str, place: Path, mode: str) -> tuple[Store, Outcome]:
    """The same run, played back in calls of one turn each."""
    store = Store.in_memory()
    flags = {"playback": str(place), "playback_mode": mode}
    outcome = execute(store, ExecuteOptions(machine=path, run="r", call=call(store, one_turn=True, **flags)))
    while outcome.status == "advanced":
        outcome = execute(store, ExecuteOptions(machine=path, run="r", call=call(store, one_turn=True)))
    return store, outcome


def stages(**think: Any) -> dict[str, Any]:
    """A stage that asks a model, one that asks another in its place, and one that needs none."""
    return {
        "think": {"agent": {"prompt": "Think."}, "default_next": "end", **think},
        "instead": {"agent": {"prompt": "Think of {{ error.message }}."}, "default_next": "end"},
        "give_up": {"task": ["/bin/echo", "{}"], "repeatable": True, "default_next": "end"},
        "end": END,
    }


DOWN = [Say("out of order", status=503, headers=QUICK)] * 3
CASES: dict[str, tuple[dict[str, Any], list[Say]]] = {
    "another stage, which asks again": (stages(error_next="instead"), [*DOWN, Say("Well.")]),
    "another stage, which asks nobody": (stages(error_next="give_up"), [Say("no such model", status=404)]),
    "a reply that was cut": (stages(error_next="instead"), [Say("Half", finish="length"), Say("Well.")]),
    "attempts of the same call": (
        stages(retry={"max_attempts": 3}),
        [Say("no", status=402), Say("Half", finish="length"), Say("Well.")],
    ),
    "attempts that did not help": (
        stages(retry={"max_attempts": 2}, error_next="instead"),
        [Say("no", status=402), Say("no", status=413), Say("Well.")],
    ),
    "a refusal that is not retried": (
        stages(retry={"max_attempts": 3}, error_next="instead"),
        [Say("no", status=403), Say("Well.")],
    ),
}


@each("mode", MODES)
@each("case", CASES)
def test_a_run_that_went_on_after_a_failure_of_its_model_plays_back_to_the_same_state(
    tmp_path: Path, case: str, mode: str
) -> None:
    machine, script = CASES[case]
    path = write_machine(tmp_path, machine)
    store, outcome = recorded(path, tmp_path / "rec", *script)
    assert outcome.status == "complete"
    for play in (played, played_alone):
        again, ended = play(path, tmp_path / "rec", mode)
        about_recordings = [text for text in ended.warnings if not re.match("stage '.*' failed ", text)]
        assert (ended.status, about_recordings) == ("complete", [])
        assert told(again) == told(store)


@each("status, calls", [(400, 1), (401, 1), (403, 1), (404, 1), (402, 3), (422, 3)])
def test_retry_does_not_repeat_a_model_call_that_would_be_refused_again(
    tmp_path: Path, status: int, calls: int
) -> None:
    path, store = write_machine(tmp_path, stages(retry={"max_attempts": 3})), Store.in_memory()
    with ModelServer(otherwise=Say("no", status=status)) as server:
        models = call(store, model="openai/m", base_url=server.url)
        outcome = execute(store, ExecuteOptions(machine=path, run="r", call=models))
        assert (outcome.status, server.count) == ("error", calls)
        server.otherwise = Say("Well.")
        assert resume(store, "r", models, retry=True).status == "complete"


@each("mode", MODES)
def test_a_run_that_failed_and_was_retried_by_hand_is_retried_by_hand_again(tmp_path: Path, mode: str) -> None:
    path = write_machine(tmp_path, stages())
    store = Store.in_memory()
    with ModelServer(*DOWN, Say("Well.")) as server:
        flags = {"model": "openai/m", "base_url": server.url}
        said = call(store, **flags, record=str(tmp_path / "rec"))
        assert execute(store, ExecuteOptions(machine=path, run="r", call=said)).status == "error"
        assert resume(store, "r", retry=True, call=call(store, **flags)).status == "complete"
    again, ended = played(path, tmp_path / "rec", mode)
    assert (ended.status, ended.waiting) == ("error", None)
    assert resume(again, "r", retry=True, call=call(again)).status == "complete"
    assert told(again) == told(store)


def test_a_bound_on_calls_counts_a_failed_one_in_a_playback_too(tmp_path: Path) -> None:
    """A call that was not sent does not count: the file holds ``sent``."""
    machine = stages(retry={"max_attempts": 9})
    path = write_machine(tmp_path, machine, bounds={"max_llm_calls": 2})
    store, outcome = recorded(path, tmp_path / "rec", Say("no", status=402), *[Say("Half", finish="length")] * 2)
    assert (outcome.status, outcome.reason) == ("error", "limit")
    assert [json.loads(file.read_text())["error"]["sent"] for file in sorted((tmp_path / "rec").iterdir())] == [
        False,
        True,
        True,
    ]
    again, ended = played(path, tmp_path / "rec", "strict")
    assert (ended.status, ended.reason) == ("error", "limit")
    assert told(again) == told(store)


def asked(store: Store, **models: Any) -> Outcome:
    """``run -p`` with a context of its own name."""
    said = ModelOptions(**models)
    return run(
        store,
        RunOptions(
            prompt="How far is the moon?", run="r", context="demo", context_request=ContextRequest(), models=said
        ),
    )


def context(store: Store) -> Any:
    head = store.scope("context:demo").head()
    assert head is not None
    return store.resolve(head.state)


@each("mode", MODES)
@each("streams", [False, True])
def test_a_derivation_that_was_refused_and_repeated_until_it_worked_plays_back_as_the_last(
    tmp_path: Path, mode: str, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    place, store = tmp_path / "rec", Store.in_memory()
    hear = (lambda text: None) if streams else None
    script = [Say("I would rather not."), Say("no", status=400), Say(CONTEXT), Say("Far.")]
    with ModelServer(*script) as server:
        flags = {"base_url": server.url, "record": str(place), "on_text": hear}
        for model in ("openai/small", "openai/small"):
            with pytest.raises(RequestError):
                asked(store, model=model, **flags)
        outcome = asked(store, model="openai/large", **flags)
        assert (outcome.output, server.script) == ("Far.", [])
    again = Store.in_memory()
    ended = asked(again, playback=str(place), playback_mode=mode)
    assert (ended.status, ended.output, ended.warnings) == ("complete", "Far.", [])
    assert context(again)["prompts"] == context(store)["prompts"]
    assert context(again)["model_id"] == "openai/large"
    assert told(again)["outputs"] == told(store)["outputs"]
    # What was refused stays, with the reason, for whoever reads it.
    first = json.loads((place / "0001.json").read_text("utf-8"))
    assert first["reply"]["content"] == "I would rather not."
    assert "was refused" in first["refused"]


def test_a_derivation_that_never_worked_fails_in_a_playback_as_it_did(tmp_path: Path) -> None:
    place, store = tmp_path / "rec", Store.in_memory()
    with ModelServer(Say("I would rather not.")) as server, pytest.raises(RequestError) as before:
        asked(store, model="openai/m", base_url=server.url, record=str(place))
    with pytest.raises(RequestError) as after:
        asked(Store.in_memory(), playback=str(place))
    assert after.value.message == before.value.message


def test_a_run_that_was_given_up_and_begun_anew_until_it_worked_plays_back_as_the_last(tmp_path: Path) -> None:
    path, place = write_machine(tmp_path, stages()), tmp_path / "rec"
    _, outcome = recorded(path, place, *DOWN)
    assert outcome.status == "error"
    store, outcome = recorded(path, place, Say("Well."))
    assert outcome.status == "complete"
    again, ended = played(path, place, "hybrid")
    assert (ended.status, ended.warnings) == ("complete", [])
    assert told(again) == told(store)
