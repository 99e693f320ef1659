"""``run --id`` of a run that asks no model any more: flags for the model's call do nothing, and the call says so."""

from __future__ import annotations

from typing import Any

from command_line import Cli
from each_case import Failures
from model_server import ModelServer, Say

FLAGS = [["--set", "max_tokens=500"], ["--system", "S"], ["--developer", "D"]]


def cut(cli: Cli, server: ModelServer) -> list[str]:
    """A run ``a`` whose reply was cut by its length; the flags that name the model."""
    more = ["-m", "openai/m", "--base-url", server.url]
    cli.json("run", "--state-scope", "c", "--system", "S")
    cli.json("run", "-p", "hi", "--id", "a", "--state-scope", "c", *more, exits=1)
    return more


def test_flags_for_a_run_that_has_failed_are_reported_to_do_nothing(cli: Cli) -> None:
    failures = Failures()
    for flags in FLAGS:
        with failures.case(flags), cli.fresh():
            with ModelServer(Say("half", finish="length")) as server:
                more = cut(cli, server)
                words = ["run", "--id", "a", *flags, *more]
                planned, done = cli.json(*words, "--dry-run"), cli.json(*words, exits=1)
                assert server.count == 1
            (warning,) = [text for text in done["warnings"] if flags[0] in text]
            assert warning in planned["warnings"]
            assert "stateline run --id a --force -p TEXT" in warning
            assert cli.json("run", "--id", "a", exits=1)["warnings"] == []
    failures.check()


def test_flags_for_a_complete_run_are_reported_to_do_nothing_and_it_is_reported(cli: Cli) -> None:
    cli.json("run", "-p", "hi", "--id", "a", exits=3)
    cli.json("run", "--id", "a", "--answer", '"ok"')
    before = cli.tree()
    words = ["run", "--id", "a", "--set", "seed=1", "--developer", "D", "--system", "S"]
    done = cli.json(*words)
    (warning,) = done["warnings"]
    assert "--system, --developer, --set" in warning
    assert done["output"] == "ok"
    assert cli.json(*words, "--dry-run")["warnings"] == [warning]
    assert cli.tree() == before


def test_flags_for_a_run_that_still_asks_hold_for_the_call_and_nothing_is_reported(cli: Cli) -> None:
    cli.json("run", "-p", "hi", "--id", "a", exits=3)
    waits = cli.json("run", "--id", "a", "--system", "Be kind.", exits=3)
    assert waits["warnings"] == []
    assert waits["waiting"]["messages"][0]["content"] == "Be kind."


def test_the_hint_after_a_reply_that_was_cut_names_a_way_that_leads_on(cli: Cli) -> None:
    def answer(document: dict[str, Any]) -> Say:
        return Say("whole") if document.get("max_tokens", 0) >= 500 else Say("half", finish="length")

    with ModelServer(otherwise=answer) as server:
        more = cut(cli, server)
        hint = cli.json("run", "--id", "a", exits=1)["error"]["hint"]
        assert "keeps the settings" in hint
        assert "--force" in hint
        assert "--set max_tokens=N" in hint
        words = ["run", "--id", "a", "--force", "-p", "hi", "--state-scope", "c", "--set", "max_tokens=500", *more]
        assert cli.json(*words)["output"] == "whole"
        cli.json("run", "--state-scope", "c", "--set", "max_tokens=600")
        machine = cli.machine(a={"agent": {"prompt": "hi"}}, _context="c")
        assert cli.json("execute", machine, *more)["output"] == "whole"
