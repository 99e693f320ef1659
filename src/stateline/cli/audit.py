"""``stateline scopes`` and ``show``. Both only read."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

import msgspec

from stateline.cli.command import Command, no_arguments, only_settings
from stateline.cli.options import Settings
from stateline.cli.output import Output, pretty, table
from stateline.cli.parser import Parser
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.history.log import ScopeList
    from stateline.store.snapshot import Snapshot
    from stateline.store.store import Store

REVISION = "KEY, KEY~N (N back), KEY@SEQ, or 4 or more hex digits of a sha."


def _scopes(settings: Settings) -> tuple[Store, ScopeList]:
    from stateline.history.log import list_scopes

    store = settings.store()
    return store, list_scopes(store)


def _scopes_output(settings: Settings, result: tuple[Store, ScopeList]) -> Output:
    store, found = result
    rows = [row.document() for row in found.scopes]
    return Output(
        document=found.document(),
        lines=table(rows, ["scope", "seq", "head"]) if rows else ["no scopes"],
        warnings=[*store.warnings, *(f"{finding.path}: {finding.message}" for finding in found.findings)],
        exit_code=5 if any(finding.severity == "damage" for finding in found.findings) else 0,
    )


class ShowOptions(msgspec.Struct, frozen=True):
    """Options of ``show``."""

    settings: Settings
    revision: str
    resolve: bool
    raw: bool


def _show_arguments(parser: Parser) -> None:
    parser.add_argument("revision", metavar="REV", help=REVISION)
    parser.switch("--resolve", help="Show the values of objects in place of null.")
    parser.switch("--raw", help="Print the file's exact bytes, for sha256sum.")


def show_options(flags: Namespace, settings: Settings) -> ShowOptions:
    """Turn the flags of ``show`` into options. Raises ``UsageError``."""
    if flags.raw and flags.resolve:
        raise UsageError("--raw and --resolve exclude each other", hint="give one of them")
    return ShowOptions(settings, flags.revision, flags.resolve, flags.raw)


class _Shown(msgspec.Struct, frozen=True):
    """A snapshot, its document, and warnings of the store."""

    snapshot: Snapshot
    document: dict[str, Any]
    warnings: list[str]


def _show(options: ShowOptions) -> _Shown:
    from stateline.errors import IntegrityError
    from stateline.history.revision import find

    store = options.settings.store()
    snapshot = find(store, options.revision)
    document = snapshot.envelope.document()
    if options.resolve:
        from stateline.history.diff import resolved

        try:
            document["state"] = resolved(store, snapshot.state)
        except IntegrityError as error:
            from stateline.history.declared_losses import explain_loss

            raise explain_loss(store, snapshot, error) from None
    return _Shown(snapshot, document, store.warnings)


def _show_output(options: ShowOptions, result: _Shown) -> Output:
    if options.raw:
        return Output(raw=result.snapshot.data, warnings=result.warnings)
    lines = [] if options.settings.json else pretty(result.document)
    return Output(document=result.document, lines=lines, warnings=result.warnings)


SCOPES = Command(
    help="List all scopes with their heads.",
    arguments=no_arguments,
    options=only_settings,
    run=_scopes,
    output=_scopes_output,
)
SHOW = Command(
    help="Show a snapshot as it is stored, so that `jq .state` works.",
    arguments=_show_arguments,
    options=show_options,
    run=_show,
    output=_show_output,
)
