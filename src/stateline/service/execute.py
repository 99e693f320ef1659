"""The verbs ``execute`` and ``exec resume``: run a machine to its end, or by one turn."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.interrupts import Signals, interruptible, shield
from stateline.engine.loop import Watch, apply, give_up, is_in_doubt, replace_machine, turn
from stateline.engine.record import Run, keep_machine, load_run, read_run, run_scope
from stateline.errors import ConflictError, IllegalEvent, MachineChanged
from stateline.machine.advance import advance
from stateline.machine.run import Answered, Replaced, Retried
from stateline.service.answers import Reader, answered_run, not_waiting, parse_answer, unwrap
from stateline.service.demands import demand_head
from stateline.service.launch import (
    Launch,
    Machinery,
    find_last,
    launch,
    others,
    parse_machine,
    read_machinery,
    remember,
)
from stateline.service.outcome import Outcome, outcome
from stateline.store.store import WAIT, Store


def _silent(run: Run, what: str) -> None:
    """Nobody watches."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What every call that moves a run says.

    ``input`` is UNSET without ``--input``; ``stdin`` reads standard input to its end, None when it must not be read;
    ``parent`` demands a head by revision; ``wait`` [s] bounds the wait for a lock; ``watch`` is told of each attempt.
    """

    one_turn: bool = False
    input: Json | msgspec.UnsetType = msgspec.UNSET
    stdin: Reader | None = None
    parent: str | None = None
    wait: float = WAIT
    watch: Watch = _silent


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller of ``execute`` asked for. ``run`` None: the machine file's last unfinished run, or a new one."""

    machine: str
    run: str | None = None
    force: bool = False
    accept_change: bool = False
    labels: dict[str, str] = {}
    context: str | None = None
    call: Call = Call()


def execute(store: Store, options: Options) -> Outcome:
    """Go on with the machine's unfinished run, or start one; to its end, or by one turn.

    Raises a ``StatelineError`` for what keeps it from being done, ``Interrupted`` for a signal; a run that failed is
    an outcome, not an error.
    """
    check_names(options)
    machinery = read_machinery(options.machine)
    with Signals() as signals:
        run = find(store, options, machinery)
        signals.run = run.id if run is not None else None
        began = False
        call = options.call
        if run is None or options.force:
            run, began = launch(store, how_to_launch(options), machinery)
            signals.run = run.id
            if not began and call.input is not msgspec.UNSET:
                raise ConflictError(
                    f"another process began the run {run.id} meanwhile; the input of this call was not used",
                    hint=f"`stateline exec status {run.id}` shows where it stands",
                )
            # What stands on standard input was meant for no question of that run.
            call = replace(call, stdin=None)
        warnings = warnings_of(store, machinery, options, run.id, None if began else run)
        if began:
            call = replace(call, input=msgspec.UNSET, parent=None)
        elif (changed := change_of(run, machinery)) is not None:
            if not options.accept_change:
                raise changed
            _demand_wanted(run, call.input)
            run = _accept(store, run, machinery, call)
            call = replace(call, parent=None)
        elif run.state.status != "complete" and run.event["machine"]["path"] != machinery.path:
            _demand_wanted(run, call.input)
            run = _move(store, run, machinery, call)
            call = replace(call, parent=None)
        return _proceed(run, call, warnings)


def resume(store: Store, run: str, call: Call, *, retry: bool = False) -> Outcome:
    """Go on with a run by its id, from the machine that the store keeps. ``retry`` first clears an error, or lets an
    effect whose outcome is unknown run again (``IllegalEvent`` if there is nothing to retry)."""
    naming.checked_id(run, "run id")
    with Signals() as signals:
        found = load_run(store, run)
        signals.run = run
        if not retry:
            return _proceed(found, call, [])
        if call.input is not msgspec.UNSET:
            raise IllegalEvent("a retry takes no input; nothing was changed", hint="give --retry or --input, not both")
        with found.scope.locked(call.wait), shield():
            now = _demanded(current(found), call.parent)
            if now.sha256 != found.sha256:
                # The operator has seen another failure than the one that would be cleared.
                raise ConflictError(
                    f"the run {run} went on while this retry waited; nothing was changed",
                    hint=f"`stateline exec status {run}` shows where it stands now",
                )
            # The lock is ours, so whoever performed a started effect is gone; nobody has called since.
            found = apply(give_up(found), Retried())
        call = replace(call, parent=None)
        if call.one_turn and found.event["transitions"]:
            # A kept output was routed again: that was the turn.
            return outcome(found, one_turn=True, warnings=[])
        return _proceed(found, call, [])


def check_names(options: Options) -> None:
    """Raise ``UsageError`` for a malformed run id or context name."""
    if options.run is not None:
        naming.checked_id(options.run, "run id")
    if options.context is not None:
        naming.checked_id(options.context, "context name")


def find(store: Store, options: Options, machinery: Machinery) -> Run | None:
    """The run that ``execute`` means, or None if it will start one. Reads only."""
    if options.run is None:
        # An answer that names its request means that request's run, and never becomes a new run's input.
        return None if options.force else find_last(store, machinery) or answered_run(store, options.call.input)
    return None if run_scope(store, options.run).head() is None else load_run(store, options.run)


def current(run: Run) -> Run:
    """The run at its head as it is now. To be called with the lock held."""
    store = run.scope.store
    pointer = store.backend.read(run.scope.hash)
    if pointer == run.snapshot.pointer:
        return run
    return load_run(store, run.id) if pointer is None else read_run(store, run.scope, run.scope.load())


def change_of(run: Run, machinery: Machinery) -> MachineChanged | None:
    """The error for a machine file that is not the one the run goes by, or None. A complete run never minds."""
    if run.record.source.sha256 == machinery.sha256 or run.state.status == "complete":
        return None
    return MachineChanged(
        f"the machine file changed since the run {run.id} began: it was {run.record.source.sha256}, "
        f"it is {machinery.sha256}; nothing was changed",
        hint="--accept-change goes on with the new one, --force begins anew, --id NEW starts another run",
    )


def how_to_launch(options: Options) -> Launch:
    """What the options say about a new run."""
    call = options.call
    return Launch(
        run=options.run,
        force=options.force,
        input=None if call.input is msgspec.UNSET else call.input,
        labels=options.labels,
        context=options.context,
        parent=call.parent,
        wait=call.wait,
    )


def warnings_of(store: Store, machinery: Machinery, options: Options, name: str | None, run: Run | None) -> list[str]:
    """What the caller of ``execute`` should know: live runs of the machine besides the one called ``name``, and
    options that ``run`` does not heed because it began without them (None: it begins with this call). Reads only."""
    warnings = []
    live = others(store, machinery, name)
    if live:
        warnings.append(f"other unfinished runs of this machine: {', '.join(live)} (choose one with --id)")
    if run is None:
        return warnings
    if change_of(run, machinery) is not None:
        warnings.append(f"the machine file's change is accepted ({run.machine_sha[:8]} -> {machinery.sha256[:8]})")
    if options.labels:
        warnings.append(f"the run {run.id} keeps the labels with which it began; --label counts for new runs")
    context = run.state.context
    if options.context is not None and (context is None or context["scope"] != f"context:{options.context}"):
        has = "no context" if context is None else context["scope"]
        warnings.append(f"the run {run.id} keeps {has}, with which it began; --state-scope counts for new runs")
    return warnings


def _demand_wanted(run: Run, said: Json | msgspec.UnsetType) -> None:
    """Raise for an input that the run cannot take, before a changed or moved machine is recorded."""
    if said is msgspec.UNSET or is_in_doubt(run):  # then it is the lost effect's result
        return
    if not unwrap(run, said).again and run.state.status != "waiting":
        raise not_waiting(run)


def _accept(store: Store, run: Run, machinery: Machinery, call: Call) -> Run:
    machine = parse_machine(store, machinery)
    with run.scope.locked(call.wait), shield():
        now = _demanded(current(run), call.parent)
        if change_of(now, machinery) is None:
            return now
        advance(machine, now.state, Replaced())  # a machine that cannot be accepted is not stored either
        record = keep_machine(store, machinery.data, machinery.format, machine)
        moved = now.event["machine"]["path"] != machinery.path
        now = replace_machine(now, machine, record, machinery.path)
    if moved:
        remember(store, machinery, run.id)
    return now


def _move(store: Store, run: Run, machinery: Machinery, call: Call) -> Run:
    """The same machine in another place: programs are beside the file that this call names, and it finds the run."""
    with run.scope.locked(call.wait), shield():
        now = _demanded(current(run), call.parent)
        if now.event["machine"]["path"] == machinery.path or now.state.status == "complete":
            return now
        now = replace_machine(now, now.machine, now.record, machinery.path)
    remember(store, machinery, run.id)
    return now


def _proceed(run: Run, call: Call, warnings: list[str]) -> Outcome:
    """Answer, if the run waits and there is an answer; then turns, until one is done or the run stops."""
    _demanded(run, call.parent)
    said = answer_of(run, call)
    if said is not msgspec.UNSET:
        run = _take(run, said, call)
        if call.one_turn:
            return outcome(run, one_turn=call.one_turn, warnings=warnings)
        # Whoever piped one answer has no second one; and the head that was demanded has been met.
        call = replace(call, stdin=None, parent=None)
    return outcome(_turns(run, call), one_turn=call.one_turn, warnings=warnings)


def answer_of(run: Run, call: Call) -> Json | msgspec.UnsetType:
    """What the caller answers, or UNSET. Standard input answers people's questions only: it must not happen to settle
    what became of a lost effect."""
    if call.input is not msgspec.UNSET:
        return call.input
    if call.stdin is None or run.state.tree.phase != "waiting":
        return msgspec.UNSET
    with interruptible():
        return parse_answer(call.stdin())


def _take(run: Run, said: Json, call: Call) -> Run:
    """The run with the answer taken, unless it is the one that was given before."""
    if is_in_doubt(run):
        run = _lost(run, call)
        call = replace(call, parent=None)
    answer = unwrap(run, said)
    if not answer.again and run.state.status != "waiting":
        raise not_waiting(run)
    if answer.again:
        return run
    with run.scope.locked(call.wait), shield():
        now = current(run)
        if now.event.get("waiting") == run.event.get("waiting"):
            return apply(_demanded(now, call.parent), Answered(value=answer.value))
        if answer.named and unwrap(now, said).again:
            return now
        raise ConflictError(
            f"the run {run.id} went on while the answer was given; the answer was not taken",
            hint=f"`stateline exec status {run.id}` shows what it waits for now",
        )


def _lost(run: Run, call: Call) -> Run:
    """A run whose effect was started: with the lock ours, whoever performed it is gone, and nobody has called since."""
    with run.scope.locked(call.wait), shield():
        now = _demanded(current(run), call.parent)
        return give_up(now)


def _turns(run: Run, call: Call) -> Run:
    while run.state.status == "running":
        with run.scope.locked(call.wait):
            run = _demanded(current(run), call.parent)
            if run.state.status != "running":
                break
            run = turn(run, call.watch)
        call = replace(call, parent=None)
        # Standard input may hold an answer to the request that was open when the call began, never to one that the
        # call itself reaches: nobody can have seen that question.
        if call.one_turn:
            break
    return run


def _demanded(run: Run, parent: str | None) -> Run:
    """``run``, if its head is the one that ``--parent`` demands. Raises ``ConflictError`` otherwise."""
    demand_head(run.scope, run.snapshot, parent)
    return run
