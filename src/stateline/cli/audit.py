"""``stateline scopes`` and ``show``. Both only read."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

import msgspec

from stateline.cli.command import Command, only_settings
from stateline.cli.layout import DIGITS, table, wrapped
from stateline.cli.options import Settings
from stateline.cli.output import Output, columns, one_line, plain, pretty
from stateline.cli.parser import argument, switch
from stateline.errors import IntegrityError, NotFoundError, RequestError, UsageError

if TYPE_CHECKING:
    from stateline.store.snapshot import Snapshot
    from stateline.store.store import Store

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
    store = options.settings.store()
    snapshot = _found(store, options.revision)
    if isinstance(snapshot, bytes):
        return Output(raw=snapshot) if options.raw else _object(options, snapshot)
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


def _found(store: Store, revision: str) -> Snapshot | bytes:
    """The snapshot of a revision, or what else a printed digest names."""
    from stateline.history.revision import find

    try:
        return find(store, revision)
    except NotFoundError:
        from stateline.service.digests import find_digest

        found = find_digest(store, revision)
        if found is None:
            raise
        return found


def _object(options: ShowOptions, data: bytes) -> Output:
    """An object that a digest names: JSON, or the text of an artifact."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        message = f"{options.revision} is an artifact that is not text"
        raise RequestError(message, hint=f"`stateline show {options.revision} --raw` prints its bytes") from None
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return Output(document=text, lines=plain(text.removesuffix("\n")).split("\n"))
    return Output(document=document, lines=[] if options.settings.json else pretty(document))


SCOPES = Command(
    help="List all scopes with their heads.",
    options=only_settings,
    run=_scopes,
)
SHOW = Command(
    help="""Show a snapshot as it is stored, so that `jq .state` works.

REV may also be the digest of an object, of a scope's key or of a context's state, as other commands print them.""",
    arguments=[
        argument("revision", metavar="REV", help=REVISION),
        switch("--resolve", help="Show the values of objects in place of null."),
        switch("--raw", help="Print the file's exact bytes, for sha256sum."),
    ],
    options=show_options,
    run=_show,
)
