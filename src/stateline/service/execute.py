"""The verbs ``execute`` and ``exec resume``: run a machine to its end, or by one turn."""

from __future__ import annotations

import shlex

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.engine.dependencies import Dependencies
from stateline.engine.loop import asked
from stateline.engine.record import Run, facts_of, load_run, run_scope
from stateline.engine.step import apply, give_up, lost_effect_events
from stateline.errors import ConflictError, InvalidAnswerError, UsageError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Retried
from stateline.process.signals import Signals, shield
from stateline.service.answers import answer_command, answered_run, named_request, no_run_error, open_request
from stateline.service.continue_run import (
    closing_outcome,
    continue_run,
    count_failures,
    reload,
    require_not_cancelled,
    require_parent,
    status_hint,
)
from stateline.service.create_run import NewRunOptions, create_run
from stateline.service.machine_change import change_warning, machine_change, with_current_machine
from stateline.service.machine_files import LISTED, MachineFile, find_unfinished, other_unfinished, read_machine_file
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.run_document import Outcome
from stateline.store.store import Store


def execute(store: Store, options: ExecuteOptions) -> Outcome:
    """Continue the unfinished run of a machine file, or start one; to its end, or by one turn.

    Raises a ``StatelineError`` for what prevents the call, ``Interrupted`` for a signal; a failed run is an outcome,
    not an error.
    """
    machine_file = read_machine_file(options.machine, store.limits)
    with Signals() as signals:
        call = options.call
        found = _find(store, options, machine_file)
        signals.run = found.id if found is not None else None
        if call.answer is not msgspec.UNSET and (found is None or options.force):
            raise no_run_error(_waiting_runs(store, machine_file))
        if found is not None and not options.force:
            require_not_cancelled(found)
            if options.run is None:
                _require_only_request(store, machine_file, found, call)
            change = machine_change(found, machine_file)
            warnings = _warnings(store, machine_file, options, found.id, found) + change_warning(found, change)
            run = with_current_machine(found, machine_file, change, call, accept=options.accept_change)
            return continue_run(run, call if run is found else replace(call, parent=None), warnings)
        start = NewRunOptions(
            run=options.run,
            force=options.force,
            labels=options.labels,
            context=options.context,
            exchanges=call.models.begin(),
            call=call,
        )
        run, started = create_run(store, start, machine_file)
        signals.run = run.id
        # Standard input was not meant for a question of this run.
        call = replace(call, stdin=None)
        if started:
            call = replace(call, input=msgspec.UNSET, parent=None)
        else:
            _require_same_machine(require_not_cancelled(run), machine_file)
        warnings = _warnings(store, machine_file, options, run.id, None if started else run)
        return continue_run(run, call, warnings, failures=0 if started else None)


def resume(store: Store, run: str, call: CallOptions, *, retry: bool = False) -> Outcome:
    """Continue a run by its id, with the machine that the store keeps. ``retry`` first clears an error, or lets an
    effect whose outcome is unknown run again. Raises ``IllegalEventError`` if there is nothing to retry, ``UsageError``
    for a retry with an answer, and as :func:`execute`."""
    naming.checked_id(run, "run id")
    with Signals() as signals:
        found = require_not_cancelled(load_run(store, run))
        signals.run = run
        if not retry:
            return continue_run(found, call, [])
        if call.answer is not msgspec.UNSET:
            raise UsageError("--retry and --answer exclude each other; nothing was changed", hint="give one of them")
        failures = count_failures(found)
        with found.scope.locked(call.wait), shield():
            now = require_parent(reload(found), call.parent)
            if now.sha256 != found.sha256:
                # The caller has seen another failure than the one that would be cleared.
                raise ConflictError(
                    f"the run {run} advanced while this retry waited; nothing was changed", hint=status_hint(run)
                )
            # With the lock held, no other process can still perform a started effect.
            found = _retried(found, call)
        # Nothing was asked when the call started, so standard input holds no answer to what it reaches.
        call = replace(call, parent=None, stdin=None)
        if call.one_turn and found.event["transitions"]:
            # A kept output was routed again: that was the turn.
            return closing_outcome(found, call, [], failures)
        return continue_run(found, call, [], failures=failures)


def _retried(run: Run, call: CallOptions) -> Run:
    # A failed run needs no model to be reported; this one will run.
    dependencies = call.models.dependencies(replace(run, state=replace(run.state, status="running")))
    _require_callable_model(run, call, dependencies)
    return asked(apply(give_up(run), Retried(), dependencies), dependencies)


def _require_callable_model(run: Run, call: CallOptions, dependencies: Dependencies) -> None:
    """Raise what prevents a model call, if the retry leads to one, before the retry is saved."""
    state = run.state
    for event in lost_effect_events(run):
        state = advance(run.machine, state, event, facts_of(run)).state
    retried = advance(run.machine, state, Retried(), facts_of(run, manual=dependencies.manual))
    tree = retried.state.tree
    at_model = tree.phase == "ready" and run.machine.stages[tree.stage].kind == "agent"
    if dependencies.ready is not None and at_model and not (call.one_turn and retried.transitions):
        dependencies.ready()


def _find(store: Store, options: ExecuteOptions, machine_file: MachineFile) -> Run | None:
    """Return the run that the options mean, or None if a new one will start. Reads only."""
    call = options.call
    if options.run is not None:
        return load_run(store, options.run) if run_scope(store, options.run).head() is not None else None
    if options.force:
        return None
    named = None if call.request is None else answered_run(store, call.answer, call.request)
    return named or find_unfinished(store, machine_file) or answered_run(store, call.answer, None)


def _require_only_request(store: Store, machine_file: MachineFile, found: Run, call: CallOptions) -> None:
    """Raise ``InvalidAnswerError`` for an answer that names no request, if other runs of the file wait too: its author
    may have seen the question of one of them."""
    if call.answer is msgspec.UNSET or call.request is not None or named_request(call.answer) is not None:
        return
    others = _waiting_runs(store, machine_file, found.id)
    if others:
        named = ", ".join(run.id for run in [found, *others])
        raise InvalidAnswerError(
            f"several runs of this machine wait ({named}), and the answer does not say which "
            "it is for; nothing was changed",
            hint=f"`{answer_command(found.id, open_request(found), 'JSON')}` answers {found.id}; "
            "`stateline exec status RUN` shows what another one asks",
        )


def _waiting_runs(store: Store, machine_file: MachineFile, besides: str | None = None) -> list[Run]:
    """Return the runs of the file that wait, as far as :func:`other_unfinished` finds them."""
    runs = [load_run(store, name) for name in other_unfinished(store, machine_file, besides)]
    return [run for run in runs if run.state.status == "waiting"]


def _require_same_machine(run: Run, machine_file: MachineFile) -> None:
    """Raise ``ConflictError`` unless ``run``, which another process started, is the run that this call would start."""
    if (run.machine_sha, run.event["machine"]["path"]) != (machine_file.sha256, machine_file.path):
        raise ConflictError(
            f"another process started the run {run.id} from another machine; nothing was changed",
            hint=f"{status_hint(run.id)}; --id NEW starts another run",
        )


def _warnings(
    store: Store, machine_file: MachineFile, options: ExecuteOptions, name: str | None, run: Run | None
) -> list[str]:
    """Return warnings about other unfinished runs of the machine file, besides the one called ``name``, unless the
    caller chose that one; and about options that do not apply to ``run`` because it started without them (None: it
    starts with this call). Reads only.
    """
    warnings = []
    others = [] if options.run is not None else other_unfinished(store, machine_file, name)
    if others:
        ways = "choose one with --id"
        if len(others) >= LISTED:
            ways = f"`stateline exec list --machine {shlex.quote(options.machine)}` shows older ones too; {ways}"
        warnings.append(f"other unfinished runs of this machine: {', '.join(others)} ({ways})")
    if run is None:
        return warnings
    if options.labels:
        warnings.append(f"the run {run.id} keeps the labels with which it started; --label applies to new runs")
    context = run.state.context
    if options.context is not None and (context is None or context["scope"] != f"context:{options.context}"):
        kept = "no context" if context is None else context["scope"]
        warnings.append(f"the run {run.id} keeps {kept}, with which it started; --state-scope applies to new runs")
    return warnings
