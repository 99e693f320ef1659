"""``run --dry-run``: what would become of the context, and the first effect of the run; by reading alone."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.contexts.plan import ContextOptions, ContextPlan, context_scope, plan_steps, require_ready
from stateline.engine.dependencies import Means
from stateline.engine.record import Run, run_scope
from stateline.errors import StatelineError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Facts, Started
from stateline.service.create_run import Launch, require_no_secret
from stateline.service.models import Models
from stateline.service.plan import Known, Plan, by_way, plan_context, plan_known, plan_turns, refusal, require_writable
from stateline.service.run import (
    RunOptions,
    asked_of,
    context_options,
    existing,
    require_same,
    toolset_of,
    unheeded,
    with_models,
)
from stateline.store.store import Store


def plan_run(store: Store, options: RunOptions) -> Plan:
    """What ``run`` would do. Raises ``UsageError`` for malformed names and for flags that exclude each other; any other
    error is a plan to refuse."""
    if options.run is not None:
        naming.checked_id(options.run, "run id")
    if options.context is not None:
        naming.checked_id(options.context, "context name")
    models = Models(store, options.models)
    try:
        if options.prompt is None and options.run is None:
            models.begin()
            how = context_options(store, options, models, toolset_of(store, options.tools))
            require_ready(how, plan_steps(store, context_scope(store, how), how))
            plan = plan_context(store, how)
            return replace(plan, effects=[by_way(effect, models.exchanges()) for effect in plan.effects])
        found = existing(store, options)
        if found is not None and not options.force:
            require_same(store, found, options)
            models.overlay(options.context_request, found.context())
            known = Known([*store.warnings, *unheeded(found, options.context_request)])
            return plan_known(found, found.machine, with_models(options.call, models), known)
        return _plan_beginning(store, options, models, found)
    except StatelineError as error:
        return refusal(store, error, options.run)


def _plan_beginning(store: Store, options: RunOptions, models: Models, found: Run | None) -> Plan:
    asked = asked_of(store, options)
    require_no_secret(store, Launch(run=options.run), asked.machinery)
    models.begin()
    how = context_options(store, options, models, asked.machine.toolset)
    rehearsal = plan_steps(store, context_scope(store, how), how)
    require_ready(how, rehearsal)
    scope = run_scope(store, options.run) if options.run is not None else None
    written = [context_scope(store, how)] if rehearsal.steps else []
    require_writable(store, [*written, *([scope] if scope is not None else [])], objects=True)
    said = options.call.input
    event = Started(input=None if said is msgspec.UNSET else said)
    state = advance(asked.machine, None, event, Facts(manual=how.model is None)).state
    base = Plan(
        action="start" if found is None else "restart",
        run=options.run,
        scope=scope.key if scope is not None else None,
        head=found.sha256 if found is not None else None,
        exit=0,
        warnings=[*store.warnings, *rehearsal.warnings, *models.unheeded(how.model is None)],
    )
    means = Means(model=how.model, name=how.context_request.model, exchanges=models.exchanges, ready=how.ready)
    plan = plan_turns(base, asked.machine, state, False, means)
    exits = {*plan.exits, *([1] if any(step.by_model for step in rehearsal.steps) else [])}
    before = [by_way(effect, models.exchanges()) for effect in rehearsal.effects()]
    effects = [_context(store, how, rehearsal), *before, *plan.effects]
    return replace(plan, effects=effects, exits=sorted(exits))


def _context(store: Store, how: ContextOptions, rehearsal: ContextPlan) -> dict[str, Json]:
    """What becomes of the context, as an effect of its own: restored, or derived or refined by what follows it."""
    return {
        "type": "context",
        "action": rehearsal.steps[-1].type if rehearsal.steps else "restore",
        "scope": context_scope(store, how).key,
        "head": rehearsal.head.sha256 if rehearsal.head is not None else None,
    }
