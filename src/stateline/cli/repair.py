"""``stateline repair``: a plan first, and its execution on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stateline.cli.options import settings
from stateline.cli.output import coloured, counted, emit, plain, warn

if TYPE_CHECKING:
    from stateline.repair.report import Action, Loss, RepairReport

_SHOWN = 20
"""How many lost snapshots are told one by one to people; JSON has them all."""

_WORDS = {
    "set_aside": ("would set aside", "set aside"),
    "put_back": ("would put back", "put back"),
    "renew": ("would make anew", "made anew"),
    "publish": ("would save", "saved"),
    "move_head": ("would move the head", "moved the head"),
    "remove_scope": ("would set the whole scope aside", "set the whole scope aside"),
}


def repair(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="One scope (default: the whole store).")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without this, only the plan is printed.")] = False,
) -> int:
    """Plan how to go on after damage; with --apply, do it. Nothing is deleted.

    What is damaged is set aside into a directory ext-repair-... of the state dir, and each scope goes on from its
    newest snapshot of which nothing is lost. What is lost is said here, and recorded in the scope's new head.

    A plan for damage exits 5; so does --apply if damage remains. 0: nothing is damaged (any more).
    """
    from stateline.service.repair import apply_repair, plan_repair

    said = settings(ctx)
    store = said.store()
    result = apply_repair(store, key, wait=said.patience) if apply else plan_repair(store, key)
    warn(said, [*store.warnings, *result.warnings])
    document = result.document()
    document["warnings"] = [*store.warnings, *result.warnings]
    emit(said, document, _lines(result, key))
    return result.exit_code


def _lines(result: RepairReport, key: str | None) -> list[str]:
    lines = [_action(action, result.applied) for action in result.actions]
    lines += [_loss(loss) for loss in result.lost[:_SHOWN]]
    if len(result.lost) > _SHOWN:
        lines.append(f"and {len(result.lost) - _SHOWN} more that are lost (--format json lists all)")
    for blocked in result.blocked:
        where = plain(blocked.scope or blocked.path or "the state dir")
        lines.append(f"{coloured('left alone', 'yellow')} {where}: {blocked.code}: {plain(blocked.message)}")
    return [*lines, _verdict(result, key)]


def _action(action: Action, applied: bool) -> str:
    words = _WORDS[action.action][applied]
    where = f" {plain(action.path)}" if action.action in ("set_aside", "put_back", "renew", "remove_scope") else ""
    scope = f" in {plain(action.scope)}" if action.scope else ""
    to = f" -> {plain(action.to)}" if action.to else ""
    return f"{words}{where}{scope}: {plain(action.why)}{to}"


def _loss(loss: Loss) -> str:
    what = "object" if loss.why == "object" else "snapshot"
    number = f" {loss.seq}" if loss.seq is not None else ""
    if loss.seq is not None and loss.since is not None and loss.since < loss.seq:
        what, number = "snapshots", f" {loss.since} to {loss.seq}"
    name = loss.sha256 or loss.path or "of unknown name"
    why = "" if loss.why == "object" else f": {plain(loss.why)}"
    scope = f" of {plain(loss.scope)}" if loss.scope else ""
    return f"{coloured('lost', 'red')} {what}{number} {plain(name)}{scope}{why}"


def _remain(number: int) -> str:
    return f"{counted(number, 'finding')} {'remains' if number == 1 else 'remain'}"


def _verdict(result: RepairReport, key: str | None) -> str:
    from shlex import quote

    of = f" {plain(quote(key))}" if key else ""
    if result.ok:
        done = "repaired" if result.applied and result.actions else "nothing is damaged"
        return f"{coloured('ok', 'green')}: {done}"
    if result.applied:
        return f"{coloured('DAMAGED', 'red')}: {_remain(len(result.findings))}; `stateline verify{of}` lists them"
    way = (
        f"`stateline repair{of} --apply` does this"
        if result.actions
        else "what is left alone keeps it from being repaired"
    )
    return f"{coloured('DAMAGED', 'red')}: nothing was changed; {way}"
