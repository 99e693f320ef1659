"""``--dry-run``: what the real call would do and how it would exit, by reading alone."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.contexts.plan import ContextOptions, context_scope, plan_steps
from stateline.engine.dependencies import MANUAL, Means
from stateline.engine.loop import after_cut, may_ask, recall
from stateline.engine.record import Run, facts_of, run_scope
from stateline.engine.step import doubts, is_cut_off, is_model_awaited
from stateline.errors import RequestError, StatelineError
from stateline.history.preconditions import require_head
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Answered, Replaced, RunState
from stateline.machine.spec import Machine
from stateline.service.answers import as_event, not_waiting, unwrap
from stateline.service.create_run import (
    Machinery,
    about_to_begin,
    beginning,
    machine_scope,
    parse_machine,
    read_machinery,
    require_beginning,
    require_no_secret,
)
from stateline.service.execute import (
    GO_ON,
    Call,
    Options,
    answer_of,
    change_of,
    check_names,
    find,
    how_to_launch,
    warnings_of,
)
from stateline.service.exits import Ahead
from stateline.store.local.os_errors import unsafe
from stateline.store.protocol import Places
from stateline.store.store import Scope, Store, require_known_version


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen. ``action``: start, restart, advance, answer, retry, wait, report, derive, refine, restore,
    refuse.

    ``exit`` is how the real call would exit. Where that hangs on what an effect gives, it is the exit after effects
    that succeed and take the default way, and ``exits`` lists all that are possible. ``reason`` says why a call would
    be refused; of another action, why the call would stop once that is saved."""

    action: str
    run: str | None = None
    scope: str | None = None
    head: str | None = None
    effects: list[Json] = []
    exit: int
    exits: list[int] = []
    reason: str = ""
    warnings: list[str] = []

    def document(self) -> dict[str, Json]:
        """The JSON document."""
        names = ("action", "run", "scope", "head", "effects", "exits", "reason")
        return {"plan": {name: getattr(self, name) for name in names}, "exit": self.exit, "warnings": self.warnings}


def plan_execute(store: Store, options: Options) -> Plan:
    """What ``execute`` would do. Raises ``UsageError`` for malformed names; any other error is a plan to refuse.

    Standard input is read as the real call would read it first: if the run waits for an answer now.
    """
    check_names(options)
    try:
        return _plan_execute(store, options)
    except StatelineError as error:
        return refusal(store, error, options.run)


def plan_context(store: Store, options: ContextOptions) -> Plan:
    """What ``run`` without a prompt would do. Raises ``UsageError`` for a malformed name."""
    scope = context_scope(store, options)
    try:
        found = plan_steps(store, scope, options)
        if found.steps:
            require_writable(store, [scope], objects=False)
        return Plan(
            action=found.steps[-1].type if found.steps else "restore",
            scope=scope.key,
            head=found.head.sha256 if found.head else None,
            effects=found.effects(),
            exit=0,
            # A model may give no reply, or one that is refused.
            exits=[0, 1] if any(step.by_model for step in found.steps) else [0],
            warnings=[*store.warnings, *found.warnings],
        )
    except StatelineError as error:
        return refusal(store, error, None)


def refusal(store: Store, error: StatelineError, run: str | None) -> Plan:
    return Plan(
        action="refuse",
        run=run,
        exit=error.exit_code,
        exits=[error.exit_code],
        reason=_reason(error),
        warnings=list(store.warnings),
    )


def _reason(error: StatelineError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _plan_execute(store: Store, options: Options) -> Plan:
    machinery = read_machinery(options.machine)
    run = find(store, options, machinery)
    if run is not None and not options.force:
        changed, over = change_of(run, machinery), run.state.status == "complete"
        machine = run.machine
        if changed is not None:
            if not options.accept_change:
                raise changed
            machine = machine if over else parse_machine(store, machinery)
        moved = not over and run.event["machine"]["path"] != machinery.path
        if moved:
            # The call records that the run goes by the file where it lies now.
            require_writable(store, [run.scope, machine_scope(store, machinery)], objects=False)
        warnings = [*store.warnings, *warnings_of(store, machinery, options, run.id, run)]
        return plan_known(run, machine, options.call, Known(warnings, changed is not None and not over, moved))
    return _plan_launch(store, run, machinery, options)


def _plan_launch(store: Store, run: Run | None, machinery: Machinery, options: Options) -> Plan:
    how = how_to_launch(options)
    machine = parse_machine(store, machinery)
    require_no_secret(store, how, machinery)
    first = beginning(store, how, machine, machinery)
    require_beginning(store, how)
    scope = run_scope(store, options.run) if options.run else None
    require_writable(store, [machine_scope(store, machinery), *([scope] if scope else [])], objects=True)
    told = [*warnings_of(store, machinery, options, options.run, None)]
    told += options.call.closing(about_to_begin(store, how, machinery, first))
    base = Plan(
        action="restart" if run else "start",
        run=options.run,
        scope=scope.key if scope else None,
        head=run.sha256 if run else None,
        exit=0,
        warnings=[*store.warnings, *told],
    )
    return plan_turns(base, machine, first.decision.state, options.call.one_turn, first.means)


class Known(msgspec.Struct, frozen=True):
    """What is known of a run that is there: what to warn of, and whether its machine ``changed``, or only ``moved``;
    both are recorded first."""

    warnings: list[str]
    changed: bool = False
    moved: bool = False


def plan_known(run: Run, machine: Machine, call: Call, known: Known) -> Plan:
    """What a call would do that goes on with ``run``, by ``machine``. Raises as the call, if that writes nothing."""
    require_head(run.scope, run.snapshot, call.parent)
    store, state, means = run.scope.store, run.state, call.means(run)
    changed, warnings = known.changed, known.warnings
    if changed:
        state = advance(machine, state, Replaced()).state
    doubt = doubts(run)
    for event in doubt:
        state = advance(machine, state, event, facts_of(run)).state
    planned = replace(run, machine=machine, state=state)
    said = answer_of(run, call)
    if said == GO_ON and run.state.status == "running" and not doubt:
        said = msgspec.UNSET
    answer = None if said is msgspec.UNSET else unwrap(planned, said)
    asks = is_model_awaited(planned) and may_ask(planned, means)
    action = "advance" if asks else {"running": "advance", "waiting": "wait"}.get(state.status, "report")
    told = [*warnings, *call.closing(run)]
    base = Plan(action=action, run=run.id, scope=run.scope.key, head=run.sha256, exit=0, warnings=told)
    if answer is not None and answer.again:
        if call.one_turn and state.tree.phase != "calling":
            return standing(replace(base, action="report"), state, True)
    elif answer is not None:
        if state.status != "waiting":
            raise not_waiting(run)
        value, _ = as_event(planned, answer.value)
        state = advance(machine, state, Answered(value=value), facts_of(run, manual=means.manual)).state
        base = replace(base, action="answer")
    if changed or doubt or base.action in ("advance", "answer"):
        require_writable(store, [run.scope], objects=changed)
    if base.action == "answer" and call.one_turn and state.tree.phase != "calling":
        return standing(base, state, True)
    try:
        return _plan_on(base, replace(planned, state=state), call, means)
    except RequestError as error:  # the model cannot be called, and what comes before that is saved all the same
        if not (changed or known.moved or doubt or base.action == "answer"):
            raise
        return replace(base, exit=error.exit_code, exits=[error.exit_code], reason=_reason(error))


def _plan_on(base: Plan, run: Run, call: Call, means: Means) -> Plan:
    """``base`` for the turns that follow where ``run`` stands. A model's call that was counted and lost has ended as it
    was recorded, or is made again."""
    recalled = recall(run, means)
    if recalled is not None:
        return replace(plan_turns(base, run.machine, run.state, call.one_turn, recalled), effects=[])
    state = after_cut(run, means).state if is_cut_off(run) else run.state
    return plan_turns(base, run.machine, state, call.one_turn, means)


def require_writable(store: Store, scopes: list[Scope], *, objects: bool) -> None:
    """Raise what a writer of these scopes (and for certain of objects) would, as far as reading can tell."""
    store.backend.require_writable()
    if isinstance(store.backend, Places):
        places = [f"{scope.hash}/{file}" for scope in scopes for file in ("", naming.POINTER)]
        for name in [*places, f"{naming.OBJECTS}/"] if objects else places:
            found = store.backend.look(name)
            if found:
                raise unsafe(found)
    for scope in scopes:
        head = scope.head()
        if head is not None:
            require_known_version(head)


def standing(base: Plan, state: RunState, one_turn: bool) -> Plan:
    """``base`` for a call that stops as the run stands."""
    exit = {"running": 0, "complete": 2 if one_turn else 0, "waiting": 3, "error": 1}[state.status]
    return replace(base, exit=exit, exits=[exit])


def plan_turns(base: Plan, machine: Machine, state: RunState, one_turn: bool, means: Means = MANUAL) -> Plan:
    """``base`` with the effects that come first, and the exits that can follow."""
    tree = state.tree
    at_model = machine.stages[tree.stage].kind == "agent" and tree.phase in ("ready", "waiting")
    if at_model and means.manual:
        return replace(base, exit=3, exits=[3])
    if state.status != "running" and not at_model:
        return standing(base, state, one_turn)
    ahead = Ahead(machine=machine, one_turn=one_turn, manual=means.manual)
    return replace(
        base,
        effects=_effects(machine, state, means),
        exit=ahead.likely(tree),
        exits=sorted({*ahead.possible(tree), 1}),
    )


def by_way(effect: Json, exchanges: Json) -> Json:
    """A model's call in a plan, with whether it is played back or recorded: ``exchanges`` as an event has them."""
    if effect["type"] != "model" or exchanges is None:
        return effect
    return {**effect, "exchanges": exchanges["mode"]}


def _effects(machine: Machine, state: RunState, means: Means) -> list[Json]:
    """What is performed first: a task, a model's call, or the tool calls of a reply."""
    stage = machine.stages[state.tree.stage]
    if state.tree.phase == "calling":
        tools = machine.toolset.tools if machine.toolset is not None else {}
        return [
            {"type": "tool", "stage": stage.name, "tool": call["name"], "repeatable": tools[call["name"]].repeatable}
            for call in state.tree.pending
            if call["status"] != "done"
        ]
    if stage.kind == "agent":
        if means.ready is not None:
            means.ready()
        effect = {"type": "model", "stage": stage.name, "model": means.name, "repeatable": stage.repeatable}
        return [by_way(effect, None if means.exchanges is None else means.exchanges())]
    return [{"type": "task", "stage": stage.name, "argv": stage.argv, "repeatable": stage.repeatable}]
