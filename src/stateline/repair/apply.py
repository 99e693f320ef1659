"""Carrying out a repair. Each step is durable before the next, and whatever is left after a crash at any of them is
something that another repair finishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Pointer
from stateline.bundle.repair_record import MEMBER, Gap
from stateline.errors import StatelineError
from stateline.repair.inventory import Bad, Item, Stray
from stateline.repair.lineage import Lineage, head_of
from stateline.repair.plan import Action, Blocked, LostSnapshot, ScopePlan, StorePlan, Word, plan_scope, plan_store
from stateline.repair.quarantine import Quarantine, quarantine_for
from stateline.repair.republish import republish
from stateline.store.integrity import Objects, is_good_object, out_of_kind
from stateline.store.store import WAIT, Snapshot, Store
from stateline.verify.checker import verify
from stateline.verify.findings import Finding, Report

DECLARED = 1000
"""Most losses that one snapshot declares; a repair with more of them makes several snapshots."""
TOLD = 100
"""Most entries of a list in the event that is for people only; the rest is counted."""
PASSES = 4
"""Most rounds of one repair: what is set aside in one scope may be the origin of a fork in another."""

Carry = Callable[[Snapshot, bool], dict[str, Json]]
"""Gives what the event of a repair's snapshot repeats from the one whose state it takes over, and is told whether
newer snapshots were lost, or may have been."""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair would do, or did. ``ok``: nothing is damaged (any more). ``findings`` is the damage that there is,
    or that was left; ``aside`` the directory that took what was set aside."""

    ok: bool
    applied: bool
    actions: tuple[Action, ...] = ()
    lost: tuple[LostSnapshot, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    findings: tuple[Finding, ...] = ()
    aside: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if nothing is damaged; what stopped the repair of a scope, if it was no damage; else 5."""
        stopped = [blocked.exit_code for blocked in self.blocked if blocked.exit_code != 5]
        return stopped[0] if stopped else 0 if self.ok else 5

    def document(self) -> dict[str, Json]:
        """As it stands in ``--format json``."""
        return {
            "ok": self.ok,
            "applied": self.applied,
            "actions": [action.document() for action in self.actions],
            "lost": [lost.document() for lost in self.lost],
            "blocked": [blocked.document() for blocked in self.blocked],
            "findings": [finding.document() for finding in self.findings],
            "aside": self.aside,
            "warnings": list(self.warnings),
        }


def carry_all(content: Snapshot, newer_lost: bool) -> dict[str, Json]:
    """What any scope's event repeats: everything but what was about that one save."""
    own = ("type", "durability", "redactions", MEMBER)
    return {name: value for name, value in content.event.items() if name not in own}


def plan(store: Store, key: str | None = None) -> Repair:
    """What ``repair`` would do. Reads only. Raises as ``verify``."""
    report = verify(store, key)
    damage = _damage(report)
    if not damage:
        return Repair(ok=True, applied=False)
    work = _Work(store)
    work.plan_only(plan_store(store, damage, key))
    return work.result(report, applied=False, aside=None)


def repair(store: Store, key: str | None = None, *, carry: Carry = carry_all, wait: float = WAIT) -> Repair:
    """Set aside what is damaged, and let each scope go on from the newest snapshot of which nothing is lost; each
    under its lock, for which ``wait`` [s] is the bound. A scope that cannot be repaired keeps no other from it.

    Raises ``RequestError`` for a backend that cannot be repaired, ``NotFoundError`` for a ``key`` whose scope does not exist,
    ``UnsafePathError`` or ``StorageError`` for a state dir in which nothing can be written.
    """
    report = verify(store, key)
    if not _damage(report):
        return Repair(ok=True, applied=False)
    stamp = store.now(None).replace(":", "")
    work = _Mender(store, quarantine_for(store.backend, stamp), carry, wait)
    for _ in range(PASSES):
        done = len(work.actions)
        work.blocked = []
        work.apply(plan_store(store, _damage(report), key))
        report = _verified(store, key)
        if report.ok or len(work.actions) == done:
            break
    return work.result(report, applied=True, aside=work.quarantine.aside)


def _damage(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity == "damage"]


def _verified(store: Store, key: str | None) -> Report:
    """The report afterwards; of everything, if the one scope was set aside whole."""
    if key is not None and naming.scope_hash(key) not in set(store.backend.scopes()):
        return Report(ok=True, scopes=0, snapshots=0, objects=0, findings=())
    return verify(store, key)


class _Work:
    """What a repair would do, as it is gathered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.actions: list[Action] = []
        self.lost: list[LostSnapshot] = []
        self.blocked: list[Blocked] = []
        self.warnings: dict[str, None] = {}

    def result(self, report: Report, *, applied: bool, aside: str | None) -> Repair:
        return Repair(
            ok=report.ok,
            applied=applied,
            actions=tuple(self.actions),
            # A scope that was stopped half-way was planned again in the next round.
            lost=tuple(dict.fromkeys(self.lost)),
            blocked=tuple(self.blocked),
            findings=tuple(_damage(report)),
            aside=aside,
            warnings=tuple(self.warnings),
        )

    def plan_only(self, plan: StorePlan) -> None:
        """Note down what ``apply`` would do."""
        self.blocked += plan.blocked
        if plan.renew:
            self._note("renew", None, naming.STORE_FILE, f"{plan.renew}; a new one gives the store a new id")
        for bad in plan.aside:
            self._note("set_aside", None, bad.path, bad.code)
        objects = Objects(self.store)
        for scope in plan.scopes:
            try:
                self._tell(plan_scope(self.store, scope, objects))
            except StatelineError as error:
                self.blocked.append(Blocked.of(error, None, scope))

    def _tell(self, plan: ScopePlan) -> None:
        self._heed(plan)
        if plan.blocked:
            return
        scope = plan.survey.scope
        if plan.whole:
            self._note("remove_scope", plan.name, scope, "no snapshot of it is whole")
            return
        for stray in plan.survey.strays:
            self._note_put_back(plan, stray)
            self._note("set_aside", plan.name, f"{scope}/{stray.lies}", "misplaced")
        for bad in plan.aside:
            self._note("set_aside", plan.name, bad.path, bad.code)
        if plan.publish and plan.line is not None and plan.line.content is not None:
            line, content = plan.line, plan.line.content
            why = f"snapshot {line.tip.seq + 1}, with the state of snapshot {content.seq} ({content.sha256})"
            self._note("publish", plan.name, scope, why)
            self._note("move_head", plan.name, f"{scope}/{naming.POINTER}", "to the snapshot of this repair")
        elif plan.survey.bad_pointer is not None:
            self._note("set_aside", plan.name, plan.survey.bad_pointer.path, plan.survey.bad_pointer.code)

    def _heed(self, plan: ScopePlan) -> None:
        self.blocked += plan.blocked
        if plan.blocked:
            return
        self.lost += plan.lost
        if plan.whole:
            absent = (
                f"nothing of {plan.name or plan.survey.scope} is whole, so it is set aside: who looks for it finds none"
            )
            self.warnings[absent + _begun_anew(plan.name)] = None
        elif plan.publish and plan.name is not None and plan.name.startswith("run:"):
            self.warnings.update(dict.fromkeys(_effects(plan.name, plan)))
        if plan.orphans and not plan.whole:
            self.warnings[_repeated(plan)] = None

    def _note_put_back(self, plan: ScopePlan, stray: Stray) -> None:
        path = f"{plan.survey.scope}/{stray.item.path}"
        self._note("put_back", plan.name, path, f"snapshot {stray.item.seq}, from {stray.lies}")

    def _note(self, word: Word, scope: str | None, path: str, why: str, to: str | None = None) -> None:
        self.actions.append(Action(action=word, scope=scope, path=path, why=why, to=to))


class _Mender(_Work):
    """A repair under way."""

    def __init__(self, store: Store, quarantine: Quarantine, carry: Carry, wait: float) -> None:
        super().__init__(store)
        self.quarantine = quarantine
        self.carry = carry
        self.wait = wait

    def apply(self, plan: StorePlan) -> None:
        """The store's own file first, since nothing is locked without it; objects before the scopes that miss them."""
        self.blocked += plan.blocked
        if plan.renew:
            self.quarantine.renew_store_file()
            self._note("renew", None, naming.STORE_FILE, f"{plan.renew}; the store has a new id")
        self.store.backend.prepare()
        for bad in plan.aside:
            self._out_of_the_way(bad)
        self.store.forget_objects()
        objects = Objects(self.store)
        for scope in plan.scopes:
            try:
                self._mend_scope(scope, objects)
            except StatelineError as error:
                self.blocked.append(Blocked.of(error, None, scope))

    def _out_of_the_way(self, bad: Bad) -> None:
        """Set aside what lies outside the scopes. A mount point, which cannot be renamed, keeps nothing else from
        being mended; and an object is looked at once more, since no lock keeps others from mending it first."""
        if is_good_object(self.store.backend, bad.path):
            return
        try:
            self._aside(None, bad)
        except StatelineError as error:
            self.blocked.append(Blocked.of(error, None, bad.path))

    def _aside(self, scope: str | None, bad: Bad) -> str | None:
        to = self.quarantine.set_aside(bad.path)
        if to is not None:
            self._note("set_aside", scope, bad.path, bad.code, to)
        return to

    def _mend_scope(self, scope: str, objects: Objects) -> None:
        lock = f"{scope}/{naming.LOCK}"
        if out_of_kind(self.store.backend, lock):
            # Nobody holds it: writers refuse to lock anything but a file of their own.
            self._aside(None, Bad(lock, "not_regular", ""))
        with self.store.backend.lock(scope, self.wait):
            plan = plan_scope(self.store, scope, objects)
            self._heed(plan)
            if plan.blocked:
                return
            if plan.whole:
                to = self.quarantine.set_aside(scope)
                self._note("remove_scope", plan.name, scope, "no snapshot of it is whole", to)
                return
            moved = self._put_back(plan)
            moved += [to for bad in plan.aside if (to := self._aside(plan.name, bad)) is not None]
            if plan.publish:
                self._publish(plan, moved)
            elif plan.survey.bad_pointer is not None:
                self._aside(plan.name, plan.survey.bad_pointer)

    def _put_back(self, plan: ScopePlan) -> list[str]:
        """Snapshots under another name first get their own, durably; where the other names went."""
        scope, moved = plan.survey.scope, []
        for stray in plan.survey.strays:
            data = self.store.backend.get(f"{scope}/{stray.lies}", canonical.SNAPSHOT_LIMIT)
            self.store.backend.put(f"{scope}/{stray.item.path}", data)
            self._note_put_back(plan, stray)
            to = self._aside(plan.name, Bad(f"{scope}/{stray.lies}", "misplaced", ""))
            if to is not None:
                moved.append(to)
        return moved

    def _publish(self, plan: ScopePlan, moved: list[str]) -> None:
        line, survey = plan.line, plan.survey
        if line is None or line.content is None or plan.name is None:
            return
        tip, content = self._snapshot(survey.scope, line.tip), self._snapshot(survey.scope, line.content)
        scope = self.store.scope(plan.name)
        said = self.carry(content, plan.in_doubt)
        for part in _parts(line):
            event = {**said, "type": MEMBER, MEMBER: {**self._record(plan, content, moved), **part}}
            tip = republish(scope, tip, content, event)
            why = f"snapshot {tip.seq}, with the state of snapshot {content.seq} ({content.sha256})"
            self._note("publish", plan.name, f"{survey.scope}/{tip.path}", why)
        if survey.bad_pointer is None and (survey.pointer is None or head_of(survey.items, survey.pointer)):
            kept = None
            self.store.backend.swap(survey.scope, survey.pointer, tip.pointer)
        else:
            kept = self.quarantine.replace_pointer(survey.scope, tip.pointer)
        self._note("move_head", plan.name, f"{survey.scope}/{naming.POINTER}", f"to snapshot {tip.seq}", kept)

    def _snapshot(self, scope: str, item: Item) -> Snapshot:
        return self.store.read_snapshot(scope, Pointer(item.path, item.sha256))

    def _record(self, plan: ScopePlan, content: Snapshot, moved: list[str]) -> dict[str, Json]:
        """What the event says for people, bounded; what walkers need is added to it whole."""
        newer: list[Json] = [
            {"seq": lost.seq, "sha256": lost.sha256, "path": lost.path, "why": lost.why}
            for lost in plan.lost
            if lost.newer
        ]
        return {
            "from": {"seq": content.seq, "sha256": content.sha256},
            "lost": newer[:TOLD],
            "lost_count": len(newer),
            "set_aside": list(moved[:TOLD]),
            "set_aside_count": len(moved),
        }


def _begun_anew(key: str | None) -> str:
    """What the loss of a whole scope means for effects, if it was about a run."""
    if key is None:
        return "; if it was a run, the next `execute` begins a new one; its effects run again"
    if key.startswith(("run:", "machine:")):
        return "; the next `execute` begins a new run; its effects run again"
    return ""


def _effects(run: str, plan: ScopePlan) -> list[str]:
    """What becomes of the effects of a run, if newer snapshots are lost or may be."""
    if plan.newer_lost:
        return [f"{run} goes on from an older state: effects that the lost snapshots record may run again"]
    if plan.survey.pointer is None:
        told = "its pointer is lost, so nothing tells whether newer snapshots are lost too"
        return [f"{run}: {told}; effects that those recorded may run again"]
    return []


def _repeated(plan: ScopePlan) -> str:
    first, last, number = min(plan.orphans), max(plan.orphans), len(plan.orphans)
    what = f"snapshot {first}" if number == 1 else f"{number} snapshots ({first} to {last})"
    verb, they = ("is", "it records") if number == 1 else ("are", "they record")
    return (
        f"{what} of {plan.name} that the head does not lead to {verb} set aside; "
        f"the work that {they} may have been repeated"
    )


def _parts(line: Lineage) -> list[Mapping[str, Json]]:
    """What is declared, in as many snapshots as it takes; at least one."""
    parts: list[Mapping[str, Json]] = []
    gaps, objects = line.gaps, line.objects
    while gaps or objects or not parts:
        room = DECLARED - len(gaps[:DECLARED])
        parts.append({"gaps": [_gap(gap) for gap in gaps[:DECLARED]], "objects": list(objects[:room])})
        gaps, objects = gaps[DECLARED:], objects[room:]
    return parts


def _gap(gap: Gap) -> Json:
    document: Json = msgspec.to_builtins(gap)
    return document
