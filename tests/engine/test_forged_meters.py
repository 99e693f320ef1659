"""A snapshot whose meters are less than nothing would let its run use more than its bounds allow: it is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from scripted_model import write_machine

from stateline import Store
from stateline.engine.record import load_run
from stateline.errors import IntegrityError
from stateline.service.execute import execute
from stateline.service.options import ExecuteOptions

FORGED: list[tuple[str, Any]] = [
    ("meters.active", -1.0),
    ("meters.llm_calls", -1),
    ("meters.tool_rounds", -1),
    ("meters.tokens", {"input": -1, "output": 0}),
    ("meters.tokens", {"input": 0, "output": -1}),
    ("usage", {"input": -1, "output": 0}),
    ("effect.refused", -1),
    ("effect.attempt", -1),
]


def test_a_run_with_less_than_nothing_on_a_meter_is_not_gone_on_with(tmp_path: Path) -> None:
    def check(tmp_path: Path, place: str, value: Any) -> None:
        path = write_machine(
            tmp_path, {"think": {"agent": {"prompt": "Think."}, "default_next": "end"}, "end": {"end": {}}}
        )
        store = Store.in_memory()
        execute(store, ExecuteOptions(machine=path, run="r"))
        scope = store.scope("run:r")
        head = scope.load()
        event = copy.deepcopy(head.event)
        event.pop("durability")
        *way, last = place.split(".")
        document = event
        for name in way:
            document = document[name]
        document[last] = 0 if isinstance(value, int) else value
        if isinstance(value, int):
            scope.save(head.state, kind="run", event=event, masked=True)
            assert load_run(store, "r").id == "r"
            document[last] = value
        scope.save(head.state, kind="run", event=event, masked=True)
        with pytest.raises(IntegrityError, match="does not hold a run's event"):
            load_run(store, "r")

    for_each(check, FORGED, root=tmp_path)
