"""Losses to report for one scope: snapshots missing from its chain, and lost objects."""

from __future__ import annotations

from stateline.bundle import naming
from stateline.bundle.repair_record import Gap
from stateline.repair.choose_head import Lineage
from stateline.repair.inventory import DamagedFile, IntactSnapshot, ScopeInventory
from stateline.repair.report import Loss


def loss_of(inventory: ScopeInventory, item: IntactSnapshot) -> Loss:
    """Return the loss of a snapshot above the state that continues: its objects are lost."""
    why = "objects that it needs are lost"
    return Loss(scope=inventory.key, seq=item.seq, sha256=item.sha256, path=item.path, why=why, newer=True)


def find_losses(
    inventory: ScopeInventory, line: Lineage, content: IntactSnapshot, set_aside: list[DamagedFile], *, head_lost: bool
) -> list[Loss]:
    """Return what the chain ``line`` misses, and what was newer than ``content``, from which the scope continues."""
    losses = [loss_of(inventory, item) for item in line.chain[: line.chain.index(content)]]
    reported: set[str] = set()
    if head_lost and (lost_head := _lost_head(inventory, content)) is not None:
        reported.add(str(lost_head.path))
        losses.append(lost_head)
    names = {item.prev_sha: item.prev for item in line.chain}
    for gap in line.gaps:
        path = names.get(gap.lost.sha256)
        within = _damaged_in_gap(gap, path, inventory.damaged)
        reported |= {path or "", *(_name(file) for file in within)}
        losses += _gap_losses(inventory.key, gap, path, within, set_aside)
    for file in inventory.damaged:
        if file.time and file.code != "misplaced" and _name(file) not in reported:
            losses.append(_damaged_loss(inventory, file, newer=file.time > line.tip.time))
    return losses + [
        Loss(scope=inventory.key, seq=None, sha256=sha, path=naming.object_path(sha), why="object")
        for sha in line.objects
    ]


def all_losses(inventory: ScopeInventory) -> list[Loss]:
    """Return the losses of a scope without an intact state: every snapshot."""
    losses = [loss_of(inventory, item) for item in inventory.items.values()]
    losses += [_damaged_loss(inventory, file, newer=True) for file in inventory.damaged if file.time]
    pointer = inventory.pointer
    if pointer is not None and pointer.sha256 not in inventory.items and not losses:
        losses.append(
            Loss(scope=inventory.key, seq=None, sha256=pointer.sha256, path=pointer.path, why="missing", newer=True)
        )
    return losses


def _damaged_loss(inventory: ScopeInventory, file: DamagedFile, *, newer: bool) -> Loss:
    return Loss(scope=inventory.key, seq=None, sha256=None, path=_name(file), why=file.code, newer=newer)


def _lost_head(inventory: ScopeInventory, content: IntactSnapshot) -> Loss | None:
    """Return the loss of the snapshot that the pointer names; None if only the pointer was altered."""
    pointer = inventory.pointer
    if pointer is None or pointer.sha256 in inventory.items:
        return None
    if any(item.path == pointer.path for item in inventory.items.values()):
        return None
    return Loss(
        scope=inventory.key,
        seq=None,
        sha256=pointer.sha256,
        path=pointer.path,
        why=_reason(inventory.damaged, pointer.path),
        newer=_time(pointer.path) > content.time,
    )


def _gap_losses(
    key: str | None, gap: Gap, path: str | None, within: list[DamagedFile], set_aside: list[DamagedFile]
) -> list[Loss]:
    """Return the newest snapshot in a gap, with those of which nothing is left, then each with a damaged file.

    The latter get their numbers only if there is a file for every number.
    """
    seq = since = gap.lost.seq
    if path is not None:
        since = min(since, gap.resumes.seq + 1 if gap.resumes else 0)
    numbered = seq - since == len(within)
    why = _reason(set_aside, path) if path else "missing"
    first = seq if numbered else since
    losses = [Loss(scope=key, seq=seq, sha256=gap.lost.sha256, path=path, why=why, since=first)]
    for number, file in enumerate(within, 1):
        at = seq - number if numbered else None
        losses.append(Loss(scope=key, seq=at, sha256=None, path=_name(file), why=file.code, since=at))
    return losses


def _damaged_in_gap(gap: Gap, path: str | None, damaged: list[DamagedFile]) -> list[DamagedFile]:
    """Return the damaged snapshots that were in a gap, below its newest one; the newest first."""
    newest = _time(path or "")
    oldest = _time(gap.resumes.path) if gap.resumes else ""
    found = [file for file in damaged if file.code != "misplaced" and oldest < file.time < newest]
    return sorted(found, key=lambda file: file.time, reverse=True)


def _name(file: DamagedFile) -> str:
    return file.path.rpartition("/")[2]


def _time(path: str) -> str:
    parts = naming.snapshot_parts(path)
    return parts[0] if parts else ""


def _reason(damaged: list[DamagedFile], path: str) -> str:
    return next((file.code for file in damaged if _name(file) == path), "missing")
