"""Perform turns: load, decide with ``machine.advance``, perform effects, save.

Every event is one snapshot, saved under the scope's lock before anything that depends on it starts. So resuming after a
crash, a retry and an audit use the same mechanism: load the head and continue.
"""

from __future__ import annotations

import os
import time

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import MANUAL, Dependencies
from stateline.engine.dry_run_stop import Watch, require_real_run
from stateline.engine.event_codec import Cost
from stateline.engine.next_event import counts_call_first, describe
from stateline.engine.record import Context, MachineRecord, Run, facts_of, mask_state, write_run
from stateline.engine.step import (
    EventContext,
    add_to,
    apply,
    give_up,
    is_effect_lost,
    is_lost_call_repeatable,
    stage_of,
    take,
)
from stateline.errors import IllegalEventError, InvalidValueError, StatelineError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.evaluate_outputs import names
from stateline.machine.decider.run import Asked, Decision, Facts, Intended, Lost, Started, Unsent
from stateline.machine.spec import Machine
from stateline.process.program import Program
from stateline.process.signals import interruptible, shield
from stateline.process.task import TaskOutcome, run_task
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot, require_known_version
from stateline.store.store import Store
from stateline.store.timestamps import next_timestamp

LONGEST_PAUSE = 3600.0
"""Longest wait before a retry [s]: doubling without a limit would soon wait for days."""

LOST_TRIES = 2
"""The number of repetitions of a model call whose reply was lost, if the provider's library must not repeat it."""
LOST_PAUSE = 0.5
"""The pause before that [s], and twice that before the second time."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The machine file's real path, and the members ``context``, ``tools``, ``exchanges``, ``prompt`` and ``prepared``
    of the event (None: without)."""

    machine_path: str
    context: Json = None
    tools: Json = None
    exchanges: Json = None
    prompt: Json = None
    prepared: Json = None


class StartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the first decision: the context that the event names, and ``manual``, True without a model."""

    context: Context | None = None
    manual: bool = True


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run, decided before anything is stored. ``redactions`` is the number of masked values in its input
    and prompt."""

    machine: Machine
    event: Started
    decision: Decision
    origin: Origin
    redactions: int
    context: Context | None = None


def begin(store: Store, machine: Machine, event: Started, origin: Origin, given: StartFacts) -> RunStart:
    """Decide how a run starts; reads only.

    Raises ``InvalidValueError`` for an input that the machine's schema forbids.
    """
    # Masked first: an error of the schema may show the value.
    value, count = store.redactor.redact(event.input)
    event = msgspec.structs.replace(event, input=value)
    facts = Facts(context=None if given.context is None else given.context.facts, manual=given.manual)
    decision = advance(machine, None, event, facts)
    return RunStart(
        machine=machine, event=event, decision=decision, origin=origin, redactions=count, context=given.context
    )


def start(scope: Scope, head: Snapshot | None, record: MachineRecord, first: RunStart) -> Run:
    """Save the first snapshot of a run, on the chain that ends in ``head`` for a restart. The lock must be held."""
    store = scope.store
    spec, event, origin = first.machine, first.event, first.origin
    state, masked = mask_state(store.redactor, first.decision.state)
    masked += first.redactions
    decision = msgspec.structs.replace(first.decision, state=state)
    run = Run(
        scope=scope, snapshot=head, record=record, machine=spec, state=decision.state, began_with=lambda: first.context
    )
    document: dict[str, Json] = {
        "run": run.id,
        "birth": os.urandom(4).hex(),
        "turn": 0,
        "started_at": next_timestamp(store.clock()),
        "machine": {"path": origin.machine_path, "name": spec.name, "sha256": record.source.sha256},
        "meters": {"active": 0.0, "llm_calls": 0},
    }
    if masked:
        document["redactions"] = masked
    more = msgspec.to_builtins(origin)
    del more["machine_path"]
    document |= {name: value for name, value in more.items() if value is not None}
    return write_run(run, decision, describe(run, event, decision, document))


def turn(run: Run, watch: Watch, dependencies: Dependencies = MANUAL) -> Run:
    """Perform one turn: one effect round and the routing that follows. The lock must be held.

    A started effect whose outcome was never saved is not repeated: the run then waits (``unknown_outcome``). Without a
    model, an agent stage waits for a reply from the next call. Raises ``Interrupted`` for a signal during an effect;
    finished results are saved.
    """
    require_known_version(run.snapshot)
    # No signal may arrive between the end of an effect and its save; waits are interruptible.
    with shield():
        if is_effect_lost(run):
            return give_up(run)
        recalled = recall(run, dependencies)
        if recalled is None and is_lost_call_repeatable(run):
            decide_lost_call(run, dependencies)
            run = apply(run, Lost(), dependencies)
            if not run.event.get("open"):  # a limit forbids the call
                return asked(run, dependencies)
        if run.state.tree.phase != "calling":
            run = _attempts(run, watch, dependencies, recalled)
        if run.state.tree.phase == "calling":
            from stateline.engine.calls import perform_calls

            run = perform_calls(run, watch, dependencies)
        return asked(run, dependencies)


def recall(run: Run, dependencies: Dependencies) -> Dependencies | None:
    """Return dependencies that replay a model call whose end was recorded before the process died; None if it was not
    recorded. Reads only."""
    if not is_lost_call_repeatable(run) or dependencies.manual:
        return None
    from stateline.engine.agent import request_of
    from stateline.model.protocol import RecordingModel

    if not isinstance(dependencies.model, RecordingModel):
        return None
    try:
        model = dependencies.model.recall(request_of(run, dependencies))
    except InvalidValueError:  # with what this call says, it is another request
        return None
    return None if model is None else msgspec.structs.replace(dependencies, model=model, ready=None)


def decide_lost_call(run: Run, dependencies: Dependencies) -> Decision:
    """Return the decision for a counted model call with an unknown outcome. Raises what prevents a repeated call,
    before anything is saved."""
    decision = advance(run.machine, run.state, Lost(), facts_of(run, manual=dependencies.manual))
    if dependencies.ready is not None and decision.state.tree.phase == "ready" and not decision.transitions:
        dependencies.ready()
    return decision


def asked(run: Run, dependencies: Dependencies) -> Run:
    """Return ``run``; if it needs a model and has none, waiting for a reply."""
    if dependencies.manual and run.state.tree.phase == "ready" and stage_of(run).kind == "agent":
        return apply(run, Asked(), dependencies)
    return run


def _attempts(run: Run, watch: Watch, dependencies: Dependencies, recalled: Dependencies | None) -> Run:
    """Perform the stage's own effect, until it has ended well, or its failure is not to be tried again in this turn.
    ``recalled``: how the first attempt has ended already."""
    lost = 0
    while True:
        if recalled is not None:
            run, recalled = _call_model(run, recalled, again=True, recalled=True), None
        elif stage_of(run).kind == "agent" and not may_call_model(run, dependencies):
            return run
        else:
            run = _attempt(run, watch, dependencies, again=lost < LOST_TRIES)
        # A failure that the retry policy covers leaves the stage ready; a stage routed to itself has a new visit.
        if run.state.tree.phase != "ready" or not run.event.get("open"):
            return run
        lost = lost + 1 if run.event["type"] == "lost" else 0
        if not lost:
            _pause(run, watch)
        elif (run.event.get("exchanges") or {}).get("mode") != "playback":  # there no connection is to recover
            _sleep(LOST_PAUSE * lost)


def may_call_model(run: Run, dependencies: Dependencies) -> bool:
    """Return True if this call makes the model call at which the run is. A call that is not repeatable and may have
    been made in lost snapshots is left to the next call's answer."""
    if dependencies.manual or run.state.tree.phase not in ("ready", "waiting") or stage_of(run).kind != "agent":
        return False
    return stage_of(run).repeatable or not (run.event.get("effect") or {}).get("doubtful")


def _attempt(run: Run, watch: Watch, dependencies: Dependencies, *, again: bool) -> Run:
    """Perform the stage's effect once. ``again``: a model's call whose answer was lost on its way may be made again."""
    stage = stage_of(run)
    if stage.kind not in ("task", "agent"):
        raise IllegalEventError(f"stage {stage.name!r} has no effect to perform; nothing changed")
    if stage.kind == "agent" and dependencies.ready is not None:
        dependencies.ready()  # an error is raised before anything is saved
    require_real_run(run, dependencies)
    watch(run, "attempt")
    if not stage.repeatable or counts_call_first(run):
        run = apply(run, Intended(), dependencies)
    if stage.kind == "agent":
        return _call_model(run, dependencies, again=again, recalled=False)
    outcome = _perform(run)
    return take(run, EventContext(event=outcome.event, cost=Cost(seconds=outcome.seconds), dependencies=dependencies))


def _call_model(run: Run, dependencies: Dependencies, *, again: bool, recalled: bool) -> Run:
    """Call the model and save its reply. ``recalled``: the call was made before, so an error does not undo it."""
    from stateline.engine.agent import ask

    try:
        happened = ask(run, dependencies, again=again)
    except StatelineError as error:
        if not recalled:
            _save_unsent(run, dependencies, error)
        raise
    run = take(run, happened)
    if happened.interrupted is not None:
        raise happened.interrupted
    return run


def _save_unsent(run: Run, dependencies: Dependencies, error: StatelineError) -> None:
    """Save that the model's call which ``error`` has stopped was not sent, where its intent was saved: without that its
    outcome would be in doubt. What cannot be saved is added to ``error``."""
    if run.state.tree.phase != "started":
        return
    try:
        apply(run, Unsent(), dependencies)
    except StatelineError as another:
        add_to(error, f"that nothing was sent could not be saved: {another.message}")


def _perform(run: Run) -> TaskOutcome:
    stage, tree, effect = stage_of(run), run.state.tree, run.event.get("effect") or {}
    named = names(run.state, facts_of(run))
    document = canonical.encode(
        {
            "input": run.state.input,
            "state": run.state.state,
            "outputs": run.state.outputs,
            "context": named["context"],
            "stage": stage.name,
            "run": run.id,
            "attempt": tree.attempt,
            "idempotency_key": effect.get("key", ""),
            "error": named["error"],
        },
        depth=canonical.FILE_DEPTH,
    )
    return run_task(
        Program(
            argv=stage.argv,
            directory=os.path.dirname(str(run.event["machine"]["path"])),
            env=stage.env,
            document=document,
            timeout=stage.timeout,
            limits=run.scope.store.limits,
            mask=lambda text: str(run.scope.store.redactor.redact(text)[0]),
        )
    )


def pause_before(run: Run) -> float:
    """Return the pause before the next attempt [s]: ``backoff``, doubled with each attempt of this retry budget."""
    tree = run.state.tree
    backoff = run.machine.stages[tree.stage].retry.backoff
    doublings = min(tree.attempt - tree.first_attempt - 1, 30)  # by then any backoff has reached the longest pause
    return min(backoff * 2.0**doublings, LONGEST_PAUSE)


def _pause(run: Run, watch: Watch) -> None:
    seconds = pause_before(run)
    if seconds > 0:
        watch(run, "pause")
        _sleep(seconds)


def _sleep(seconds: float) -> None:
    with interruptible():
        time.sleep(seconds)
