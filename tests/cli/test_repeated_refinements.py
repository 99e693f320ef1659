"""The same `run --id ID --refine-text T`, called again after it was killed: the words are refined once, whenever it was
killed, and the dry run says what the call does."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest
from command_line import Cli
from each_case import Failures
from model_server import ModelServer, Say

from stateline import Store

PROPOSED = Say(json.dumps({"prompts": {"system": "S", "developer": ["be nice"]}, "settings": {"temperature": 0.5}}))
AGAIN = "saved before for the run r"


@pytest.fixture(autouse=True)
def key(cli: Cli) -> None:
    """There is a key, and no model but the one that is named."""
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    for name in ("OPENAI_BASE_URL", "STATELINE_MODEL", "STATELINE_BASE_URL"):
        cli.monkeypatch.delenv(name, raising=False)


def words(*more: str, text: str = "be nice") -> list[str]:
    """A run of the context `c`, which is refined first."""
    return ["run", "-p", "task", "--id", "r", "--state-scope", "c", "--refine-text", text, *more]


def context(cli: Cli) -> list[str]:
    """The actions on the context, oldest first."""
    return [str(snapshot.event["type"]) for snapshot in Store.open(cli.state).scope("context:c").walk()][::-1]


def killed(cli: Cli, server: ModelServer, argv: list[str], requests: int) -> None:
    """Call, and kill the process while the server holds its last request back."""
    process = cli.start(*argv, env=dict(os.environ))
    server.wait(requests)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL


SETTINGS = [
    [],
    ["--set", "temperature=0.5"],
    ["--set", "temperature=0.5", "--set", "top_p=null"],
]


def test_what_the_flags_derived_and_refined_is_not_refined_again_for_a_run_that_never_began(cli: Cli) -> None:
    failures = Failures()
    for said in SETTINGS:
        for there in [False, True]:
            with failures.case(there, said), cli.fresh():
                if there:
                    cli.json("run", "--state-scope", "c", "--system", "S")
                same = words("--system", "S", *said, "-m", "manual")
                cli.json(*same, exits=3)
                first = cli.json("show", "context:c", "--resolve")["state"]
                cli.json("exec", "rm", "r")
                planned = cli.json(*same, "--dry-run", exits=0)
                assert [each["type"] for each in planned["plan"]["effects"]].count("snapshot") == 0
                assert AGAIN in " ".join(cli.json(*same, exits=3)["warnings"])
                assert context(cli) == ["derive", "refine"]
                assert cli.json("show", "context:c", "--resolve")["state"] == first
    failures.check()


def test_other_settings_are_other_words(cli: Cli) -> None:
    failures = Failures()
    for other in [["--set", "temperature=0.7"], ["--set", "temperature=null"], ["--set", "top_p=1"]]:
        with failures.case(other), cli.fresh():
            cli.json(*words("--set", "temperature=0.5", "-m", "manual"), exits=3)
            cli.json("exec", "rm", "r")
            cli.json(*words(*other, "-m", "manual"), exits=3)
            assert context(cli) == ["derive", "refine", "refine"]
    failures.check()


def test_the_same_command_continues_with_a_run_that_was_killed_in_its_first_turn(cli: Cli) -> None:
    failures = Failures()
    for there in [False, True]:
        with failures.case(there), cli.fresh():
            if there:
                cli.json("run", "--state-scope", "c", "--system", "S")
            proposals = [PROPOSED] if there else [PROPOSED, PROPOSED]
            with ModelServer(*proposals, Say("never", until=threading.Event()), otherwise=Say("done")) as server:
                same = words("--system", "S", "--set", "temperature=0.5", "-m", "openai/m", "--base-url", server.url)
                killed(cli, server, same, len(proposals) + 1)
                before = context(cli)
                assert before == ["derive", "refine"]
                planned = cli.json(*same, "--dry-run")
                assert planned["plan"]["action"] != "refuse", planned
                asked = server.count
                done = cli.json(*same)
                assert (done["output"], server.count - asked, context(cli)) == ("done", 1, before)
                assert cli.json(*same)["output"] == "done"
                assert server.count - asked == 1
    failures.check()


def test_without_a_model_the_same_command_says_again_what_its_run_waits_for(cli: Cli) -> None:
    same = words("--set", "temperature=0.5", "-m", "manual")
    first = cli.json(*same, exits=3)
    again = cli.json(*same, exits=3)
    assert again["waiting"] == first["waiting"]
    assert cli.json(*same, "--dry-run")["exit"] == 3
    assert context(cli) == ["derive", "refine"]


OTHERS = [
    words("-m", "manual", text="be brief"),
    words("--set", "temperature=0.7", "-m", "manual"),
]


def test_other_words_for_a_run_that_is_there_refine_nothing(cli: Cli) -> None:
    failures = Failures()
    for other in OTHERS:
        with failures.case(other), cli.fresh():
            cli.json(*words("-m", "manual"), exits=3)
            assert "nothing was refined" in cli.refused(*other, exits=1)["message"]
            planned = cli.json(*other, "--dry-run")
            assert (planned["plan"]["action"], planned["exit"]) == ("refuse", 1)
            assert context(cli) == ["derive", "refine"]
    failures.check()


def test_words_that_refined_the_context_for_another_run_are_none_of_this_run(cli: Cli) -> None:
    refine = words("-m", "manual")
    cli.json(*[word if word != "r" else "other" for word in refine], exits=3)
    cli.json("run", "-p", "task", "--id", "r", "--state-scope", "c", "-m", "manual", exits=3)
    assert "nothing was refined" in cli.refused(*refine, exits=1)["message"]


def test_settings_that_refined_the_context_of_a_complete_run_are_not_called_unused(cli: Cli) -> None:
    same = words("--set", "temperature=0.5", "-m", "manual")
    cli.json(*same, exits=3)
    cli.json("exec", "resume", "r", "--answer", '"done"')
    done = cli.json(*same)
    assert (done["output"], "--set" in " ".join(done["warnings"])) == ("done", False)


def test_the_line_that_derived_a_context_changes_nothing_when_it_is_repeated(cli: Cli) -> None:
    line = ["run", "--state-scope", "demo", "--system", "Be brief.", "--developer", "No jokes.", "--set", "limit=3"]
    first = cli.json(*line)
    before = cli.tree()
    again = cli.json(*line)
    assert (again["head"], again["context"]["action"], again["warnings"]) == (first["head"], "restore", [])
    assert cli.tree() == before
    changed = cli.json(*line[:-1], "limit=4")
    assert (changed["context"]["action"], changed["warnings"]) == ("refine", [])
    (warning,) = cli.json(*line[:4], "Be long.")["warnings"]
    assert "--system" in warning
