"""A context for people: what was done to it, and its content."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stateline.cli.call_options import shows_progress
from stateline.cli.options import Settings
from stateline.cli.output import Output, counted, notify, one_line

if TYPE_CHECKING:
    from stateline.contexts.prepare import Prepared

_WORDS = {"derive": "derived", "refine": "refined", "restore": "exists, unchanged"}


def context_output(settings: Settings, prepared: Prepared) -> Output:
    """The output of a call that was about a context only."""
    from stateline.service.outcome import context_outcome

    outcome = context_outcome(prepared)
    if settings.ephemeral:
        outcome.warnings.append("the context was not kept (--ephemeral)")
    return Output(document=outcome.document(), lines=context_lines(prepared), warnings=outcome.warnings)


def context_lines(prepared: Prepared) -> list[str]:
    """The action, the head, and the content."""
    now = prepared.effective
    lines = [f"{prepared.scope} {_WORDS[prepared.action]} (seq {prepared.head.seq})"]
    lines.append(f"  head:   {prepared.head.sha256}")
    if prepared.action == "restore":
        return lines
    if now.system:
        lines.append(f"  system: {one_line(now.system, 100)}")
    if now.developer:
        newest = one_line(now.developer[-1], 60)
        lines.append(f"  developer: {counted(len(now.developer), 'instruction')}, the last: {newest}")
    if now.settings:
        lines.append(
            f"  settings: {', '.join(f'{name} = {one_line(now.settings[name], 40)}' for name in now.settings)}"
        )
    return lines


def progress(settings: Settings, *, played: bool) -> Callable[[str], None]:
    """A function that reports a call of a model, or with ``played`` of a recording: it may take a while."""

    def began(purpose: str) -> None:
        if shows_progress(settings):
            notify(
                settings,
                f"{'playing back the recording' if played else 'asking the model'} to {purpose} the context ...",
            )

    return began
