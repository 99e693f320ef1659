"""Every bound of N allows N and refuses the next: each one is tried at N - 1, N and N + 1."""

from __future__ import annotations

from typing import Any

from each_case import for_each
from machine.building import machine
from msgspec.structs import replace

from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import (
    Answered,
    Facts,
    Failed,
    Failure,
    Replied,
    Retried,
    RunState,
    Started,
    Succeeded,
)
from stateline.machine.spec import Agent, Bounds, EdgeLimit, Machine, Retry, Stage

N = 3
AROUND = [(N - 1, True), (N, True), (N + 1, False)]


def task(name: str, **fields: Any) -> Stage:
    return Stage(name=name, kind="task", argv=["true"], repeatable=True, **fields)


def human(name: str, **fields: Any) -> Stage:
    return Stage(name=name, kind="human", **fields)


def agent(name: str, **fields: Any) -> Stage:
    return Stage(name=name, kind="agent", agent=Agent(prompt="Think."), repeatable=True, **fields)


END = Stage(name="fin", kind="end")


def begin(spec: Machine) -> RunState:
    return advance(spec, None, Started()).state


def run_for(spec: Machine, turns: int) -> RunState:
    state = begin(spec)
    for _ in range(turns):
        if state.tree.phase == "ready":
            state = advance(spec, state, Succeeded(output=None)).state
    return state


def refused_by(state: RunState) -> str:
    if state.status != "error":
        return ""
    error = state.tree.error
    assert error is not None
    assert error.kind == "limit"
    assert error.bound in error.message
    assert error.hint
    assert state.tree.resume == "routing"
    return error.bound


def test_max_visits_allows_that_many_visits_the_first_included() -> None:
    def one_case(visit: int, allowed: bool) -> None:
        spec = machine(task("a", default_next="a", max_visits=N))
        state = run_for(spec, visit - 1)
        assert refused_by(state) == ("" if allowed else "max_visits")
        assert state.visits == {"a": min(visit, N)}

    for_each(one_case, AROUND)


def test_an_edge_limit_allows_that_many_transitions_over_its_edge() -> None:
    def one_case(taken: int, allowed: bool) -> None:
        edge = EdgeLimit(source="b", target="a", max_count=N)
        spec = machine(task("a", default_next="b"), task("b", default_next="a"), edge_limits=[edge])
        state = run_for(spec, 2 * taken)
        assert refused_by(state) == ("" if allowed else "edge_limits")
        assert state.edges["b"] == {"a": min(taken, N)}

    for_each(one_case, AROUND)


def test_max_iterations_allows_that_many_backward_edges() -> None:
    def one_case(back: int, allowed: bool) -> None:
        spec = machine(task("a", default_next="b"), task("b", default_next="a"), bounds=Bounds(max_iterations=N))
        state = run_for(spec, 2 * back)
        assert refused_by(state) == ("" if allowed else "max_iterations")
        assert state.iteration == min(back, N)

    for_each(one_case, AROUND)


def test_max_agent_hops_allows_that_many_transitions() -> None:
    def one_case(hops: int, allowed: bool) -> None:
        spec = machine(task("a", default_next="b"), task("b", default_next="a"), bounds=Bounds(max_agent_hops=N))
        state = run_for(spec, hops)
        assert refused_by(state) == ("" if allowed else "max_agent_hops")
        assert sum(sum(targets.values()) for targets in state.edges.values()) == min(hops, N)

    for_each(one_case, AROUND)


METERS = [("timeout", "active", [N - 1, N, N + 1]), ("max_llm_calls", "llm_calls", [N - 1, N, N + 1])]
METERED = [(bound, meter, used, used <= N) for bound, meter, uses in METERS for used in uses]


def metered(bound: str) -> Bounds:
    return replace(Bounds(), **{bound: N})


def test_a_meter_at_its_bound_lets_the_next_task_start_and_above_it_does_not() -> None:
    def one_case(bound: str, meter: str, used: int, allowed: bool) -> None:
        spec = machine(task("a", default_next="b"), task("b"), bounds=metered(bound))
        state = advance(spec, begin(spec), Succeeded(output=1), Facts(**{meter: used})).state
        assert refused_by(state) == ("" if allowed else bound)
        assert state.outputs == {"a": 1}

    for_each(one_case, METERED)


def test_a_retry_is_a_dispatch_that_a_meter_can_refuse() -> None:
    def one_case(bound: str, meter: str, used: int, allowed: bool) -> None:
        spec = machine(task("a", retry=Retry(max_attempts=9)), bounds=metered(bound))
        state = advance(spec, begin(spec), Failed(kind="exit", message="exit code 3"), Facts(**{meter: used})).state
        assert state.tree.phase == ("ready" if allowed else "failed")
        assert state.tree.error is not None
        assert "exit code 3" in state.tree.error.message
        assert state.tree.error.bound == ("" if allowed else bound)
        if not allowed:
            assert state.tree.resume == "ready"
            assert advance(spec, state, Retried(), Facts(**{meter: used})).state.tree.phase == "failed"
            assert advance(spec, state, Retried(), Facts(**{meter: N})).state.tree.phase == "ready"

    for_each(one_case, METERED)


def test_meters_never_refuse_a_stage_that_dispatches_nothing() -> None:
    def one_case(target: Stage, bound: str, meter: str) -> None:
        spec = machine(task("a", default_next="b"), target, bounds=metered(bound))
        state = advance(spec, begin(spec), Succeeded(output=1), Facts(**{meter: 10 * N})).state
        assert state.tree.stage == "b"
        assert state.status != "error"

    for_each(
        one_case,
        [
            (target, bound, meter)
            for target in [human("b"), Stage(name="b", kind="end")]
            for bound, meter in [("timeout", "active"), ("max_llm_calls", "llm_calls")]
        ],
    )


def test_an_answer_can_be_given_however_much_time_was_used() -> None:
    spec = machine(human("a", default_next="fin"), END, bounds=Bounds(timeout=N))
    assert advance(spec, begin(spec), Answered(value=1), Facts(active=10.0 * N)).state.status == "complete"


def test_a_restart_is_not_refused_by_the_meters_of_the_run_before() -> None:
    spec = machine(task("a"), bounds=Bounds(timeout=N, max_llm_calls=N))
    state = advance(spec, begin(spec), Started(), Facts(active=10.0 * N, llm_calls=10 * N)).state
    assert state.tree.phase == "ready"


def test_the_message_of_a_limit_does_not_hold_the_meters_reading() -> None:
    spec = machine(task("a", default_next="b"), task("b"), bounds=Bounds(timeout=N))
    ends = [advance(spec, begin(spec), Succeeded(output=1), Facts(active=N + x)).state for x in (0.5, 99.25)]
    assert ends[0] == ends[1]


UNLIMITED = machine(
    task("a", default_next="a", max_visits=0),
    edge_limits=[EdgeLimit(source="a", target="a", max_count=0)],
    bounds=Bounds(),
)


def test_zero_means_no_limit() -> None:
    state = begin(UNLIMITED)
    for _ in range(60):
        state = advance(UNLIMITED, state, Succeeded(output=None), Facts(active=1e9, llm_calls=10**9)).state
    assert (state.status, state.visits, state.iteration) == ("running", {"a": 61}, 60)


def test_a_run_that_finishes_exactly_at_its_limit_is_complete() -> None:
    def one_case(spec: Machine) -> None:
        state = run_for(spec, N - 1)
        assert (state.status, state.visits) == ("running", {"a": N})
        last = replace(spec, stages={"a": replace(spec.stages["a"], default_next=None)})
        assert advance(last, state, Succeeded(output=1)).state.status == "complete"
        to_end = replace(spec, stages={"a": replace(spec.stages["a"], default_next="fin"), "fin": END})
        to_end = replace(to_end, order=["a", "fin"])
        assert advance(to_end, state, Succeeded(output=1)).state.status == "complete"
        assert refused_by(advance(spec, state, Succeeded(output=1)).state)

    for_each(
        one_case,
        [
            (case,)
            for case in [
                machine(task("a", default_next="a", max_visits=N)),
                machine(task("a", default_next="a"), edge_limits=[EdgeLimit(source="a", target="a", max_count=N - 1)]),
                machine(task("a", default_next="a"), bounds=Bounds(max_iterations=N - 1)),
                machine(task("a", default_next="a"), bounds=Bounds(max_agent_hops=N - 1)),
            ]
        ],
    )


def test_iterations_and_hops_never_keep_a_run_from_ending() -> None:
    spec = machine(END, task("a", default_next="fin"), bounds=Bounds(max_iterations=1, max_agent_hops=1))
    spec = replace(spec, start="a")
    state = replace(begin(spec), iteration=1, edges={"a": {"a": 1}})
    state = advance(spec, state, Succeeded(output=1)).state
    assert (state.status, state.iteration) == ("complete", 2)
    assert state.edges == {"a": {"a": 1, "fin": 1}}


def test_max_visits_and_edge_limits_hold_for_an_end_stage_too() -> None:
    spec = machine(task("a", default_next="fin"), replace(END, max_visits=1))
    state = replace(begin(spec), visits={"a": 1, "fin": 1})
    assert refused_by(advance(spec, state, Succeeded(output=1)).state) == "max_visits"
    edge = EdgeLimit(source="a", target="fin", max_count=1)
    spec = machine(task("a", default_next="fin"), END, edge_limits=[edge])
    state = replace(begin(spec), edges={"a": {"fin": 1}})
    assert refused_by(advance(spec, state, Succeeded(output=1)).state) == "edge_limits"


def test_forward_edges_are_free_after_the_iterations_are_used_up() -> None:
    spec = machine(task("a", default_next="b"), task("b"), bounds=Bounds(max_iterations=1))
    state = advance(spec, replace(begin(spec), iteration=1), Succeeded(output=1)).state
    assert (state.tree.stage, state.iteration) == ("b", 1)


def test_an_edge_is_backward_if_its_target_is_at_or_before_its_source() -> None:
    def one_case(target: str, iteration: int) -> None:
        spec = replace(machine(task("a"), task("b", default_next=target), task("c")), start="b")
        state = advance(spec, begin(spec), Succeeded(output=1)).state
        assert (state.tree.stage, state.iteration) == (target, iteration)

    for_each(one_case, [("a", 1), ("b", 1), ("c", 0)])


def test_edges_are_counted_by_pair_so_names_with_arrows_do_not_collide() -> None:
    limits = [EdgeLimit(source="a", target="b->a", max_count=1)]
    spec = machine(task("a", default_next="b->a"), task("b->a", default_next="a"), edge_limits=limits)
    assert run_for(spec, 2).edges == {"a": {"b->a": 1}, "b->a": {"a": 1}}
    assert refused_by(run_for(spec, 3)) == "edge_limits"


def test_the_lower_of_two_limits_on_one_edge_rules() -> None:
    limits = [EdgeLimit(source="a", target="a", max_count=count) for count in (5, 0, 2, 9)]
    spec = machine(task("a", default_next="a"), edge_limits=limits)
    assert run_for(spec, 9).edges == {"a": {"a": 2}}


def test_of_several_limits_the_first_in_the_documented_order_is_named() -> None:
    full = {
        "max_visits": {"max_visits": 1},
        "edge_limits": {"edge_limits": [EdgeLimit(source="a", target="a", max_count=1)]},
        "max_iterations": {"max_iterations": 1},
        "max_agent_hops": {"max_agent_hops": 1},
        "timeout": {"timeout": 1.0},
        "max_llm_calls": {"max_llm_calls": 1},
    }
    order = list(full)
    for first in range(len(order)):
        chosen = {key: value for bound in order[first:] for key, value in full[bound].items()}
        visits = {key: chosen.pop(key) for key in ("max_visits",) if key in chosen}
        edges = {key: chosen.pop(key) for key in ("edge_limits",) if key in chosen}
        spec = machine(task("a", default_next="a", **visits), bounds=replace(Bounds(), **chosen), **edges)
        state = replace(begin(spec), iteration=1, edges={"a": {"a": 1}})
        state = advance(spec, state, Succeeded(output=1), Facts(active=2.0, llm_calls=2)).state
        assert refused_by(state) == order[first]


# Agents

MODEL_BOUNDS = {"max_llm_calls": [(N - 1, True), (N, False)], "max_tokens": [(N - 1, True), (N, False), (N + 1, False)]}


def test_bounds_on_calls_and_tokens_refuse_only_transitions_to_agents() -> None:
    def one_case(bound: str, used: int, allowed: bool) -> None:
        facts = Facts(**{{"max_llm_calls": "llm_calls", "max_tokens": "tokens"}[bound]: used})
        for stage, let_through in ((agent("b"), allowed), (task("b"), True), (human("b"), True), (END, True)):
            spec = machine(task("a", default_next=stage.name), stage, bounds=replace(Bounds(), **{bound: N}))
            state = advance(spec, begin(spec), Succeeded(output=1), facts).state
            assert refused_by(state) == ("" if let_through else bound)

    for_each(one_case, [(bound, *case) for bound, cases in MODEL_BOUNDS.items() for case in cases])


def test_an_agent_that_ends_exactly_at_a_limit_is_complete() -> None:
    def one_case(manual: bool) -> None:
        spec = machine(agent("a"), bounds=Bounds(max_llm_calls=1, max_tokens=100))
        state = advance(spec, None, Started(), Facts(manual=manual)).state
        event = Answered(value={"content": "Yes."}) if manual else Replied(content="Yes.")
        assert advance(spec, state, event, Facts(llm_calls=1, tokens=100, manual=manual)).state.status == "complete"

    for_each(one_case, [True, False])


def test_a_limit_refuses_to_ask_a_model_again_after_a_failure() -> None:
    def one_case(bound: str, used: str) -> None:
        spec = machine(agent("a", retry=Retry(max_attempts=9)), bounds=replace(Bounds(), **{bound: N}))
        state = advance(spec, None, Started(), Facts(manual=False)).state
        failed = Failed(kind="model", message="503")
        assert advance(spec, state, failed, Facts(**{used: N - 1}, manual=False)).state.tree.phase == "ready"
        state = advance(spec, state, failed, Facts(**{used: N}, manual=False)).state
        assert state.tree.error is not None
        assert (state.tree.error.bound, state.tree.resume) == (bound, "ready")
        assert "503" in state.tree.error.message
        state = advance(spec, state, Retried(), Facts(**{used: N})).state
        assert state.tree.error is not None
        assert (state.tree.error.bound, state.tree.phase, state.tree.attempt) == (bound, "failed", 1)

    for_each(one_case, [("max_llm_calls", "llm_calls"), ("max_tokens", "tokens")])


def test_of_several_meters_the_first_in_the_documented_order_is_named() -> None:
    order = ["timeout", "max_llm_calls", "max_tokens"]
    for first in range(len(order)):
        bounds = replace(Bounds(), **dict.fromkeys(order[first:], 1))
        spec = machine(task("a", default_next="b"), agent("b"), bounds=bounds)
        facts = Facts(active=2.0, llm_calls=2, tokens=2)
        assert refused_by(advance(spec, begin(spec), Succeeded(output=1), facts).state) == order[first]


def test_no_message_of_a_limit_holds_a_meters_reading() -> None:
    for bound in ("timeout", "max_llm_calls", "max_tokens"):
        spec = machine(task("a", default_next="b"), agent("b"), bounds=replace(Bounds(), **{bound: 1}))
        facts = Facts(active=77777.0, llm_calls=77777, tokens=77777)
        error = advance(spec, begin(spec), Succeeded(output=1), facts).state.tree.error
        assert error is not None
        assert "77777" not in error.message + error.hint


# A refused way and error_next


def limited(**fields: Any) -> Machine:
    return machine(
        task("a", default_next="b", error_next="help", set={"done": "true"}),
        task("b", max_visits=1),
        task("help"),
        **fields,
    )


def full(spec: Machine) -> RunState:
    return replace(begin(spec), visits={"a": 1, "b": 1})


def test_a_refused_way_takes_error_next_with_set_applied() -> None:
    spec = limited()
    decision = advance(spec, full(spec), Succeeded(output=1))
    state = decision.state
    assert (state.status, state.tree.stage, state.state, state.outputs) == ("running", "help", {"done": True}, {"a": 1})
    assert [(step.target, step.reason) for step in decision.transitions] == [("help", "limit")]
    assert state.tree.cause is not None
    assert (state.tree.cause.kind, state.tree.cause.bound, state.tree.cause.stage) == ("limit", "max_visits", "a")
    assert state.visits == {"a": 1, "b": 1, "help": 1}
    assert state.edges == {"a": {"help": 1}}


def test_a_refused_error_next_fails_the_run_with_the_first_limit_and_tells_both() -> None:
    spec = limited(edge_limits=[EdgeLimit(source="a", target="help", max_count=1)])
    state = advance(spec, replace(full(spec), edges={"a": {"help": 1}}), Succeeded(output=1)).state
    assert refused_by(state) == "max_visits"
    assert state.tree.error is not None
    assert "edge_limits" in state.tree.error.message
    assert state.state == {"done": True}


def test_a_failure_whose_error_next_is_refused_names_the_limit_and_the_failure() -> None:
    spec = limited(edge_limits=[EdgeLimit(source="a", target="help", max_count=1)])
    state = replace(full(spec), edges={"a": {"help": 1}})
    state = advance(spec, state, Failed(kind="exit", message="exit code 3")).state
    error = state.tree.error
    assert isinstance(error, Failure)
    assert (error.kind, error.bound, error.stage, state.tree.resume) == ("limit", "edge_limits", "a", "ready")
    assert "exit code 3" in error.message


def test_time_that_is_used_up_lets_a_failed_task_reach_a_person_but_not_another_task() -> None:
    facts = Facts(active=N + 1.0)
    failed = Failed(kind="exit", message="exit code 3")
    for stage, status in ((human("help"), "waiting"), (task("help"), "error")):
        spec = machine(task("a", error_next="help"), stage, bounds=Bounds(timeout=N))
        assert advance(spec, begin(spec), failed, facts).state.status == status


def test_a_refused_retry_takes_error_next_with_reason_limit() -> None:
    spec = machine(task("a", error_next="help", retry=Retry(max_attempts=2)), human("help"), bounds=Bounds(timeout=N))
    decision = advance(spec, begin(spec), Failed(kind="exit", message="exit code 3"), Facts(active=N + 1.0))
    assert [(step.target, step.reason) for step in decision.transitions] == [("help", "limit")]
    assert decision.state.tree.cause is not None
    assert decision.state.tree.cause.bound == "timeout"
