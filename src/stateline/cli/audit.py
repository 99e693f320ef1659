"""``stateline scopes``, ``log``, ``show`` and ``verify``: for auditors. All of them only read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stateline.cli.options import settings
from stateline.cli.output import coloured, emit, one_line, plain, pretty, table, warn, write

Revision = Annotated[
    str, typer.Argument(metavar="REV", help="KEY, KEY~N (N back), KEY@SEQ, or 4 or more hex digits of a sha.")
]


def scopes(ctx: typer.Context) -> int:
    """List all scopes with their heads."""
    from stateline.history.log import scopes as verb

    said = settings(ctx)
    store = said.store()
    result = verb(store)
    warn(said, [*store.warnings, *(f"{found.path}: {found.message}" for found in result.findings)])
    rows = [row.document() for row in result.scopes]
    emit(said, result.document(), table(rows, ["scope", "seq", "head"]) if rows else ["no scopes"])
    return 5 if any(found.severity == "damage" for found in result.findings) else 0


def log(
    ctx: typer.Context,
    revision: Revision,
    number: Annotated[int | None, typer.Option("-n", min=0, metavar="N", help="At most N snapshots.")] = None,
) -> int:
    """Show the snapshots from REV back to the first, newest first: what changed, and why."""
    from stateline.history.log import rows
    from stateline.history.revision import find

    said = settings(ctx)
    store = said.store()
    found = rows(store, find(store, revision), number)
    warn(said, store.warnings)
    lines = [
        f"{coloured(row.sha[:8], 'yellow')} {row.seq:>4}  {row.created_at[:19].replace('T', ' ')}  {story(row.event)}"
        for row in found
    ]
    emit(said, {"snapshots": [row.document() for row in found]}, lines)
    return 0


def show(
    ctx: typer.Context,
    revision: Revision,
    resolve: Annotated[bool, typer.Option("--resolve", help="Fill objects in, in place of null.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The file's exact bytes (pipe them into sha256sum).")] = False,
) -> int:
    """Show a snapshot: the bundle itself, so that `jq .state` works."""
    from stateline.errors import UsageError
    from stateline.history.revision import find

    said = settings(ctx)
    if raw and resolve:
        raise UsageError("--raw and --resolve exclude each other", hint="give one of them")
    store = said.store()
    snapshot = find(store, revision)
    warn(said, store.warnings)
    if raw:
        write(snapshot.data)
        return 0
    document = snapshot.envelope.document()
    if resolve:
        document["state"] = _without_refs(store.resolve(snapshot.state))
    emit(said, document, pretty(document))
    return 0


def verify(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="One scope (default: the whole store).")] = None,
) -> int:
    """Check every byte: digests, links, order, objects, permissions. Collects all findings, changes nothing."""
    from stateline.history.verify import verify as verb

    said = settings(ctx)
    store = said.store()
    report = verb(store, key)
    colours = {"damage": "red", "unsafe": "red", "warning": "yellow", "residue": "dim"}
    lines = [
        f"{coloured(found.severity, colours[found.severity])} {found.code}: "
        f"{plain(found.path) + ': ' if found.path else ''}{plain(found.message)}"
        for found in report.findings
    ]
    verdict = coloured("ok", "green") if report.ok else coloured("DAMAGED", "red")
    lines.append(
        f"{verdict}: {report.scopes} scopes, {report.snapshots} snapshots, {report.objects} objects checked; "
        f"{len(report.findings)} findings"
    )
    lines.append(report.note)
    emit(said, report.document(), lines)
    return 0 if report.ok else 5


def _without_refs(value: Any) -> Any:
    """Artifacts are bytes, not JSON: at their place stays null, and ``objects`` says what belongs there."""
    from stateline.bundle.canonical import walk
    from stateline.bundle.envelope import Ref

    return walk(value, lambda leaf: None if isinstance(leaf, Ref) else leaf)


def _turn_story(kind: str, event: dict[str, Any]) -> str:
    """A run's event: what happened, then the way that it led. What is not as the engine writes it is shown bare."""
    try:
        ways = [f"{way['from'] or ''} -> {way['to'] or 'complete'} ({way['reason']})" for way in event["transitions"]]
        error = f"; {event['error']['kind']}: {event['error']['message']}" if event.get("error") else ""
        return one_line(f"turn {event['turn']} {event['stage']} {kind}: {', '.join(ways)}{error}".rstrip(": "), 120)
    except (KeyError, TypeError):
        return one_line(event, 120)


def story(event: dict[str, Any]) -> str:
    """What an event says, in a few words."""
    kind = str(event.get("type", ""))
    if "transitions" in event:
        return _turn_story(kind, event)
    if kind == "run_started":
        return one_line(f"run {event.get('run')} started", 120)
    if kind in ("derive", "refine"):
        settings = ", ".join(f"{name} = {one_line(value, 30)}" for name, value in (event.get("settings") or {}).items())
        text = f"“{event['text']}”" if event.get("text") else ""
        return one_line(f"{kind}  {'; '.join(part for part in (text, settings) if part)}", 120)
    rest = {name: value for name, value in event.items() if name not in ("type", "durability", "started_at")}
    return one_line(f"{kind}  {one_line(rest, 100) if rest else ''}", 120)
