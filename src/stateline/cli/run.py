"""``stateline run``: one prompt, one agent; or, without a prompt, only a context."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from stateline.cli.call_options import call_arguments, call_of, models_of, repeated_flags, shows_progress
from stateline.cli.command import Command
from stateline.cli.inputs import pairs, read_file
from stateline.cli.layout import DIGITS, hanging, labelled
from stateline.cli.options import Settings
from stateline.cli.outcome_text import outcome_output, plan_output, totals_lines
from stateline.cli.output import Output, columns, counted, notify_start, one_line
from stateline.cli.parser import argument, repeatable, switch
from stateline.contexts.context import ContextRequest
from stateline.errors import UsageError
from stateline.service.run import RunOptions as Request

if TYPE_CHECKING:
    from stateline.bundle.limits import Limits
    from stateline.contexts.prepare import Prepared
    from stateline.service.run_document import Outcome
    from stateline.store.store import Store

_PROMPTS = "-p TEXT, --prompt-file FILE, or - for standard input"
_WORDS = {"derive": "derived", "refine": "refined", "restore": "exists, unchanged"}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``run``."""

    settings: Settings
    request: Request
    dry_run: bool = False

    @property
    def context_only(self) -> bool:
        """True if the call has no prompt and names no run: it derives, refines or restores a context, and stops."""
        return self.request.prompt is None and self.request.run is None


def run_options(flags: Namespace, settings: Settings) -> RunOptions:
    """Turn the flags of ``run`` into options. Reads the prompt. Raises ``UsageError``."""
    context_request = ContextRequest(
        system=flags.system,
        developer=flags.developer,
        settings=pairs(flags.set, "--set", parsed=True),
        refine=_refinement(flags.refine_text, flags.refine_file),
    )
    request = Request(
        prompt=_prompt(flags.dash, flags.prompt, flags.prompt_file, settings.limits),
        run=flags.id,
        force=flags.force,
        tools=flags.tools,
        context=settings.state_scope,
        context_request=context_request,
        models=models_of(flags, settings),
        on_call=_progress(settings, played=flags.playback is not None),
        wait=settings.context_lock_wait,
        transcript=not flags.no_transcript,
        new_context=flags.new_context,
        # With a dash, standard input is the prompt.
        call=call_of(flags, settings, read_stdin=flags.dash is None),
    )
    options = RunOptions(settings=settings, request=request, dry_run=flags.dry_run)
    if options.context_only and not _names_context(flags, settings):
        raise UsageError(
            "nothing to do: there is no prompt, and no flag names or changes a context; nothing was done",
            hint=f"give a prompt ({_PROMPTS}), or a context: `stateline run --state-scope NAME --system TEXT`",
        )
    given = request.call.input, request.call.answer
    if options.context_only and (request.force or given != (msgspec.UNSET, msgspec.UNSET) or flags.no_transcript):
        raise UsageError(
            "--force, --input, --answer and --no-transcript need a run; nothing was done",
            hint=f"give a prompt ({_PROMPTS}), or --id RUN",
        )
    return options


def _names_context(flags: Namespace, settings: Settings) -> bool:
    """True if a flag names, derives or changes a context."""
    given = (flags.system, flags.refine_text, flags.refine_file, flags.tools, flags.model, flags.base_url)
    return any(value is not None for value in (*given, flags.record, flags.playback, settings.state_scope)) or bool(
        flags.developer or flags.set
    )


def _run(options: RunOptions) -> Output:
    from stateline.service.run import prepare_context, run

    store = options.settings.store()
    if options.dry_run:
        from stateline.service.dry_run import dry_run
        from stateline.service.model_setup import Models

        Models(store, options.request.models)  # flags that exclude each other are an error, not a plan

        def verb(store: Store) -> Outcome | Prepared:
            return prepare_context(store, options.request) if options.context_only else run(store, options.request)

        return plan_output(dry_run(store, verb, run=options.request.run))
    if options.context_only:
        return _context_output(options.settings, prepare_context(store, options.request))
    outcome = run(store, options.request)
    return outcome_output(options.settings, outcome, flags=repeated_flags(options.request.models))


def _prompt(dash: str | None, text: str | None, file: str | None, limits: Limits) -> str | None:
    """The prompt, without the newline at the end of a file; None without one. Raises ``UsageError``."""
    if dash not in (None, "-"):
        raise UsageError(f"unexpected argument {dash!r}; nothing was done", hint=_meant(dash))
    if sum(given is not None for given in (dash, text, file)) > 1:
        raise UsageError("the prompt is given more than once; nothing was done", hint=f"give one of {_PROMPTS}")
    try:
        if dash is not None:
            if sys.stdin is None:
                raise ValueError("there is no standard input")
            text = _decoded(sys.stdin.buffer.read(limits.input + 1), limits)
        elif file is not None:
            text = _decoded(read_file(file, limits.input), limits)
        elif text is not None:
            _decoded(text.encode(), limits)
    except (OSError, ValueError) as error:
        message = f"cannot read the prompt{f' {file!r}' if file else ''}: {error}; nothing was done"
        raise UsageError(message, hint="check the path; write UTF-8") from None
    if text is not None and not text.strip():
        raise UsageError("the prompt is empty; nothing was done", hint=f"give a prompt by {_PROMPTS}")
    return text


def _meant(word: str) -> str:
    """The hint for an argument: ``run`` takes none."""
    from stateline.machine.definition.formats.reader import format_of

    if format_of(word) is not None:
        return f"`stateline execute {shlex.quote(word)}` runs a machine file"
    option = "--prompt-file" if os.path.isfile(word) else "-p"
    return f"`stateline run {option} {shlex.quote(word)}` gives it as the prompt"


def _decoded(data: bytes, limits: Limits) -> str:
    if len(data) > limits.input:
        raise ValueError(f"it is larger than {limits.text('input')}")
    return data.decode().removesuffix("\n").removesuffix("\r")


def _refinement(text: str | None, file: str | None) -> str | None:
    """The instruction of ``--refine-text`` or ``--refine-file``; None without either. Raises ``UsageError``."""
    from stateline.contexts.context import LIMIT

    if text is not None and file is not None:
        raise UsageError("--refine-text and --refine-file exclude each other", hint="give one of them")
    if file is not None:
        try:
            data = read_file(file, LIMIT)
            # One that is too large is cut here, and refused for its size later.
            text = data.decode("utf-8", "ignore" if len(data) > LIMIT else "strict")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {file!r}: {error}; nothing was saved", hint="a UTF-8 text file") from None
    if text is not None and not text.strip():
        raise UsageError("the refinement is empty; nothing was saved", hint="write the change that you want")
    return text


def _context_output(settings: Settings, prepared: Prepared) -> Output:
    """The output of a call that was about a context only."""
    from stateline.service.run_document import context_outcome

    outcome = context_outcome(prepared)
    if settings.ephemeral:
        outcome.warnings.append("the context was not kept (--ephemeral)")
    return Output(
        document=outcome.document(),
        lines=_context_lines(prepared),
        warnings=outcome.warnings,
        closing=totals_lines(outcome),
    )


def _context_lines(prepared: Prepared) -> list[str]:
    """The action, the head, and the content."""
    now = prepared.effective
    lines = hanging(f"{prepared.scope} {_WORDS[prepared.action]} (seq {prepared.head.seq})", columns())
    lines.append(f"  head:   {prepared.head.sha256[:DIGITS]}")
    if prepared.action == "restore":
        return lines
    if now.system:
        lines += labelled("  system: ", one_line(now.system, 100), columns())
    if now.developer:
        newest = one_line(now.developer[-1], 60)
        text = f"{counted(len(now.developer), 'instruction')}, the last: {newest}"
        lines += labelled("  developer: ", text, columns())
    if now.settings:
        text = ", ".join(f"{name} = {one_line(now.settings[name], 40)}" for name in now.settings)
        lines += labelled("  settings: ", text, columns())
    return lines


def _progress(settings: Settings, *, played: bool) -> Callable[[str], None]:
    """A function that reports a call of a model, or with ``played`` of a recording: it may take a while."""
    what = "playing back the recording" if played else "asking the model"

    def began(purpose: str) -> None:
        if shows_progress(settings):
            notify_start(settings, f"{what} to {purpose} the context ...")

    return began


RUN = Command(
    help="""Ask a model, and call tools until it answers.

Before the first call the context (prompts and settings, in a chain of their own) is derived, from the flags or by
the model. Later calls restore it; --refine-* changes it. Without a prompt the command stops there.

Without a model the request is printed and the command exits 3. Send the model's reply to the next call, `stateline
exec resume RUN`, on standard input or with --answer.""",
    arguments=[
        argument("dash", nargs="?", metavar="-", help="Read the prompt from standard input."),
        argument("-p", "--prompt", metavar="TEXT", help="The prompt."),
        argument("--prompt-file", metavar="FILE", help="Read the prompt from that file."),
        argument("--tools", metavar="FILE", help="Manifest of the tools that the model may call."),
        argument("--system", metavar="TEXT", help="The system prompt."),
        repeatable("--developer", "TEXT", "A developer instruction"),
        repeatable("--set", "KEY=VALUE", "A setting; the value is JSON, else a string"),
        argument("--refine-text", metavar="TEXT", help="First refine the context by this instruction."),
        argument("--refine-file", metavar="FILE", help="First refine the context by that file's text."),
        argument("--id", metavar="RUN", help="The run's id, new or existing."),
        switch("--force", help="With --id: start it again, on the same chain."),
        switch("--new-context", help="Let --refine-* derive another context if none fits model, URL and tools."),
        switch("--no-transcript", help="Keep the context, and nothing of the conversation."),
        *call_arguments(parent="Continue only if this is the head, of the context or of the run --id."),
    ],
    options=run_options,
    run=_run,
)
