"""One exit code for each way a call can end, and exactly one JSON document whatever the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures

END: dict[str, Any] = {"end": {}}
ASK: dict[str, Any] = {"human": {"prompt": "Ship it?"}}
DOCUMENT = {"run", "status", "stage", "turn", "head", "output", "outputs", "reason", "waiting", "warnings"}

WORDS_THAT_ARE_NO_COMMAND = [
    [],
    ["nonsense"],
    ["exec"],
    ["exec", "nonsense"],
    ["machine"],
    ["execute"],
    ["execute", "--nonsense", "m.json"],
    ["execute", "m.json", "too", "many"],
    ["exec", "status", "a", "b"],
    ["exec", "rm"],
    ["--wait"],
    ["--wait", "soon", "exec", "list"],
    ["--wait", "-1", "exec", "list"],
    ["--wait", "nan", "exec", "list"],
    ["exec", "clean", "--older-than", "soon"],
    ["run", "--set", "novalue"],
    ["execute", "m.json", "--label", "novalue"],
    ["execute", "m.json", "--input", "{"],
    ["execute", "m.json", "--input", "@/does/not/exist"],
    ["\udcff"],
    ["--state-dir", "", "exec", "list"],
    ["--state-dir", "a\0b", "exec", "list"],
]


def test_a_malformed_command_line_is_exit_64_with_one_json_error(cli: Cli) -> None:
    failures = Failures()
    for words in WORDS_THAT_ARE_NO_COMMAND:
        with failures.case(words), cli.fresh():
            cli.machine(done=END)
            cli.monkeypatch.chdir(cli.home)
            cli.monkeypatch.setenv("STATELINE_FORMAT", "json")
            result = cli(*words)
            assert result.code == 64
            assert result.error["code"] == "usage"
            assert not cli.state.exists()
    failures.check()


def test_a_malformed_command_line_prints_nothing_on_stdout_as_text(cli: Cli) -> None:
    failures = Failures()
    for words in WORDS_THAT_ARE_NO_COMMAND:
        with failures.case(words), cli.fresh():
            cli.machine(done=END)
            cli.monkeypatch.chdir(cli.home)
            result = cli(*words)
            assert (result.code, result.out) == (64, b"")
            assert result.err.strip()
            assert "Traceback" not in result.err
    failures.check()


def test_format_json_is_understood_although_the_command_is_not(cli: Cli) -> None:
    failures = Failures()
    for words in [["--format", "json", "nonsense"], ["nonsense", "--format=json"]]:
        with failures.case(words), cli.fresh():
            result = cli(*words)
            assert result.code == 64
            assert "nonsense" in result.error["message"]
    failures.check()


def test_0_a_run_that_is_done_and_one_that_advanced(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    first = cli.json("execute", "-i", machine)
    assert first.keys() >= DOCUMENT
    assert (first["status"], first["stage"], first["turn"], first["output"]) == ("advanced", "b", 1, 1)
    assert first["waiting"] is None
    last = cli.json("execute", machine)
    assert (last["status"], last["turn"], last["outputs"]) == ("complete", 2, {"a": 1, "b": 2})
    assert len(last["head"]) == 64


def test_1_a_run_that_failed_is_a_full_document_with_its_reason(cli: Cli, task: Task) -> None:
    document = cli.json("execute", cli.machine(a=task("echo why >&2; exit 7")), exits=1)
    assert document.keys() >= DOCUMENT
    assert (document["status"], document["reason"], document["stage"]) == ("error", "exit", "a")
    assert document["error"]["message"] == "why"


def test_1_an_unknown_run_scope_and_revision_are_not_found(cli: Cli) -> None:
    for words in (
        ["exec", "status", "nobody"],
        ["exec", "show", "nobody"],
        ["exec", "history", "nobody"],
        ["exec", "resume", "nobody"],
        ["exec", "rm", "nobody"],
        ["exec", "status"],
        ["log", "run:nobody"],
        ["diff", "run:nobody", "run:nobody"],
        ["show", "abcdef"],
        ["execute", "/does/not/exist.yaml"],
        ["execute", "a\0b"],
        ["machine", "check", "a\0b"],
    ):
        assert cli.refused(*words, exits=1)["code"] == "not_found", words
    assert not cli.state.exists()


def test_2_only_one_turn_at_a_time_shows_that_a_run_is_complete(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1"))
    document = cli.json("execute", "-i", machine, exits=2)
    assert document["status"] == "complete"
    run = document["run"]
    assert cli.json("execute", "-i", machine, "--id", run, exits=2)["head"] == document["head"]
    assert cli.json("exec", "resume", "-i", run, exits=2)["head"] == document["head"]
    assert cli.json("execute", machine, "--id", run)["head"] == document["head"]
    assert cli.json("exec", "resume", run)["head"] == document["head"]


def test_3_a_run_that_waits_says_what_for(cli: Cli) -> None:
    machine = cli.machine(ask={"human": {"prompt": "Go?", "schema": {"type": "boolean"}}})
    document = cli.json("execute", machine, exits=3)
    assert document.keys() >= DOCUMENT
    assert document["status"] == "waiting"
    request = document["waiting"].pop("requestId")
    assert request
    assert document["waiting"] == {"type": "human", "stage": "ask", "prompt": "Go?", "schema": {"type": "boolean"}}
    assert cli.json("execute", "-i", machine, exits=3)["waiting"]["requestId"] == request


def test_4_a_lock_that_is_held_and_a_head_that_moved(cli: Cli, task: Task) -> None:
    from stateline import Store

    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    first = cli.json("execute", "-i", machine, "--id", "r1")
    store = Store.open(cli.state)
    with store.scope("run:r1").locked():
        began = time.monotonic()
        error = cli.refused("execute", "-i", machine, "--wait", "0.2", exits=4)
        assert 0.15 < time.monotonic() - began < 60
    assert error["code"] == "locked"
    assert "--wait" in error["hint"]
    assert cli.refused("execute", "-i", machine, "--parent", "run:r1~1", exits=4)["code"] == "conflict"
    assert cli.json("exec", "status", "r1")["head"] == first["head"]


def test_5_a_damaged_head_stops_every_writer_and_names_the_newest_intact_snapshot(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    cli.json("execute", "-i", machine, "--id", "r1")
    head, before = sorted(path for path in cli.state.glob("*/state-*") if b'"kind":"run"' in path.read_bytes())[::-1]
    head.write_bytes(head.read_bytes()[:-20])
    tree = cli.tree()
    for words in (
        ["execute", machine],
        ["execute", "-i", machine],
        ["execute", machine, "--id", "r1"],
        ["execute", machine, "--id", "r1", "--force"],
        ["exec", "resume", "r1"],
        ["exec", "resume", "r1", "--retry"],
        ["exec", "status", "r1"],
        ["exec", "show", "r1"],
        ["exec", "history", "r1"],
        ["exec", "rm", "r1"],
    ):
        assert cli.refused(*words, exits=5)["code"] == "integrity", words
    assert before.name in cli.refused("execute", "-i", machine, exits=5)["message"]
    assert cli.tree() == tree


def test_6_a_state_dir_that_others_can_read_is_refused_with_the_fix(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1"))
    cli.state.mkdir(mode=0o755)
    cli.state.chmod(0o755)
    error = cli.refused("execute", machine, exits=6)
    assert error["code"] == "unsafe"
    assert "chmod 700" in error["hint"]
    assert list(cli.state.iterdir()) == []
    cli.state.rmdir()
    (cli.home / "real").mkdir(mode=0o700)
    cli.state.symlink_to(cli.home / "real")
    assert cli.refused("run", "--state-scope", "c", exits=6)["code"] == "unsafe"
    assert list((cli.home / "real").iterdir()) == []


def test_130_and_143_a_signal_ends_the_turn_with_one_document(cli: Cli, task: Task) -> None:
    failures = Failures()
    for signum, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
        with failures.case(signum, code), cli.fresh():
            machine = cli.machine(a=task("echo x >> ran; sleep 60"))
            process = cli.start("execute", machine, "--id", "r1", "--format", "json")
            deadline = time.monotonic() + 30
            while not cli.ran() and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signum)
            out, err = process.communicate(timeout=30)
            assert process.returncode == code
            assert err == b""
            assert out.count(b"\n") == 1
            assert b'"code":"interrupted"' in out
            assert json.loads(out)["error"]["run"] == "r1"
    failures.check()


def test_a_ctrl_c_before_the_turn_begins_is_130_too(cli: Cli) -> None:
    failures = Failures()
    for as_json in [False, True]:
        with failures.case(as_json), cli.fresh() as monkeypatch:
            from stateline.service import runs

            def strike(*given: Any) -> None:
                raise KeyboardInterrupt

            monkeypatch.setattr(runs, "list_runs", strike)
            result = cli("exec", "list", *(["--format", "json"] if as_json else []))
            assert result.code == 130
            assert "Traceback" not in result.err
            if as_json:
                assert result.error["code"] == "interrupted"
    failures.check()


def test_a_bug_of_ours_is_exit_1_and_no_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateline.service import runs

    def fail(*given: Any) -> None:
        raise ZeroDivisionError("oops \x1b[31m")

    monkeypatch.setattr(runs, "list_runs", fail)
    result = cli("exec", "list", "--format", "json")
    assert result.code == 1
    assert result.error["code"] == "internal"
    assert "--debug" in result.error["hint"]


def test_debug_shows_the_traceback_and_changes_nothing_else(cli: Cli) -> None:
    failures = Failures()
    for how in ["flag", "variable"]:
        with failures.case(how), cli.fresh():
            words = ["exec", "status", "nobody", "--format", "json"]
            if how == "flag":
                words.append("--debug")
            else:
                cli.monkeypatch.setenv("STATELINE_DEBUG", "1")
            result = cli(*words)
            assert result.code == 1
            assert result.document["error"]["code"] == "not_found"
            assert "Traceback" in result.err
    failures.check()


def test_debug_keeps_the_exit_code_of_a_whole_process(cli: Cli) -> None:
    result = cli.process("exec", "status", "../../x", "--debug")
    assert result.code == 64
    assert "Traceback" in result.err


def test_help_of_every_command_lists_its_exit_codes(cli: Cli) -> None:
    for words, codes in (
        (["execute"], "0 1 2 3 4 5 6 64 130"),
        (["run"], "0 1 4 5 6 64 130"),
        (["exec", "list"], "0 5 64"),
        (["exec", "status"], "0 1 5 64"),
        (["exec", "show"], "0 1 5 64"),
        (["exec", "history"], "0 1 5 64"),
        (["exec", "resume"], "0 1 2 3 4 5 6 64 130"),
        (["exec", "clean"], "0 4 5 6 64"),
        (["exec", "rm"], "0 1 4 5 6 64"),
        (["scopes"], "0 5 64"),
        (["log"], "0 1 5 64"),
        (["diff"], "0 1 5 64"),
        (["show"], "0 1 5 64"),
        (["verify"], "0 5 64"),
        (["machine", "check"], "0 1 64"),
    ):
        result = cli(*words, "--help")
        assert result.code == 0
        listed = result.out.decode().replace("\n", " ").split("Exit codes:")[1]
        for code in codes.split():
            assert f" {code} " in listed, (words, code)


def test_the_version_is_data(cli: Cli) -> None:
    from stateline import __version__

    assert cli("--version").out.decode() == f"stateline {__version__}\n"


def test_a_closed_pipe_is_quiet_and_keeps_the_exit_code(cli: Cli) -> None:
    failures = Failures()
    for words, code in [
        (["exec", "list", "--format", "json"], 0),
        (["exec", "status", "nobody", "--format", "json"], 1),
        (["--help"], 0),
        (["execute", "--help"], 0),
        (["--version"], 0),
        (["nonsense", "--format", "json"], 64),
    ]:
        with failures.case(words, code), cli.fresh():
            read, write = os.pipe()
            os.close(read)
            done = subprocess.run(
                [sys.executable, "-m", "stateline", *words], stdout=write, stderr=subprocess.PIPE, timeout=60
            )
            os.close(write)
            assert (done.returncode, done.stderr) == (code, b"")
    failures.check()


def test_a_loop_into_a_closed_pipe_ends(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    script = 'set -o pipefail; n=0; while "$0" -m stateline execute -q -i "$1" | true; do n=$((n+1)); done; echo $n'
    done = subprocess.run(["bash", "-c", script, sys.executable, machine], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"1\n", b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_behind_stdout_is_a_typed_error(cli: Cli, task: Task) -> None:
    failures = Failures()
    for format in ["text", "json"]:
        with failures.case(format), cli.fresh():
            machine = cli.machine(a=task("echo 1"))
            with open("/dev/full", "wb") as full:
                done = subprocess.run(
                    [sys.executable, "-m", "stateline", "execute", "--id", "r1", "--format", format, machine],
                    stdout=full,
                    stderr=subprocess.PIPE,
                    stdin=subprocess.DEVNULL,
                    timeout=60,
                )
            said = done.stderr.decode()
            assert done.returncode == 1
            assert "standard output" in said
            assert "Traceback" not in said
            assert "bug" not in said
            assert cli.json("exec", "status", "r1")["status"] == "complete"
    failures.check()


def test_closed_standard_streams_are_tolerated(cli: Cli, task: Task) -> None:
    failures = Failures()
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]:
        with failures.case(closed), cli.fresh():
            machine = cli.machine(a=task("echo 1", default_next="ask"), ask=ASK)
            script = f'"$0" -m stateline -v execute --id r1 --format json "$1" {closed}'
            done = subprocess.run(["sh", "-c", script, sys.executable, machine], capture_output=True, timeout=60)
            assert b"Traceback" not in done.stderr
            assert b"bug" not in done.stderr
            if ">&-" in closed.replace("2>&-", ""):
                assert done.returncode == 1
            else:
                assert done.returncode == 3
                assert done.stdout.count(b"\n") == 1
                assert done.stdout.startswith(b'{"run":"r1"')
            assert cli.json("exec", "status", "r1")["status"] == "waiting"
    failures.check()


def test_a_closed_stderr_does_not_stop_the_work(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1"))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "stateline", "-v", "execute", machine, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=write,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    os.close(write)
    assert done.returncode == 0
    assert b'"status":"complete"' in done.stdout


def test_help_is_printed_whatever_the_encoding(cli: Cli) -> None:
    result = cli.process("execute", "--help", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.code == 0
    assert b"Exit codes" in result.out


def test_nothing_is_left_of_a_path_that_is_not_utf_8(cli: Cli, task: Task) -> None:
    path = Path(os.fsdecode(os.fsencode(cli.home) + b"/\xff"))
    try:
        path.mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    os.rename(cli.machine(a=task("echo 1")), path / "m.json")
    error = cli.refused("execute", str(path / "m.json"), exits=1)
    assert "UTF-8" in error["message"] + error["hint"]
    assert not cli.state.exists()
    cli.refused("execute", str(path / "n.json"), exits=1)
    assert cli("exec", "list", "--state-dir", str(path / "m.json"), "--format", "json").error
