"""Defaults in the help."""

from __future__ import annotations

import re

from command_line import Cli
from each_case import Failures

COMMANDS = ["run", "execute", "exec resume", "exec list", "exec clean", "log", "show", "diff", "verify", "repair"]


def test_an_option_shows_its_default_once(cli: Cli) -> None:
    failures = Failures()
    for command in COMMANDS:
        with failures.case(command), cli.fresh():
            shown = cli(*command.split(), "--help")
            assert shown.code == 0
            # An option begins with its name; what is said of it may go on over several lines.
            options = re.split(r"\n +(?=-)", shown.out.decode())
            assert len(options) > 1
            assert [option for option in options if option.count("default:") > 1] == []
    failures.check()
