"""What a repair would do, as plain data from reading. ``history.mend`` does it.

A scope goes on from the newest snapshot of which nothing is lost. What is damaged or leads nowhere is set aside, and
what is lost is said: nothing is deleted, and no loss is hidden by dropping what is newer than it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import VERSION
from stateline.bundle.repair_record import Gap
from stateline.errors import StatelineError, UnsafePathError
from stateline.repair.inventory import Bad, Item, Survey
from stateline.repair.lineage import Lineage, head_of, tip_of, trace
from stateline.store.integrity import Objects
from stateline.store.store import Store
from stateline.verify.findings import Finding

Word = Literal["set_aside", "put_back", "renew", "publish", "move_head", "remove_scope"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One step. ``set_aside`` renames what lies at ``path`` (``to`` says where it went, once it was done); ``put_back``
    gives a snapshot that lies under another name its own again; ``renew`` makes a new ``stateline.json``; ``publish``
    appends the repair's snapshot, whose number and content ``why`` tells; ``move_head`` lets the pointer name it;
    ``remove_scope`` sets a scope aside of which nothing is left to go on from."""

    action: Word
    scope: str | None
    path: str
    why: str
    to: str | None = None

    def document(self) -> dict[str, Json]:
        """As it stands in ``--format json``."""
        return msgspec.structs.asdict(self)


class LostSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot or an object that is lost. ``seq`` and ``sha256`` are null where nothing tells them any more;
    ``newer`` means that the scope goes on from an older state than this. ``since`` is set in a gap of the chain: all
    from that number to ``seq`` are lost."""

    scope: str | None
    seq: int | None
    sha256: str | None
    path: str | None
    why: str
    newer: bool = False
    since: int | None = None

    def document(self) -> dict[str, Json]:
        """As it stands in ``--format json``."""
        return msgspec.structs.asdict(self)


class Blocked(msgspec.Struct, frozen=True):
    """What could not be repaired, and why: a ``code`` of ``verify``, or that of an error."""

    scope: str | None
    path: str
    code: str
    message: str
    exit_code: int = 5

    def document(self) -> dict[str, Json]:
        """As it stands in ``--format json``."""
        return {"scope": self.scope, "path": self.path, "code": self.code, "message": self.message}

    @classmethod
    def of(cls, error: StatelineError, scope: str | None, path: str) -> Blocked:
        """For an error that stopped the repair of ``path``."""
        return cls(scope, path, error.code, error.message, error.exit_code)


class ScopePlan(msgspec.Struct, kw_only=True):
    """What becomes of one scope. ``line`` is the chain that goes on, None if nothing of it can; ``publish`` whether a
    snapshot has to say so; ``whole`` whether the scope is set aside as it is."""

    survey: Survey
    aside: list[Bad]
    lost: list[LostSnapshot]
    line: Lineage | None = None
    orphans: list[int] = []
    """The numbers of intact snapshots that are set aside because nothing leads to them."""
    newer_aside: bool = False
    """Whether one of these is newer than the state that goes on."""
    publish: bool = False
    whole: bool = False
    blocked: list[Blocked] = []

    @property
    def name(self) -> str | None:
        """The scope's key, or None where no intact snapshot tells it."""
        return self.survey.key

    @property
    def newer_lost(self) -> bool:
        """Whether the scope goes on from an older state than it had."""
        return any(lost.newer for lost in self.lost)

    @property
    def in_doubt(self) -> bool:
        """Whether work may have gone on from the state that the scope goes on from: what is newer is lost or set
        aside, or nothing tells what its head was."""
        return self.newer_lost or self.newer_aside or self.survey.pointer is None


class StorePlan(msgspec.Struct, kw_only=True):
    """What becomes of everything outside the scopes, and which scopes have to be looked at."""

    renew: str = ""
    aside: list[Bad]
    scopes: list[str]
    blocked: list[Blocked]


def plan_store(store: Store, damage: list[Finding], key: str | None) -> StorePlan:
    """What the damage that ``verify`` found asks for. With ``key`` only that scope is looked at."""
    plan = StorePlan(aside=[], scopes=[], blocked=[])
    scopes: dict[str, None] = {}
    for found in damage:
        top = found.path.partition("/")[0]
        if top == naming.OBJECTS:
            _plan_object(store, found, plan)
            if key is None:
                # Others may name it too, and need its loss declared on their own chain.
                scopes.update(dict.fromkeys(sorted(store.backend.scopes())))
        elif top == naming.STORE_FILE and found.code != "unreadable":
            plan.renew = found.code
        elif naming.is_sha256(top) and found.code == "not_regular" and "/" not in found.path:
            plan.aside.append(Bad(found.path, found.code, found.message))
        elif naming.is_sha256(top):
            scopes[top] = None
        elif found.code == "unreadable" or not found.path:
            # The state dir itself is never moved.
            plan.blocked.append(Blocked(found.scope, found.path, found.code, found.message))
        else:
            plan.aside.append(Bad(found.path, found.code, found.message))
    if key is not None:
        scopes = {naming.scope_hash(key): None} if scopes or plan.aside or plan.blocked or damage else {}
    gone = {bad.path for bad in plan.aside}
    plan.scopes = [scope for scope in scopes if scope not in gone]
    plan.aside = list({bad.path: bad for bad in plan.aside}.values())
    _leave_what_may_be_needed(store, plan)
    return plan


def _leave_what_may_be_needed(store: Store, plan: StorePlan) -> None:
    """A scope that is left alone cannot declare the loss of an object, and nobody knows what it names: while there is
    one, damaged objects stay where they are."""
    objects = [bad for bad in plan.aside if bad.path.startswith(f"{naming.OBJECTS}/") and bad.code != "foreign_file"]
    if not objects or not _some_scope_is_left_alone(store, {bad.path for bad in plan.aside}):
        return
    message = "a scope that cannot be repaired now may need it; it was left where it is"
    plan.blocked += [Blocked(None, bad.path, bad.code, message) for bad in objects]
    plan.aside = [bad for bad in plan.aside if bad not in objects]


def _some_scope_is_left_alone(store: Store, gone: set[str]) -> bool:
    objects = Objects(store)
    for scope in sorted(store.backend.scopes()):
        try:
            if scope not in gone and plan_scope(store, scope, objects).blocked:
                return True
        except StatelineError:
            return True
    return False


def _plan_object(store: Store, found: Finding, plan: StorePlan) -> None:
    """A damaged object is set aside; what is only said wrongly of an intact one is the fault of who says it."""
    from stateline.store.integrity import digest_of, out_of_kind
    from stateline.store.protocol import BlobMissingError

    if found.code == "unreadable":
        plan.blocked.append(Blocked(found.scope, found.path, found.code, found.message))
        return
    directory = found.path.count("/") < 2 and found.code == "not_regular"
    culprit = out_of_kind(store.backend, found.path + "/" if directory else found.path)
    if culprit is not None:
        plan.aside.append(Bad(culprit, "not_regular", f"{culprit} is not what must be there; it was not opened"))
        return
    sha = found.path.rpartition("/")[2]
    if naming.is_sha256(sha) and naming.object_path(sha) == found.path:
        try:
            if digest_of(store.backend, found.path) == sha:
                return
        except BlobMissingError:
            return
        except UnsafePathError as error:
            plan.blocked.append(Blocked.of(error, found.scope, found.path))
            return
        except StatelineError:
            pass
    plan.aside.append(Bad(found.path, found.code, found.message))


def plan_scope(store: Store, scope: str, objects: Objects) -> ScopePlan:
    """What becomes of the scope with that hash. Raises ``UnsafePathError`` or ``StorageError``; reads only."""
    survey = Survey(store, scope, objects)
    plan = ScopePlan(survey=survey, aside=[*survey.bad], lost=[])
    if survey.stuck:
        plan.blocked = [Blocked(survey.key, bad.path, bad.code, bad.message) for bad in survey.stuck]
        return plan
    items = dict(survey.items)
    if _never_begun(survey):
        return plan
    plan.line = _choose(items, survey, plan)
    head = head_of(survey.items, survey.pointer)
    if plan.line is None:
        plan.whole = bool(survey.items or survey.bad_pointer or survey.pointer or _snapshots(survey.bad))
        plan.lost += _all_lost(plan)
        return plan
    if plan.line.tip.version != VERSION:
        message = f"the newest intact snapshot is of format version {plan.line.tip.version}; it was left untouched"
        plan.blocked.append(Blocked(survey.key, f"{scope}/{plan.line.tip.path}", "newer_version", message, 1))
        return plan
    _set_loose_aside(items, plan.line, plan)
    _tell_lost(plan, head)
    moved = head is None or head.sha256 != plan.line.tip.sha256
    plan.publish = moved or plan.newer_lost or bool(plan.line.gaps or plan.line.objects)
    return plan


def _snapshots(bad: list[Bad]) -> bool:
    return any(item.time for item in bad)


def _never_begun(survey: Survey) -> bool:
    """Whether this is what a crash leaves of a first save, whatever else was put beside it."""
    nothing = survey.pointer is None and survey.bad_pointer is None and not _snapshots(survey.bad)
    return nothing and not any(item.seq or item.lost for item in survey.items.values())


def _choose(items: dict[str, Item], survey: Survey, plan: ScopePlan) -> Lineage | None:
    """The chain that goes on. A snapshot that breaks the order under its child is damaged, and a chain of which no
    snapshot is whole is of no use; what is left over then is tried. ``items`` loses what is set aside on the way."""
    pointer = survey.pointer
    while (tip := tip_of(items, pointer)) is not None:
        line = trace(tip, items)
        if line.refused is not None:
            message = "seq or created_at do not follow, as the snapshot that names it demands"
            plan.aside.append(Bad(f"{survey.scope}/{line.refused.path}", "misordered", message))
            del items[line.refused.sha256]
        elif line.content is None:
            if len(line.chain) == len(items):
                return None
            for item in line.chain:
                plan.aside.append(Bad(f"{survey.scope}/{item.path}", "missing", "objects that it needs are lost"))
                plan.lost.append(_lost(plan, item, "objects that it needs are lost", newer=True))
                del items[item.sha256]
        else:
            return line
    return None


def _set_loose_aside(items: dict[str, Item], line: Lineage, plan: ScopePlan) -> None:
    """What is intact and not on the chain: crash residue stays, the rest is set aside."""
    chain = {item.sha256: item for item in line.chain}
    parents = {item.prev_sha for item in items.values()}
    for item in items.values():
        if item.sha256 in chain:
            continue
        parent = chain.get(item.prev_sha or "")
        stands = parent is not None and item.follows(parent) and item.prev == parent.path
        first = item.seq == 0 and item.origin is None
        if (stands or first) and item.sha256 not in parents and not item.lost:
            continue
        message = "the chain does not lead to it, and no crash leaves it behind"
        plan.aside.append(Bad(f"{plan.survey.scope}/{item.path}", "orphaned", message))
        plan.orphans.append(item.seq)
        plan.newer_aside |= line.content is not None and item.created_at > line.content.created_at


def _tell_lost(plan: ScopePlan, head: Item | None) -> None:
    """Fill ``plan.lost``: what the chain misses, and what was newer than the state that it goes on from."""
    line, survey = plan.line, plan.survey
    if line is None or line.content is None:
        return
    told: set[str] = set()
    for item in line.chain[: line.chain.index(line.content)]:
        plan.lost.append(_lost(plan, item, "objects that it needs are lost", newer=True))
    lost_head = _lost_head(plan, line.content) if head is None else None
    if lost_head is not None:
        told.add(str(lost_head.path))
        plan.lost.append(lost_head)
    names = {item.prev_sha: item.prev for item in line.chain}
    for gap in line.gaps:
        path = names.get(gap.lost.sha256)
        within = _within(gap, path, survey.bad)
        told |= {path or "", *(bad.path.rpartition("/")[2] for bad in within)}
        plan.lost += _lost_in_gap(plan, gap, path, within)
    for bad in survey.bad:
        name = bad.path.rpartition("/")[2]
        if bad.time and name not in told and bad.code != "misplaced":
            plan.lost.append(
                LostSnapshot(
                    scope=survey.key, seq=None, sha256=None, path=name, why=bad.code, newer=bad.time > line.tip.time
                )
            )
    for sha in line.objects:
        plan.lost.append(
            LostSnapshot(scope=survey.key, seq=None, sha256=sha, path=naming.object_path(sha), why="object")
        )


def _lost_head(plan: ScopePlan, content: Item) -> LostSnapshot | None:
    """The snapshot that the pointer names, unless it is the pointer that was altered: then its file is there and good,
    and nothing is lost."""
    survey, pointer = plan.survey, plan.survey.pointer
    if pointer is None or pointer.sha256 in survey.items:
        return None
    if any(item.path == pointer.path for item in survey.items.values()):
        return None
    return LostSnapshot(
        scope=survey.key,
        seq=None,
        sha256=pointer.sha256,
        path=pointer.path,
        why=_why(survey.bad, pointer.path),
        newer=_time(pointer.path) > content.time,
    )


def _lost(plan: ScopePlan, item: Item, why: str, *, newer: bool) -> LostSnapshot:
    return LostSnapshot(scope=plan.survey.key, seq=item.seq, sha256=item.sha256, path=item.path, why=why, newer=newer)


def _lost_in_gap(plan: ScopePlan, gap: Gap, path: str | None, within: list[Bad]) -> list[LostSnapshot]:
    """The newest one in a gap, with those that nothing else tells of, then the others of which a file is left: with
    their numbers, if these are all."""
    seq = since = gap.lost.seq
    if path is not None:
        since = min(since, gap.resumes.seq + 1 if gap.resumes else 0)
    whole = seq - since == len(within)
    why = _why(plan.aside, path) if path else "missing"
    key, sha256 = plan.survey.key, gap.lost.sha256
    lost = [LostSnapshot(scope=key, seq=seq, sha256=sha256, path=path, why=why, since=seq if whole else since)]
    for number, bad in enumerate(within, 1):
        at, name = seq - number if whole else None, bad.path.rpartition("/")[2]
        lost.append(LostSnapshot(scope=key, seq=at, sha256=None, path=name, why=bad.code, since=at))
    return lost


def _within(gap: Gap, path: str | None, bad: list[Bad]) -> list[Bad]:
    """The damaged snapshots that stood in a gap, below its newest one; the newest first."""
    newest = _time(path or "")
    oldest = _time(gap.resumes.path) if gap.resumes else ""
    found = [item for item in bad if item.code != "misplaced" and oldest < item.time < newest]
    return sorted(found, key=lambda item: item.time, reverse=True)


def _all_lost(plan: ScopePlan) -> list[LostSnapshot]:
    """Every snapshot of a scope of which nothing is whole."""
    survey = plan.survey
    lost = [_lost(plan, item, "objects that it needs are lost", newer=True) for item in survey.items.values()]
    for bad in survey.bad:
        if bad.time:
            name = bad.path.rpartition("/")[2]
            lost.append(LostSnapshot(scope=survey.key, seq=None, sha256=None, path=name, why=bad.code, newer=True))
    if survey.pointer is not None and survey.pointer.sha256 not in survey.items and not lost:
        lost.append(
            LostSnapshot(
                scope=survey.key,
                seq=None,
                sha256=survey.pointer.sha256,
                path=survey.pointer.path,
                why="missing",
                newer=True,
            )
        )
    return lost


def _time(path: str) -> str:
    parts = naming.snapshot_parts(path)
    return parts[0] if parts else ""


def _why(bad: list[Bad], path: str) -> str:
    return next((item.code for item in bad if item.path.rpartition("/")[2] == path), "missing")
