"""The parts of ``stateline run`` that are about contexts: the words of a refinement, and how a context stands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from stateline.cli.options import Settings, read_file
from stateline.cli.output import counted, emit, is_terminal, one_line, say, warn
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.contexts.prepare import Prepared

_WORDS = {"derive": "derived", "refine": "refined", "restore": "is there already, unchanged"}


def refinement(text: str | None, file: str | None) -> str | None:
    """The words of ``--refine-text`` or ``--refine-file``; None without either. Raises ``UsageError`` for both, for
    none in them, and for a file that cannot be read."""
    from stateline.contexts.context import LIMIT

    if text is not None and file is not None:
        raise UsageError("--refine-text and --refine-file exclude each other", hint="give one of them")
    if file is not None:
        try:
            data = read_file(file, LIMIT)
            text = data.decode("utf-8", "ignore" if len(data) > LIMIT else "strict")  # cut; refused for its size
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {file!r}: {error}; nothing was saved", hint="a UTF-8 text file") from None
    if text is not None and not text.strip():
        raise UsageError("the refinement is empty; nothing was saved", hint="say what should change")
    return text


def show_context(said: Settings, prepared: Prepared) -> int:
    """Print how a context stands after a call that was about nothing else."""
    from stateline.service.outcome import context_outcome

    outcome = context_outcome(prepared)
    if said.ephemeral:
        outcome.warnings.append("the context was not kept (--ephemeral)")
    warn(said, outcome.warnings)
    emit(said, outcome.document(), context_lines(prepared))
    return 0


def context_lines(prepared: Prepared) -> list[str]:
    """What was done, to which head, and what the context says now."""
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


def progress(said: Settings, *, played: bool) -> Callable[[str], None]:
    """Says that a model is asked (or, where it is ``played``, that a recording is), on a terminal or with -v anywhere:
    that may take a while."""
    talks = not said.quiet and (said.verbose or is_terminal(sys.stderr))

    def began(purpose: str) -> None:
        if talks:
            doing = "playing back what a model said" if played else "asking the model"
            say(said, f"{doing} to {purpose} the context ...")

    return began
