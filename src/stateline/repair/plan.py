"""Plan of a repair, from reading only. ``repair.apply`` carries it out.

A scope continues from the newest snapshot of which nothing is lost. Damaged and unreachable files are set aside, and
losses are recorded: nothing is deleted, and no loss is hidden by dropping what is newer.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stateline.bundle import naming
from stateline.bundle.envelope import VERSION
from stateline.errors import StatelineError, UnsafePathError
from stateline.repair.choose_head import Lineage, choose_head, find_head, trace
from stateline.repair.inventory import DamagedFile, IntactSnapshot, ScopeInventory
from stateline.repair.losses import all_losses, find_losses, loss_of
from stateline.repair.report import Loss, Obstacle
from stateline.store.integrity import ObjectChecker, digest_of, wrong_kind
from stateline.store.protocol import BlobMissingError
from stateline.store.store import Store
from stateline.verify.findings import Finding


class ScopePlan(msgspec.Struct, kw_only=True):
    """Plan for one scope. ``line`` is the chain that continues, None if nothing of it can.

    ``publish``: a snapshot must be appended. ``remove``: the scope is set aside whole. ``orphans`` are the numbers of
    intact snapshots that are set aside because nothing leads to them, ``newer_aside`` whether one of them is newer than
    the state that continues.
    """

    inventory: ScopeInventory
    set_aside: list[DamagedFile]
    lost: list[Loss] = []
    line: Lineage | None = None
    orphans: list[int] = []
    newer_aside: bool = False
    publish: bool = False
    remove: bool = False
    obstacles: list[Obstacle] = []

    @property
    def key(self) -> str | None:
        """The scope's key; None where no intact snapshot tells it."""
        return self.inventory.key

    @property
    def newer_lost(self) -> bool:
        """True if the scope continues from an older state than it had."""
        return any(loss.newer for loss in self.lost)

    @property
    def in_doubt(self) -> bool:
        """True if the state that continues may already have been built upon.

        Newer snapshots are lost or set aside, or the pointer that named the head is gone.
        """
        return self.newer_lost or self.newer_aside or self.inventory.pointer is None


def plan_scope(store: Store, scope: str, objects: ObjectChecker) -> ScopePlan:
    """Plan the repair of the scope with that hash. Raises ``UnsafePathError`` or ``StorageError``."""
    inventory = ScopeInventory(store, scope, objects)
    plan = ScopePlan(inventory=inventory, set_aside=[*inventory.damaged])
    if inventory.obstacles:
        plan.obstacles = [msgspec.structs.replace(found, scope=inventory.key) for found in inventory.obstacles]
        return plan
    if _never_acknowledged(inventory):
        return plan
    items = dict(inventory.items)
    line = plan.line = _choose_line(items, plan)
    if line is None or line.content is None:
        some = inventory.items or inventory.damaged_pointer or inventory.pointer or _has_snapshots(inventory.damaged)
        plan.remove = bool(some)
        plan.lost += all_losses(inventory)
        return plan
    if line.tip.version != VERSION:
        message = f"the newest intact snapshot is of format version {line.tip.version}; it was left untouched"
        plan.obstacles.append(Obstacle(inventory.key, f"{scope}/{line.tip.path}", "newer_version", message, 1))
        return plan
    _set_orphans_aside(items, line, plan)
    head = find_head(inventory.items, inventory.pointer)
    plan.lost += find_losses(inventory, line, line.content, plan.set_aside, head_lost=head is None)
    moved = head is None or head.sha256 != line.tip.sha256
    plan.publish = moved or plan.newer_lost or bool(line.gaps or line.objects)
    return plan


def _has_snapshots(damaged: list[DamagedFile]) -> bool:
    return any(file.time for file in damaged)


def _never_acknowledged(inventory: ScopeInventory) -> bool:
    """Return whether this is what a crash leaves of a first save, perhaps with foreign files beside it."""
    no_pointer = inventory.pointer is None and inventory.damaged_pointer is None
    only_first = not any(item.seq or item.lost for item in inventory.items.values())
    return no_pointer and only_first and not _has_snapshots(inventory.damaged)


def _choose_line(items: dict[str, IntactSnapshot], plan: ScopePlan) -> Lineage | None:
    """Choose the chain that continues, and remove from ``items`` what is set aside on the way.

    A snapshot that is out of order below its child is damaged. A chain without an intact state is of no use. In both
    cases the remaining snapshots are tried.
    """
    scope, pointer = plan.inventory.scope, plan.inventory.pointer
    while (tip := choose_head(items, pointer)) is not None:
        line = trace(tip, items)
        if line.refused is not None:
            plan.set_aside.append(DamagedFile(f"{scope}/{line.refused.path}", "misordered"))
            del items[line.refused.sha256]
        elif line.content is not None:
            return line
        elif len(line.chain) == len(items):
            return None
        else:
            for item in line.chain:
                plan.set_aside.append(DamagedFile(f"{scope}/{item.path}", "missing"))
                plan.lost.append(loss_of(plan.inventory, item))
                del items[item.sha256]
    return None


def _set_orphans_aside(items: dict[str, IntactSnapshot], line: Lineage, plan: ScopePlan) -> None:
    """Set aside the intact snapshots that are not on the chain, but for crash residue."""
    chain = {item.sha256: item for item in line.chain}
    parents = {item.prev_sha for item in items.values()}
    for item in items.values():
        if item.sha256 in chain:
            continue
        parent = chain.get(item.prev_sha or "")
        follows = parent is not None and item.follows(parent) and item.prev == parent.path
        first = item.seq == 0 and item.origin is None
        if (follows or first) and item.sha256 not in parents and not item.lost:
            continue
        plan.set_aside.append(DamagedFile(f"{plan.inventory.scope}/{item.path}", "orphaned"))
        plan.orphans.append(item.seq)
        plan.newer_aside |= line.content is not None and item.created_at > line.content.created_at


def warnings_of(plan: ScopePlan) -> Iterator[str]:
    """Yield warnings for the plan of one scope: work and effects that may be repeated because snapshots are lost."""
    key = plan.key
    if plan.remove:
        again = ""
        if key is None:
            again = "; if it was a run, the next `execute` begins a new one; its effects run again"
        elif key.startswith(("run:", "machine:")):
            again = "; the next `execute` begins a new run; its effects run again"
        yield f"no state of {key or plan.inventory.scope} is intact, so it is set aside and the scope is absent{again}"
        return
    if plan.publish and key is not None and key.startswith("run:"):
        if plan.newer_lost:
            yield f"{key} continues from an older state: effects that the lost snapshots record may run again"
        elif plan.inventory.pointer is None:
            unknown = "its pointer is lost, so newer snapshots may be lost too"
            yield f"{key}: {unknown}; effects that they recorded may run again"
    if plan.orphans:
        first, last, number = min(plan.orphans), max(plan.orphans), len(plan.orphans)
        what = f"snapshot {first}" if number == 1 else f"{number} snapshots ({first} to {last})"
        aside = f"{what} of {key} that the head does not lead to: set aside"
        yield f"{aside}; the work recorded there may have been repeated"


class StorePlan(msgspec.Struct, kw_only=True):
    """Plan for everything outside the scopes, and the hashes of the scopes to examine.

    ``renew`` is the code of damage at ``stateline.json``, "" for none.
    """

    renew: str = ""
    set_aside: list[DamagedFile] = []
    scopes: list[str] = []
    obstacles: list[Obstacle] = []


def plan_store(store: Store, damage: list[Finding], key: str | None) -> StorePlan:
    """Plan from the damage that ``verify`` found. With ``key`` only that scope is examined."""
    plan = StorePlan()
    scopes: dict[str, None] = {}
    for found in damage:
        top = found.path.partition("/")[0]
        if top == naming.OBJECTS:
            _plan_object(store, found, plan)
            if key is None:
                # Any scope may name the object, and must then declare its loss on its own chain.
                scopes.update(dict.fromkeys(sorted(store.backend.scopes())))
        elif top == naming.STORE_FILE and found.code != "unreadable":
            plan.renew = found.code
        elif naming.is_sha256(top) and (found.code != "not_regular" or found.path != top):
            scopes[top] = None
        elif not found.path or found.code == "unreadable":
            # The state dir itself is never moved.
            plan.obstacles.append(Obstacle(found.scope, found.path, found.code, found.message))
        else:
            plan.set_aside.append(DamagedFile(found.path, found.code))
    if key is not None:
        scopes = {naming.scope_hash(key): None} if damage else {}
    by_path = {file.path: file for file in plan.set_aside}
    plan.scopes = [scope for scope in scopes if scope not in by_path]
    plan.set_aside = list(by_path.values())
    _keep_objects_that_may_be_needed(store, plan)
    return plan


def _keep_objects_that_may_be_needed(store: Store, plan: StorePlan) -> None:
    """Leave damaged objects in place while a scope cannot be repaired.

    Nobody knows which objects such a scope names, and it cannot declare their loss.
    """
    objects = [
        file for file in plan.set_aside if file.path.startswith(f"{naming.OBJECTS}/") and file.code != "foreign_file"
    ]
    if not objects or not _some_scope_is_blocked(store, {file.path for file in plan.set_aside}):
        return
    message = "a scope that cannot be repaired now may need it; it was left in place"
    plan.obstacles += [Obstacle(None, file.path, file.code, message) for file in objects]
    plan.set_aside = [file for file in plan.set_aside if file not in objects]


def _some_scope_is_blocked(store: Store, set_aside: set[str]) -> bool:
    objects = ObjectChecker(store.backend)
    for scope in sorted(store.backend.scopes()):
        try:
            if scope not in set_aside and plan_scope(store, scope, objects).obstacles:
                return True
        except StatelineError:
            return True
    return False


def _plan_object(store: Store, found: Finding, plan: StorePlan) -> None:
    """Plan to set a damaged object aside. For an intact one the snapshot with the false claim is at fault."""
    if found.code == "unreadable":
        plan.obstacles.append(Obstacle(found.scope, found.path, found.code, found.message))
        return
    directory = found.path.count("/") < 2 and found.code == "not_regular"
    in_the_way = wrong_kind(store.backend, found.path + "/" if directory else found.path)
    if in_the_way is not None:
        plan.set_aside.append(DamagedFile(in_the_way, "not_regular"))
        return
    sha = found.path.rpartition("/")[2]
    if naming.is_sha256(sha) and naming.object_path(sha) == found.path:
        try:
            if digest_of(store.backend, found.path) == sha:
                return
        except BlobMissingError:
            return
        except UnsafePathError as error:
            plan.obstacles.append(Obstacle.of(error, found.scope, found.path))
            return
        except StatelineError:
            pass
    plan.set_aside.append(DamagedFile(found.path, found.code))
