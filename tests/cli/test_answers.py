"""Input and answers: from ``--input`` and standard input, taken, refused, and given twice."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures

END: dict[str, Any] = {"end": {}}


class UnreadableScope(io.RawIOBase):
    """A standard input that must not be read."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise AssertionError("standard input was read")


def unread() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedReader(UnreadableScope()))


def asking_machine(cli: Cli) -> str:
    """A machine with two questions; the second wants a boolean."""
    return str(
        cli.machine(
            first={"human": {"prompt": "What?"}, "default_next": "second"},
            second={"human": {"prompt": "Sure?", "schema": {"type": "boolean"}}, "default_next": "done"},
            done=END,
        )
    )


@pytest.fixture
def asking(cli: Cli) -> str:
    return asking_machine(cli)


def test_input_is_the_runs_input_when_it_starts(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1"))
    cli.json("execute", machine, "--input", '{"x": [1, 2.5, null, "ü"]}')
    assert cli.json("exec", "show")["input"] == {"x": [1, 2.5, None, "ü"]}
    path = cli.home / "input.json"
    path.write_text(' {"from": "a file"}\n')
    cli.json("execute", machine, "--input", f"@{path}")
    assert cli.json("exec", "show")["input"] == {"from": "a file"}


def test_an_input_that_its_schema_forbids_starts_nothing(cli: Cli, task: Task) -> None:
    machine = cli.machine(_input={"type": "object", "required": ["x"]}, a=task("echo 1"))
    for words in ([], ["--input", "[]"], ["--input", "{}"]):
        error = cli.refused("execute", machine, *words, exits=1)
        assert error["code"] == "value_refused"
        assert "input" in error["message"]
    assert not cli.state.exists()
    assert cli.json("execute", machine, "--input", '{"x": 1}')["status"] == "complete"


def test_a_malformed_input_is_a_usage_error_and_nothing_happens(cli: Cli) -> None:
    failures = Failures()
    for text in [
        "",
        " ",
        "{",
        "yes",
        "NaN",
        "[Infinity]",
        '{"a":1,"a":2}',
        "18446744073709551616",
        '"\\ud800"',
        "1 2",
        "@",
        "@/",
    ]:
        with failures.case(text), cli.fresh():
            asking = asking_machine(cli)
            cli.refused("execute", asking, "--input", text, exits=64)
            assert not cli.state.exists()
            cli.json("execute", asking, "--id", "r1", exits=3)
            before = cli.tree()
            for words in (["execute", asking], ["exec", "resume", "r1"]):
                cli.refused(*words, "--input", text, exits=64)
            assert cli.tree() == before
    failures.check()


def test_an_input_of_17_mib_is_a_usage_error(cli: Cli, asking: str) -> None:
    path = cli.home / "input.json"
    path.write_bytes(b'"' + b"x" * (17 << 20) + b'"')
    assert "16777216" in cli.refused("execute", asking, "--input", f"@{path}", exits=64)["message"]
    assert not cli.state.exists()


def test_a_depth_bomb_as_input_is_a_usage_error(cli: Cli, asking: str) -> None:
    cli.refused("execute", asking, "--input", "[" * 100_000, exits=64)
    cli.refused("execute", asking, "--input", "[" * 500 + "]" * 500, exits=64)
    assert not cli.state.exists()


def test_the_same_input_continues_a_run_and_another_one_is_refused(cli: Cli, task: Task) -> None:
    """The input of the second night must not approve the release of the first one."""
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    first, other = '{"date": "1st", "key": "abcdef-123456-secret"}', '{"date": "2nd"}'
    machine = cli.machine(
        ask={"human": {"prompt": "Ship {{ input.date }}?"}, "default_next": "a"},
        a=task("test -e ok && echo 1"),
    )
    words = ["execute", machine, "--id", "r1", "--input"]
    cli.json(*words, first, exits=3)

    def refused() -> str:
        before = cli.tree()
        error = cli.refused(*words, other, exits=64)
        assert error["code"] == "usage"
        assert cli.json(*words, other, "--dry-run")["exit"] == 64
        cli.refused("exec", "resume", "r1", "--input", other, exits=64)
        assert cli.tree() == before
        assert all(way in error["hint"] for way in ("--id NEW", "--id r1 --force"))
        return str(error["hint"])

    hint = refused()
    request = cli.json(*words, ' {"key": "abcdef-123456-secret", "date": "1st"}', exits=3)["waiting"]["requestId"]
    assert f"`stateline exec resume r1 --request {request} --answer JSON`" in hint
    assert cli.refused("execute", machine, "--input", other, exits=64)["code"] == "usage", "without --id"
    assert cli.json("execute", machine, "--input", first, exits=3)["run"] == "r1"
    assert cli.json(*words, first, "--answer", "true", exits=1)["outputs"] == {"ask": True}
    assert "--answer" not in refused(), "a failed run"
    assert cli.json(*words, first, exits=1)["status"] == "error"
    (cli.home / "ok").touch()
    cli.json("exec", "resume", "r1", "--retry", "--input", first)
    refused()
    assert cli.json(*words, first)["outputs"] == {"ask": True, "a": 1}, "a complete run reports"
    assert cli.json("execute", machine, "--input", other, exits=3)["run"] != "r1", "without --id a new run starts"
    assert cli.json("execute", machine, "--input", other, "--force", exits=3)["status"] == "waiting"


def test_the_same_input_continues_a_run_that_a_prompt_started(cli: Cli) -> None:
    words = ["run", "-p", "Hi.", "--id", "r1", "--input"]
    cli.json(*words, '{"n": 1}', exits=3)
    assert cli.json(*words, '{"n": 1}', exits=3)["status"] == "waiting"
    hint = cli.refused(*words, '{"n": 2}', exits=64)["hint"]
    assert "`stateline run --id r1 --force -p TEXT --input JSON`" in hint
    done = cli.json(*words, '{"n": 1}', "--answer", '"Hello."')
    assert cli.json(*words, '{"n": 1}') == done


def test_an_answer_without_a_request_is_refused_where_nothing_waits(cli: Cli, task: Task) -> None:
    machine = cli.machine(
        ask={"human": {"prompt": "?"}, "default_next": "a"},
        a=task("echo a >> ran; test -e ok && echo 1", repeatable=False),
    )
    answer = ["--answer", "true"]

    def refused(*words: str) -> None:
        before = cli.tree()
        assert cli.refused(*words, *answer, exits=1)["code"] == "no_open_request", words
        plan = cli.json(*words, *answer, "--dry-run")
        assert (plan["plan"]["action"], plan["exit"]) == ("refuse", 1)
        assert cli.tree() == before

    refused("execute", machine)
    refused("execute", machine, "--id", "r1")
    refused("run", "-p", "Hi.")
    assert not cli.state.exists()
    cli.json("execute", machine, "--id", "r1", exits=3)
    refused("execute", machine, "--id", "r1", "--force")
    refused("execute", machine, "--force")
    cli.json("execute", "-i", machine, "--id", "r1", *answer)
    refused("execute", machine)
    refused("exec", "resume", "r1")
    cli.json("execute", machine, exits=1)
    refused("exec", "resume", "r1")
    assert cli.ran() == ["a"]
    (cli.home / "ok").touch()
    cli.json("exec", "resume", "r1", "--retry")
    refused("exec", "resume", "r1")
    refused("execute", machine, "--id", "r1")
    refused("execute", machine)


def test_an_answer_with_its_request_is_taken_once(cli: Cli, asking: str) -> None:
    request = cli.json("execute", asking, "--id", "r1", exits=3)["waiting"]["requestId"]
    ways = (["execute", asking], ["execute", asking, "--id", "r1"], ["exec", "resume", "r1"])
    answer = ["--request", request, "--answer"]
    wrapping = wrapped(request, 1)
    once = cli.json(*ways[0], *answer, wrapping, exits=3)
    assert once["outputs"] == {"first": json.loads(wrapping)}, "beside --request, the value is the whole answer"
    before = cli.tree()
    for words in ways:
        plan = cli.json(*words, *answer, wrapping, "--dry-run")
        assert (plan["plan"]["action"], plan["exit"]) == ("wait", 3)
        assert cli.json(*words, *answer, wrapping, exits=3) == once
        assert cli.refused(*words, *answer, "2", exits=1)["code"] == "answer_refused"
        unknown = ["--request", request + "x", "--answer", "2"]
        assert cli.refused(*words, *unknown, exits=1)["code"] == "answer_refused"
    assert cli.refused("execute", asking, "--request", "no:1:0:0", "--answer", "1", exits=1)["code"] == "answer_refused"
    assert cli.tree() == before
    last = ["--request", once["waiting"]["requestId"], "--answer", "true"]
    done = cli.json("execute", asking, *last)
    assert cli.json("execute", asking, *last) == done, "it starts no second run"
    assert [row["run"] for row in cli.json("exec", "list")["runs"]] == ["r1"]


def test_an_earlier_answer_can_be_repeated_after_later_ones(cli: Cli, asking: str) -> None:
    waiting = cli.json("execute", asking, "--id", "r1", exits=3)["waiting"]
    first = ["execute", asking, "--id", "r1", "--request", waiting["requestId"], "--answer", "1"]
    second = cli.json(*first, exits=3)["waiting"]["requestId"]
    done = cli.json("exec", "resume", "r1", "--request", second, "--answer", "true")
    assert cli.json(*first) == done
    assert cli.refused(*first[:-1], "2", exits=1)["code"] == "answer_refused"


def test_an_answer_goes_to_the_run_that_it_names(cli: Cli, asking: str) -> None:
    older = cli.json("execute", asking, "--id", "r1", exits=3)["waiting"]["requestId"]
    cli.json("execute", asking, "--id", "r2", exits=3)
    assert cli.json("execute", asking, "--request", older, "--answer", "1", exits=3)["run"] == "r1"
    error = cli.refused("execute", asking, "--id", "r2", "--request", older, "--answer", "1", exits=1)
    assert error["code"] == "answer_refused"


def test_an_answer_needs_its_request_where_several_runs_of_the_machine_wait(cli: Cli, asking: str) -> None:
    first = cli.json("execute", asking, "--id", "first", exits=3)["waiting"]["requestId"]
    cli.json("execute", asking, "--id", "second", exits=3)
    assert cli.refused("execute", asking, "--answer", "7", exits=1)["code"] == "answer_refused"
    assert cli.json("execute", asking, "--answer", "7", "--dry-run")["plan"]["action"] == "refuse"
    for run in ("first", "second"):
        assert cli.json("exec", "status", run)["status"] == "waiting"
    assert cli.json("execute", asking, "--answer", "7", "--request", first, exits=3)["run"] == "first"
    cli.json("exec", "cancel", "first")
    assert cli.json("execute", asking, "--answer", "8", exits=3)["run"] == "second"


def test_a_repeated_answer_without_its_request_never_answers_the_next_question(cli: Cli) -> None:
    ask = {"human": {"prompt": "May it go on?", "schema": {"type": "boolean"}}}
    machine = cli.machine(first=ask | {"default_next": "second"}, second=ask | {"default_next": "third"}, third=ask)
    cli.json("execute", machine, "--id", "r1", exits=3)
    line = ["exec", "resume", "r1", "--answer", "true"]
    assert cli.json(*line, exits=3)["stage"] == "second"
    before = cli.tree()
    assert cli.refused(*line, exits=1)["code"] == "answer_refused"
    assert cli.json(*line, "--dry-run")["plan"]["action"] == "refuse"
    assert cli.tree() == before
    request = cli.json("exec", "status", "r1")["interrupts"][0]["requestId"]
    assert cli.json(*line, "--request", request, exits=3)["stage"] == "third"
    assert cli.json("exec", "resume", "r1", "--answer", "false")["status"] == "complete"


def test_flags_about_an_answer_that_contradict_each_other_are_usage_errors(cli: Cli, asking: str) -> None:
    request = cli.json("execute", asking, "--id", "r1", exits=3)["waiting"]["requestId"]
    before = cli.tree()
    for words in (
        ["exec", "resume", "r1", "--request", request],
        ["exec", "resume", "r1", "--retry", "--answer", "1"],
        ["exec", "resume", "r1", "--retry", "--request", request, "--answer", "1"],
        ["exec", "resume", "r1", "--answer", "yes"],
        ["run", "--answer", "1"],
    ):
        cli.refused(*words, exits=64)
    assert cli.tree() == before


def test_the_printed_command_answers_and_can_be_repeated(cli: Cli) -> None:
    failures = Failures()
    for schema in (None, {"type": "boolean"}, {"type": "object", "required": ["it's"]}, {"enum": ["ja", "nein"]}):
        with failures.case(schema), cli.fresh():
            question: dict[str, Any] = {"prompt": "?"} | ({} if schema is None else {"schema": schema})
            machine = cli.machine(ask={"human": question}, done=END)
            text = cli("execute", machine, "--id", "r1").out.decode()
            assert max(map(len, text.splitlines())) <= 80
            words = shlex.split(text.partition("answer:")[2].partition("head:")[0].replace("\\\n", " "))
            assert words[:2] == ["stateline", "exec"]
            done = cli.json(*words[1:])
            assert (done["status"], cli.json(*words[1:])) == ("complete", done)
    failures.check()


def test_an_answer_is_a_turn_and_stops_with_i(cli: Cli, asking: str) -> None:
    first = cli.json("execute", "-i", asking, exits=3)
    assert first["waiting"]["prompt"] == "What?"
    second = cli.json("execute", "-i", asking, "--answer", '{"a": 1}', exits=3)
    assert (second["output"], second["stage"], second["turn"]) == ({"a": 1}, "second", first["turn"] + 1)
    last = cli.json("execute", "-i", asking, "--answer", "true", exits=2)
    assert last["outputs"] == {"first": {"a": 1}, "second": True}


def test_an_answer_continues_to_the_end_without_i(cli: Cli, task: Task) -> None:
    machine = cli.machine(ask={"human": {"prompt": "?"}, "default_next": "a"}, a=task("echo 1"))
    cli.json("execute", machine, exits=3)
    document = cli.json("execute", machine, "--answer", '"yes"')
    assert document["outputs"] == {"ask": "yes", "a": 1}


def test_standard_input_is_json_else_a_string(cli: Cli) -> None:
    failures = Failures()
    for data, answer in [
        (b"true\n", True),
        (b' {"a": [1]} \n', {"a": [1]}),
        (b'"quoted"', "quoted"),
        (b"plain words\n", "plain words"),
        (b"two\nlines\n", "two\nlines"),
        (b"crlf\r\n", "crlf"),
        ("grüße, Ω\n".encode(), "grüße, Ω"),
        (b"{not json", "{not json"),
        (b"null", None),
    ]:
        with failures.case(data, answer), cli.fresh():
            machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
            cli.json("execute", machine, exits=3)
            document = cli.json("execute", machine, stdin=data)
            assert document["outputs"] == {"ask": answer}
    failures.check()


def test_empty_standard_input_is_not_an_answer(cli: Cli, asking: str) -> None:
    failures = Failures()
    for data in [b"", b"\n", b" \r\n\t "]:
        with failures.case(data):
            cli.json("execute", asking, stdin=data, exits=3)
            before = cli.tree()
            cli.json("execute", asking, stdin=data, exits=3)
            assert cli.tree() == before
    failures.check()


def test_an_answer_that_cannot_be_kept_is_refused_and_the_run_still_waits(cli: Cli) -> None:
    failures = Failures()
    for data in [
        b'{"a": 1, "a": 2}',
        b"NaN",
        b"[Infinity]",
        b"18446744073709551616",
        b'"\\ud800"',
        b"caf\xe9",
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b"[" * 400 + b"]" * 400,
        b"x" * (17 << 20),
    ]:
        with failures.case(data[:40]), cli.fresh():
            asking = asking_machine(cli)
            cli.json("execute", asking, "--id", "r1", exits=3)
            before = cli.tree()
            for words in (["execute", asking], ["exec", "resume", "r1"], ["execute", "-i", asking]):
                assert cli.refused(*words, stdin=data, exits=1)["code"] == "value_refused"
            assert cli.tree() == before
            assert cli.json("execute", asking, stdin=b"fine", exits=3)["stage"] == "second"
    failures.check()


def test_an_answer_that_the_schema_forbids_is_refused_and_the_run_still_waits(cli: Cli, asking: str) -> None:
    cli.json("execute", "-i", asking, exits=3)
    cli.json("execute", "-i", asking, "--answer", "1", exits=3)
    status = cli.json("exec", "status")
    for words, data in ((["--answer", '"maybe"'], b""), ([], b"maybe\n")):
        error = cli.refused("execute", asking, *words, stdin=data, exits=1)
        assert error["code"] == "answer_refused"
        assert "still waits" in error["message"]
    assert cli.json("exec", "status") == status
    assert cli.json("execute", asking, "--answer", "true")["status"] == "complete"


def test_no_input_never_reads(cli: Cli, asking: str) -> None:
    cli.json("execute", asking, "--id", "r1", "--no-input", stdin=unread(), exits=3)
    cli.json("exec", "resume", "r1", "--no-input", stdin=unread(), exits=3)
    cli.json("execute", "--dry-run", asking, "--no-input", stdin=unread())


def test_standard_input_is_read_only_where_the_run_waits(cli: Cli, task: Task) -> None:
    machine = cli.machine(
        a=task("echo 1", default_next="ask"),
        ask={"human": {"prompt": "?"}, "default_next": "b"},
        b=task("echo 2", default_next="c"),
        c=task("false"),
    )
    cli.json("execute", "-i", machine, stdin=unread(), exits=3)
    cli.json("execute", "-i", machine, "--answer", "1", stdin=unread())
    cli.json("execute", machine, stdin=unread(), exits=1)
    run = cli.json("exec", "status", stdin=unread())["run"]
    cli.json("exec", "resume", run, stdin=unread(), exits=1)
    cli.json("exec", "resume", run, "--retry", stdin=unread(), exits=1)


def test_one_pipe_answers_one_question(cli: Cli) -> None:
    machine = cli.machine(
        a={"human": {"prompt": "1"}, "default_next": "b"}, b={"human": {"prompt": "2"}, "default_next": "c"}, c=END
    )
    cli.json("execute", machine, exits=3)
    document = cli.json("execute", machine, stdin=b"yes\n", exits=3)
    assert (document["outputs"], document["stage"]) == ({"a": "yes"}, "b")


def test_standard_input_answers_only_a_request_that_was_open_when_the_call_began(cli: Cli, task: Task) -> None:
    machine = cli.machine(
        a=task("echo 1", default_next="ask"), ask={"human": {"prompt": "?"}, "default_next": "done"}, done=END
    )
    cli.json("execute", machine, "--id", "r1", stdin=unread(), exits=3)
    cli.json("execute", machine, "--id", "r1", "--force", stdin=unread(), exits=3)
    cli.json("execute", "-i", machine, "--id", "r2", stdin=unread(), exits=3)
    assert cli.json("execute", "--dry-run", machine, "--id", "r3", stdin=unread())["exit"] == 3
    assert cli.json("execute", machine, "--id", "r2", stdin=b"yes\n")["outputs"] == {"a": 1, "ask": "yes"}


def test_a_process_without_standard_input_waits(cli: Cli, asking: str) -> None:
    cli.json("execute", asking, exits=3)
    cli.json("execute", asking, stdin=None, exits=3)


def test_a_slow_producer_is_waited_for(cli: Cli, asking: str) -> None:
    cli.json("execute", asking, exits=3)
    read, write = os.pipe()
    process = cli.start("execute", "-i", asking, "--format", "json", stdin=read)
    os.close(read)
    for part in (b'{"a"', b": 1", b"}\n"):
        time.sleep(0.3)
        os.write(write, part)
    os.close(write)
    out, _ = process.communicate(timeout=30)
    assert json.loads(out)["outputs"] == {"first": {"a": 1}}
    assert process.returncode == 3


def test_a_standard_input_that_cannot_be_read_is_not_an_answer(cli: Cli, asking: str) -> None:
    cli.json("execute", asking, exits=3)
    script = '"$0" -m stateline execute "$1" --format json 0>/dev/null'
    done = subprocess.run(["sh", "-c", script, sys.executable, asking], capture_output=True, timeout=60)
    assert done.returncode == 3
    assert json.loads(done.stdout)["status"] == "waiting"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_terminal_is_not_read(cli: Cli, asking: str) -> None:
    import pty

    cli.json("execute", asking, exits=3)
    master, slave = pty.openpty()
    os.write(master, b"typed\n")
    process = cli.start("execute", asking, "--format", "json", stdin=slave)
    out, _ = process.communicate(timeout=30)
    os.close(master)
    os.close(slave)
    assert process.returncode == 3
    assert json.loads(out)["waiting"]["stage"] == "first"


def wrapped(request: str, answer: Any) -> str:
    return json.dumps({"requestId": request, "answer": answer})


def test_the_same_answer_twice_is_one_answer_and_the_same_document(cli: Cli, asking: str) -> None:
    request = cli.json("execute", "-i", asking, "--id", "r1", exits=3)["waiting"]["requestId"]
    once = cli.json("execute", "-i", asking, "--answer", wrapped(request, "yes"), exits=3)
    before = cli.tree()
    for words in (["execute", "-i", asking], ["execute", "-i", asking, "--id", "r1"], ["exec", "resume", "-i", "r1"]):
        assert cli.json(*words, "--answer", wrapped(request, "yes"), exits=3) == once
    assert cli.json("execute", "-i", asking, stdin=wrapped(request, "yes").encode(), exits=3) == once
    assert cli.tree() == before
    assert once["outputs"] == {"first": "yes"}


def test_the_last_answer_twice_is_one_answer_although_the_run_is_complete(cli: Cli) -> None:
    machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
    request = cli.json("execute", machine, "--id", "r1", exits=3)["waiting"]["requestId"]
    once = cli.json("execute", machine, "--id", "r1", "--answer", wrapped(request, 1))
    assert cli.json("execute", machine, "--id", "r1", "--answer", wrapped(request, 1)) == once


def test_a_repeated_answer_on_a_pipe_does_not_answer_the_next_question(cli: Cli, task: Task) -> None:
    machine = cli.machine(
        ask={"human": {"prompt": "1"}, "default_next": "a"},
        a=task("echo 1", default_next="again"),
        again={"human": {"prompt": "2"}, "default_next": "done"},
        done=END,
    )
    request = cli.json("execute", machine, exits=3)["waiting"]["requestId"]
    cli.json("execute", "-i", machine, "--answer", wrapped(request, "one"))
    document = cli.json("execute", machine, stdin=wrapped(request, "one").encode(), exits=3)
    assert (document["stage"], document["outputs"]) == ("again", {"ask": "one", "a": 1})


def test_an_answer_for_another_request_is_refused(cli: Cli, asking: str) -> None:
    request = cli.json("execute", asking, exits=3)["waiting"]["requestId"]
    before = cli.tree()
    for stale in ("nonsense", None, 5, request + "x"):
        error = cli.refused("execute", asking, "--answer", wrapped(stale, "yes"), exits=1)
        assert error["code"] == "answer_refused"
        assert request in error["message"]
    assert cli.tree() == before
    assert cli.json("execute", asking, "--answer", wrapped(request, "yes"), exits=3)["stage"] == "second"


def test_an_object_that_only_looks_like_a_wrapping_is_an_answer(cli: Cli) -> None:
    machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
    cli.json("execute", machine, exits=3)
    answer = {"requestId": "x", "answer": 1, "more": 2}
    assert cli.json("execute", machine, "--answer", json.dumps(answer))["output"] == answer


def test_the_same_answer_from_several_processes_at_once_is_one_answer(cli: Cli) -> None:
    machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
    request = cli.json("execute", machine, "--id", "r1", exits=3)["waiting"]["requestId"]
    results: list[Any] = []

    def answer() -> None:
        results.append(
            cli.process("execute", machine, "--id", "r1", "--answer", wrapped(request, 1), "--format", "json")
        )

    threads = [threading.Thread(target=answer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.code for result in results] == [0] * 4, results
    assert len({result.out for result in results}) == 1
    assert [row["event"]["type"] for row in cli.json("log", "run:r1")["snapshots"]] == ["answered", "started"]


def test_a_prompt_is_filled_in(cli: Cli) -> None:
    machine = cli.machine(
        _state={"n": [1]}, ask={"human": {"prompt": "Ship {{ state.n }} for {{ input.who }}?"}}, d=END
    )
    waiting = cli.json("execute", machine, "--input", '{"who": "Ann"}', exits=3)["waiting"]
    assert waiting["prompt"] == "Ship [1] for Ann?"


def test_a_prompt_that_cannot_be_filled_in_can_still_be_answered(cli: Cli) -> None:
    machine = cli.machine(ask={"human": {"prompt": "Ship {{ state.nothing }}?"}}, done=END)
    waiting = cli.json("execute", machine, exits=3)["waiting"]
    assert "{{ state.nothing }}" in waiting["prompt"]
    assert "not filled in" in waiting["prompt"]
    assert cli.json("execute", machine, "--answer", "1")["status"] == "complete"


def test_a_secret_in_an_answer_is_masked_before_it_is_kept(cli: Cli) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    machine = cli.machine(ask={"human": {"prompt": "?"}}, done=END)
    cli.json("execute", machine, exits=3)
    document = cli.json("execute", machine, stdin=b"it is abcdef-123456-secret, yes")
    assert document["output"] == "it is [REDACTED], yes"
    assert any("masked" in warning for warning in document["warnings"])
    held = b"".join(path.read_bytes() for path in cli.state.rglob("*") if path.is_file())
    assert b"abcdef-123456-secret" not in held


def test_force_with_an_open_question_asks_again_under_another_request(cli: Cli, asking: str) -> None:
    old = cli.json("execute", asking, "--id", "r1", exits=3)["waiting"]["requestId"]
    new = cli.json("execute", asking, "--id", "r1", "--force", exits=3)["waiting"]["requestId"]
    assert new != old
    assert (
        cli.refused("execute", asking, "--id", "r1", "--answer", wrapped(old, 1), exits=1)["code"] == "answer_refused"
    )
