"""N isolated calls of `execute -i` end in the state of one `execute`, byte for byte, by the same events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Scripted, calls, says
from stress.runs import resolved_bytes, state_bytes

from stateline import Store
from stateline.service.execute import execute
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are POSIX shell")

RUN = "r"
ENDS = {0: "advanced", 1: "error", 2: "complete", 3: "waiting"}

FAILS_ONCE = "case $(cat) in *'\"attempt\":1,'*) echo not yet >&2; exit 7;; *) echo '\"at last\"';; esac"


def say(value: Any, **more: Any) -> dict[str, Any]:
    """A task stage that prints ``value``."""
    return {"task": ["/bin/echo", json.dumps(value)], **more}


def sh(script: str, **more: Any) -> dict[str, Any]:
    return {"task": ["/bin/sh", "-c", script], **more}


LOOP = {
    "state": {"n": 0, "seen": []},
    "stages": {
        "one": say({"v": 1}, repeatable=True, set={"n": "state.n + output.v"}, default_next="two"),
        "two": sh(
            "printf '\"%06000d\"' 7",
            set={"seen": "state.seen + [output]"},
            routes=[{"when": "state.n < 4", "to": "one"}],
            default_next="end",
        ),
        "end": {"end": {}},
    },
}
HUMAN = {
    "state": {"answers": []},
    "stages": {
        "ask": {
            "human": {"prompt": "Round {{ visits.ask }}?", "schema": {"type": "object", "required": ["go"]}},
            "set": {"answers": "state.answers + [output]"},
            "default_next": "work",
        },
        "work": say([1, 2.5, "drei"], routes=[{"when": "outputs.ask.go", "to": "ask"}], default_next="last"),
        "last": {"human": {"prompt": "Anything else?"}},
    },
}
FAILURES = {
    "state": {"kinds": []},
    "stages": {
        "exits": sh("echo broken >&2; exit 3", error_next="noted"),
        "noted": say("x", repeatable=True, set={"kinds": "state.kinds + [error.kind]"}, default_next="prints"),
        "prints": sh("echo not json", repeatable=True, error_next="sets"),
        "sets": say({"a": 1}, set={"b": "output.missing"}, error_next="absent"),
        "absent": {"task": ["./no-such-program"], "error_next": "last"},
        "last": say(None, set={"kinds": "state.kinds + [error.kind]"}),
    },
}
RETRIES = {
    "stages": {
        "once": sh(FAILS_ONCE, retry={"max_attempts": 3}, default_next="again"),
        "again": sh(FAILS_ONCE, retry={"max_attempts": 2, "backoff": 0.01}, repeatable=True, default_next="never"),
        "never": sh("echo no >&2; exit 1", retry={"max_attempts": 3}, repeatable=True, error_next="end"),
        "end": {"end": {}},
    }
}
BOUND = {
    "bounds": {"max_iterations": 3},
    "stages": {"a": say(1, default_next="b"), "b": say(2, repeatable=True, default_next="a")},
}
LIMITS = {
    "edge_limits": [{"from": "a", "to": "b", "max_count": 2}],
    "stages": {
        "a": say(1, max_visits=9, default_next="b", error_next="c"),
        "b": say(2, repeatable=True, default_next="a"),
        "c": say(3, max_visits=1, default_next="a"),
    },
}
AGENT = {
    "tools": "tools.json",
    "stages": {
        "think": {
            "agent": {"prompt": "Look it up: {{ visits.think }}.", "tools": ["a", "b"]},
            "set": {"said": "output"},
            "routes": [{"when": "visits.think < 2", "to": "think"}],
            "default_next": "count",
        },
        "count": say({"n": 1}, default_next="last"),
        "last": {"agent": {"prompt": "{{ state.said }}?", "output_schema": {"type": "array"}}},
    },
}
ASKED_FOR_A = {"response": "Well.", "tools": [{"name": "a"}]}
ASKED_FOR_B = {"response": "", "tools": [{"name": "b", "params": {"z": 1, "a": 2.5}}]}
TOOLS = {
    "tools": [
        {
            "name": "a",
            "description": "A.",
            "schema": {"type": "object"},
            "argv": ["/bin/sh", "-c", "echo no >&2; exit 3"],
        },
        {"name": "b", "description": "B.", "schema": {"type": "object"}, "argv": ["/bin/cat"], "repeatable": True},
    ]
}
MACHINES: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "a loop with objects": (LOOP, [], "complete"),
    "a human answers": (HUMAN, [{"go": True}, {"go": False}, "no\nthanks"], "complete"),
    "failures with error_next": (FAILURES, [], "complete"),
    "retries": (RETRIES, [], "complete"),
    "a bound ends the run": (BOUND, [], "error"),
    "whoever stands in for a model": (
        AGENT,
        [ASKED_FOR_A, "first", ASKED_FOR_B, ASKED_FOR_B, "second", "[1]"],
        "complete",
    ),
    "a limit takes error_next and one ends the run": (LIMITS, [], "error"),
}

Caller = Callable[[bool, bytes], int]
"""One call: (one turn, standard input) -> exit code."""


@pytest.fixture(params=MACHINES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[bytes], str]:
    """A machine file, the answers in the order in which they are asked for, and the status at the end."""
    machine, answers, status = MACHINES[request.param]
    path = tmp_path / "a place" / "machine.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"stateline": 1, "name": "case", **machine}))
    (path.parent / "tools.json").write_text(json.dumps(TOOLS))
    return path, [json.dumps(answer).encode() for answer in answers], status


def to_the_end(call: Caller, answers: list[bytes], *, one_turn: bool) -> int:
    """Call until the run is over, with the next answer after each call that waits; return the number of calls."""
    answers, given, calls = list(answers), b"", 0
    while True:
        code = call(one_turn, given)
        calls += 1
        given = answers.pop(0) if code == 3 else b""
        if code in (1, 2) or (code == 0 and not one_turn):
            assert not answers, "every question was asked"
            return calls
        assert calls < 99


def by_process(machine: Path, state_dir: Path) -> Caller:
    def call(one_turn: bool, given: bytes) -> int:
        command = [sys.executable, "-m", "stateline", "execute", str(machine), "--id", RUN, *["-i"] * one_turn]
        environment = {**os.environ, "STATELINE_STATE_DIR": str(state_dir)}
        done = subprocess.run(command, input=given, env=environment, capture_output=True, timeout=60)
        assert done.returncode in ENDS, done
        return done.returncode

    return call


def by_service(machine: Path, open_store: Callable[[], Store]) -> Caller:
    def call(one_turn: bool, given: bytes) -> int:
        how = CallOptions(one_turn=one_turn, stdin=lambda: given)
        return execute(open_store(), ExecuteOptions(machine=str(machine), run=RUN, call=how)).exit_code

    return call


def chain_of(store: Store) -> list[Snapshot]:
    return list(store.scope(f"run:{RUN}").walk())[::-1]


def timeless(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot's event without what a clock says and what was drawn when the run began, and its state."""
    birth = snapshot.event["birth"]
    event = json.loads(json.dumps(snapshot.event).replace(birth, "birth"))
    assert event.pop("started_at")
    event.pop("seconds", None)
    event["meters"] = {**event["meters"], "active": 0}
    return {"seq": snapshot.seq, "kind": snapshot.envelope.kind, "event": event, "state": state_bytes(snapshot)}


def require_equal(one: Store, many: Store, status: str) -> None:
    first, second = chain_of(one), chain_of(many)
    assert [timeless(snapshot) for snapshot in first] == [timeless(snapshot) for snapshot in second]
    assert resolved_bytes(one, first[-1]) == resolved_bytes(many, second[-1])
    assert first[-1].state["status"] == status


def test_isolated_processes_end_as_one_does(case: tuple[Path, list[bytes], str], tmp_path: Path) -> None:
    machine, answers, status = case
    places = [tmp_path / "one", tmp_path / "many"]
    few = to_the_end(by_process(machine, places[0]), answers, one_turn=False)
    calls = to_the_end(by_process(machine, places[1]), answers, one_turn=True)
    assert calls > few
    require_equal(Store.open(places[0]), Store.open(places[1]), status)


def test_isolated_calls_in_memory_end_as_one_on_disk_does(case: tuple[Path, list[bytes], str], tmp_path: Path) -> None:
    machine, answers, status = case
    disk, memory = tmp_path / "disk", MemoryBackend()
    to_the_end(by_service(machine, lambda: Store.open(disk)), answers, one_turn=False)
    to_the_end(by_service(machine, lambda: Store(memory)), answers, one_turn=True)
    require_equal(Store.open(disk), Store(memory), status)


def test_the_state_does_not_depend_on_the_place_the_file_name_or_the_id(tmp_path: Path) -> None:
    ends = []
    for name, run in (("here/machine.json", "a"), ("there/another name.json", "b")):
        machine = tmp_path / name
        machine.parent.mkdir()
        # One of its failures is a program that is missing beside the machine file: told without the place.
        machine.write_text(json.dumps({"stateline": 1, "name": "case", **FAILURES}))
        store = Store(MemoryBackend())
        assert execute(store, ExecuteOptions(machine=str(machine), run=run)).exit_code == 0
        ends.append(resolved_bytes(store, store.scope(f"run:{run}").load()))
    assert str(tmp_path).encode() not in ends[0]
    assert ends[0] == ends[1]


def lines() -> Scripted:
    return Scripted(
        calls(("b", {"z": 1, "a": 2.5}), ("a", {}), ("b", {"big": "x" * 5000}), usage=(7, 3)),
        says("first"),
        calls(("b", {}), ("nope", {})),
        calls(("b", {"again": True}), content="Once more."),
        says("second"),
        says("[1]"),
    )


def test_isolated_calls_with_a_model_ask_and_end_as_one_does(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"stateline": 1, "name": "case", **AGENT}))
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    ends, asked = [], []
    for one_turn in (False, True):
        for backend in (MemoryBackend(), None):
            model, where = lines(), tmp_path / f"s{one_turn}"
            code, count = 0, 0
            while code == 0 and count < 9:
                store = Store(backend) if backend is not None else Store.open(where)
                call = CallOptions(one_turn=one_turn, models=model)
                code, count = execute(store, ExecuteOptions(machine=str(path), run=RUN, call=call)).exit_code, count + 1
                if not one_turn:
                    break
            assert (code, count) == ((2, 7) if one_turn else (0, 1))
            ends.append(store)
            birth = chain_of(store)[0].event["birth"]
            asked.append([(request.digest(), request.key.replace(birth, "birth")) for request in model.requests])
            # Byte for byte: the order of keys is a difference to a model.
            asked[-1].append(json.dumps([request.document() for request in model.requests]))
    assert asked[1:] == asked[:1] * 3
    for other in ends[1:]:
        assert resolved_bytes(ends[0], chain_of(ends[0])[-1]) == resolved_bytes(other, chain_of(other)[-1])
        assert [s.event["meters"] | {"active": 0} for s in chain_of(other)][-1]["tool_rounds"] == 3
