"""Differences in the setup of two runs: machine, model, recording, context and its settings. For ``diff``."""

from __future__ import annotations

from collections.abc import Iterator

from stateline.bundle.envelope import Pointer
from stateline.cli.layout import DIGITS, labelled, short_name
from stateline.cli.output import coloured, columns, plain
from stateline.cli.snapshot_summary import member
from stateline.errors import StatelineError
from stateline.store.snapshot import Snapshot, read_snapshot
from stateline.store.store import Store


def setup_lines(store: Store, before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Lines for what differs; below the context's, the changes from one context to the other."""
    old, new = _setup(before), _setup(after)
    for name in old:
        if old[name] != new[name]:
            text = plain(f"{old[name] or 'none'} -> {new[name] or 'none'}")
            yield from (coloured(line, "yellow") for line in labelled(f"{name + ':':<9} ", text, columns()))
    if old["context"] != new["context"]:
        try:
            yield from (f"    {line}" for line in _context_lines(store, before, after))
        except StatelineError as error:
            yield from labelled("    cannot be read: ", plain(error.message), columns())


def _setup(snapshot: Snapshot) -> dict[str, str]:
    """Return what the event of a run names, in few words; "" for nothing."""
    event = snapshot.event
    machine, exchanges, model = (event.get(name) for name in ("machine", "exchanges", "model_used"))
    scope, place = _context_of(snapshot)
    kind, _, name = scope.partition(":")
    return {
        "machine": f"{member(machine, 'name')} {str(member(machine, 'sha256'))[:DIGITS]}",
        "model": "" if model in (None, "manual") else str(model),
        "mode": f"{member(exchanges, 'mode')} {member(exchanges, 'dir')}" if exchanges else "",
        "context": f"{kind}:{short_name(name)} {place.sha256[:DIGITS]}" if scope else "",
    }


def _context_of(snapshot: Snapshot) -> tuple[str, Pointer]:
    """The context that a run began with: its key ("" without one), and its snapshot's place."""
    place = snapshot.event.get("context")
    scope = member(member(snapshot.state, "context"), "scope") if place else None
    return str(scope or ""), Pointer(str(member(place, "path")), str(member(place, "sha256")))


def _context_lines(store: Store, before: Snapshot, after: Snapshot) -> Iterator[str]:
    from stateline.cli.state_changes import lines
    from stateline.history.diff import compare

    old, new = _context(store, before), _context(store, after)
    changes = compare(store, old.state if old else {}, new.state if new else {})
    kept = [change for change in changes if change.path[:1] in (("prompts",), ("settings",))]
    shown = new or old
    if kept and shown is not None:
        yield from lines(store, kept, shown)


def _context(store: Store, snapshot: Snapshot) -> Snapshot | None:
    """The context's snapshot that a run began with."""
    scope, place = _context_of(snapshot)
    return read_snapshot(store.backend, store.scope(scope).hash, place) if scope else None
