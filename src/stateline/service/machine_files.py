"""Machine files: read one and the tools manifest that it names, refuse secrets in them, and record its runs.

The scope ``machine:<SHA-256 of the file's real path>`` records each run that was started from the file, before the
first snapshot of the run. A record may therefore name a run that does not exist (a crash, ``exec rm``): it is skipped.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json, sha256
from stateline.bundle.limits import DEFAULT, Limits
from stateline.engine.event_codec import MALFORMED_HINT
from stateline.engine.record import Run, read_run, run_scope
from stateline.errors import IntegrityError, RequestError, StatelineError
from stateline.machine.decider.run import OVER
from stateline.machine.spec import Machine, Toolset, to_json
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.tools.source_file import read_source_file

if TYPE_CHECKING:
    from stateline.machine.definition.formats.python_text import Evaluated
    from stateline.redaction.redactor import Redactor
    from stateline.tools.manifest import FindSecret

LISTED = 8
"""The largest number of other unfinished runs in a record."""


class MachineFile(msgspec.Struct, frozen=True):
    """A machine file as it is now: real path, exact bytes and their digest.

    ``recorded`` False: not a file, but a machine that ``run`` wrote as JSON. Its runs are not found by ``path``, which
    is the tools manifest.
    """

    path: str
    data: bytes
    sha256: str
    recorded: bool = True

    @property
    def directory(self) -> str:
        """The directory in which programs and the tools manifest are looked up."""
        return os.path.dirname(self.path)

    @property
    def format(self) -> str:
        """The name of the file's format; "" for an unknown file name extension."""
        if not self.recorded:
            return "json"
        from stateline.machine.definition.formats.reader import format_of

        format = format_of(self.path)
        return format.word if format else ""

    def evaluate(self, source: str) -> Evaluated:
        """Run the source of a Python machine in a separate process."""
        from stateline.engine.evaluate import evaluate

        return evaluate(source, self.path)


def read_machine_file(path: str, limits: Limits = DEFAULT) -> MachineFile:
    """Read a machine file. Raises as ``read_source_file``."""
    real, data = read_source_file(path, "machine file", ".yaml, .json, .toml, .py", limits)
    return MachineFile(real, data, sha256(data))


def parse_machine(store: Store, machine_file: MachineFile) -> Machine:
    """Return the checked machine with its tools. Raises ``InvalidMachineError`` with all problems, those of the tools
    manifest included; ``RequestError`` for a secret in the file."""
    from stateline.machine.definition.check import Lookups, load

    require_no_secret_in(machine_file, store.redactor)
    lookups = Lookups(
        evaluate=machine_file.evaluate,
        toolset=lambda path: read_toolset(machine_file, path, store.redactor.find, store.limits),
    )
    machine = load(machine_file.data, machine_file.path, lookups)
    # Escapes and folded lines can hide in the bytes what the parsed machine contains.
    require_no_secret_in(machine_file, store.redactor, machine)
    return machine


def require_no_secret_in(machine_file: MachineFile, redactor: Redactor, machine: Machine | None = None) -> None:
    """Raise ``RequestError`` for a secret in the bytes of a machine file, or in the parsed ``machine``."""
    # In the parsed machine, only values are searched: field names are fixed.
    match = redactor.find(machine_file.data) if machine is None else redactor.find(to_json(machine), keys=False)
    if match:
        raise RequestError(
            f"{machine_file.path} holds a secret ({match}); nothing was stored",
            hint="remove it and pass it by environment: name a variable in the stage's `env`",
        )


def read_toolset(machine_file: MachineFile, path: str, find_secret: FindSecret, limits: Limits) -> Toolset:
    """Return the checked tools of the manifest that the machine file names as ``path``. Raises as ``read_manifest``."""
    from stateline.tools.manifest import read_manifest

    return read_manifest(os.path.join(machine_file.directory, path), find_secret, limits).toolset


def tools_record(machine: Machine, machine_file: MachineFile) -> Json:
    """Return ``event.tools``: real path and digest of the manifest; None without one."""
    if machine.tools is None or machine.toolset is None:
        return None
    path = os.path.realpath(os.path.join(machine_file.directory, machine.tools))
    return {"path": path, "sha256": machine.toolset.sha256}


def current_tools_digest(run: Run, machine_file: MachineFile) -> str | None:
    """Return the digest of the tools manifest of ``run`` as it is now; None for a run without one. Raises
    ``NotFoundError``, ``RequestError`` or ``StorageError`` if it cannot be read."""
    if run.machine.tools is None:
        return None
    from stateline.tools.manifest import manifest_digest

    return manifest_digest(os.path.join(machine_file.directory, run.machine.tools), run.scope.store.limits)


def machine_scope(store: Store, machine_file: MachineFile) -> Scope:
    """Return the scope that records the runs of the file."""
    return store.scope(f"machine:{sha256(os.fsencode(machine_file.path))}")


def record_run(store: Store, machine_file: MachineFile, run: str) -> None:
    """Record that the run belongs to this machine file, so that the last run of the file is found."""
    live = other_unfinished(store, machine_file, run)[-LISTED:]
    event: dict[str, Json] = {"type": "run_started", "run": run, "path": machine_file.path, "live": live}
    machine_scope(store, machine_file).save({"machine": machine_file.sha256}, event=event, masked=True)


def find_unfinished(store: Store, machine_file: MachineFile) -> Run | None:
    """Return the last run of the file that exists, if it is unfinished; else None. Reads only."""
    for record in machine_scope(store, machine_file).walk():
        scope = run_scope(store, _recorded(record))
        head = scope.head()
        if head is not None:
            run = read_run(store, scope, head)
            return None if run.state.status in OVER else run
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
    return head is not None and isinstance(head.envelope.state, dict) and head.envelope.state.get("status") not in OVER
