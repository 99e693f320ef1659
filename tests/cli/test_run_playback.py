"""Recordings: what was recorded once is played back without a network, in one call or in many, to the same end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from each_case import Failures
from model_server import ModelServer, Say

from stateline import Store
from stateline.bundle import canonical
from stateline.engine.record import load_run
from stateline.service.exchanges import ModelOptions
from stateline.service.execute import execute
from stateline.service.model_setup import Models
from stateline.service.options import CallOptions, ExecuteOptions

CHECKOUT = Path(__file__).parents[2]
EXAMPLE = CHECKOUT / "examples" / "conversation"
TURNS = 14


def make_offline(cli: Cli) -> None:
    """No key, and no endpoint that anything could reach."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        cli.monkeypatch.delenv(name, raising=False)
    cli.monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")


@pytest.fixture
def offline(cli: Cli) -> None:
    return make_offline(cli)


@pytest.fixture
def machine(cli: Cli) -> str:
    """A machine whose model counts with a tool, then a task and another model, which answer 14 turns in all."""
    count = {
        "name": "count", "description": "Counts.", "argv": ["sh", "-c", "cat; echo 1 >> ran"], "repeatable": True,
        "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    }  # fmt: skip
    (cli.home / "tools.json").write_text(json.dumps({"tools": [count]}))
    return str(
        cli.machine(
            _tools="tools.json",
            _state={"said": []},
            think={
                "agent": {"prompt": "Count to {{ string(12) }}.", "tools": ["count"]},
                "set": {"said": "[output]"},
                "default_next": "sort",
            },
            sort={"task": ["/bin/echo", '{"sorted": true}'], "repeatable": True, "default_next": "sum"},
            sum={"agent": {"prompt": "Sum up {{ state.said }}."}, "default_next": "done"},
            done={"end": {}},
        )
    )


@pytest.fixture
def recording(cli: Cli, machine: str) -> Path:
    """A recorded run of ``machine``: twelve calls of the tool, an answer, and the answer of the second stage."""
    directory = cli.home / "recording"
    script = [Say(f"Now {n}.", calls=[("count", {"n": n})]) for n in range(1, 13)]
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    with ModelServer(*script, Say("Counted."), Say("All is well.")) as server:
        words = ["-m", "openai/model-1", "--base-url", server.url, "--record", str(directory)]
        document = cli.json("execute", machine, "--id", "recorded", *words)
        assert (document["status"], server.count) == ("complete", TURNS)
    cli.monkeypatch.delenv("OPENAI_API_KEY")
    cli.monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    (cli.home / "ran").unlink()
    return Path(directory)


def final(cli: Cli, run: str) -> bytes:
    """The canonical bytes of a run's last ``state``, everything filled in."""
    return canonical.encode(cli.json("show", f"run:{run}", "--resolve")["state"])


def model_events(cli: Cli, run: str) -> list[dict[str, Any]]:
    """The events of replies, oldest first."""
    rows = cli.json("log", f"run:{run}")["snapshots"][::-1]
    return [row["event"] for row in rows if row["event"]["type"] == "replied"]


def test_a_recording_has_one_numbered_private_file_for_each_exchange(cli: Cli, recording: Path) -> None:
    names = sorted(path.name for path in recording.iterdir() if path.suffix == ".json")
    assert names == [f"{number:04d}.json" for number in range(1, TURNS + 1)]
    assert {path.stat().st_mode & 0o777 for path in recording.glob("*.json")} == {0o600}
    assert recording.stat().st_mode & 0o777 == 0o700
    assert b"sk-not-a-real-key" not in b"".join(path.read_bytes() for path in recording.iterdir())


@pytest.mark.parametrize("mode", ["hybrid", "strict", "sequential"])
def test_row_2_isolated_calls_play_on_where_the_last_one_stood_and_end_in_the_same_state(
    cli: Cli, machine: str, recording: Path, mode: str
) -> None:
    words = ["--playback", str(recording), "--playback-mode", mode]
    document = cli.json("execute", machine, "--id", "whole", *words)
    assert (document["status"], document["warnings"], document["output"]) == ("complete", [], "All is well.")
    exits = [cli("execute", "-i", machine, "--id", "steps", *words).code]
    while exits[-1] == 0:
        exits.append(cli("execute", "-i", machine, "--id", "steps").code)
    assert exits == [0] * TURNS + [2]  # the task of the second stage is a turn as well
    assert final(cli, "steps") == final(cli, "whole") == final(cli, "recorded")
    for run in ("whole", "steps"):
        assert model_events(cli, run)[-1]["exchanges"]["used"] == [[1, TURNS]]
    assert len(cli.ran()) == 2 * 12


def test_a_playback_in_memory_ends_in_the_same_state(cli: Cli, machine: str, recording: Path) -> None:
    cli.json("execute", machine, "--id", "local", "--playback", str(recording))
    store = Store.in_memory()
    models = Models(store, ModelOptions(playback=str(recording)))
    call = CallOptions(models=models)
    outcome = execute(store, ExecuteOptions(machine=machine, run="memory", call=call))
    assert (outcome.status, outcome.warnings) == ("complete", [])
    state = store.resolve(load_run(store, "memory").snapshot.state)
    state["machine"]["source"] = None  # the file's bytes, which `show` leaves out as well
    assert canonical.encode(state) == final(cli, "local")


def test_a_process_for_each_turn_plays_in_order_too(cli: Cli, machine: str, recording: Path) -> None:
    words = ["execute", "-i", machine, "--id", "steps", "--format", "json"]
    results = [cli.process(*words, "--playback", str(recording))]
    while results[-1].code == 0:
        results.append(cli.process(*words))
    assert results[-1].code == 2, results[-1]
    assert results[-1].document["output"] == "All is well."
    assert final(cli, "steps") == final(cli, "recorded")


def test_recording_or_playing_back_belongs_to_the_run(cli: Cli, machine: str, recording: Path) -> None:
    other = cli.home / "other"
    shutil.copytree(recording, other)
    cli.json("execute", "-i", machine, "--id", "r1", "--playback", str(recording), "--playback-mode", "strict")
    before = {path: row[4] for path, row in cli.tree().items()}
    for words in (
        ["--playback", str(other)],
        ["--record", str(recording)],
        ["--playback", str(recording), "--playback-mode", "hybrid"],
    ):
        for call in (["execute", "-i", machine, "--id", "r1"], ["exec", "resume", "r1"], ["run", "--id", "r1"]):
            error = cli.refused(*call, *words, exits=1)
            assert "plays" in error["message"]
            assert error["code"] == "refused"
    assert {path: row[4] for path, row in cli.tree().items()} == before
    same = ["--playback", str(recording.parent / "." / "recording")]
    assert cli.json("execute", "-i", machine, "--id", "r1", *same)["turn"] == 2
    assert cli.json("exec", "status", "r1")["mode"] == "playback"
    cli.json("execute", "-i", machine, "--id", "r2", exits=3)
    assert (
        "neither records nor plays" in cli.refused("exec", "resume", "r2", "--playback", str(other), exits=1)["message"]
    )


def test_recording_continues_in_later_calls_without_the_flag(cli: Cli, machine: str) -> None:
    directory = cli.home / "rec"
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    with ModelServer(*[Say(calls=[("count", {"n": n})]) for n in (1, 2, 3)]) as server:
        words = ["execute", "-i", machine, "--id", "r1", "-m", "openai/model-1", "--base-url", server.url]
        cli.json(*words, "--record", str(directory))
        cli.json(*words)
        cli.json(*words)
    assert sorted(path.name for path in directory.glob("*.json")) == ["0001.json", "0002.json", "0003.json"]


def test_a_missing_recording_is_an_error_and_no_context_is_made(cli: Cli, recording: Path) -> None:
    error = cli.refused("run", "-p", "x", "--playback", str(recording.parent / "recordin"), exits=1)
    assert error["code"] == "not_found"
    assert [row["scope"] for row in cli.json("scopes")["scopes"] if row["scope"].startswith("context:")] == []


def test_what_was_not_played_and_what_did_not_fit_is_reported(cli: Cli, machine: str, recording: Path) -> None:
    last = recording / "0014.json"
    document = json.loads(last.read_text())
    surplus = {**document, "request": {**document["request"], "model": "openai/model-2"}}
    (recording / "0015.json").write_text(json.dumps(surplus))
    warnings = cli.json("execute", machine, "--id", "r1", "--playback", str(recording))["warnings"]
    assert any("0015" in warning and "not played" in warning for warning in warnings), warnings
    (recording / "0015.json").unlink()
    stale = {**document, "request": {**document["request"], "settings": {"top_p": 1}}}
    last.write_text(json.dumps(stale))
    warnings = cli.json("execute", machine, "--id", "r2", "--playback", str(recording))["warnings"]
    assert any("0014" in warning for warning in warnings), warnings
    error = cli.refused(
        "execute", machine, "--id", "r3", "--playback", str(recording), "--playback-mode", "strict", exits=1
    )
    assert "top_p" in error["message"]
    last.write_text(json.dumps(document))
    assert cli.json("execute", machine, "--id", "r3")["status"] == "complete"


def test_a_recording_with_too_few_exchanges_stops_the_run_and_loses_nothing(
    cli: Cli, machine: str, recording: Path
) -> None:
    (recording / "0014.json").rename(recording / "aside")
    error = cli.refused("execute", machine, "--id", "r1", "--playback", str(recording), exits=1)
    assert error["code"] == "playback_miss"
    assert cli.json("exec", "status", "r1")["status"] == "running"
    (recording / "aside").rename(recording / "0014.json")
    assert cli.json("execute", machine, "--id", "r1")["status"] == "complete"


def test_a_retry_by_one_turn_of_a_playback_moves_on_to_the_stage_whose_model_it_plays(cli: Cli) -> None:
    def machine(kept: str) -> str:
        ask = {"agent": {"prompt": "hi"}, "set": {"n": kept}, "default_next": "two"}
        return str(cli.machine(_state={"n": ""}, one=ask, two={"agent": {"prompt": "ho"}}))

    recording = cli.home / "rec"
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    with ModelServer(Say("a"), Say("b")) as server:
        words = ["-m", "openai/model-1", "--base-url", server.url, "--record", str(recording)]
        cli.json("execute", machine("output"), "--id", "recorded", *words)
    cli.json("execute", machine("output.nope"), "--id", "r", "--playback", str(recording), exits=1)
    cli.json("execute", machine("output"), "--id", "r", "--accept-change", exits=1)
    recording.rename(cli.home / "aside")
    assert cli.json("exec", "resume", "r", exits=1)["status"] == "error", "a failed run needs no recording to say so"
    assert cli.refused("exec", "resume", "r", "--retry", "-i", exits=1)["code"] == "not_found"
    (cli.home / "aside").rename(recording)
    advanced = cli.json("exec", "resume", "r", "--retry", "-i")
    assert (advanced["status"], advanced["stage"]) == ("advanced", "two")
    assert cli.json("exec", "resume", "r", "-i", exits=2)["output"] == "b"
    assert final(cli, "r") == final(cli, "recorded")


PROMPT = json.loads((EXAMPLE / "recording" / "0002.json").read_text())["request"]["messages"][-1]["content"]
EXAMPLE_WORDS = ["run", "--state-scope", "bakery", "-p", PROMPT, "--tools", str(EXAMPLE / "tools.json")]


def test_the_example_runs_offline_restores_and_refines(cli: Cli) -> None:
    failures = Failures()
    for mode in ["strict", "hybrid", "sequential"]:
        with failures.case(mode), cli.fresh():
            make_offline(cli)

            def run(recording: str, *words: str, mode: str = mode) -> Any:
                play = ["--playback", str(EXAMPLE / recording), "--playback-mode", mode]
                call = cli.process if mode == "strict" else cli
                return call(*EXAMPLE_WORDS, *play, *words, "--format", "json").document

            def events() -> list[str]:
                return [row["event"]["type"] for row in cli.json("log", "context:bakery")["snapshots"]]

            first = run("recording")
            assert (first["status"], first["warnings"]) == ("complete", [])
            assert "4,000 g" in first["output"]
            assert events() == ["derive"]
            second = run("recording")
            assert (second["output"], second["warnings"], events()) == (first["output"], [], ["derive"])
            third = run("refined", "--refine-text", "Answer in one sentence, and tighten temperature to 0.2.")
            assert (third["status"], third["warnings"], events()) == ("complete", [], ["refine", "derive"])
            assert third["output"].count(".") == 1
            assert cli.json("show", "context:bakery", "--resolve")["state"]["settings"]["temperature"] == 0.2
            assert final(cli, first["run"]) == final(cli, second["run"])
    failures.check()


def test_a_run_in_memory_needs_nothing_but_the_recording(cli: Cli, offline: None) -> None:
    document = cli.json(*EXAMPLE_WORDS, "--playback", str(EXAMPLE / "recording"), "--ephemeral")
    assert (document["status"], document["warnings"]) == ("complete", [])
    assert not cli.state.exists()


def test_after_a_miss_the_way_that_is_named_leads_on(cli: Cli, machine: str, recording: Path) -> None:
    first = recording / "0001.json"
    document = json.loads(first.read_text())
    document["request"]["settings"] = {"top_p": 1}
    first.write_text(json.dumps(document))
    words = ["execute", machine, "--playback", str(recording), "--playback-mode"]
    error = cli.refused(*words, "strict", exits=1)
    run = cli.json("exec", "status")["run"]
    assert (cli.json("exec", "status")["turn"], cli.json("exec", "status")["status"]) == (0, "running")
    assert f"`stateline execute '{machine}' --id {run} --force`" in error["hint"]
    assert cli.refused(*words, "hybrid", exits=1)["code"] == "refused"
    assert cli.json(*words, "hybrid", "--force", "--id", run)["status"] == "complete"
    assert cli.json(*words, "hybrid", "--id", "another")["status"] == "complete"


def test_a_playback_that_is_over_continues_with_what_is_put_there(cli: Cli, machine: str, recording: Path) -> None:
    last = json.loads((recording / "0014.json").read_text())
    (recording / "0014.json").unlink()
    error = cli.refused("execute", machine, "--id", "r1", "--playback", str(recording), exits=1)
    assert str(recording) in error["message"]
    assert "add a recording" in error["hint"]
    assert f"`stateline execute '{machine}' --id r1 --force`" in error["hint"]
    # The run still goes by its recording: no model takes its place.
    assert cli.refused("exec", "resume", "r1", "-m", "openai/model-1", exits=1)["code"] == "playback_miss"
    waits = cli.refused("exec", "resume", "r1", "-m", "manual", "--answer", '"x"', exits=1)
    assert "waits for no answer" in waits["message"]
    (recording / "0014.json").write_text(json.dumps(last))
    assert cli.json("exec", "resume", "r1")["status"] == "complete"


def test_a_playback_says_that_it_is_one(cli: Cli, offline: None) -> None:
    words = [*EXAMPLE_WORDS, "--playback", str(EXAMPLE / "recording")]
    effects = cli.json(*words, "--dry-run")["plan"]["effects"]
    assert [effect["exchanges"] for effect in effects if effect["type"] == "model"] == ["playback", "playback"]
    text = cli(*words, "--dry-run").out.decode()
    assert text.count("a reply, played back, of") == 2
    assert "a call of" not in text
    err = cli(*words, "-v").err
    assert err.startswith("playing back the recording to derive the context ...\n")
    assert "asking the model" not in err


def test_a_plan_says_what_will_be_recorded(cli: Cli) -> None:
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    words = ["run", "-p", "x", "-m", "openai/model-1", "--record", str(cli.home / "rec"), "--dry-run"]
    assert cli(*words).out.decode().count("a recorded call of openai/model-1") == 2
    assert not (cli.home / "rec").exists()


@pytest.mark.parametrize("mode", ["hybrid", "sequential"])
@pytest.mark.parametrize("isolated", [False, True])
def test_a_miss_shows_what_was_played_for_other_requests_before_and_does_not_send_on(
    cli: Cli, machine: str, recording: Path, mode: str, isolated: bool
) -> None:
    for number in (3, 14):
        (recording / f"{number:04d}.json").unlink()
    words = ["execute", machine, "--id", "r", "--playback", str(recording), "--playback-mode", mode]
    if isolated:
        while (result := cli("execute", "-i", *words[1:], "--format", "json")).code == 0:
            pass
    else:
        result = cli(*words, "--format", "json")
    assert result.code == 1
    error = result.error
    assert error["code"] == "playback_miss"
    (summary,) = [text for text in error["warnings"] if "played for requests that differ" in text]
    assert "10 of 12 recordings" in summary
    assert all(f"warning: {text}\n" in result.err for text in error["warnings"])
    assert "call again" not in error["hint"]
    assert "waits to go on" not in error["hint"]
    assert f"stateline execute '{machine}' --id r --force" in error["hint"]
    assert "record" in error["hint"]
    assert "warning:" not in cli(*words, "-q").err
    plain = cli(*words)
    assert (plain.code, plain.err.count("warning:") >= 1, plain.err.count("error:")) == (1, True, 1)


def test_a_miss_of_what_fitted_so_far_warns_of_nothing_and_lets_the_operator_go_on(
    cli: Cli, machine: str, recording: Path
) -> None:
    kept = (recording / "0014.json").read_bytes()
    (recording / "0014.json").unlink()
    error = cli.refused("execute", machine, "--id", "r", "--playback", str(recording), exits=1)
    assert (error["code"], error["warnings"]) == ("playback_miss", [])
    assert "call again" in error["hint"]
    (recording / "0014.json").write_bytes(kept)
    assert cli.json("execute", machine, "--id", "r")["output"] == "All is well."
