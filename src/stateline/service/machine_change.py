"""Continue a run whose machine file, or tools manifest, changed or was moved since it started."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from stateline.bundle.canonical import Json
from stateline.engine.event_codec import is_built_in
from stateline.engine.record import MachineRecord, Run, keep_machine
from stateline.engine.step import replace_machine
from stateline.errors import MachineChangedError, StatelineError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Replaced
from stateline.machine.spec import Machine
from stateline.process.signals import shield
from stateline.service.answers import require_expected
from stateline.service.continue_run import reload, require_parent
from stateline.service.machine_files import MachineFile, current_tools_digest, parse_machine, record_run, tools_record
from stateline.service.options import CallOptions

_WARNED = 3
"""Most changes in a warning."""


class MachineChange(msgspec.Struct, frozen=True):
    """The machine in the file as it is now, where it differs from that of the run; and how."""

    machine: Machine
    changes: list[Any]  # history.diff.Change


def machine_change(run: Run, machine_file: MachineFile) -> MachineChange | None:
    """Compare a machine file, with its tools manifest, with the machine of the run; None for the same canonical spec.
    Neither is parsed unless its bytes changed. Complete runs are checked too: their outputs must not be taken for those
    of another machine.

    Raises as ``parse_machine``, and as ``read_source_file`` for the manifest of a run that is not complete.
    """
    if run.machine_sha == machine_file.sha256 and _has_same_tools(run, machine_file):
        return None
    from stateline.service.spec_difference import changes

    store = run.scope.store
    machine = parse_machine(store, machine_file)
    found = changes(store, run.machine, machine)
    return MachineChange(machine, found) if found else None


def _has_same_tools(run: Run, machine_file: MachineFile) -> bool:
    kept = (run.event.get("tools") or {}).get("sha256")
    try:
        return bool(kept == current_tools_digest(run, machine_file))
    except StatelineError:
        if run.state.status != "complete":
            raise
        return True  # a complete run needs its tools no more


def change_error(run: Run, machine_file: MachineFile, change: MachineChange) -> MachineChangedError:
    """Return the error for a change that was not accepted: the difference, and the ways to proceed."""
    from stateline.service.spec_difference import is_of_tools, lines

    path, here = str(run.event["machine"]["path"]), machine_file.path
    message = f"the machine file changed since the run {run.id} started"
    if is_built_in(run.event):
        message = f"the run {run.id} was started by a prompt, not from {here}"
    elif is_of_tools(change.changes):
        message = f"the tools manifest changed since the run {run.id} started"
    elif path != here:
        message = f"the run {run.id} was started from another file: {path}, not {here}"
    shown = "".join(f"\n  {line}" for line in lines(change.changes))
    execute = f"stateline execute {shlex.quote(here)} --id"
    first = f"`{execute} {run.id} --accept-change` continues with the new one"
    if run.state.status == "complete":
        first = f"`stateline exec show {run.id}` shows its outputs (as does --accept-change)"
    more = " --input JSON" if run.state.input is not None or change.machine.input is not None else ""
    hint = f"{first}; `{execute} {run.id} --force{more}` restarts it; `{execute} NEW{more}` starts another run"
    return MachineChangedError(f"{message}; nothing was changed. The difference:{shown}", hint=hint)


def change_warning(run: Run, change: MachineChange | None) -> list[str]:
    """Return the warning that a changed machine file or tools manifest is accepted; none without a change."""
    if change is None:
        return []
    from stateline.service.spec_difference import is_of_tools, lines

    what = "tools manifest" if is_of_tools(change.changes) else "machine file"
    warning = f"the change of the {what} is accepted: {'; '.join(lines(change.changes, _WARNED))}"
    if run.state.status == "complete":
        warning += f". Nothing was run: the run {run.id} was complete before"
    return [warning]


def with_current_machine(
    run: Run, machine_file: MachineFile, change: MachineChange | None, call: CallOptions, *, accept: bool
) -> Run:
    """Return the run with a change of its machine file, or a move of the same machine to another file, recorded; or
    ``run`` itself. Programs are looked up beside the file, and it finds the run.

    Raises ``MachineChangedError`` for a change without ``accept`` and for one that the run cannot take, and as
    ``require_expected``.
    """
    if change is not None and not accept:
        raise change_error(run, machine_file, change)
    if run.state.status == "complete" or (change is None and run.event["machine"]["path"] == machine_file.path):
        return run
    from stateline.service.spec_difference import changes

    require_expected(run, call.input, call.answer, call.request)
    with run.scope.locked(call.wait), shield():
        now = require_parent(reload(run), call.parent)
        moved = now.event["machine"]["path"] != machine_file.path
        # Another process may have recorded the change in the meantime.
        changed = change is not None and changes(now.scope.store, now.machine, change.machine)
        if now.state.status == "complete" or not (changed or moved):
            return now
        machine, record = now.machine, now.record
        if change is not None and changed:
            machine = change.machine
            advance(machine, now.state, Replaced())  # raises before anything is stored
            record = keep_machine(run.scope.store, machine_file.data, machine_file.format, machine)
        now = replace_machine(now, machine, record, _places(machine, record, machine_file))
    if moved:
        record_run(run.scope.store, machine_file, run.id)
    return now


def _places(machine: Machine, record: MachineRecord, machine_file: MachineFile) -> dict[str, Json]:
    """Return the members ``machine`` and ``tools`` of the event. The digest is that of the bytes that the run keeps."""
    machine_place = {"path": machine_file.path, "name": machine.name, "sha256": record.source.sha256}
    tools = tools_record(machine, machine_file)
    return {"machine": machine_place} if tools is None else {"machine": machine_place, "tools": tools}
