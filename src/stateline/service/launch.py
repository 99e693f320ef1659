"""Which run a machine file means, and how a new one begins.

A ``machine:<sha256 of the file's real path>`` scope records each run that was started from a file, before the run's
first snapshot. So a record may name a run that is not there (a crash, ``exec rm``): it is skipped.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json, sha256
from stateline.engine.loop import Beginning, Origin, begin, start
from stateline.engine.record import Run, keep_machine, load_run, read_run, run_scope
from stateline.errors import IntegrityError, NotFound, RequestError, StatelineError, StorageError
from stateline.machine.run import Started
from stateline.machine.spec import Machine, to_json
from stateline.service.demands import demand_head
from stateline.store.store import WAIT, Scope, Snapshot, Store, demand_known_version

if TYPE_CHECKING:
    from stateline.machine.formats.python_text import Evaluated

_LISTED = 8
"""How many other unfinished runs a record names."""


class Machinery(msgspec.Struct, frozen=True):
    """A machine file as it lies there now: real path, exact bytes and their digest."""

    path: str
    data: bytes
    sha256: str

    @property
    def format(self) -> str:
        """The word of the file's format; "" for an ending that is none."""
        from stateline.machine.formats.reader import format_of

        format = format_of(self.path)
        return format.word if format else ""

    def evaluate(self, source: str) -> Evaluated:
        """Run the file, if it is a Python machine: in a process of its own."""
        from stateline.engine.evaluate import evaluate

        return evaluate(source, self.path)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to begin a run. ``run`` None: under a new id. ``force`` begins anew what is there. ``parent`` demands the
    head to begin from, by revision."""

    run: str | None = None
    force: bool = False
    input: Json = None
    labels: dict[str, str] = {}
    context: str | None = None
    parent: str | None = None
    wait: float = WAIT


def read_machinery(path: str) -> Machinery:
    """Read a machine file. Raises ``NotFound`` or ``RequestError`` (not a file, too large)."""
    try:
        real = os.path.realpath(path)
        real.encode()
        fd = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except UnicodeEncodeError:
        raise RequestError(
            f"the path {path!r} is not UTF-8, so no run could record it; nothing was stored", hint="rename it"
        ) from None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise NotFound(f"there is no machine file {path!r}", hint="check the path") from None
    except OSError as error:
        raise StorageError(f"cannot read the machine file {path!r}: {error.strerror}", hint="check the path") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RequestError(f"{path!r} is not a regular file", hint="name a machine file (.yaml, .json, .toml, .py)")
    with os.fdopen(fd, "rb") as file:
        data = file.read(canonical.TEXT_LIMIT + 1)
    if len(data) > canonical.TEXT_LIMIT:
        raise RequestError(f"{path!r} is larger than {canonical.TEXT_LIMIT} bytes", hint="is it a machine file?")
    return Machinery(real, data, sha256(data))


def parse_machine(store: Store, machinery: Machinery) -> Machine:
    """The checked machine. Raises ``MachineInvalid`` with all its mistakes, ``RequestError`` if it holds a secret."""
    from stateline.machine.check import load

    if store.redactor.find(machinery.data):
        raise RequestError(
            f"{machinery.path} holds a secret that is also in the environment; nothing was stored",
            hint="pass it by environment: name the variable in the stage's `env`",
        )
    machine = load(machinery.data, machinery.path, evaluate=machinery.evaluate)
    # Escapes and folded lines can hide in the file what its meaning holds. Only texts are asked about: the names of
    # the spec's fields are ours.
    texts: list[str] = []
    canonical.walk(to_json(machine), lambda leaf: texts.append(leaf) if isinstance(leaf, str) else None)
    if store.redactor.find("\n".join(texts)):
        raise RequestError(
            f"{machinery.path} holds, in other spelling, a secret that is also in the environment; nothing was stored",
            hint="pass it by environment: name the variable in the stage's `env`",
        )
    return machine


def machine_scope(store: Store, machinery: Machinery) -> Scope:
    """Where the runs of that file are recorded."""
    return store.scope(f"machine:{sha256(os.fsencode(machinery.path))}")


def find_last(store: Store, machinery: Machinery) -> Run | None:
    """The last run of that file that is there, if it is unfinished; else None. Reads only."""
    for record in machine_scope(store, machinery).walk():
        scope = run_scope(store, _recorded(record))
        head = scope.head()
        if head is not None:
            run = read_run(store, scope, head)
            return None if run.state.status == "complete" else run
    return None


def others(store: Store, machinery: Machinery, run: str | None) -> list[str]:
    """Unfinished runs of that file besides ``run``, as far as the newest record names them. Reads only."""
    head = machine_scope(store, machinery).head()
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


def launch(store: Store, how: Launch, machinery: Machinery) -> tuple[Run, bool]:
    """(run, whether it began here). Without ``force``, a run that another process began meanwhile is returned as it is.

    Raises ``MachineInvalid``, ``NotFound`` for a context that does not exist, ``ValueRefused`` for an input that the
    machine's schema forbids, ``ConflictError`` for a head that is not the one demanded; nothing is stored then.
    """
    machine = parse_machine(store, machinery)
    demand_no_secret(store, how, machinery)
    first = beginning(store, how, machine, machinery)  # what is wrong with the input is said before anything is stored
    demand_beginning(store, how)
    records = machine_scope(store, machinery)
    with records.locked(how.wait):
        found = None if how.force else _meanwhile(store, how, machinery)
        if found is not None:
            return found, False
        run = how.run or new_id(store)
        scope = run_scope(store, run)
        with scope.locked(how.wait):
            head = scope.head()
            demand_head(scope, head, how.parent)
            if head is not None:
                demand_known_version(head)
            record = keep_machine(store, machinery.data, machinery.format, machine)
            remember(store, machinery, run)
            return start(scope, head, record, first), True


def remember(store: Store, machinery: Machinery, run: str) -> None:
    """Record that the run goes by this machine file, so that the file's last run is found."""
    live = others(store, machinery, run)[-_LISTED:]
    event: dict[str, Json] = {"type": "run_started", "run": run, "path": machinery.path, "live": live}
    machine_scope(store, machinery).save({"machine": machinery.sha256}, event=event, masked=True)


def demand_no_secret(store: Store, how: Launch, machinery: Machinery) -> None:
    """Raise ``RequestError`` for names that hold a secret: they are stored as they are, or the run would be lost."""
    names = {
        "the run's id": how.run or "",
        "the machine file's path": machinery.path,
        "a label's name": "\n".join(how.labels),
    }
    for what, text in names.items():
        if store.redactor.find(text):
            raise RequestError(
                f"{what} holds a secret that is also in the environment; nothing was stored",
                hint="choose another name, or unset the variable if its value is no secret",
            )


def demand_beginning(store: Store, how: Launch) -> None:
    """Raise ``ConflictError`` unless the run begins from the head that the call demands. Reads only."""
    if how.parent is not None:
        scope = run_scope(store, how.run or "new")
        demand_head(scope, None if how.run is None else scope.head(), how.parent)


def _meanwhile(store: Store, how: Launch, machinery: Machinery) -> Run | None:
    if how.run is None:
        return find_last(store, machinery)
    return None if run_scope(store, how.run).head() is None else load_run(store, how.run)


def beginning(store: Store, how: Launch, machine: Machine, machinery: Machinery) -> Beginning:
    """How the run begins. Raises ``NotFound`` for a context that does not exist, and as ``engine.loop.begin``."""
    name = how.context or machine.context
    given = Started(input=how.input, labels=how.labels)
    if name is None:
        return begin(store, machine, given, Origin(machine_path=machinery.path))
    key = f"context:{naming.checked_id(name, 'context name')}"
    head = store.scope(key).head()
    if head is None:
        raise NotFound(
            f"there is no context {name}; no run was started",
            hint=f"derive it first: stateline run --state-scope {name} --system TEXT --set KEY=VALUE",
        )
    context = {"scope": key, "sha256": head.sha256}
    origin = Origin(machine_path=machinery.path, context_path=head.path)
    return begin(store, machine, replace(given, context=context), origin, head)


def new_id(store: Store) -> str:
    """A new run's id: ``exec-<date>-<time UTC>-<4 hex>``. It need not be secret, only free."""
    moment = store.now(None)
    stamp = moment[:19].replace("-", "").replace(":", "").replace("T", "-")
    while True:
        name = f"exec-{stamp}-{os.urandom(2).hex()}"
        if run_scope(store, name).head() is None:
            return name
