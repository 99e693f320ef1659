"""``stateline repair``: print a plan, or carry it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stateline.cli.command import Command, fields_of
from stateline.cli.layout import hanging
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, columns, counted, plain
from stateline.cli.parser import argument, switch

if TYPE_CHECKING:
    from stateline.repair.report import Action, Loss, RepairReport

_SHOWN = 20
"""Most lost snapshots in the text; the document has all of them."""

_WORDS = {
    "set_aside": ("would set aside", "set aside"),
    "put_back": ("would put back", "put back"),
    "renew": ("would write again", "wrote again"),
    "publish": ("would save", "saved"),
    "move_head": ("would move the head", "moved the head"),
    "remove_scope": ("would set the whole scope aside", "set the whole scope aside"),
}


class RepairOptions(msgspec.Struct, frozen=True):
    """Options of ``repair``. ``key`` None is the whole store."""

    settings: Settings
    key: str | None
    apply: bool


def _run(options: RepairOptions) -> Output:
    from stateline.service.repair import apply_repair, plan_repair

    store = options.settings.store()
    if options.apply:
        result = apply_repair(store, options.key, wait=options.settings.lock_wait)
    else:
        result = plan_repair(store, options.key)
    warnings = [*store.warnings, *result.warnings]
    return Output(
        document=result.document() | {"warnings": warnings},
        lines=[part for line in _lines(result, options.key) for part in hanging(line, columns())],
        warnings=warnings,
        exit_code=result.exit_code,
    )


def _lines(result: RepairReport, key: str | None) -> list[str]:
    lines = [_action(action, result.applied) for action in result.actions]
    lines += [_loss(loss) for loss in result.lost[:_SHOWN]]
    if len(result.lost) > _SHOWN:
        lines.append(f"and {len(result.lost) - _SHOWN} more are lost (--format json lists all)")
    for blocked in result.blocked:
        where = plain(blocked.scope or blocked.path or "the state dir")
        lines.append(f"{coloured('skipped', 'yellow')} {where}: {blocked.code}: {plain(blocked.message)}")
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
    name = loss.sha256 or loss.path or "with unknown name"
    why = "" if loss.why == "object" else f": {plain(loss.why)}"
    scope = f" of {plain(loss.scope)}" if loss.scope else ""
    return f"{coloured('lost', 'red')} {what}{number} {plain(name)}{scope}{why}"


def _verdict(result: RepairReport, key: str | None) -> str:
    from shlex import quote

    of = f" {plain(quote(key))}" if key else ""
    if result.ok:
        done = "repaired" if result.applied and result.actions else "nothing is damaged"
        return f"{coloured('ok', 'green')}: {done}"
    if result.applied:
        left = f"after the repair: {counted(len(result.findings), 'finding')}"
        return f"{coloured('DAMAGED', 'red')}: {left}; `stateline verify{of}` lists them"
    follow = f"next: `stateline repair{of} --apply`" if result.actions else "see above for what prevents the repair"
    return f"{coloured('DAMAGED', 'red')}: nothing was changed; {follow}"


REPAIR = Command(
    help="""Plan the repair of damage; with --apply, do it. Deletes nothing.

Damaged files are moved into a directory ext-repair-... of the state dir. Each scope continues from its newest
snapshot of which nothing is lost. Losses are printed, and recorded in the scope's new head.

Exits 0 if nothing is damaged, or no longer; 5 for a plan, or if damage remains.""",
    arguments=[
        argument("key", nargs="?", metavar="KEY", help="One scope (default: the whole store)."),
        switch("--apply", help="Carry out the plan. Without this, it is only printed."),
    ],
    options=fields_of(RepairOptions),
    run=_run,
)
