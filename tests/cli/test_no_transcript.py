"""``run --no-transcript`` keeps the context, and nothing of the conversation."""

from __future__ import annotations

import json
import os

from command_line import Cli
from model_server import ModelServer, Say

CONTEXT = Say(json.dumps({"prompts": {"system": "Be brief.", "developer": []}, "settings": {}}))
ASK = ["run", "--no-transcript", "-p", "the secret plan"]


def stored(cli: Cli) -> bytes:
    """All bytes below the state dir."""
    found = b""
    for place, _, names in os.walk(cli.state):
        for name in names:
            with open(os.path.join(place, name), "rb") as file:
                found += file.read()
    return found


def test_the_context_is_kept_and_nothing_of_the_conversation(cli: Cli) -> None:
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    path = cli.home / "tools.json"
    tool = {
        "name": "look",
        "description": "Looks.",
        "schema": {"type": "object"},
        "argv": ["echo", "the tool's result"],
    }
    path.write_text(json.dumps({"tools": [tool]}))
    script = [CONTEXT, Say("", [("look", {})]), Say("the answer"), Say("another answer")]
    with ModelServer(*script) as server:
        words = [*ASK, "-m", "openai/x", "--base-url", server.url, "--tools", str(path)]
        document = cli.json(*words)
        assert (document["status"], document["output"]) == ("complete", "the answer")
        assert cli.json(*words)["output"] == "another answer"
        assert server.count == 4
    assert [row["scope"].partition(":")[0] for row in cli.json("scopes")["scopes"]] == ["context"]
    assert cli.json("exec", "list")["runs"] == []
    for part in (b"secret plan", b"answer", b"tool's result"):
        assert part not in stored(cli)
    assert cli.json("verify")["findings"] == []


def test_a_run_that_waits_says_that_it_cannot_be_continued(cli: Cli) -> None:
    document = cli.json(*ASK, exits=3)
    assert any("no call can continue it" in warning for warning in document["warnings"])
    shown = cli(*ASK)
    assert shown.code == 3
    assert b"exec resume" not in shown.out
    assert b"secret plan" not in stored(cli)


def test_an_id_or_no_prompt_is_a_usage_error(cli: Cli) -> None:
    for words in ([*ASK, "--id", "r1"], ["run", "--no-transcript", "--system", "S"]):
        assert cli.refused(*words, exits=64)["code"] == "usage"
    assert not cli.state.exists()


def test_its_dry_run_is_that_of_a_run_that_starts(cli: Cli) -> None:
    plan = cli.json(*ASK, "--dry-run")
    assert (plan["plan"]["action"], plan["exit"]) == ("start", 3)
    assert not cli.state.exists()
