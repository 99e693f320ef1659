"""The verbs ``exec list``, ``status``, ``show``, ``history``, ``clean`` and ``rm``."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.event_codec import read_event
from stateline.engine.record import Run, load_run, read_run, run_scope
from stateline.errors import (
    ConflictError,
    IntegrityError,
    LockTimeoutError,
    NotFoundError,
    RequestError,
    StatelineError,
)
from stateline.machine.decider.run import OVER
from stateline.process.signals import Signals, shield
from stateline.service.exchanges import kept_exchanges
from stateline.service.run_document import counters_of, outcome, waiting
from stateline.store.scope import WAIT
from stateline.store.snapshot import Snapshot, parse_snapshot, read_head
from stateline.store.store import Store
from stateline.store.timestamps import next_timestamp

if TYPE_CHECKING:
    from stateline.verify.findings import Finding


class UnreadableScope(msgspec.Struct, frozen=True):
    """A scope, by its hash, that cannot be read, and the error. It may be a run: its key is in the unreadable part."""

    scope: str
    error: StatelineError

    def finding(self) -> Finding:
        """Return the finding that ``verify`` reports."""
        from stateline.verify.findings import Finding

        return Finding.of(self.error, None, self.scope)


class Removal(msgspec.Struct, frozen=True):
    """Removed runs; the reason for each that was kept (runs by id, scopes that cannot be read by hash)."""

    removed: list[str]
    kept: dict[str, str] = {}
    warnings: list[str] = []
    exit_code: int = 0

    def document(self) -> dict[str, Json]:
        """The JSON document."""
        document: dict[str, Json] = msgspec.to_builtins(self)
        del document["exit_code"]
        return document


def _heads(store: Store, unread: list[UnreadableScope]) -> Iterator[Snapshot]:
    """Yield the head of every run, unsorted; fill ``unread``. One at a time: there may be 100,000."""
    for scope in store.backend.scopes():
        try:
            head = read_head(store.backend, scope)
        except StatelineError as error:
            unread.append(UnreadableScope(scope, error))
            continue
        if head is not None and head.envelope.kind == "run" and head.envelope.scope.startswith("run:"):
            yield head


def row(store: Store, head: Snapshot) -> dict[str, Json]:
    """Return the row of one run in ``exec list``, at a newer head than ``head`` if the run has advanced meanwhile."""
    scope = naming.scope_hash(head.envelope.scope)
    state, event, live = head.envelope.state, read_event(head), store.backend.is_locked(scope)
    if state["status"] == "running" and live is False:
        # The process that was running it may have ended since the head was read.
        newer = read_head(store.backend, scope)
        if newer is not None and newer.sha256 != head.sha256:
            return row(store, newer)
    tree = state["tree"] if state["tree"] is not None else store.resolve(head.state["tree"])
    return {
        "run": head.envelope.scope.partition(":")[2],
        "machine": event.machine.name,
        "status": state["status"],
        "live": live,
        "activity": _activity(store, head, tree, live) if state["status"] == "running" else None,
        "stage": tree["stage"],
        "turn": event.turn,
        "failures": event.meters.failures,
        "model": event.model_used,
        "prompt": event.prompt,
        "labels": {**store.resolve(head.state["labels"])},
        "head": head.sha256,
        "started_at": event.started_at,
        "updated_at": head.envelope.created_at,
    }


def _activity(store: Store, head: Snapshot, tree: dict[str, Json], live: bool | None) -> str:
    """Return what a run with the status ``running`` does: ``running``, ``interrupted`` (no process holds it, and an
    effect whose intent was saved has no outcome), or ``ready`` (no process holds it, and the next turn can begin)."""
    if live is not False:
        return "running"
    pending = tree["pending"] or []
    if tree["phase"] == "calling" and tree["pending"] is None:  # it is stored in an object
        pending = store.resolve(head.state["tree"])["pending"]
    lost = tree["phase"] == "started" or any(call.get("status") == "started" for call in pending)
    return "interrupted" if lost else "ready"


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Runs to list: in one of these ``statuses`` (or activities), with all ``labels``, of the ``machine`` (name or
    file), the ``limit`` last used ones. What is empty or None does not restrict."""

    statuses: list[str] = []
    labels: dict[str, Json] = {}
    machine: str | None = None
    limit: int | None = None

    def includes(self, found: dict[str, Json], head: Snapshot) -> bool:
        """Return whether the run with this row is listed, but for the limit."""
        machine, labels = head.event["machine"], found["labels"]
        return (
            (not self.statuses or (found["activity"] or found["status"]) in self.statuses)
            and all(labels.get(name) == value for name, value in self.labels.items())
            and (self.machine in (None, machine["name"]) or os.path.realpath(str(self.machine)) == machine["path"])
        )


EVERY = RunFilter()
"""The filter that every run passes."""


def list_runs(store: Store, wanted: RunFilter = EVERY) -> tuple[list[dict[str, Json]], list[UnreadableScope]]:
    """Return (rows of ``exec list``, the last used first; each scope that cannot be read)."""
    unread: list[UnreadableScope] = []
    rows: list[dict[str, Json]] = []
    for head in _heads(store, unread):
        scope = naming.scope_hash(head.envelope.scope)
        try:
            found = row(store, head)
            if wanted.includes(found, head):
                rows.append(found)
        except StatelineError as error:
            unread.append(UnreadableScope(scope, error))
        except (KeyError, TypeError):
            message = f"the snapshot {head.path} does not hold a run's state"
            unread.append(UnreadableScope(scope, IntegrityError(message, finding="malformed")))
    rows.sort(key=lambda found: str(found["updated_at"]), reverse=True)
    return rows[: wanted.limit], unread


def find_run(store: Store, run: str | None) -> Run:
    """Return the run by that id, or the one used last. Raises ``NotFoundError``; ``IntegrityError`` if no run can be
    read. A scope that cannot be read may hold the last one, so it becomes a warning of the store."""
    if run is not None:
        return load_run(store, naming.checked_id(run, "run id"))
    unread: list[UnreadableScope] = []
    newest = max(_heads(store, unread), key=lambda head: head.envelope.created_at, default=None)
    store.warnings.extend(found.error.message for found in unread)
    if newest is None and unread:
        raise unread[0].error
    if newest is None:
        raise NotFoundError(
            f"there are no runs in {store.backend.describe()}", hint="start one: stateline execute MACHINE"
        )
    return read_run(store, store.scope(newest.envelope.scope), newest)


def status(store: Store, run: str | None) -> dict[str, Json]:
    """Return the row of one run with its mode, bounds (limit and rest), counters and interrupts."""
    found = find_run(store, run)
    shown = row(store, found.snapshot)
    while shown["head"] != found.sha256:
        found = load_run(store, found.id)
        shown = row(store, found.snapshot)
    counters = {**counters_of(found), **_bounded(found)}
    bounds = {
        name: {"limit": limit, "left": max(0, limit - counters[name]) if limit else None}
        for name, limit in msgspec.to_builtins(found.machine.bounds).items()
    }
    exchanges = kept_exchanges(found)
    return {
        **shown,
        "actor": found.event.get("actor"),
        "mode": None if exchanges is None else exchanges.mode,
        "exchanges": None if exchanges is None else exchanges.document(),
        "bounds": bounds,
        "counters": counters,
        "interrupts": [waiting(found)] if found.state.status == "waiting" else [],
        "error": msgspec.to_builtins(found.state.tree.error) if found.state.status == "error" else None,
        "machine_path": found.event["machine"]["path"],
    }


def _bounded(run: Run) -> dict[str, Any]:
    """Return the counts that bounds limit, by the names of the bounds."""
    meters = run.event["meters"]
    return {
        "max_iterations": run.state.iteration,
        "max_llm_calls": meters["llm_calls"],
        "max_agent_hops": sum(count for targets in run.state.edges.values() for count in targets.values()),
        "timeout": meters["active"],
        "max_tool_rounds": meters.get("tool_rounds", 0),
        "max_tokens": sum((meters.get("tokens") or {}).values()),
    }


def show(store: Store, run: str | None) -> dict[str, Json]:
    """Return one run as it is now: the document of ``execute`` with input, state, visits, edges and context."""
    found = find_run(store, run)
    state = found.state
    return {
        **outcome(found, one_turn=False, warnings=[]).document(),
        "machine": found.machine.name,
        "input": state.input,
        "state": state.state,
        "visits": state.visits,
        "edges": state.edges,
        "iteration": state.iteration,
        "context": state.context,
        "labels": state.labels,
    }


def history(store: Store, run: str | None) -> list[dict[str, Json]]:
    """The turns of a run, oldest first. Raises as :func:`find_run`, and ``IntegrityError`` for damage on the way."""
    from stateline.service.run_history import turns

    return turns(store, find_run(store, run))


Confirm = Callable[[list[str]], None]
"""Receives the ids of the runs that are about to be removed; raises to keep them."""


def remove(store: Store, runs: list[str], *, wait: float = WAIT, confirm: Confirm | None = None) -> Removal:
    """Remove runs. Before any is removed, raises ``NotFoundError`` for a missing run and ``RequestError`` for one that
    another scope originates from; ``LockTimeoutError`` for one in use, when those before it are removed."""
    for run in runs:
        if run_scope(store, naming.checked_id(run, "run id")).head() is None:
            raise NotFoundError(f"there is no run {run}; nothing was removed", hint="`stateline exec list` lists them")
    origins = _origins(store)
    for run in runs:
        _require_free(store, run, origins)
        if store.planned is not None:  # a dry run takes no lock
            _require_unused(store, run)
    if confirm is not None:
        confirm(runs)
    removed: list[str] = []
    with Signals():
        for run in runs:
            try:
                _remove(store, run, wait)
            except LockTimeoutError as error:
                before = f"; removed before it: {', '.join(removed)}" if removed else ""
                raise LockTimeoutError(f"the run {run} was kept: {error.message}{before}", hint=error.hint) from None
            removed.append(run)
    return Removal(removed, warnings=store.warnings)


def clean(
    store: Store, *, unfinished: bool, older_than: float, wait: float = 0.0, confirm: Confirm | None = None
) -> Removal:
    """Remove runs that are over (with ``unfinished`` all) whose last change is at least ``older_than`` [s] ago.

    A run that is in use, or that another scope originates from, is kept and reported; so is a scope that cannot be
    read, and the exit code is then that of the damage.
    """
    unread: list[UnreadableScope] = []
    heads = sorted(_heads(store, unread), key=lambda head: head.envelope.created_at, reverse=True)
    origins = _origins(store) if heads else {}
    now = datetime.datetime.fromisoformat(next_timestamp(store.clock()))
    kept = {found.scope: found.error.message for found in unread}
    chosen: dict[str, Snapshot] = {}
    for head in heads:
        run = head.envelope.scope.partition(":")[2]
        age = (now - datetime.datetime.fromisoformat(head.envelope.created_at)).total_seconds()
        over = isinstance(head.envelope.state, dict) and head.envelope.state.get("status") in OVER
        if (older_than and age < older_than) or not (unfinished or over):
            continue
        try:
            _require_free(store, run, origins)
            _require_unused(store, run)
            chosen[run] = head
        except (ConflictError, RequestError) as error:
            kept[run] = error.message.removeprefix(f"the run {run} was kept: ")
    if chosen and confirm is not None:
        confirm(list(chosen))
    removed: list[str] = []
    with Signals():
        for run, head in chosen.items():
            try:
                _remove(store, run, wait, expected=head)
                removed.append(run)
            except ConflictError as error:
                kept[run] = error.message.removeprefix(f"the run {run} was kept: ")
    exit_code = max((found.error.exit_code for found in unread), default=0)
    return Removal(removed, kept, store.warnings, exit_code)


def _require_free(store: Store, run: str, origins: dict[str, str]) -> None:
    needed_by = origins.get(run_scope(store, run).key)
    if needed_by is not None:
        raise RequestError(f"the run {run} was kept: {needed_by} originates from it", hint=f"remove {needed_by} first")


def _require_unused(store: Store, run: str) -> None:
    if store.backend.is_locked(run_scope(store, run).hash):
        raise LockTimeoutError(f"the run {run} was kept: a process is using it", hint=f"`stateline exec status {run}`")


def _remove(store: Store, run: str, wait: float, expected: Snapshot | None = None) -> None:
    scope = run_scope(store, run)
    with scope.locked(wait), shield():
        head = scope.head()
        if expected is not None and (head is None or head.sha256 != expected.sha256):
            raise ConflictError(f"the run {run} was kept: it was started again meanwhile", hint="call again")
        store.backend.remove(scope.hash)


def _origins(store: Store) -> dict[str, str]:
    """Return the scopes that others originate from: origin's key -> the key of one that needs it. Reads the first
    snapshot of each scope, whose name sorts first."""
    origins: dict[str, str] = {}
    for scope in store.backend.scopes():
        names = sorted(name for name in store.backend.list(scope) if naming.snapshot_parts(name))
        for name in names[:1]:
            try:
                data = store.backend.get(f"{scope}/{name}", 1 << 24)
                envelope = parse_snapshot(scope, name, data).envelope
            except StatelineError:
                continue
            if envelope.origin is not None:
                origins[envelope.origin.scope] = envelope.scope
    return origins
