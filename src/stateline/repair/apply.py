"""Repair: plan it or carry it out. Each step is durable before the next; another repair finishes one that crashed."""

from __future__ import annotations

from contextlib import nullcontext

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Pointer
from stateline.bundle.repair_record import MEMBER
from stateline.errors import StatelineError
from stateline.repair.choose_head import find_head
from stateline.repair.inventory import DamagedFile, IntactSnapshot
from stateline.repair.plan import ScopePlan, StorePlan, plan_scope, plan_store, warnings_of
from stateline.repair.quarantine import LocalQuarantine, quarantine_for
from stateline.repair.report import Action, ActionName, Loss, Obstacle, RepairReport
from stateline.repair.republish import Carry, carry_all, declarations, record, republish
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
    run = _Repair(store, None)
    run.apply(plan_store(store, damage, key))
    return run.report(report)


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
        done = len(run.actions)
        run.obstacles = []
        run.apply(plan_store(store, _damage(report), key))
        if key is not None and naming.scope_hash(key) not in set(store.backend.scopes()):
            # The scope was set aside whole.
            report = Report(ok=True, scopes=0, snapshots=0, objects=0, findings=())
        else:
            report = verify(store, key)
        if report.ok or len(run.actions) == done:
            break
    return run.report(report)


def _damage(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity == "damage"]


class _Repair:
    """A repair in progress and what it did. Without a ``quarantine`` it only reads, and lists what it would do."""

    def __init__(
        self, store: Store, quarantine: LocalQuarantine | None, carry: Carry = carry_all, wait: float = WAIT
    ) -> None:
        self.store = store
        self.quarantine = quarantine
        self.carry = carry
        self.wait = wait
        self.actions: list[Action] = []
        self.lost: list[Loss] = []
        self.obstacles: list[Obstacle] = []
        self.warnings: dict[str, None] = {}

    def report(self, report: Report) -> RepairReport:
        return RepairReport(
            ok=report.ok,
            applied=self.quarantine is not None,
            actions=tuple(self.actions),
            # A scope whose repair was stopped half-way was planned again in the next pass.
            lost=tuple(dict.fromkeys(self.lost)),
            blocked=tuple(self.obstacles),
            findings=tuple(_damage(report)),
            aside=self.quarantine.aside if self.quarantine else None,
            warnings=tuple(self.warnings),
        )

    def apply(self, plan: StorePlan) -> None:
        """Apply the store's plan, then repair its scopes.

        ``stateline.json`` comes first, since nothing is locked without it; objects come before scopes that miss them.
        """
        self.obstacles += plan.obstacles
        if plan.renew:
            if self.quarantine:
                self.quarantine.renew_store_file()
            self._add("renew", None, naming.STORE_FILE, f"{plan.renew}; a new one gives the store a new id")
        if self.quarantine:
            self.store.backend.prepare()
        for file in plan.set_aside:
            self._set_aside_outside(file)
        objects = ObjectChecker(self.store.backend)
        for scope in plan.scopes:
            try:
                self._repair_scope(scope, objects)
            except StatelineError as error:
                self.obstacles.append(Obstacle.of(error, None, scope))

    def _add(self, name: ActionName, scope: str | None, path: str, why: str, to: str | None = None) -> None:
        self.actions.append(Action(action=name, scope=scope, path=path, why=why, to=to))

    def _set_aside_outside(self, file: DamagedFile) -> None:
        """Set aside a file outside the scopes. Failing to (a mount point, for example) stops nothing else.

        An object is checked once more, since no lock keeps others from replacing it first.
        """
        if is_intact_object(self.store.backend, file.path):
            return
        try:
            self._set_aside(None, file)
        except StatelineError as error:
            self.obstacles.append(Obstacle.of(error, None, file.path))

    def _set_aside(self, key: str | None, file: DamagedFile) -> list[str]:
        """Set a file aside; return its new path, or nothing if it was gone."""
        to = None
        if self.quarantine:
            to = self.quarantine.set_aside(file.path)
            if to is None:
                return []
        self._add("set_aside", key, file.path, file.code, to)
        return [to] if to else []

    def _repair_scope(self, scope: str, objects: ObjectChecker) -> None:
        lock = f"{scope}/{naming.LOCK}"
        if self.quarantine and wrong_kind(self.store.backend, lock):
            # Nobody holds it: writers refuse to lock anything but a regular file.
            self._set_aside(None, DamagedFile(lock, "not_regular"))
        with self.store.backend.lock(scope, self.wait) if self.quarantine else nullcontext():
            plan = plan_scope(self.store, scope, objects)
            self.obstacles += plan.obstacles
            if plan.obstacles:
                return
            self.lost += plan.lost
            self.warnings.update(dict.fromkeys(warnings_of(plan)))
            if plan.remove:
                to = self.quarantine.set_aside(scope) if self.quarantine else None
                self._add("remove_scope", plan.key, scope, "no snapshot of it is intact with all its objects", to)
                return
            moved = self._put_back(plan)
            for file in plan.set_aside:
                moved += self._set_aside(plan.key, file)
            if plan.publish:
                self._publish(plan, moved)
            elif plan.inventory.damaged_pointer is not None:
                self._set_aside(plan.key, plan.inventory.damaged_pointer)

    def _put_back(self, plan: ScopePlan) -> list[str]:
        """Give misplaced snapshots their own names, durably, before the other names are set aside."""
        scope, moved = plan.inventory.scope, []
        for found in plan.inventory.misplaced:
            own, other = f"{scope}/{found.item.path}", f"{scope}/{found.found_as}"
            if self.quarantine:
                self.store.backend.put(own, self.store.backend.get(other, canonical.SNAPSHOT_LIMIT))
            self._add("put_back", plan.key, own, f"snapshot {found.item.seq}, from {found.found_as}")
            moved += self._set_aside(plan.key, DamagedFile(other, "misplaced"))
        return moved

    def _publish(self, plan: ScopePlan, moved: list[str]) -> None:
        inventory, line, key = plan.inventory, plan.line, plan.key
        if line is None or line.content is None or key is None:
            return
        path = f"{inventory.scope}/{naming.POINTER}"
        state = f"with the state of snapshot {line.content.seq} ({line.content.sha256})"
        if self.quarantine is None:
            self._add("publish", key, inventory.scope, f"snapshot {line.tip.seq + 1}, {state}")
            self._add("move_head", key, path, "to the snapshot of this repair")
            return
        tip, content = self._read(inventory.scope, line.tip), self._read(inventory.scope, line.content)
        carried = self.carry(content, plan.in_doubt)
        for declaration in declarations(line):
            repaired = {**record(content, plan.lost, moved), **declaration}
            tip = republish(self.store.scope(key), tip, content, {**carried, "type": MEMBER, MEMBER: repaired})
            self._add("publish", key, f"{inventory.scope}/{tip.path}", f"snapshot {tip.seq}, {state}")
        pointer, kept = inventory.pointer, None
        if inventory.damaged_pointer is None and (pointer is None or find_head(inventory.items, pointer)):
            self.store.backend.swap(inventory.scope, pointer, tip.pointer)
        else:
            kept = self.quarantine.replace_pointer(inventory.scope, tip.pointer)
        self._add("move_head", key, path, f"to snapshot {tip.seq}", kept)

    def _read(self, scope: str, item: IntactSnapshot) -> Snapshot:
        return read_snapshot(self.store.backend, scope, Pointer(item.path, item.sha256))
