"""A paid reply that was saved is never paid again; a tool that must not be repeated is never called again unasked.

Real processes, killed for real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killed_call import Program
from scripted_model import shell, write_machine, write_tools

from stateline import Store
from stateline.store.snapshot import Snapshot

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL, and the tools are POSIX shell")

CALL = Path(__file__).resolve().parent.parent / "agent_call.py"
RUN = "r"
DIE = "kill -9 $PPID; sleep 5"
"""A tool that takes the process along that called it."""


class Place:
    """A machine with one agent stage, its tools, and the script that its model goes by."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def set(self, script: list[dict[str, Any]], tools: dict[str, Any] | None = None, **stage: Any) -> None:
        self.script(script)
        write_tools(self.root, **(tools or {}))
        agent = {"prompt": "Go.", "tools": list(tools or {})}
        stages = {"think": {"agent": agent, "default_next": "end", **stage}, "end": {"end": {}}}
        write_machine(self.root, stages, tools="tools.json")

    def script(self, script: list[dict[str, Any]]) -> None:
        (self.root / "script.json").write_text(json.dumps(script))

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(CALL), "s", "m.json", "script.json", *more]
        return subprocess.Popen(command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def call(self, *more: str, exits: int) -> Any:
        """The document of a call that must exit so; None for one that prints none."""
        process = self.start(*more)
        out, err = process.communicate(timeout=60)
        assert process.returncode == exits, (out, err)
        return json.loads(out) if out else None

    @property
    def asked(self) -> list[str]:
        """The keys that the model was asked with."""
        return self.lines("asked")

    def lines(self, name: str) -> list[str]:
        path = self.root / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def chain(self) -> list[Snapshot]:
        return list(Store.open(self.root / "s").scope(f"run:{RUN}").walk())[::-1]

    def types(self) -> list[str]:
        return [snapshot.event["type"] for snapshot in self.chain()]

    def tree(self) -> Any:
        store = Store.open(self.root / "s")
        return store.resolve(store.scope(f"run:{RUN}").load().state)["tree"]

    def interrupt(self, signum: int, when: str) -> int:
        """Start a call, send it the signal once the file ``when`` has a line, and give its exit code."""
        process = self.start()
        until = time.monotonic() + 30
        while not self.lines(when) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signum)
        process.communicate(timeout=30)
        return process.returncode


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def noted(script: str = "", **more: Any) -> dict[str, Any]:
    """A tool that notes its key in the file ``ran`` first."""
    return shell(f"echo $STATELINE_IDEMPOTENCY_KEY >> ran; {script}", **more)


def test_a_reply_that_was_saved_is_not_paid_again_after_a_kill(place: Place) -> None:
    place.set([{"calls": [["a", {}]]}, {"content": "done"}, {"die": "calls"}], {"a": noted("echo 1")})
    place.call(exits=-signal.SIGKILL)
    assert place.types() == ["started", "replied"]
    place.script([{"calls": [["a", {}]]}, {"content": "done"}])
    done = place.call(exits=0)
    assert (done["status"], done["output"]) == ("complete", "done")
    assert len(place.asked) == 2, "one reply with a call of a tool, one answer"
    assert len(set(place.asked)) == 2
    assert len(place.lines("ran")) == 1


def test_a_lost_call_of_a_repeatable_tool_runs_again_with_the_same_key(place: Place) -> None:
    dies_once = f"if mkdir once 2>/dev/null; then {DIE}; fi; echo '\"second\"'"
    place.set([{"calls": [["a", {}]]}, {"content": "done"}], {"a": noted(dies_once, repeatable=True)})
    place.call(exits=-signal.SIGKILL)
    assert place.call(exits=0)["output"] == "done"
    ran = place.lines("ran")
    assert len(ran) == 2
    assert ran[0] == ran[1]
    assert len(place.asked) == 2


@pytest.mark.parametrize("words", [["--retry"], ["--answer", '"said"']])
def test_a_lost_call_of_another_tool_waits_for_word(place: Place, words: list[str]) -> None:
    dies_once = f"if mkdir once 2>/dev/null; then {DIE}; fi; echo '\"again\"'"
    place.set([{"calls": [["b", {}], ["a", {}]]}, {"content": "done"}], {"a": noted(dies_once), "b": shell("echo 1")})
    place.call(exits=-signal.SIGKILL)
    for _ in range(2):
        waits = place.call(exits=3)
        assert (waits["reason"], waits["waiting"]["kind"]) == ("unknown_outcome", "unknown_outcome")
        if waits["waiting"]["tool"] == "b":  # it had not been saved as ended when the process died
            place.call("--answer", "1", "--one", exits=3)
            waits = place.call(exits=3)
        assert (waits["waiting"]["tool"], waits["waiting"]["call"]) == ("a", "c1")
    assert len(place.lines("ran")) == 1
    assert place.call(*words, exits=0)["output"] == "done"
    assert len(place.asked) == 2
    ran = place.lines("ran")
    assert ran == ran[:1] * (2 if words == ["--retry"] else 1)
    assert json.loads(place.lines("told")[-1]) == [1, "again" if words == ["--retry"] else "said"]


def test_what_was_finished_before_a_kill_is_not_run_again(place: Place) -> None:
    """The second tool kills once the result of the first is saved."""
    saved = "until [ $(ls s/*/state-* | wc -l) -ge 5 ]; do sleep 0.01; done;"
    dies_once = f"{saved} if mkdir once 2>/dev/null; then {DIE}; fi; echo 2"
    tools = {"a": noted("echo 1"), "b": shell(dies_once, repeatable=True)}
    place.set([{"calls": [["a", {}], ["b", {}]]}, {"content": "done"}], tools)
    place.call(exits=-signal.SIGKILL)
    assert place.types() == ["started", "replied", "calls_intended", "call_ended"]
    assert place.call(exits=0)["output"] == "done"
    assert len(place.lines("ran")) == 1
    assert len(place.asked) == 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_amid_three_tools_keeps_what_is_finished_and_ends_the_rest(place: Place, signum: int) -> None:
    saved = "until [ $(ls s/*/state-* | wc -l) -ge 5 ]; do sleep 0.01; done; echo > there;"
    tools = {
        "a": noted("echo 1"),
        "b": noted("until [ -e go ]; do sleep 0.05; done; echo 2", repeatable=True),
        "c": noted(f"{saved} sleep 60"),
    }
    place.set([{"calls": [["a", {}], ["b", {}], ["c", {}]]}, {"content": "done"}], tools)
    began = time.monotonic()
    assert place.interrupt(signum, "there") == 128 + signum
    assert time.monotonic() - began < 40
    assert place.types() == ["started", "replied", "calls_intended", "call_ended"]
    assert {call["id"]: call["status"] for call in place.tree()["pending"]} == {
        "c0": "done",
        "c1": "ready",
        "c2": "started",
    }
    waits = place.call(exits=3)
    assert (waits["waiting"]["kind"], waits["waiting"]["tool"]) == ("unknown_outcome", "c")
    (place.root / "go").touch()
    done = place.call("--answer", "3", exits=0)
    assert (done["output"], len(place.asked)) == ("done", 2)
    ran = place.lines("ran")
    assert len(ran) == 4
    assert len(set(ran)) == 3, "the second ran again, with the same key"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_is_waited_for_saves_nothing_and_the_next_call_asks_again(
    place: Place, signum: int
) -> None:
    place.set([{"sleep": 60}])
    assert place.interrupt(signum, "asked") == 128 + signum
    assert place.types() == ["started"]
    place.script([{"content": "done"}])
    assert place.call(exits=0)["output"] == "done"
    assert place.asked == place.asked[:1] * 2


def test_a_model_call_that_must_not_be_repeated_is_not_made_again_unasked(place: Place) -> None:
    place.set([{"sleep": 60}], repeatable=False)
    assert place.interrupt(signal.SIGKILL, "asked") == -signal.SIGKILL
    place.script([{"content": "second"}])
    waits = place.call(exits=3)
    assert waits["waiting"]["kind"] == "unknown_outcome"
    assert "tool" not in waits["waiting"]
    assert len(place.asked) == 1
    done = place.call("--answer", json.dumps({"response": "first"}), exits=0)
    assert (done["output"], len(place.asked)) == ("first", 1)


def test_a_lost_model_call_may_be_made_again_when_the_operator_says_so(place: Place) -> None:
    place.set([{"sleep": 60}], repeatable=False)
    place.interrupt(signal.SIGKILL, "asked")
    place.script([{"content": "second"}])
    assert place.call("--retry", exits=0)["output"] == "second"
    assert place.asked == place.asked[:1] * 2


def test_two_calls_at_once_ask_the_model_once_a_turn(place: Place) -> None:
    place.set([{"calls": [["a", {}]], "sleep": 0.3}, {"content": "done", "sleep": 0.3}], {"a": noted("echo 1")})
    both = [place.start("--one") for _ in range(2)]
    codes = []
    for process in both:
        process.communicate(timeout=60)
        codes.append(process.returncode)
    assert len(place.asked) == len(set(place.asked)) <= 2
    assert place.types().count("started") == 1
    assert len(place.lines("ran")) == 1
    assert set(codes) <= {0, 2}


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    started = Program("agent_call")
    yield started
    started.close()


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_round_killed_before_any_of_its_publications_is_resumed(
    place: Place, program: Program, repeatable: bool
) -> None:
    """Every kill point of the links and renames of a round: whatever was saved is built upon."""
    script = [{"calls": [["a", {}], ["b", {}]]}, {"content": "done"}]
    tools = {name: noted("echo 1", repeatable=repeatable) for name in "ab"}
    for nth in range(2, 14):
        root = place.root / f"killed before {nth}"
        root.mkdir()
        at = Place(root)
        at.set(script, tools)
        words = [str(root / name) for name in ("s", "m.json", "script.json")]
        died = program.call(root, dict(os.environ), *words, nth=nth)
        assert died[0] == -signal.SIGKILL, died
        replied = "replied" in (at.types() if (root / "s").exists() and _has_run(root) else [])
        before = len(at.asked)
        for attempt in range(4):
            answer = ["--answer", str(attempt)] if _waits(at) else []
            code, *_ = program.call(root, dict(os.environ), *words, *answer)
            if code == 0:
                break
        assert at.types()[-1] == "replied", died
        assert len(at.asked) - before <= (1 if replied else 2), "a reply that was saved was paid again"
        ran = at.lines("ran")
        assert repeatable or len(ran) == len(set(ran)), "a tool ran twice unasked"
        assert len(set(ran)) <= 2


def _has_run(root: Path) -> bool:
    return Store.open(root / "s").scope(f"run:{RUN}").head() is not None


def _waits(place: Place) -> bool:
    return _has_run(place.root) and place.chain()[-1].state["status"] == "waiting"
