"""``stateline scopes``, ``show`` and ``verify``: for auditors. All of them only read."""

from __future__ import annotations

from typing import Annotated

import typer

from stateline.cli.options import settings
from stateline.cli.output import coloured, emit, plain, pretty, table, warn, write

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


def show(
    ctx: typer.Context,
    revision: Revision,
    resolve: Annotated[bool, typer.Option("--resolve", help="Fill objects in, in place of null.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The file's exact bytes (pipe them into sha256sum).")] = False,
) -> int:
    """Show a snapshot: the bundle itself, so that `jq .state` works."""
    from stateline.errors import IntegrityError, UsageError
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
        from stateline.history.diff import resolved

        try:
            document["state"] = resolved(store, snapshot.state)
        except IntegrityError as error:
            from stateline.history.losses import explained

            raise explained(store, snapshot, error) from None
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
    if not report.ok:
        lines.append(f"`stateline repair{f' {plain(key)}' if key else ''}` plans how to go on; it changes nothing yet")
    lines.append(report.note)
    emit(said, report.document(), lines)
    return 0 if report.ok else 5
