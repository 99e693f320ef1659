"""``exec resume --dry-run``: what the real call would do, by reading alone."""

from __future__ import annotations

from msgspec.structs import replace

from stateline.bundle import naming
from stateline.engine.record import Run, facts_of, load_run
from stateline.engine.step import doubts, stage_of
from stateline.errors import StatelineError
from stateline.history.preconditions import require_head
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Asked, Retried
from stateline.service.execute import Call, require_no_input
from stateline.service.plan import Known, Plan, plan_known, plan_turns, refusal, require_writable, standing
from stateline.store.store import Store


def plan_resume(store: Store, run: str, call: Call, *, retry: bool = False) -> Plan:
    """What ``exec resume`` would do. Raises ``UsageError`` for a malformed id; any other error is a plan to refuse.

    Standard input is read as the real call would read it first: if the run waits for an answer now.
    """
    naming.checked_id(run, "run id")
    try:
        found = load_run(store, run)
        if retry:
            return _plan_retry(found, call)
        return plan_known(found, found.machine, call, Known(list(store.warnings)))
    except StatelineError as error:
        return refusal(store, error, run)


def _plan_retry(run: Run, call: Call) -> Plan:
    store, machine, state = run.scope.store, run.machine, run.state
    require_no_input(call)
    require_head(run.scope, run.snapshot, call.parent)
    require_writable(store, [run.scope], objects=False)
    for event in doubts(run):
        state = advance(machine, state, event, facts_of(run)).state
    # As the real call asks: for the means by which a run is performed that goes on.
    means = call.means(replace(run, state=replace(state, status="running")))
    facts = facts_of(run, manual=means.manual)
    decision = advance(machine, state, Retried(), facts)
    ways, state = decision.transitions, decision.state
    if means.manual and state.tree.phase == "ready" and stage_of(replace(run, state=state)).kind == "agent":
        ways, state = (), advance(machine, state, Asked(), facts).state
    base = Plan(
        action="retry",
        run=run.id,
        scope=run.scope.key,
        head=run.sha256,
        exit=0,
        warnings=[*store.warnings, *call.closing(run)],
    )
    if call.one_turn and ways:
        # A kept output is routed again: that is the turn.
        return standing(base, state, True)
    return plan_turns(base, machine, state, call.one_turn, means)
