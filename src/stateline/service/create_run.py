"""Which run a machine file means, and how a new one begins.

A ``machine:<sha256 of the file's real path>`` scope records each run that was started from a file, before the run's
first snapshot. So a record may name a run that is not there (a crash, ``exec rm``): it is skipped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json, sha256
from stateline.engine.dependencies import MANUAL, Dependencies
from stateline.engine.loop import Origin, RunStart, StartFacts, begin, start
from stateline.engine.record import Run, keep_machine, load_run, machine_record, read_context, read_run, run_scope
from stateline.errors import (
    IntegrityError,
    InvalidAnswerError,
    NotFoundError,
    RequestError,
    StatelineError,
    StorageError,
)
from stateline.history.preconditions import require_head
from stateline.machine.decider.run import Started
from stateline.machine.spec import Machine, Toolset, to_json
from stateline.service.answers import answered_run
from stateline.store.scope import WAIT, Scope
from stateline.store.snapshot import Snapshot, require_known_version
from stateline.store.store import Store
from stateline.store.timestamps import next_timestamp

if TYPE_CHECKING:
    from stateline.machine.definition.formats.python_text import Evaluated
    from stateline.redaction.redactor import Redactor
    from stateline.tools.manifest import FindSecret

_LISTED = 8
"""How many other unfinished runs a record names."""


DependenciesFor = Callable[[Run], Dependencies]
"""Gives what a call performs the effects of a run with, as that stands. A run that is about to begin has no snapshot
yet and an empty event. Raises a ``StatelineError`` for a model that cannot be had."""


def no_model(run: Run) -> Dependencies:
    """The means of a caller that has no model."""
    return MANUAL


class MachineFile(msgspec.Struct, frozen=True):
    """A machine file as it lies there now: real path, exact bytes and their digest. ``recorded`` False: no file, but a
    machine that the caller wrote as JSON; runs of it are not looked for by ``path``, beside which its tools lie."""

    path: str
    data: bytes
    sha256: str
    recorded: bool = True

    @property
    def directory(self) -> str:
        """Where programs and the tools manifest are looked up."""
        return os.path.dirname(self.path)

    @property
    def format(self) -> str:
        """The word of the file's format; "" for an ending that is none."""
        if not self.recorded:
            return "json"
        from stateline.machine.definition.formats.reader import format_of

        format = format_of(self.path)
        return format.word if format else ""

    def evaluate(self, source: str) -> Evaluated:
        """Run the file, if it is a Python machine: in a process of its own."""
        from stateline.engine.evaluate import evaluate

        return evaluate(source, self.path)


class NewRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to begin a run. ``run`` None: under a new id. ``force`` begins anew what is there. ``parent`` demands the
    head to begin from, by revision. ``context`` is a context's name, ``given`` its snapshot, which saves looking for
    the head. ``exchanges`` is what the run's event is to say under that name (None for nothing)."""

    run: str | None = None
    force: bool = False
    input: Json = None
    labels: dict[str, str] = {}
    context: str | None = None
    given: Any = None  # store.Snapshot, which is no msgspec type
    exchanges: Json = None
    dependencies: DependenciesFor = no_model
    parent: str | None = None
    wait: float = WAIT


def read_machine_file(path: str) -> MachineFile:
    """Read a machine file. Raises ``NotFoundError`` or ``RequestError`` (not a file, too large)."""
    try:
        real = os.path.realpath(path)
        real.encode()
        fd = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except UnicodeEncodeError:
        raise RequestError(
            f"the path {path!r} is not UTF-8, so no run could record it; nothing was stored", hint="rename it"
        ) from None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise NotFoundError(f"there is no machine file {path!r}", hint="check the path") from None
    except OSError as error:
        raise StorageError(f"cannot read the machine file {path!r}: {error.strerror}", hint="check the path") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RequestError(f"{path!r} is not a regular file", hint="name a machine file (.yaml, .json, .toml, .py)")
    with os.fdopen(fd, "rb") as file:
        data = file.read(canonical.TEXT_LIMIT + 1)
    if len(data) > canonical.TEXT_LIMIT:
        raise RequestError(f"{path!r} is larger than {canonical.TEXT_LIMIT} bytes", hint="is it a machine file?")
    return MachineFile(real, data, sha256(data))


def parse_machine(store: Store, machine_file: MachineFile) -> Machine:
    """The checked machine, with its tools. Raises ``InvalidMachineError`` with all its mistakes, those of the tools manifest
    included, ``RequestError`` if it holds a secret."""
    from stateline.machine.definition.check import Lookups, load

    require_no_secret_in(machine_file, store.redactor)
    outside = Lookups(
        evaluate=machine_file.evaluate,
        toolset=lambda path: read_toolset(machine_file, path, store.redactor.find),
    )
    machine = load(machine_file.data, machine_file.path, outside)
    # Escapes and folded lines can hide in the file what its meaning holds.
    require_no_secret_in(machine_file, store.redactor, machine)
    return machine


def require_no_secret_in(machine_file: MachineFile, redactor: Redactor, machine: Machine | None = None) -> None:
    """Raise ``RequestError`` for a secret in a machine file; with ``machine``, in what the file means."""
    # Of the spec only texts are asked about: the names of its fields are ours.
    sighting = redactor.find(machine_file.data) if machine is None else redactor.find(to_json(machine), keys=False)
    if sighting:
        raise RequestError(
            f"{machine_file.path} holds a secret ({sighting}); nothing was stored",
            hint="take it out and pass it by environment: name a variable in the stage's `env`",
        )


def read_toolset(machine_file: MachineFile, path: str, find_secret: FindSecret) -> Toolset:
    """The checked tools of the manifest that the machine file names as ``path``. Raises as ``read_manifest``."""
    from stateline.tools.manifest import read_manifest

    return read_manifest(os.path.join(machine_file.directory, path), find_secret).toolset


def tools_record(machine: Machine, machine_file: MachineFile) -> Json:
    """What the event of a run says of its tools: real path and digest of the manifest; None without one."""
    if machine.tools is None or machine.toolset is None:
        return None
    path = os.path.realpath(os.path.join(machine_file.directory, machine.tools))
    return {"path": path, "sha256": machine.toolset.sha256}


def current_tools_digest(run: Run, machine_file: MachineFile) -> str | None:
    """The digest of the tools manifest of ``run`` as it lies there now, beside the unchanged machine; None for a run
    without one. Raises ``NotFoundError``, ``RequestError`` or ``StorageError`` if it cannot be read."""
    if run.machine.tools is None:
        return None
    from stateline.tools.manifest import manifest_digest

    return manifest_digest(os.path.join(machine_file.directory, run.machine.tools))


def machine_scope(store: Store, machine_file: MachineFile) -> Scope:
    """Where the runs of that file are recorded."""
    return store.scope(f"machine:{sha256(os.fsencode(machine_file.path))}")


def find_unfinished(store: Store, machine_file: MachineFile) -> Run | None:
    """The last run of that file that is there, if it is unfinished; else None. Reads only."""
    for record in machine_scope(store, machine_file).walk():
        scope = run_scope(store, _recorded(record))
        head = scope.head()
        if head is not None:
            run = read_run(store, scope, head)
            return None if run.state.status == "complete" else run
    return None


def other_unfinished(store: Store, machine_file: MachineFile, run: str | None) -> list[str]:
    """Unfinished runs of that file besides ``run``, as far as the newest record names them. Reads only."""
    head = machine_scope(store, machine_file).head()
    if head is None:
        return []
    live = head.event.get("live")
    named = [*(live if isinstance(live, list) else []), _recorded(head)]
    unfinished = dict.fromkeys(str(name) for name in named if naming.is_id(str(name)))
    return [name for name in unfinished if name != run and _is_unfinished(store, name)]


def _recorded(record: Snapshot) -> str:
    """The run that a machine's record names. Raises ``IntegrityError`` if it names none."""
    run = record.event.get("run")
    if not isinstance(run, str) or not naming.is_id(run):
        raise IntegrityError(
            f"the snapshot {record.path} does not name a run",
            finding="malformed",
            hint="nothing was changed; was it written by stateline?",
        )
    return run


def _is_unfinished(store: Store, run: str) -> bool:
    try:
        head = run_scope(store, run).head()
    except StatelineError:
        # A run that cannot be read is no reason to stop another one. Whoever goes on with it is told.
        return False
    return (
        head is not None and isinstance(head.envelope.state, dict) and head.envelope.state.get("status") != "complete"
    )


def create_run(store: Store, how: NewRunOptions, machine_file: MachineFile) -> tuple[Run, bool]:
    """(run, whether it began here). Without ``force``, a run that another process began meanwhile is returned as it is.

    Raises ``InvalidMachineError``, ``NotFoundError`` for a context that does not exist, ``InvalidValueError`` for an input that the
    machine's schema forbids, ``ConflictError`` for a head that is not the one demanded; nothing is stored then.
    """
    machine = parse_machine(store, machine_file)
    require_no_secret(store, how, machine_file)
    first = plan_start(
        store, how, machine, machine_file
    )  # what is wrong with the input is said before anything is stored
    require_beginning(store, how)
    if not machine_file.recorded:
        return start_chain(store, how, machine_file, first)
    with machine_scope(store, machine_file).locked(how.wait):
        return start_chain(store, how, machine_file, first)


def start_chain(store: Store, how: NewRunOptions, machine_file: MachineFile, first: RunStart) -> tuple[Run, bool]:
    """As :func:`create_run`, for a beginning that is decided. Of a machine that is recorded, the lock of its scope must be
    held; it does not keep those out who begin the run from another file, or from a prompt."""
    found = None if how.force else _meanwhile(store, how, machine_file)
    if found is not None:
        return found, False
    while True:
        scope = run_scope(store, how.run or new_id(store))
        with scope.locked(how.wait):
            head = scope.head()
            if head is not None and how.run is None:
                continue  # somebody took the new id, which was free; force is not meant for their run
            if head is not None and not how.force:
                return read_run(store, scope, head), False
            require_head(scope, head, how.parent)
            return _begin_on(store, scope, head, machine_file, first), True


def _begin_on(store: Store, scope: Scope, head: Snapshot | None, machine_file: MachineFile, first: RunStart) -> Run:
    """Begin the run on the chain that ends in ``head``. The lock must be held."""
    if head is not None:
        require_known_version(head)
    record = keep_machine(store, machine_file.data, machine_file.format, first.machine)
    if machine_file.recorded:
        record_run(store, machine_file, scope.key.partition(":")[2])
    return start(scope, head, record, first)


def record_run(store: Store, machine_file: MachineFile, run: str) -> None:
    """Record that the run goes by this machine file, so that the file's last run is found."""
    live = other_unfinished(store, machine_file, run)[-_LISTED:]
    event: dict[str, Json] = {"type": "run_started", "run": run, "path": machine_file.path, "live": live}
    machine_scope(store, machine_file).save({"machine": machine_file.sha256}, event=event, masked=True)


def require_no_secret(store: Store, how: NewRunOptions, machine_file: MachineFile) -> None:
    """Raise ``RequestError`` for names that hold a secret: they are stored as they are, or the run would be lost."""
    names = {
        "the run's id": how.run or "",
        "the machine file's path": machine_file.path,
        "a label's name": "\n".join(how.labels),
    }
    for what, text in names.items():
        if sighting := store.redactor.find(text):
            raise RequestError(
                f"{what} holds a secret ({sighting}); nothing was stored",
                hint="choose another name, or unset the variable if its value is no secret",
            )


def require_no_foreign_answer(store: Store, run: str | None, said: Json | msgspec.UnsetType) -> None:
    """Raise ``InvalidAnswerError`` for an answer that names another run's request: it is no input for a run that begins as
    ``run`` (None: under a new id). Reads only."""
    answered = answered_run(store, said)
    if answered is not None and answered.id != run:
        raise InvalidAnswerError(
            f"the answer is for a request of the run {answered.id}, and no input of a run that begins; "
            "nothing was changed",
            hint=f"give it to that run: stateline exec resume {answered.id} --input JSON",
        )


def require_beginning(store: Store, how: NewRunOptions) -> None:
    """Raise ``ConflictError`` unless the run begins from the head that the call demands. Reads only."""
    if how.parent is not None:
        scope = run_scope(store, how.run or "new")
        require_head(scope, None if how.run is None else scope.head(), how.parent)


def _meanwhile(store: Store, how: NewRunOptions, machine_file: MachineFile) -> Run | None:
    if how.run is None:
        return find_unfinished(store, machine_file) if machine_file.recorded else None
    return None if run_scope(store, how.run).head() is None else load_run(store, how.run)


def plan_start(store: Store, how: NewRunOptions, machine: Machine, machine_file: MachineFile) -> RunStart:
    """How the run begins. Raises ``NotFoundError`` for a context that does not exist, as ``engine.loop.begin``, and as
    ``how.means``; ``RequestError`` where its first stage asks a model that cannot be called."""
    name = how.context or machine.context
    given = Started(input=how.input, labels=how.labels)
    origin = Origin(machine_path=machine_file.path, tools=tools_record(machine, machine_file), exchanges=how.exchanges)
    head, known = how.given, StartFacts()
    if name is not None:
        key = f"context:{naming.checked_id(name, 'context name')}"
        head = head or store.scope(key).head()
        if head is None:
            raise NotFoundError(
                f"there is no context {name}; no run was started",
                hint=f"derive it first: stateline run --state-scope {name} --system TEXT --set KEY=VALUE",
            )
        context = read_context(store, head)
        known = StartFacts(context=context)
        given = replace(given, context={"scope": key, "sha256": context.sha256})
        origin = replace(origin, context={"path": head.path, "sha256": head.sha256})
    first = begin(store, machine, given, origin, known)
    if any(stage.kind == "agent" for stage in machine.stages.values()):
        first = _with_means(store, how, machine_file, first, known)
        if first.decision.state.tree.phase == "ready" and machine.stages[machine.start].kind == "agent":
            _require_callable(first.dependencies)
    return first


def _require_callable(dependencies: Dependencies) -> None:
    """Raise what keeps the model from being called, if there is one: a run that could not make its first step would
    only have to be begun again."""
    if dependencies.ready is not None:
        dependencies.ready()


def _with_means(
    store: Store, how: NewRunOptions, machine_file: MachineFile, first: RunStart, given: StartFacts
) -> RunStart:
    """``first``, or what it is with the model that the call has."""
    dependencies = how.dependencies(run_before_start(store, how, machine_file, first))
    if not dependencies.manual:
        masks = first.redactions
        first = begin(store, first.machine, first.event, first.origin, replace(given, manual=False))
        first = replace(first, redactions=masks)
    return replace(first, dependencies=dependencies)


def run_before_start(store: Store, how: NewRunOptions, machine_file: MachineFile, first: RunStart) -> Run:
    """The run as it would begin; nothing is stored."""
    return Run(
        scope=run_scope(store, how.run or "new"),
        snapshot=None,
        record=machine_record(machine_file.data, machine_file.format, first.machine),
        machine=first.machine,
        state=first.decision.state,
        began_with=lambda: first.context,
    )


def new_id(store: Store) -> str:
    """A new run's id: ``exec-<date>-<time UTC>-<4 hex>``. It need not be secret, only free."""
    moment = next_timestamp(store.clock())
    stamp = moment[:19].replace("-", "").replace(":", "").replace("T", "-")
    while True:
        name = f"exec-{stamp}-{os.urandom(2).hex()}"
        if run_scope(store, name).head() is None:
            return name
