"""A call reads and masks each value once, and a turn writes only what it changed."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dry_runs import plan_execute

from stateline import Store
from stateline.bundle import naming
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.errors import InvalidValueError
from stateline.redaction.redactor import Redactor
from stateline.service.execute import execute
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.store.memory import MemoryBackend

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are POSIX shell")

SECRET = "sesame-open-12"
END: dict[str, Any] = {"end": {}}


class Counted(MemoryBackend):
    """Counts what is read and what is put, and the bytes that are put."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.puts: dict[str, int] = {}

    def get(self, name: str, limit: int) -> bytes:
        self.reads[name] += 1
        return super().get(name, limit)

    def put(self, name: str, data: bytes) -> None:
        self.puts[name] = len(data)
        super().put(name, data)


@pytest.fixture
def backend() -> Counted:
    return Counted()


@pytest.fixture
def store(backend: Counted) -> Store:
    return Store(backend, redactor=Redactor([("KEY", SECRET)]))


def machine(tmp_path: Path, stages: dict[str, Any], **more: Any) -> str:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"stateline": 1, "name": "m", "stages": stages, **more}))
    return str(path)


def say(value: Any, **more: Any) -> dict[str, Any]:
    return {"task": ["/bin/echo", json.dumps(value)], **more}


def test_a_call_reads_the_context_of_its_run_once(store: Store, backend: Counted, tmp_path: Path) -> None:
    prepare(store, ContextOptions(name="demo", context_request=ContextRequest(system="S")))
    used = f"{naming.scope_hash('context:demo')}/{store.scope('context:demo').load().path}"
    stages = {
        "a": say(1, default_next="b"),
        "b": say(2, default_next="c", routes=[{"when": "context.prompts.system == 'never'", "to": "a"}]),
        "c": say(3, default_next="ask"),
        "ask": {"human": {"prompt": "{{ context.prompts.system }}?"}},
    }
    options = ExecuteOptions(machine=machine(tmp_path, stages), context="demo", run="r")
    # The first call begins the run, and makes sure then that what it names lasts.
    for call, reads in (
        (CallOptions(one_turn=True), 2),
        (CallOptions(one_turn=True), 1),
        (CallOptions(), 1),
        (CallOptions(), 1),
    ):
        backend.reads.clear()
        execute(store, ExecuteOptions(machine=options.machine, context="demo", run="r", call=call))
        assert backend.reads[used] <= reads
    assert store.scope("run:r").load().envelope.state["status"] == "waiting"


def test_secrets_in_the_input_and_labels_are_masked_and_counted_once(store: Store, tmp_path: Path) -> None:
    asks = machine(tmp_path, {"ask": {"human": {"prompt": "?"}}})
    given = {"say": f"{SECRET} and {SECRET}", "password": "x"}
    execute(store, ExecuteOptions(machine=asks, run="r", labels={"l": SECRET}, call=CallOptions(input=given)))
    first = store.scope("run:r").load()
    assert store.resolve(first.state)["input"] == {"say": "[REDACTED] and [REDACTED]", "password": "[REDACTED]"}
    assert first.envelope.state["labels"] == {"l": "[REDACTED]"}
    assert first.event["redactions"] == 4


def test_a_refused_input_is_masked_in_the_error_and_in_the_plan(store: Store, tmp_path: Path) -> None:
    asks = machine(tmp_path, {"ask": {"human": {"prompt": "?"}}}, input={"type": "object", "maxProperties": 0})
    options = ExecuteOptions(machine=asks, run="r", call=CallOptions(input={"say": SECRET}))
    with pytest.raises(InvalidValueError) as caught:
        execute(store, options)
    plan = plan_execute(store, options)
    assert plan.action == "refuse"
    assert caught.value.message in plan.reason
    assert SECRET not in caught.value.message + plan.reason
    assert list(store.backend.scopes()) == []


def test_a_turn_with_a_large_unchanged_value_writes_under_4_kib(store: Store, backend: Counted, tmp_path: Path) -> None:
    stages = {
        "a": say(1, repeatable=True, set={"n": "state.n + 1"}, routes=[{"when": "state.n < 9", "to": "a"}])
        | {"default_next": "end"},
        "end": END,
    }
    big = ["m" * 1000] * 1000
    options = ExecuteOptions(
        machine=machine(tmp_path, stages, state={"n": 0, "big": big}),
        run="r",
        call=CallOptions(input=big, one_turn=True),
    )
    execute(store, options)
    later = ExecuteOptions(machine=options.machine, run="r", call=CallOptions(one_turn=True))
    for _ in range(3):
        backend.puts.clear()
        execute(Store(backend), later)
        assert len(backend.puts) == 1, "the snapshot"
        assert sum(backend.puts.values()) < 4096 - 200, "200 for the pointer"
    assert store.resolve(store.scope("run:r").load().state)["state"] == {"n": 4, "big": big}
