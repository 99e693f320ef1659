"""Which run a call of ``execute`` means, how it begins and goes on, and what a changed machine does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_line import Cli, Task
from each_case import Failures

END: dict[str, Any] = {"end": {}}
ASK: dict[str, Any] = {"human": {"prompt": "?"}}


def two(cli: Cli, task: Task, name: str = "m") -> str:
    return str(cli.machine(name, a=task("echo a >> ran; echo 1", default_next="b"), b=task("echo b >> ran; echo 2")))


def snapshots(cli: Cli, run: str) -> list[Any]:
    return list(cli.json("log", f"run:{run}")["snapshots"])[::-1]


def test_a_new_run_has_a_generated_id_and_the_file_is_its_machine(cli: Cli, task: Task) -> None:
    import re

    run = cli.json("execute", "-i", two(cli, task))["run"]
    assert re.fullmatch(r"exec-\d{8}-\d{6}-[0-9a-f]{4}", run)
    status = cli.json("exec", "status")
    assert (status["run"], status["machine"], status["turn"]) == (run, "m", 1)


def test_an_unfinished_run_continues_and_a_finished_one_is_followed_by_a_new_one(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    first = cli.json("execute", "-i", machine)
    second = cli.json("execute", "-i", machine, exits=2)
    assert second["run"] == first["run"]
    assert cli.ran() == ["a", "b"]
    third = cli.json("execute", "-i", machine)
    assert third["run"] != first["run"]
    assert third["turn"] == 1


def test_two_machine_files_in_one_store_do_not_meet(cli: Cli, task: Task) -> None:
    one, other = two(cli, task, "one"), two(cli, task, "other")
    first = cli.json("execute", "-i", one)["run"]
    second = cli.json("execute", "-i", other)["run"]
    assert first != second
    assert cli.json("execute", "-i", one, exits=2)["run"] == first
    assert cli.json("execute", "-i", other, exits=2)["run"] == second


def test_one_file_is_one_machine_through_a_symlink_or_a_relative_path(cli: Cli, task: Task) -> None:
    machine = cli.machine(**{f"s{n}": task("echo 1", default_next=f"s{n + 1}") for n in range(3)}, s3=END)
    run = cli.json("execute", "-i", machine)["run"]
    link = cli.home / "link.json"
    link.symlink_to(machine)
    cli.monkeypatch.chdir(cli.home)
    assert cli.json("execute", "-i", str(link))["run"] == run
    assert cli.json("execute", "-i", "m.json", exits=2)["run"] == run


def test_a_copy_of_a_file_is_another_machine(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    run = cli.json("execute", "-i", machine)["run"]
    copy = cli.home / "copy.json"
    copy.write_bytes(Path(machine).read_bytes())
    assert cli.json("execute", "-i", str(copy))["run"] != run


def test_a_removed_run_is_skipped(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    first = cli.json("execute", "-i", machine)["run"]
    second = cli.json("execute", "-i", machine, "--id", "second")["run"]
    cli.json("exec", "rm", second)
    assert cli.json("execute", "-i", machine, exits=2)["run"] == first
    cli.json("exec", "rm", first)
    assert cli.json("execute", "-i", machine)["run"] not in (first, second)


def test_a_record_whose_run_never_began_is_skipped(cli: Cli, task: Task) -> None:
    from stateline import Store

    machine = two(cli, task)
    first = cli.json("execute", "-i", machine)["run"]
    key = f"machine:{hashlib.sha256(os.fsencode(os.path.realpath(machine))).hexdigest()}"
    Store.open(cli.state).scope(key).save({}, event={"type": "run_started", "run": "never"})
    assert cli.json("execute", "-i", machine, exits=2)["run"] == first


def test_the_machine_scope_records_a_run_before_its_first_snapshot(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine, "--id", "r1")
    key = f"machine:{hashlib.sha256(os.fsencode(os.path.realpath(machine))).hexdigest()}"
    (record,) = cli.json("log", key)["snapshots"]
    assert record["event"]["run"] == "r1"
    assert record["created_at"] < snapshots(cli, "r1")[0]["created_at"]


def test_a_while_loop_of_turns_ends(cli: Cli, task: Task) -> None:
    again = {"routes": [{"when": "visits['a'] < 3", "to": "a"}], "default_next": "b"}
    machine = cli.machine(a=task("echo a >> ran; echo 1", **again), b=task("echo b >> ran; echo 2"))
    turn = '"$0" -m stateline execute -i "$1" --id r > /dev/null'
    script = f"n=0; while {turn}; do n=$((n+1)); done; echo $n; {turn}; echo $?"
    done = subprocess.run(["sh", "-c", script, sys.executable, machine], capture_output=True, timeout=60)
    assert done.stdout == b"3\n2\n"
    assert cli.ran() == ["a", "a", "a", "b"]


def test_isolated_turns_end_in_the_same_state_as_one_call_byte_for_byte(cli: Cli, task: Task) -> None:
    machine = cli.machine(
        a=task('echo "{\\"n\\": 3}"', set={"n": "output.n"}, default_next="b"),
        b=task("echo 5", retry={"max_attempts": 2}, routes=[{"when": "visits['b'] < 3", "to": "a"}], default_next="c"),
        c=task("echo why >&2; false", error_next="d"),
        d=END,
    )
    whole = cli.json("execute", machine, "--id", "whole")
    turns = 1
    while cli("execute", "-i", machine, "--id", "parts").code == 0:
        turns += 1
    assert turns == whole["turn"] == 7
    states = [
        cli("show", f"run:{run}", "--resolve", "--format", "json").document["state"] for run in ("whole", "parts")
    ]
    assert states[0] == states[1]
    objects = [cli.json("show", f"run:{run}") for run in ("whole", "parts")]
    assert json.dumps(objects[0]["state"]) == json.dumps(objects[1]["state"])
    assert objects[0]["objects"] == objects[1]["objects"]


def test_every_event_of_a_run_has_its_start_and_turn(cli: Cli, task: Task) -> None:
    cli.json("execute", two(cli, task), "--id", "r1")
    events = [row["event"] for row in snapshots(cli, "r1")]
    assert [event["turn"] for event in events] == [0, 1, 2]
    assert len({event["started_at"] for event in events}) == 1
    assert [event["transitions"][0]["reason"] for event in events] == ["start", "default", "complete"]
    assert events[1]["transitions"] == [{"from": "a", "to": "b", "reason": "default", "iteration": 0, "edge_count": 1}]


def test_an_id_names_a_new_an_unfinished_and_a_complete_run(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    assert cli.json("execute", "-i", machine, "--id", "mine")["run"] == "mine"
    assert cli.json("execute", "-i", machine, "--id", "mine", exits=2)["turn"] == 2
    tree = cli.tree()
    assert cli.json("execute", machine, "--id", "mine")["turn"] == 2
    assert cli.json("execute", "-i", machine, "--id", "mine", exits=2)["turn"] == 2
    assert cli.tree() == tree


def test_a_failed_run_fails_again_until_it_is_retried(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo a >> ran; test -e ok && echo 1", default_next="b"), b=task("echo 2"))
    failed = cli.json("execute", machine, "--id", "mine", exits=1)
    tree = cli.tree()
    for words in (["execute", machine], ["execute", machine, "--id", "mine"], ["execute", "-i", machine]):
        assert cli.json(*words, exits=1) == failed
    assert cli.json("exec", "resume", "mine", exits=1) == failed
    assert cli.tree() == tree
    assert cli.ran() == ["a"]
    (cli.home / "ok").touch()
    assert cli.json("exec", "resume", "mine", "--retry")["status"] == "complete"
    assert cli.ran() == ["a", "a"]


def test_force_without_an_id_starts_another_run(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    first = cli.json("execute", "-i", machine)
    second = cli.json("execute", "-i", machine, "--force")
    assert second["run"] != first["run"]
    assert cli.json("exec", "status", first["run"])["head"] == first["head"]


def test_force_with_an_id_starts_again_on_the_same_chain_and_deletes_nothing(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", machine, "--id", "mine")
    before = snapshots(cli, "mine")
    document = cli.json("execute", "-i", machine, "--id", "mine", "--force")
    assert (document["run"], document["turn"], document["outputs"]) == ("mine", 1, {"a": 1})
    after = snapshots(cli, "mine")
    assert [row["sha"] for row in after[:3]] == [row["sha"] for row in before]
    assert [row["seq"] for row in after] == [0, 1, 2, 3, 4]
    assert after[3]["prev_sha"] == before[-1]["sha"]
    assert cli.json("verify")["findings"] == []
    assert cli.ran() == ["a", "b", "a"]


def test_several_live_runs_are_a_warning(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine, "--id", "first")
    assert cli.json("execute", "-i", machine, "--id", "first", exits=2)["warnings"] == []
    cli.json("execute", "-i", machine, "--id", "second")
    third = cli("execute", "-i", machine, "--force")
    assert "second" in third.err
    assert "first" not in third.err
    warnings = cli.json("execute", "-i", machine, exits=2)["warnings"]
    assert len(warnings) == 1
    assert "second" in warnings[0]


def test_another_run_that_is_damaged_does_not_stop_this_one(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine, "--id", "broken")
    cli.json("execute", "-i", machine, "--id", "sound")
    scope = hashlib.sha256(b"run:broken").hexdigest()
    (cli.state / scope / "latest.json").write_bytes(b"{")
    assert cli.json("execute", "-i", machine, "--id", "sound", exits=2)["status"] == "complete"
    assert cli.json("execute", "-i", machine, "--id", "third")["status"] == "advanced"


def test_labels_are_kept_and_count_when_a_run_begins(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine, "--label", "team=red", "--label", "why=a=b", "--label", "none=")
    assert cli.json("exec", "show")["labels"] == {"team": "red", "why": "a=b", "none": ""}
    document = cli.json("execute", "-i", machine, "--label", "team=blue", exits=2)
    assert any("--label" in warning for warning in document["warnings"])
    assert cli.json("exec", "show")["labels"]["team"] == "red"


def test_a_label_that_is_not_utf_8_is_a_usage_error(cli: Cli, task: Task) -> None:
    cli.refused("execute", two(cli, task), "--label", "a=\udcff", exits=64)
    assert not cli.state.exists()


def changed(machine: str) -> str:
    """Let the last task print another number."""
    Path(machine).write_text(Path(machine).read_text().replace("echo 2", "echo 22"))
    return machine


def test_a_changed_machine_is_an_error_with_the_difference_and_the_ways_to_proceed(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine, "--id", "mine")
    changed(machine)
    tree = cli.tree()
    for words in (["execute", machine], ["execute", "-i", machine, "--id", "mine"]):
        error = cli.refused(*words, exits=1)
        assert error["code"] == "machine_changed"
        (line,) = error["message"].splitlines()[1:]
        assert line == '  ~ stages.b.task[2]  "echo b >> ran; echo 2" -> "echo b >> ran; echo 22"'
        for way in ("--id mine --force", "--id NEW", "--id mine --accept-change"):
            assert f"execute '{machine}' {way}" in error["hint"]
    assert cli.tree() == tree
    assert cli.json("exec", "resume", "-i", "mine", exits=2)["status"] == "complete"


def test_each_way_out_of_a_changed_machine_works(cli: Cli, task: Task) -> None:
    failures = Failures()
    for way in ["--force", "--id", "--accept-change"]:
        with failures.case(way), cli.fresh():
            machine = two(cli, task)
            cli.json("execute", "-i", machine, "--id", "mine")
            changed(machine)
            document = cli.json("execute", machine, way, *(["new"] if way == "--id" else []))
            assert (document["run"] == "mine") == (way == "--accept-change")
            assert document["status"] == "complete"
    failures.check()


LAYOUT = """\
stateline: 1
name: m
stages:
  a: {task: [sh, -c, "echo 1"], repeatable: true, default_next: ask}
  ask: {human: {prompt: "Go on?"}, default_next: b}
  b: {task: [sh, -c, "echo 2"], repeatable: true}
"""
RELAID = """\
# Nothing but a comment, another layout, and a default written out.
name: m
stateline: 1
stages:
  a:
    task: ["sh", "-c", 'echo 1']
    repeatable: true
    default_next: ask
  ask: {human: {prompt: Go on?}, default_next: b, routes: []}
  b: {repeatable: true, task: [sh, -c, "echo 2"]}
"""


def test_an_edit_of_comments_or_layout_is_not_a_change(cli: Cli) -> None:
    machine = cli.home / "m.yaml"
    machine.write_text(LAYOUT)
    cli.json("execute", "-i", str(machine), "--id", "mine", exits=3)
    machine.write_text(RELAID)
    tree = cli.tree()
    assert cli.json("execute", str(machine), "--accept-change", exits=3)["warnings"] == []
    assert cli.tree() == tree, "there was nothing to accept"
    assert cli.json("execute", str(machine), exits=3)["waiting"]["prompt"] == "Go on?"
    machine.write_text(RELAID.replace("echo 2", "echo 22"))
    assert cli.refused("execute", str(machine), exits=1)["code"] == "machine_changed"
    machine.write_text(RELAID)
    waits = cli.json("execute", str(machine), exits=3)["waiting"]
    answer = json.dumps({"requestId": waits["requestId"], "answer": True})
    assert cli.json("execute", str(machine), "--no-input", exits=3)["run"] == "mine"
    assert cli.json("execute", str(machine), stdin=answer.encode())["outputs"] == {"a": 1, "ask": True, "b": 2}
    assert cli.json("execute", "-i", str(machine), "--id", "mine", exits=2)["warnings"] == []
    assert not [row for row in snapshots(cli, "mine") if row["event"]["type"] == "replaced"]
    source = cli("show", "run:mine", "--format", "json").document["objects"]["/machine/source"]["sha256"]
    assert source == hashlib.sha256(LAYOUT.encode()).hexdigest(), "the exact bytes of the start"
    assert cli.json("verify")["findings"] == []


def test_the_exact_bytes_of_an_accepted_change_are_kept(cli: Cli) -> None:
    machine = cli.home / "m.yaml"
    machine.write_text(LAYOUT)
    cli.json("execute", "-i", str(machine), "--id", "mine", exits=3)
    machine.write_text(RELAID.replace("echo 2", "echo 22"))
    cli.json("execute", str(machine), "--accept-change", exits=3)
    document = cli("show", "run:mine", "--format", "json").document
    source = document["objects"]["/machine/source"]["sha256"]
    assert source == hashlib.sha256(machine.read_bytes()).hexdigest() == document["event"]["machine"]["sha256"]


def test_a_moved_machine_with_other_comments_is_the_same_machine(cli: Cli) -> None:
    first, second = cli.home / "m.yaml", cli.home / "n.yaml"
    first.write_text(LAYOUT)
    second.write_text(RELAID)
    cli.json("execute", "-i", str(first), "--id", "mine", exits=3)
    assert cli.json("execute", str(second), "--id", "mine", exits=3)["warnings"] == []
    document = cli("show", "run:mine", "--format", "json").document
    assert document["event"]["machine"]["path"] == str(second)
    assert document["event"]["machine"]["sha256"] == document["objects"]["/machine/source"]["sha256"]
    assert cli.json("verify")["findings"] == []


def test_the_difference_of_two_machines_is_bounded(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", set={"all": "output"}), _state={"x": "old " * 100, "gone": 1})
    cli.json("execute", machine, "--id", "mine")
    stages = {f"s{number}": END for number in range(20)}
    cli.machine(a=task("echo 1", set={"all": "output"}, default_next="s1"), _state={"x": "old " * 99 + "new"}, **stages)
    lines = cli.refused("execute", machine, "--id", "mine", exits=1)["message"].splitlines()[1:]
    assert len(lines) == 10
    assert all(len(line) <= 80 for line in lines)
    assert "more changes" in lines[-1]


def test_an_accepted_change_is_recorded(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    before = hashlib.sha256(Path(machine).read_bytes()).hexdigest()
    cli.json("execute", "-i", machine, "--id", "mine")
    changed(machine)
    after = hashlib.sha256(Path(machine).read_bytes()).hexdigest()
    document = cli.json("execute", "-i", machine, "--accept-change", exits=2)
    assert document["outputs"] == {"a": 1, "b": 22}
    (event,) = [row["event"] for row in snapshots(cli, "mine") if row["event"]["type"] == "replaced"]
    assert event["replaced"] == {"from": before, "to": after}
    assert cli.json("verify")["findings"] == []


def test_a_change_that_is_gone_again_needs_no_acceptance(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine)
    assert cli.json("execute", "-i", machine, "--accept-change", exits=2)["status"] == "complete"
    assert not [row for row in snapshots(cli, cli.json("exec", "status")["run"]) if row["event"]["type"] == "replaced"]


def test_a_change_that_lacks_the_stage_is_refused(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine)
    cli.machine(a=task("echo 1"), c=END)
    tree = cli.tree()
    error = cli.refused("execute", machine, "--accept-change", exits=1)
    assert error["code"] == "machine_changed"
    assert "'b'" in error["message"]
    assert {p: t[4] for p, t in cli.tree().items() if p.endswith((".json", "ran"))} == {
        p: t[4] for p, t in tree.items() if p.endswith((".json", "ran"))
    }


def test_a_changed_machine_with_mistakes_is_refused_with_all_of_them(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine)
    cli.machine(a=task("echo 1", default_next="nowhere"), b={"task": []})
    tree = cli.tree()
    error = cli.refused("execute", machine, "--accept-change", exits=1)
    assert error["code"] == "machine_invalid"
    assert "nowhere" in error["message"] + error["hint"]
    assert cli.tree() == tree


def test_a_complete_run_of_a_machine_that_changed_since_is_not_taken_for_one_of_the_new_one(
    cli: Cli, task: Task
) -> None:
    machine = two(cli, task)
    first = cli.json("execute", machine, "--id", "mine")
    changed(machine)
    tree = cli.tree()
    error = cli.refused("execute", machine, "--id", "mine", exits=1)
    assert error["code"] == "machine_changed"
    assert "stages.b.task[2]" in error["message"]
    assert all(way in error["hint"] for way in ("exec show mine", "--accept-change", "--force", "--id NEW"))
    accepted = cli.json("execute", machine, "--id", "mine", "--accept-change")
    assert "Nothing was run" in accepted.pop("warnings")[0]
    assert accepted == {name: value for name, value in first.items() if name != "warnings"}
    assert cli.json("execute", "-i", machine, "--id", "mine", "--accept-change", exits=2)["run"] == "mine"
    assert cli.tree() == tree
    assert cli.json("exec", "show", "mine")["output"] == first["output"]
    assert cli.json("execute", machine)["run"] != "mine"
    assert cli.json("execute", machine, "--id", "mine", "--force")["head"] != first["head"]


def test_a_demanded_head_that_is_right_is_accepted(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    head = cli.json("execute", "-i", machine, "--id", "mine")["head"]
    assert cli.json("execute", machine, "--parent", head)["status"] == "complete"
    assert cli.ran() == ["a", "b"]


def test_a_demanded_head_that_is_stale_is_a_conflict_and_nothing_happens(cli: Cli, task: Task) -> None:
    failures = Failures()
    for words in [
        ["execute", "-i", "MACHINE"],
        ["execute", "MACHINE"],
        ["execute", "MACHINE", "--accept-change"],
        ["execute", "MACHINE", "--id", "mine", "--force"],
        ["execute", "MACHINE", "--force"],
        ["execute", "MACHINE", "--id", "new"],
        ["exec", "resume", "mine"],
    ]:
        with failures.case(words), cli.fresh():
            machine = two(cli, task)
            cli.json("execute", "-i", machine, "--id", "mine")
            if "--accept-change" in words:
                Path(machine).write_text(
                    Path(machine).read_text().replace('"stages"', '"bounds": {"timeout": 99}, "stages"')
                )
            before = cli.tree()
            words = [machine if word == "MACHINE" else word for word in words]
            assert cli.refused(*words, "--parent", "run:mine~1", exits=4)["code"] == "conflict"
            assert files(cli.tree()) == files(before)
            assert cli.ran() == ["a"]
    failures.check()


def files(tree: dict[str, Any]) -> dict[str, Any]:
    """Names and bytes, without the locks that a writer may leave."""
    return {path: row[4] for path, row in tree.items() if row[4]}


def test_a_demanded_head_counts_although_nothing_is_to_be_done(cli: Cli, task: Task) -> None:
    failures = Failures()
    for status in ["waiting", "error", "complete"]:
        with failures.case(status), cli.fresh():
            last = {"waiting": ASK, "error": task("false"), "complete": END}[status]
            machine = cli.machine(a=task("echo 1", default_next="b"), b=last)
            code = {"waiting": 3, "error": 1, "complete": 0}[status]
            head = cli.json("execute", machine, "--id", "mine", exits=code)["head"]
            for words in (["execute", machine, "--id", "mine"], ["exec", "resume", "mine"]):
                assert cli.json(*words, "--parent", head, exits=code)["head"] == head
                assert cli.refused(*words, "--parent", "run:mine~1", exits=4)["code"] == "conflict"
    failures.check()


def test_a_demanded_head_holds_for_an_accepted_change(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    head = cli.json("execute", "-i", machine, "--id", "mine")["head"]
    Path(machine).write_text(Path(machine).read_text().replace('"stages"', '"bounds": {"timeout": 99}, "stages"'))
    assert cli.json("execute", machine, "--accept-change", "--parent", head)["status"] == "complete"


def test_a_demanded_head_holds_for_a_restart(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    head = cli.json("execute", "-i", machine, "--id", "mine")["head"]
    assert cli.json("execute", machine, "--id", "mine", "--force", "--parent", head)["status"] == "complete"


def test_a_demanded_head_that_is_nowhere_is_not_found(cli: Cli, task: Task) -> None:
    machine = two(cli, task)
    cli.json("execute", "-i", machine)
    assert cli.refused("execute", machine, "--parent", "run:nobody", exits=1)["code"] == "not_found"


def test_the_environment_of_a_task_is_what_the_machine_passes(cli: Cli) -> None:
    cli.monkeypatch.setenv("PASSED_ON", "1")
    cli.monkeypatch.setenv("KEPT_BACK", "1")
    script = 'echo "[\\"$PASSED_ON\\", \\"$KEPT_BACK\\"]"'
    machine = cli.machine(a={"task": ["sh", "-c", script], "env": ["PASSED_ON"]})
    assert cli.json("execute", machine)["output"] == ["1", ""]


def test_a_task_gets_one_document_with_what_the_contract_lists(cli: Cli, task: Task) -> None:
    machine = cli.machine(_state={"n": 1}, a=task("cat", default_next="b"), b=task("cat"))
    document = cli.json("execute", machine, "--id", "mine", "--input", '{"x": 1}')
    seen = document["outputs"]["b"]
    assert seen.keys() >= {"input", "state", "outputs", "context", "stage", "run", "attempt", "idempotency_key"}
    assert (seen["input"], seen["state"], seen["context"]) == ({"x": 1}, {"n": 1}, None)
    assert (seen["stage"], seen["run"], seen["attempt"]) == ("b", "mine", 1)
    assert seen["outputs"]["a"]["stage"] == "a"
    keys = {seen["idempotency_key"], seen["outputs"]["a"]["idempotency_key"]}
    assert len(keys) == 2
    assert all(key.startswith("mine:") for key in keys)


def test_six_processes_on_one_run_perform_each_task_once(cli: Cli, task: Task) -> None:
    stages = {f"s{n}": task(f"echo {n} >> ran; echo {n}", default_next=f"s{n + 1}") for n in range(5)}
    machine = cli.machine(**stages, s5=END)
    processes = [cli.start("execute", machine, "--id", "mine") for _ in range(6)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 6
    for process in processes:
        process.communicate()
    assert cli.ran() == ["0", "1", "2", "3", "4"]
    assert cli.json("verify")["findings"] == []


def test_two_processes_without_an_id_start_one_run(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo a >> ran; sleep 0.3; echo 1"))
    processes = [cli.start("execute", machine) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=60)
    assert len(cli.json("exec", "list")["runs"]) == len(cli.ran())
