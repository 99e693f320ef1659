"""Faults found by fuzzing: the smallest input of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from stress.input.loaders import LOADERS, SHA
from stress.input.run_loaders import LOADERS as RUNS
from stress.input.run_loaders import TREE

from stateline import Store
from stateline.bundle import canonical
from stateline.engine import evaluate as evaluating
from stateline.engine.record import load_run
from stateline.errors import IntegrityError
from stateline.machine import spec
from stateline.machine.definition.check import check
from stateline.machine.definition.formats.python_text import Evaluated
from stateline.machine.definition.formats.reader import read
from stateline.machine.expressions import cel, json_schema
from stateline.service.repair import apply_repair
from stateline.service.runs import history


def test_a_python_machine_whose_process_prints_a_depth_bomb_is_a_mistake_in_the_file() -> None:
    def check(printed: str) -> None:
        LOADERS["what a Python machine's process prints"].feed(printed.encode())

    for_each(check, ['{"value":' + "[" * 5000 + "]" * 5000 + "}", "[" * 100_000, '{"a":' * 100_000])


def test_a_python_machine_that_writes_past_its_loader_is_a_mistake_in_the_file(tmp_path: Path) -> None:
    """The pipe to this process is a descriptor that the file can find and write to."""
    source = (
        "import os\nfor fd in range(3, 20):\n  try: os.write(fd, b'[' * 60000)\n  except OSError: pass\nos._exit(0)\n"
    )
    result = evaluating.evaluate(source, str(tmp_path / "m.py"))
    assert result.code == "exception"


def test_names_that_stand_for_each_other_twice_do_not_double_the_work_with_each() -> None:
    """Sixty lines that stand for 2^60 places; they were walked before the file's time limit began to count."""
    lines = [f"x{n} = [x{n + 1}, x{n + 1}]\n" for n in range(60)]
    document = read("".join([*lines, "x60 = 1\nmachine = x0\n"]).encode(), "m.py", lambda source: Evaluated(value={}))
    assert len(document.findings.positions) <= 100_000


def test_a_reference_to_an_index_that_no_list_has_is_a_mistake_in_the_schema() -> None:
    def check(index: str) -> None:
        schema = {"allOf": [True], "not": {"$ref": f"#/allOf/{index}"}}
        assert isinstance(json_schema.problems(schema), list)
        assert json_schema.violations(schema, {}) != []

    for_each(check, ["9" * 5000, "²", "٣", "-1", "00"])


def test_a_chain_of_references_is_judged_alike_however_deep_the_caller_stands() -> None:
    chain: dict[str, Any] = {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(390)},
    }
    chain["$defs"]["d390"] = {"type": "object"}
    deeper: Any = lambda level: deeper(level - 1) if level else json_schema.problems(chain)  # noqa: E731 (shortest frame)
    assert [type(deeper(level)) for level in (0, 200, 400, 600)] == [list] * 4
    assert deeper(0) == deeper(600)


def test_the_message_about_a_long_expression_is_short() -> None:
    for expression in ("9" * 30_000, "{'a'" + "9" * 30_000, "x" * 30_000, "a." * 15_000 + "b"):
        said = cel.compile_error(expression)
        assert said is not None
        assert len(said.message) <= 2000


def crafted_run(store: Store, *changes: Any) -> None:
    """The run r1, with a snapshot for each of ``changes``: as a good writer would write it, but for that change."""
    machine, _ = check(json.dumps(TREE).encode(), "m.json")
    assert machine is not None
    kept = store.put_value(spec.to_json(machine))
    for change in changes:
        crafted = json.loads(RUNS["snapshots of runs"][1]()[0])
        crafted["state"]["machine"] = {"format": "json", "source": kept, "spec": kept}
        crafted["event"].pop("durability")
        change(crafted["state"], crafted["event"])
        store.scope("run:r1").save(crafted["state"], kind="run", event=crafted["event"], masked=True)


def unchanged(state: Any, event: Any) -> None:
    """No change: a good snapshot."""


def test_a_pending_effect_without_a_key_is_damage_and_is_never_performed() -> None:
    """It would run with the empty idempotency key, which all such effects would share."""

    def check(effect: Any) -> None:

        def change(state: Any, event: Any) -> None:
            event["effect"] = effect
            if effect is ...:
                del event["effect"]

        store = Store.in_memory()
        crafted_run(store, change)
        with pytest.raises(IntegrityError, match="does not hold a run's") as error:
            load_run(store, "r1")
        assert error.value.finding == "malformed"

    for_each(check, [None, ...])


def test_a_run_whose_state_names_no_stage_is_repaired_like_any_scope(tmp_path: Path) -> None:
    def check(tmp_path: Path, tree: Any) -> None:
        def change(state: Any, event: Any) -> None:
            state["tree"] = tree

        store = Store.open(tmp_path / "state")
        crafted_run(store, change, unchanged)
        head = store.scope("run:r1").load()
        (tmp_path / "state" / head.scope / head.path).unlink()
        apply_repair(Store.open(tmp_path / "state"), None)
        repaired = Store.open(tmp_path / "state").scope("run:r1").load()
        assert repaired.event["type"] == "repaired"
        assert repaired.event["stage"] == "intake"

    for_each(check, [{}, {"stage": 5}, {"stage": None}], root=tmp_path)


def test_a_turn_in_the_past_without_outputs_is_damage_that_the_history_names() -> None:
    def check(outputs: Any) -> None:
        def change(state: Any, event: Any) -> None:
            event |= {"type": "succeeded", "output_of": "intake"}
            state["outputs"] = outputs
            if outputs is ...:
                del state["outputs"]

        store = Store.in_memory()
        crafted_run(store, change, unchanged)
        with pytest.raises(IntegrityError, match="does not hold a run's state"):
            history(store, "r1")

    for_each(check, [..., 5, [1], None])


def test_a_link_to_an_origin_with_more_members_is_read_alike_by_both_readers() -> None:
    """Members that are not known are let be; the quick reader must leave such a file to the slow one."""
    link = {"scope": "notes:other", "seq": 3, "sha256": SHA, "more": 1}
    document = json.loads(LOADERS["snapshots"].seeds()[2])
    LOADERS["snapshots"].feed(canonical.encode({**document, "origin": link, "merged": link}))
