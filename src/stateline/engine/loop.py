"""Load, advance, act, save: what happens in a turn. ``machine.advance`` decides, this performs.

Every event is one snapshot, saved under the scope's lock before anything that depends on it starts. So resuming after
a crash, a retry and an audit are the same mechanism: load the head and go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.interrupts import interruptible, shield
from stateline.engine.record import MachineRecord, Run, event_name, facts_of, write_run
from stateline.engine.task import TaskCall, TaskOutcome, run_task
from stateline.errors import IllegalEvent
from stateline.machine.advance import advance
from stateline.machine.run import (
    Answered,
    Decision,
    Event,
    Facts,
    Failed,
    Intended,
    Lost,
    Replaced,
    Retried,
    RunState,
    Started,
    Succeeded,
)
from stateline.machine.settling import names
from stateline.machine.spec import Machine
from stateline.store.store import Scope, Snapshot, Store

LONGEST_PAUSE = 3600.0
"""Longest wait before a retry [s]: doubling without a limit would soon wait for days."""

_CARRIED = ("run", "started_at", "machine", "context_path", "answered", "output_of")
"""Fields of ``event`` that the next snapshot repeats: what the next call needs and no state may hold."""

Watch = Callable[[Run, str], None]
"""Told about each step, for people: the run as it stands, and what is about to happen."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run comes from: the machine file's real path, and the context snapshot's file name if there is one."""

    machine_path: str
    context_path: str | None = None


def start(
    scope: Scope, head: Snapshot | None, machine: tuple[Machine, MachineRecord], event: Started, origin: Origin
) -> Run:
    """Begin a run, or begin it anew on the chain that ends in ``head``. The lock must be held by the caller.

    Raises ``ValueRefused`` for an input that the machine's schema forbids; nothing is saved then.
    """
    store = scope.store
    spec, record = machine
    event = msgspec.structs.replace(event, input=store.redactor.redact(event.input)[0])
    decision = advance(spec, None, event, Facts(context=_context(store, event, origin)))
    run = Run(scope=scope, snapshot=head, record=record, machine=spec, state=decision.state)
    document: dict[str, Json] = {
        "run": run.id,
        "turn": 0,
        "started_at": store.now(None),
        "machine": {"path": origin.machine_path, "name": spec.name, "sha256": record.source.sha256},
        "meters": {"active": 0.0, "llm_calls": 0},
    }
    if origin.context_path is not None:
        document["context_path"] = origin.context_path
    return write_run(run, decision, _describe(run, event, decision, document))


def _context(store: Store, event: Started, origin: Origin) -> dict[str, Json] | None:
    from stateline.engine.record import context_facts

    return context_facts(store, event.context, origin.context_path)


def turn(run: Run, watch: Watch) -> Run:
    """One turn of a run that can go on: one effect round and the routing that follows. The lock must be held.

    A started effect whose outcome was never saved is not repeated: the run then waits (``unknown_outcome``). Raises
    ``Interrupted`` when a signal ended the effect; what was finished before is saved.
    """
    # Between the end of an effect and its save no signal may come; `run_task` and the pause let them through.
    with shield():
        if run.state.tree.phase == "started":
            return apply(run, Lost())
        while True:
            run, again = _attempt(run, watch)
            if not again:
                return run
            _pause(run)


def apply(run: Run, event: Event, seconds: float = 0.0) -> Run:
    """Decide, and save the decision. ``seconds`` [s] is the active time that the event took.

    Raises as ``advance`` and ``Scope.save``; nothing has changed then.
    """
    event, masked = _masked(run.scope.store, event)
    decision = advance(run.machine, run.state, event, facts_of(run.scope.store, run, seconds))
    document = _carried(run, event, seconds)
    if masked:
        document["redactions"] = masked
    return write_run(run, decision, _describe(run, event, decision, document))


def _masked(store: Store, event: Event) -> tuple[Event, int]:
    """The event with secrets masked before anything is decided by it, and how many values that were."""
    if isinstance(event, Succeeded):
        value, count = store.redactor.redact(event.output)
        return Succeeded(output=value), count
    if isinstance(event, Answered):
        value, count = store.redactor.redact(event.value)
        return Answered(value=value), count
    if isinstance(event, Failed):
        value, count = store.redactor.redact(event.message)
        return msgspec.structs.replace(event, message=value), count
    return event, 0


def replace_machine(run: Run, machine: Machine, record: MachineRecord, path: str) -> Run:
    """Go on with a changed machine from ``path``, as the operator accepted. Raises ``MachineChanged`` if it lacks the
    stage at which the run stands."""
    before = run.record.source.sha256
    decision = advance(machine, run.state, Replaced())
    changed = msgspec.structs.replace(run, machine=machine, record=record)
    document = _carried(run, Replaced(), 0.0)
    document["machine"] = {"path": path, "name": machine.name, "sha256": record.source.sha256}
    document["replaced"] = {"from": before, "to": record.source.sha256}
    return write_run(changed, decision, _describe(changed, Replaced(), decision, document))


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
    named = names(run.state, facts_of(run.scope.store, run))
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
        )
    )


def failure_of(state: RunState, decision: Decision) -> dict[str, Json] | None:
    """The failure that this decision is about: the run's, or the one that took ``error_next``; None without one."""
    if state.status == "error" and state.tree.error is not None:
        return msgspec.to_builtins(state.tree.error)  # type: ignore[no-any-return]  # a Struct becomes a dict
    if state.tree.cause is not None and any(way.reason in ("error", "limit") for way in decision.transitions):
        return msgspec.to_builtins(state.tree.cause)  # type: ignore[no-any-return]  # a Struct becomes a dict
    return None


def _directory(run: Run) -> str:
    import os

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


def _carried(run: Run, event: Event, seconds: float) -> dict[str, Json]:
    """What the next ``event`` repeats of the last one, with turn and meters brought forward."""
    document = {name: run.event[name] for name in _CARRIED if name in run.event}
    meters = run.event["meters"]
    document["meters"] = {**meters, "active": round(meters["active"] + seconds, 6)}
    begins_turn = not run.event.get("open") and isinstance(event, Intended | Succeeded | Failed | Answered)
    document["turn"] = run.event["turn"] + begins_turn
    if "effect" in run.event:
        document["effect"] = run.event["effect"]
    if seconds:
        document["seconds"] = round(seconds, 6)
    if isinstance(event, Answered):
        document["answered"] = (run.event.get("waiting") or {}).get("requestId")
    if isinstance(event, Answered | Succeeded):
        document["output_of"] = run.state.tree.stage
    return document


def _describe(run: Run, event: Event, decision: Decision, document: dict[str, Json]) -> dict[str, Json]:
    """``document`` completed with what happened: type, stage, transitions, the effect's key, what is awaited."""
    before: RunState | None = run.state if run.snapshot is not None else None
    after = decision.state
    seq = run.snapshot.seq + 1 if run.snapshot is not None else 0
    document["type"] = event_name(event)
    document["stage"] = after.tree.stage if before is None or isinstance(event, Started) else before.tree.stage
    document["transitions"] = [transition.document() for transition in decision.transitions]
    if isinstance(event, Failed):
        document["error"] = {"kind": event.kind, "message": event.message}
    failure = failure_of(after, decision)
    if failure is not None:
        document["error"] = {name: failure[name] for name in ("kind", "message", "bound") if failure.get(name)}
    entered = bool(decision.transitions) or isinstance(event, Started)
    if after.tree.phase in ("ready", "started", "unknown") or (after.tree.phase == "failed" and not entered):
        if entered:
            # Fixed here, before the first attempt, so that every attempt of this visit bears the same key.
            document["effect"] = {"key": f"{run.id}:{seq}:0"}
        document["effect"] = {**(document.get("effect") or {}), "attempt": after.tree.attempt}
    else:
        document.pop("effect", None)
    if after.status == "waiting":
        document["waiting"] = {"requestId": f"{run.id}:{seq}"}
        if isinstance(event, Replaced) and "waiting" in run.event:
            document["waiting"] = run.event["waiting"]
    retrying = isinstance(event, Failed) and after.tree.phase == "ready" and not decision.transitions
    if isinstance(event, Intended | Lost) or retrying:
        document["open"] = True
    return document


__all__ = ["Answered", "Origin", "Retried", "apply", "replace_machine", "start", "turn"]
