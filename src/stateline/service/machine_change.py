"""Continue a run whose machine file, or tools manifest, changed or was moved since it started."""

from __future__ import annotations

import msgspec

from stateline.bundle.canonical import Json
from stateline.engine.record import Run, keep_machine
from stateline.engine.step import is_effect_lost, replace_machine
from stateline.errors import MachineChangedError, StatelineError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Replaced
from stateline.machine.spec import Machine
from stateline.process.signals import shield
from stateline.service.answers import is_built_in, not_waiting_error, unwrap
from stateline.service.continue_run import reload, require_parent
from stateline.service.machine_files import MachineFile, current_tools_digest, parse_machine, record_run, tools_record
from stateline.service.options import CallOptions
from stateline.store.store import Store


def machine_change(run: Run, machine_file: MachineFile) -> MachineChangedError | None:
    """Return the error for a machine file, or its tools manifest, that differs from the one of the run; None for no
    change. Complete runs are checked too: their outputs must not be taken for those of another machine."""
    if run.machine_sha == machine_file.sha256:
        return _tools_change(run, machine_file)
    path, here = str(run.event["machine"]["path"]), machine_file.path
    before, after = run.machine_sha, machine_file.sha256
    message = f"the machine file changed since the run {run.id} started: it was {before}, it is {after}"
    if is_built_in(run.event):
        message = f"the run {run.id} was started by a prompt: its machine is {before}, {here} is {after}"
    elif path != here:
        message = f"the run {run.id} was started from another file: {path} was {before}, {here} is {after}"
    return MachineChangedError(f"{message}; nothing was changed", hint=_change_hint(run))


def _tools_change(run: Run, machine_file: MachineFile) -> MachineChangedError | None:
    kept = (run.event.get("tools") or {}).get("sha256")
    try:
        now = current_tools_digest(run, machine_file)
    except StatelineError:
        if run.state.status != "complete":  # a complete run needs its tools no more
            raise
        return None
    if kept == now:
        return None
    return MachineChangedError(
        f"the tools manifest changed since the run {run.id} started: it was {kept}, it is {now}; nothing was changed",
        hint=_change_hint(run),
    )


def _change_hint(run: Run) -> str:
    restart = "--force restarts it with this one, --id NEW starts another run"
    if run.state.status == "complete":
        return f"`stateline exec show {run.id}` shows its outputs (as does --accept-change); {restart}"
    return f"--accept-change continues with the new one, {restart}"


def change_warning(run: Run, machine_file: MachineFile) -> list[str]:
    """Return the warning that a changed machine file or tools manifest is accepted; none without a change."""
    if machine_change(run, machine_file) is None:
        return []
    what, before, after = "machine file", run.machine_sha, machine_file.sha256
    if before == after:
        what = "tools manifest"
        before, after = str(run.event["tools"]["sha256"]), str(current_tools_digest(run, machine_file))
    warning = f"the change of the {what} is accepted ({before[:8]} -> {after[:8]})"
    if run.state.status == "complete":
        warning += f", and nothing was run: the run {run.id} was complete before"
    return [warning]


def with_current_machine(store: Store, run: Run, machine_file: MachineFile, call: CallOptions, accept: bool) -> Run:
    """Return the run with a change of its machine file, or a move of the same machine to another file, recorded; or
    ``run`` itself. Programs are looked up beside the file, and it finds the run.

    Raises ``MachineChangedError`` for a change without ``accept`` and for one that the run cannot take, ``UsageError``
    for an input that the run cannot take.
    """
    change = machine_change(run, machine_file)
    if change is not None and not accept:
        raise change
    if run.state.status == "complete" or (change is None and run.event["machine"]["path"] == machine_file.path):
        return run
    _require_input_expected(run, call.input)
    replacement = None if change is None else parse_machine(store, machine_file)
    with run.scope.locked(call.wait), shield():
        now = require_parent(reload(run), call.parent)
        moved = now.event["machine"]["path"] != machine_file.path
        differs = moved if replacement is None else machine_change(now, machine_file) is not None
        if now.state.status == "complete" or not differs:
            return now
        machine, record = now.machine, now.record
        if replacement is not None:
            machine = replacement
            advance(machine, now.state, Replaced())  # raises before anything is stored
            record = keep_machine(store, machine_file.data, machine_file.format, machine)
        now = replace_machine(now, machine, record, _places(machine, machine_file))
    if moved:
        record_run(store, machine_file, run.id)
    return now


def _require_input_expected(run: Run, given: Json | msgspec.UnsetType) -> None:
    if given is msgspec.UNSET or is_effect_lost(run):  # then it is the result of the lost effect
        return
    if not unwrap(run, given).again and run.state.status != "waiting":
        raise not_waiting_error(run)


def _places(machine: Machine, machine_file: MachineFile) -> dict[str, Json]:
    """Return the members ``machine`` and ``tools`` of the event."""
    machine_place = {"path": machine_file.path, "name": machine.name, "sha256": machine_file.sha256}
    tools = tools_record(machine, machine_file)
    return {"machine": machine_place} if tools is None else {"machine": machine_place, "tools": tools}
