"""Load, advance, act, save: what happens in a turn. ``machine.advance`` decides, this performs.

Every event is one snapshot, saved under the scope's lock before anything that depends on it starts. So resuming after
a crash, a retry and an audit are the same mechanism: load the head and go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.interrupts import interruptible, shield
from stateline.engine.record import MachineRecord, Run, facts_in, facts_of, mask_state, write_run
from stateline.engine.runevent import carried, describe
from stateline.engine.task import TaskCall, TaskOutcome, run_task
from stateline.errors import DurabilityUnknown, IllegalEvent, StatelineError, StorageError, ValueRefused
from stateline.machine.advance import advance
from stateline.machine.handlers import keep_unsettled
from stateline.machine.run import (
    Answered,
    Decision,
    Event,
    Facts,
    Failed,
    Intended,
    Lost,
    Replaced,
    Started,
    Succeeded,
)
from stateline.machine.settling import names
from stateline.machine.spec import Machine
from stateline.store.store import Scope, Snapshot, Store, demand_known_version

SHOWN_RESULT = 4000
"""How much of a result that could not be saved an error shows [characters]."""
LONGEST_PAUSE = 3600.0
"""Longest wait before a retry [s]: doubling without a limit would soon wait for days."""

Watch = Callable[[Run, str], None]
"""Told about each step, for people: the run as it stands, and what is about to happen."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run comes from: the machine file's real path, and the context snapshot's file name if there is one."""

    machine_path: str
    context_path: str | None = None


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """How a run begins, decided before anything is stored. ``redactions``: how many masks are in its input."""

    machine: Machine
    event: Started
    facts: Facts
    decision: Decision
    origin: Origin
    redactions: int


def begin(store: Store, machine: Machine, event: Started, origin: Origin, context: Snapshot | None = None) -> Beginning:
    """Decide how a run begins, with the context's snapshot that ``event`` names; reads only.

    Raises ``ValueRefused`` for an input that the machine's schema forbids, ``IntegrityError`` for a damaged context.
    """
    # Masked before anything is said about it: what a schema makes of it may be shown.
    value, count = store.redactor.redact(event.input)
    event = msgspec.structs.replace(event, input=value)
    facts = Facts(context=None if context is None else facts_in(store, context))
    decision = advance(machine, None, event, facts)
    return Beginning(machine=machine, event=event, facts=facts, decision=decision, origin=origin, redactions=count)


def start(scope: Scope, head: Snapshot | None, record: MachineRecord, beginning: Beginning) -> Run:
    """Begin a run, or begin it anew on the chain that ends in ``head``. The lock must be held by the caller."""
    store = scope.store
    spec, event, origin = beginning.machine, beginning.event, beginning.origin
    state, masked = mask_state(store.redactor, beginning.decision.state)
    masked += beginning.redactions
    decision = msgspec.structs.replace(beginning.decision, state=state)
    context = beginning.facts.context
    run = Run(
        scope=scope,
        snapshot=head,
        record=record,
        machine=spec,
        state=decision.state,
        context=lambda: None if context is None else dict(context),
    )
    document: dict[str, Json] = {
        "run": run.id,
        "birth": os.urandom(4).hex(),
        "turn": 0,
        "started_at": store.now(None),
        "machine": {"path": origin.machine_path, "name": spec.name, "sha256": record.source.sha256},
        "meters": {"active": 0.0, "llm_calls": 0},
    }
    if masked:
        document["redactions"] = masked
    if origin.context_path is not None:
        document["context_path"] = origin.context_path
    return write_run(run, decision, describe(run, event, decision, document))


def turn(run: Run, watch: Watch) -> Run:
    """One turn of a run that can go on: one effect round and the routing that follows. The lock must be held.

    A started effect whose outcome was never saved is not repeated: the run then waits (``unknown_outcome``). Raises
    ``Interrupted`` when a signal ended the effect; what was finished before is saved.
    """
    demand_known_version(run.snapshot)
    # Between the end of an effect and its save no signal may come; `run_task` and the pause let them through.
    with shield():
        if is_in_doubt(run):
            return give_up(run)
        while True:
            run, again = _attempt(run, watch)
            if not again:
                return run
            _pause(run)


def is_in_doubt(run: Run) -> bool:
    """Whether the pending effect may have been performed, and must not be again: it was started and nothing followed,
    or what followed is lost, as a repair has recorded."""
    tree, effect = run.state.tree, run.event.get("effect")
    if tree.phase == "started":
        return True
    doubtful = tree.phase == "ready" and isinstance(effect, dict) and effect.get("doubtful") is True
    return doubtful and not run.machine.stages[tree.stage].repeatable


def give_up(run: Run) -> Run:
    """The run that waits for word of its effect, if that is in doubt; else as it is. The lock must be held, so that
    whoever performed the effect is gone."""
    if not is_in_doubt(run):
        return run
    return apply(apply(run, Intended()) if run.state.tree.phase == "ready" else run, Lost())


def apply(run: Run, event: Event, seconds: float = 0.0) -> Run:
    """Decide, and save the decision. ``seconds`` [s] is the active time that the event took.

    Raises as ``advance`` and ``Scope.save``; nothing has changed then. If it is the result of an effect that cannot be
    saved, the error says what the result was: it exists nowhere else.
    """
    store = run.scope.store
    event, masked = _masked(store, event)
    decision = _decide(run, event, seconds)
    state, found = mask_state(store.redactor, decision.state)
    decision = msgspec.structs.replace(decision, state=state)
    document = carried(run, event, seconds)
    if masked + found:
        document["redactions"] = masked + found
    try:
        return write_run(run, decision, describe(run, event, decision, document))
    except (StorageError, ValueRefused) as error:
        if isinstance(event, Succeeded) and not isinstance(error, DurabilityUnknown):
            raise _unsaved(run, event, error) from None
        raise


def _decide(run: Run, event: Event, seconds: float) -> Decision:
    facts = facts_of(run, seconds)
    try:
        return advance(run.machine, run.state, event, facts)
    except StatelineError:
        raise
    except Exception as error:
        if not isinstance(event, Succeeded | Answered):
            raise
        # Memory ran out, or there is a bug: whatever it is, a result that was earned is kept first.
        output = event.output if isinstance(event, Succeeded) else event.value
        return keep_unsettled(run.machine, run.state, output, f"{type(error).__name__}: {error}", facts)


def _unsaved(run: Run, event: Succeeded, error: StatelineError) -> StatelineError:
    stage = run.machine.stages[run.state.tree.stage]
    result = canonical.encode(event.output).decode()
    shown = result if len(result) <= SHOWN_RESULT else f"{result[:SHOWN_RESULT]}... ({len(result)} characters)"
    way = (
        "it is repeatable and will run again with the same key"
        if stage.repeatable
        else f"give the result with `stateline exec resume {run.id} --input JSON`"
    )
    return type(error)(
        f"the task of stage {stage.name!r} finished, but its result could not be saved: {error.message}. "
        f"The result was: {shown}",
        hint=f"{error.hint}; then {way}",
    )


def _masked(store: Store, event: Event) -> tuple[Event, int]:
    """The event with secrets masked before anything is decided by it, and how many values that were."""
    redact = store.redactor.redact
    if isinstance(event, Succeeded):
        value, count = redact(event.output)
        return Succeeded(output=value), count
    if isinstance(event, Answered):
        value, count = redact(event.value)
        return Answered(value=value), count
    if isinstance(event, Failed):
        (message, hint), count = redact([event.message, event.hint])
        return msgspec.structs.replace(event, message=message, hint=hint), count
    return event, 0


def replace_machine(run: Run, machine: Machine, record: MachineRecord, path: str) -> Run:
    """Go on with a changed machine from ``path``, as the operator accepted. Raises ``MachineChanged`` if it lacks the
    stage at which the run stands."""
    before = run.record.source.sha256
    decision = advance(machine, run.state, Replaced())
    changed = msgspec.structs.replace(run, machine=machine, record=record)
    document = carried(run, Replaced(), 0.0)
    document["machine"] = {"path": path, "name": machine.name, "sha256": record.source.sha256}
    document["replaced"] = {"from": before, "to": record.source.sha256}
    return write_run(changed, decision, describe(changed, Replaced(), decision, document))


def _attempt(run: Run, watch: Watch) -> tuple[Run, bool]:
    """Perform the stage's effect once; whether it is to be tried again in this turn."""
    stage = run.machine.stages[run.state.tree.stage]
    if stage.kind != "task":
        raise IllegalEvent(f"stage {stage.name!r} has no effect to perform; nothing changed")
    watch(run, "attempt")
    if not stage.repeatable:
        run = apply(run, Intended())
    outcome = _perform(run)
    run = apply(run, outcome.event, outcome.seconds)
    # A failure that the retry policy covers leaves the stage ready; a stage routed to itself has a new visit.
    again = isinstance(outcome.event, Failed) and run.state.tree.phase == "ready" and not run.event["transitions"]
    return run, again


def _perform(run: Run) -> TaskOutcome:
    stage = run.machine.stages[run.state.tree.stage]
    tree, effect = run.state.tree, run.event.get("effect") or {}
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
        TaskCall(
            argv=stage.argv,
            directory=_directory(run),
            env=stage.env,
            document=document,
            timeout=stage.timeout,
            mask=lambda text: str(run.scope.store.redactor.redact(text)[0]),
        )
    )


def _directory(run: Run) -> str:
    return os.path.dirname(str(run.event["machine"]["path"]))


def _pause(run: Run) -> None:
    """Wait before the next attempt: ``backoff`` [s], doubling with each attempt of this retry budget."""
    tree = run.state.tree
    backoff = run.machine.stages[tree.stage].retry.backoff
    doublings = min(tree.attempt - tree.first_attempt - 1, 30)  # by then any backoff has reached the longest pause
    seconds = min(backoff * 2.0**doublings, LONGEST_PAUSE)
    if seconds > 0:
        with interruptible():
            time.sleep(seconds)
