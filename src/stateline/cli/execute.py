"""``stateline execute`` and ``stateline exec resume``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from stateline.cli.call_options import call_arguments, call_of, models_of, repeated_flags
from stateline.cli.command import Command
from stateline.cli.inputs import pairs
from stateline.cli.options import Settings
from stateline.cli.outcome_text import outcome_output, plan_output
from stateline.cli.output import Output, notify
from stateline.cli.parser import argument, repeatable, switch
from stateline.service.exchanges import ModelOptions
from stateline.service.options import CallOptions
from stateline.service.options import ExecuteOptions as Request

if TYPE_CHECKING:
    from stateline.service.run_document import Outcome
    from stateline.store.store import Store


class ExecuteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``execute``. ``destination`` is the directory for the outputs of a complete run."""

    settings: Settings
    request: Request
    models: ModelOptions
    destination: str | None = None
    dry_run: bool = False


def execute_options(flags: Namespace, settings: Settings) -> ExecuteOptions:
    """Turn the flags of ``execute`` into options. Raises ``UsageError``."""
    request = Request(
        machine=flags.machine,
        run=flags.id,
        force=flags.force,
        accept_change=flags.accept_change,
        labels=pairs(flags.label, "--label", parsed=False),
        context=settings.state_scope,
        call=call_of(flags, settings),
    )
    models = models_of(flags, settings)
    return ExecuteOptions(
        settings=settings, request=request, models=models, destination=flags.destination, dry_run=flags.dry_run
    )


def _execute(options: ExecuteOptions) -> Output:
    from stateline.service.execute import execute
    from stateline.service.model_setup import Models

    store = options.settings.store()
    call = replace(options.request.call, models=Models(store, options.models))
    request = replace(options.request, call=call)
    if options.dry_run:
        from stateline.service.dry_run import dry_run

        return plan_output(
            dry_run(store, lambda store: execute(store, request), run=request.run, one_turn=call.one_turn)
        )
    outcome = execute(store, request)
    if options.destination is not None:
        from stateline.service.run_document import write_outputs

        for path in write_outputs(outcome, options.destination):
            notify(options.settings, f"wrote {path}")
    return outcome_output(options.settings, outcome, flags=repeated_flags(options.models))


class ResumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``exec resume``."""

    settings: Settings
    run: str
    call: CallOptions
    models: ModelOptions
    retry: bool = False
    dry_run: bool = False


def resume_options(flags: Namespace, settings: Settings) -> ResumeOptions:
    """Turn the flags of ``exec resume`` into options. Raises ``UsageError``."""
    return ResumeOptions(
        settings=settings,
        run=flags.run,
        call=call_of(flags, settings),
        models=models_of(flags, settings),
        retry=flags.retry,
        dry_run=flags.dry_run,
    )


def _resume(options: ResumeOptions) -> Output:
    from stateline.service.execute import resume
    from stateline.service.model_setup import Models

    store = options.settings.store()
    call = replace(options.call, models=Models(store, options.models))

    def verb(store: Store) -> Outcome:
        return resume(store, options.run, call, retry=options.retry)

    if options.dry_run:
        from stateline.service.dry_run import dry_run

        return plan_output(dry_run(store, verb, run=options.run, one_turn=call.one_turn))
    return outcome_output(options.settings, verb(store), flags=repeated_flags(options.models))


_ONE_TURN = switch("-i", "--interactive", help="Do exactly one turn, then stop.")
_CALL = call_arguments(parent="Continue only if this is the run's head (else exit 4).")
EXECUTE = Command(
    help="""Run a machine to its end, or (-i) by exactly one turn.

Continues the last run of this machine file if it is unfinished, with the same
--input or none; else starts a run. Older runs need --id. With --state-scope NAME
the stages of a new run see the context NAME.""",
    arguments=[
        argument("machine", metavar="MACHINE", help="A machine file (.yaml, .json, .toml, .py)."),
        _ONE_TURN,
        argument("--id", metavar="RUN", help="The run's id, new or existing."),
        switch("--force", help="Start again: with --id on the same chain, else as another run."),
        switch("--accept-change", help="Continue although the machine file changed; this is recorded."),
        repeatable("--label", "K=V", "A label for a new run"),
        argument(
            "-d", "--destination", metavar="DIR", help="Write a complete run's outputs to that directory, as files."
        ),
        *_CALL,
    ],
    options=execute_options,
    run=_execute,
)
RESUME = Command(
    help="""Continue a run to its end, or (-i) by exactly one turn.

The machine is the one that the store keeps. Without --retry, a failed run fails again, and an effect of unknown
outcome keeps waiting.""",
    arguments=[
        argument("run", metavar="RUN", help="The run's id."),
        _ONE_TURN,
        switch("--retry", help="First clear an error, or run an effect of unknown outcome again."),
        *_CALL,
    ],
    options=resume_options,
    run=_resume,
)
