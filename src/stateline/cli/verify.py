"""``stateline verify``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stateline.cli.command import Command
from stateline.cli.layout import hanging, labelled, wrapped
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, columns, counted, plain
from stateline.cli.parser import argument, repeatable
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.bundle.envelope import Link
    from stateline.verify.findings import Anchor, Finding, Report

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
    findings = report.findings if options.settings.verbose else _without_unreferenced(report.findings)
    lines = [line for found in findings for line in _finding_lines(found)]
    lines += _head_and_anchor_lines(report)
    lines += _verdict_lines(report)
    if any(found.severity == "damage" and found.code != "anchor" for found in report.findings):
        from shlex import quote

        key = f" {plain(quote(options.key))}" if options.key else ""
        lines += wrapped(f"next: `stateline repair{key}` prints a plan and changes nothing", columns())
    if not options.settings.quiet:
        lines += wrapped(report.note, columns())
    return Output(document=report.document(), lines=lines, exit_code=0 if report.ok else 5)


def _anchor_count(report: Report) -> str:
    """The number of anchors that were found; "" if none were given."""
    if not report.anchors:
        return ""
    found = sum(anchor.scope is not None for anchor in report.anchors)
    return f"; {found} of {counted(len(report.anchors), 'anchor')} found"


def _without_unreferenced(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with one in place of all objects that a removed run left behind."""
    from stateline.verify.findings import SHOWN, Finding

    kept = [found for found in findings if (found.severity, found.code) != ("residue", "unreferenced")]
    left = len(findings) - len(kept)
    if left:
        # Similar findings are cut off at SHOWN.
        count = counted(left, "object") if left <= SHOWN else f"more than {SHOWN} objects"
        message = f"{count} of no snapshot: left by a removed scope or a crash, or being saved (-v lists them)"
        kept.append(Finding("residue", "unreferenced", None, "", message))
    return kept


def _finding_lines(found: Finding) -> list[str]:
    """Severity, code, scope, path and message; without the path if the message has it."""
    parts = [found.scope, None if found.path in found.message else found.path, found.message]
    text = f"{found.code}: {': '.join(part for part in parts if part)}"
    first, *more = hanging(plain(f"{found.severity} {text}"), columns())
    return [coloured(found.severity, _COLOURS[found.severity]) + first[len(found.severity) :], *more]


def _head_and_anchor_lines(report: Report) -> list[str]:
    """The heads, to be kept elsewhere as anchors, and the places where anchors were found."""
    from stateline.verify.findings import SHOWN

    heads = [line for head in report.heads for line in _digest_lines("head", head)]
    if len(report.heads) > SHOWN:
        heads = [f"{len(report.heads)} heads: `stateline verify --format json` lists them"]
    return heads + [line for anchor in report.anchors if anchor.scope for line in _digest_lines("anchor", anchor)]


def _digest_lines(word: str, place: Link | Anchor) -> list[str]:
    """A whole digest, as an anchor must be, and below it the snapshot."""
    return [f"{word} {place.sha256}", *labelled("  ", plain(f"{place.scope}@{place.seq}"), columns())]


def _verdict_lines(report: Report) -> list[str]:
    """The verdict, and the counts of what was checked."""
    verdict, but, counts = _verdict(report)
    text = f"{verdict}{f', {but}' if but else ''}: {counts}"
    text += f"{counted(report.scopes, 'scope')}, {counted(report.snapshots, 'snapshot')}, "
    text += f"{counted(report.objects, 'object')} checked; {counted(len(report.findings), 'finding')}"
    first, *more = wrapped(text + _anchor_count(report), columns())
    rest = first[len(verdict) :].replace(but, coloured(but, "red"), 1) if but else first[len(verdict) :]
    return [coloured(verdict, "green" if report.ok else "red") + rest, *more]


def _verdict(report: Report) -> tuple[str, str, str]:
    """The beginning of the verdict: ok or not, the restriction, and its counts."""
    if not report.ok:
        return "DAMAGED", "", ""
    unsafe = sum(finding.severity == "unsafe" for finding in report.findings)
    forked = sum(finding.code == "forked" for finding in report.findings)
    words, counts = [], ""
    if unsafe:
        from stateline.verify.findings import SHOWN

        words.append("unsafe")
        # Similar findings are cut off at SHOWN.
        counts += f"{counted(unsafe, 'place') if unsafe <= SHOWN else f'more than {SHOWN} places'}; "
    if forked:
        words.append("forked")
        counts = counts.replace("; ", ", ") + f"{counted(forked, 'snapshot')} beside the chain; "
    return "ok", "but " + " and ".join(words) if words else "", counts


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
