"""Bad input gets a clear error and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures

END: dict[str, Any] = {"end": {}}
NINES = "9" * 20


def test_what_a_task_does_wrong_fails_the_run_and_keeps_the_rest(cli: Cli, task: Task) -> None:
    failures = Failures()
    for script, reason, word in [
        ("echo not json", "output", "not JSON"),
        ("echo '{\"a\": 1'", "output", "not JSON"),
        ("echo 1 2", "output", "not JSON"),
        ('echo \'{"a": 1, "a": 2}\'', "output", "twice"),
        ("echo NaN", "output", "NaN"),
        ("echo '[1e999]'", "output", ""),
        (f"echo {NINES}", "output", "2^64-1"),
        ("echo '\"\\ud800\"'", "output", "surrogate"),
        ("printf '\"\\377\"'", "output", "UTF-8"),
        ("printf '\\377\\376'", "output", "UTF-8"),
        ("head -c 400 /dev/zero | tr '\\0' '['; head -c 400 /dev/zero | tr '\\0' ']'", "output", "deep"),
        ("head -c 200000 /dev/zero | tr '\\0' '['", "output", "deep"),
        ("head -c 17825792 /dev/zero | tr '\\0' 1", "output", "16777216"),
        ("exit 9", "exit", "9"),
        ("echo why >&2; exit 1", "exit", "why"),
        ("kill -9 $$", "exit", "SIGKILL"),
    ]:
        with failures.case(script, reason, word), cli.fresh():
            machine = cli.machine(
                a=task("echo a >> ran; echo 1", default_next="b"),
                b=task(f"if test -e ok; then echo 2; else {script}; fi"),
            )
            document = cli.json("execute", machine, "--id", "r1", exits=1)
            assert (document["status"], document["reason"], document["outputs"]) == ("error", reason, {"a": 1})
            assert word in document["error"]["message"]
            assert document["error"]["hint"]
            assert [each for each in cli.json("verify")["findings"] if each["severity"] != "residue"] == []
            (cli.home / "ok").touch()
            assert cli.json("exec", "resume", "r1", "--retry")["outputs"] == {"a": 1, "b": 2}
            assert cli.ran() == ["a"]
    failures.check()


def test_a_program_that_is_missing_or_not_executable_fails_the_run(cli: Cli, task: Task) -> None:
    (cli.home / "plain").write_text("#!/bin/sh\necho 1\n")
    for argv in (["no-such-program-anywhere"], ["./absent"], ["./plain"], ["/absent"], ["."]):
        machine = cli.machine(a=task("echo 1", default_next="b"), b={"task": argv})
        document = cli.json("execute", machine, "--force", exits=1)
        assert (document["reason"], document["outputs"]) == ("spawn", {"a": 1}), argv
        assert argv[0] in document["error"]["message"]
    (cli.home / "plain").chmod(0o755)
    machine = cli.machine(a={"task": ["./plain"]})
    assert cli.json("execute", machine, "--force")["output"] == 1


def test_a_task_that_takes_too_long_is_ended(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("sleep 30", timeout=0.1))
    document = cli.json("execute", machine, exits=1)
    assert (document["reason"], document["status"]) == ("timeout", "error")


def test_the_edges_of_what_can_be_kept_are_kept(cli: Cli, task: Task) -> None:
    text = json.dumps([18446744073709551615, -(2**63), 1e308, -0.0, "\u2028\U0001f600", {"": None, "~/": [[]]}])
    (cli.home / "out").write_text(f"\n  {text}\r\n")
    document = cli.json("execute", cli.machine(a=task("cat out")))
    assert document["output"] == json.loads(text)
    deep = "[" * 120 + "]" * 120
    (cli.home / "out").write_text(deep)
    document = cli.json("execute", cli.machine(a=task("cat out"), b=END), "--force")
    assert json.dumps(document["output"]) == deep


def test_an_output_of_almost_16_mib_is_kept(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("printf '\"'; head -c 16000000 /dev/zero | tr '\\0' x; printf '\"'"))
    document = cli.json("execute", machine)
    assert len(document["output"]) == 16_000_000
    assert cli.json("verify")["ok"]
    assert max(path.stat().st_size for path in cli.state.glob("*/state-*")) < 10_000


def test_a_condition_that_is_not_a_boolean_stops_the_run(cli: Cli, task: Task) -> None:
    failures = Failures()
    for expression in ["output.missing", "nonsense", "1 / 0", "output", "[1][5]"]:
        with failures.case(expression), cli.fresh():
            machine = cli.machine(a=task("echo 5", routes=[{"when": expression, "to": "b"}], default_next="b"), b=END)
            document = cli.json("execute", machine, exits=1) if expression != "nonsense" else None
            if document is None:
                result = cli("execute", machine, "--format", "json")
                assert result.code == 1
                text = result.out.decode()
                assert "nonsense" in text
            else:
                assert (document["reason"], document["outputs"]) == ("condition", {"a": 5})
    failures.check()


def test_set_that_fails_leaves_the_state_as_it_was(cli: Cli, task: Task) -> None:
    machine = cli.machine(_state={"n": 1}, a=task("echo 5", set={"n": "output + 1", "m": "output.x"}, default_next="b"),
                          b=END)  # fmt: skip
    document = cli.json("execute", machine, exits=1)
    assert document["reason"] == "set"
    assert cli.json("exec", "show")["state"] == {"n": 1}


def test_a_machine_file_with_mistakes_starts_nothing(cli: Cli) -> None:
    failures = Failures()
    for name, text, word in [
        ("m.yaml", "", ""),
        ("m.yaml", "stateline: 1\nname: m\nstages: {a: {end: {}}, a: {end: {}}}\n", "a"),
        ("m.yaml", "stateline: 1\nname: m\nstages: {a: {end: {}, default_next: nowhere}}\n", "default_next"),
        ("m.yaml", "stateline: 1\nname: m\nstages: {a: {task: [x], default_next: nowhere}}\n", "nowhere"),
        ("m.yaml", "stateline: 1\nname: m\nstages: &x {a: {end: {}}}\n", ""),
        ("m.yaml", "stateline: 1\nname: m\nstages: !!python/object {a: {end: {}}}\n", ""),
        ("m.yaml", "stateline: 2\nname: m\nstages: {a: {end: {}}}\n", "stateline"),
        ("m.json", "{", ""),
        ("m.json", "[" * 100_000, ""),
        ("m.json", '{"stateline": 1, "name": "m", "stages": {"a": {"end": {}}}, "x": NaN}', ""),
        ("m.json", '{"stateline": 1, "name": "m", "stages": {"a": {"parallel": {}}}}', "parallel"),
    ]:
        with failures.case(name, text, word), cli.fresh():
            path = cli.home / name
            path.write_text(text)
            error = cli.refused("execute", str(path), exits=1)
            assert error["code"] == "machine_invalid"
            assert word in error["message"] + error["hint"]
            document = cli.json("machine", "check", str(path), exits=1)
            assert document["ok"] is False
            for problem in document["problems"]:
                assert problem.keys() == {"severity", "code", "where", "message", "hint"}
            assert not cli.state.exists()
    failures.check()


def test_a_machine_file_that_is_not_a_file_is_refused(cli: Cli) -> None:
    os.mkfifo(cli.home / "fifo.yaml")
    (cli.home / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with open(cli.home / "big.yaml", "wb") as file:
        file.truncate(17 << 20)
    for name in ("fifo.yaml", ".", "latin.yaml", "big.yaml"):
        for words in (["execute"], ["machine", "check"]):
            result = cli(*words, str(cli.home / name), "--format", "json")
            assert result.code == 1, name
            assert result.document
    assert not cli.state.exists()


def test_a_machine_that_holds_a_secret_is_refused_with_the_way_to_pass_it(cli: Cli, task: Task) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    machine = cli.machine(a=task("echo abcdef-123456-secret"))
    error = cli.refused("execute", machine, exits=1)
    assert "env" in error["hint"]
    assert "abcdef-123456-secret" not in str(error)
    assert not cli.state.exists()


def test_a_secret_in_an_output_is_masked_and_the_run_continues_with_the_mask(cli: Cli) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    machine = cli.machine(
        a={"task": ["sh", "-c", 'echo "\\"$SOME_API_KEY\\""'], "env": ["SOME_API_KEY"], "default_next": "b"},
        b={"task": ["sh", "-c", 'cat; echo "$SOME_API_KEY" >&2'], "env": ["SOME_API_KEY"], "default_next": "c"},
        c={"task": ["sh", "-c", 'echo "it is $SOME_API_KEY" >&2; false'], "env": ["SOME_API_KEY"]},
    )
    document = cli.json("execute", machine, exits=1)
    assert document["outputs"]["a"] == "[REDACTED]"
    assert document["outputs"]["b"]["outputs"]["a"] == "[REDACTED]"
    assert document["error"]["message"] == "it is [REDACTED]"
    held = b"".join(path.read_bytes() for path in cli.state.rglob("*") if path.is_file())
    assert b"abcdef-123456-secret" not in held


def test_a_directory_without_write_permission_is_a_typed_error(cli: Cli, task: Task) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write to a directory without the permission")
    machine = cli.machine(a=task("echo a >> ran; echo 1", default_next="b"), b=task("echo 2"))
    cli.json("execute", "-i", machine, "--id", "r1")
    places = [cli.state, *(path for path in cli.state.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o500)
    try:
        for words in (["execute", machine], ["run", "--set", "x=1"], ["exec", "rm", "r1"]):
            error = cli.refused(*words, exits=1)
            assert error["code"] == "storage"
            assert error["hint"]
        assert cli.json("exec", "status")["turn"] == 1
    finally:
        for place in places:
            place.chmod(0o700)
    assert cli.json("execute", machine)["outputs"] == {"a": 1, "b": 2}


READ_ONLY = r"""
set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
shift
exec "$@"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bind mounts are Linux's")
def test_a_read_only_disk_is_a_typed_error_and_can_be_read(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    cli.json("execute", "-i", machine, "--id", "r1")
    probe = subprocess.run(
        ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(cli.state), "true"], capture_output=True, timeout=60
    )
    if probe.returncode != 0:
        pytest.skip(f"no mount namespaces here: {probe.stderr.decode().strip()}")
    before = cli.tree()

    def call(*words: str) -> Any:
        argv = [sys.executable, "-m", "stateline", *words, "--format", "json"]
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(cli.state), *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return done.returncode, json.loads(done.stdout)

    for words in (["execute", machine], ["execute", machine, "--force"], ["run", "--set", "x=1"], ["exec", "rm", "r1"]):
        code, document = call(*words)
        assert (code, document["error"]["code"]) == (1, "storage"), (words, document)
        assert "read-only" in document["error"]["message"]
    code, document = call("execute", machine, "--dry-run")
    assert (code, document["exit"]) == (0, 1)
    assert "the file system is read-only" in document["plan"]["reason"]
    assert call("exec", "status")[1]["run"] == "r1"
    assert call("verify")[0] == 0
    assert cli.tree() == before
    assert cli.json("execute", machine)["status"] == "complete"


def test_a_store_of_a_newer_version_is_left_untouched(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    cli.json("execute", "-i", machine, "--id", "r1")
    (cli.state / "stateline.json").write_bytes(b'{"format":"stateline/2","store_id":"00"}')
    before = cli.tree()
    for words in (["execute", machine], ["exec", "list"], ["exec", "rm", "r1"], ["run", "-p", "x"], ["exec", "status"]):
        assert cli.refused(*words, exits=1)["code"] == "newer_version"
    assert cli.tree() == before


def test_a_state_dir_that_is_a_file_or_full_of_other_things_is_refused(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1"))
    cli.state.write_text("a file")
    assert cli.refused("execute", machine, exits=6)["code"] == "unsafe"
    cli.state.unlink()
    cli.state.mkdir(mode=0o700)
    (cli.state / "letter.txt").write_text("dear")
    assert "letter.txt" in cli.refused("execute", machine, exits=1)["message"]
    assert [path.name for path in Path(cli.state).iterdir()] == ["letter.txt"]
