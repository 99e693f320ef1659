"""A run that begins with a context of another model, endpoint or toolset: the call says so, and its dry run too."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from command_line import Cli
from model_server import ModelServer, Say

AGENT = {"agent": {"prompt": "hi"}}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(otherwise=Say("fine")) as serving:
        yield serving


@pytest.fixture
def context(cli: Cli, server: ModelServer) -> None:
    """The context ``c``, made for ``openai/m`` at the server, without tools."""
    server.script.append(Say(json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {}})))
    cli.json("run", "--state-scope", "c", "-m", "openai/m", "--base-url", server.url)


def told(cli: Cli, *words: str, exits: int = 0) -> list[str]:
    """Warnings of the call about its context; the dry run gives the same."""
    planned = cli.json(*words, "--dry-run")
    assert planned["exit"] == exits
    done = cli.json(*words, exits=exits)
    drifts = [[text for text in said["warnings"] if "the context was made with" in text] for said in (planned, done)]
    assert drifts[0] == drifts[1]
    assert len(drifts[1]) == len(set(drifts[1]))
    return list(drifts[1])


def test_another_model_is_reported(cli: Cli, server: ModelServer, context: None) -> None:
    machine = cli.machine(a=AGENT, _context="c")
    said = told(cli, "execute", machine, "-m", "openai/other", "--base-url", server.url)
    assert said == ["the context was made with the model openai/m, this call has the model openai/other"]


def test_another_endpoint_is_reported(cli: Cli, server: ModelServer, context: None) -> None:
    machine = cli.machine(a=AGENT)
    other = server.url.replace("127.0.0.1", "localhost")
    said = told(cli, "execute", machine, "--state-scope", "c", "--base-url", other)
    assert said == [f"the context was made with the base URL {server.url}, this call has the base URL {other}"]


def test_another_toolset_is_reported_when_the_run_begins_and_not_with_each_turn(
    cli: Cli, server: ModelServer, context: None
) -> None:
    tool = {"name": "t", "description": "d", "schema": {"type": "object"}, "argv": ["cat"]}
    (cli.home / "tools.json").write_text(json.dumps({"tools": [tool]}))
    stage = {"agent": {"prompt": "hi", "tools": ["t"]}}
    machine = cli.machine(a={**stage, "default_next": "b"}, b=stage, _context="c", _tools="tools.json")
    (said,) = told(cli, "execute", machine, "-i", "--id", "r")
    assert said.startswith("the context was made with no toolset, this call has the toolset ")
    assert told(cli, "execute", machine, "--id", "r") == []


def test_what_a_later_call_asks_otherwise_is_shown_by_that_call(cli: Cli, server: ModelServer, context: None) -> None:
    machine = cli.machine(a={**AGENT, "default_next": "b"}, b={**AGENT, "default_next": "c"}, c=AGENT, _context="c")
    assert told(cli, "execute", machine, "-i", "--id", "r") == []
    said = told(cli, "execute", machine, "-i", "--id", "r", "-m", "openai/other")
    assert said == ["the context was made with the model openai/m, this call has the model openai/other"]
    assert told(cli, "exec", "resume", "r") == []
    assert told(cli, "exec", "resume", "r", "-m", "openai/other") == []  # it is complete, and asks nobody


def test_run_reports_it_once(cli: Cli, server: ModelServer, context: None) -> None:
    said = told(cli, "run", "-p", "x", "--state-scope", "c", "-m", "openai/other", "--base-url", server.url)
    assert said == ["the context was made with the model openai/m, this call has the model openai/other"]


def test_the_same_model_and_tools_or_none_at_all_are_not_reported(cli: Cli, server: ModelServer, context: None) -> None:
    machine = cli.machine(a=AGENT, _context="c")
    assert told(cli, "execute", machine) == []
    assert told(cli, "execute", machine, "-m", "openai/m", "--base-url", server.url) == []
    assert told(cli, "execute", machine, "-m", "manual", exits=3) == []
    cli.json("run", "--state-scope", "any", "--system", "S")
    other = cli.machine("other", a=AGENT, _context="any")
    assert told(cli, "execute", other, "-m", "openai/z", "--base-url", server.url) == []
