"""Plan of a repair for one scope, from reading only. ``repair.apply`` carries it out.

A scope continues from the newest snapshot of which nothing is lost. Damaged and unreachable files are set aside, and
losses are recorded: nothing is deleted, and no loss is hidden by dropping what is newer.
"""

from __future__ import annotations

import msgspec

from stateline.bundle.envelope import VERSION
from stateline.repair.inventory import DamagedFile, IntactSnapshot, ScopeInventory
from stateline.repair.lineage import Lineage, find_head, find_tip, trace
from stateline.repair.losses import OBJECTS_LOST, all_losses, find_losses, loss_of
from stateline.repair.report import Loss, Obstacle
from stateline.store.integrity import ObjectChecker
from stateline.store.store import Store


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
        plan.obstacles = [Obstacle(inventory.key, file.path, file.code, file.message) for file in inventory.obstacles]
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
    while (tip := find_tip(items, pointer)) is not None:
        line = trace(tip, items)
        if line.refused is not None:
            message = "seq or created_at do not follow, as the snapshot that names it demands"
            plan.set_aside.append(DamagedFile(f"{scope}/{line.refused.path}", "misordered", message))
            del items[line.refused.sha256]
        elif line.content is not None:
            return line
        elif len(line.chain) == len(items):
            return None
        else:
            for item in line.chain:
                plan.set_aside.append(DamagedFile(f"{scope}/{item.path}", "missing", OBJECTS_LOST))
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
        message = "the chain does not lead to it, and no crash leaves it behind"
        plan.set_aside.append(DamagedFile(f"{plan.inventory.scope}/{item.path}", "orphaned", message))
        plan.orphans.append(item.seq)
        plan.newer_aside |= line.content is not None and item.created_at > line.content.created_at
