"""Readers on a failing seam: unreadable files are not reported as damaged, and not moved."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dry_runs import plan_context, plan_execute
from stress.faults.cases import WENT_ON, Verdict, descriptors
from stress.faults.injection import CHANGING, INTERRUPTS, Failing, Fault, Script
from stress.invariants import fresh_store, require_reported
from stress.oracle import Picture, ViolationError, require
from stress.scenarios import SCENARIOS, Place

from stateline import Store
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.errors import StatelineError
from stateline.history import log
from stateline.history.diff import compare
from stateline.redaction.redactor import Redactor
from stateline.service import runs
from stateline.service.options import ExecuteOptions
from stateline.service.repair import apply_repair, plan_repair
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Filesystem
from stateline.verify.checker import verify

UNREADABLE = "unreadable"
"""The code of what the system refused to read; it may pass."""
BENEATH = "orphaned"
"""Code of a consequence: objects reachable only through the unreadable file."""
RUN = "scenario"

Told = Iterable[str]
"""Codes of all that a reading called damaged, its own errors left out."""


def _walk(store: Store, files: Path) -> Told:
    for head in store.heads():
        for snapshot in store.scope(head.envelope.scope).walk():
            store.resolve(snapshot.state)
    return []


def _verify(store: Store, files: Path) -> Told:
    report = verify(store)
    told = [found.code for found in report.findings if found.severity not in ("residue", "warning")]
    whole = verify(fresh_store(store.backend.describe()))
    if not told and (report.scopes, report.snapshots, report.objects) != (whole.scopes, whole.snapshots, whole.objects):
        return ["less was read, and all was called well"]
    return told


def _plan(store: Store, files: Path) -> Told:
    done = plan_repair(store, None)
    return [*(found.code for found in done.findings), *(action.action for action in done.actions)]


def _mend(store: Store, files: Path) -> Told:
    done = apply_repair(store, None)
    return [*(found.code for found in done.findings), *(action.action for action in done.actions)]


def _log(store: Store, files: Path) -> Told:
    found = log.list_scopes(store)
    for row in found.scopes:
        head = store.scope(row.scope).load()
        [*log.entries(store, head, None, with_changes=False)]
        before = store.scope(row.scope).parent(head)
        if before is not None:
            compare(store, before.state, head.state)
    return [finding.code for finding in found.findings]


def _runs(store: Store, files: Path) -> Told:
    _, unread = runs.list_runs(store)
    runs.status(store, RUN)
    runs.show(store, RUN)
    runs.history(store, RUN)
    return [each.finding().code for each in unread]


def _dry(store: Store, files: Path) -> Iterator[str]:
    machine = str(files / "machine.json")
    for plan in (
        plan_execute(store, ExecuteOptions(machine=machine, run=RUN)),
        plan_execute(store, ExecuteOptions(machine=machine, run="new")),
        plan_context(store, ContextOptions(name="docs", context_request=ContextRequest(refine="Be kind."))),
    ):
        if plan.exit in (5, 6):
            yield f"exit {plan.exit}: {plan.reason}"


MENDING = "repair of what is whole"
READINGS: dict[str, Callable[[Store, Path], Told]] = {
    "walk": _walk,
    "verify": _verify,
    "plan of a repair": _plan,
    MENDING: _mend,
    "log and diff": _log,
    "runs": _runs,
    "dry run": _dry,
}


class Library:
    """A store with a bit of everything, below ``root``, which is made; nothing in it is damaged."""

    def __init__(self, root: Path) -> None:
        self.path = str(root / "state dir")
        self.files = root / "files"
        self.files.mkdir(parents=True)
        place = Place(self.path, self.files, Filesystem, lambda note: None)
        for name in ("long lists", "refine", "turn"):
            SCENARIOS[name].prepare(place)
            SCENARIOS[name].act(place)
        self.before = Picture.of(self.path)

    def store(self, script: Script) -> Store:
        """The store, on a seam that follows the script."""
        return Store(LocalBackend(self.path, Failing(script)), redactor=Redactor())

    def calls(self, name: str) -> list[str]:
        """Return the calls of a reader when nothing fails."""
        script = Script()
        told = list(READINGS[name](self.store(script), self.files))
        require(not told, f"{name} calls something damaged where nothing is: {told}")
        return script.calls

    def case(self, name: str, fault: Fault) -> Verdict:
        """Read with that fault, and judge."""
        opened = descriptors()
        script = Script(fault)
        outcome, wrong = self._read(name, script)
        # A repair takes a scope's lock before it looks at what could not be read.
        harmless = ("open_lock", "create", "unlink") if name == MENDING else ()
        changing = [method for method in script.calls if method in CHANGING and method not in harmless]
        if changing:
            wrong.append(f"a reader called {sorted(set(changing))}")
        if Picture.of(self.path) != self.before:
            wrong.append("a reader changed something")
        left = descriptors()
        if left > opened:
            gc.collect()
            left = descriptors()
        if left > opened:
            wrong.append(f"{left - opened} files are left open")
        return Verdict(outcome, "; ".join(wrong))

    def _read(self, name: str, script: Script) -> tuple[str, list[str]]:
        assert script.fault is not None
        try:
            told = set(READINGS[name](self.store(script), self.files))
        except StatelineError as error:
            try:
                require_reported(error)
            except ViolationError as harm:
                return error.code, [str(harm)]
            return error.code, []
        except tuple(INTERRUPTS.values()) as error:
            wrong = [] if script.fault.error in INTERRUPTS else [f"{type(error).__name__} got out: {error}"]
            return "interrupted", wrong
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is what is looked for)
            return type(error).__name__, [f"{type(error).__name__} got out: {error}"]
        allowed = {UNREADABLE, BENEATH} if UNREADABLE in told else set()
        wrong = [] if told <= allowed else [f"called damaged, and only unreadable: {sorted(told - allowed)}"]
        return UNREADABLE if told else WENT_ON, wrong
