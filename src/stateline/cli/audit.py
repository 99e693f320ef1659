"""``stateline scopes``, ``show`` and ``verify``: for auditors. All of them only read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stateline.cli.options import settings
from stateline.cli.output import coloured, counted, emit, plain, pretty, table, warn, write

if TYPE_CHECKING:
    from stateline.verify.findings import Finding, Report

Revision = Annotated[
    str, typer.Argument(metavar="REV", help="KEY, KEY~N (N back), KEY@SEQ, or 4 or more hex digits of a sha.")
]


def scopes(ctx: typer.Context) -> int:
    """List all scopes with their heads."""
    from stateline.history.log import list_scopes

    said = settings(ctx)
    store = said.store()
    result = list_scopes(store)
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
            from stateline.history.declared_losses import explain_loss

            raise explain_loss(store, snapshot, error) from None
    emit(said, document, pretty(document))
    return 0


def verify(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="One scope (default: the whole store).")] = None,
    anchors: Annotated[
        list[str] | None,
        typer.Option("--anchor", metavar="SHA|@FILE", help="A head's whole sha, kept elsewhere; a chain must have it."),
    ] = None,
) -> int:
    """Check every byte: digests, links, order, objects, permissions. Collects all findings, changes nothing.

    Of the severities only damage makes it exit 5. With unsafe (others may change a place), warning and residue (what a
    crash leaves) it exits 0. Look into forked, and into residue that names another snapshot in its place: they may hold
    what was acknowledged, if a lock does not hold. lost is what a repair has recorded. Other residue is harmless.

    From inside nobody can see that a chain's end was cut off cleanly, that a chain was written anew, that a scope was
    taken away whole or the store exchanged. So keep the heads' shas elsewhere, and give them to --anchor (repeatable;
    @FILE: one a line): one that is on no chain is damage.
    """
    from stateline.verify.checker import verify as verb

    said = settings(ctx)
    store = said.store()
    report = verb(store, key, _given(anchors or []))
    colours = {"damage": "red", "unsafe": "red", "warning": "yellow", "residue": "dim"}
    lines = [
        f"{coloured(found.severity, colours[found.severity])} {found.code}: {plain(_told(found))}"
        for found in report.findings
    ]
    lines += _moorings(report)
    verdict = _verdict(report)
    lines.append(
        f"{verdict}{counted(report.scopes, 'scope')}, {counted(report.snapshots, 'snapshot')}, "
        f"{counted(report.objects, 'object')} checked; {counted(len(report.findings), 'finding')}{_found(report)}"
    )
    if any(found.severity == "damage" and found.code != "anchor" for found in report.findings):
        from shlex import quote

        lines.append(
            f"`stateline repair{f' {plain(quote(key))}' if key else ''}` plans how to go on; it changes nothing yet"
        )
    if not said.quiet:
        lines.append(report.note)
    emit(said, report.document(), lines)
    return 0 if report.ok else 5


def _given(words: list[str]) -> list[str]:
    """The anchors of ``--anchor SHA|@FILE``. Raises ``UsageError`` for a file that cannot be read or holds none."""
    from stateline.errors import UsageError

    anchors: list[str] = []
    for word in words:
        if not word.startswith("@"):
            anchors.append(word)
            continue
        try:
            with open(word[1:], encoding="utf-8") as file:
                lines = [line.strip() for line in file if line.strip()]
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the anchors {word!r}: {error}", hint="check the path after @") from None
        if not lines:
            # Nothing to look for would look like all found.
            raise UsageError(f"there are no anchors in {word!r}", hint="it must hold a sha on each line")
        anchors += lines
    return anchors


def _found(report: Report) -> str:
    """How many of the anchors that were given are on a chain; "" where none were."""
    if not report.anchors:
        return ""
    found = sum(anchor.scope is not None for anchor in report.anchors)
    return f"; {found} of {counted(len(report.anchors), 'anchor')} found"


def _moorings(report: Report) -> list[str]:
    """The heads, for an auditor to keep elsewhere, and where the anchors are that were given. They are what the verdict
    is about, so they stand beside it on stdout."""
    from stateline.verify.findings import SHOWN

    heads = [f"head {head.sha256} {plain(head.scope)}@{head.seq}" for head in report.heads]
    if len(heads) > SHOWN:
        heads = [f"{len(heads)} heads: `stateline scopes` and --format json list them"]
    anchors = [anchor for anchor in report.anchors if anchor.scope is not None]
    return heads + [f"anchor {anchor.sha256} {plain(anchor.scope or '')}@{anchor.seq}" for anchor in anchors]


def _told(found: Finding) -> str:
    """Where and what, the path once: most messages name it."""
    parts = [found.scope, None if found.path in found.message else found.path, found.message]
    return ": ".join(part for part in parts if part)


def _verdict(report: Report) -> str:
    """The beginning of the last line, in which counts follow."""
    if not report.ok:
        return f"{coloured('DAMAGED', 'red')}: "
    unsafe = sum(finding.severity == "unsafe" for finding in report.findings)
    forked = sum(finding.code == "forked" for finding in report.findings)
    words, counts = [], []
    if unsafe:
        from stateline.verify.findings import SHOWN

        words.append("unsafe")
        # Of many alike only the first are told.
        counts.append(counted(unsafe, "place") if unsafe <= SHOWN else f"more than {SHOWN} places")
    if forked:
        words.append("forked")
        counts.append(f"{counted(forked, 'snapshot')} beside the chain")
    if not words:
        return f"{coloured('ok', 'green')}: "
    return f"{coloured('ok', 'green')}, {coloured('but ' + ' and '.join(words), 'red')}: {', '.join(counts)}; "
