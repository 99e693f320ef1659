"""``exec resume --dry-run``: what the real call then does and how it exits; it touches nothing. And what every dry run
says of flags that do nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_line import Cli, Task
from dry_runs import for_each_in_new_home

END: dict[str, Any] = {"end": {}}
EXAMPLE = Path(__file__).parents[2] / "examples" / "conversation"
Setup = Callable[[Any, Any], None]


def write(cli: Cli, task: Task, **more: Any) -> str:
    """a -> ask -> b -> done; ``a`` fails while there is no file ``ok``."""
    return str(
        cli.machine(
            a=task("test -e ok && echo 1", default_next="ask"),
            ask={"human": {"prompt": "?", "schema": {"type": "boolean"}}, "default_next": "b"},
            b=task("echo 3", default_next="done"),
            done=END,
            **more,
        )
    )


def failed(cli: Cli, task: Task) -> None:
    cli.json("execute", write(cli, task), "--id", "r1", exits=1)


def mended(cli: Cli, task: Task) -> None:
    failed(cli, task)
    (cli.home / "ok").touch()


def waiting(cli: Cli, task: Task) -> None:
    (cli.home / "ok").touch()
    cli.json("execute", write(cli, task), "--id", "r1", exits=3)


def running(cli: Cli, task: Task) -> None:
    waiting(cli, task)
    cli.json("execute", "-i", str(cli.home / "m.json"), "--answer", "true")


def complete(cli: Cli, task: Task) -> None:
    running(cli, task)
    cli.json("execute", str(cli.home / "m.json"))


def lost(cli: Cli, task: Task) -> None:
    from stateline import Store
    from stateline.engine.record import load_run
    from stateline.engine.step import apply
    from stateline.machine.decider.run import Intended

    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2", repeatable=False))
    cli.json("execute", "-i", machine, "--id", "r1")
    apply(load_run(Store.open(cli.state), "r1"), Intended())


def limited(cli: Cli, task: Task) -> None:
    """The way on was refused by a limit; the output is kept, and every retry meets the limit again."""
    machine = cli.machine(a=task("echo 1", routes=[{"when": "output == 1", "to": "a"}]), _bounds={"max_iterations": 2})
    cli.json("execute", machine, "--id", "r1", exits=1)


def unsettled(cli: Cli, task: Task) -> None:
    """A route failed; the output is kept, and a retry with the changed machine only settles it."""
    cli.json("execute", cli.machine(a=task("echo 1", routes=[{"when": "output.x", "to": "b"}]), b=END), "--id", "r1",
             exits=1)  # fmt: skip
    machine = cli.machine(
        a=task("echo 1", routes=[{"when": "output == 1", "to": "ask"}]),
        ask={"human": {"prompt": "?"}, "default_next": "b"},
        b=END,
    )
    cli.json("execute", machine, "--accept-change", exits=1)


def unsettled_before_a_task(cli: Cli, task: Task) -> None:
    """Make a run like ``unsettled`` whose next stage is a task: with -i, the transition to it is the turn."""
    route = {"when": "output == state.one", "to": "b"}
    machine = cli.machine(a=task("echo 1", routes=[route]), b=task("echo 2"))
    cli.json("execute", machine, "--id", "r1", exits=1)
    changed = cli.machine(a=task("echo 1", routes=[{**route, "when": "output == 1"}]), b=task("echo 2"))
    cli.json("execute", changed, "--accept-change", exits=1)


def asking(cli: Cli, task: Task) -> None:
    """A model is asked, and nobody is there."""
    cli.json("run", "-p", "x", "--id", "r1", exits=3)


def failed_at_a_model(cli: Cli, task: Task) -> None:
    """No such server: the call of the model failed."""
    cli.monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    cli.json("run", "--state-scope", "c", "--system", "S")
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    words = ["-m", "openai/x", "--base-url", "http://127.0.0.1:9/v1"]
    cli.json("run", "-p", "x", "--id", "r1", "--state-scope", "c", *words, exits=1)
    cli.monkeypatch.delenv("OPENAI_API_KEY")


def calling(cli: Cli, task: Task) -> None:
    """A model's reply calls tools, and a bound allowed none."""
    (cli.home / "tools.json").write_bytes((EXAMPLE / "tools.json").read_bytes())
    (cli.home / "bin").symlink_to(EXAMPLE / "bin")
    agent = {"agent": {"prompt": "x", "tools": ["pantry"]}}
    machine = cli.machine(think=agent, _tools="tools.json", _bounds={"max_tool_rounds": 1})
    cli.json("execute", machine, "--id", "r1", exits=3)
    for ingredient, exits in (("salt", 3), ("flour", 1)):
        call = json.dumps({"tools": [{"name": "pantry", "params": {"ingredient": ingredient}}]})
        cli.json("exec", "resume", "r1", "--answer", call, exits=exits)


def lost_call(cli: Cli, task: Task) -> None:
    """A tool that must not run twice was started, and nothing followed."""
    from stateline import Store

    once = {"name": "once", "description": "d", "schema": {"type": "object"}, "argv": ["echo", "1"]}
    (cli.home / "tools.json").write_text(json.dumps({"tools": [once]}))
    cli.json("run", "-p", "x", "--id", "r1", "--tools", str(cli.home / "tools.json"), exits=3)
    cli.json("exec", "resume", "r1", "--answer", json.dumps({"tools": [{"name": "once", "params": {}}]}), exits=3)
    scope = Store.open(cli.state).scope("run:r1")
    intent = next(past for past in scope.walk() if past.event["type"] == "calls_intended")
    with scope.locked():
        scope.store.backend.swap(scope.hash, scope.load().pointer, intent.pointer)
    for newer in scope.store.backend.list(scope.hash):  # as if they had never been
        if newer.startswith("state-") and newer > intent.path:
            (cli.state / scope.hash / newer).unlink()


def unknown(cli: Cli, task: Task) -> None:
    lost(cli, task)
    cli.json("exec", "resume", "r1", exits=3)


def unknown_call(cli: Cli, task: Task) -> None:
    lost_call(cli, task)
    cli.json("exec", "resume", "r1", exits=3)


def damaged(cli: Cli, task: Task) -> None:
    waiting(cli, task)
    (cli.state / hashlib.sha256(b"run:r1").hexdigest() / "latest.json").write_bytes(b"{}")


def unsafe(cli: Cli, task: Task) -> None:
    running(cli, task)
    cli.state.chmod(0o750)


def unsafe_failed(cli: Cli, task: Task) -> None:
    failed(cli, task)
    cli.state.chmod(0o750)


def nobody(cli: Cli, task: Task) -> None:
    pass


RETRY = ["--retry"]
TABLE: list[tuple[Setup, list[str], bytes, str, int]] = [
    (nobody, [], b"", "refuse", 1),
    (nobody, RETRY, b"", "refuse", 1),
    (running, [], b"", "advance", 0),
    (running, ["-i"], b"", "advance", 2),
    (running, RETRY, b"", "refuse", 1),
    (running, ["--input", "1"], b"", "refuse", 64),
    (running, ["--input", "null"], b"", "advance", 0),
    (running, ["--answer", "1"], b"", "refuse", 1),
    (running, ["--parent", "run:r1~1"], b"", "refuse", 4),
    (waiting, [], b"", "wait", 3),
    (waiting, ["-i"], b"", "wait", 3),
    (waiting, [], b"true", "answer", 0),
    (waiting, ["-i"], b"true", "answer", 0),
    (waiting, ["--answer", "true"], b"", "answer", 0),
    (waiting, [], b"maybe", "refuse", 1),
    (waiting, ["--no-input"], b"true", "wait", 3),
    (waiting, RETRY, b"", "refuse", 1),
    (waiting, [*RETRY, "--answer", "true"], b"", "refuse", 64),
    (failed, [], b"", "report", 1),
    (failed, ["-i"], b"", "report", 1),
    (failed, ["--answer", "true"], b"", "refuse", 1),
    (mended, RETRY, b"", "retry", 3),
    (mended, [*RETRY, "-i"], b"", "retry", 3),
    (mended, [*RETRY, "--parent", "run:r1"], b"", "retry", 3),
    (mended, [*RETRY, "--parent", "run:r1~1"], b"", "refuse", 4),
    (mended, RETRY, b"true", "retry", 3),
    (complete, [], b"", "report", 0),
    (complete, ["-i"], b"", "report", 2),
    (complete, RETRY, b"", "refuse", 1),
    (complete, ["--answer", "1"], b"", "refuse", 1),
    (lost, [], b"", "wait", 3),
    (lost, ["--answer", "7"], b"", "refuse", 1),
    (unknown, ["--answer", "7"], b"", "answer", 0),
    (unknown, ["-i", "--answer", "7"], b"", "answer", 2),
    (lost, RETRY, b"", "retry", 0),
    (lost, [*RETRY, "-i"], b"", "retry", 2),
    (limited, [], b"", "report", 1),
    (limited, RETRY, b"", "retry", 1),
    (limited, [*RETRY, "-i"], b"", "retry", 1),
    (unsettled, [], b"", "report", 1),
    (unsettled, RETRY, b"", "retry", 3),
    (unsettled, [*RETRY, "-i"], b"", "retry", 3),
    (unsettled, RETRY, b'"an answer to nothing"', "retry", 3),
    (unsettled_before_a_task, RETRY, b"", "retry", 0),
    (unsettled_before_a_task, [*RETRY, "-i"], b"", "retry", 0),
    (asking, [], b"", "wait", 3),
    (asking, [], b"Done.", "answer", 0),
    (asking, ["--answer", '"Done."'], b"", "answer", 0),
    (asking, [], b'{"response": "Done."', "refuse", 1),
    (asking, ["-m", "openai/x"], b"", "refuse", 1),
    (asking, RETRY, b"", "refuse", 1),
    (asking, ["--record", "kept"], b"", "refuse", 1),
    (failed_at_a_model, [], b"", "report", 1),
    (failed_at_a_model, RETRY, b"", "retry", 3),
    (failed_at_a_model, RETRY, b"an answer to nothing", "retry", 3),
    (failed_at_a_model, [*RETRY, "--base-url", "http://127.0.0.1:9/v1"], b"", "retry", 3),
    (failed_at_a_model, [*RETRY, "-m", "openai/x"], b"", "refuse", 1),
    (failed_at_a_model, [*RETRY, "-m", "nobody/x"], b"", "refuse", 1),
    (calling, [], b"", "report", 1),
    (calling, RETRY, b"", "retry", 1),
    (lost_call, [], b"", "wait", 3),
    (lost_call, ["--answer", "7"], b"", "refuse", 1),
    (unknown_call, ["--answer", "7"], b"", "answer", 3),
    (lost_call, RETRY, b"", "retry", 3),
    (lost_call, [*RETRY, "-i"], b"", "retry", 3),
    (damaged, [], b"", "refuse", 5),
    (damaged, RETRY, b"", "refuse", 5),
    (unsafe, [], b"", "refuse", 6),
    (unsafe_failed, RETRY, b"", "refuse", 6),
]


def test_the_plan_matches_the_real_call(cli: Cli, task: Task) -> None:
    def check(row: tuple[Setup, list[str], bytes, str, int]) -> None:
        setup, words, stdin, action, exits = row
        cli.monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        setup(cli, task)
        words = ["exec", "resume", "r1", *words]
        before = cli.tree()
        planned = cli(*words, "--dry-run", "--format", "json", stdin=stdin)
        assert cli(*words, "--dry-run", stdin=stdin).out.startswith(b"would ")
        assert cli.tree() == before
        assert planned.code == 0
        document, plan = planned.document, planned.document["plan"]
        assert (plan["action"], document["exit"]) == (action, exits), plan
        assert plan["run"] == "r1"
        real = cli(*words, "--format", "json", stdin=stdin)
        assert real.code == exits, (real.out, real.err)
        if action == "refuse":
            assert real.document["error"]["message"] in plan["reason"]
            assert plan["effects"] == []
            assert {path: row[4] for path, row in cli.tree().items()} == {path: row[4] for path, row in before.items()}
        else:
            assert document["warnings"] == real.document["warnings"]
            assert (real.document["head"] == plan["head"]) == (
                action in ("report", "wait") and setup not in (lost, lost_call)
            )

    for_each_in_new_home(cli, check, TABLE)


def test_the_first_effect_of_a_retry_is_named(cli: Cli, task: Task) -> None:
    mended(cli, task)
    plan = cli.json("exec", "resume", "r1", "--retry", "--dry-run")["plan"]
    assert [(effect["type"], effect["stage"]) for effect in plan["effects"]] == [("task", "a")]
    assert cli("exec", "resume", "r1", "--retry", "--dry-run").out.startswith(b"would retry the run r1 and exit 3")


def test_tool_calls_of_a_retry_are_named(cli: Cli, task: Task) -> None:
    lost_call(cli, task)
    plan = cli.json("exec", "resume", "r1", "--retry", "--dry-run")["plan"]
    assert plan["effects"] == [{"type": "tool", "stage": "agent", "tool": "once", "repeatable": False}]
    assert "  effect: tool once of stage agent\n" in cli("exec", "resume", "r1", "--retry", "--dry-run").out.decode()


def test_a_malformed_id_is_no_plan(cli: Cli) -> None:
    assert cli.refused("exec", "resume", "../r1", "--dry-run", exits=64)["code"] == "usage"


def test_a_dry_run_warns_of_flags_without_effect_like_the_real_call(cli: Cli) -> None:
    flags = ["--base-url", "http://127.0.0.1:9/v1"]
    machine = cli.machine(think={"agent": {"prompt": "x"}})
    cli.json("execute", machine, "--id", "old", *flags, exits=3)
    for words in (
        ["run", "-p", "x", *flags],
        ["execute", machine, "--force", *flags],
        ["execute", machine, "--id", "old", *flags],
        ["exec", "resume", "old", *flags],
    ):
        planned = cli.json(*words, "--dry-run")
        assert any(flags[0] in warning for warning in planned["warnings"])
        assert planned["warnings"] == cli.json(*words, exits=3)["warnings"]
        assert flags[0] in cli(*words, "--dry-run").err
