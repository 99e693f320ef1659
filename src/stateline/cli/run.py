"""``stateline run``: one prompt, one agent; or, without a prompt, a context that is derived or refined."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stateline.cli.context_text import progress, refinement, show_context
from stateline.cli.execute import Input, NoInput, finish, watcher
from stateline.cli.model_options import (
    BaseUrl,
    InputFormat,
    Model,
    Playback,
    PlaybackMode,
    Record,
    again,
    input_format,
    model_options,
)
from stateline.cli.options import Settings, pairs, read_file, read_input, settings, stdin_reader
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.service.run import RunOptions

_WAYS_TO_ASK = "-p TEXT, --prompt-file FILE, or - for standard input"


def run(
    ctx: typer.Context,
    dash: Annotated[str | None, typer.Argument(metavar="[-]", help="Read the prompt from standard input.")] = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="What is asked.")] = None,
    prompt_file: Annotated[
        str | None, typer.Option("--prompt-file", metavar="FILE", help="Ask what that file says.")
    ] = None,
    tools: Annotated[
        str | None, typer.Option("--tools", metavar="FILE", help="The manifest of the tools that the model may call.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")] = None,
    developer: Annotated[
        list[str] | None, typer.Option("--developer", metavar="TEXT", help="A developer instruction (repeatable).")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; the value is JSON, else a string (repeatable)."),
    ] = None,
    refine_text: Annotated[
        str | None, typer.Option("--refine-text", metavar="TEXT", help="First refine the context by this instruction.")
    ] = None,
    refine_file: Annotated[
        str | None, typer.Option("--refine-file", metavar="FILE", help="First refine it by this file's text.")
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    id: Annotated[str | None, typer.Option("--id", metavar="RUN", help="This run, new or old.")] = None,
    force: Annotated[bool, typer.Option("--force", help="With --id: begin it anew, on the same chain.")] = False,
    input: Input = None,
    input_format_word: InputFormat = "json",
    record: Record = None,
    playback: Playback = None,
    playback_mode: PlaybackMode = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; touch nothing.")] = False,
    no_input: NoInput = False,
    parent: Annotated[
        str | None,
        typer.Option("--parent", metavar="REV", help="Only if this is the head: of the context, or of the run --id."),
    ] = None,
) -> int:
    """Ask a model, and go on to its answer; the tools of --tools are called on the way.

    Before a first call the context is derived, from the flags or by the model, and later calls restore it: prompts and
    settings, in a chain of their own. --refine-* makes a new one of it. Without a prompt that is all. Without a model
    the request is printed and the call exits 3; whoever answers calls again: run --id RUN, with the answer on standard
    input or --input.
    """
    from stateline.contexts.context import ContextRequest
    from stateline.service.execute import Call
    from stateline.service.run import RunOptions

    said = settings(ctx)
    asked = _prompt(dash, prompt, prompt_file)
    options = RunOptions(
        prompt=asked,
        run=id,
        force=force,
        tools=tools,
        context=said.state_scope,
        context_request=ContextRequest(
            system=system,
            developer=developer or [],
            settings=pairs(set, "--set", parsed=True),
            refine=refinement(refine_text, refine_file),
        ),
        models=model_options(said, (model, base_url), record, playback, playback_mode),
        on_call=progress(said, played=playback is not None),
        wait=said.wait,
        call=Call(
            input=read_input(input),
            # What stood there was the prompt.
            stdin=None if dash is not None else stdin_reader(no_input),
            input_format=input_format(input_format_word),
            parent=parent,
            wait=said.patience,
            watch=watcher(said),
        ),
    )
    if asked is None and id is None:
        return _context_only(said, options, dry_run)
    from stateline.service.run import run as verb

    if dry_run:
        from stateline.cli.plans import show_plan
        from stateline.service.dry_run import dry_run as rehearse

        return show_plan(said, rehearse(said.store(), lambda store: verb(store, options), run=id))

    outcome = verb(said.store(), options)
    return finish(said, outcome, flags=again(model, base_url))


def _context_only(said: Settings, options: RunOptions, dry_run: bool) -> int:
    """``run`` without a prompt: derive, refine or restore a context, and stop."""
    from stateline.service.run import prepare_context

    if options.force or options.call.input is not msgspec.UNSET:
        raise UsageError(
            "--force and --input need a run; nothing was done", hint=f"say what to ask ({_WAYS_TO_ASK}), or --id RUN"
        )
    if dry_run:
        from stateline.cli.plans import show_plan
        from stateline.service.dry_run import dry_run as rehearse

        return show_plan(said, rehearse(said.store(), lambda store: prepare_context(store, options)))
    return show_context(said, prepare_context(said.store(), options))


def _prompt(dash: str | None, text: str | None, file: str | None) -> str | None:
    """What is asked; None without a word of it. Raises ``UsageError``."""
    if dash not in (None, "-"):
        raise UsageError(f"{dash!r} is no option of `run`; nothing was done", hint=f"give a prompt by {_WAYS_TO_ASK}")
    if sum(said is not None for said in (dash, text, file)) > 1:
        raise UsageError("the prompt is given more than once; nothing was done", hint=f"one of {_WAYS_TO_ASK}")
    if dash is not None:
        text = _decoded(_standard_input(), "standard input")
    elif file is not None:
        text = _decoded(_read(file), repr(file))
    if text is not None and not text.strip():
        raise UsageError("the prompt is empty; nothing was done", hint=f"say what to ask: {_WAYS_TO_ASK}")
    if text is not None:
        _require_utf8(text)
    return text


def _standard_input() -> bytes:
    from stateline.bundle import canonical

    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("there is no standard input to read the prompt from; nothing was done", hint="use -p TEXT")
    return bytes(sys.stdin.buffer.read(canonical.TEXT_LIMIT + 1))


def _read(file: str) -> bytes:
    from stateline.bundle import canonical

    try:
        return read_file(file, canonical.TEXT_LIMIT)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the prompt {file!r}: {error}; nothing was done", hint="check the path") from None


def _decoded(data: bytes, what: str) -> str:
    """The prompt in ``data``, without the newline at its end."""
    from stateline.bundle import canonical

    if len(data) > canonical.TEXT_LIMIT:
        raise UsageError(f"the prompt on {what} is larger than {canonical.TEXT_LIMIT} bytes", hint="shorten it")
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt on {what} is not UTF-8 (byte {error.start})", hint="write UTF-8") from None


def _require_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the prompt is not UTF-8; nothing was done", hint="write UTF-8") from None
