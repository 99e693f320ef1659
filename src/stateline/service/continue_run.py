"""Continue a run that exists: take an answer, then perform turns until one is done or the run stops."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stateline.bundle.canonical import Json
from stateline.engine.dependencies import MANUAL
from stateline.engine.dry_run_stop import DryRunStop
from stateline.engine.loop import asked, may_call_model, turn
from stateline.engine.record import Run, load_run, read_run
from stateline.engine.step import EventContext, is_waiting_for_reply, take
from stateline.errors import ConflictError, InvalidAnswerError, NoOpenRequestError, PlaybackMissError, RunCancelledError
from stateline.history.preconditions import require_head
from stateline.machine.decider.run import Answered
from stateline.process.signals import interruptible, shield
from stateline.service.answers import (
    answer_command,
    as_event,
    fingerprint,
    open_request,
    parse_answer,
    parse_model_reply,
    parse_text,
    require_expected,
    restart_commands,
    unwrap,
)
from stateline.service.options import CallOptions
from stateline.service.recorded_answers import play_answer, plays_answer, record_answer
from stateline.service.run_document import Outcome, outcome


def continue_run(run: Run, call: CallOptions, warnings: list[str], *, failures: int | None = None) -> Outcome:
    """Take an answer if the run waits and one is given; then perform turns until one is done or the run stops.
    ``failures`` is their number before the call, if it is not that of ``run``.

    Call it inside ``Signals``. Raises a ``StatelineError`` for what prevents the call; a failed run is an outcome.
    """
    require_not_cancelled(run)
    failures = count_failures(run) if failures is None else failures
    require_parent(run, call.parent)
    require_expected(run, call.input, call.answer, call.request)
    call.models.dependencies(run)  # raises what the run does not allow
    given = answer_of(run, call)
    if given is not msgspec.UNSET:
        run = _take_answer(run, given, call)
        # Standard input held one answer at most; and the required head was met.
        call = replace(call, stdin=None, parent=None)
        if call.one_turn and run.state.tree.phase != "calling":
            return closing_outcome(run, call, warnings, failures)
        # Tools that an answer calls belong to its turn.
    try:
        run = _turns(run, call)
    except PlaybackMissError as miss:
        another, again = restart_commands(run)
        way = f"`{again}` restarts it, `{another}` starts another run"
        if not miss.diverged:
            way = f"The run {run.id} can be continued; {way}"
        all_warnings = dict.fromkeys([*warnings, *call.models.closing_warnings(run), *miss.warnings])
        raise miss.with_hint(f"{miss.hint}. {way}", list(all_warnings)) from None
    except DryRunStop as stop:
        stop.warnings = [*warnings, *call.models.closing_warnings(stop.run)]
        raise
    return closing_outcome(run, call, warnings, failures)


def require_not_cancelled(run: Run) -> Run:
    """Return ``run``. Raises ``RunCancelledError`` for a run that was cancelled: it is over for good."""
    if run.state.status == "cancelled":
        another, restart = restart_commands(run)
        raise RunCancelledError(
            f"the run {run.id} was cancelled and cannot be continued; it stays as it is",
            hint=f"`{another}` starts another run, `{restart}` restarts this one",
        )
    return run


def count_failures(run: Run) -> int:
    """Return the number of failures since the run began, handled or not."""
    return int(run.event["meters"].get("failures", 0))


def closing_outcome(run: Run, call: CallOptions, warnings: list[str], failures: int) -> Outcome:
    """Return the outcome at the end of a call, before which there were ``failures``; those since then that were
    handled become warnings."""
    require_not_cancelled(run)  # another process may have cancelled it between two turns
    if (new := count_failures(run) - failures) > 0:
        from stateline.service.run_history import handled_failures

        warnings = [*warnings, *handled_failures(run, new)]
    warnings = [*warnings, *call.models.closing_warnings(run)]
    dependencies = call.models.dependencies(run) if run.state.status == "waiting" else MANUAL
    found = outcome(run, one_turn=call.one_turn, warnings=warnings, dependencies=dependencies)
    if plays_answer(run, dependencies):  # nothing waits: the next call plays the answer
        found = replace(found, status="advanced", waiting=None, exit_code=0)
    return found


def answer_of(run: Run, call: CallOptions) -> Json | msgspec.UnsetType:
    """Return the caller's answer, or UNSET. Standard input answers open questions only: never for a lost effect, and
    never in place of a model or a recording that this call has."""
    if call.answer is not msgspec.UNSET:
        return call.answer
    if call.stdin is None or run.state.tree.phase != "waiting":
        return msgspec.UNSET
    if can_continue(run, call):
        return msgspec.UNSET
    with interruptible():
        data = call.stdin()
    limits = run.scope.store.limits
    if call.input_format == "text":
        return parse_text(data, limits)
    return parse_model_reply(data, limits) if is_waiting_for_reply(run) else parse_answer(data, limits)


def _take_answer(run: Run, given: Json, call: CallOptions) -> Run:
    """Return the run with the answer saved, or as it is if the same answer was saved before."""
    answer = unwrap(run, given, call.request)
    if answer.again:
        return run
    with run.scope.locked(call.wait), shield():
        now = reload(run)
        if now.event.get("waiting") == run.event.get("waiting"):
            require_parent(now, call.parent)
            dependencies = call.models.dependencies(now)
            if plays_answer(now, dependencies):
                raise NoOpenRequestError(
                    f"the run {run.id} plays back a recording that answers its request; nothing was changed",
                    hint=f"`stateline exec resume {run.id}` plays the answer",
                )
            value, masked = as_event(now, answer.value)
            try:
                members = {"answered": fingerprint(now, answer.value)} | record_answer(now, value, dependencies)
                context = EventContext(
                    event=Answered(value=value), dependencies=dependencies, members=members, masked=masked
                )
                return asked(take(now, context), dependencies)
            except InvalidAnswerError as error:
                command = answer_command(run.id, open_request(now), "JSON")
                error.hint = error.hint or f"`{command}` gives another answer"
                raise
        if answer.named and unwrap(now, given, call.request).again:
            return now
        raise ConflictError(
            f"the run {run.id} advanced while the answer was given; the answer was not saved", hint=status_hint(run.id)
        )


def _turns(run: Run, call: CallOptions) -> Run:
    while can_continue(run, call):
        with run.scope.locked(call.wait):
            run = require_parent(reload(run), call.parent)
            if not can_continue(run, call):
                break
            dependencies = call.models.dependencies(run)
            played = plays_answer(run, dependencies)
            run = play_answer(run, dependencies) if played else turn(run, call.watch, dependencies)
        call = replace(call, parent=None)
        # Standard input may answer the request that was open at the start of the call. A request that the call itself
        # reaches was seen by nobody.
        if call.one_turn:
            break
    return run


def can_continue(run: Run, call: CallOptions) -> bool:
    """Return True if this call has an effect to perform. Raises as ``ModelSource.dependencies``."""
    if run.state.status == "running":
        return True
    if run.state.status != "waiting":
        return False
    dependencies = call.models.dependencies(run)
    return plays_answer(run, dependencies) or (is_waiting_for_reply(run) and may_call_model(run, dependencies))


def require_parent(run: Run, parent: str | None) -> Run:
    """Return ``run``. Raises ``ConflictError`` unless its head is the revision ``parent``; None accepts any head."""
    require_head(run.scope, run.snapshot, parent)
    return run


def reload(run: Run) -> Run:
    """Return the run at its head as it is now; the lock must be held. Raises ``ConflictError`` if another run was
    started under the same id."""
    store = run.scope.store
    pointer = store.backend.read(run.scope.hash)
    if pointer == run.snapshot.pointer:
        return run
    now = load_run(store, run.id) if pointer is None else read_run(store, run.scope, run.scope.load())
    # The nonce cannot tell: a repair generates a new one.
    if now.event["started_at"] != run.event["started_at"]:
        raise ConflictError(
            f"the run {run.id} was restarted by another call; this call stopped and changed nothing",
            hint=status_hint(run.id),
        )
    return now


def status_hint(run: str) -> str:
    """Return the hint that names the command which shows the state of a run."""
    return f"`stateline exec status {run}` shows its state"
