"""Commands in hints can be pasted: with an input where the machine wants one, and with an answer that can fit."""

from __future__ import annotations

import re
from typing import Any

from command_line import Cli, Task
from each_case import Failures

SCHEMA: dict[str, Any] = {"type": "object", "required": ["night"]}
INPUT = '{"night": "1st"}'
ASK: dict[str, Any] = {"human": {"prompt": "?", "schema": {"type": "boolean"}}}


def starting(hint: str) -> list[str]:
    """The commands in ``hint`` that start a run, or one again."""
    return [line for line in re.findall("`(stateline [^`]*)`", hint) if "--force" in line or "NEW" in line]


def test_commands_that_start_a_run_of_a_machine_with_input_have_an_input(cli: Cli) -> None:
    machine = cli.machine(_input=SCHEMA, ask=ASK)
    words = ["execute", machine, "--id", "r1"]
    cli.json(*words, "--input", INPUT, exits=3)
    failures = Failures()

    def check(what: str, hint: str) -> None:
        with failures.case(what):
            found = starting(hint)
            assert found
            assert all(line.endswith(" --input JSON") for line in found), found

    check("another input", cli.refused(*words, "--input", '{"night": "2nd"}', exits=64)["hint"])
    cli.machine(_input=SCHEMA, ask={"human": {"prompt": "Now?"}})
    check("changed machine", cli.refused(*words, exits=1)["hint"])
    cli.machine(_input=SCHEMA, ask=ASK)
    cli.json("exec", "cancel", "r1")
    check("cancelled", cli.refused(*words, exits=1)["hint"])
    failures.check()


def test_commands_of_a_failed_run_have_its_id_and_an_input(cli: Cli, task: Task) -> None:
    machine = cli.machine(_input=SCHEMA, a=task("exit 1"))
    text = cli("execute", machine, "--id", "r1", "--input", INPUT).out.decode()
    text = re.sub(r" \\\n +", " ", text)
    assert f"stateline execute '{machine}' --id r1 --force --input JSON\n" in text
    bare = cli.machine("bare", a=task("exit 1"))
    text = re.sub(r" \\\n +", " ", cli("execute", bare, "--id", "r2").out.decode())
    assert f"stateline execute '{bare}' --id r2 --force\n" in text


def test_hints_about_an_answer_lead_to_one_that_fits(cli: Cli) -> None:
    machine = cli.machine(ask=ASK)
    cli.json("execute", machine, "--id", "r1", exits=3)
    assert "--answer true" in cli.refused("execute", machine, "--answer", "yes", exits=64)["hint"]
    for more in ([], ["--dry-run"]):
        refused = cli("execute", machine, "--answer", '"yes"', *more)
        assert "--answer JSON" in re.sub(r" *\\?\n +", " ", refused.err + refused.out.decode())
    hint = cli.refused("execute", machine, "--answer", '"yes"', exits=1)["hint"]
    (line,) = re.findall("`stateline ([^`]*)`", hint)
    assert cli.json(*line.replace("JSON", "true").split())["status"] == "complete"


def test_the_status_of_a_run_that_plays_a_recording_does_not_offer_an_answer(cli: Cli) -> None:
    machine = cli.machine(ask=ASK | {"default_next": "more"}, more=ASK)
    recording = str(cli.home / "recording")
    cli.json("execute", machine, "--id", "r1", "--record", recording, exits=3)
    for value in ("true", "false"):
        request = cli.json("exec", "status", "r1")["interrupts"][0]["requestId"]
        code = 3 if value == "true" else 0
        cli.json("exec", "resume", "r1", "--request", request, "--answer", value, exits=code)
    cli.json("execute", "-i", machine, "--id", "r2", "--playback", recording)
    shown = cli("exec", "status", "r2").out.decode()
    assert "--answer" not in shown
    assert "next:   stateline exec resume r2\n" in shown
