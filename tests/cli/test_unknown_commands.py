"""A word that is no command: the hint says where the command is that was meant."""

from __future__ import annotations

import pytest
from command_line import Cli


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["list"], "stateline exec list"),
        (["ls"], "stateline exec ls"),
        (["history", "r1"], "stateline exec history"),
        (["histroy"], "stateline exec history"),
        (["resume", "r1", "--retry"], "stateline exec resume"),
        (["check", "m.yaml"], "stateline machine check"),
        (["exec", "log", "x"], "stateline log"),
        (["exec", "run", "-p", "x"], "stateline run"),
        (["machine", "execute", "m.yaml"], "stateline execute"),
    ],
)
def test_a_command_of_another_place_is_named_with_that_place(cli: Cli, words: list[str], meant: str) -> None:
    error = cli.refused(*words, exits=64)
    assert error["code"] == "usage"
    assert error["hint"].startswith(f"did you mean `{meant}`? Else see `stateline")


@pytest.mark.parametrize("words", [["zzz"], ["exec", "zzz"], ["exec", "lst"]])
def test_what_is_no_command_elsewhere_only_points_to_the_help(cli: Cli, words: list[str]) -> None:
    assert cli.refused(*words, exits=64)["hint"] == f"see `{' '.join(['stateline', *words[:-1]])} --help`"


def test_a_hidden_command_is_never_offered(cli: Cli) -> None:
    assert "`stateline complete`" not in cli.refused("exec", "complet", exits=64)["hint"]


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["run", "--promt", "x"], "--prompt"),
        (["run", "--modl", "x"], "--model"),
        (["execute", "m.yaml", "--dryrun"], "--dry-run"),
        (["exec", "history", "--verbos"], "--verbose"),
    ],
)
def test_an_option_that_is_almost_one_is_told_with_the_one_that_there_is(cli: Cli, words: list[str], near: str) -> None:
    assert near in cli.refused(*words, exits=64)["message"]
