"""Warnings of a repair: work and effects that may be repeated because snapshots are lost."""

from __future__ import annotations

from collections.abc import Iterator

from stateline.repair.plan import ScopePlan


def warnings_of(plan: ScopePlan) -> Iterator[str]:
    """Yield the warnings for the plan of one scope."""
    key = plan.key
    if plan.remove:
        name = key or plan.inventory.scope
        yield f"no state of {name} is intact, so it is set aside and the scope is absent{_new_run(key)}"
        return
    if plan.publish and key is not None and key.startswith("run:"):
        if plan.newer_lost:
            yield f"{key} continues from an older state: effects that the lost snapshots record may run again"
        elif plan.inventory.pointer is None:
            unknown = "its pointer is lost, so newer snapshots may be lost too"
            yield f"{key}: {unknown}; effects that they recorded may run again"
    if plan.orphans:
        yield _orphans(plan)


def _new_run(key: str | None) -> str:
    if key is None:
        return "; if it was a run, the next `execute` begins a new one; its effects run again"
    if key.startswith(("run:", "machine:")):
        return "; the next `execute` begins a new run; its effects run again"
    return ""


def _orphans(plan: ScopePlan) -> str:
    first, last, number = min(plan.orphans), max(plan.orphans), len(plan.orphans)
    what, verb, they = f"{number} snapshots ({first} to {last})", "are", "they record"
    if number == 1:
        what, verb, they = f"snapshot {first}", "is", "it records"
    return (
        f"{what} of {plan.key} that the head does not lead to {verb} set aside; "
        f"the work that {they} may have been repeated"
    )
