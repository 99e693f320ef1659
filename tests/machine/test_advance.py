"""The table of legal events, and what each of them does to a run."""

from __future__ import annotations

import re
from itertools import pairwise, product
from typing import Any

import msgspec
import pytest
from each_case import for_each
from machine.building import machine
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.errors import IllegalEventError, InvalidAnswerError, InvalidValueError, MachineChangedError, RequestError
from stateline.machine.decider import advance as table
from stateline.machine.decider.advance import TABLE, advance, place_of
from stateline.machine.decider.run import (
    Answered,
    Asked,
    CallEnded,
    CallsIntended,
    Cancelled,
    Event,
    Facts,
    Failed,
    Intended,
    Lost,
    Replaced,
    Replied,
    Retried,
    RunState,
    Started,
    Succeeded,
    Unsent,
)
from stateline.machine.spec import Agent, Bounds, Json, Machine, Retry, Route, Stage, Tool, Toolset


def task(name: str, **fields: Any) -> Stage:
    return Stage(name=name, kind="task", argv=["true"], **fields)


def agent(name: str, **fields: Any) -> Stage:
    return Stage(name=name, kind="agent", agent=Agent(prompt="Think.", tools=["look", "push"]), **fields)


def tool(name: str, **fields: Any) -> Tool:
    return Tool(name=name, description="", schema={"type": "object"}, argv=["true"], **fields)


MACHINE = machine(
    task("once"),
    task("twice", repeatable=True),
    Stage(name="ask", kind="human", schema={"type": "string"}),
    task("badly", repeatable=True, set={"x": "output.missing"}),
    task("round", repeatable=True, default_next="round", max_visits=1),
    Stage(name="fin", kind="end"),
    agent("think", repeatable=True, retry=Retry(max_attempts=2)),
    agent("dare"),
    toolset=Toolset(sha256="0" * 64, tools={name: tool(name, repeatable=name == "look") for name in ("look", "push")}),
    bounds=Bounds(max_tool_rounds=9),
)

CALLS: list[Json] = [
    {"id": str(number), "name": name, "arguments": {}} for number, name in enumerate(["look", "push", "push"])
]

EVENTS: dict[str, Event] = {
    "Started": Started(input={"a": 1}),
    "Intended": Intended(),
    "Asked": Asked(),
    "Replied": Replied(content="", tool_calls=CALLS),
    "CallsIntended": CallsIntended(ids=["1"]),
    "CallEnded": CallEnded(id="0", result="fine"),
    "Succeeded": Succeeded(output="fine"),
    "Failed": Failed(kind="exit", message="exit code 3"),
    "Lost": Lost(),
    "Unsent": Unsent(),
    "Answered": Answered(value="yes"),
    "Retried": Retried(),
    "Replaced": Replaced(),
    "Cancelled": Cancelled(),
}

REACHED_BY: dict[str, tuple[str, list[str]]] = {
    "ready, once": ("once", []),
    "ready, repeatable": ("twice", []),
    "started": ("once", ["Intended"]),
    "waiting": ("ask", []),
    "unknown": ("once", ["Intended", "Lost"]),
    "failed, ready": ("once", ["Intended", "Failed"]),
    "failed, settling": ("badly", ["Succeeded"]),
    "failed, routing": ("round", ["Succeeded"]),
    "done": ("fin", []),
    "cancelled": ("once", ["Cancelled"]),
    "agent ready, once": ("dare", []),
    "agent ready, repeatable": ("think", []),
    "agent started, once": ("dare", ["Intended"]),
    "agent started, repeatable": ("think", ["Intended"]),
    "agent waiting, once": ("dare", ["Asked"]),
    "agent waiting, repeatable": ("think", ["Asked"]),
    "agent unknown": ("dare", ["Intended", "Lost"]),
    "calling": ("think", ["Replied", "Half intended"]),
    "call unknown": ("think", ["Replied", "Half intended", "Lost"]),
    "failed, calling": ("think", ["Replied"]),
}


LEGAL: dict[str, set[str]] = {
    "absent": {"Started"},
    "ready, once": {"Started", "Intended", "Replaced", "Cancelled"},
    "ready, repeatable": {"Started", "Succeeded", "Failed", "Replaced", "Cancelled"},
    "started": {"Started", "Succeeded", "Failed", "Lost", "Replaced", "Cancelled"},
    "waiting": {"Started", "Answered", "Replaced", "Cancelled"},
    "unknown": {"Started", "Answered", "Retried", "Replaced", "Cancelled"},
    "failed, ready": {"Started", "Retried", "Replaced", "Cancelled"},
    "failed, settling": {"Started", "Retried", "Replaced", "Cancelled"},
    "failed, routing": {"Started", "Retried", "Replaced", "Cancelled"},
    "done": {"Started"},
    "cancelled": {"Started"},
    "agent ready, once": {"Started", "Intended", "Asked", "Replaced", "Cancelled"},
    "agent ready, repeatable": {"Started", "Intended", "Asked", "Replied", "Failed", "Replaced", "Cancelled"},
    "agent started, once": {"Started", "Replied", "Failed", "Lost", "Unsent", "Replaced", "Cancelled"},
    "agent started, repeatable": {"Started", "Replied", "Failed", "Lost", "Unsent", "Replaced", "Cancelled"},
    "agent waiting, once": {"Started", "Intended", "Answered", "Replaced", "Cancelled"},
    "agent waiting, repeatable": {"Started", "Intended", "Replied", "Failed", "Answered", "Replaced", "Cancelled"},
    "agent unknown": {"Started", "Answered", "Retried", "Replaced", "Cancelled"},
    "calling": {"Started", "CallsIntended", "CallEnded", "Lost", "Replaced", "Cancelled"},
    "call unknown": {"Started", "Answered", "Retried", "Replaced", "Cancelled"},
    "failed, calling": {"Started", "Retried", "Replaced", "Cancelled"},
}

OPEN = [place for place in REACHED_BY if place not in ("done", "cancelled")]


def play(spec: Machine, *events: Event, facts: Facts = Facts()) -> RunState:  # noqa: B008 (frozen)
    state = advance(spec, None, Started(), facts).state
    for event in events:
        state = advance(spec, state, event, facts).state
    return state


def at(place: str) -> RunState | None:
    if place == "absent":
        return None
    start, events = REACHED_BY[place]
    facts = Facts(manual=False, tool_rounds=9 if place == "failed, calling" else 0)
    half = {"Half intended": CallsIntended(ids=["2"])}
    return play(replace(MACHINE, start=start), *((EVENTS | half)[name] for name in events), facts=facts)


def event_at(place: str, name: str) -> Event:
    """The event of that name that is legal at ``place``: a model's stand-in answers with a reply."""
    talks = name == "Answered" and place.startswith("agent")
    return Answered(value={"content": "", "tool_calls": CALLS}) if talks else EVENTS[name]


def image(*values: Any) -> bytes:
    return canonical.encode(msgspec.json.decode(msgspec.json.encode(values)))


def pairs(*, legal: bool) -> list[tuple[str, str]]:
    return [(place, name) for place, name in product(LEGAL, EVENTS) if (name in LEGAL[place]) is legal]


def test_the_table_holds_exactly_the_legal_pairs() -> None:
    assert {(place, event.__name__) for place, event in TABLE} == set(pairs(legal=True))


def test_the_tables_in_the_docstring_are_the_table() -> None:
    text = str(table.__doc__)
    assert "Started is legal everywhere" in text
    assert "are legal in every run that is neither complete nor cancelled" in text
    drawn: dict[str, set[str]] = {}
    for part in text.split("    place ")[1:]:
        header, *rows = f"    place {part}".split("\n\n")[0].rstrip().splitlines()
        columns = re.findall(r"[A-Z]\w+", header)
        starts = [header.index(f" {name}") + 1 for name in columns] + [200]
        for row in rows:
            cells = zip(columns, pairwise(starts), strict=True)
            legal = {name for name, (a, b) in cells if row[a:b].strip() not in ("-", "")}
            place = row[: starts[0]].strip()
            assert place not in drawn
            over = place in ("absent", "done", "cancelled")
            drawn[place] = legal | {"Started"} | (set() if over else {"Replaced", "Cancelled"})
    assert drawn == LEGAL


def test_every_place_of_the_table_can_be_reached() -> None:
    def one_case(place: str) -> None:
        assert place_of(MACHINE, at(place)) == place

    for_each(one_case, [(case,) for case in LEGAL])


def test_an_illegal_event_raises_and_changes_nothing() -> None:
    def one_case(place: str, name: str) -> None:
        state, event, facts = at(place), EVENTS[name], Facts(active=1.0, context={"prompts": {}})
        before = image(MACHINE, state, event, facts)
        said = "retry.*nothing changed" if name == "Retried" else f"'{name.lower()}'.*nothing changed"
        if place == "absent":
            said = f"'{name.lower()}'.*nothing changed"
        with pytest.raises(IllegalEventError, match=said) as caught:
            advance(MACHINE, state, event, facts)
        assert image(MACHINE, state, event, facts) == before
        assert caught.value.hint
        assert state is None or repr(state.tree.stage) in caught.value.message

    for_each(one_case, pairs(legal=False))


def test_a_legal_event_leaves_its_inputs_alone_and_decides_the_same_twice() -> None:
    def one_case(place: str, name: str) -> None:
        state, event, facts = at(place), event_at(place, name), Facts(active=1.0, context={"prompts": {}})
        before = image(MACHINE, state, event, facts)
        first = advance(MACHINE, state, event, facts)
        assert image(MACHINE, state, event, facts) == before
        assert image(advance(MACHINE, state, event, facts)) == image(first)

    for_each(one_case, pairs(legal=True))


def test_a_run_read_back_from_its_json_decides_the_same() -> None:
    def one_case(place: str) -> None:
        state = at(place)
        if state is None:
            return
        again = msgspec.json.decode(msgspec.json.encode(state), type=RunState)
        for name in LEGAL[place]:
            event = event_at(place, name)
            assert image(advance(MACHINE, again, event)) == image(advance(MACHINE, state, event))

    for_each(one_case, [(case,) for case in LEGAL])


# Started


def test_a_run_begins_at_the_start_stage_with_one_visit() -> None:
    spec = machine(task("b"), task("a"), start="a", state={"n": 0})
    decision = advance(spec, None, Started(input={"q": 1}, context={"scope": "s", "sha256": "0"}, labels={"k": "v"}))
    state = decision.state
    assert (state.status, state.tree.stage, state.tree.phase, state.tree.attempt) == ("running", "a", "ready", 1)
    assert (state.visits, state.edges, state.iteration, state.outputs) == ({"a": 1}, {}, 0, {})
    assert (state.input, state.state, state.labels) == ({"q": 1}, {"n": 0}, {"k": "v"})
    assert state.context == {"scope": "s", "sha256": "0"}
    assert state.tree.pending == [{"type": "task", "stage": "a", "position": 0}]
    assert msgspec.to_builtins(list(decision.transitions)) == [
        {"from": None, "to": "a", "reason": "start", "iteration": 0, "edge_count": 0}
    ]


def test_a_run_that_begins_at_a_human_waits_at_once() -> None:
    state = play(replace(MACHINE, start="ask"))
    assert (state.status, state.tree.phase) == ("waiting", "waiting")
    assert state.interrupts == [{"kind": "human", "stage": "ask"}]
    assert state.tree.pending == []


def test_a_run_that_begins_at_an_end_is_complete_at_once() -> None:
    decision = advance(replace(MACHINE, start="fin"), None, Started())
    assert (decision.state.status, decision.state.tree.phase) == ("complete", "done")
    assert [(step.source, step.target, step.reason) for step in decision.transitions] == [
        (None, "fin", "start"),
        ("fin", None, "complete"),
    ]


def test_a_restart_gives_what_a_first_start_gives() -> None:
    def one_case(place: str) -> None:
        event = Started(input=[1], labels={"again": "yes"})
        assert image(advance(MACHINE, at(place), event)) == image(advance(MACHINE, None, event))

    for_each(one_case, [(case,) for case in LEGAL])


def test_an_input_that_its_schema_forbids_is_refused_with_its_place() -> None:
    spec = machine(task("a"), input={"type": "object", "required": ["repo"]})
    with pytest.raises(InvalidValueError, match="repo") as caught:
        advance(spec, None, Started(input={}))
    assert caught.value.where == "/input"
    assert caught.value.hint
    assert advance(spec, None, Started(input={"repo": "."})).state.input == {"repo": "."}


def test_a_refused_input_does_not_restart_the_run() -> None:
    spec = machine(task("a"), input={"type": "object"})
    state = advance(spec, None, Started(input={})).state
    before = image(state)
    with pytest.raises(InvalidValueError):
        advance(spec, state, Started(input=3))
    assert image(state) == before


# Intended, Lost


def test_an_intent_is_kept_as_a_phase_with_the_effect_still_pending() -> None:
    state = play(machine(task("a")), Intended())
    assert (state.status, state.tree.phase) == ("running", "started")
    assert state.tree.pending == [{"type": "task", "stage": "a", "position": 0}]


def test_a_lost_effect_makes_the_run_wait_for_a_person() -> None:
    decision = advance(machine(task("a")), play(machine(task("a")), Intended()), Lost())
    assert (decision.state.status, decision.state.tree.phase) == ("waiting", "unknown")
    assert decision.state.interrupts == [{"kind": "unknown_outcome", "stage": "a"}]
    assert decision.transitions == ()


def test_a_call_that_was_never_sent_is_to_be_made_as_if_it_had_not_been_intended() -> None:
    def one_case(attempt: int) -> None:
        spec = replace(MACHINE, stages={"dare": agent("dare", retry=Retry(max_attempts=2))}, start="dare")
        before = play(
            spec, *[Intended(), Failed(kind="model", message="no")] * (attempt - 1), facts=Facts(manual=False)
        )
        decision = advance(spec, advance(spec, before, Intended()).state, Unsent())
        assert (decision.state, decision.transitions) == (before, ())

    for_each(one_case, [1, 2])


# Succeeded


def test_an_output_is_kept_and_the_run_continues() -> None:
    spec = machine(task("a", default_next="b"), task("b"))
    decision = advance(spec, play(spec, Intended()), Succeeded(output=[1]))
    assert decision.state.outputs == {"a": [1]}
    assert (decision.state.tree.stage, decision.state.tree.phase) == ("b", "ready")
    assert msgspec.to_builtins(list(decision.transitions)) == [
        {"from": "a", "to": "b", "reason": "default", "iteration": 0, "edge_count": 1}
    ]


def test_a_later_visit_replaces_the_output_of_the_earlier_one() -> None:
    spec = machine(task("a", repeatable=True, default_next="a"))
    assert play(spec, Succeeded(output=1), Succeeded(output=None)).outputs == {"a": None}


# Failed and retries


def test_a_failure_without_a_retry_policy_fails_the_run() -> None:
    decision = advance(
        machine(task("a")), play(machine(task("a")), Intended()), Failed(kind="exit", message="no", hint="look")
    )
    state = decision.state
    assert (state.status, state.tree.phase, state.tree.resume) == ("error", "failed", "ready")
    assert state.tree.error is not None
    assert msgspec.to_builtins(state.tree.error) == {"stage": "a", "kind": "exit", "message": "no", "hint": "look"}
    assert (state.tree.pending, decision.transitions, state.outputs) == ([], (), {})


def test_a_retry_is_the_next_attempt_of_the_same_visit_and_needs_a_new_intent() -> None:
    spec = machine(task("a", retry=Retry(max_attempts=2)))
    decision = advance(spec, play(spec, Intended()), Failed(kind="exit", message="no"))
    tree = decision.state.tree
    assert (decision.state.status, tree.phase, tree.attempt, decision.state.visits) == ("running", "ready", 2, {"a": 1})
    assert tree.error is not None
    assert tree.error.message == "no"
    assert decision.transitions == ()
    with pytest.raises(IllegalEventError):
        advance(spec, decision.state, Succeeded(output=1))


def test_max_attempts_counts_all_attempts() -> None:
    def one_case(allowed: int) -> None:
        spec = machine(task("a", repeatable=True, retry=Retry(max_attempts=allowed)))
        state = play(spec)
        for attempt in range(1, allowed + 1):
            assert (state.tree.phase, state.tree.attempt) == ("ready", attempt)
            state = advance(spec, state, EVENTS["Failed"]).state
        assert (state.tree.phase, state.tree.attempt) == ("failed", allowed)

    for_each(one_case, [1, 2, 3, 5])


def test_a_timeout_is_tried_again_only_where_repeating_is_harmless() -> None:
    def one_case(repeatable: bool, phase: str) -> None:
        spec = machine(task("a", repeatable=repeatable, retry=Retry(max_attempts=2)))
        intent = [] if repeatable else [Intended()]
        assert play(spec, *intent, Failed(kind="timeout", message="too slow")).tree.phase == phase

    for_each(one_case, [(True, "ready"), (False, "failed")])


def test_success_after_a_retry_forgets_the_error_and_the_next_visit_counts_from_one() -> None:
    spec = machine(task("a", repeatable=True, retry=Retry(max_attempts=3), default_next="a"))
    tree = play(spec, EVENTS["Failed"], EVENTS["Failed"], Succeeded(output=1)).tree
    assert (tree.attempt, tree.first_attempt, tree.error) == (1, 1, None)


def test_a_stage_that_fails_for_good_goes_to_its_error_next() -> None:
    spec = machine(task("a", error_next="b", default_next="c"), task("b"), task("c"))
    decision = advance(spec, play(spec, Intended()), Failed(kind="exit", message="no"))
    tree = decision.state.tree
    assert (decision.state.status, tree.stage, tree.phase, tree.error) == ("running", "b", "ready", None)
    assert tree.cause is not None
    assert (tree.cause.stage, tree.cause.kind, tree.cause.message) == ("a", "exit", "no")
    assert [step.reason for step in decision.transitions] == ["error"]


# Answered


def test_an_answer_is_the_output_of_a_human_stage() -> None:
    spec = machine(Stage(name="ask", kind="human", default_next="b"), task("b"))
    state = play(spec, Answered(value={"ok": True}))
    assert (state.outputs, state.tree.stage, state.status) == ({"ask": {"ok": True}}, "b", "running")
    assert state.interrupts == []


def test_an_answer_that_its_schema_forbids_is_refused_and_the_run_still_waits() -> None:
    state = at("waiting")
    before = image(state)
    with pytest.raises(InvalidAnswerError, match="still waits"):
        advance(MACHINE, state, Answered(value=7))
    assert image(state) == before
    assert advance(MACHINE, state, Answered(value="seven")).state.outputs == {"ask": "seven"}


def test_the_result_of_a_lost_effect_can_be_given_by_a_person() -> None:
    spec = machine(task("a", default_next="b"), task("b"))
    state = play(spec, Intended(), Lost(), Answered(value=5))
    assert (state.outputs, state.tree.stage, state.interrupts) == ({"a": 5}, "b", [])


# Retried


def test_a_lost_effect_can_be_run_again_with_a_new_intent_and_a_new_budget() -> None:
    spec = machine(task("a", retry=Retry(max_attempts=2)))
    state = play(spec, Intended(), Lost(), Retried())
    tree = state.tree
    assert (state.status, tree.phase, tree.attempt, tree.first_attempt) == ("running", "ready", 2, 2)
    assert (state.interrupts, tree.pending) == ([], [{"type": "task", "stage": "a", "position": 0}])
    assert play(spec, Intended(), Lost(), Retried(), Intended(), EVENTS["Failed"]).tree.phase == "ready"


def test_an_operators_retry_gives_a_new_retry_budget() -> None:
    spec = machine(task("a", repeatable=True, retry=Retry(max_attempts=2)))
    failed = EVENTS["Failed"]
    state = play(spec, failed, failed, Retried())
    assert (state.status, state.tree.phase, state.tree.attempt, state.tree.error) == ("running", "ready", 3, None)
    state = advance(spec, state, failed).state
    assert (state.tree.phase, state.tree.attempt) == ("ready", 4)
    assert advance(spec, state, failed).state.tree.phase == "failed"


def test_a_retry_after_a_failed_set_evaluates_it_again_and_never_repeats_the_effect() -> None:
    broken = machine(task("a", repeatable=True, set={"n": "output.missing"}, default_next="b"), task("b"))
    state = play(broken, Succeeded(output={"n": 4}))
    assert (state.tree.phase, state.tree.resume, state.outputs) == ("failed", "settling", {"a": {"n": 4}})
    assert advance(broken, state, Retried()).state == state
    corrected = replace(broken, stages={**broken.stages, "a": replace(broken.stages["a"], set={"n": "output.n"})})
    state = advance(corrected, advance(corrected, state, Replaced()).state, Retried()).state
    assert (state.state, state.tree.stage, state.tree.attempt) == ({"n": 4}, "b", 1)


def test_a_retry_after_a_refused_way_does_not_apply_set_again() -> None:
    limited = machine(task("a", repeatable=True, set={"n": "state.n + 1"}, default_next="b"), task("b"), state={"n": 0})
    limited = replace(limited, bounds=Bounds(timeout=5.0))
    state = advance(limited, play(limited), Succeeded(output=None), Facts(active=6.0)).state
    assert (state.tree.phase, state.tree.resume, state.state) == ("failed", "routing", {"n": 1})
    assert advance(limited, state, Retried(), Facts(active=6.0)).state == state
    raised = replace(limited, bounds=Bounds(timeout=50.0))
    state = advance(raised, state, Retried(), Facts(active=6.0)).state
    assert (state.tree.stage, state.state, state.tree.error) == ("b", {"n": 1}, None)


def test_a_route_that_fails_on_the_second_look_keeps_set_applied_once() -> None:
    route = Route(when="context.go", to="b")
    spec = machine(task("a", repeatable=True, set={"n": "state.n + 1"}, routes=[route]), task("b"), state={"n": 0})
    spec = replace(spec, bounds=Bounds(timeout=5.0))
    state = advance(spec, play(spec), Succeeded(output=1), Facts(active=6.0, context={"go": True})).state
    assert (state.tree.resume, state.state) == ("routing", {"n": 1})
    state = advance(spec, state, Retried(), Facts(context={"go": "?"})).state
    assert state.tree.error is not None
    assert (state.tree.error.kind, state.tree.resume, state.state) == ("condition", "routing", {"n": 1})
    state = advance(spec, state, Retried(), Facts(context={"go": True})).state
    assert (state.tree.stage, state.state) == ("b", {"n": 1})


# Cancelled


def test_a_cancelled_run_is_over_where_it_stood() -> None:
    def one_case(place: str) -> None:
        state = at(place)
        assert state is not None
        decision = advance(MACHINE, state, Cancelled())
        ended = replace(state.tree, phase="cancelled", resume="ready", pending=[])
        assert decision.state == replace(state, status="cancelled", tree=ended, interrupts=[])
        assert decision.transitions == ()

    for_each(one_case, [(place,) for place in OPEN])


# Replaced


def test_accepting_a_machine_that_has_the_stage_changes_nothing_else() -> None:
    def one_case(place: str) -> None:
        state = at(place)
        decision = advance(replace(MACHINE, name="other"), state, Replaced())
        assert (decision.state, decision.transitions) == (state, ())

    for_each(one_case, [(place,) for place in OPEN])


def test_a_machine_without_the_place_of_the_run_is_refused() -> None:
    def one_case(place: str, kind: Any) -> None:
        state = at(place)
        assert state is not None
        name = state.tree.stage
        stages = {key: stage for key, stage in MACHINE.stages.items() if key != name}
        if kind:
            stages[name] = Stage(name=name, kind=kind)
        before = image(state)
        with pytest.raises(MachineChangedError, match=f"'{name}'.*nothing changed") as caught:
            advance(replace(MACHINE, stages=stages), state, Replaced())
        assert image(state) == before
        assert caught.value.hint

    for_each(
        one_case,
        [(place, kind) for place in OPEN for kind in [None, "end"]],
    )


def test_a_machine_with_another_kind_of_stage_there_is_refused() -> None:
    def one_case(place: str, kind: Any) -> None:
        state = at(place)
        assert state is not None
        stages = {**MACHINE.stages, state.tree.stage: Stage(name=state.tree.stage, kind=kind)}
        with pytest.raises(MachineChangedError, match=kind):
            advance(replace(MACHINE, stages=stages), state, Replaced())

    for_each(one_case, [("ready, once", "human"), ("started", "human"), ("unknown", "human"), ("waiting", "task")])


def test_any_event_on_a_machine_without_the_runs_stage_is_refused() -> None:
    with pytest.raises(MachineChangedError):
        advance(machine(task("other")), at("started"), Succeeded(output=1))


def test_a_restart_needs_no_stage_of_the_old_run() -> None:
    state = advance(machine(task("other")), at("started"), Started()).state
    assert (state.tree.stage, state.tree.phase) == ("other", "ready")


def test_a_started_effect_may_end_after_its_stage_became_repeatable() -> None:
    state = play(machine(task("a")), Intended())
    changed = machine(task("a", repeatable=True))
    assert advance(changed, state, Succeeded(output=1)).state.status == "complete"


# An operator against a limit


def test_a_lost_effect_that_a_limit_keeps_from_running_again_stays_unknown() -> None:
    spec = machine(task("a"), bounds=Bounds(timeout=1.0))
    state = play(spec, Intended(), Lost())
    before = image(state)
    with pytest.raises(RequestError, match=r"timeout.*nothing changed") as caught:
        advance(spec, state, Retried(), Facts(active=1.5))
    assert "--answer" in caught.value.hint
    assert image(state) == before
    assert advance(spec, state, Answered(value=1), Facts(active=1.5)).state.status == "complete"
