"""``--dry-run`` reports the actions and the exit code of the real call, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task
from dry_runs import for_each_in_new_home

END: dict[str, Any] = {"end": {}}
MACHINE = "MACHINE"
REQUEST = "REQUEST"
Setup = Callable[[Any, Any], None]


def write(cli: Cli, task: Task, *, text: str = "1", **more: Any) -> str:
    """a -> b -> ask -> c -> done; ``b`` fails while there is no file ``ok``."""
    return str(
        cli.machine(
            a=task(f"echo a >> ran; echo {text}", default_next="b"),
            b=task("test -e ok && echo 2", default_next="ask"),
            ask={"human": {"prompt": "?", "schema": {"type": "boolean"}}, "default_next": "c"},
            c=task("echo 3", default_next="done"),
            done=END,
            **more,
        )
    )


def absent(cli: Cli, task: Task) -> None:
    (cli.home / "ok").touch()
    write(cli, task)


def begun(cli: Cli, task: Task) -> None:
    (cli.home / "ok").touch()
    cli.json("execute", "-i", write(cli, task), "--id", "r1")


def waiting(cli: Cli, task: Task) -> None:
    (cli.home / "ok").touch()
    cli.json("execute", write(cli, task), "--id", "r1", exits=3)


def failed(cli: Cli, task: Task) -> None:
    cli.json("execute", write(cli, task), "--id", "r1", exits=1)
    (cli.home / "ok").touch()


def complete(cli: Cli, task: Task) -> None:
    waiting(cli, task)
    cli.json("execute", str(cli.home / "m.json"), "--answer", "true")


def changed(cli: Cli, task: Task) -> None:
    begun(cli, task)
    write(cli, task, text="11")


def changed_while_waiting(cli: Cli, task: Task) -> None:
    waiting(cli, task)
    write(cli, task, text="11")


def lacking(cli: Cli, task: Task) -> None:
    begun(cli, task)
    cli.machine(a=task("echo 1"))


def lost(cli: Cli, task: Task) -> None:
    from stateline import Store
    from stateline.engine.record import load_run
    from stateline.engine.step import apply
    from stateline.machine.decider.run import Intended

    cli.machine(a=task("echo 1", repeatable=False))
    cli.json("execute", "-i", str(cli.home / "m.json"), "--id", "done", exits=2)
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2", repeatable=False))
    cli.json("execute", "-i", machine, "--id", "r1")
    apply(load_run(Store.open(cli.state), "r1"), Intended())


def unknown(cli: Cli, task: Task) -> None:
    lost(cli, task)
    cli.json("exec", "resume", "r1", exits=3)


def lost_unsafe(cli: Cli, task: Task) -> None:
    lost(cli, task)
    cli.state.chmod(0o750)


def moved(cli: Cli, task: Task) -> None:
    """The run r1 waits, and the file that it began from was moved since."""
    (cli.home / "before").mkdir()
    Path(write(cli, task)).rename(cli.home / "before" / "m.json")
    (cli.home / "before" / "ok").touch()
    cli.json("execute", str(cli.home / "before" / "m.json"), "--id", "r1", exits=3)
    (cli.home / "before" / "m.json").rename(cli.home / "m.json")


def moved_running(cli: Cli, task: Task) -> None:
    (cli.home / "before").mkdir()
    Path(write(cli, task)).rename(cli.home / "before" / "m.json")
    cli.json("execute", "-i", str(cli.home / "before" / "m.json"), "--id", "r1")
    (cli.home / "before" / "m.json").rename(cli.home / "m.json")


def changed_and_unknown(cli: Cli, task: Task) -> None:
    unknown(cli, task)
    (cli.home / "m.json").write_text(
        (cli.home / "m.json").read_text().replace('"stages"', '"bounds": {"timeout": 99}, "stages"')
    )


def moved_unsafe(cli: Cli, task: Task) -> None:
    moved(cli, task)
    cli.state.chmod(0o750)


def damaged(cli: Cli, task: Task) -> None:
    begun(cli, task)
    (cli.state / hashlib.sha256(b"run:r1").hexdigest() / "latest.json").write_bytes(b"{}")


def unsafe(cli: Cli, task: Task) -> None:
    begun(cli, task)
    cli.state.chmod(0o750)


def unsafe_scope(cli: Cli, task: Task) -> None:
    begun(cli, task)
    (cli.state / hashlib.sha256(b"run:r1").hexdigest()).chmod(0o755)


def unsafe_pointer(cli: Cli, task: Task) -> None:
    begun(cli, task)
    (cli.state / hashlib.sha256(b"run:r1").hexdigest() / "latest.json").chmod(0o644)


def unsafe_objects(cli: Cli, task: Task) -> None:
    begun(cli, task)
    (cli.state / "objects").chmod(0o755)


def unsafe_empty(cli: Cli, task: Task) -> None:
    absent(cli, task)
    cli.state.mkdir()
    cli.state.chmod(0o755)


def foreign(cli: Cli, task: Task) -> None:
    absent(cli, task)
    cli.state.mkdir(mode=0o700)
    (cli.state / "letter.txt").touch()


def newer(cli: Cli, task: Task) -> None:
    begun(cli, task)
    (cli.state / "stateline.json").write_bytes(b'{"format":"stateline/2","store_id":"00"}')


def invalid(cli: Cli, task: Task) -> None:
    cli.machine(a=task("echo 1", default_next="nowhere"))


def contexts(cli: Cli, task: Task) -> None:
    absent(cli, task)
    cli.json("run", "--state-scope", "demo", "--set", "x=1")


def demanding(cli: Cli, task: Task) -> None:
    (cli.home / "ok").touch()
    write(cli, task, _input={"type": "integer"})


I = ["execute", "-i", MACHINE]  # noqa: E741  # as the option is called
TO_END = ["execute", MACHINE]

TABLE: list[tuple[Setup, list[str], bytes, str, int]] = [
    (absent, I, b"", "start", 0),
    (absent, TO_END, b"", "start", 3),
    (absent, [*I, "--id", "new"], b"", "start", 0),
    (absent, [*I, "--input", "{}"], b"", "start", 0),
    (absent, [*TO_END, "--state-scope", "nobody"], b"", "refuse", 1),
    (absent, [*TO_END, "--parent", "run:nobody"], b"", "refuse", 1),
    (absent, ["execute", "/does/not/exist"], b"", "refuse", 1),
    (invalid, TO_END, b"", "refuse", 1),
    (demanding, TO_END, b"", "refuse", 1),
    (demanding, [*TO_END, "--input", "1"], b"", "start", 3),
    (begun, I, b"", "advance", 3),
    (begun, TO_END, b"", "advance", 3),
    (begun, [*I, "--force"], b"", "start", 0),
    (begun, [*I, "--id", "r1", "--force"], b"", "restart", 0),
    (begun, [*I, "--id", "r2"], b"", "start", 0),
    (begun, [*I, "--input", "1"], b"", "refuse", 64),
    (begun, [*I, "--input", "null"], b"", "advance", 3),
    (begun, [*I, "--answer", "1"], b"", "refuse", 1),
    (begun, [*I, "--parent", "run:r1"], b"", "advance", 3),
    (begun, [*I, "--parent", "run:r1~1"], b"", "refuse", 4),
    (begun, [*I, "--parent", "run:r1~1", "--force"], b"", "refuse", 4),
    (begun, [*I, "--parent", "run:r1~1", "--id", "r2"], b"", "refuse", 4),
    (begun, [*I, "--accept-change"], b"", "advance", 3),
    (waiting, I, b"", "wait", 3),
    (waiting, TO_END, b"", "wait", 3),
    (waiting, [*I, "--answer", "true"], b"", "answer", 0),
    (waiting, [*TO_END, "--answer", "true"], b"", "answer", 0),
    (waiting, I, b"true\n", "answer", 0),
    (waiting, TO_END, b"true\n", "answer", 0),
    (waiting, TO_END, b"maybe\n", "refuse", 1),
    (waiting, [*TO_END, "--no-input"], b"true\n", "wait", 3),
    (waiting, [*TO_END, "--answer", '{"requestId": "x", "answer": true}'], b"", "refuse", 1),
    (waiting, [*I, "--answer", '{"requestId": "REQUEST", "answer": true}'], b"", "answer", 0),
    (waiting, [*I, "--parent", "run:r1~1"], b"", "refuse", 4),
    (failed, I, b"", "report", 1),
    (failed, TO_END, b"", "report", 1),
    (failed, [*TO_END, "--answer", "1"], b"", "refuse", 1),
    (failed, [*TO_END, "--force", "--id", "r1"], b"", "restart", 3),
    (complete, I, b"", "start", 0),
    (complete, [*I, "--id", "r1"], b"", "report", 2),
    (complete, [*TO_END, "--id", "r1"], b"", "report", 0),
    (complete, [*TO_END, "--id", "r1", "--answer", '{"requestId": "REQUEST", "answer": true}'], b"", "report", 0),
    (complete, [*TO_END, "--answer", '{"requestId": "REQUEST", "answer": true}'], b"", "report", 0),
    (complete, [*I, "--answer", '{"requestId": "REQUEST", "answer": true}'], b"", "report", 2),
    (complete, [*TO_END, "--answer", '{"requestId": "REQUEST", "answer": false}'], b"", "refuse", 1),
    (complete, [*TO_END, "--answer", '{"requestId": "nobody:2:0:00000000", "answer": true}'], b"", "refuse", 1),
    (complete, [*TO_END, "--id", "r1", "--answer", "true"], b"", "refuse", 1),
    (changed, I, b"", "refuse", 1),
    (changed, [*I, "--accept-change"], b"", "advance", 3),
    (changed, [*I, "--force"], b"", "start", 0),
    (changed_while_waiting, [*I, "--accept-change"], b"", "wait", 3),
    (changed_while_waiting, [*I, "--accept-change", "--answer", "true"], b"", "answer", 0),
    (lacking, [*I, "--accept-change"], b"", "refuse", 1),
    (lost, TO_END, b"", "wait", 3),
    (lost, TO_END, b"1\n", "wait", 3),
    (lost, [*TO_END, "--answer", "1"], b"", "refuse", 1),
    (unknown, [*I, "--answer", "1"], b"", "answer", 2),
    (unknown, [*TO_END, "--answer", "1"], b"", "answer", 0),
    (lost_unsafe, TO_END, b"", "refuse", 6),
    (moved, [*I, "--id", "r1"], b"", "wait", 3),
    (moved, [*I, "--id", "r1", "--answer", "true"], b"", "answer", 0),
    (moved, [*I, "--id", "r1", "--answer", '{"requestId": "nobody:2:0:00000000", "answer": true}'], b"", "refuse", 1),
    (moved_unsafe, [*I, "--id", "r1"], b"", "refuse", 6),
    (moved_running, [*I, "--id", "r1", "--answer", "5"], b"", "refuse", 1),
    (changed_and_unknown, [*TO_END, "--accept-change", "--answer", "1"], b"", "answer", 0),
    (changed, [*I, "--accept-change", "--answer", "5"], b"", "refuse", 1),
    (damaged, I, b"", "refuse", 5),
    (damaged, [*I, "--id", "r1", "--force"], b"", "refuse", 5),
    (damaged, [*I, "--id", "r2"], b"", "start", 0),
    (unsafe, I, b"", "refuse", 6),
    (unsafe, [*I, "--force"], b"", "refuse", 6),
    (unsafe_scope, I, b"", "refuse", 6),
    (unsafe_pointer, I, b"", "refuse", 6),
    (unsafe_objects, I, b"", "advance", 3),
    (unsafe_objects, [*I, "--force"], b"", "refuse", 6),
    (unsafe_empty, I, b"", "refuse", 6),
    (foreign, I, b"", "refuse", 1),
    (newer, I, b"", "refuse", 1),
    (absent, ["run", "--state-scope", "demo"], b"", "derive", 0),
    (absent, ["run", "--state-scope", "demo", "--refine-text", "x"], b"", "refine", 0),
    (absent, ["run", "--state-scope", "demo", "--set", "x=" + "z" * 300_000], b"", "refuse", 1),
    (contexts, ["run", "--state-scope", "demo"], b"", "restore", 0),
    (contexts, ["run", "--state-scope", "demo", "-m", "openai/two"], b"", "restore", 0),
    (contexts, ["run", "--state-scope", "demo", "--set", "x=2"], b"", "refine", 0),
    (contexts, ["run", "--state-scope", "demo", "--set", "x=2", "--parent", "context:demo"], b"", "refine", 0),
    (contexts, ["run", "--state-scope", "demo", "--parent", "run:nobody"], b"", "refuse", 1),
    (contexts, [*I, "--state-scope", "demo"], b"", "start", 0),
    (unsafe, ["run", "--state-scope", "demo"], b"", "refuse", 6),
]


def test_the_plan_matches_the_real_call(cli: Cli, task: Task) -> None:
    def check(row: tuple[Setup, list[str], bytes, str, int]) -> None:
        setup, words, stdin, action, exits = row
        setup(cli, task)
        words = [str(cli.home / "m.json") if word == MACHINE else word for word in words]
        if any(REQUEST in word for word in words):
            words = [word.replace(REQUEST, request(cli)) for word in words]
        before = cli.tree()
        planned = cli(*words, "--dry-run", "--format", "json", stdin=stdin)
        assert cli.tree() == before
        assert planned.code == 0
        document = planned.document
        assert document.keys() >= {"plan", "exit", "warnings"}
        plan = document["plan"]
        assert plan.keys() >= {"action", "run", "scope", "head", "effects"}
        assert (plan["action"], document["exit"]) == (action, exits), plan
        assert plan["head"] is None or len(plan["head"]) == 64
        real = cli(*words, "--format", "json", stdin=stdin)
        assert real.code == exits, (real.out, real.err)
        if action == "refuse":
            assert real.document["error"]["message"] in plan["reason"]
            assert files(cli.tree()) == files(before)
            assert plan["effects"] == []
        else:
            assert document["warnings"] == real.document["warnings"]
            assert plan["run"] in (None, real.document["run"])
            assert (real.document["head"] == plan["head"]) == (files(cli.tree()) == files(before))

    for_each_in_new_home(cli, check, TABLE)


def request(cli: Cli) -> str:
    """The id of the request that the run r1 made last."""
    events = [row["event"] for row in cli.json("log", "run:r1")["snapshots"]]
    return str(next(event["waiting"]["requestId"] for event in events if "waiting" in event))


def files(tree: dict[str, Any]) -> dict[str, Any]:
    return {path: row[4] for path, row in tree.items() if row[4]}


def test_the_first_effect_is_named(cli: Cli, task: Task) -> None:
    begun(cli, task)
    document = cli.json(*TO_END[:1], str(cli.home / "m.json"), "--dry-run")
    assert document["plan"]["effects"] == [
        {"type": "task", "stage": "b", "argv": ["sh", "-c", "test -e ok && echo 2"], "repeatable": True}
    ]
    assert (document["plan"]["run"], document["plan"]["scope"]) == ("r1", "run:r1")


def test_the_text_of_a_plan_has_its_parts(cli: Cli, task: Task) -> None:
    absent(cli, task)
    text = cli("execute", str(cli.home / "m.json"), "--dry-run").out.decode()
    assert text.startswith("would start a run and exit 3")
    assert "task of stage a" in text


def test_a_store_that_cannot_be_written_is_foreseen(cli: Cli, task: Task) -> None:
    import os

    if os.geteuid() == 0:
        pytest.skip("root may write to a directory without the permission")
    begun(cli, task)
    places = [cli.state, *(path for path in cli.state.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o500)
    try:
        machine = str(cli.home / "m.json")
        assert cli.json("execute", "-i", machine, "--dry-run")["exit"] == 1
        assert cli.refused("execute", "-i", machine, exits=1)["code"] == "storage"
    finally:
        for place in places:
            place.chmod(0o700)


def test_a_dry_run_of_a_copy_needs_no_more_than_to_read_it(cli: Cli, task: Task) -> None:
    begun(cli, task)
    copy = cli.home / "copy"
    shutil.copytree(cli.state, copy)
    machine = Path(cli.home / "m.json")
    plan = cli.json("execute", "-i", str(machine), "--dry-run", "--state-dir", str(copy))
    assert plan["plan"]["head"] == json.loads(cli("exec", "status", "--format", "json").out)["head"]


SENTENCES: list[tuple[Setup, list[str], str]] = [
    (absent, TO_END, "would start a run and exit 3"),
    (begun, [*I, "--id", "r1", "--force"], "would start the run r1 again and exit 0"),
    (begun, I, "would continue the run r1 and exit 3"),
    (waiting, I, "would leave the run r1 waiting and exit 3"),
    (waiting, [*I, "--answer", "true"], "would answer the run r1 and exit 0"),
    (failed, I, "would only report the status of the run r1 and exit 1"),
    (damaged, I, "would be refused and exit 5"),
    (absent, ["run", "--state-scope", "zz"], "would derive context:zz and exit 0"),
    (contexts, ["run", "--state-scope", "demo"], "would leave context:demo as it is and exit 0"),
    (contexts, ["run", "--state-scope", "demo", "--set", "x=2"], "would refine context:demo and exit 0"),
]


def test_a_plan_as_text_begins_with_a_sentence(cli: Cli, task: Task) -> None:
    def check(row: tuple[Setup, list[str], str]) -> None:
        setup, words, sentence = row
        setup(cli, task)
        words = [str(cli.home / "m.json") if word == MACHINE else word for word in words]
        assert cli(*words, "--dry-run").out.decode().split("\n")[0] == sentence

    for_each_in_new_home(cli, check, SENTENCES)
