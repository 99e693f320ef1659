"""The verbs ``execute`` and ``exec resume``: run a machine to its end, or by one turn."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.interrupts import Signals, interruptible, shield
from stateline.engine.loop import Watch, apply, replace_machine, turn
from stateline.engine.record import Run, keep_machine, load_run, read_run, run_scope
from stateline.errors import ConflictError, IllegalEvent, MachineChanged
from stateline.machine.run import Answered, Retried
from stateline.service.answers import Reader, not_waiting, parse_answer, unwrap
from stateline.service.launch import Launch, Machinery, find_last, launch, others, parse_machine, read_machinery
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
    if options.run is not None:
        naming.checked_id(options.run, "run id")
    machinery = read_machinery(options.machine)
    with Signals():
        run = find(store, options, machinery)
        began = False
        if run is None or options.force:
            run, began = launch(store, how_to_launch(options), machinery)
        call = replace(options.call, input=msgspec.UNSET, parent=None) if began else options.call
        if not began:
            run = _with_machine(store, run, machinery, options)
        return _proceed(store, run, call, _warnings(store, machinery, run, options))


def resume(store: Store, run: str, call: Call, *, retry: bool = False) -> Outcome:
    """Go on with a run by its id, from the machine that the store keeps. ``retry`` first clears an error, or lets an
    effect whose outcome is unknown run again (``IllegalEvent`` if there is nothing to retry)."""
    naming.checked_id(run, "run id")
    with Signals():
        found = load_run(store, run)
        if not retry:
            return _proceed(store, found, call, [])
        if call.input is not msgspec.UNSET:
            raise IllegalEvent("a retry takes no input; nothing was changed", hint="give --retry or --input, not both")
        with found.scope.locked(call.wait), shield():
            found = apply(_demanded(current(found), call.parent), Retried())
        call = replace(call, parent=None)
        if call.one_turn and found.event["transitions"]:
            # A kept output was routed again: that was the turn.
            return outcome(found, one_turn=True, warnings=[])
        return _proceed(store, found, call, [])


def find(store: Store, options: Options, machinery: Machinery) -> Run | None:
    """The run that ``execute`` means, or None if it will start one. Reads only."""
    if options.run is None:
        return None if options.force else find_last(store, machinery)
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
        wait=call.wait,
    )


def _warnings(store: Store, machinery: Machinery, run: Run, options: Options) -> list[str]:
    warnings = []
    live = others(store, machinery, run.id)
    if live:
        warnings.append(f"other unfinished runs of this machine: {', '.join(live)} (choose one with --id)")
    context = run.state.context
    if options.context is not None and (context is None or context["scope"] != f"context:{options.context}"):
        has = "no context" if context is None else context["scope"]
        warnings.append(f"the run {run.id} keeps {has}, with which it began; --state-scope counts for new runs")
    return warnings


def _with_machine(store: Store, run: Run, machinery: Machinery, options: Options) -> Run:
    changed = change_of(run, machinery)
    if changed is None:
        return run
    if not options.accept_change:
        raise changed
    machine = parse_machine(store, machinery)
    with run.scope.locked(options.call.wait), shield():
        record = keep_machine(store, machinery.data, machinery.format, machine)
        return replace_machine(current(run), machine, record)


def _proceed(store: Store, run: Run, call: Call, warnings: list[str]) -> Outcome:
    """Answer, if the run waits and there is an answer; then turns, until one is done or the run stops."""
    answered = False
    if call.input is not msgspec.UNSET or run.state.status == "waiting":
        value = _answer(run, call)
        if value is not msgspec.UNSET:
            value, again = unwrap(run, value)
            if again:
                return outcome(run, one_turn=call.one_turn, warnings=warnings)
            if run.state.status != "waiting":
                raise not_waiting(run)
            run = _take(run, value, call)
            answered = True
            # Whoever piped one answer has no second one; and the head that was demanded has been met.
            call = replace(call, stdin=None, parent=None)
    if not (answered and call.one_turn):
        run = _turns(run, call)
    return outcome(run, one_turn=call.one_turn, warnings=warnings)


def _answer(run: Run, call: Call) -> Json | msgspec.UnsetType:
    """What the caller answers, or UNSET. Standard input answers people's questions only: it must not happen to settle
    what became of a lost effect."""
    if call.input is not msgspec.UNSET:
        return call.input
    if call.stdin is None or run.state.tree.phase != "waiting":
        return msgspec.UNSET
    with interruptible():
        return parse_answer(call.stdin())


def _take(run: Run, value: Json, call: Call) -> Run:
    request = run.event.get("waiting")
    with run.scope.locked(call.wait), shield():
        now = _demanded(current(run), call.parent)
        if now.event.get("waiting") != request:
            raise ConflictError(
                f"the run {run.id} went on while the answer was given; the answer was not taken",
                hint=f"`stateline exec status {run.id}` shows what it waits for now",
            )
        return apply(now, Answered(value=value))


def _turns(run: Run, call: Call) -> Run:
    while run.state.status == "running":
        with run.scope.locked(call.wait):
            run = _demanded(current(run), call.parent)
            if run.state.status != "running":
                break
            run = turn(run, call.watch)
        call = replace(call, parent=None)
        if call.one_turn:
            break
        if run.state.status == "waiting":
            value = _answer(run, replace(call, input=msgspec.UNSET))
            if value is not msgspec.UNSET:
                run = _take(run, unwrap(run, value)[0], call)
                call = replace(call, stdin=None)
    return run


def _demanded(run: Run, parent: str | None) -> Run:
    """``run``, if its head is the one that ``--parent`` demands. Raises ``ConflictError`` otherwise."""
    if parent is not None:
        from stateline.history.revision import find as find_revision

        wanted = find_revision(run.scope.store, parent).sha256
        if wanted != run.sha256:
            raise ConflictError(
                f"the head of run {run.id} is {run.sha256}, not {wanted}; nothing was changed",
                hint="look at the head again (`stateline log`), then repeat the call",
            )
    return run
