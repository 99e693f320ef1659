"""``execute FILE --id RUN``: what a run of another machine gave is never told as if this one had given it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from command_line import Cli, Task
from each_case import Failures

END: dict[str, Any] = {"end": {}}
ASK: dict[str, Any] = {"human": {"prompt": "?"}}


def files(tree: dict[str, Any]) -> dict[str, Any]:
    return {path: row[4] for path, row in tree.items() if row[4]}


def refused(cli: Cli, *words: str, shown: str) -> dict[str, Any]:
    """The error of a call that changes nothing, which its plan foresees."""
    before = files(cli.tree())
    plan = cli.json(*words, "--dry-run")
    error: dict[str, Any] = cli.refused(*words, exits=1)
    assert error["code"] == "machine_changed"
    assert shown in error["message"]
    assert all(way in error["hint"] for way in ("--accept-change", "--force", "--id NEW"))
    assert (plan["plan"]["action"], plan["exit"]) == ("refuse", 1)
    assert error["message"] in plan["plan"]["reason"]
    assert files(cli.tree()) == before
    return error


def test_a_run_of_another_machine_is_refused_in_each_status(cli: Cli, task: Task) -> None:
    failures = Failures()
    for status in ["complete", "waiting", "error"]:
        for more in [[], ["-i"], ["--no-input"]]:
            with failures.case(more, status), cli.fresh():
                last = {"complete": END, "waiting": ASK, "error": task("false")}[status]
                code = {"complete": 0, "waiting": 3, "error": 1}[status]
                mine = cli.machine("m", a=task("echo m >> ran; echo 1", default_next="b"), b=last)
                other = cli.machine("n", a=task("echo n >> ran; echo 2", default_next="b"), b=last)
                cli.json("execute", mine, "--id", "x", exits=code)
                error = refused(cli, "execute", other, "--id", "x", *more, shown="~ stages.a.task[2]")
                assert mine in error["message"]
                assert other in error["message"]
                assert ("exec show x" in error["hint"]) == (status == "complete")
                assert cli.ran() == ["m"]
    failures.check()


def test_each_way_out_that_is_named_leads_on(cli: Cli, task: Task) -> None:
    mine, other = cli.machine("m", a=task("echo 1")), cli.machine("n", a=task("echo 2"))
    cli.json("execute", mine, "--id", "x")
    assert cli.json("exec", "show", "x")["output"] == 1
    accepted = cli.json("execute", other, "--id", "x", "--accept-change")
    assert (accepted["output"], len(accepted["warnings"])) == (1, 1)
    assert "Nothing was run" in accepted["warnings"][0]
    plan = cli.json("execute", other, "--id", "x", "--accept-change", "--dry-run")
    assert (plan["plan"]["action"], plan["exit"], plan["warnings"]) == ("report", 0, accepted["warnings"])
    assert cli.json("execute", other, "--id", "new")["output"] == 2
    assert cli.json("execute", other, "--id", "x", "--force")["output"] == 2
    assert cli.json("execute", other, "--id", "x")["output"] == 2
    refused(cli, "execute", mine, "--id", "x", shown="~ stages.a.task[2]")


def test_the_same_machine_in_another_place_is_the_same_machine(cli: Cli, task: Task) -> None:
    mine = cli.machine("m", a=task("echo 1"))
    first = cli.json("execute", mine, "--id", "x")
    (cli.home / "elsewhere").mkdir()
    copy = shutil.copy(mine, cli.home / "elsewhere" / "other.json")
    before = files(cli.tree())
    assert cli.json("execute", str(copy), "--id", "x") == first
    assert cli.json("execute", "-i", str(copy), "--id", "x", exits=2)["output"] == 1
    Path(mine).unlink()
    assert cli.json("execute", str(copy), "--id", "x") == first
    assert files(cli.tree()) == {path: data for path, data in before.items() if path != mine}


def test_the_same_file_beside_other_tools_is_another_machine_and_beside_none_the_same(cli: Cli, task: Task) -> None:
    def tools(place: Path, program: str) -> None:
        tool = {"name": "t", "description": "T.", "schema": {"type": "object"}, "argv": [program]}
        (place / "tools.json").write_text(json.dumps({"tools": [tool]}))

    tools(cli.home, "true")
    mine = cli.machine("m", a=task("echo 1"), _tools="tools.json")
    first = cli.json("execute", mine, "--id", "x")
    (cli.home / "elsewhere").mkdir()
    copy = str(shutil.copy(mine, cli.home / "elsewhere" / "m.json"))
    tools(cli.home / "elsewhere", "false")
    shown = '~ toolset.tools.t.argv[0]  "true" -> "false"'
    assert "tools manifest" in refused(cli, "execute", copy, "--id", "x", shown=shown)["message"]
    assert "Nothing was run" in cli.json("execute", copy, "--id", "x", "--accept-change")["warnings"][0]
    for place in (cli.home, cli.home / "elsewhere"):
        (place / "tools.json").unlink()
    assert cli.json("execute", mine, "--id", "x") == first == cli.json("execute", copy, "--id", "x")


def test_a_run_that_a_prompt_began_is_none_of_a_machine_file(cli: Cli, task: Task) -> None:
    cli.json("run", "-p", "Hello.", "--id", "x", exits=3)
    cli.json("run", "--id", "x", "--answer", '"Hi."')
    mine = cli.machine("m", a=task("echo 1"))
    kept = cli.json("show", "run:x")["event"]["machine"]["sha256"]
    shown = "- stages.agent  (a stage: agent)"
    assert "by a prompt" in refused(cli, "execute", mine, "--id", "x", shown=shown)["message"]
    source = cli("show", "run:x", "--format", "json").document["objects"]["/machine/source"]["sha256"]
    assert source == kept
    cli.json("execute", mine, "--id", "y")
    assert cli.refused("run", "--id", "y", "-p", "Hello.", exits=1)["code"] == "refused"
    assert cli.json("run", "--id", "y")["output"] == 1, "no machine is named here, and none is claimed"


def test_an_answer_given_again_to_a_complete_run_of_another_machine_is_refused_as_well(cli: Cli, task: Task) -> None:
    mine, other = cli.machine("m", a=ASK), cli.machine("n", a=ASK, b=END)
    waits = cli.json("execute", mine, "--id", "x", exits=3)
    answer = json.dumps({"requestId": waits["waiting"]["requestId"], "answer": 7})
    done = cli.json("execute", mine, "--answer", answer)
    assert cli.json("execute", mine, "--answer", answer) == done
    refused(cli, "execute", other, "--answer", answer, shown="+ stages.b  (a stage: end)")
    assert cli.json("exec", "resume", "x", "--answer", answer) == done
