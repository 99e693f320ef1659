"""What a run's ``event`` holds: read strictly, because the engine goes by it and others may have written it; and how
the next one is made from the last, and from what was decided.

``docs/format.md``, section "Runs", describes the fields. Fields that are not listed here are let be.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.errors import IntegrityError
from stateline.machine.run import (
    Answered,
    Decision,
    Event,
    Failed,
    Intended,
    Lost,
    Replaced,
    Retried,
    RunState,
    Started,
    Succeeded,
)
from stateline.store.store import Snapshot

if TYPE_CHECKING:
    from stateline.engine.record import Run

_CARRIED = ("run", "birth", "started_at", "machine", "context_path", "answered", "output_of", "effect")
"""Fields that the next snapshot repeats: what the next call needs and no state may hold."""


class MachinePlace(msgspec.Struct, frozen=True):
    """The machine file: real path, the machine's name, the SHA-256 of the file's bytes."""

    path: str
    name: str
    sha256: str


class Meters(msgspec.Struct, frozen=True):
    """What the run has used so far: ``active`` time [s], model calls."""

    active: float
    llm_calls: int


class Way(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One transition, as ``machine.run.Transition`` writes it."""

    source: str | None
    target: str | None
    reason: str
    iteration: int
    edge_count: int


class Effect(msgspec.Struct, frozen=True):
    """The pending effect: its idempotency key, and how often it has been attempted. ``doubtful``: it may have been
    performed, in snapshots that are lost."""

    key: str
    attempt: int
    doubtful: bool = False


class Request(msgspec.Struct, frozen=True):
    """What is awaited, by its id."""

    requestId: str


class Given(msgspec.Struct, frozen=True):
    """The last answer: the request it was for, and the SHA-256 of its canonical form."""

    requestId: str
    sha256: str


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a snapshot in a run's chain. ``birth`` was drawn when the run began; keys and request ids hold it,
    so that another run by the same name never repeats them. ``open`` means that the turn is not over."""

    type: str
    run: str
    birth: str
    turn: int
    started_at: str
    stage: str
    machine: MachinePlace
    meters: Meters
    transitions: list[Way]
    context_path: str | None = None
    effect: Effect | msgspec.UnsetType = msgspec.UNSET
    waiting: Request | None = None
    answered: Given | None = None
    output_of: str | None = None
    open: bool = False
    redactions: int = 0
    error: dict[str, Json] | None = None


def read_event(snapshot: Snapshot) -> RunEvent:
    """The event of a run's snapshot. Raises ``IntegrityError`` for one that is not a run's."""
    try:
        return msgspec.convert(snapshot.event, RunEvent)
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"the snapshot {snapshot.path} does not hold a run's event: {error}",
            finding="malformed",
            hint="nothing was changed; was it written by stateline?",
        ) from None


def carried(run: Run, event: Event, seconds: float) -> dict[str, Json]:
    """What the next event repeats of the last one, with turn and meters brought forward by ``seconds`` [s]."""
    last = run.event
    document = {name: last[name] for name in _CARRIED if name in last}
    document["meters"] = {**last["meters"], "active": round(last["meters"]["active"] + seconds, 6)}
    begins_turn = not last.get("open") and isinstance(event, Intended | Succeeded | Failed | Answered)
    document["turn"] = last["turn"] + begins_turn
    if seconds:
        document["seconds"] = round(seconds, 6)
    if isinstance(event, Answered):
        digest = canonical.sha256(canonical.encode(event.value))
        document["answered"] = {"requestId": (last.get("waiting") or {}).get("requestId"), "sha256": digest}
    if isinstance(event, Answered | Succeeded):
        document["output_of"] = run.state.tree.stage
    return document


def describe(run: Run, event: Event, decision: Decision, document: dict[str, Json]) -> dict[str, Json]:
    """``document`` completed: type, stage, transitions, failure, the pending effect's key, what is awaited."""
    before: RunState | None = run.state if run.snapshot is not None else None
    after = decision.state
    seq = run.snapshot.seq + 1 if run.snapshot is not None else 0
    # Unlike the run's name, the draw at its birth is never repeated; keys that two runs share would be worse than none.
    name = f"{run.id}:{seq}:0:{document['birth']}"
    document["type"] = str(event.__struct_config__.tag)
    document["stage"] = after.tree.stage if before is None or isinstance(event, Started) else before.tree.stage
    document["transitions"] = [transition.document() for transition in decision.transitions]
    if isinstance(event, Failed):
        document["error"] = {"kind": event.kind, "message": event.message}
    failure = failure_of(after, decision)
    if failure is not None:
        document["error"] = {field: failure[field] for field in ("kind", "message", "bound") if failure.get(field)}
    entered = bool(decision.transitions) or isinstance(event, Started)
    if after.tree.phase in ("ready", "started", "unknown") or (after.tree.phase == "failed" and not entered):
        if entered:
            # Fixed here, before the first attempt, so that every attempt of this visit bears the same key.
            document["effect"] = {"key": name}
        if "effect" in document:  # a person's stage that failed has none
            document["effect"] = {**document["effect"], "attempt": after.tree.attempt}
            asked = before is not None and before.tree.phase == "unknown"
            if isinstance(event, Succeeded | Failed | Answered) or (isinstance(event, Retried) and asked):
                # Whoever performed it, or decided after being asked what became of it, has heeded the doubt.
                document["effect"].pop("doubtful", None)
    else:
        document.pop("effect", None)
    if after.status == "waiting":
        document["waiting"] = {"requestId": name}
        if isinstance(event, Replaced) and "waiting" in run.event:
            document["waiting"] = run.event["waiting"]
    retrying = isinstance(event, Failed) and after.tree.phase == "ready" and not decision.transitions
    if isinstance(event, Intended | Lost) or retrying:
        document["open"] = True
    return document


def after_repair(content: Snapshot, newer_lost: bool) -> dict[str, Json]:
    """What the event of a repair's snapshot says of a run that goes on from ``content``: all that the next call needs.

    ``newer_lost``: the run had gone on from there, or may have. Then its pending effect may have been performed, and a
    new draw sees to it that no key is made twice, since the numbers of the lost snapshots are given again.
    """
    last = content.event
    document = {name: last[name] for name in _CARRIED if name in last}
    document |= {name: last[name] for name in ("meters", "turn", "open", "waiting") if name in last}
    state = content.envelope.state if isinstance(content.envelope.state, dict) else {}
    if state.get("status") == "error" and "error" in last:
        document["error"] = last["error"]
    tree = state.get("tree")
    stage = tree.get("stage") if isinstance(tree, dict) else None
    document["stage"] = stage if isinstance(stage, str) else last.get("stage")
    document["transitions"] = []
    document["birth"] = os.urandom(4).hex()
    if newer_lost and isinstance(document.get("effect"), dict):
        document["effect"] = {**document["effect"], "doubtful": True}
    return document


def failure_of(state: RunState, decision: Decision) -> dict[str, Json] | None:
    """The failure that this decision is about: the run's, or the one that took ``error_next``; None without one."""
    if state.status == "error" and state.tree.error is not None:
        return msgspec.to_builtins(state.tree.error)  # type: ignore[no-any-return]  # a Struct becomes a dict
    if state.tree.cause is not None and any(way.reason in ("error", "limit") for way in decision.transitions):
        return msgspec.to_builtins(state.tree.cause)  # type: ignore[no-any-return]  # a Struct becomes a dict
    return None
