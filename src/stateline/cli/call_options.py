"""Flags that ``run``, ``execute`` and ``exec resume`` share: how a run is called and which model it asks."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from stateline.cli.inputs import read_json, stdin_reader
from stateline.cli.options import Settings
from stateline.cli.output import at_end_of_stream, is_terminal, notify_start, one_line, plain, stream_text
from stateline.cli.parser import Argument, argument, switch
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.engine.dry_run_stop import Watch
    from stateline.engine.record import Run
    from stateline.service.exchanges import ModelOptions
    from stateline.service.options import CallOptions


def call_arguments(*, parent: str) -> list[Argument]:
    """The shared flags; ``parent`` is the help of ``--parent``."""
    return [
        argument("--input", metavar="JSON|@FILE", help="The run's input; the same one continues it."),
        argument("--answer", metavar="JSON|@FILE", help="The answer to the request that the run waits for."),
        argument("--request", metavar="ID", help="The request that --answer is for: then the call can be repeated."),
        argument(
            "--input-format",
            metavar="json|text",
            choices=("json", "text"),
            default="json",
            help="Format of an answer on standard input [default: json].",
        ),
        switch("--no-input", help="Never read standard input."),
        argument(
            "-m",
            "--model",
            metavar="PROVIDER/NAME",
            help="The model to ask; manual: the caller answers [env: STATELINE_MODEL].",
        ),
        argument("--base-url", metavar="URL", help="The model's endpoint [env: STATELINE_BASE_URL]."),
        argument("--record", metavar="DIR", help="Record each exchange with a model there, redacted."),
        argument("--playback", metavar="DIR", help="Answer from that recording; no model is called."),
        argument(
            "--playback-mode",
            metavar="strict|sequential|hybrid",
            help="How requests find their replies [default: hybrid].",
        ),
        argument("--parent", metavar="REV", help=parent),
        switch("--dry-run", help="Print what would happen; change nothing."),
    ]


def call_of(flags: Namespace, settings: Settings, *, read_stdin: bool = True) -> CallOptions:
    """The call that the shared flags describe. Raises ``UsageError``."""
    from stateline.service.options import CallOptions

    if flags.request is not None and flags.answer is None:
        raise UsageError("--request needs --answer; nothing was done", hint="give --answer JSON")
    return CallOptions(
        one_turn=getattr(flags, "interactive", False),
        input=read_json(flags.input, "--input", settings.limits),
        answer=read_json(flags.answer, "--answer", settings.limits),
        request=flags.request,
        stdin=stdin_reader(flags.no_input, settings.limits) if read_stdin else None,
        input_format=flags.input_format,
        parent=flags.parent,
        wait=settings.lock_wait,
        watch=_watcher(settings),
    )


def models_of(flags: Namespace, settings: Settings) -> ModelOptions:
    """The model that the shared flags describe."""
    from stateline.service.exchanges import ModelOptions

    return ModelOptions(
        model=flags.model,
        base_url=flags.base_url,
        record=flags.record,
        playback=flags.playback,
        playback_mode=flags.playback_mode,
        on_text=_text_stream(settings),
    )


def repeated_flags(models: ModelOptions) -> str:
    """The flags that hold for one call only, as shell words with a blank in front; "" without any."""
    words = [] if models.model is None else ["-m", models.model]
    words += [] if models.base_url is None else ["--base-url", models.base_url]
    return plain("".join(f" {shlex.quote(word)}" for word in words))


def shows_progress(settings: Settings) -> bool:
    """True if progress is shown: on a terminal, or anywhere with ``--verbose``."""
    return not settings.quiet and (settings.verbose or is_terminal(sys.stderr))


def _watcher(settings: Settings) -> Watch:
    """A function that reports each attempt: a task may take minutes."""
    shown = shows_progress(settings)

    def watch(run: Run, what: str) -> None:
        if not shown:
            return
        tree = run.state.tree
        # A turn that is not over continues: with another attempt, or with the tools that a reply called.
        turn = run.event["turn"] + (not run.event.get("open"))
        detail = f", attempt {tree.attempt}" if tree.attempt > 1 else ""
        if what == "calls":
            calls = [call["name"] for call in tree.pending if call["status"] != "done"]
            detail = f", tools {one_line(', '.join(calls), 80)}"
        elif what == "pause":
            from stateline.engine.loop import pause_before

            why = f" ({tree.error.kind}: {one_line(tree.error.message, 80)})" if tree.error else ""
            detail = f" failed{why}; next attempt in {pause_before(run):.3g} s"
        notify_start(settings, f"{run.id}: turn {turn}: {tree.stage}{detail} ...")

    return watch


def _text_stream(settings: Settings) -> Callable[[str], None] | None:
    """A function that shows a model's text while it arrives; None if stderr is not a terminal, or with ``--quiet``."""
    if settings.quiet or not is_terminal(sys.stderr):
        return None
    from stateline.cli.masked_stream import MaskedStream

    stream = MaskedStream(stream_text)
    at_end_of_stream(stream.end)
    return stream.write
