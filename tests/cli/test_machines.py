"""`machine show`, `draw` and `schema`, and Python machines: run when they must be read, and at no other time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
from command_line import Cli
from each_case import Failures

from stateline.machine.definition.check import load
from stateline.machine.spec import to_json

COUNTED = """\
import os
with open("runs", "a") as file:
    file.write("run\\n")
os.system("echo noise")
STEP = {"task": ["/bin/echo", "1"], "repeatable": True}
machine = {
    "stateline": 1,
    "name": "counted",
    "stages": {
        "a": {**STEP, "default_next": "b"},
        "b": {**STEP, "default_next": "ask"},
        "ask": {"human": {"prompt": "Go on?"}, "default_next": "done"},
        "done": {"end": {}},
    },
}
"""


def counted(cli: Cli, text: str = COUNTED) -> str:
    path = cli.home / "counted.py"
    path.write_text(text)
    return str(path)


def runs(cli: Cli) -> int:
    path = cli.home / "runs"
    return path.read_text().count("run") if path.exists() else 0


def test_a_python_machine_is_run_once_for_a_run_and_never_for_a_reader(cli: Cli) -> None:
    machine = counted(cli)
    assert cli.json("execute", "-i", machine, "--id", "r", "--no-input")["stage"] == "b"
    assert runs(cli) == 1
    assert cli.json("execute", "-i", machine, "--no-input", exits=3)["stage"] == "ask"
    for words in (["exec", "status"], ["exec", "show"], ["exec", "history"], ["exec", "list"], ["log", "run:r"]):
        cli.json(*words)
    for words in (["verify"], ["show", "run:r", "--resolve"], ["machine", "show", "--run", "r"]):
        cli.json(*words)
    cli.json("machine", "draw", "--run", "r")
    cli.json("execute", machine, "--dry-run", "--no-input")
    cli.json("exec", "resume", "r", "--answer", "true")
    assert runs(cli) == 1
    cli.json("execute", "-i", machine, "--id", "s", "--no-input")
    assert runs(cli) == 2


def test_a_python_machine_is_run_once_in_each_call_after_an_edit_until_a_change_is_accepted(cli: Cli) -> None:
    machine = counted(cli)
    cli.json("execute", "-i", machine, "--no-input")
    counted(cli, COUNTED + "# a comment\n")
    assert cli.json("execute", "-i", machine, "--no-input", exits=3)["warnings"] == []
    assert runs(cli) == 2
    counted(cli, COUNTED.replace("Go on?", "Continue?"))
    assert cli.refused("execute", "-i", machine, "--no-input", exits=1)["code"] == "machine_changed"
    assert runs(cli) == 3
    cli.json("execute", "-i", machine, "--accept-change", "--no-input", exits=3)
    assert runs(cli) == 4
    cli.json("execute", "-i", machine, "--no-input", exits=3)
    assert runs(cli) == 4


def test_the_run_keeps_the_source_with_its_format(cli: Cli) -> None:
    failures = Failures()
    for name, text, format, media_type in [
        (
            "m.py",
            "machine = {'stateline': 1, 'name': 'm', 'stages': {'a': {'end': None}}}\n",
            "python",
            "text/x-python",
        ),
        ("m.TOML", "stateline = 1\nname = 'm'\n[stages.a]\nend = {}\n", "toml", "application/toml"),
    ]:
        with failures.case(name, text, format, media_type), cli.fresh():
            (cli.home / name).write_text(text)
            run = cli.json("execute", str(cli.home / name))["run"]
            bundle = cli.json("show", f"run:{run}")
            assert bundle["state"]["machine"]["format"] == format
            source = bundle["objects"]["/machine/source"]
            assert source["media_type"] == media_type
            kept = cli.state / "objects" / source["sha256"][:2] / source["sha256"]
            assert kept.read_text() == text
            assert cli.json("verify")["ok"]
    failures.check()


def test_what_a_python_machine_does_wrong_is_shown_with_its_line_and_nothing_is_stored(cli: Cli) -> None:
    machine = counted(cli, COUNTED + "raise RuntimeError('no \x1b way')\n")
    for words in (["execute", machine], ["machine", "show", machine], ["machine", "draw", machine]):
        error = cli.refused(*words, exits=1)
        assert error["code"] == "machine_invalid"
        assert [problem["where"] for problem in error["problems"]] == ["16:1"]
        assert "RuntimeError: no \\x1b way" in error["message"]
    assert not cli.state.exists()
    document = cli.json("machine", "check", machine, exits=1)
    assert [problem["code"] for problem in document["problems"]] == ["exception"]


def test_a_python_machine_that_makes_a_known_secret_is_refused(cli: Cli) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdefgh12345678")
    text = COUNTED.replace('"Go on?"', "'abcdefgh' + '12345678'")
    assert "secret" in cli.refused("execute", counted(cli, text), exits=1)["message"]
    assert not cli.state.exists()


def test_show_prints_the_canonical_spec_of_a_file_and_of_a_run(cli: Cli) -> None:
    machine = cli.machine(a={"task": ["/bin/echo", "1"], "default_next": "b"}, b={"end": {}})
    spec = to_json(load(Path(machine).read_bytes(), machine))
    assert cli.json("machine", "show", machine) == spec
    text = cli("machine", "show", machine).out
    assert json.loads(text) == spec
    assert text.count(b"\n") > 50
    assert not cli.state.exists()
    run = cli.json("execute", machine)["run"]
    Path(machine).write_text("gone")
    assert cli.json("machine", "show", "--run", run) == spec


def test_draw_shows_the_way_that_a_run_took(cli: Cli) -> None:
    machine = cli.machine(
        a={"task": ["/bin/echo", "1"], "default_next": "b", "error_next": "c"}, b={"end": {}}, c={"end": {}}
    )
    plain = cli("machine", "draw", machine).out.decode()
    assert plain.startswith("flowchart TD\n")
    assert cli.json("machine", "draw", machine) == {"mermaid": plain}
    run = cli.json("execute", machine)["run"]
    drawn = cli("machine", "draw", "--run", run).out.decode()
    assert '    s0 -->|"taken 1"| s1\n' in drawn
    assert "    class s0,s1 visited\n" in drawn


def test_show_and_draw_want_a_file_or_a_run(cli: Cli) -> None:
    failures = Failures()
    for command in ["show", "draw"]:
        for words in [[], ["m.yaml", "--run", "r"]]:
            with failures.case(words, command), cli.fresh():
                assert cli.refused("machine", command, *words, exits=64)["code"] == "usage"
                assert cli.refused("machine", command, "--run", "none", exits=1)["code"] == "not_found"
    failures.check()


def test_the_schema_is_printed_for_machines_and_for_snapshots(cli: Cli) -> None:
    for words in (["machine", "schema"], ["machine", "schema", "--bundle"]):
        document = cli.json(*words)
        assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert json.loads(cli(*words).out) == document


def test_every_snapshot_fits_the_schema_of_snapshots_and_crafted_ones_do_not(cli: Cli) -> None:
    big = "x" * 10_000
    machine = cli.machine(
        a={"task": ["/bin/echo", json.dumps({"big": big})], "set": {"kept": "output.big"}, "default_next": "ask"},
        ask={"human": {"prompt": big, "schema": {"type": "boolean"}}, "default_next": "bad"},
        bad={"task": ["sh", "-c", f"echo {big} >&2; exit 1"], "repeatable": True, "retry": {"max_attempts": 2}},
    )
    cli.json("run", "--state-scope", "demo", "--system", big, "--set", "limit=3")
    cli.json("run", "--state-scope", "demo", "--refine-text", "more")
    run = cli.json("execute", machine, "--state-scope", "demo", "--label", "k=v", exits=3)["run"]
    cli.json("exec", "resume", run, "--answer", "true", exits=1)
    fixtures = Path(__file__).parent.parent / "fixtures"
    paths = [*cli.state.glob("*/state-*.json"), *fixtures.glob("*/*/state-*.json")]
    bundles = [json.loads(path.read_bytes()) for path in paths]
    assert {bundle["kind"] for bundle in bundles} >= {"run", "context", "machine"}
    assert any("/state/kept" in bundle["objects"] for bundle in bundles)
    validator = jsonschema_rs.validator_for(cli.json("machine", "schema", "--bundle"))
    for bundle in bundles:
        assert [str(error) for error in validator.iter_errors(bundle)] == []
    whole = next(bundle for bundle in bundles if bundle["kind"] == "run" and "birth" in bundle["event"])
    for part, change in (("state", {"status": "lost"}), ("event", {"turn": "1"}), ("state", {"tree": None})):
        crafted = {**whole, part: {**whole[part], **change}}
        assert validator.is_valid(crafted) == (change == {"tree": None})  # null: it may be an object of the store
    assert not validator.is_valid({name: part for name, part in whole.items() if name != "objects"})


def test_nothing_of_this_is_loaded_for_a_turn_whose_machine_is_known(cli: Cli) -> None:
    machine = counted(cli)
    cli.json("execute", "-i", machine, "--no-input")
    ours = ("machine.formats", "machine.check", "machine.schema", "machine.draw", "service.schemas", "cli.completion")
    unwanted = ("tomllib", "yaml", "stateline.engine.evaluate", *(f"stateline.{name}" for name in ours))
    code = (
        "import sys; from stateline.cli.main import run; run(sys.argv[1:]); "
        f"print([name for name in sys.modules if name.startswith({unwanted})], file=sys.stderr)"
    )
    for words in (["--version"], ["execute", "-i", machine, "--no-input", "-q"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert done.stderr == "[]\n", done


TOOL = {"name": "look", "description": "Looks.", "schema": {"type": "object"}, "argv": ["cat"]}


def with_tools(cli: Cli, *tools: dict[str, Any], **machine: Any) -> str:
    """A machine whose agent has these tools; ``stage`` adds to the agent, other words to the machine."""
    (cli.home / "tools.json").write_text(json.dumps({"tools": list(tools)}))
    agent = {"prompt": "?", "tools": ["look"], **machine.pop("stage", {})}
    return str(cli.machine(think={"agent": agent}, **{"_tools": "tools.json", **machine}))


def test_check_says_of_tools_and_models_what_execute_refuses(cli: Cli) -> None:
    failures = Failures()
    for tools, machine, place, said in [
        ([TOOL], {"_tools": "none.json"}, "tools", "no tools manifest"),
        ([{**TOOL, "argv": ["./not-there"]}], {}, "tools", "not-there"),
        ([{**TOOL, "schema": {"type": "array"}}], {}, "tools", "object"),
        ([{**TOOL, "name": "other"}], {}, "stages.think.agent.tools[0]", "look"),
        ([TOOL], {"_model": "openai/"}, "model", "names a provider and no model"),
        ([TOOL], {"_model": "nobody/x"}, "model", "names no known provider"),
        ([TOOL], {"stage": {"model": "gpt"}}, "stages.think.agent.model", "names no known provider"),
    ]:
        with failures.case(tools, machine, place, said), cli.fresh():
            for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
                cli.monkeypatch.delenv(name, raising=False)
            path = with_tools(cli, *tools, **machine)
            cli.refused("execute", path, exits=1)
            document = cli.json("machine", "check", path, exits=1)
            assert document["ok"] is False
            (problem,) = document["problems"]
            assert problem["severity"] == "error"
            assert problem["where"].split(" ")[1] == place
            assert said in problem["message"]
            assert problem["hint"]
            assert not cli.state.exists()
    failures.check()


def test_check_is_content_with_tools_that_are_there_and_models_that_have_an_endpoint(cli: Cli) -> None:
    path = with_tools(cli, TOOL, _model="openai/one", stage={"model": "manual"})
    assert cli.json("machine", "check", path) == {"ok": True, "problems": []}
    cli.monkeypatch.setenv("STATELINE_BASE_URL", "http://127.0.0.1:1/v1")
    assert cli.json("machine", "check", with_tools(cli, TOOL, _model="local"))["ok"] is True


def test_check_does_not_show_a_secret_in_a_tools_manifest(cli: Cli) -> None:
    cli.monkeypatch.setenv("THE_API_KEY", "very-secret-value-1")
    path = with_tools(cli, {**TOOL, "description": "very-secret-value-1"})
    result = cli("machine", "check", path)
    assert result.code == 1
    assert "holds a secret" in result.out.decode()
    assert "very-secret-value-1" not in result.out.decode() + result.err


def test_machine_check_reports_stages_and_state_that_no_one_has(cli: Cli) -> None:
    path = cli.home / "m.yaml"
    path.write_text(
        "stateline: 1\nname: m\nstages:\n"
        "  a: {task: [date], set: {todos: output}, default_next: b}\n"
        "  b: {task: [date], routes: [{when: 'outputs.c.ok && visits.d > 1 && state.todo', to: a}], max_visits: 2}\n"
    )
    report = cli.json("machine", "check", str(path), exits=1)
    found = [(problem["severity"], problem["code"]) for problem in report["problems"]]
    assert found == [("error", "unknown_stage"), ("error", "unknown_stage"), ("warning", "unset_state")]
    assert all("todos" in problem["hint"] for problem in report["problems"] if problem["code"] == "unset_state")
