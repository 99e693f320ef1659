"""The tools manifest of a machine: read when a run starts, and from then on a part of the machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from dry_runs import plan_execute
from each_case import for_each
from scripted_model import Scripted, calls, says, shell, write_machine, write_tools

from stateline import Store
from stateline.errors import IntegrityError, InvalidMachineError, MachineChangedError, StatelineError
from stateline.redaction.redactor import Redactor
from stateline.service.execute import execute, resume
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.repair import apply_repair
from stateline.service.runs import history
from stateline.store.memory import MemoryBackend
from stateline.store.scope import Scope

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tools are POSIX shell")

RUN = "r"
SECRET = "sesame-open-12"


@pytest.fixture
def store() -> Store:
    return new_store()


def new_store() -> Store:
    return Store(MemoryBackend(), redactor=Redactor([("KEY", SECRET)]))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return new_path(tmp_path)


def new_path(tmp_path: Path) -> str:
    write_tools(tmp_path, a=shell("echo 1"))
    return machine(tmp_path)


def machine(place: Path) -> str:
    stages = {"think": {"agent": {"prompt": "Go.", "tools": ["a"]}, "default_next": "end"}, "end": {"end": {}}}
    return write_machine(place, stages, tools="tools.json")


def scope(store: Store) -> Scope:
    return store.scope(f"run:{RUN}")


def call(model: Scripted, **more: Any) -> CallOptions:
    return CallOptions(models=model, one_turn=True, **more)


def test_the_machine_record_holds_the_tools_and_the_event_their_path(store: Store, path: str, tmp_path: Path) -> None:
    execute(store, ExecuteOptions(machine=path, run=RUN))
    head = scope(store).load()
    data = (tmp_path / "tools.json").read_bytes()
    import hashlib

    assert head.event["tools"] == {
        "path": str(tmp_path / "tools.json"),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    spec = json.loads(store.get(head.envelope.objects["/machine/spec"]))
    assert spec["toolset"]["tools"]["a"]["argv"] == ["/bin/sh", "-c", "echo 1"]


def test_a_changed_manifest_is_refused_without_accept_change(store: Store, path: str, tmp_path: Path) -> None:
    model = Scripted(calls(("a", {})), calls(("a", {})), says("done"))
    execute(store, ExecuteOptions(machine=path, run=RUN, call=call(model)))
    write_tools(tmp_path, a=shell("echo 2"))
    head = scope(store).load().sha256
    with pytest.raises(MachineChangedError, match="tools manifest changed") as caught:
        execute(store, ExecuteOptions(machine=path, run=RUN, call=call(model)))
    plan = plan_execute(store, ExecuteOptions(machine=path, run=RUN, call=call(model)))
    assert (plan.action, plan.exit) == ("refuse", 1)
    assert caught.value.message in plan.reason
    assert scope(store).load().sha256 == head
    accepted = execute(store, ExecuteOptions(machine=path, run=RUN, accept_change=True, call=call(model)))
    assert any("change of the tools manifest is accepted" in warning for warning in accepted.warnings)
    done = execute(store, ExecuteOptions(machine=path, run=RUN, call=call(model)))
    assert done.status == "complete"
    assert [message["content"] for message in model.requests[2].messages if message["role"] == "tool"] == [1, 2]


def test_resume_uses_the_tools_with_which_the_run_started(store: Store, path: str, tmp_path: Path) -> None:
    model = Scripted(calls(("a", {})), calls(("a", {})), says("done"))
    execute(store, ExecuteOptions(machine=path, run=RUN, call=call(model)))
    (tmp_path / "tools.json").unlink()
    resume(store, RUN, CallOptions(models=model))
    assert [message["content"] for message in model.requests[2].messages if message["role"] == "tool"] == [1, 1]


def test_an_unusable_manifest_is_an_error_and_nothing_is_stored(tmp_path: Path) -> None:
    def check(tmp_path: Path, spoil: str) -> None:
        store = new_store()
        path = new_path(tmp_path)
        manifest = tmp_path / "tools.json"
        if spoil == "no such tool":
            write_tools(tmp_path, b=shell("echo 1"))
        elif "secret" in spoil:
            write_tools(tmp_path, a=shell(f"echo {SECRET}"))
            if spoil == "a secret in escapes":
                manifest.write_text(manifest.read_text().replace("sesame", "ses\\u0061me"))
        else:
            manifest.unlink()
            if spoil == "a directory":
                manifest.mkdir()
            elif spoil == "not json":
                manifest.write_text("{")
        with pytest.raises(InvalidMachineError) as caught:
            execute(store, ExecuteOptions(machine=path, run=RUN))
        assert SECRET not in caught.value.message
        assert list(store.backend.scopes()) == []
        assert plan_execute(store, ExecuteOptions(machine=path, run=RUN)).exit == 1

    for_each(
        check,
        [(spoil,) for spoil in ["gone", "not json", "a directory", "a secret", "a secret in escapes", "no such tool"]],
        root=tmp_path,
    )


def test_a_manifest_that_became_unreadable_is_an_error(store: Store, path: str, tmp_path: Path) -> None:
    execute(store, ExecuteOptions(machine=path, run=RUN))
    (tmp_path / "tools.json").unlink()
    with pytest.raises(StatelineError, match="tools manifest"):
        execute(store, ExecuteOptions(machine=path, run=RUN))


def test_a_machine_and_its_tools_can_be_moved(store: Store, path: str, tmp_path: Path) -> None:
    execute(store, ExecuteOptions(machine=path, run=RUN))
    moved = tmp_path / "there"
    moved.mkdir()
    for name in ("m.json", "tools.json"):
        (tmp_path / name).rename(moved / name)
    model = Scripted(calls(("a", {})), says("done"))
    done = execute(store, ExecuteOptions(machine=str(moved / "m.json"), run=RUN, call=CallOptions(models=model)))
    assert done.status == "complete"
    assert scope(store).load().event["tools"]["path"] == str(moved / "tools.json")


# -- what others may have written --------------------------------------------------------------------------------------


def forge(store: Store, change: Any) -> None:
    """Append a snapshot that is the head's but for what ``change`` does to its state and event."""
    head = scope(store).load()
    state = store.resolve({name: part for name, part in head.state.items() if name != "machine"})
    event = {**json.loads(json.dumps(head.event)), "type": "replaced", "asked": []}
    change(state, event)
    scope(store).save({**state, "machine": head.state["machine"]}, kind="run", event=event, parent=head, masked=True)


def begun(store: Store, path: str) -> Scripted:
    """A run whose reply was kept, and whose tool calls are still to be performed."""

    class Stopped(Exception):
        pass

    def watch(run: Any, what: str) -> None:
        if what == "calls":
            raise Stopped

    model = Scripted(calls(("a", {}), ("a", {"x": 1})), says("done"))
    with pytest.raises(Stopped):
        execute(store, ExecuteOptions(machine=path, run=RUN, call=CallOptions(models=model, watch=watch)))
    assert scope(store).load().state["tree"]["phase"] == "calling"
    return model


def test_a_round_of_tool_calls_continues_after_a_crash(store: Store, path: str) -> None:
    model = begun(store, path)
    assert resume(store, RUN, CallOptions(models=model)).output == "done"
    assert len(model.requests) == 2


def test_the_effects_of_a_round_are_checked_before_any_tool_runs(tmp_path: Path) -> None:
    def check(place: Path, change: Any) -> None:
        store = new_store()
        path = new_path(place)
        model = begun(store, path)
        forge(store, change)
        with pytest.raises(IntegrityError) as caught:
            resume(store, RUN, CallOptions(models=model))
        assert caught.value.finding == "malformed"

    for_each(
        check,
        [
            (change,)
            for change in [
                lambda state, event: event.pop("calls"),
                lambda state, event: event["calls"]["keys"].pop("c1"),
                lambda state, event: state["tree"]["pending"][0].update(name="unknown"),
                lambda state, event: state["tree"]["pending"][0].update(status="done"),
                lambda state, event: state["tree"]["pending"][0].pop("arguments"),
                lambda state, event: state["tree"]["pending"][1].update(id="c0"),
                lambda state, event: state["tree"].update(pending=[]),
                lambda state, event: state["tree"]["conversation"].append({"role": "robot", "content": ""}),
                lambda state, event: state.update(status="waiting"),
                lambda state, event: event["meters"].update(tokens=5),
            ]
        ],
        root=tmp_path,
    )


def test_calls_that_lost_snapshots_may_have_performed_have_unknown_outcome(
    store: Store, path: str, tmp_path: Path
) -> None:
    model = begun(store, path)
    forge(store, lambda state, event: event["calls"].update(doubtful=True))
    plan = plan_execute(store, ExecuteOptions(machine=path, run=RUN, call=CallOptions(models=model)))
    assert (plan.exit, plan.effects) == (3, [])
    waits = resume(store, RUN, CallOptions(models=model))
    assert (waits.exit_code, waits.waiting["kind"], waits.waiting["call"]) == (3, "unknown_outcome", "c0")
    assert "lost" in waits.waiting["message"]
    again = resume(store, RUN, CallOptions(models=model, answer=7))
    assert (again.exit_code, again.waiting["call"]) == (3, "c1")
    done = resume(store, RUN, CallOptions(models=model), retry=True)
    assert done.status == "complete"
    assert [message["content"] for message in model.requests[1].messages if message["role"] == "tool"] == [7, 1]
    assert "doubtful" not in json.dumps(scope(store).load().event)
    rows = history(store, RUN)
    assert [(row["reason"], row["output"]) for row in rows] == [
        ("start", None),
        ("replied", None),
        ("replaced", None),
        ("answered", None),
        ("retried", None),
        ("complete", "done"),
    ]
    assert [(tool["status"], tool["by"]) for tool in rows[1]["tools"]] == [("done", "person"), ("done", "program")]


def test_a_repeatable_tool_is_never_in_doubt(store: Store, tmp_path: Path) -> None:
    write_tools(tmp_path, a=shell("echo 1", repeatable=True))
    model = begun(store, machine(tmp_path))
    forge(store, lambda state, event: event["calls"].update(doubtful=True))
    assert resume(store, RUN, CallOptions(models=model)).status == "complete"


def test_calls_before_snapshots_declared_lost_have_unknown_outcome(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", durability="fast")
    write_tools(tmp_path, a=shell("echo x >> ran; echo 1"))
    path = machine(tmp_path)
    model = Scripted(calls(("a", {})), says("done"), says("done"))
    execute(store, ExecuteOptions(machine=path, run=RUN, call=call(model)))
    snapshots = sorted((tmp_path / "s" / scope(store).hash).glob("state-*.json"))
    for lost in snapshots[2:]:  # the intent of the call, and its end
        lost.write_bytes(lost.read_bytes()[:-20])
    store = Store.open(tmp_path / "s", durability="fast")
    apply_repair(store, None)
    assert scope(store).load().event["calls"]["doubtful"] is True
    waits = resume(store, RUN, CallOptions(models=model))
    assert (waits.exit_code, waits.waiting["tool"]) == (3, "a")
    assert (tmp_path / "ran").read_text() == "x\n"
    assert resume(store, RUN, CallOptions(models=model, answer=5)).status == "complete"
    assert (tmp_path / "ran").read_text() == "x\n"
    assert [message["content"] for message in model.requests[-1].messages if message["role"] == "tool"] == [5]
