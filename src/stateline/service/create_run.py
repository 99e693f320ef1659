"""Start a run: decide its first snapshot, then save it under the locks of the machine file and of the run."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import MANUAL
from stateline.engine.loop import Origin, RunStart, StartFacts, begin, start
from stateline.engine.record import (
    Context,
    Run,
    keep_machine,
    machine_record,
    read_context,
    read_run,
    run_scope,
)
from stateline.errors import ConflictError, NotFoundError, RequestError
from stateline.history.preconditions import require_head
from stateline.machine.decider.run import Instance, RunState, Started
from stateline.machine.spec import Machine
from stateline.service.machine_files import (
    MachineFile,
    find_unfinished,
    machine_scope,
    parse_machine,
    record_run,
    tools_record,
)
from stateline.service.options import CallOptions
from stateline.store.snapshot import require_known_version
from stateline.store.store import Store
from stateline.store.timestamps import next_timestamp


class NewRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run that starts. ``run`` None: a new id is generated. ``force`` restarts a run that exists.
    ``context`` names a context; ``context_head`` and ``context_content`` are its snapshot and content, if known.
    ``exchanges``, ``prompt`` and ``prepared`` are those members of the event (None, 0: without)."""

    run: str | None = None
    force: bool = False
    labels: dict[str, str] = {}
    context: str | None = None
    context_head: Any = None  # store.Snapshot, which is not a msgspec type
    context_content: Context | None = None
    exchanges: Json = None
    prompt: str | None = None
    prepared: int = 0
    call: CallOptions = CallOptions()


def create_run(store: Store, options: NewRunOptions, machine_file: MachineFile) -> tuple[Run, bool]:
    """Return (run, True if it was started here). Without ``force``, a run that another process started in the meantime
    is returned as it is.

    Raises ``InvalidMachineError``, ``NotFoundError`` for a context that does not exist, ``InvalidValueError`` for an
    input that the machine's schema forbids, ``ConflictError`` if the head is not the required one; nothing is stored
    then.
    """
    machine = parse_machine(store, machine_file)
    require_no_secret(store, options, machine_file)
    first = plan_start(store, options, machine, machine_file)
    if options.run is not None:
        scope = run_scope(store, options.run)
        require_head(scope, scope.head(), options.call.parent)
    elif options.call.parent is not None:
        from stateline.history.revision import find

        find(store, options.call.parent)
        raise ConflictError(
            "--parent names the head of a run that is continued, and this call starts a run; nothing was changed",
            hint="name the run with --id, or leave --parent out",
        )
    with machine_scope(store, machine_file).locked(options.call.wait):
        return start_chain(store, options, machine_file, first)


def start_chain(store: Store, options: NewRunOptions, machine_file: MachineFile, first: RunStart) -> tuple[Run, bool]:
    """Save the start that :func:`plan_start` decided; return as :func:`create_run`. For a recorded machine file, the
    lock of its scope must be held; it does not exclude calls that start the run from another file or a prompt."""
    if options.run is None and machine_file.recorded and not options.force:
        found = find_unfinished(store, machine_file)
        if found is not None:
            return found, False
    while True:
        scope = run_scope(store, options.run or new_id(store))
        with scope.locked(options.call.wait):
            head = scope.head()
            if head is not None and options.run is None:
                continue  # another process took the new id
            if head is not None and not options.force:
                return read_run(store, scope, head), False
            require_head(scope, head, options.call.parent)
            if head is not None:
                require_known_version(head)
            record = keep_machine(store, machine_file.data, machine_file.format, first.machine)
            if machine_file.recorded:
                record_run(store, machine_file, scope.key.partition(":")[2])
            return start(scope, head, record, first), True


def plan_start(store: Store, options: NewRunOptions, machine: Machine, machine_file: MachineFile) -> RunStart:
    """Decide how the run starts. Reads only. Raises ``NotFoundError`` for a context that does not exist, as
    ``engine.loop.begin`` and ``ModelSource.dependencies``; ``RequestError`` if the first stage calls a model that
    cannot be called."""
    name = options.context or machine.context
    given = options.call.input
    event = Started(input=None if given is msgspec.UNSET else given, labels=options.labels)
    origin = Origin(
        machine_path=machine_file.path,
        tools=tools_record(machine, machine_file),
        exchanges=options.exchanges,
        prompt=options.prompt,
        prepared=options.prepared or None,
    )
    context = options.context_content
    if name is not None:
        key = f"context:{naming.checked_id(name, 'context name')}"
        head = options.context_head or store.scope(key).head()
        if head is None or head.state is None:  # replies were refused, and no context was derived
            raise NotFoundError(
                f"there is no context {name}; no run was started",
                hint=f"derive it first: stateline run --state-scope {name} --system TEXT --set KEY=VALUE",
            )
        context = context or read_context(store, head)
        event = replace(event, context={"scope": key, "sha256": context.sha256})
        origin = replace(origin, context={"path": head.path, "sha256": head.sha256, "seq": head.seq})
    dependencies = MANUAL
    if any(stage.kind == "agent" for stage in machine.stages.values()):
        dependencies = options.call.models.dependencies(
            _run_before_start(store, options, machine_file, machine, context)
        )
    first = begin(store, machine, event, origin, StartFacts(context=context, manual=dependencies.manual))
    calls_model = first.decision.state.tree.phase == "ready" and machine.stages[machine.start].kind == "agent"
    if calls_model and dependencies.ready is not None:
        dependencies.ready()  # a run that could not perform its first step would only have to be restarted
    return first


def _run_before_start(
    store: Store, options: NewRunOptions, machine_file: MachineFile, machine: Machine, context: Context | None
) -> Run:
    """Return the run as its models see it before its first snapshot."""
    return Run(
        scope=run_scope(store, options.run or "new"),
        snapshot=None,
        record=machine_record(machine_file.data, machine_file.format, machine),
        machine=machine,
        state=RunState(status="running", tree=Instance(stage=machine.start, phase="ready")),
        began_with=lambda: context,
    )


def require_no_secret(store: Store, options: NewRunOptions, machine_file: MachineFile) -> None:
    """Raise ``RequestError`` for names that hold a secret: they are stored as they are."""
    names = {
        "the run's id": options.run or "",
        "the machine file's path": machine_file.path,
        "a label's name": "\n".join(options.labels),
    }
    for what, text in names.items():
        if match := store.redactor.find(text):
            raise RequestError(
                f"{what} holds a secret ({match}); nothing was stored",
                hint="choose another name, or unset the variable if its value is not a secret",
            )


def new_id(store: Store) -> str:
    """Return a free id for a run: ``exec-<date>-<time UTC>-<4 hex>``. It need not be secret."""
    moment = next_timestamp(store.clock())
    stamp = moment[:19].replace("-", "").replace(":", "").replace("T", "-")
    while True:
        name = f"exec-{stamp}-{os.urandom(2).hex()}"
        if run_scope(store, name).head() is None:
            return name
