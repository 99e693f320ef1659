"""``exec history``: what a model said, which tools it called with what, what they gave, and what came out."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from each_case import Failures
from model_server import ModelServer, Say

from stateline.cli.history import turn_lines

MANY = 30  # tool rounds of three messages: the conversation is a long list of more than one chunk then


def make_tools(cli: Cli) -> str:
    """A manifest with tools that give back what they got, break, print something large, and must not run twice."""
    path: Path = cli.home / "tools.json"
    written = [
        tool("echo", "cat", value={}),
        tool("fail", "echo broken >&2; exit 3"),
        tool("large", "printf '\"'; head -c 9000 /dev/zero | tr '\\0' z; printf '\"'"),
        tool("once", "echo 1", repeatable=False),
        tool("null", "echo null"),
    ]
    path.write_text(json.dumps({"tools": written}))
    return str(path)


@pytest.fixture
def tools(cli: Cli) -> str:
    return make_tools(cli)


def tool(name: str, script: str, *, repeatable: bool = True, **arguments: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": arguments, "additionalProperties": False}
    argv = ["sh", "-c", script]
    return {"name": name, "description": name, "schema": schema, "argv": argv, "repeatable": repeatable}


def say(text: str = "", *calls: tuple[str, Any]) -> str:
    """A reply in a model's stead: a text, and calls of tools by name and arguments."""
    reply: dict[str, Any] = {"response": text} if text else {}
    return json.dumps(reply | ({"tools": [{"name": name, "params": given} for name, given in calls]} if calls else {}))


def begun(cli: Cli, tools: str) -> None:
    cli.json("run", "-p", "Do it.", "--id", "r1", "--tools", tools, exits=3)


def answered(cli: Cli, reply: str, exits: int = 3) -> None:
    cli.json("exec", "resume", "r1", "--answer", reply, exits=exits)


def rows(cli: Cli) -> Any:
    return cli.json("exec", "history", "r1")["history"]


def text(cli: Cli, *words: str) -> list[str]:
    result = cli("exec", "history", "r1", *words)
    assert (result.code, result.err) == (0, "")
    lines: list[str] = result.out.decode().split("\n")[:-1]
    return lines


def test_the_document_has_arguments_and_results_whole_and_the_text_beside_the_calls(cli: Cli, tools: str) -> None:
    begun(cli, tools)
    answered(cli, say("Let me look.", ("echo", {"value": {"deep": [1]}}), ("large", {}), ("fail", {})))
    answered(cli, say("Done."), exits=0)
    start, called, last = rows(cli)
    assert (start["text"], start["tools"], start["output"]) == (None, [], None)
    assert (called["text"], called["output"]) == ("Let me look.", None)
    told = [(call["name"], call["arguments"], call["status"], call["error"]) for call in called["tools"]]
    assert told == [
        ("echo", {"value": {"deep": [1]}}, "done", None),
        ("large", {}, "done", None),
        ("fail", {}, "done", "exit"),
    ]
    echoed, large, failed = [call["result"] for call in called["tools"]]
    assert echoed == {"value": {"deep": [1]}}
    assert large == "z" * 9000
    assert "broken" in failed["error"]["message"]
    assert (last["text"], last["tools"], last["output"]) == (None, [], "Done.")


def test_each_row_of_a_long_conversation_has_its_own_calls(cli: Cli, tools: str) -> None:
    begun(cli, tools)
    for number in range(MANY):
        answered(cli, say(f"Step {number}.", ("echo", {"value": number}), ("echo", {"value": "x" * 5000})))
    found = rows(cli)
    assert [row["text"] for row in found] == [None, *(f"Step {number}." for number in range(MANY))]
    for number, row in enumerate(found[1:]):
        small, large = row["tools"]
        assert (small["arguments"], small["result"]) == ({"value": number}, {"value": number})
        assert (large["arguments"], large["result"]) == ({"value": "x" * 5000}, {"value": "x" * 5000})


def test_in_text_every_step_is_one_line(cli: Cli, tools: str) -> None:
    begun(cli, tools)
    answered(cli, say("I look\nat it.", ("echo", {"value": 1}), ("fail", {}), ("null", {})))
    answered(cli, say("One,\n\ntwo."), exits=0)
    start, heading, *steps = text(cli)
    assert start.endswith("agent  (start)")
    assert "agent  (answered)  in the model's place" in heading
    assert [step.strip() for step in steps[:4]] == [
        "reply: I look at it.",
        'echo {"value":1} -> {"value":1}',
        "fail {} failed (exit): ended with exit code 3; its stderr ends: broken",
        "null {} -> null",
    ]
    assert "agent  (complete)  in the model's place" in steps[4]
    assert steps[5:] == ["      One, two."]


def test_a_call_that_was_refused_says_why(cli: Cli, tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from model_server import ModelServer, Say

    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    context = json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {}})
    calls = [("echo", {"more": 2}), ("nobody", {})]
    with ModelServer(Say(context), Say(calls=calls), Say("Done.")) as server:
        asked = ["-m", "openai/x", "--base-url", server.url]
        cli.json("run", "-p", "Do it.", "--system", "S", "--id", "r1", "--tools", tools, *asked)
    lines = "\n".join(text(cli))
    assert 'echo {"more":2} was refused (arguments): ' in lines
    assert "nobody {} was refused (unknown_tool): " in lines
    refused = rows(cli)[2]["tools"]
    assert [(call["status"], call["result"]["error"]["kind"]) for call in refused] == [
        ("refused", "arguments"),
        ("refused", "unknown_tool"),
    ]


def test_a_call_that_is_under_way_has_not_ended(cli: Cli, tools: str) -> None:
    from stateline import Store

    begun(cli, tools)
    answered(cli, say("", ("once", {}), ("echo", {"value": 1})))
    scope = Store.open(cli.state).scope("run:r1")
    head = next(past for past in scope.walk() if past.event["type"] == "calls_intended")
    with scope.locked():
        scope.store.backend.swap(scope.hash, scope.load().pointer, head.pointer)
    assert text(cli)[-2:] == ["      once {} is not finished", '      echo {"value":1} is not finished']
    assert [(call["status"], call["result"]) for call in rows(cli)[-1]["tools"]] == [("open", None)] * 2


def test_a_line_is_cut_at_the_width_and_v_shows_all(cli: Cli, tools: str) -> None:
    begun(cli, tools)
    answered(cli, say("a" * 300, ("echo", {"value": "b" * 300}), ("large", {})))
    answered(cli, say("first\n" + "c" * 300), exits=0)
    for columns in (40, 80, 200):
        lines = [line for row in rows(cli) for line in turn_lines(row, columns, whole=False)]
        assert max(len(line) for line in lines if line.startswith("      ")) == columns
        shown = next(line for line in lines if "echo" in line)
        assert '{"value":"b' in shown.partition("->")[0]
        assert '{"value":"b' in shown.partition("->")[2]
    whole = "\n".join(text(cli, "-v"))
    for letter, count in (("a", 300), ("b", 300), ("z", 9000), ("c", 300)):
        assert letter * count in whole
    assert "\n      first\n      ccc" in whole


def test_what_a_model_and_its_tools_say_cannot_act_on_a_terminal(cli: Cli, tools: str) -> None:
    harm = "\x1b[2J\x9b1m\u202e\x7f\rgone"
    begun(cli, tools)
    answered(cli, say(f"text{harm}", ("echo", {"value": harm})))
    answered(cli, say(f"answer{harm}"), exits=0)
    for words in ([], ["-v"]):
        shown = "\n".join(text(cli, *words))
        assert not [letter for letter in shown if letter in "\x1b\x9b\u202e\x7f\r"]
        assert "gone" in shown
    assert rows(cli)[1]["text"] == f"text{harm}"


def test_a_lost_call_whose_result_a_person_gave_has_that_result(cli: Cli, tools: str) -> None:
    hold = cli.home / "tools.json"
    written = {"tools": [tool("once", "echo $PPID >&2; touch began; sleep 60", repeatable=False)]}
    hold.write_text(json.dumps(written))
    begun(cli, str(hold))
    child = cli.start("exec", "resume", "r1", "--answer", say("", ("once", {})), "--no-input")
    _wait_for(cli.home / "began")
    child.kill()
    child.communicate(timeout=30)
    cli.json("exec", "resume", "r1", exits=3)
    cli.json("exec", "resume", "r1", "--answer", '{"given": 7}', exits=3)
    (call,) = rows(cli)[1]["tools"]
    assert (call["status"], call["result"]) == ("done", {"given": 7})
    assert "(result of a tool)  answered by " in text(cli)[-1]


def _wait_for(path: Path, seconds: float = 30.0) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if path.exists():
            return
        pause.wait(0.05)
    raise TimeoutError(f"{path} is not there after {seconds} s")


def at(*path: Any, value: Any) -> Any:
    """A change of a run's state: ``value`` at that path."""

    def change(state: Any) -> None:
        for token in path[:-1]:
            state = state[token]
        state[path[-1]] = value

    return change


def test_a_past_that_others_have_written_is_damage_or_shown_as_far_as_it_goes(cli: Cli) -> None:
    failures = Failures()
    for change, exits in [
        (at("tree", value=5), 5),
        (at("tree", value=None), 5),
        (at("tree", "conversation", value=[5]), 5),
        (at("tree", "conversation", value=[]), 0),
        (at("tree", "conversation", value={"role": "tool"}), 0),
        (at("tree", "conversation", 1, "tool_calls", value=[7, {"id": ["x"]}]), 0),
        (at("tree", "conversation", 1, "tool_calls", value="text"), 0),
        (at("tree", "conversation", 1, "content", value=None), 0),
        (at("tree", "pending", value=[5, {"id": 3}]), 0),
        (at("tree", "pending", value="text"), 0),
    ]:
        with failures.case(change, exits), cli.fresh():
            tools = make_tools(cli)
            from stateline import Store

            begun(cli, tools)
            answered(cli, say("Look.", ("echo", {"value": 1})))
            scope = Store.open(cli.state).scope("run:r1")
            chain = list(scope.walk())[::-1]
            forged = scope.store.resolve(chain[1].state)
            change(forged)
            forged["machine"] = chain[0].state["machine"]
            scope.save(forged, kind="run", event=chain[1].event, masked=True)
            scope.save(chain[-1].state, kind="run", event=chain[-1].event, masked=True)
            for words in ([], ["-v"], ["--format", "json"]):
                result = cli("exec", "history", "r1", *words)
                assert (result.code, "bug" in result.err) == (exits, False), result
    failures.check()


def test_a_run_that_a_limit_ended_where_its_last_call_was_cut_off_says_so(cli: Cli) -> None:
    cli.monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0123456789abcdef")
    path = cli.machine(_bounds={"max_llm_calls": 1}, think={"agent": {"prompt": "Go on."}})
    with ModelServer(Say("never", until=threading.Event())) as server:
        words = ["execute", path, "--id", "r", "-m", "openai/m", "--base-url", server.url]
        process = cli.start(*words)
        server.wait(1)
        process.kill()
        process.communicate(timeout=30)
        assert [row["reason"] for row in cli.json("exec", "history", "r")["history"]] == ["start"]
        error = cli.json(*words, exits=1)["error"]
    rows = cli.json("exec", "history", "r")["history"]
    assert [row["reason"] for row in rows] == ["start", "lost"]
    assert (rows[-1]["error"]["kind"], rows[-1]["error"]["bound"]) == (error["kind"], "max_llm_calls")
    assert error["message"] in cli("exec", "history", "r", "-v").out.decode()
    assert "limit max_llm_calls" in cli("log", "run:r").out.decode()
    Path(path).write_text(Path(path).read_text().replace("Go on.", "Go on!"))
    cli.json("execute", path, "--id", "r", "--accept-change", exits=1)
    assert cli.json("log", "run:r")["snapshots"][0]["event"]["type"] == "replaced"
    assert cli.json("exec", "history", "r")["history"][:-1] == rows
    assert cli.json("exec", "history", "r")["history"][-1]["error"] is None, "a failure is told once"
