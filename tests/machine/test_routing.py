"""After a stage's output: ``set``, the order of transitions, the names in conditions, the data kept by failures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from each_case import for_each
from machine.building import machine
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.errors import InvalidValueError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.evaluate_outputs import merge, names
from stateline.machine.decider.run import Answered, Decision, Facts, Failed, Retried, RunState, Started, Succeeded
from stateline.machine.spec import Json, Machine, Retry, Route, Stage


def task(name: str, **fields: Any) -> Stage:
    return Stage(name=name, kind="task", argv=["true"], repeatable=True, **fields)


def ways(*pairs: tuple[str, str]) -> list[Route]:
    return [Route(when=when, to=to) for when, to in pairs]


def succeed(spec: Machine, output: Json, facts: Facts = Facts(), **start: Any) -> Decision:  # noqa: B008 (frozen)
    return advance(spec, advance(spec, None, Started(**start)).state, Succeeded(output=output), facts)


def failure_in(state: RunState) -> tuple[str, str, str]:
    assert state.status == "error"
    assert state.tree.error is not None
    return state.tree.error.kind, state.tree.error.stage, state.tree.resume


# The way on


def test_routes_are_tried_in_order_then_default_next() -> None:
    def one_case(output: int, target: str, reason: str) -> None:
        routes = ways(("output == 1", "b"), ("output <= 2", "c"))
        spec = machine(task("a", routes=routes, default_next="d"), task("b"), task("c"), task("d"))
        decision = succeed(spec, output)
        assert decision.state.tree.stage == target
        assert [(step.source, step.target, step.reason) for step in decision.transitions] == [("a", target, reason)]

    for_each(one_case, [(1, "b", "routing"), (2, "c", "routing"), (3, "d", "default")])


def test_the_first_route_that_matches_wins_and_later_ones_are_not_evaluated() -> None:
    spec = machine(task("a", routes=ways(("true", "b"), ("output.missing", "c"))), task("b"), task("c"))
    assert succeed(spec, {}).state.tree.stage == "b"


def test_a_stage_with_no_way_on_completes_the_run() -> None:
    spec = machine(task("a", routes=ways(("output == 1", "b"))), task("b"))
    decision = succeed(spec, 2)
    assert (decision.state.status, decision.state.tree.stage, decision.state.tree.phase) == ("complete", "a", "done")
    assert msgspec.to_builtins(list(decision.transitions)) == [
        {"from": "a", "to": None, "reason": "complete", "iteration": 0, "edge_count": 0}
    ]
    assert (decision.state.edges, decision.state.tree.pending) == ({}, [])


def test_an_end_stage_counts_its_edge_and_its_visit_and_completes_the_run() -> None:
    spec = machine(task("a", default_next="fin"), Stage(name="fin", kind="end"))
    decision = succeed(spec, 2)
    assert (decision.state.status, decision.state.visits) == ("complete", {"a": 1, "fin": 1})
    assert decision.state.edges == {"a": {"fin": 1}}
    assert [(step.source, step.target, step.reason) for step in decision.transitions] == [
        ("a", "fin", "default"),
        ("fin", None, "complete"),
    ]


def test_a_failed_stage_never_tries_its_routes() -> None:
    spec = machine(task("a", routes=ways(("true", "b")), default_next="b", error_next="c"), task("b"), task("c"))
    state = advance(spec, None, Started()).state
    assert advance(spec, state, Failed(kind="exit", message="no")).state.tree.stage == "c"


# set


MERGES: list[tuple[str, Json, Json, Json]] = [
    ("objects recurse", {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    ("arrays replace", {"a": [1, 2, 3]}, {"a": [9]}, {"a": [9]}),
    ("an empty array replaces", {"a": [1]}, {"a": []}, {"a": []}),
    ("scalars replace", {"a": 1}, {"a": "x"}, {"a": "x"}),
    ("null is a value", {"a": {"x": 1}}, {"a": None}, {"a": None}),
    ("an object replaces null", {"a": None}, {"a": {"x": 1}}, {"a": {"x": 1}}),
    ("an object replaces a scalar", {"a": 3}, {"a": {"x": 1}}, {"a": {"x": 1}}),
    ("a scalar replaces an object", {"a": {"x": 1}}, {"a": 3}, {"a": 3}),
    ("objects in arrays do not recurse", {"a": [{"x": 1}]}, {"a": [{"y": 2}]}, {"a": [{"y": 2}]}),
    ("an empty object changes nothing", {"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}),
    ("the rest stays", {"a": 1, "b": {"c": {"d": 1}}}, {"b": {"c": {"e": 2}}}, {"a": 1, "b": {"c": {"d": 1, "e": 2}}}),
]


def test_set_is_merged_deeply() -> None:
    def one_case(base: Json, patch: Json, merged: Json) -> None:
        assert merge(base, patch) == merged
        spec = machine(task("a", set={key: f"output.{key}" for key in patch}), state=base)
        assert succeed(spec, patch).state.state == merged
        assert spec.state == base

    for_each(one_case, [m[1:] for m in MERGES])


def test_set_may_nest_and_its_expressions_see_the_state_before_it() -> None:
    rules: dict[str, Json] = {"n": "state.n + 1", "old": {"n": "state.n", "deep": {"out": "output"}}}
    spec = machine(task("a", set=rules), state={"n": 1, "old": {"kept": True}})
    assert succeed(spec, "o").state.state == {"n": 2, "old": {"kept": True, "n": 1, "deep": {"out": "o"}}}


def test_routes_see_the_state_after_set() -> None:
    spec = machine(task("a", set={"n": "state.n + 1"}, routes=ways(("state.n == 2", "b"))), task("b"), state={"n": 1})
    assert succeed(spec, None).state.tree.stage == "b"


def test_an_answer_is_settled_like_an_output() -> None:
    ask = Stage(name="ask", kind="human", set={"said": "output"}, routes=ways(("state.said == 'go'", "b")))
    spec = machine(ask, task("b"))
    state = advance(spec, advance(spec, None, Started()).state, Answered(value="go")).state
    assert (state.state, state.tree.stage) == ({"said": "go"}, "b")


def test_a_mistake_in_set_or_routes_fails_the_stage_and_keeps_its_output_and_the_state() -> None:
    def one_case(stage: Stage, kind: str) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        spec = machine(stage, task("b"), state={"n": 0}, state_schema=schema)
        state = succeed(spec, {"fine": True}).state
        assert failure_in(state) == (kind, "a", "settling")
        assert (state.outputs, state.state, state.edges) == ({"a": {"fine": True}}, {"n": 0}, {})

        spec = replace(spec, stages={**spec.stages, "a": replace(stage, error_next="b")})
        decision = succeed(spec, {"fine": True})
        assert [(step.target, step.reason) for step in decision.transitions] == [("b", "error")]
        assert decision.state.tree.cause is not None
        assert decision.state.tree.cause.kind == kind
        assert (decision.state.outputs, decision.state.state) == ({"a": {"fine": True}}, {"n": 0})

    for_each(
        one_case,
        [
            (task("a", set={"x": "1", "y": {"z": "output.missing"}}), "set"),
            (task("a", set={"x": "nonsense"}), "set"),
            (task("a", set={"x": "1"}, routes=ways(("output.missing == 1", "b"))), "condition"),
            (task("a", set={"x": "1"}, routes=ways(("nonsense", "b"))), "condition"),
            (task("a", set={"x": "1"}, routes=ways(("1", "b"))), "condition"),
            (task("a", set={"x": "1", "n": "'not a number'"}), "state_schema"),
        ],
    )


def test_the_message_of_a_mistake_says_where_it_is() -> None:
    spec = machine(task("a", set={"x": {"y": "output.missing"}}))
    error = succeed(spec, {}).state.tree.error
    assert error is not None
    assert error.message.startswith("set.x.y: ")
    spec = machine(task("a", routes=ways(("false", "b"), ("nonsense", "b"))), task("b"))
    error = succeed(spec, {}).state.tree.error
    assert error is not None
    assert error.message.startswith("routes[1].when: ")


def test_a_mistake_in_set_is_not_a_reason_to_repeat_the_effect() -> None:
    spec = machine(task("a", set={"x": "output.missing"}, retry=Retry(max_attempts=5)))
    state = succeed(spec, {}).state
    assert (state.tree.phase, state.tree.attempt) == ("failed", 1)


def test_the_merged_whole_is_what_state_schema_judges() -> None:
    schema = {"type": "object", "required": ["a", "b"]}
    spec = machine(task("a", set={"b": "output"}), state={"a": 1}, state_schema=schema)
    assert succeed(spec, 2).state.state == {"a": 1, "b": 2}


def test_a_state_that_grows_deeper_than_can_be_kept_fails_the_stage_not_the_save() -> None:
    spec = machine(task("a", set={"s": "state"}, default_next="a"))
    state = advance(spec, None, Started()).state
    for _ in range(200):
        if state.status == "running":
            state = advance(spec, state, Succeeded(output=None)).state
    assert failure_in(state) == ("set", "a", "settling")
    # The run's state holds the user's one level deep, and must itself be at most DEPTH deep.
    assert canonical.encode({"state": state.state})
    with pytest.raises(InvalidValueError):
        canonical.encode({"state": {"s": state.state}})


# Names


def test_conditions_see_exactly_the_names_of_the_contract() -> None:
    spec = machine(task("a"), state={"s": 1})
    state = advance(spec, None, Started(input=[1])).state
    assert names(state, Facts(context={"prompts": {"p": "q"}})) == {
        "input": [1],
        "state": {"s": 1},
        "outputs": {},
        "output": None,
        "context": {"prompts": {"p": "q"}},
        "error": None,
        "visits": {"a": 1},
    }
    assert names(state, Facts())["context"] is None


def test_every_name_can_decide_the_way() -> None:
    def one_case(condition: str) -> None:
        spec = machine(task("a", routes=ways((condition, "b"))), task("b"), state={"n": 0})
        facts = Facts(context={"settings": {"strict": True}})
        assert succeed(spec, {"ok": True}, facts, input={"q": "x"}).state.tree.stage == "b"

    for_each(
        one_case,
        [
            "input.q == 'x'",
            "state.n == 0",
            "output.ok",
            "outputs.a.ok",
            "visits.a == 1",
            "context.settings.strict",
            "error == null",
        ],
    )


RECOVERING = machine(
    task("a", error_next="mend"),
    task(
        "mend",
        retry=Retry(max_attempts=2),
        set={"saw": "error"},
        routes=ways(("error.stage == 'a' && error.kind == 'exit' && error.message == 'no'", "b")),
    ),
    task("b", set={"after": "error"}),
)


def test_the_error_that_led_to_a_stage_is_seen_there_and_gone_after_it() -> None:
    state = advance(RECOVERING, None, Started()).state
    state = advance(RECOVERING, state, Failed(kind="exit", message="no")).state
    # Its own failed attempt must not hide what it is there to mend.
    state = advance(RECOVERING, state, Failed(kind="output", message="own mistake")).state
    assert (state.tree.stage, state.tree.attempt) == ("mend", 2)
    state = advance(RECOVERING, state, Succeeded(output=1)).state
    assert state.state == {"saw": {"stage": "a", "kind": "exit", "message": "no"}}
    assert (state.tree.stage, state.tree.cause) == ("b", None)
    state = advance(RECOVERING, state, Succeeded(output=1)).state
    assert (state.status, state.state["after"], state.tree.cause) == ("complete", None, None)


def test_a_recovering_stage_that_fails_passes_on_its_own_failure() -> None:
    spec = machine(task("a", error_next="b"), task("b", error_next="c"), task("c"))
    state = advance(spec, None, Started()).state
    state = advance(spec, state, Failed(kind="exit", message="first")).state
    state = advance(spec, state, Failed(kind="spawn", message="second")).state
    assert state.tree.cause is not None
    assert (state.tree.stage, state.tree.cause.stage, state.tree.cause.message) == ("c", "b", "second")


def test_an_end_reached_by_error_next_completes_the_run_and_keeps_the_reason() -> None:
    spec = machine(task("a", error_next="fin"), Stage(name="fin", kind="end"))
    decision = advance(spec, advance(spec, None, Started()).state, Failed(kind="exit", message="no"))
    assert [step.reason for step in decision.transitions] == ["error", "complete"]
    assert decision.state.status == "complete"
    assert decision.state.tree.cause is not None


def test_many_violations_do_not_flood_the_message() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    rules: dict[str, Json] = {f"key{n}": "1" for n in range(50)}
    error = succeed(machine(task("a", set=rules), state_schema=schema), None).state.tree.error
    assert error is not None
    assert error.message.endswith("; and more")
    assert len(error.message) < 1000


def test_a_run_that_completes_leaves_no_question_and_no_error_behind() -> None:
    spec = machine(task("a", error_next="ask"), Stage(name="ask", kind="human"))
    state = advance(spec, None, Started()).state
    state = advance(spec, state, Failed(kind="exit", message="no")).state
    assert (state.tree.stage, state.status, len(state.interrupts)) == ("ask", "waiting", 1)
    state = advance(spec, state, Answered(value=1)).state
    assert (state.status, state.interrupts, state.tree.cause, state.tree.error) == ("complete", [], None, None)

    spec = machine(task("a", retry=Retry(max_attempts=2)))
    state = advance(spec, None, Started()).state
    state = advance(spec, state, Failed(kind="exit", message="no")).state
    state = advance(spec, state, Succeeded(output=1)).state
    assert (state.status, state.tree.error) == ("complete", None)


def test_an_operators_retry_leaves_no_trace_once_its_stage_is_left() -> None:
    def one_case(after: str | None) -> None:
        spec = machine(task("a", set={"x": "context.x"}, default_next=after), task("b"))
        state = advance(spec, None, Started()).state
        for event in (Failed(kind="exit", message="no"), Retried(), Succeeded(output=1)):
            state = advance(spec, state, event).state
        assert (state.tree.resume, state.tree.attempt, state.tree.first_attempt) == ("settling", 2, 2)
        state = advance(spec, state, Retried(), Facts(context={"x": 1})).state
        assert (state.tree.resume, state.tree.error) == ("ready", None)
        if after:
            assert (state.tree.attempt, state.tree.first_attempt) == (1, 1)

    for_each(one_case, [None, "b"])
