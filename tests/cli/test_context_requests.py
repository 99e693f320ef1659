"""Flags of ``run`` about contexts: impossible settings, refinements that fit no context, and no flags at all."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from command_line import Cli
from each_case import Failures
from model_server import ModelServer, Say


@pytest.fixture
def server(cli: Cli) -> Iterator[ModelServer]:
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    reply = Say(json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {}}))
    with ModelServer(otherwise=reply) as server:
        yield server


def test_a_known_setting_with_a_value_that_no_model_takes_is_a_usage_error(cli: Cli) -> None:
    failures = Failures()
    for words in (
        "temperature=3", "temperature=-0.1", "temperature=hot", "temperature=true", "top_p=1.5", "max_tokens=0",
        "max_tokens=1.5", "max_tokens=many", "seed=1.0", "seed=x", "stop=5", 'stop=["a", 1]', "frequency_penalty=9",
        "presence_penalty=-3", "top_k=0.5", "reasoning_effort=1",
    ):  # fmt: skip
        for more in (["--state-scope", "demo"], ["-p", "x"], ["--refine-text", "R"]):
            with failures.case(words, *more):
                error = cli.refused("run", *more, "--set", words, exits=64)
                assert error["code"] == "usage"
                assert "--set" in error["message"]
                assert words.partition("=")[0] in error["message"]
    failures.check()
    assert not cli.state.exists()


def test_known_settings_in_range_and_unknown_ones_are_taken(cli: Cli) -> None:
    given = {
        "temperature": 2, "top_p": 0.0, "max_tokens": 1, "seed": -7, "stop": ["a", "b"], "stop_sequences": "x",
        "frequency_penalty": -2.0, "presence_penalty": 2, "top_k": 40, "vendor_option": {"a": [1.5]}, "limit": "many",
    }  # fmt: skip
    words = [word for name, value in given.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    cli.json("run", "--state-scope", "demo", *words)
    assert cli.json("show", "context:demo", "--resolve")["state"]["settings"] == given
    cli.json("run", "--state-scope", "demo", "--set", "temperature=null")
    assert "temperature" not in cli.json("show", "context:demo", "--resolve")["state"]["settings"]


def test_a_setting_over_the_context_of_a_run_is_checked_too(cli: Cli) -> None:
    cli.json("run", "-p", "x", "--id", "r1", exits=3)
    assert cli.refused("run", "--id", "r1", "--set", "temperature=3", exits=64)["code"] == "usage"


def test_a_model_that_proposes_an_impossible_setting_is_refused(cli: Cli) -> None:
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    wrong = Say(json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {"temperature": 5}}))
    with ModelServer(wrong) as other:
        error = cli.refused("run", "-m", "openai/x", "--base-url", other.url, "--state-scope", "demo", exits=1)
    assert "temperature: 5" in error["message"]
    assert cli.json("show", "context:demo")["state"] is None


def test_a_refinement_that_fits_no_context_lists_those_there_are(cli: Cli, server: ModelServer) -> None:
    cli.json("run", "--state-scope", "docs-demo", "--system", "S")
    mine = ["-m", "openai/mine", "--base-url", server.url]
    cli.json("run", *mine)
    before = cli.tree()
    other = ["-m", "openai/other", "--base-url", server.url, "--refine-text", "Tighten it"]
    for words in (other, [*other, "-p", "x"], ["--refine-text", "Tighten it"]):
        error = cli.refused("run", *words, exits=1)
        assert error["code"] == "not_found"
        for part in ("docs-demo", "openai/mine", server.url):
            assert part in error["message"]
        assert "--state-scope" in error["hint"]
        assert "--new-context" in error["hint"]
    assert (cli.tree(), server.count) == (before, 1)
    assert cli.json("run", *other, "--new-context")["reason"] == "refine"
    assert cli.json("run", *mine, "--refine-text", "Tighten it")["reason"] == "refine"
    assert cli.json("run", *other)["reason"] == "refine"


def test_a_refinement_in_a_store_without_contexts_derives_one(cli: Cli) -> None:
    assert cli.json("run", "--refine-text", "Cite sources")["reason"] == "refine"


def test_a_literal_refinement_says_that_it_changed_no_setting(cli: Cli) -> None:
    words = ["run", "--state-scope", "demo", "--refine-text", "Tighten temperature to 0.2"]
    for more in ([], ["--dry-run"], ["-p", "x"]):
        document = cli.json(*words, *more, exits=3 if "-p" in more else 0)
        assert any("changes no setting" in each and "--set KEY=VALUE" in each for each in document["warnings"]), more
    assert (
        cli.json("run", "--state-scope", "demo", "--refine-text", "More", "--set", "temperature=0.2")["warnings"] == []
    )


def test_run_with_nothing_to_do_is_a_usage_error_and_writes_nothing(cli: Cli) -> None:
    for words in (["run"], ["run", "--dry-run"], ["run", "--no-input"]):
        assert cli.refused(*words, exits=64)["code"] == "usage"
    cli.monkeypatch.setenv("STATELINE_MODEL", "openai/x")
    assert cli.refused("run", exits=64)["code"] == "usage"
    assert not cli.state.exists()
    cli.monkeypatch.setenv("STATELINE_STATE_SCOPE", "demo")
    cli.monkeypatch.setenv("STATELINE_MODEL", "manual")
    assert cli.json("run")["reason"] == "derive"
