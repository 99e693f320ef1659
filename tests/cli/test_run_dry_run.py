"""``run --dry-run``: the same plan each time, which the real call executes; and it changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_line import Cli
from dry_runs import for_each_in_new_home
from model_server import ModelServer, Say

EXAMPLE = Path(__file__).parents[2] / "examples" / "conversation"
PROMPT = json.loads((EXAMPLE / "recording" / "0002.json").read_text())["request"]["messages"][-1]["content"]
PLAYED = ["run", "--state-scope", "demo", "-p", PROMPT, "--tools", str(EXAMPLE / "tools.json")]
PLAY = [*PLAYED, "--playback", str(EXAMPLE / "recording")]
DEMO = ["run", "-p", "x", "--state-scope", "demo"]
R1 = ["run", "--id", "r1"]
Setup = Callable[[Any], None]


def absent(cli: Cli) -> None:
    pass


def derived(cli: Cli) -> None:
    cli.json("run", "--state-scope", "demo", "--system", "S")


def refined(cli: Cli) -> None:
    derived(cli)
    cli.json("run", "--state-scope", "demo", "--refine-text", "R")


def waiting(cli: Cli) -> None:
    cli.json(*DEMO, "--id", "r1", exits=3)


def complete(cli: Cli) -> None:
    waiting(cli)
    cli.json(*R1, "--answer", '"Done."')


def unsafe(cli: Cli) -> None:
    derived(cli)
    cli.state.chmod(0o750)


def unsafe_waiting(cli: Cli) -> None:
    waiting(cli)
    cli.state.chmod(0o750)


def pointer(cli: Cli, key: str) -> Path:
    return Path(cli.state / hashlib.sha256(key.encode()).hexdigest() / "latest.json")


def damaged_context(cli: Cli) -> None:
    derived(cli)
    pointer(cli, "context:demo").write_bytes(b"{}")


def damaged_run(cli: Cli) -> None:
    waiting(cli)
    pointer(cli, "run:r1").write_bytes(b"{}")


def played(cli: Cli) -> None:
    cli.json(*PLAY)


TABLE: list[tuple[Setup, list[str], str, int, str]] = [
    (absent, ["run", "-p", "x"], "start", 3, "derive"),
    (absent, DEMO, "start", 3, "derive"),
    (absent, [*DEMO, "--refine-text", "R"], "start", 3, "refine"),
    (derived, DEMO, "start", 3, "restore"),
    (derived, [*DEMO, "--refine-text", "R"], "start", 3, "refine"),
    (derived, [*DEMO, "--system", "T", "--set", "x=1"], "start", 3, "restore"),
    (derived, [*DEMO, "--parent", "context:demo"], "start", 3, "restore"),
    (refined, [*DEMO, "--parent", "context:demo~1"], "refuse", 4, ""),
    (refined, [*DEMO, "--parent", "context:demo~1", "--refine-text", "R"], "refuse", 4, ""),
    (absent, [*DEMO, "--tools", "not there"], "refuse", 1, ""),
    (absent, [*DEMO, "--playback", "not there"], "refuse", 1, ""),
    (absent, [*DEMO, "-m", "nobody/x"], "refuse", 1, ""),
    (absent, [*DEMO, "--set", "x=" + "z" * 300_000], "refuse", 1, ""),
    (absent, PLAY, "start", 0, "derive"),
    (played, PLAY, "start", 0, "restore"),
    (played, [*PLAYED, "--playback", str(EXAMPLE / "refined"), "--refine-text",
              "Answer in one sentence, and tighten temperature to 0.2."], "start", 0, "refine"),
    (waiting, R1, "wait", 3, ""),
    (waiting, [*R1, "-p", "x"], "wait", 3, ""),
    (waiting, [*R1, "-p", "y"], "refuse", 1, ""),
    (waiting, [*R1, "--answer", '"Done."'], "answer", 0, ""),
    (waiting, [*R1, "--answer", '{"tools": [{"name": "zzz", "params": {}}]}'], "refuse", 1, ""),
    (waiting, [*R1, "--parent", "context:demo"], "refuse", 4, ""),
    (waiting, [*R1, "--playback", str(EXAMPLE / "recording")], "refuse", 1, ""),
    (waiting, [*R1, "-p", "y", "--force", "--state-scope", "demo"], "restart", 3, "restore"),
    (waiting, ["run", "--id", "nobody"], "refuse", 1, ""),
    (complete, R1, "report", 0, ""),
    (complete, [*R1, "-p", "y"], "refuse", 1, ""),
    (complete, [*R1, "--answer", "1"], "refuse", 1, ""),
    (unsafe, DEMO, "refuse", 6, ""),
    (unsafe, [*DEMO, "--refine-text", "R"], "refuse", 6, ""),
    (unsafe_waiting, [*R1, "--answer", '"Done."'], "refuse", 6, ""),
    (damaged_context, DEMO, "refuse", 5, ""),
    (damaged_context, [*DEMO, "--refine-text", "R"], "refuse", 5, ""),
    (damaged_run, R1, "refuse", 5, ""),
    (damaged_run, [*R1, "-p", "x", "--force"], "refuse", 5, ""),
]  # fmt: skip


def test_the_plan_matches_the_real_call(cli: Cli) -> None:
    def check(row: tuple[Setup, list[str], str, int, str]) -> None:
        setup, words, action, exits, context = row
        setup(cli)
        before = cli.tree()
        planned = cli(*words, "--dry-run", "--format", "json")
        assert cli(*words, "--dry-run", "--format", "json").out == planned.out
        assert cli(*words, "--dry-run").out.startswith(b"would ")
        assert cli.tree() == before
        assert planned.code == 0
        plan, document = planned.document["plan"], planned.document
        assert (plan["action"], document["exit"]) == (action, exits), plan
        contexts = [effect["action"] for effect in plan["effects"] if effect["type"] == "context"]
        assert contexts == ([context] if context else [])
        real = cli(*words, "--format", "json")
        assert real.code == exits, (real.out, real.err)
        if action == "refuse":
            assert real.document["error"]["message"] in plan["reason"]
            assert plan["effects"] == []
            assert {path: row[4] for path, row in cli.tree().items()} == {path: row[4] for path, row in before.items()}
        else:
            assert document["warnings"] == real.document["warnings"]
            assert plan["run"] in (None, real.document["run"])
        if context:
            scope = next(effect["scope"] for effect in plan["effects"] if effect["type"] == "context")
            newest = cli.json("log", scope)["snapshots"]
            snapshots = [effect["event"] for effect in plan["effects"] if effect["type"] == "snapshot"]
            assert [row["event"]["type"] for row in newest[: len(snapshots)][::-1]] == snapshots
            assert context == "restore" or context == newest[0]["event"]["type"]

    for_each_in_new_home(cli, check, TABLE)


def test_the_model_calls_of_a_plan_are_those_of_the_real_call(cli: Cli) -> None:
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    reply = json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {}})

    def answers(document: dict[str, Any]) -> Say:
        return Say("Done." if document["messages"][-1]["content"] == "x" else reply)

    with ModelServer(otherwise=answers) as server:
        words = [*DEMO, "-m", "openai/model-1", "--base-url", server.url]
        for more in ([], [], ["--refine-text", "R"]):
            before = server.count
            plan = cli.json(*words, *more, "--dry-run")
            assert server.count == before
            models = [effect for effect in plan["plan"]["effects"] if effect["type"] == "model"]
            assert {effect["model"] for effect in models} == {"openai/model-1"}
            cli.json(*words, *more)
            assert server.count == before + len(models)
        assert server.count == 2 + 1 + 2


def test_flags_that_exclude_each_other_are_a_usage_error_and_not_a_plan(cli: Cli) -> None:
    for prompt in (["-p", "Hi."], []):
        for flags in (["--record", "r", "--playback", "p"], ["--playback-mode", "strict"]):
            assert cli.refused("run", "--dry-run", *prompt, *flags, exits=64)["code"] == "usage"
