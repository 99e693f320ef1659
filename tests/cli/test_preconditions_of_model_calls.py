"""Errors before a model is called: reserved settings, endless files, secrets in names."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from command_line import Cli
from each_case import Failures
from model_server import ModelServer, Say

from stateline.model.protocol import CALL_MEMBERS

KNOWN = "plain-value-of-a-key"
TOKEN = "ghp_" + "a1B2c3D4e5" * 4
URL = "http://127.0.0.1:9/v1"


def context(**settings: Any) -> Say:
    return Say(json.dumps({"prompts": {"system": "S", "developer": []}, "settings": settings}))


# -- settings ------------------------------------------------------------------------------------------------------


def test_a_setting_of_the_calls_own_is_refused_and_nothing_is_asked_or_saved(cli: Cli) -> None:
    failures = Failures()
    for modelled in [False, True]:
        for words in [["-p", "x"], [], ["--refine-text", "R"], ["-p", "x", "--dry-run"]]:
            for name in CALL_MEMBERS:
                with failures.case(name, words, modelled), cli.fresh():
                    with ModelServer() as server:
                        model = ["-m", "openai/m", "--base-url", server.url] if modelled else []
                        if "--dry-run" in words:
                            document = cli("run", *model, *words, "--set", f"{name}=evil", "--format", "json").document
                            assert document["plan"]["action"] == "refuse"
                        else:
                            assert (
                                name in cli.refused("run", *model, *words, "--set", f"{name}=evil", exits=1)["message"]
                            )
                        assert server.count == 0
                    assert not cli.state.exists()
    failures.check()


def test_a_run_that_waits_takes_no_such_setting_either(cli: Cli) -> None:
    cli.json("run", "-p", "x", "--id", "r", exits=3)
    before = cli.tree()
    assert "model" in cli.refused("run", "--id", "r", "--set", "model=evil", exits=1)["message"]
    assert cli.tree() == before


def test_a_null_takes_a_setting_out_of_a_context(cli: Cli) -> None:
    cli.json("run", "--state-scope", "c", "--set", "seed=7", "--set", "top_p=0.5")
    cli.json("run", "--state-scope", "c", "--set", "seed=null")
    assert cli.json("show", "context:c")["state"]["settings"] == {"top_p": 0.5}
    assert "no seed" in cli("log", "context:c").out.decode()


def test_a_null_takes_a_setting_out_of_one_call(cli: Cli) -> None:
    cli.json("run", "--state-scope", "c", "--set", "seed=7", "--set", "top_p=0.5")
    with ModelServer(Say("one"), Say("two"), Say("three")) as server:
        model = ["-m", "openai/m", "--base-url", server.url]
        cli.json("run", "--state-scope", "c", *model, "-p", "x", "--set", "seed=null")
        cli.json("run", "--state-scope", "c", "-m", "manual", "-p", "x", "--id", "r", exits=3)
        cli.json("run", "--id", "r", *model, "--set", "seed=null")
        cli.json("run", "--state-scope", "c", *model, "-p", "x")
        assert ["seed" in request for request in server.requests] == [False, False, True]
        assert all(request["top_p"] == 0.5 for request in server.requests)
    assert cli.json("show", "context:c")["state"]["settings"] == {"seed": 7, "top_p": 0.5}


# -- files ---------------------------------------------------------------------------------------------------------


def test_what_is_not_a_regular_file_is_refused_at_once(cli: Cli) -> None:
    failures = Failures()
    for option in ["--prompt-file", "--refine-file"]:
        with failures.case(option), cli.fresh():
            fifo = cli.home / "fifo"
            os.mkfifo(fifo)
            for path in (fifo, cli.home, "/dev/zero", cli.home / "none"):
                error = cli.refused("run", option, str(path), exits=64)
                assert (error["code"], "cannot read" in error["message"]) == ("usage", True)
            assert not cli.state.exists()
    failures.check()


# -- secrets -------------------------------------------------------------------------------------------------------


def test_a_recording_in_a_directory_named_by_a_secret_is_refused(cli: Cli) -> None:
    failures = Failures()
    for secret in [KNOWN, TOKEN]:
        for option in ["--record", "--playback"]:
            with failures.case(option, secret), cli.fresh() as monkeypatch:
                monkeypatch.setenv("A_KEY", KNOWN)
                link = cli.home / "link"
                link.symlink_to(cli.home / f"d-{secret}")
                for path in (cli.home / f"d-{secret}" / "r", link):
                    result = cli("run", "-p", "x", option, str(path), "--format", "json")
                    assert (result.code, result.error["code"]) == (64, "usage")
                    assert "has a secret in its path" in result.error["message"]
                    assert secret not in result.out.decode() + result.err
                assert not cli.state.exists()
    failures.check()


def test_a_base_url_that_holds_a_token_is_refused(cli: Cli) -> None:
    result = cli("run", "-m", "openai/m", "--base-url", f"{URL}/{TOKEN}", "--format", "json")
    assert result.code == 1
    assert TOKEN not in result.out.decode() + result.err
    assert not cli.state.exists()


WORDS = [
    ["run", "-p", "x", "-m", f"{KNOWN}/m"],
    ["run", "-p", "x", "--set", KNOWN],
    ["run", "-p", "x", "--id", f"{KNOWN}!"],
    ["run", "-p", "x", "--tools", f"{KNOWN}.json"],
    ["run", "-p", "x", f"--{KNOWN}"],
    [KNOWN],
]


def test_an_error_that_quotes_a_secret_shows_a_mask(cli: Cli) -> None:
    failures = Failures()
    for more in [[], ["--format", "json"], ["--debug"]]:
        for words in WORDS:
            with failures.case(words, more), cli.fresh() as monkeypatch:
                monkeypatch.setenv("A_KEY", KNOWN)
                result = cli(*words, *more)
                said = result.out.decode() + result.err
                assert result.code in (1, 64)
                assert KNOWN not in said
                assert "[REDACTED]" in said or "holds a secret" in said
    failures.check()


def test_a_models_text_is_streamed_on_a_terminal_with_secrets_masked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KNOWN)
    cli.json("run", "--state-scope", "c")
    with ModelServer(Say(f"It is {KNOWN}, or {TOKEN}")) as server, monkeypatch.context() as terminal:
        terminal.setattr("stateline.cli.call_options.is_terminal", lambda stream: stream is sys.stderr)
        result = cli("run", "--state-scope", "c", "-m", "openai/m", "--base-url", server.url, "-p", "x")
    assert result.code == 0
    assert "It is [REDACTED], or [REDACTED]\n" in result.err
    assert KNOWN not in result.err + result.out.decode()
    assert TOKEN not in result.err + result.out.decode()
