"""``stateline run`` without a model: whoever calls next answers, and the run goes on from there."""

from __future__ import annotations

import io
import json
import os
import shlex
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from each_case import Failures


def make_tools(cli: Cli) -> str:
    """A manifest with a tool that adds, one that notes each of its calls in ``ran``, and one that fails."""
    return manifest(
        cli,
        tool(
            "add",
            'python3 -c \'import json,sys; a=json.load(sys.stdin); print(a["a"]+a["b"])\'',
            a="integer",
            b="integer",
        ),
        tool("note", "cat >> ran; echo '\"noted\"'", text="string"),
        tool("fail", "echo broken >&2; exit 3"),
    )


@pytest.fixture
def tools(cli: Cli) -> str:
    return make_tools(cli)


def tool(
    name: str, script: str, /, *, repeatable: bool = True, timeout: float = 30, **arguments: str
) -> dict[str, Any]:
    """A tool made of a shell script; ``arguments`` are required, by type."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in arguments.items()},
        "required": sorted(arguments),
        "additionalProperties": False,
    }
    return {
        "name": name, "description": f"Does {name}.", "schema": schema, "argv": ["sh", "-c", script],
        "repeatable": repeatable, "timeout": timeout,
    }  # fmt: skip


def manifest(cli: Cli, *tools: dict[str, Any], name: str = "tools.json") -> str:
    path = cli.home / name
    path.write_text(json.dumps({"tools": list(tools)}))
    return str(path)


def files(cli: Cli) -> dict[str, bytes]:
    """Every file in the state dir and around it, with its bytes."""
    return {path: row[4] for path, row in cli.tree().items() if row[4]}


def calls(*wanted: tuple[str, dict[str, Any]], text: str = "") -> str:
    """An answer that calls tools."""
    return json.dumps({"response": text, "tools": [{"name": name, "params": params} for name, params in wanted]})


def wrapped(request: str, text: str) -> str:
    """An answer in the long form, which names its request."""
    content = [{"type": "text", "text": text}]
    return json.dumps({"type": "llm_response", "requestId": request, "response": {"content": content}})


def test_without_a_model_the_request_is_printed_and_the_call_exits_3(cli: Cli, tools: str) -> None:
    document = cli.json("run", "-p", "What is 2 + 3?", "--system", "Be exact.", "--tools", tools, "--id", "r1", exits=3)
    assert (document["run"], document["status"], document["stage"], document["turn"]) == ("r1", "waiting", "agent", 0)
    request = document["waiting"]
    assert (request["type"], request["stage"], request["prompt"]) == ("llm_request", "agent", "What is 2 + 3?")
    assert request["messages"] == [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "What is 2 + 3?"},
    ]
    assert [offered["name"] for offered in request["tools"]] == ["add", "note", "fail"]
    assert request["tools"][0]["parameters"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    again = cli.json("run", "--id", "r1", exits=3)
    assert again["waiting"] == request
    assert again["head"] == document["head"]
    status = cli.json("exec", "status", "r1")
    assert [interrupt["requestId"] for interrupt in status["interrupts"]] == [request["requestId"]]


def test_a_conversation_with_tools_continues_from_call_to_call(cli: Cli) -> None:
    failures = Failures()
    for way in ["--answer", "stdin"]:
        with failures.case(way), cli.fresh():
            tools = make_tools(cli)

            def answer(text: str, exits: int, way: str = way) -> Any:
                if way == "--answer":
                    return cli.json("exec", "resume", "r1", "--answer", text, exits=exits)
                return cli.json("run", "--id", "r1", stdin=text.encode(), exits=exits)

            cli.json("run", "-p", "Add.", "--tools", tools, "--id", "r1", exits=3)
            second = answer(
                calls(("add", {"a": 2, "b": 3}), ("fail", {}), ("note", {"text": "x"}), text="Let me see."), 3
            )
            said = second["waiting"]["messages"]
            assert [message["role"] for message in said] == ["user", "assistant", "tool", "tool", "tool"]
            assert [message["name"] for message in said[2:]] == ["add", "fail", "note"]
            assert said[2]["content"] == 5
            assert said[3]["content"]["error"]["kind"] == "exit"
            assert "broken" in said[3]["content"]["error"]["message"]
            assert said[4]["content"] == "noted"
            assert [call["id"] for call in said[1]["tool_calls"]] == [message["tool_call_id"] for message in said[2:]]
            last = answer('{"response": "It is 5."}', 0)
            assert (last["status"], last["output"], last["outputs"]) == ("complete", "It is 5.", {"agent": "It is 5."})
            assert cli.ran() == ['{"text":"x"}']
            history = cli.json("exec", "history", "r1")["history"]
            assert [row["turn"] for row in history] == sorted(row["turn"] for row in history)
            assert cli.json("verify")["findings"] == []
    failures.check()


def test_every_way_to_say_it_is_the_same_answer(cli: Cli) -> None:
    failures = Failures()
    for data, words in [
        (b'{"response": "Yes, {all}.\\n"}', []),
        (b'"Yes, {all}.\\n"', []),
        (b'{"type":"llm_response","response":{"content":[{"type":"text","text":"Yes, {all}.\\n"}]}}', []),
        (b"Yes, {all}.\n\n", ["--input-format", "text"]),
    ]:
        with failures.case(data, words), cli.fresh():
            cli.json("run", "-p", "All?", "--id", "r1", exits=3)
            document = cli.json("exec", "resume", "r1", *words, stdin=data)
            assert document["output"].rstrip("\n") == "Yes, {all}."
    failures.check()


def test_text_that_reads_like_json_is_text_where_that_is_reported(cli: Cli) -> None:
    cli.json("run", "-p", "Write JSON.", "--id", "r1", exits=3)
    text = b'{"response": 1, "tools": "none"}'
    assert cli.refused("exec", "resume", "r1", stdin=text, exits=1)["code"] == "answer_refused"
    assert cli.json("exec", "resume", "r1", "--input-format", "text", stdin=text)["output"] == text.decode()


def test_row_10_an_answer_that_calls_an_unknown_tool_is_refused_and_nothing_is_lost(cli: Cli, tools: str) -> None:
    first = cli.json("run", "-p", "Go.", "--tools", tools, "--id", "r1", exits=3)
    before = files(cli)
    for answer in (
        calls(("transition_to_zzz", {})),
        calls(("add", {"a": 1})),
        calls(("add", {"a": "1", "b": 2})),
        calls(("add", {"a": 1, "b": 2, "c": 3})),
        json.dumps({"type": "llm_response", "requestId": "r1:9:0:00000000", "response": "x"}),
        json.dumps({"response": ""}),
        json.dumps({"anything": 1}),
        "5",
        "null",
    ):
        for words in (["--answer", answer], []):
            error = cli.refused("exec", "resume", "r1", *words, stdin=answer.encode(), exits=1)
            assert error["code"] == "answer_refused", answer
    assert files(cli) == before
    assert cli.json("run", "--id", "r1", exits=3)["waiting"] == first["waiting"]
    assert cli.json("run", "--id", "r1", "--answer", '{"response": "Done."}')["status"] == "complete"


def test_the_same_answer_twice_is_one_answer_and_the_same_document(cli: Cli, tools: str) -> None:
    request = cli.json("run", "-p", "Go.", "--tools", tools, "--id", "r1", exits=3)["waiting"]["requestId"]
    content = [{"type": "tool_use", "name": "note", "input": {"text": "once"}}]
    answer = json.dumps({"type": "llm_response", "requestId": request, "response": {"content": content}})
    once = cli.json("exec", "resume", "r1", "-i", "--answer", answer, exits=3)
    before = cli.tree()
    for words in (["exec", "resume", "r1", "-i"], ["run", "--id", "r1"], ["exec", "resume", "r1"]):
        assert cli.json(*words, "--answer", answer, exits=3) == once
        assert cli.json(*words, stdin=answer.encode(), exits=3) == once
    assert cli.tree() == before
    assert cli.ran() == ['{"text":"once"}']
    request = once["waiting"]["requestId"]
    last = cli.json("run", "--id", "r1", "--answer", wrapped(request, "Done."))
    assert cli.json("run", "--id", "r1", "--answer", wrapped(request, "Done.")) == last
    assert cli.refused("run", "--id", "r1", "--answer", wrapped(request, "Other."), exits=1)["code"] == "answer_refused"


def test_row_12_an_answer_that_comes_after_3_seconds_is_waited_for(cli: Cli) -> None:
    cli.json("run", "-p", "Take your time.", "--id", "r1", exits=3)
    read, write = os.pipe()
    process = cli.start("run", "--id", "r1", "--format", "json", stdin=read)
    os.close(read)
    for part in (b'{"resp', b'onse": ', b'"Here."}\n'):
        time.sleep(1.0)
        os.write(write, part)
    os.close(write)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, json.loads(out)["output"]) == (0, "Here.")


def test_row_13_each_answer_of_single_steps_is_kept(cli: Cli, tools: str) -> None:
    cli.json("run", "-p", "Note three things.", "--tools", tools, "--id", "r1", exits=3)
    for text in ("one", "two", "three"):
        document = cli.json("exec", "resume", "-i", "r1", "--answer", calls(("note", {"text": text})), exits=3)
    assert [message["role"] for message in document["waiting"]["messages"]] == ["user", *["assistant", "tool"] * 3]
    assert cli.ran() == ['{"text":"one"}', '{"text":"two"}', '{"text":"three"}']
    assert cli.json("exec", "resume", "-i", "r1", "--answer", '{"response": "Noted."}', exits=2)["output"] == "Noted."


def test_row_7_of_answers_given_at_once_exactly_one_is_taken(cli: Cli) -> None:
    request = cli.json("run", "-p", "Who?", "--id", "r1", exits=3)["waiting"]["requestId"]
    results: list[Any] = []

    def answer(name: str) -> None:
        results.append((name, cli.process("run", "--id", "r1", "--answer", wrapped(request, name), "--format", "json")))

    threads = [threading.Thread(target=answer, args=(name,)) for name in ("anna", "ben", "carl")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [name for name, result in results if result.code == 0]
    assert len(taken) == 1, results
    assert all(result.code in (1, 4) and result.error["code"] in ("answer_refused", "conflict")
               for name, result in results if name not in taken)  # fmt: skip
    assert cli.json("run", "--id", "r1")["output"] == taken[0]


def test_run_without_an_id_always_begins_one(cli: Cli) -> None:
    runs = {cli.json("run", "-p", "Same.", exits=3)["run"] for _ in range(3)}
    assert len(runs) == 3
    assert {row["run"] for row in cli.json("exec", "list")["runs"]} == runs


def test_another_prompt_or_other_tools_for_a_run_that_is_there_are_refused(cli: Cli, tools: str) -> None:
    first = cli.json("run", "-p", "One {{ thing }}.", "--tools", tools, "--id", "r1", exits=3)
    before = files(cli)
    assert "another prompt" in cli.refused("run", "-p", "Two.", "--id", "r1", exits=1)["message"]
    other = manifest(cli, tool("add", "echo 1"), name="other.json")
    before = files(cli)
    assert "other tools" in cli.refused("run", "--tools", other, "--id", "r1", exits=1)["message"]
    assert "nothing was refined" in cli.refused("run", "--id", "r1", "--refine-text", "x", exits=1)["message"]
    assert files(cli) == before
    same = cli.json("run", "-p", "One {{ thing }}.", "--tools", tools, "--id", "r1", exits=3)
    assert same["head"] == first["head"]
    cli.json("run", "--id", "r1", "--answer", '"Done."')
    assert "another prompt" in cli.refused("run", "-p", "Two.", "--id", "r1", exits=1)["message"]
    assert cli.json("run", "-p", "One {{ thing }}.", "--id", "r1")["status"] == "complete"
    anew = cli.json("run", "-p", "Two.", "--id", "r1", "--force", exits=3)
    assert anew["waiting"]["prompt"] == "Two."
    assert [row["event"]["type"] for row in cli.json("log", "run:r1")["snapshots"]].count("started") == 2


def test_a_run_that_is_not_there_needs_a_prompt(cli: Cli) -> None:
    assert cli.refused("run", "--id", "nobody", exits=1)["code"] == "not_found"
    assert cli.refused("run", "--id", "../x", "-p", "x", exits=64)["code"] == "usage"
    assert not cli.state.exists()
    cli.json("run", "-p", "x", "--id", "r1", exits=3)
    assert "needs a prompt" in cli.refused("run", "--id", "r1", "--force", exits=64)["message"]


def test_a_prompt_is_plain_text(cli: Cli) -> None:
    failures = Failures()
    for prompt in [
        "{{ state }}",
        "a }} b {{ c",
        "{{",
        "{{ '{{' }}",
        "{% raw %} ${x} \\n",
        "ü \U0001f600\n\ttwo\n lines ",
    ]:
        with failures.case(prompt), cli.fresh():
            assert cli.json("run", "-p", prompt, exits=3)["waiting"]["prompt"] == prompt
            path = cli.home / "prompt.txt"
            path.write_text(prompt + "\n")
            assert cli.json("run", "--prompt-file", str(path), exits=3)["waiting"]["prompt"] == prompt
            assert cli.json("run", "-", stdin=prompt.encode() + b"\n", exits=3)["waiting"]["prompt"] == prompt
    failures.check()


def test_what_makes_no_sense_is_a_usage_error_and_nothing_happens(cli: Cli) -> None:
    failures = Failures()
    for words in [
        ["-p", ""],
        ["-p", " \n"],
        ["-p", "x", "-"],
        ["-p", "x", "--prompt-file", "f"],
        ["--prompt-file", "not there"],
        ["-"],
        ["x"],
        ["-p", "x", "--record", "a", "--playback", "b"],
        ["-p", "x", "--playback-mode", "strict"],
        ["-p", "x", "--playback", "a", "--playback-mode", "loose"],
        ["-p", "x", "--record", ""],
        ["-p", "x", "--input-format", "yaml"],
        ["--force"],
        ["--answer", "1"],
    ]:
        with failures.case(words), cli.fresh():
            assert cli.refused("run", *words, exits=64)["code"] == "usage"
            assert not cli.state.exists()
    failures.check()


def test_a_prompt_that_is_not_utf8_or_too_large_is_a_usage_error(cli: Cli) -> None:
    cli.refused("run", "-", stdin=b"caf\xe9", exits=64)
    cli.refused("run", "-", stdin=b"x" * ((16 << 20) + 1), exits=64)
    assert not cli.state.exists()


def test_standard_input_that_held_the_prompt_or_nothing_to_answer_is_not_read_as_an_answer(cli: Cli) -> None:
    cli.json("run", "-", "--id", "r1", stdin=b"The prompt.", exits=3)

    class UnreadableScope(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            raise AssertionError("standard input was read")

    unread = io.TextIOWrapper(io.BufferedReader(UnreadableScope()))
    cli.json("run", "-p", "Another.", stdin=unread, exits=3)
    cli.json("run", "--id", "r1", "--no-input", stdin=unread, exits=3)
    cli.json("run", "--id", "r1", "--answer", '"Done."', stdin=unread)


def test_the_answer_is_printed_whole_below_the_status_and_alone_with_q(cli: Cli) -> None:
    answer = "First line,\n\n  second ü\x1b[31m.\n" + "long " * 100
    cli.json("run", "-p", "x", "--id", "r1", exits=3)
    cli.json("run", "--id", "r1", "--answer", json.dumps(answer))
    shown = answer.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    text = cli("run", "--id", "r1").out.decode()
    assert text.startswith("run r1: complete (turn 1: agent, complete)\n  head:   ")
    assert text.endswith(f"\n\n{shown}\n")
    assert cli("run", "--id", "r1", "-q").out.decode() == f"{shown}\n"
    assert cli("exec", "resume", "r1").out.decode() == text
    assert cli("exec", "resume", "r1", "-q").out.decode() == f"{shown}\n"


def test_what_a_complete_run_of_run_is_reported_can_be_followed(cli: Cli) -> None:
    cli.json("run", "-p", "x", "--id", "r1", exits=3)
    cli.json("exec", "resume", "r1", "--answer", '"Done."')
    hint = cli.refused("exec", "resume", "r1", "--input", '"More."', exits=64)["hint"]
    assert "`stateline run -p TEXT --input JSON`" in hint
    assert "`stateline run --id r1 --force -p TEXT --input JSON`" in hint
    machine = cli.machine(ask={"human": {"prompt": "What?"}})
    cli.json("execute", machine, "--id", "m1", exits=3)
    cli.json("exec", "resume", "m1", "--answer", "1")
    hint = cli.refused("exec", "resume", "m1", "--input", "2", exits=64)["hint"]
    assert f"`stateline execute '{machine}' --id m1 --force --input JSON`" in hint


def printed(text: str, label: str) -> list[str]:
    """The words of the command that stands behind ``label`` in a text for people, as a shell reads them."""
    joined = text.replace("\\\n", " ")
    line = next(line for line in joined.splitlines() if line.strip().startswith(f"{label}:"))
    words = shlex.split(line.partition(":")[2])
    assert words[0] == "stateline"
    return words[1:]


def test_a_request_is_shown_with_the_command_that_answers_it(cli: Cli, tools: str) -> None:
    text = cli("run", "-p", "What is it?\nSay.", "--tools", tools, "--id", "r1").out.decode()
    assert "asks a model: What is it?" in text
    assert "tool add(a: integer, b: integer): Does add." in text
    assert "stateline exec resume r1 --input-format text" in text
    words = printed(text, "answer")
    assert printed(cli("exec", "status", "r1").out.decode(), "answer") == words
    first = cli.json(*words)
    assert first["output"] == "TEXT"
    assert cli.json(*words) == first, "given twice, it is one answer"


def test_the_call_that_is_printed_fits_the_tool_and_counts_once(cli: Cli) -> None:
    path = manifest(cli, tool("note", "cat >> ran", text="string", n="integer", it_s="boolean"))
    words = printed(cli("run", "-p", "Note.", "--tools", path, "--id", "r1").out.decode(), "call")
    first = cli.json(*words, exits=3)
    assert cli.json(*words, exits=3) == first
    assert [json.loads(line) for line in cli.ran()] == [{"it_s": False, "n": 1, "text": "text"}]


def test_where_a_schema_is_asked_for_it_is_shown_and_the_template_fits(cli: Cli) -> None:
    failures = Failures()
    for schema in [
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]},
        {"type": "object", "properties": {"kind": {"enum": ["it's", "bug"]}}, "required": ["kind"]},
        {"type": "object", "properties": {"in": {"type": "object", "required": ["x"]}}, "required": ["in", "free"]},
        {"type": ["null", "object"], "properties": {"n": {"const": 7}}, "required": ["n"]},
        {"type": "array", "items": {"type": "string"}, "minItems": 2},
        {"type": "boolean"},
    ]:
        with failures.case(schema), cli.fresh():
            machine = cli.machine(think={"agent": {"prompt": "Say.", "output_schema": schema}})
            text = cli("execute", machine, "--id", "r1").out.decode()
            lines = text.replace("\n" + " " * 10, "").splitlines()
            line = next(line for line in lines if line.startswith("  schema: "))
            assert json.loads(line.partition(": ")[2]) == schema
            words = printed(text, "answer")
            first = cli.json(*words)
            assert first["status"] == "complete"
            assert cli.json(*words) == first
    failures.check()


def test_json_that_is_broken_is_refused_where_a_model_is_asked_and_never_taken_for_its_answer(
    cli: Cli, tools: str
) -> None:
    first = cli.json("run", "-p", "Add.", "--tools", tools, "--id", "r1", exits=3)
    before = files(cli)
    quotes = (b'"Yes.', b'"Yes," he said.', b' "a\nb"', b'"a"]')
    braces = (b'{"tools": [{"name": "add", "params": {"a": 1, "b": 2}}]', b' \n["x"', b"[x]", b"{", b'{"a": 1} x')
    for broken in (*braces, *quotes):
        for words in (["exec", "resume", "r1"], ["run", "--id", "r1"]):
            error = cli.refused(*words, stdin=broken, exits=1)
            assert error["code"] == "answer_refused"
            assert "still waits" in error["message"]
            assert "--input-format text" in error["hint"]
    assert files(cli) == before
    assert cli.json("run", "--id", "r1", exits=3)["waiting"] == first["waiting"]
    assert cli.json("exec", "resume", "r1", "--input-format", "text", stdin=b"[x]")["output"] == "[x]"


def test_a_person_may_still_be_answered_with_text_that_begins_like_json(cli: Cli) -> None:
    cli.json("execute", cli.machine(ask={"human": {"prompt": "What?"}}), "--id", "r1", exits=3)
    assert cli.json("exec", "resume", "r1", stdin=b"[sic] yes")["output"] == "[sic] yes"


def test_row_11_every_outcome_is_exactly_one_document_on_standard_output(cli: Cli, tools: str) -> None:
    for words, stdin, exits in (
        (["run", "-p", "x", "--id", "r1", "--tools", tools, "-v"], b"", 3),
        (["run", "--id", "r1", "-v"], b'{"tools": [{"name": "nope", "params": {}}]}', 1),
        (["run", "--id", "r1", "-v"], b'{"tools": [{"name": "add", "params": {"a": 1, "b": 2}}]}', 3),
        (["run", "--id", "r1", "-v"], b'{"response": "3"}', 0),
        (["run", "--id", "r1", "-p", "y"], b"", 1),
        (["run", "-p", "x", "--playback", "nowhere"], b"", 1),
        (["run", "-p", "x", "-m", "nobody/x"], b"", 1),
        (["run", "-p"], b"", 64),
    ):
        result = cli(*words, "--format", "json", stdin=stdin)
        assert result.code == exits, (words, result)
        assert isinstance(result.document, dict)


def test_a_secret_in_the_prompt_is_masked_before_anything_is_kept(cli: Cli) -> None:
    cli.monkeypatch.setenv("THE_API_KEY", "very-secret-value-1")
    document = cli.json("run", "-p", "Use very-secret-value-1 now.", "--id", "r1", exits=3)
    assert document["waiting"]["prompt"] == "Use [REDACTED] now."
    assert any("masked" in warning for warning in document["warnings"])
    cli.json("run", "-p", "Use very-secret-value-1 now.", "--id", "r1", exits=3)
    for path in cli.home.rglob("*"):
        assert not path.is_file() or b"very-secret-value-1" not in path.read_bytes()


def test_flags_over_a_context_that_is_there_hold_for_this_call_only(cli: Cli) -> None:
    cli.json("run", "-p", "x", "--system", "Stored.", "--developer", "One.", "--set", "top_p=0.5", exits=3)
    (scope,) = [row["scope"] for row in cli.json("scopes")["scopes"] if row["scope"].startswith("context:")]
    head = cli.json("scopes")
    over = cli.json("run", "-p", "x", "--system", "Now.", "--developer", "Two.", "--id", "r2", exits=3)
    assert [(said["role"], said["content"]) for said in over["waiting"]["messages"]] == [
        ("system", "Now."), ("developer", "One."), ("developer", "Two."), ("user", "x"),
    ]  # fmt: skip
    after = [row for row in cli.json("scopes")["scopes"] if row["scope"] == scope]
    assert after == [row for row in head["scopes"] if row["scope"] == scope]
    plain = cli.json("run", "-p", "x", exits=3)["waiting"]["messages"]
    assert [said["content"] for said in plain] == ["Stored.", "One.", "x"]


def test_what_a_run_leaves_is_private(cli: Cli, tools: str) -> None:
    cli.json("run", "-p", "x", "--tools", tools, exits=3)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in Path(cli.state).rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
