"""Random machines and random events, against a second interpreter that shares no code with the first.

The oracle below works on plain dicts that it changes in place, knows conditions as numbers to compare with, counts
retries down instead of up and hops one by one: written to be obvious, so that a disagreement is a finding.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.bundle import canonical
from stateline.errors import IllegalEventError, RequestError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import (
    Answered,
    Cancelled,
    Event,
    Facts,
    Failed,
    Intended,
    Lost,
    Replaced,
    Retried,
    RunState,
    Started,
    Succeeded,
    Transition,
)
from stateline.machine.spec import Bounds, EdgeLimit, Machine, Retry, Route, Stage

NAMES = ["a", "b", "c", "d"]
BROKEN = -1
"""A condition that cannot be evaluated, where another number means: the output (or the tally) is that number."""


class Refused(Exception):
    """The oracle says that the event must be refused."""


class Oracle:
    """One run, as a person with pencil and paper would follow it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.mode = "absent"

    def happen(self, event: str, value: int, active: int) -> None:
        self.active = active
        if event == "start":
            self.start()
        elif event in ("replace", "cancel") and self.mode not in ("absent", "done", "cancelled"):
            self.mode = "cancelled" if event == "cancel" else self.mode
        else:
            method = getattr(self, f"{self.mode.replace(':', '_')}_{event}", None)
            if method is None:
                raise Refused
            method(value)

    def start(self) -> None:
        self.visits: dict[str, int] = {}
        self.edges: dict[tuple[str, str], int] = {}
        self.trail: list[tuple[str | None, str | None, str]] = []
        self.hops = self.iteration = self.tally = 0
        self.outputs: dict[str, int] = {}
        self.step_into(None, self.spec["start"], "start", None)

    # events

    def ready_intend(self, value: int) -> None:
        if self.here["repeatable"]:
            raise Refused
        self.mode = "started"

    def ready_succeed(self, value: int) -> None:
        if not self.here["repeatable"]:
            raise Refused
        self.started_succeed(value)

    def ready_fail(self, value: int) -> None:
        if not self.here["repeatable"]:
            raise Refused
        self.started_fail(value)

    def started_succeed(self, value: int) -> None:
        self.outputs[self.stage] = value
        self.finish()

    def started_fail(self, value: int) -> None:
        timed_out = value == 0
        self.tries_left -= 1
        if self.tries_left < 1 or (timed_out and not self.here["repeatable"]):
            self.break_down("timeout" if timed_out else "exit", "ready")
        elif self.out_of_time():
            self.break_down("limit:timeout", "ready")
        else:
            self.attempt += 1
            self.mode = "ready"

    def started_lose(self, value: int) -> None:
        self.mode = "unknown"

    def waiting_answer(self, value: int) -> None:
        self.started_succeed(value)

    def unknown_answer(self, value: int) -> None:
        self.started_succeed(value)

    def unknown_retry(self, value: int) -> None:
        if self.out_of_time():
            raise Refused
        self.try_again()

    def failed_ready_retry(self, value: int) -> None:
        if self.out_of_time():
            self.break_down("limit:timeout", "ready")
        else:
            self.try_again()

    def failed_settling_retry(self, value: int) -> None:
        self.finish()

    def failed_routing_retry(self, value: int) -> None:
        self.find_way("routing", self.tally)

    # what follows

    @property
    def here(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec["stages"][self.stage]
        return found

    def out_of_time(self) -> bool:
        return 0 < self.spec["timeout"] < self.active

    def try_again(self) -> None:
        self.attempt += 1
        self.tries_left = self.here["tries"]
        self.mode = "ready"

    def finish(self) -> None:
        tally = self.tally
        if self.here["adds"] == BROKEN:
            self.break_down("set", "settling")
            return
        if self.here["adds"]:
            tally += self.here["adds"]
        self.find_way("settling", tally)

    def find_way(self, resume: str, tally: int) -> None:
        target, reason = self.here["default_next"], "default"
        for subject, number, to in self.here["routes"]:
            if number == BROKEN:
                self.break_down("condition", resume)
                return
            if number == (self.outputs[self.stage] if subject == "output" else tally):
                target, reason = to, "routing"
                break
        self.tally = tally
        if target is None:
            self.trail.append((self.stage, None, "complete"))
            self.mode, self.cause = "done", None
            return
        bound = self.bound_against(target)
        if bound:
            self.break_down(f"limit:{bound}", "routing")
        else:
            self.step_into(self.stage, target, reason, None)

    def break_down(self, why: str, resume: str) -> None:
        helper = self.here["error_next"]
        if helper is not None:
            bound = self.bound_against(helper)
            if not bound:
                reason = "limit" if why.startswith("limit") else "error"
                self.step_into(self.stage, helper, reason, (self.stage, why))
                return
            if not why.startswith("limit"):
                why = f"limit:{bound}"
        self.mode, self.error = f"failed:{resume}", why

    def bound_against(self, target: str) -> str:
        there, edge = self.spec["stages"][target], (self.stage, target)
        ends = there["kind"] == "end"
        if there["max_visits"] and self.visits.get(target, 0) == there["max_visits"]:
            return "max_visits"
        if edge in self.spec["edge_limits"] and self.edges.get(edge, 0) == self.spec["edge_limits"][edge]:
            return "edge_limits"
        if self.goes_back(target) and not ends and 0 < self.spec["max_iterations"] <= self.iteration:
            return "max_iterations"
        if not ends and 0 < self.spec["max_agent_hops"] <= self.hops:
            return "max_agent_hops"
        if there["kind"] == "task" and self.out_of_time():
            return "timeout"
        return ""

    def goes_back(self, target: str) -> bool:
        line = list(self.spec["stages"])
        return target in line[: line.index(self.stage) + 1]

    def step_into(self, source: str | None, target: str, reason: str, cause: tuple[str, str] | None) -> None:
        if source is not None:
            self.edges[source, target] = self.edges.get((source, target), 0) + 1
            self.hops += 1
            self.iteration += 1 if self.goes_back(target) else 0
        self.trail.append((source, target, reason))
        self.visits[target] = self.visits.get(target, 0) + 1
        self.stage, self.cause, self.attempt = target, cause, 1
        self.tries_left = self.here["tries"]
        self.mode = {"task": "ready", "human": "waiting", "end": "done"}[self.here["kind"]]
        if self.mode == "done":
            self.trail.append((target, None, "complete"))

    def picture(self) -> dict[str, Any]:
        status = {
            "done": "complete",
            "cancelled": "cancelled",
            "ready": "running",
            "started": "running",
            "waiting": "waiting",
            "unknown": "waiting",
        }
        interrupts = {"waiting": "human", "unknown": "unknown_outcome"}
        return {
            "stage": self.stage,
            "mode": self.mode,
            "status": status.get(self.mode, "error"),
            "visits": self.visits,
            "edges": self.edges,
            "iteration": self.iteration,
            "outputs": self.outputs,
            "tally": self.tally,
            "trail": self.trail,
            "attempt": self.attempt,
            "cause": self.cause,
            "error": self.error if self.mode.startswith("failed") else None,
            "left over": False,
            "interrupts": [interrupts[self.mode]] if self.mode in interrupts else [],
            "pending": self.mode in ("ready", "started", "unknown"),
        }


def picture(state: RunState, steps: list[Transition]) -> dict[str, Any]:
    tree = state.tree
    failed = tree.phase == "failed"

    def why(failure: Any) -> str:
        return f"limit:{failure.bound}" if failure.kind == "limit" else str(failure.kind)

    return {
        "stage": tree.stage,
        "mode": f"failed:{tree.resume}" if failed else tree.phase,
        "status": state.status,
        "visits": state.visits,
        "edges": {(source, to): count for source, found in state.edges.items() for to, count in found.items()},
        "iteration": state.iteration,
        "outputs": state.outputs,
        "tally": state.state["tally"],
        "trail": [(step.source, step.target, step.reason) for step in steps],
        "attempt": tree.attempt,
        "cause": tree.cause and (tree.cause.stage, why(tree.cause)),
        "error": why(tree.error) if failed else None,
        "left over": (not failed and tree.resume != "ready")
        or (tree.phase in ("waiting", "done") and tree.error is not None),
        "interrupts": [found["kind"] for found in state.interrupts],
        "pending": bool(tree.pending),
    }


def built(spec: dict[str, Any]) -> Machine:
    """The oracle's machine as the real one, its numbers written as CEL."""

    def stage(name: str, found: dict[str, Any]) -> Stage:
        conditions = {"output": "output == {}", "tally": "state.tally == {}"}
        routes = [
            Route(when="output.missing == 1" if number == BROKEN else conditions[subject].format(number), to=to)
            for subject, number, to in found["routes"]
        ]
        adds = found["adds"]
        rule = {} if not adds else {"tally": "output.missing" if adds == BROKEN else f"state.tally + {adds}"}
        return Stage(
            name=name,
            kind=found["kind"],
            repeatable=found["repeatable"],
            retry=Retry(max_attempts=found["tries"]),
            set=rule,
            routes=routes,
            default_next=found["default_next"],
            error_next=found["error_next"],
            max_visits=found["max_visits"],
        )

    stages = {name: stage(name, found) for name, found in spec["stages"].items()}
    return Machine(
        name="random",
        start=spec["start"],
        order=list(stages),
        stages=stages,
        state={"tally": 0},
        edge_limits=[EdgeLimit(source=a, target=b, max_count=n) for (a, b), n in spec["edge_limits"].items()],
        bounds=Bounds(
            max_iterations=spec["max_iterations"], max_agent_hops=spec["max_agent_hops"], timeout=spec["timeout"]
        ),
    )


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    names = NAMES[: draw(st.integers(2, 4))]
    target = st.sampled_from(names)
    number = st.sampled_from([0, 1, 2, 0, 1, 2, BROKEN])
    route = st.tuples(st.sampled_from(["output", "tally"]), number, target)
    stage = st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["task", "task", "task", "human", "end"]),
            "repeatable": st.booleans(),
            "tries": st.integers(1, 3),
            "adds": st.sampled_from([0, 1, 0, 1, 0, 1, BROKEN]),
            "routes": st.lists(route, max_size=2),
            "default_next": st.sampled_from([*names, *names, None]),
            "error_next": st.one_of(st.none(), target),
            "max_visits": st.sampled_from([0, 0, 1, 2]),
        }
    )
    small = st.sampled_from([0, 0, 1, 2, 4])
    return {
        "stages": {name: draw(stage) for name in names},
        "start": draw(target),
        "edge_limits": draw(st.dictionaries(st.tuples(target, target), st.integers(1, 2), max_size=2)),
        "max_iterations": draw(small),
        "max_agent_hops": draw(small),
        "timeout": draw(st.sampled_from([0, 0, 5])),
    }


LIKELY = {
    "ready": ["intend", "succeed", "succeed", "fail"],
    "started": ["succeed", "succeed", "fail", "lose"],
    "waiting": ["answer"],
    "unknown": ["answer", "retry"],
    "failed": ["retry"],
    "done": ["start"],
    "cancelled": ["start"],
}
ALL = ["start", "intend", "succeed", "fail", "lose", "answer", "retry", "replace", "cancel"]


def event_of(name: str, value: int) -> Event:
    events: dict[str, Event] = {
        "start": Started(),
        "intend": Intended(),
        "succeed": Succeeded(output=value),
        "fail": Failed(kind="exit" if value else "timeout", message="no"),
        "lose": Lost(),
        "answer": Answered(value=value),
        "retry": Retried(),
        "replace": Replaced(),
        "cancel": Cancelled(),
    }
    return events[name]


def image(*values: Any) -> bytes:
    return canonical.encode(msgspec.json.decode(msgspec.json.encode(values)))


@settings(max_examples=300)
@given(spec=machines(), data=st.data())
def test_any_machine_under_any_events_does_what_the_oracle_does(spec: dict[str, Any], data: st.DataObject) -> None:
    machine, oracle = built(spec), Oracle(spec)
    state = advance(machine, None, Started()).state
    oracle.happen("start", 0, 0)
    steps = list(advance(machine, None, Started()).transitions)
    active = 0
    for _ in range(data.draw(st.integers(1, 12), label="events")):
        likely = LIKELY[oracle.mode.split(":")[0]]
        name = data.draw(st.sampled_from(likely * 3 + ALL), label="event")
        value = data.draw(st.integers(0, 2), label="value")
        active += data.draw(st.integers(0, 2), label="seconds")
        event, facts, before = event_of(name, value), Facts(active=float(active)), image(machine, state)
        try:
            oracle.happen(name, value, active)
        except Refused:
            with pytest.raises(RequestError, match="nothing changed") as caught:
                advance(machine, state, event, facts)
            assert isinstance(caught.value, IllegalEventError) or (name, oracle.mode) == ("retry", "unknown")
        else:
            decision = advance(machine, state, event, facts)
            assert image(advance(machine, state, event, facts)) == image(decision)
            assert image(machine, state) == before
            steps = [*([] if name == "start" else steps), *decision.transitions]
            state = decision.state
        assert picture(state, steps) == oracle.picture()
        # What is kept is all there is: a run that was saved and loaded continues in the same way.
        state = msgspec.json.decode(image(state)[1:-1], type=RunState)
