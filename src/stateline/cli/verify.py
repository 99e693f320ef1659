"""``stateline verify``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

import msgspec

from stateline.cli.command import Command
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, counted, plain
from stateline.cli.parser import argument, repeatable
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.verify.findings import Finding, Report

_COLOURS = {"damage": "red", "unsafe": "red", "warning": "yellow", "residue": "dim"}


class VerifyOptions(msgspec.Struct, frozen=True):
    """Options of ``verify``. ``key`` None is the whole store; ``anchors`` are whole shas."""

    settings: Settings
    key: str | None
    anchors: list[str]


def verify_options(flags: Namespace, settings: Settings) -> VerifyOptions:
    """Turn the flags of ``verify`` into options. Reads files of anchors. Raises ``UsageError``."""
    return VerifyOptions(settings, flags.key, [anchor for word in flags.anchor for anchor in _anchors(word)])


def _anchors(word: str) -> list[str]:
    """The anchors of one ``--anchor SHA|@FILE``. Raises ``UsageError``."""
    if not word.startswith("@"):
        return [word]
    try:
        with open(word[1:], encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the anchors {word!r}: {error}", hint="check the path after @") from None
    if not lines:
        # Without anchors the report would read as if all had been found.
        raise UsageError(f"there are no anchors in {word!r}", hint="the file must hold a sha on each line")
    return lines


def _run(options: VerifyOptions) -> Output:
    from stateline.verify.checker import verify

    report = verify(options.settings.store(), options.key, options.anchors)
    lines = [
        f"{coloured(found.severity, _COLOURS[found.severity])} {found.code}: {plain(_described(found))}"
        for found in report.findings
    ]
    lines += _head_and_anchor_lines(report)
    lines.append(
        f"{_verdict(report)}{counted(report.scopes, 'scope')}, {counted(report.snapshots, 'snapshot')}, "
        f"{counted(report.objects, 'object')} checked; {counted(len(report.findings), 'finding')}"
        f"{_anchor_count(report)}"
    )
    if any(found.severity == "damage" and found.code != "anchor" for found in report.findings):
        from shlex import quote

        key = f" {plain(quote(options.key))}" if options.key else ""
        lines.append(f"next: `stateline repair{key}` prints a plan and changes nothing")
    if not options.settings.quiet:
        lines.append(report.note)
    return Output(document=report.document(), lines=lines, exit_code=0 if report.ok else 5)


def _anchor_count(report: Report) -> str:
    """The number of anchors that were found; "" if none were given."""
    if not report.anchors:
        return ""
    found = sum(anchor.scope is not None for anchor in report.anchors)
    return f"; {found} of {counted(len(report.anchors), 'anchor')} found"


def _head_and_anchor_lines(report: Report) -> list[str]:
    """The heads, to be kept elsewhere as anchors, and the places where anchors were found."""
    from stateline.verify.findings import SHOWN

    heads = [f"head {head.sha256} {plain(head.scope)}@{head.seq}" for head in report.heads]
    if len(heads) > SHOWN:
        heads = [f"{len(heads)} heads: `stateline scopes` and --format json list them"]
    anchors = [anchor for anchor in report.anchors if anchor.scope is not None]
    return heads + [f"anchor {anchor.sha256} {plain(anchor.scope or '')}@{anchor.seq}" for anchor in anchors]


def _described(found: Finding) -> str:
    """Scope, path and message; without the path if the message has it."""
    parts = [found.scope, None if found.path in found.message else found.path, found.message]
    return ": ".join(part for part in parts if part)


def _verdict(report: Report) -> str:
    """The beginning of the last line; counts follow."""
    if not report.ok:
        return f"{coloured('DAMAGED', 'red')}: "
    unsafe = sum(finding.severity == "unsafe" for finding in report.findings)
    forked = sum(finding.code == "forked" for finding in report.findings)
    words, counts = [], []
    if unsafe:
        from stateline.verify.findings import SHOWN

        words.append("unsafe")
        # Similar findings are cut off at SHOWN.
        counts.append(counted(unsafe, "place") if unsafe <= SHOWN else f"more than {SHOWN} places")
    if forked:
        words.append("forked")
        counts.append(f"{counted(forked, 'snapshot')} beside the chain")
    if not words:
        return f"{coloured('ok', 'green')}: "
    return f"{coloured('ok', 'green')}, {coloured('but ' + ' and '.join(words), 'red')}: {', '.join(counts)}; "


VERIFY = Command(
    help="""Check every byte: digests, links, order, objects, permissions.

Collects all findings and changes nothing. Only findings of severity damage make it exit 5. It exits 0 with unsafe
(other users may change a path), warning, and residue (left by a crash). Look into forked, and into residue that
names another snapshot in its place: if a lock failed, they may hold acknowledged work. lost was recorded by a
repair. Other residue is harmless.

A store cannot show from inside that the end of a chain was cut off cleanly, that a chain was rewritten, that a
whole scope was removed, or that the store was exchanged. Keep the shas of the heads elsewhere and pass them with
--anchor (@FILE: one on each line): an anchor that no chain contains is damage.""",
    arguments=[
        argument("key", nargs="?", metavar="KEY", help="One scope (default: the whole store)."),
        repeatable("--anchor", "SHA|@FILE", "A head's whole sha, kept elsewhere, that a chain must contain"),
    ],
    options=verify_options,
    run=_run,
)
