"""``--dry-run``: run the real verb over an overlay of the store, and report what it did until the first effect."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from stateline.bundle.canonical import Json
from stateline.contexts.prepare import Prepared
from stateline.engine.dependencies import Dependencies
from stateline.engine.dry_run_stop import DryRunStop
from stateline.engine.event_codec import is_built_in
from stateline.engine.record import Run
from stateline.errors import StatelineError
from stateline.service.options import require_names
from stateline.service.run_document import Outcome
from stateline.service.runs import Removal
from stateline.store.overlay import OverlayBackend
from stateline.store.snapshot import Snapshot, read_snapshot
from stateline.store.store import Store


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a call. ``action``: start, restart, advance, answer, retry, wait, report, derive, refine, restore,
    remove or refuse. ``kept`` is that of a removal.

    ``exit`` is the exit code of the real call; where effects come first, the one after effects that succeed and take
    the default way. ``reason`` says why a call would be refused; of another action, why the call would stop after what
    the action saves.
    """

    action: str
    run: str | None = None
    scope: str | None = None
    head: str | None = None
    effects: list[Json] = []
    exit: int
    reason: str = ""
    kept: dict[str, str] | None = None
    warnings: list[str] = []

    def document(self) -> dict[str, Json]:
        """The JSON document."""
        names = ("action", "run", "scope", "head", "effects", "reason")
        kept: dict[str, Json] = {} if self.kept is None else {"kept": {**self.kept}}
        return {
            "plan": {**{name: getattr(self, name) for name in names}, **kept},
            "exit": self.exit,
            "warnings": list(dict.fromkeys(self.warnings)),
        }


def dry_run(
    store: Store,
    verb: Callable[[Store], Outcome | Prepared | Removal],
    *,
    run: str | None = None,
    one_turn: bool = False,
) -> Plan:
    """Return the plan of ``verb``, which is called with an overlay of ``store``: nothing is written, no effect starts.

    ``run`` is the id that the caller gave, None for none; ``one_turn`` is the option of the verb. An error of the verb
    becomes part of the plan.
    """
    require_names(run)
    backend = OverlayBackend(store.backend)
    overlay = Store(backend, redactor=store.redactor, clock=store.clock, actor=store.actor, limits=store.limits)
    overlay.planned = effects = list[Json]()
    try:
        result = verb(overlay)
    except DryRunStop as stop:
        exit = _expected_exit(stop.run, one_turn=one_turn, dependencies=stop.dependencies)
        warnings = [*store.warnings, *stop.warnings]
        plan = Plan(action="advance", run=stop.run.id, effects=effects, exit=exit, warnings=warnings)
    except StatelineError as error:
        reason = f"{error.message} ({error.hint})" if error.hint else error.message
        plan = Plan(action="refuse", run=run, exit=error.exit_code, reason=reason, warnings=list(store.warnings))
    else:
        plan = _plan_of(result, effects)
    saved = [read_snapshot(overlay.backend, scope, pointer) for scope, pointer in backend.swaps]
    return _completed(plan, store, saved, new=run is None)


def _plan_of(result: Outcome | Prepared | Removal, effects: list[Json]) -> Plan:
    """The plan of a call that came to its end without an effect of a run."""
    if isinstance(result, Removal):
        removals: list[Json] = [{"type": "remove", "run": run} for run in result.removed]
        return Plan(
            action="remove", effects=removals, kept=result.kept, exit=result.exit_code, warnings=result.warnings
        )
    if isinstance(result, Prepared):
        return Plan(action=result.action, scope=result.scope, effects=effects, exit=0, warnings=result.warnings)
    action = "wait" if result.status == "waiting" else "report"
    return Plan(action=action, run=result.run, effects=effects, exit=result.exit_code, warnings=result.warnings)


def _completed(plan: Plan, store: Store, saved: list[Snapshot], *, new: bool) -> Plan:
    """Complete ``plan`` by the snapshots that the call saved in the overlay. ``new``: the id of a run that starts was
    generated, and the real call will generate another."""
    runs = [snapshot for snapshot in saved if snapshot.envelope.kind == "run"]
    contexts = [snapshot for snapshot in saved if snapshot.envelope.kind == "context"]
    if runs:
        plan = replace(plan, action=_action(plan, runs, store), run=runs[0].envelope.scope.partition(":")[2])
        effects = [*_context_effects(runs[0], contexts, store), *plan.effects]
        plan = replace(plan, effects=effects)
    elif contexts and plan.action == "refuse":
        plan = replace(plan, action=str(contexts[-1].event["type"]), scope=contexts[-1].envelope.scope)
    if plan.action == "start" and new:
        return replace(plan, run=None)
    if plan.action != "refuse" and plan.run is not None:
        plan = replace(plan, scope=f"run:{plan.run}")
    return plan if plan.scope is None else replace(plan, head=_head(store, plan.scope))


def _action(plan: Plan, runs: list[Snapshot], store: Store) -> str:
    """The action that the events saved for a run amount to."""
    types = [snapshot.event["type"] for snapshot in runs]
    if "started" in types:
        return "start" if _head(store, runs[0].envelope.scope) is None else "restart"
    for event, action in (("retried", "retry"), ("answered", "answer")):
        if event in types:
            return action
    if set(types) == {"replaced"}:  # a changed machine is only recorded
        return plan.action
    # Any other event advanced the run, unless its effect was found lost.
    last = runs[-1].event
    lost = "waiting" in last and last["waiting"]["requestId"] != (last.get("effect") or {}).get("key")
    return plan.action if lost and plan.action != "refuse" else "advance"


def _context_effects(first: Snapshot, contexts: list[Snapshot], store: Store) -> list[Json]:
    """The effect that describes the context of a run that ``run -p`` starts: restored, derived or refined."""
    place, context = first.event.get("context"), first.state["context"]
    if first.event["type"] != "started" or not is_built_in(first.event) or place is None:
        return []
    action = contexts[-1].event["type"] if contexts else "restore"
    scope = context["scope"]
    return [{"type": "context", "action": action, "scope": scope, "head": _head(store, scope)}]


def _head(store: Store, key: str) -> str | None:
    """The SHA-256 of a scope's head before the call."""
    pointer = store.backend.read(store.scope(key).hash)
    return None if pointer is None else pointer.sha256


def _expected_exit(run: Run, *, one_turn: bool, dependencies: Dependencies) -> int:
    """The exit code of a call if every effect succeeds, no model calls a tool, and every stage takes its default way; a
    loop of defaults ends by a limit."""
    tree, stages = run.state.tree, run.machine.stages
    name: str | None = tree.stage if tree.phase == "calling" else stages[tree.stage].default_next
    seen: set[str] = set()
    while name not in seen:
        kind = "end" if name is None else stages[name].kind
        played = dependencies.answers is not None and dependencies.answers.plays("answer")
        if (kind == "human" and not played) or (kind == "agent" and dependencies.manual):
            return 3
        if name is None or kind == "end":
            return 2 if one_turn else 0
        if one_turn:
            return 0
        seen.add(name)
        name = stages[name].default_next
    return 1
