"""Repair: plan it or carry it out. Each step is durable before the next; another repair finishes one that crashed."""

from __future__ import annotations

from collections.abc import Iterable

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Pointer
from stateline.bundle.repair_record import MEMBER
from stateline.errors import StatelineError
from stateline.repair.event import Carry, carry_all, declarations, record
from stateline.repair.inventory import DamagedFile, IntactSnapshot, MisplacedSnapshot
from stateline.repair.lineage import Lineage, find_head
from stateline.repair.plan import ScopePlan, plan_scope
from stateline.repair.quarantine import Quarantine, quarantine_for
from stateline.repair.report import Action, ActionName, Loss, Obstacle, RepairReport
from stateline.repair.republish import republish
from stateline.repair.store_plan import StorePlan, plan_store
from stateline.repair.warnings import warnings_of
from stateline.store.integrity import ObjectChecker, is_intact_object, wrong_kind
from stateline.store.scope import WAIT
from stateline.store.snapshot import Snapshot, read_snapshot
from stateline.store.store import Store
from stateline.store.timestamps import next_timestamp
from stateline.verify.checker import verify
from stateline.verify.findings import Finding, Report

PASSES = 4
"""Most passes of one repair: a snapshot set aside in one scope may be the origin of a fork in another."""


def plan(store: Store, key: str | None = None) -> RepairReport:
    """Return what ``repair`` would do. Only reads. Raises as ``verify``."""
    report = verify(store, key)
    damage = _damage(report)
    if not damage:
        return RepairReport(ok=True, applied=False)
    log = _Log()
    _describe(store, plan_store(store, damage, key), log)
    return log.report(report, applied=False, aside=None)


def repair(store: Store, key: str | None = None, *, carry: Carry = carry_all, wait: float = WAIT) -> RepairReport:
    """Set damaged files aside, and let each scope continue from its newest state of which nothing is lost.

    Each scope is repaired under its lock; ``wait`` [s] bounds the wait for it. A scope that cannot be repaired does not
    prevent the repair of others.

    Raises ``RequestError`` for a backend that cannot be repaired, ``NotFoundError`` for a ``key`` without a scope,
    ``UnsafePathError`` or ``StorageError`` for a state dir in which nothing can be written.
    """
    report = verify(store, key)
    if not _damage(report):
        return RepairReport(ok=True, applied=False)
    quarantine = quarantine_for(store.backend, next_timestamp(store.clock()).replace(":", ""))
    run = _Repair(store, quarantine, carry, wait)
    for _ in range(PASSES):
        done = len(run.log.actions)
        run.log.obstacles = []
        run.apply(plan_store(store, _damage(report), key))
        if key is not None and naming.scope_hash(key) not in set(store.backend.scopes()):
            # The scope was set aside whole.
            report = Report(ok=True, scopes=0, snapshots=0, objects=0, findings=())
        else:
            report = verify(store, key)
        if report.ok or len(run.log.actions) == done:
            break
    return run.log.report(report, applied=True, aside=quarantine.aside)


def _damage(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity == "damage"]


class _Log:
    """Actions, losses, obstacles and warnings, collected during a repair or its plan."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.lost: list[Loss] = []
        self.obstacles: list[Obstacle] = []
        self.warnings: dict[str, None] = {}

    def add(self, name: ActionName, scope: str | None, path: str, why: str, to: str | None = None) -> None:
        self.actions.append(Action(action=name, scope=scope, path=path, why=why, to=to))

    def add_put_back(self, plan: ScopePlan, found: MisplacedSnapshot) -> None:
        path = f"{plan.inventory.scope}/{found.item.path}"
        self.add("put_back", plan.key, path, f"snapshot {found.item.seq}, from {found.found_as}")

    def add_scope(self, plan: ScopePlan) -> bool:
        """Add the obstacles, losses and warnings of a scope; False if it must be left alone."""
        self.obstacles += plan.obstacles
        if plan.obstacles:
            return False
        self.lost += plan.lost
        self.warnings.update(dict.fromkeys(warnings_of(plan)))
        return True

    def report(self, report: Report, *, applied: bool, aside: str | None) -> RepairReport:
        return RepairReport(
            ok=report.ok,
            applied=applied,
            actions=tuple(self.actions),
            # A scope whose repair was stopped half-way was planned again in the next pass.
            lost=tuple(dict.fromkeys(self.lost)),
            blocked=tuple(self.obstacles),
            findings=tuple(_damage(report)),
            aside=aside,
            warnings=tuple(self.warnings),
        )


def _describe(store: Store, plan: StorePlan, log: _Log) -> None:
    """Log what ``_Repair.apply`` would do."""
    log.obstacles += plan.obstacles
    if plan.renew:
        log.add("renew", None, naming.STORE_FILE, f"{plan.renew}; a new one gives the store a new id")
    for file in plan.set_aside:
        log.add("set_aside", None, file.path, file.code)
    objects = ObjectChecker(store.backend)
    for scope in plan.scopes:
        try:
            _describe_scope(plan_scope(store, scope, objects), log)
        except StatelineError as error:
            log.obstacles.append(Obstacle.of(error, None, scope))


def _describe_scope(plan: ScopePlan, log: _Log) -> None:
    if not log.add_scope(plan):
        return
    scope = plan.inventory.scope
    if plan.remove:
        log.add("remove_scope", plan.key, scope, _NO_STATE)
        return
    for found in plan.inventory.misplaced:
        log.add_put_back(plan, found)
        log.add("set_aside", plan.key, f"{scope}/{found.found_as}", "misplaced")
    for file in plan.set_aside:
        log.add("set_aside", plan.key, file.path, file.code)
    damaged_pointer = plan.inventory.damaged_pointer
    if plan.publish and plan.line is not None and plan.line.content is not None:
        log.add("publish", plan.key, scope, _published(plan.line.tip.seq + 1, plan.line.content))
        log.add("move_head", plan.key, f"{scope}/{naming.POINTER}", "to the snapshot of this repair")
    elif damaged_pointer is not None:
        log.add("set_aside", plan.key, damaged_pointer.path, damaged_pointer.code)


class _Repair:
    """A repair in progress."""

    def __init__(self, store: Store, quarantine: Quarantine, carry: Carry, wait: float) -> None:
        self.store = store
        self.quarantine = quarantine
        self.carry = carry
        self.wait = wait
        self.log = _Log()

    def apply(self, plan: StorePlan) -> None:
        """Apply the store's plan, then repair its scopes.

        ``stateline.json`` comes first, since nothing is locked without it; objects come before scopes that miss them.
        """
        self.log.obstacles += plan.obstacles
        if plan.renew:
            self.quarantine.renew_store_file()
            self.log.add("renew", None, naming.STORE_FILE, f"{plan.renew}; the store has a new id")
        self.store.backend.prepare()
        for file in plan.set_aside:
            self._set_aside_outside(file)
        objects = ObjectChecker(self.store.backend)
        for scope in plan.scopes:
            try:
                self._repair_scope(scope, objects)
            except StatelineError as error:
                self.log.obstacles.append(Obstacle.of(error, None, scope))

    def _set_aside_outside(self, file: DamagedFile) -> None:
        """Set aside a file outside the scopes. Failing to (a mount point, for example) stops nothing else.

        An object is checked once more, since no lock keeps others from replacing it first.
        """
        if is_intact_object(self.store.backend, file.path):
            return
        try:
            self._set_aside(None, file)
        except StatelineError as error:
            self.log.obstacles.append(Obstacle.of(error, None, file.path))

    def _set_aside(self, key: str | None, file: DamagedFile) -> list[str]:
        """Set a file aside; return its new path, or nothing if it was gone."""
        to = self.quarantine.set_aside(file.path)
        if to is None:
            return []
        self.log.add("set_aside", key, file.path, file.code, to)
        return [to]

    def _repair_scope(self, scope: str, objects: ObjectChecker) -> None:
        lock = f"{scope}/{naming.LOCK}"
        if wrong_kind(self.store.backend, lock):
            # Nobody holds it: writers refuse to lock anything but a regular file.
            self._set_aside(None, DamagedFile(lock, "not_regular", ""))
        with self.store.backend.lock(scope, self.wait):
            plan = plan_scope(self.store, scope, objects)
            if not self.log.add_scope(plan):
                return
            if plan.remove:
                to = self.quarantine.set_aside(scope)
                self.log.add("remove_scope", plan.key, scope, _NO_STATE, to)
                return
            moved = self._put_back(plan)
            for file in plan.set_aside:
                moved += self._set_aside(plan.key, file)
            if plan.publish and plan.line is not None and plan.line.content is not None:
                self._publish(plan, plan.line, plan.line.content, moved)
            elif plan.inventory.damaged_pointer is not None:
                self._set_aside(plan.key, plan.inventory.damaged_pointer)

    def _put_back(self, plan: ScopePlan) -> list[str]:
        """Give misplaced snapshots their own names, durably, before the other names are set aside."""
        scope, moved = plan.inventory.scope, []
        for found in plan.inventory.misplaced:
            data = self.store.backend.get(f"{scope}/{found.found_as}", canonical.SNAPSHOT_LIMIT)
            self.store.backend.put(f"{scope}/{found.item.path}", data)
            self.log.add_put_back(plan, found)
            moved += self._set_aside(plan.key, DamagedFile(f"{scope}/{found.found_as}", "misplaced", ""))
        return moved

    def _publish(self, plan: ScopePlan, line: Lineage, content_item: IntactSnapshot, moved: Iterable[str]) -> None:
        inventory = plan.inventory
        if plan.key is None:
            return
        tip, content = self._read(inventory.scope, line.tip), self._read(inventory.scope, content_item)
        scope = self.store.scope(plan.key)
        carried = self.carry(content, plan.in_doubt)
        for declaration in declarations(line):
            repaired = {**record(content, plan.lost, [*moved]), **declaration}
            tip = republish(scope, tip, content, {**carried, "type": MEMBER, MEMBER: repaired})
            self.log.add("publish", plan.key, f"{inventory.scope}/{tip.path}", _published(tip.seq, content_item))
        pointer, kept = inventory.pointer, None
        if inventory.damaged_pointer is None and (pointer is None or find_head(inventory.items, pointer)):
            self.store.backend.swap(inventory.scope, pointer, tip.pointer)
        else:
            kept = self.quarantine.replace_pointer(inventory.scope, tip.pointer)
        self.log.add("move_head", plan.key, f"{inventory.scope}/{naming.POINTER}", f"to snapshot {tip.seq}", kept)

    def _read(self, scope: str, item: IntactSnapshot) -> Snapshot:
        return read_snapshot(self.store.backend, scope, Pointer(item.path, item.sha256))


_NO_STATE = "no snapshot of it is intact with all its objects"


def _published(seq: int, content: IntactSnapshot) -> str:
    return f"snapshot {seq}, with the state of snapshot {content.seq} ({content.sha256})"
