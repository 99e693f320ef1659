"""A model's call that was counted before it was made: what follows when it is lost, or its time is over. Pure."""

from __future__ import annotations

from each_case import for_each
from machine.building import machine

from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Event, Facts, Failed, Intended, Lost, RunState, Started
from stateline.machine.spec import Agent, Bounds, Machine, Retry, Stage

MODEL = Facts(manual=False)


def spec(**fields: object) -> Machine:
    """One agent that may be asked again, and its bounds."""
    bounds = Bounds(**{name: fields.pop(name) for name in ("max_llm_calls", "timeout") if name in fields})  # type: ignore[arg-type]
    stage = Stage(name="think", kind="agent", agent=Agent(prompt="Think."), repeatable=True, **fields)  # type: ignore[arg-type]
    rescue = Stage(name="rescue", kind="end")
    return machine(stage, rescue, bounds=bounds)


def play(machine: Machine, *events: tuple[Event, Facts]) -> RunState:
    state = advance(machine, None, Started(), MODEL).state
    for event, facts in events:
        state = advance(machine, state, event, facts).state
    return state


def test_a_lost_call_is_ready_again_as_if_it_had_never_begun() -> None:
    found = spec(max_llm_calls=2, retry=Retry(max_attempts=2))
    failed = (Failed(kind="model", message="no"), MODEL)
    counted = Facts(manual=False, llm_calls=1)
    before = play(found, failed)
    assert play(found, failed, (Intended(), counted), (Lost(), counted)) == before
    assert before.tree.error is not None


def test_a_lost_call_waits_for_an_answer_where_no_model_is() -> None:
    state = play(spec(max_llm_calls=2), (Intended(), MODEL), (Lost(), Facts(manual=True, llm_calls=1)))
    assert (state.status, state.tree.phase, state.interrupts) == (
        "waiting",
        "waiting",
        [{"kind": "llm_request", "stage": "think"}],
    )


def test_a_lost_call_is_not_made_again_beyond_the_bound() -> None:
    def one_case(said: str, why: str) -> None:
        used_up = Facts(manual=False, llm_calls=1)
        state = play(spec(max_llm_calls=1), (Intended(), used_up), (Lost(message=said), used_up))
        assert state.status == "error"
        error = state.tree.error
        assert error is not None
        assert (error.kind, error.bound, state.tree.resume) == ("limit", "max_llm_calls", "ready")
        assert error.message.endswith(f"(before another attempt after: {why})")

    for_each(one_case, [("it broke", "it broke"), ("", "a call was made, and its outcome is unknown")])


def test_a_lost_call_that_a_limit_refuses_takes_the_way_of_errors() -> None:
    used_up = Facts(manual=False, llm_calls=1)
    found = spec(max_llm_calls=1, error_next="rescue")
    decision = advance(found, play(found, (Intended(), used_up)), Lost(), used_up)
    assert [(step.target, step.reason) for step in decision.transitions] == [("rescue", "limit"), (None, "complete")]


def test_a_call_that_used_all_active_time_ends_by_that_limit_regardless_of_the_clock() -> None:
    def one_case(active: float, bound: str, kind: str) -> None:
        failed = Failed(kind="timeout", message="no whole reply", bound=bound)
        state = play(spec(timeout=10.0), (failed, Facts(manual=False, active=active)))
        error = state.tree.error
        assert error is not None
        assert (error.kind, error.bound) == (kind, "timeout" if kind == "limit" else "")
        assert "no whole reply" in error.message

    for_each(
        one_case,
        [
            (active, bound, kind)
            for active in [0.0, 9.0, 10.1]
            for bound, kind in [("", "timeout"), ("timeout", "limit")]
        ],
    )


def test_a_machine_without_a_bound_of_time_takes_a_call_that_such_a_bound_ended_for_one_that_took_too_long() -> None:
    state = play(spec(), (Failed(kind="timeout", message="no whole reply", bound="timeout"), MODEL))
    error = state.tree.error
    assert error is not None
    assert (error.kind, error.bound) == ("timeout", "")
