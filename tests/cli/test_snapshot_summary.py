"""The lines of ``log`` for a run: every type of event has one of its own."""

from __future__ import annotations

from typing import Any, get_args

from command_line import USER, Cli, log_summaries

from stateline import Store
from stateline.machine.decider.run import Event

WAY = {"from": "think", "to": "rest", "reason": "default", "iteration": 0, "edge_count": 1}
ASKED = {"id": "c1", "name": "search"}
FAILED = {"kind": "model", "message": "no network"}

TOLD: dict[str, tuple[dict[str, Any], str]] = {
    "started": ({"transitions": [{**WAY, "from": None, "to": "think", "reason": "start"}]}, "run started -> think"),
    "intended": ({}, "think is about to run; it must not run twice"),
    "asked": ({}, "think asked"),
    "replied": ({"asked": [ASKED]}, "think replied; it calls search"),
    "calls_intended": ({}, "think: tools are about to run; not all may run twice"),
    "call_ended": ({"call": ASKED}, "think: search ended"),
    "succeeded": ({"transitions": [WAY], "output_of": "think"}, "think -> rest  7"),
    "failed": ({"error": FAILED}, "think failed; it is retried  model: no network"),
    "lost": ({}, "think was cut off"),
    "unsent": ({}, "think was not asked"),
    "answered": ({"transitions": [WAY], "output_of": "think"}, f"think answered by {USER} -> rest  7"),
    "retried": ({}, f"think is retried by {USER}"),
    "replaced": ({}, f"think: the machine was replaced by {USER}"),
    "cancelled": ({}, f"think: the run was cancelled by {USER}"),
}
"""Each type of event: members that it may have, and its line without the turn."""


def test_every_type_of_event_has_a_line_of_its_own(cli: Cli) -> None:
    kinds = {each.__struct_config__.tag for each in get_args(Event)}
    assert TOLD.keys() == kinds, "say here, and in cli/snapshot_summary.py, how the log tells of it"
    scope = Store.open(cli.state).scope("run:r")
    for kind, (members, _) in TOLD.items():
        event = {"type": kind, "stage": "think", "turn": 1, "transitions": [], **members}
        scope.save({"outputs": {"think": 7}, "tree": {"phase": "ready"}}, kind="run", event=event)
    shown = log_summaries(cli("log", "run:r").out.decode())[::-1]
    assert [line.removeprefix("turn 1  ") for line in shown] == [line for _, line in TOLD.values()]
