"""Invariants of a run's chain, however the processes that wrote it ended."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from stress.oracle import require
from stress.processes.sample_workflow import Note

from stateline import Store
from stateline.bundle import canonical, naming
from stateline.store.snapshot import Snapshot
from stateline.verify.checker import verify


def runs_of(state_dir: Path) -> dict[str, list[Snapshot]]:
    """The chain of each run, oldest first. Raises ``IntegrityError`` where one is broken."""
    store = Store.open(state_dir)
    scopes = [head.envelope.scope for head in store.heads() if head.envelope.kind == "run"]
    return {scope: list(store.scope(scope).walk())[::-1] for scope in scopes}


def residue_of(state_dir: Path) -> Counter[str]:
    """Count each kind of crash residue in the store: temporary files, and snapshots that no head leads to.
    Raises :class:`ViolationError` if ``verify`` finds anything worse."""
    store = Store.open(state_dir)
    report = verify(store)
    harmless = ("residue",) if (state_dir / naming.STORE_FILE).exists() else ("residue", "warning")
    worse = [finding for finding in report.findings if finding.severity not in harmless]
    require(report.ok and not worse, f"verify found {worse}")
    names = [path.name for path in state_dir.rglob("*")]
    snapshots = sum(name.startswith("state-") for name in names)
    found = Counter(
        temporary=sum(name.startswith(naming.TEMPORARY) for name in names),
        unacknowledged=snapshots - sum(head.seq + 1 for head in store.heads()),
    )
    require(bool(report.findings) >= bool(+found), f"verify overlooked some of {found}")
    return +found


def state_bytes(snapshot: Snapshot) -> bytes:
    """A snapshot's ``state`` as the file has it, with the digests of its objects: equal bytes, equal state."""
    document = json.loads(snapshot.data)
    return canonical.encode({"state": document["state"], "objects": document["objects"]}, depth=canonical.FILE_DEPTH)


def resolved_bytes(store: Store, snapshot: Snapshot) -> bytes:
    """A snapshot's ``state`` with every object's content in its place; artifacts by digest."""
    state: Any = store.resolve({name: value for name, value in snapshot.state.items() if name != "machine"})
    machine = {name: getattr(value, "sha256", value) for name, value in snapshot.state["machine"].items()}
    return canonical.encode({**state, "machine": machine}, depth=canonical.FILE_DEPTH)


def key_of(snapshot: Snapshot) -> str | None:
    """The idempotency key of the visit that the run stands in, or None where no effect is due."""
    effect = snapshot.event.get("effect")
    return effect["key"] if effect else None


def settled_keys(chain: list[Snapshot]) -> set[str]:
    """Keys of visits that are over: their outcome is in a saved snapshot and the run went on to another visit."""
    keys = [key_of(snapshot) for snapshot in chain]
    return {before for before, after in pairwise(keys) if before is not None and before != after}


def require_saved_first(chain: list[Snapshot], notes: list[Note], *, repeatable: bool) -> None:
    """Each task that started stands in a snapshot that was saved before: the visit's key, and for an effect that is
    not repeatable the intent of that very attempt."""
    visits = {key_of(snapshot) for snapshot in chain}
    intents = {
        (key_of(snapshot), snapshot.event["effect"]["attempt"])
        for snapshot in chain
        if snapshot.event["type"] == "intended"
    }
    for note in notes:
        require(note.key in visits, f"{note} ran although no snapshot has its key")
        require(repeatable or (note.key, note.attempt) in intents, f"{note} ran although its intent was not saved")


def require_once(notes: list[Note], *, repeatable: bool) -> None:
    """An attempt runs once; one of a repeatable task once in each call that a kill made necessary."""
    starts = Counter((n.key, n.attempt, n.call if repeatable else 0) for n in notes if n.what == "start")
    twice = [which for which, count in starts.items() if count > 1]
    require(not twice, f"ran twice: {twice}")
