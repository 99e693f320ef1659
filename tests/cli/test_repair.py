"""``stateline repair``, and what writers say when they meet damage; runs and contexts go on after it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures

from stateline.bundle import naming
from stateline.cli.main import run as call


def scope_of(cli: Cli, key: str) -> Path:
    return Path(cli.state) / naming.scope_hash(key)


def snapshots(cli: Cli, key: str) -> list[Path]:
    """The snapshot files of a scope, oldest first."""
    return sorted(scope_of(cli, key).glob("state-*.json"))


def event(cli: Cli, key: str) -> dict[str, Any]:
    return dict(cli.json("show", key)["event"])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def steps(task: Task, **keys: Any) -> dict[str, Any]:
    """Three tasks in a row; each notes that it ran, with its idempotency key."""
    script = 'key=$(jq -r .idempotency_key); echo "{0} $key" >> ran; echo "{{\\"of\\": \\"{0}\\"}}"'
    stages = {name: task(script.format(name), **keys) for name in "abc"}
    stages["a"]["default_next"], stages["b"]["default_next"] = "b", "c"
    return stages


def make_machine(cli: Cli, task: Task) -> str:
    """Repeatable tasks, and a run ``r1`` of them that stands at the third."""
    path = str(cli.machine(**steps(task)))
    for _ in range(2):
        cli.json("execute", "-i", path, "--id", "r1")
    return path


@pytest.fixture
def machine(cli: Cli, task: Task) -> str:
    return make_machine(cli, task)


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(cli: Cli, machine: str) -> None:
    truncate(snapshots(cli, "run:r1")[-1])
    before = cli.tree()
    plan = cli.json("repair", exits=5)
    text = cli("repair")
    assert cli.tree() == before
    assert (text.code, plan["ok"], plan["applied"], plan["aside"]) == (5, False, False, None)
    assert [action["action"] for action in plan["actions"]] == ["set_aside", "publish", "move_head"]
    assert {action["scope"] for action in plan["actions"]} == {"run:r1"}
    assert [(lost["scope"], lost["newer"]) for lost in plan["lost"]] == [("run:r1", True)]
    assert {finding["severity"] for finding in plan["findings"]} == {"damage"}
    assert "would set aside" in text.out.decode()
    assert "stateline repair --apply" in text.out.decode()
    assert "may run again" in text.err
    assert any("may run again" in warning for warning in plan["warnings"])


def test_apply_repairs_and_a_second_one_finds_nothing_to_do(cli: Cli, machine: str) -> None:
    truncate(snapshots(cli, "run:r1")[-1])
    done = cli.json("repair", "--apply")
    assert (done["ok"], done["applied"], done["findings"], done["blocked"]) == (True, True, [], [])
    assert (Path(cli.state) / done["actions"][0]["to"]).exists()
    assert cli.json("verify")["ok"]
    again = cli.json("repair", "--apply")
    assert (again["ok"], again["actions"], again["lost"]) == (True, [], [])
    assert cli("repair").out.decode().splitlines() == ["ok: nothing is damaged"]


def test_verify_says_what_to_do_about_damage(cli: Cli, machine: str) -> None:
    assert b"repair" not in cli("verify").out
    truncate(snapshots(cli, "run:r1")[-1])
    assert b"next: `stateline repair`" in cli("verify").out
    assert b"next: `stateline repair run:r1`" in cli("verify", "run:r1").out


def test_help_lists_the_exit_codes(cli: Cli) -> None:
    result = cli("repair", "--help")
    text = " ".join(result.out.decode().split())
    assert result.code == 0
    assert "Exit codes: 0 " in text
    assert "5 integrity" in text


def test_a_malformed_key_is_a_usage_error_and_an_unknown_scope_is_not_found(cli: Cli, machine: str) -> None:
    assert cli.refused("repair", "r1", exits=64)["code"] == "usage"
    assert cli.refused("repair", "run:none", "--apply", exits=1)["code"] == "not_found"


def test_an_absent_store_needs_no_repair_and_stays_absent(cli: Cli) -> None:
    assert cli.json("repair", "--apply")["ok"]
    assert not Path(cli.state).exists()


def test_a_lock_that_is_held_stops_the_repair_of_its_scope_alone(cli: Cli, machine: str) -> None:
    from stateline import Store

    key = "context:demo"
    cli.json("run", "--state-scope", "demo", "--system", "one")
    alter(scope_of(cli, key) / "latest.json")
    alter(scope_of(cli, "run:r1") / "latest.json")
    import threading

    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with Store.open(cli.state).scope(key).locked():
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(30)
        result = cli.json("repair", "--apply", "--wait", "0.1", exits=4)
    finally:
        done.set()
        thread.join()
    assert [blocked["code"] for blocked in result["blocked"]] == ["locked"]
    assert cli.json("verify", "run:r1")["ok"]
    assert cli.json("repair", "--apply")["ok"]


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_continues_after_its_head_was_lost_and_a_repeatable_task_keeps_its_key(cli: Cli, machine: str) -> None:
    """The lost snapshot had ended ``b``; ``b`` runs again, as one that may, by the key of its first attempt."""
    before = event(cli, "run:r1")
    truncate(snapshots(cli, "run:r1")[-1])
    cli.json("repair", "--apply")
    now = event(cli, "run:r1")
    assert (now["type"], now["stage"], now["run"], now["turn"]) == ("repaired", "b", "r1", 1)
    assert now["birth"] != before["birth"]
    result = cli.json("execute", machine)
    assert (result["run"], result["status"]) == ("r1", "complete")
    ran = [line.split() for line in cli.ran()]
    assert [name for name, _ in ran] == ["a", "b", "b", "c"]
    keys = [key for _, key in ran]
    assert keys[1] == keys[2]
    assert len({*keys}) == 3
    reasons = [row["reason"] for row in cli.json("exec", "history", "r1")["history"]]
    assert reasons == ["start", "default", "repaired", "default", "complete"]


def test_keys_are_not_given_twice_although_numbers_are(cli: Cli, task: Task) -> None:
    """The third snapshot is lost, and with it the number under which ``b``'s key would have been made."""
    machine = cli.machine(**steps(task))
    for _ in range(3):
        cli.json("execute", "-i", machine, "--id", "r1", exits=2 if _ == 2 else 0)
    for path in snapshots(cli, "run:r1")[-2:]:
        truncate(path)
    cli.json("repair", "--apply")
    cli.json("execute", machine)
    ran = [line.split() for line in cli.ran()]
    assert [name for name, _ in ran] == ["a", "b", "c", "b", "c"]
    first_c, second_c = ran[2][1], ran[4][1]
    assert first_c != second_c


def test_an_effect_that_may_have_been_performed_waits_for_word(cli: Cli, task: Task) -> None:
    """Not repeatable, and what came after its snapshot is lost: it may have run, so it is not run unasked."""
    machine = cli.machine(**steps(task, repeatable=False))
    cli.json("execute", "-i", machine, "--id", "r1")
    # `intended` and `succeeded` of b.
    cli.json("execute", "-i", machine)
    for path in snapshots(cli, "run:r1")[-2:]:
        truncate(path)
    cli.json("repair", "--apply")
    assert event(cli, "run:r1")["effect"]["doubtful"] is True
    plan = cli.json("execute", machine, "--dry-run")
    assert (plan["exit"], plan["plan"]["effects"]) == (3, [])
    result = cli.json("execute", machine, exits=3)
    assert result["waiting"]["kind"] == "unknown_outcome"
    assert result["stage"] == "b"
    assert [line.split()[0] for line in cli.ran()] == ["a", "b"]
    assert cli.json("execute", machine, exits=3)["head"] == result["head"]
    done = cli.json("exec", "resume", "r1", "--answer", '{"of": "b"}')
    assert (done["status"], done["outputs"]["b"]) == ("complete", {"of": "b"})
    assert [line.split()[0] for line in cli.ran()] == ["a", "b", "c"]


def test_the_operator_reports_what_became_of_it(cli: Cli, task: Task) -> None:
    failures = Failures()
    for words in [["--retry"], ["--answer", '"said"']]:
        with failures.case(words), cli.fresh():
            machine = cli.machine(**steps(task, repeatable=False))
            for _ in range(2):
                cli.json("execute", "-i", machine, "--id", "r1")
            for path in snapshots(cli, "run:r1")[-2:]:
                truncate(path)
            cli.json("repair", "--apply")
            if "--answer" in words:
                assert cli.refused("exec", "resume", "r1", *words, exits=1)["code"] == "no_open_request"
                cli.json("exec", "resume", "r1", exits=3)
            done = cli.json("exec", "resume", "r1", *words)
            assert done["status"] == "complete"
            ran = [line.split()[0] for line in cli.ran()]
            assert ran == (["a", "b", "b", "c"] if words == ["--retry"] else ["a", "b", "c"])
    failures.check()


def test_a_doubt_outlives_a_change_of_the_machine(cli: Cli, task: Task) -> None:
    machine = cli.machine(**steps(task, repeatable=False))
    for _ in range(2):
        cli.json("execute", "-i", machine, "--id", "r1")
    for path in snapshots(cli, "run:r1")[-2:]:
        truncate(path)
    cli.json("repair", "--apply")
    document = json.loads(Path(machine).read_text())
    Path(machine).write_text(json.dumps(document, indent=1))
    assert cli.json("execute", machine, "--accept-change", exits=3)["waiting"]["kind"] == "unknown_outcome"
    assert len(cli.ran()) == 2


def test_a_run_that_lost_nothing_newer_is_not_in_doubt(cli: Cli, task: Task) -> None:
    machine = cli.machine(**steps(task, repeatable=False))
    cli.json("execute", "-i", machine, "--id", "r1")
    truncate(snapshots(cli, "run:r1")[0])
    result = cli.json("repair", "--apply")
    assert result["warnings"] == []
    assert cli.json("execute", machine)["status"] == "complete"
    assert [line.split()[0] for line in cli.ran()] == ["a", "b", "c"]


def test_an_answer_that_is_lost_is_asked_for_again_under_the_same_request(cli: Cli, task: Task) -> None:
    machine = cli.machine(ask={"human": {"prompt": "Ship?"}, "default_next": "a"}, a=task("echo 1"))
    request = cli.json("execute", machine, "--id", "r1", exits=3)["waiting"]["requestId"]
    cli.json("execute", "-i", machine, "--answer", '"yes"')
    truncate(snapshots(cli, "run:r1")[-1])
    cli.json("repair", "--apply")
    waiting = cli.json("exec", "status", "r1")["interrupts"]
    assert [one["requestId"] for one in waiting] == [request]
    answer = json.dumps({"requestId": request, "answer": "yes"})
    assert cli.json("execute", machine, "--answer", answer)["status"] == "complete"


def test_a_failed_run_that_was_repaired_is_still_failed_and_can_be_retried(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("test -e good && echo 2"))
    cli.json("execute", machine, "--id", "r1", exits=1)
    alter(scope_of(cli, "run:r1") / "latest.json")
    cli.json("repair", "--apply")
    failed = cli.json("execute", machine, exits=1)
    assert (failed["error"]["kind"], failed["reason"]) == ("exit", "exit")
    (cli.home / "good").write_text("")
    assert cli.json("exec", "resume", "r1", "--retry")["status"] == "complete"


def test_a_lost_machine_record_is_repaired_and_the_last_run_is_found(cli: Cli, task: Task) -> None:
    machine = cli.machine(**steps(task))
    cli.json("execute", "-i", machine, "--id", "r1")
    cli.json("execute", "-i", machine, "--id", "r2")
    record = next(
        path for path in Path(cli.state).glob("*/latest.json") if b"" in path.read_bytes() and _is_record(path)
    )
    alter(record)
    assert cli.refused("execute", machine, exits=5)["code"] == "integrity"
    cli.json("repair", "--apply")
    assert cli.json("execute", machine)["run"] == "r2"


def _is_record(pointer: Path) -> bool:
    head = pointer.parent / json.loads(pointer.read_bytes())["path"]
    return bool(json.loads(head.read_bytes())["kind"] == "machine")


def test_a_lost_object_takes_a_run_back_and_log_and_show_name_the_repair(cli: Cli, task: Task) -> None:
    script = "head -c 9000 /dev/zero | tr '\\0' x | sed 's/^/\"/; s/$/\"/'"
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task(script, default_next="c"), c=task("echo 3"))
    for _ in range(2):
        cli.json("execute", "-i", machine, "--id", "r1")
    table = cli.json("show", "run:r1")["objects"]
    sha = table["/outputs/b"]["sha256"]
    (Path(cli.state) / naming.object_path(sha)).unlink()
    for words in (["execute", machine], ["exec", "resume", "r1"], ["exec", "show", "r1"]):
        error = cli.refused(*words, exits=5)
        assert snapshots(cli, "run:r1")[1].name in error["message"], words
        assert "stateline repair run:r1" in error["hint"]
    done = cli.json("repair", "--apply")
    assert {lost["sha256"] for lost in done["lost"]} >= {sha}
    assert [row["seq"] for row in cli.json("log", "run:r1")["snapshots"]] == [3, 2, 1, 0]
    error = cli.refused("show", "run:r1@2", "--resolve", exits=5)
    assert "missing" in error["message"]
    assert "run:r1@3" in error["message"]
    assert cli.json("execute", machine)["status"] == "complete"


# -- contexts, and what writers say ------------------------------------------------------------------------------------


def test_a_run_whose_context_is_lost_for_good_says_so_and_starts_again_by_force(cli: Cli, task: Task) -> None:
    cli.json("run", "--state-scope", "demo", "--system", "one")
    cli.json("run", "--state-scope", "demo", "--refine-text", "two")
    path = str(cli.machine(**steps(task)))
    cli.json("execute", "-i", path, "--id", "r1", "--state-scope", "demo")
    alter(snapshots(cli, "context:demo")[-1])
    cli.json("repair", "--apply")
    error = cli.refused("execute", path, "--id", "r1", exits=5)
    assert "the context with which the run started cannot be read" in error["message"]
    assert "--force" in error["hint"]
    assert cli.json("execute", path, "--id", "r1", "--force", "--state-scope", "demo")["status"] == "complete"


def test_a_context_continues_from_its_newest_intact_refinement(cli: Cli) -> None:
    cli.json("run", "--state-scope", "demo", "--system", "one")
    for text in ("two", "three"):
        cli.json("run", "--state-scope", "demo", "--refine-text", text)
    damaged = snapshots(cli, "context:demo")[-1]
    truncate(damaged)
    error = cli.refused("run", "--state-scope", "demo", "--refine-text", "four", exits=5)
    assert snapshots(cli, "context:demo")[-2].name in error["message"]
    assert "stateline repair context:demo" in error["hint"]
    cli.json("repair", "context:demo", "--apply")
    assert event(cli, "context:demo")["text"] == "two"
    cli.json("run", "--state-scope", "demo", "--refine-text", "four")
    assert cli.json("show", "context:demo", "--resolve")["state"]["prompts"]["developer"] == ["two", "four"]
    assert cli.json("verify")["ok"]


def _lose_pointer(scope: Path, files: list[Path]) -> None:
    (scope / "latest.json").unlink()


def _alter_pointer(scope: Path, files: list[Path]) -> None:
    alter(scope / "latest.json")


def _lose_head(scope: Path, files: list[Path]) -> None:
    files[-1].unlink()


def _truncate_head(scope: Path, files: list[Path]) -> None:
    truncate(files[-1])


def _alter_head(scope: Path, files: list[Path]) -> None:
    alter(files[-1])


def _enlarge_head(scope: Path, files: list[Path]) -> None:
    os.truncate(files[-1], 17 << 20)


def _misplace_head(scope: Path, files: list[Path]) -> None:
    files[-1].write_bytes(files[0].read_bytes())


def test_a_writer_that_meets_damage_names_what_is_left_and_the_way_out(task: Task, cli: Cli) -> None:
    failures = Failures()
    for harm in [_lose_pointer, _alter_pointer, _lose_head, _truncate_head, _alter_head, _enlarge_head, _misplace_head]:
        with failures.case(harm), cli.fresh():
            machine = make_machine(cli, task)
            cli.json("run", "--state-scope", "demo", "--system", "one")
            cli.json("run", "--state-scope", "demo", "--refine-text", "two")
            for key, words in (
                ("run:r1", ["execute", machine]),
                ("context:demo", ["run", "--state-scope", "demo", "--refine-text", "three"]),
            ):
                files = snapshots(cli, key)
                harm(scope_of(cli, key), files)
                before = cli.tree()
                error = cli.refused(*words, exits=5)
                assert f"stateline repair {key}" in error["hint"], words
                if key.startswith("run:"):
                    assert cli("exec", "list").code == 5
                left = files[-1] if harm in (_lose_pointer, _alter_pointer) else files[-2]
                assert left.name in error["message"], words
                after = cli.tree()
                assert {path: after[path][-1] for path in after} == {path: before[path][-1] for path in before}
                assert cli.json("repair", key, "--apply")["ok"]
    failures.check()


def test_a_pointer_that_is_a_fifo_is_refused_as_unsafe_and_repaired(cli: Cli, machine: str) -> None:
    pointer = scope_of(cli, "run:r1") / "latest.json"
    pointer.unlink()
    os.mkfifo(pointer)
    assert call(["execute", machine]) == 6
    assert cli.json("repair", "--apply")["ok"]
    assert cli.json("execute", machine)["status"] == "complete"


def test_a_state_dir_that_is_a_link_is_reported_and_never_moved(cli: Cli, machine: str) -> None:
    real = Path(cli.state).with_name("real")
    Path(cli.state).rename(real)
    Path(cli.state).symlink_to(real)
    plan = cli.json("repair", exits=5)
    assert ([blocked["code"] for blocked in plan["blocked"]], plan["actions"]) == (["symlink"], [])
    assert cli.refused("repair", "--apply", exits=6)["code"] == "unsafe"
    assert Path(cli.state).is_symlink()
    assert not [*real.glob("ext-*")]
