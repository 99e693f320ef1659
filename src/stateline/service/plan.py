"""``--dry-run``: what the real call would do and how it would exit, by reading alone."""

from __future__ import annotations

import msgspec

from stateline.bundle.canonical import Json
from stateline.engine.record import Run, context_facts, facts_of, run_scope
from stateline.errors import StatelineError, UsageError
from stateline.machine.advance import advance
from stateline.machine.run import Answered, Facts, Lost, RunState
from stateline.machine.spec import Machine, Stage
from stateline.service.answers import not_waiting, unwrap
from stateline.service.contexts import ContextOptions, context_scope
from stateline.service.contexts import plan as steps_of
from stateline.service.execute import Options, change_of, find, how_to_launch
from stateline.service.launch import beginning, parse_machine, read_machinery
from stateline.store.store import Store


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
    """What ``execute`` would do. Raises ``UsageError`` only; any other error is a plan to refuse."""
    try:
        return _plan_execute(store, options)
    except UsageError:
        raise
    except StatelineError as error:
        return _refusal(store, error, options.run)


def plan_context(store: Store, options: ContextOptions) -> Plan:
    """What ``run`` without a prompt would do. Raises ``UsageError`` only."""
    try:
        scope = context_scope(store, options)
        head = scope.head()
        steps = steps_of(options.wishes, head)
        if steps != ["restore"]:
            store.backend.demand_writable()
        return Plan(
            action=steps[-1],
            scope=scope.key,
            head=head.sha256 if head else None,
            effects=[{"type": "snapshot", "event": step} for step in steps if step != "restore"],
            exit=0,
            exits=[0],
            warnings=list(store.warnings),
        )
    except UsageError:
        raise
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
        return _plan_known(store, run, machine, options)
    store.backend.demand_writable()
    machine = parse_machine(store, machinery)
    event, origin = beginning(store, how_to_launch(options), machine, machinery)
    facts = Facts(context=context_facts(store, event.context, origin.context_path))
    state = advance(machine, None, event, facts).state
    name = run.id if run else options.run
    return _plan_turns(
        Plan(
            action="restart" if run else "start",
            run=name,
            scope=run_scope(store, name).key if name else None,
            head=run.sha256 if run else None,
            exit=0,
            warnings=list(store.warnings),
        ),
        machine,
        state,
        options.call.one_turn,
    )


def _plan_known(store: Store, run: Run, machine: Machine, options: Options) -> Plan:
    call = options.call
    state = run.state
    base = Plan(
        action="report", run=run.id, scope=run.scope.key, head=run.sha256, exit=0, warnings=list(store.warnings)
    )
    if call.input is not msgspec.UNSET:
        value, again = unwrap(run, call.input)
        if again:
            return _plan_turns(base, machine, state, call.one_turn)
        if state.status != "waiting":
            raise not_waiting(run)
        state = advance(machine, state, Answered(value=value), facts_of(store, run)).state
        base = msgspec.structs.replace(base, action="answer")
        if call.one_turn:
            exit = _standing(state, one_turn=True)
            return msgspec.structs.replace(base, exit=exit, exits=[exit])
    elif state.status == "running":
        base = msgspec.structs.replace(base, action="advance")
    elif state.status == "waiting":
        base = msgspec.structs.replace(base, action="wait")
    if base.action in ("advance", "answer"):
        store.backend.demand_writable()
    if state.tree.phase == "started":
        state = advance(machine, state, Lost(), facts_of(store, run)).state
    return _plan_turns(base, machine, state, call.one_turn)


def _standing(state: RunState, *, one_turn: bool) -> int:
    return {"running": 0, "complete": 2 if one_turn else 0, "waiting": 3, "error": 1}[state.status]


def _plan_turns(base: Plan, machine: Machine, state: RunState, one_turn: bool) -> Plan:
    """``base`` with the effect that comes first, and the exits that can follow."""
    if state.status != "running":
        exit = _standing(state, one_turn=one_turn)
        return msgspec.structs.replace(base, exit=exit, exits=[exit])
    stage = machine.stages[state.tree.stage]
    effect = {"type": "task", "stage": stage.name, "argv": stage.argv, "repeatable": stage.repeatable}
    exits = _exits(machine, stage, one_turn)
    return msgspec.structs.replace(
        base, effects=[effect], exit=_likely(machine, stage, one_turn), exits=sorted({*exits, 1})
    )


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
