"""``--dry-run``: what the real call would do and how it would exit, by reading alone."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.loop import is_in_doubt
from stateline.engine.record import Run, facts_of, run_scope
from stateline.errors import StatelineError
from stateline.machine.advance import advance
from stateline.machine.run import Answered, Intended, Lost, Replaced, RunState
from stateline.machine.spec import Machine, Stage
from stateline.service.answers import not_waiting, unwrap
from stateline.service.contexts import ContextOptions, context_scope, rehearse
from stateline.service.demands import demand_head
from stateline.service.execute import Call, Options, answer_of, change_of, check_names, find, how_to_launch, warnings_of
from stateline.service.launch import (
    Machinery,
    beginning,
    demand_beginning,
    demand_no_secret,
    machine_scope,
    parse_machine,
    read_machinery,
)
from stateline.store.protocol import Places
from stateline.store.refusals import unsafe
from stateline.store.store import Scope, Store, demand_known_version


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen. ``action``: start, restart, advance, answer, wait, report, derive, refine, restore, refuse.

    ``exit`` is how the real call would exit. Where that hangs on what an effect gives, it is the exit after effects
    that succeed and take the default way, and ``exits`` lists all that are possible. ``reason`` says why a call would
    be refused."""

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
        return _refusal(store, error, options.run)


def plan_context(store: Store, options: ContextOptions) -> Plan:
    """What ``run`` without a prompt would do. Raises ``UsageError`` for a malformed name."""
    scope = context_scope(store, options)
    try:
        head, changes, warnings = rehearse(store, scope, options)
        if changes:
            _demand_writable(store, [scope], objects=False)
        steps = [str(change.event["type"]) for change in changes]
        return Plan(
            action=steps[-1] if steps else "restore",
            scope=scope.key,
            head=head.sha256 if head else None,
            effects=[{"type": "snapshot", "event": step} for step in steps],
            exit=0,
            exits=[0],
            warnings=[*store.warnings, *warnings],
        )
    except StatelineError as error:
        return _refusal(store, error, None)


def _refusal(store: Store, error: StatelineError, run: str | None) -> Plan:
    return Plan(
        action="refuse",
        run=run,
        exit=error.exit_code,
        exits=[error.exit_code],
        reason=f"{error.message} ({error.hint})" if error.hint else error.message,
        warnings=list(store.warnings),
    )


def _plan_execute(store: Store, options: Options) -> Plan:
    machinery = read_machinery(options.machine)
    run = find(store, options, machinery)
    if run is not None and not options.force:
        changed = change_of(run, machinery)
        machine = run.machine
        if changed is not None:
            if not options.accept_change:
                raise changed
            machine = parse_machine(store, machinery)
        if run.state.status != "complete" and run.event["machine"]["path"] != machinery.path:
            # The call records that the run goes by the file where it lies now.
            _demand_writable(store, [run.scope, machine_scope(store, machinery)], objects=False)
        warnings = warnings_of(store, machinery, options, run.id, run)
        return _plan_known(run, machine, options.call, [*store.warnings, *warnings], changed is not None)
    return _plan_launch(store, run, machinery, options)


def _plan_launch(store: Store, run: Run | None, machinery: Machinery, options: Options) -> Plan:
    how = how_to_launch(options)
    machine = parse_machine(store, machinery)
    demand_no_secret(store, how, machinery)
    state = beginning(store, how, machine, machinery).decision.state
    demand_beginning(store, how)
    scope = run_scope(store, options.run) if options.run else None
    _demand_writable(store, [machine_scope(store, machinery), *([scope] if scope else [])], objects=True)
    base = Plan(
        action="restart" if run else "start",
        run=options.run,
        scope=scope.key if scope else None,
        head=run.sha256 if run else None,
        exit=0,
        warnings=[*store.warnings, *warnings_of(store, machinery, options, options.run, None)],
    )
    return _plan_turns(base, machine, state, options.call.one_turn)


def _plan_known(run: Run, machine: Machine, call: Call, warnings: list[str], changed: bool) -> Plan:
    store, state = run.scope.store, run.state
    demand_head(run.scope, run.snapshot, call.parent)
    if changed:
        state = advance(machine, state, Replaced()).state
    lost = is_in_doubt(run)
    if lost and state.tree.phase == "ready":
        state = advance(machine, state, Intended()).state
    if lost:
        state = advance(machine, state, Lost(), facts_of(run)).state
    said = answer_of(run, call)
    answer = None if said is msgspec.UNSET else unwrap(run, said)
    action = {"running": "advance", "waiting": "wait"}.get(state.status, "report")
    base = Plan(action=action, run=run.id, scope=run.scope.key, head=run.sha256, exit=0, warnings=warnings)
    if answer is not None and answer.again:
        if call.one_turn:
            return _standing(replace(base, action="report"), state, True)
    elif answer is not None:
        if state.status != "waiting":
            raise not_waiting(run)
        state = advance(machine, state, Answered(value=answer.value), facts_of(run)).state
        base = replace(base, action="answer")
    if changed or lost or base.action in ("advance", "answer"):
        _demand_writable(store, [run.scope], objects=changed)
    if base.action == "answer" and call.one_turn:
        return _standing(base, state, True)
    return _plan_turns(base, machine, state, call.one_turn)


def _demand_writable(store: Store, scopes: list[Scope], *, objects: bool) -> None:
    """Raise what a writer of these scopes (and for certain of objects) would, as far as reading can tell."""
    store.backend.demand_writable()
    if isinstance(store.backend, Places):
        places = [f"{scope.hash}/{file}" for scope in scopes for file in ("", naming.POINTER)]
        for name in [*places, f"{naming.OBJECTS}/"] if objects else places:
            found = store.backend.look(name)
            if found:
                raise unsafe(found)
    for scope in scopes:
        head = scope.head()
        if head is not None:
            demand_known_version(head)


def _standing(base: Plan, state: RunState, one_turn: bool) -> Plan:
    """``base`` for a call that stops as the run stands."""
    exit = {"running": 0, "complete": 2 if one_turn else 0, "waiting": 3, "error": 1}[state.status]
    return replace(base, exit=exit, exits=[exit])


def _plan_turns(base: Plan, machine: Machine, state: RunState, one_turn: bool) -> Plan:
    """``base`` with the effect that comes first, and the exits that can follow."""
    if state.status != "running":
        return _standing(base, state, one_turn)
    stage = machine.stages[state.tree.stage]
    effect = {"type": "task", "stage": stage.name, "argv": stage.argv, "repeatable": stage.repeatable}
    exits = _exits(machine, stage, one_turn)
    return replace(base, effects=[effect], exit=_likely(machine, stage, one_turn), exits=sorted({*exits, 1}))


def _ways(stage: Stage) -> list[str | None]:
    """Stages that may follow, None for the end of the run; the default way first."""
    ways = [stage.default_next, *(route.to for route in stage.routes)]
    return [*ways, stage.error_next] if stage.error_next else ways


def _exit_at(machine: Machine, name: str | None, one_turn: bool) -> int | None:
    """The exit of a call that stops at that stage, or None if it goes on there."""
    kind = "end" if name is None else machine.stages[name].kind
    if kind == "human":
        return 3
    if kind == "end":
        return 2 if one_turn else 0
    return 0 if one_turn else None


def _exits(machine: Machine, stage: Stage, one_turn: bool) -> set[int]:
    exits: set[int] = set()
    seen = {stage.name}
    stack = [stage]
    while stack:
        for way in _ways(stack.pop()):
            exit = _exit_at(machine, way, one_turn)
            if exit is not None:
                exits.add(exit)
            elif way is not None and way not in seen:
                seen.add(way)
                stack.append(machine.stages[way])
    return exits


def _likely(machine: Machine, stage: Stage, one_turn: bool) -> int:
    """The exit when every effect succeeds and every stage takes its default way; a loop of defaults ends by a limit."""
    seen: set[str] = set()
    while stage.name not in seen:
        seen.add(stage.name)
        exit = _exit_at(machine, stage.default_next, one_turn)
        if exit is not None:
            return exit
        stage = machine.stages[stage.default_next or ""]
    return 1
