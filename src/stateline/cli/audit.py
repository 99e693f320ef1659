"""``stateline scopes`` and ``show``. Both only read."""

from __future__ import annotations

from argparse import Namespace

import msgspec

from stateline.cli.command import Command, only_settings
from stateline.cli.layout import DIGITS, table, wrapped
from stateline.cli.options import Settings
from stateline.cli.output import Output, columns, one_line, plain, pretty
from stateline.cli.parser import argument, switch
from stateline.errors import IntegrityError, UsageError

REVISION = "KEY, KEY~N (N back), KEY@SEQ, or 4 or more hex digits of a sha."


def _scopes(settings: Settings) -> Output:
    from stateline.history.log import list_scopes

    store = settings.store()
    found = list_scopes(store)
    rows = [[one_line(row.scope, 1 << 20), str(row.seq), row.head[:DIGITS]] for row in found.scopes]
    none = wrapped(plain(f"no scopes in {store.backend.describe()}"), columns())
    return Output(
        document=found.document(),
        lines=table(["scope", "seq", "head"], rows, columns()) if rows else none,
        warnings=[*store.warnings, *(f"{finding.path}: {finding.message}" for finding in found.findings)],
        exit_code=5 if any(finding.severity == "damage" for finding in found.findings) else 0,
    )


class ShowOptions(msgspec.Struct, frozen=True):
    """Options of ``show``."""

    settings: Settings
    revision: str
    resolve: bool
    raw: bool


def show_options(flags: Namespace, settings: Settings) -> ShowOptions:
    """Turn the flags of ``show`` into options. Raises ``UsageError``."""
    if flags.raw and flags.resolve:
        raise UsageError("--raw and --resolve exclude each other", hint="give one of them")
    return ShowOptions(settings, flags.revision, flags.resolve, flags.raw)


def _show(options: ShowOptions) -> Output:
    from stateline.history.revision import find

    store = options.settings.store()
    snapshot = find(store, options.revision)
    if options.raw:
        return Output(raw=snapshot.data, warnings=store.warnings)
    document = snapshot.envelope.document()
    if options.resolve:
        from stateline.history.diff import resolved

        try:
            document["state"] = resolved(store, snapshot.state)
        except IntegrityError as error:
            from stateline.history.declared_losses import explain_loss

            raise explain_loss(store, snapshot, error) from None
    return Output(document=document, lines=[] if options.settings.json else pretty(document), warnings=store.warnings)


SCOPES = Command(
    help="List all scopes with their heads.",
    options=only_settings,
    run=_scopes,
)
SHOW = Command(
    help="Show a snapshot as it is stored, so that `jq .state` works.",
    arguments=[
        argument("revision", metavar="REV", help=REVISION),
        switch("--resolve", help="Show the values of objects in place of null."),
        switch("--raw", help="Print the file's exact bytes, for sha256sum."),
    ],
    options=show_options,
    run=_show,
)
