"""The runs of a machine file.

The scope ``machine:<SHA-256 of the file's real path>`` records each run that was started from the file, before the
first snapshot of the run. A record may therefore name a run that does not exist (a crash, ``exec rm``): it is skipped.
"""

from __future__ import annotations

import os

from stateline.bundle import naming
from stateline.bundle.canonical import Json, sha256
from stateline.engine.event_codec import MALFORMED_HINT
from stateline.engine.record import Run, read_run, run_scope
from stateline.errors import IntegrityError, StatelineError
from stateline.service.machine_files import MachineFile
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store

_LISTED = 8
"""The largest number of other unfinished runs in a record."""


def machine_scope(store: Store, machine_file: MachineFile) -> Scope:
    """Return the scope that records the runs of the file."""
    return store.scope(f"machine:{sha256(os.fsencode(machine_file.path))}")


def record_run(store: Store, machine_file: MachineFile, run: str) -> None:
    """Record that the run belongs to this machine file, so that the last run of the file is found."""
    live = other_unfinished(store, machine_file, run)[-_LISTED:]
    event: dict[str, Json] = {"type": "run_started", "run": run, "path": machine_file.path, "live": live}
    machine_scope(store, machine_file).save({"machine": machine_file.sha256}, event=event, masked=True)


def find_unfinished(store: Store, machine_file: MachineFile) -> Run | None:
    """Return the last run of the file that exists, if it is unfinished; else None. Reads only."""
    for record in machine_scope(store, machine_file).walk():
        scope = run_scope(store, _recorded(record))
        head = scope.head()
        if head is not None:
            run = read_run(store, scope, head)
            return None if run.state.status == "complete" else run
    return None


def other_unfinished(store: Store, machine_file: MachineFile, run: str | None) -> list[str]:
    """Return the unfinished runs of the file besides ``run``, as far as the newest record names them. Reads only."""
    head = machine_scope(store, machine_file).head()
    if head is None:
        return []
    live = head.event.get("live")
    named = [*(live if isinstance(live, list) else []), _recorded(head)]
    unfinished = dict.fromkeys(str(name) for name in named if naming.is_id(str(name)))
    return [name for name in unfinished if name != run and _is_unfinished(store, name)]


def _recorded(record: Snapshot) -> str:
    run = record.event.get("run")
    if not isinstance(run, str) or not naming.is_id(run):
        raise IntegrityError(
            f"the snapshot {record.path} does not name a run", finding="malformed", hint=MALFORMED_HINT
        )
    return run


def _is_unfinished(store: Store, run: str) -> bool:
    try:
        head = run_scope(store, run).head()
    except StatelineError:
        # A run that cannot be read does not stop another one. Continuing it reports the damage.
        return False
    return (
        head is not None and isinstance(head.envelope.state, dict) and head.envelope.state.get("status") != "complete"
    )
