"""A model's reply that cannot become a context is kept, masked, in the chain of the context."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import Cli, Task
from each_case import Failures
from model_server import ModelServer, Say

KEY = "sk-not-a-real-key-0123456789abcdef"
CONTEXT = json.dumps({"prompts": {"system": "Be exact.", "developer": []}, "settings": {}})


@pytest.fixture(autouse=True)
def key(cli: Cli) -> None:
    cli.monkeypatch.setenv("OPENAI_API_KEY", KEY)


def words(server: ModelServer) -> list[str]:
    return ["run", "-m", "openai/x", "--base-url", server.url, "--state-scope", "demo"]


def test_a_refused_derivation_is_kept_masked_and_there_is_no_context(cli: Cli, task: Task) -> None:
    with ModelServer(Say(f"I would rather say {KEY}."), Say(CONTEXT)) as server:
        error = cli.refused(*words(server), "-p", "x", exits=1)
        assert "stateline show context:demo" in error["hint"]
        bundle = cli.json("show", "context:demo")
        assert (bundle["state"], bundle["event"]["type"], bundle["event"]["by"]) == (None, "refused", "openai/x")
        assert bundle["event"]["refused"]["content"].startswith("I would rather say ")
        assert KEY not in json.dumps(bundle)
        assert bundle["event"]["error"]["message"] == error["message"]
        machine = cli.machine(a=task("echo 1"))
        assert cli.refused("execute", machine, "--state-scope", "demo", exits=1)["code"] == "not_found"
        assert b"refused" in cli("log", "context:demo").out
        assert cli.json(*words(server))["reason"] == "derive"
    snapshots = cli.json("log", "context:demo", "--patch")["snapshots"]
    assert [row["event"]["type"] for row in snapshots] == ["derive", "refused"]
    assert snapshots[0]["prev_sha"] == snapshots[1]["sha"]
    assert cli.json("verify")["findings"] == []


def test_a_refused_refinement_is_kept_and_changes_nothing(cli: Cli) -> None:
    with ModelServer(Say(CONTEXT), Say("Sorry?"), Say(CONTEXT)) as server:
        cli.json(*words(server))
        before = cli.json("show", "context:demo", "--resolve")["state"]
        cli.refused(*words(server), "--refine-text", "Tighten it", exits=1)
        bundle = cli.json("show", "context:demo", "--resolve")
        assert (bundle["state"], bundle["event"]["type"]) == (before, "refused")
        assert (bundle["event"]["refused"]["content"], bundle["event"]["text"]) == ("Sorry?", "Tighten it")
        assert cli.json(*words(server))["reason"] == "restore"
        assert cli.json(*words(server), "--refine-text", "Tighten it")["reason"] == "refine"
        assert server.count == 3


def test_a_reply_that_was_cut_off_or_breaks_a_limit_is_kept_too(cli: Cli) -> None:
    failures = Failures()
    cases = {"cut": Say(CONTEXT, finish="length"), "range": Say(CONTEXT.replace("{}}", '{"top_p": 7}}'))}
    for name, reply in cases.items():
        with failures.case(name), cli.fresh() as monkeypatch, ModelServer(reply) as server:
            monkeypatch.setenv("OPENAI_API_KEY", KEY)
            cli.refused(*words(server), exits=1)
            assert "Be exact." in cli.json("show", "context:demo")["event"]["refused"]["content"]
    failures.check()


def test_a_call_that_brought_no_reply_writes_nothing(cli: Cli) -> None:
    with ModelServer(Say("no such model", status=404)) as server:
        cli.refused(*words(server), exits=1)
    assert cli.json("scopes")["scopes"] == []


def test_a_refused_event_has_the_members_of_the_format(cli: Cli) -> None:
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    table = page.partition("| member of a context's `event` |")[2].partition("\n\n")[0]
    documented = {name for row in table.split("\n") for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    with ModelServer(Say("No.")) as server:
        cli.refused(*words(server), exits=1)
    event = cli.json("show", "context:demo")["event"]
    assert event.keys() == documented - {"unset", "prompts", "run", "redactions"}
