"""The verbs ``execute`` and ``exec resume``: run a machine to its end, or by one turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import MANUAL, Dependencies
from stateline.engine.effects import DryRunStop
from stateline.engine.loop import Watch, asked, may_call_model, turn
from stateline.engine.record import Run, facts_of, keep_machine, load_run, read_run, run_scope
from stateline.engine.step import (
    EventContext,
    apply,
    give_up,
    is_effect_lost,
    is_waiting_for_reply,
    lost_effect_events,
    replace_machine,
    take,
)
from stateline.errors import ConflictError, IllegalEventError, MachineChangedError, PlaybackMissError, StatelineError
from stateline.history.preconditions import require_head
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Answered, Replaced, Retried
from stateline.machine.spec import Machine
from stateline.process.signals import Signals, interruptible, shield
from stateline.service.answers import (
    Reader,
    answered_run,
    as_event,
    fingerprint,
    is_built_in,
    not_waiting_error,
    parse_answer,
    parse_model_reply,
    parse_text,
    restart_commands,
    unwrap,
)
from stateline.service.create_run import (
    DependenciesFor,
    MachineFile,
    NewRunOptions,
    create_run,
    current_tools_digest,
    find_unfinished,
    no_model,
    other_unfinished,
    parse_machine,
    read_machine_file,
    record_run,
    require_no_foreign_answer,
    tools_record,
)
from stateline.service.outcome import Outcome, outcome
from stateline.service.preconditions import require_names
from stateline.store.scope import WAIT
from stateline.store.store import Store

CONTINUE: Json = {"action": "continue"}
"""The answer where nothing is asked but to go on."""


def _silent(run: Run, what: str) -> None:
    """Nobody watches."""


def _no_exchanges() -> Json:
    """Exchanges with models are neither recorded nor played back."""
    return None


def _nothing_to_add(run: Run) -> list[str]:
    """The caller's means have nothing to say at the end of a call."""
    return []


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What every call that moves a run says.

    ``input`` is UNSET without ``--input``; ``stdin`` reads standard input to its end, None when it must not be read;
    ``input_format`` is that of standard input: ``text`` is never read as JSON. ``parent`` demands a head by revision;
    ``wait`` [s] bounds the wait for a lock; ``watch`` is told of each attempt. ``dependencies`` is asked before each turn,
    each answer and each retry, and at first, so that what the run does not allow is refused; ``exchanges`` gives what
    the event of a run that begins says under that name (None: nothing); ``closing`` gives warnings once the run stands
    where the call leaves it.
    """

    one_turn: bool = False
    input: Json | msgspec.UnsetType = msgspec.UNSET
    stdin: Reader | None = None
    input_format: Literal["json", "text"] = "json"
    parent: str | None = None
    wait: float = WAIT
    watch: Watch = _silent
    dependencies: DependenciesFor = no_model
    exchanges: Callable[[], Json] = _no_exchanges
    closing: Callable[[Run], list[str]] = _nothing_to_add


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller of ``execute`` asked for. ``run`` None: the machine file's last unfinished run, or a new one."""

    machine: str
    run: str | None = None
    force: bool = False
    accept_change: bool = False
    labels: dict[str, str] = {}
    context: str | None = None
    call: Call = Call()

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for a malformed run id or context name."""
        require_names(self.run, self.context)


def execute(store: Store, options: Options) -> Outcome:
    """Go on with the machine's unfinished run, or start one; to its end, or by one turn.

    Raises a ``StatelineError`` for what keeps it from being done, ``Interrupted`` for a signal; a run that failed is
    an outcome, not an error.
    """
    machine_file = read_machine_file(options.machine)
    with Signals() as signals:
        run = find(store, options, machine_file)
        signals.run = run.id if run is not None else None
        began = False
        call = options.call
        if run is None or options.force:
            run, began = create_run(store, new_run_options(options), machine_file)
            signals.run = run.id
            if not began:
                _require_same_machine(run, machine_file, call)
            # What stands on standard input was meant for no question of that run.
            call = replace(call, stdin=None)
        warnings = warnings_of(store, machine_file, options, run.id, None if began else run)
        if began:
            call = replace(call, input=msgspec.UNSET, parent=None)
        elif (changed := machine_change(run, machine_file)) is not None:
            if not options.accept_change:
                raise changed
            if run.state.status != "complete":
                _require_input_expected(run, call.input)
                run = _accept(store, run, machine_file, call)
                call = replace(call, parent=None)
        elif run.state.status != "complete" and run.event["machine"]["path"] != machine_file.path:
            _require_input_expected(run, call.input)
            run = _move(store, run, machine_file, call)
            call = replace(call, parent=None)
        return continue_run(run, call, warnings)


def resume(store: Store, run: str, call: Call, *, retry: bool = False) -> Outcome:
    """Go on with a run by its id, from the machine that the store keeps. ``retry`` first clears an error, or lets an
    effect whose outcome is unknown run again (``IllegalEventError`` if there is nothing to retry)."""
    naming.checked_id(run, "run id")
    with Signals() as signals:
        found = load_run(store, run)
        signals.run = run
        if not retry:
            return continue_run(found, call, [])
        require_no_input(call)
        with found.scope.locked(call.wait), shield():
            now = _require_parent(current(found), call.parent)
            if now.sha256 != found.sha256:
                # The operator has seen another failure than the one that would be cleared.
                raise ConflictError(
                    f"the run {run} went on while this retry waited; nothing was changed",
                    hint=f"`stateline exec status {run}` shows where it stands now",
                )
            # The lock is ours, so whoever performed a started effect is gone; nobody has called since.
            found = _retried(found, call)
        # Nothing was asked when the call began, so what stands on standard input answers nothing that it comes to.
        call = replace(call, parent=None, stdin=None)
        if call.one_turn and found.event["transitions"]:
            # A kept output was routed again: that was the turn.
            return outcome(found, one_turn=True, warnings=call.closing(found))
        return continue_run(found, call, [])


def require_no_input(call: Call) -> None:
    """Raise ``IllegalEventError`` for a retry that brings an answer."""
    if call.input is not msgspec.UNSET:
        raise IllegalEventError("a retry takes no input; nothing was changed", hint="give --retry or --input, not both")


def _retried(run: Run, call: Call) -> Run:
    # What performs the effects of a failed run is not looked for, so that it can be reported without. This one goes on.
    dependencies = call.dependencies(replace(run, state=replace(run.state, status="running")))
    _require_ready(run, call, dependencies)
    return asked(apply(give_up(run), Retried(), dependencies), dependencies)


def _require_ready(run: Run, call: Call, dependencies: Dependencies) -> None:
    """Raise what keeps the model from being called, if a retry comes to that, before the retry is saved."""
    state = run.state
    for event in lost_effect_events(run):
        state = advance(run.machine, state, event, facts_of(run)).state
    retried = advance(run.machine, state, Retried(), facts_of(run, manual=dependencies.manual))
    tree = retried.state.tree
    at_model = tree.phase == "ready" and run.machine.stages[tree.stage].kind == "agent"
    if dependencies.ready is not None and at_model and not (call.one_turn and retried.transitions):
        dependencies.ready()


def find(store: Store, options: Options, machine_file: MachineFile) -> Run | None:
    """The run that ``execute`` means, or None if it will start one. Reads only."""
    # An answer that names its request means that request's run, and never becomes a new run's input.
    if options.run is None and not options.force:
        return find_unfinished(store, machine_file) or answered_run(store, options.call.input)
    there = options.run is not None and run_scope(store, options.run).head() is not None
    if options.force or not there:
        require_no_foreign_answer(store, options.run, options.call.input)
    return load_run(store, options.run) if options.run is not None and there else None


def _require_same_machine(run: Run, machine_file: MachineFile, call: Call) -> None:
    """Raise ``ConflictError`` unless ``run``, which another process began meanwhile, is the one that this call would
    have begun."""
    hint = f"`stateline exec status {run.id}` shows where it stands; --id NEW starts another run"
    if call.input is not msgspec.UNSET:
        raise ConflictError(
            f"another process began the run {run.id} meanwhile; the input of this call was not used", hint=hint
        )
    if (run.machine_sha, run.event["machine"]["path"]) != (machine_file.sha256, machine_file.path):
        raise ConflictError(
            f"another process began the run {run.id} meanwhile, from another machine; nothing was changed", hint=hint
        )


def current(run: Run) -> Run:
    """The run at its head as it is now. To be called with the lock held. Raises ``ConflictError`` if that is another
    run under the same id: nothing that this call knows of is true of it."""
    store = run.scope.store
    pointer = store.backend.read(run.scope.hash)
    if pointer == run.snapshot.pointer:
        return run
    now = load_run(store, run.id) if pointer is None else read_run(store, run.scope, run.scope.load())
    # The draw at a run's birth is no sign of it: a repair draws again.
    if now.event["started_at"] != run.event["started_at"]:
        raise ConflictError(
            f"the run {run.id} was begun anew meanwhile; this call went no further and left it as it is",
            hint=f"`stateline exec status {run.id}` shows where it stands now",
        )
    return now


def machine_change(run: Run, machine_file: MachineFile) -> MachineChangedError | None:
    """The error for a machine file that is not the one the run goes by, wherever either lies, or None. Of a complete
    run too: what another machine gave is not to be taken for what this one gives."""
    if run.machine_sha == machine_file.sha256:
        return _tools_change(run, machine_file)
    path, here = str(run.event["machine"]["path"]), machine_file.path
    said = (
        f"the machine file changed since the run {run.id} began: it was {run.machine_sha}, it is {machine_file.sha256}"
    )
    if is_built_in(run.event):
        said = (
            f"the run {run.id} was begun by a prompt: its machine is {run.machine_sha}, {here} is {machine_file.sha256}"
        )
    elif path != here:
        said = (
            f"the run {run.id} began from another file: {path} was {run.machine_sha}, {here} is {machine_file.sha256}"
        )
    return MachineChangedError(f"{said}; nothing was changed", hint=_change_hint(run))


def _tools_change(run: Run, machine_file: MachineFile) -> MachineChangedError | None:
    """The same for the tools manifest of an unchanged machine file: its tools are a part of the machine."""
    kept = (run.event.get("tools") or {}).get("sha256")
    try:
        now = current_tools_digest(run, machine_file)
    except StatelineError:
        if run.state.status != "complete":  # it needs its tools no more
            raise
        return None
    if kept == now:
        return None
    return MachineChangedError(
        f"the tools manifest changed since the run {run.id} began: it was {kept}, it is {now}; nothing was changed",
        hint=_change_hint(run),
    )


def _change_hint(run: Run) -> str:
    """What can be done where the machine is another."""
    more = "--force begins it anew with this one, --id NEW starts another run"
    if run.state.status == "complete":
        return f"`stateline exec show {run.id}` shows what it gave (as does --accept-change); {more}"
    return f"--accept-change goes on with the new one, {more}"


def new_run_options(options: Options) -> NewRunOptions:
    """What the options say about a new run."""
    call = options.call
    return NewRunOptions(
        run=options.run,
        force=options.force,
        input=None if call.input is msgspec.UNSET else call.input,
        labels=options.labels,
        context=options.context,
        dependencies=call.dependencies,
        exchanges=call.exchanges(),
        parent=call.parent,
        wait=call.wait,
    )


def warnings_of(
    store: Store, machine_file: MachineFile, options: Options, name: str | None, run: Run | None
) -> list[str]:
    """What the caller of ``execute`` should know: live runs of the machine besides the one called ``name``, and
    options that ``run`` does not heed because it began without them (None: it begins with this call). Reads only."""
    warnings = []
    live = other_unfinished(store, machine_file, name)
    if live:
        warnings.append(f"other unfinished runs of this machine: {', '.join(live)} (choose one with --id)")
    if run is None:
        return warnings
    if machine_change(run, machine_file) is not None:
        what, change = "machine file", (run.machine_sha, machine_file.sha256)
        if change[0] == change[1]:
            what, change = (
                "tools manifest",
                (str(run.event["tools"]["sha256"]), str(current_tools_digest(run, machine_file))),
            )
        told = f"the {what}'s change is accepted ({change[0][:8]} -> {change[1][:8]})"
        if run.state.status == "complete":
            told += f", and nothing was run: the run {run.id} is complete, and was before"
        warnings.append(told)
    if options.labels:
        warnings.append(f"the run {run.id} keeps the labels with which it began; --label counts for new runs")
    context = run.state.context
    if options.context is not None and (context is None or context["scope"] != f"context:{options.context}"):
        has = "no context" if context is None else context["scope"]
        warnings.append(f"the run {run.id} keeps {has}, with which it began; --state-scope counts for new runs")
    return warnings


def _require_input_expected(run: Run, said: Json | msgspec.UnsetType) -> None:
    """Raise for an input that the run cannot take, before a changed or moved machine is recorded."""
    if said is msgspec.UNSET or is_effect_lost(run):  # then it is the lost effect's result
        return
    if not unwrap(run, said).again and run.state.status != "waiting":
        raise not_waiting_error(run)


def _accept(store: Store, run: Run, machine_file: MachineFile, call: Call) -> Run:
    machine = parse_machine(store, machine_file)
    with run.scope.locked(call.wait), shield():
        now = _require_parent(current(run), call.parent)
        if now.state.status == "complete" or machine_change(now, machine_file) is None:
            return now
        advance(machine, now.state, Replaced())  # a machine that cannot be accepted is not stored either
        record = keep_machine(store, machine_file.data, machine_file.format, machine)
        moved = now.event["machine"]["path"] != machine_file.path
        now = replace_machine(now, machine, record, _places(now, machine, machine_file))
    if moved:
        record_run(store, machine_file, run.id)
    return now


def _move(store: Store, run: Run, machine_file: MachineFile, call: Call) -> Run:
    """The same machine in another place: programs are beside the file that this call names, and it finds the run."""
    with run.scope.locked(call.wait), shield():
        now = _require_parent(current(run), call.parent)
        if now.event["machine"]["path"] == machine_file.path or now.state.status == "complete":
            return now
        now = replace_machine(now, now.machine, now.record, _places(now, now.machine, machine_file))
    record_run(store, machine_file, run.id)
    return now


def _places(run: Run, machine: Machine, machine_file: MachineFile) -> dict[str, Json]:
    """Where machine and tools lie, as the event has it."""
    places: dict[str, Json] = {
        "machine": {"path": machine_file.path, "name": machine.name, "sha256": machine_file.sha256},
    }
    tools = tools_record(machine, machine_file)
    return places if tools is None else places | {"tools": tools}


def continue_run(run: Run, call: Call, warnings: list[str]) -> Outcome:
    """Answer, if the run waits and there is an answer; then turns, until one is done or the run stops.

    To be called inside ``Signals``. Raises as :func:`execute`.
    """
    _require_parent(run, call.parent)
    call.dependencies(run)
    said = answer_of(run, call)
    if said is not msgspec.UNSET and not (
        said == CONTINUE and run.state.status == "running" and not is_effect_lost(run)
    ):
        run = _take(run, said, call)
        # Whoever piped one answer has no second one; and the head that was demanded has been met.
        call = replace(call, stdin=None, parent=None)
        if call.one_turn and run.state.tree.phase != "calling":
            return _outcome(run, call, warnings)
        # The tools that an answer calls belong to its turn.
    try:
        run = _turns(run, call)
    except PlaybackMissError as miss:
        another, anew = restart_commands(run)
        way = f"`{anew}` begins it anew, `{another}` another run"
        way = f"{miss.hint}. {way}" if miss.diverged else f"{miss.hint}. The run {run.id} waits to go on; {way}"
        told = dict.fromkeys([*warnings, *call.closing(run), *miss.warnings])
        raise miss.with_hint(way, list(told)) from None
    except DryRunStop as stop:
        stop.warnings = [*warnings, *call.closing(stop.run)]
        raise
    return _outcome(run, call, warnings)


def _outcome(run: Run, call: Call, warnings: list[str]) -> Outcome:
    warnings = [*warnings, *call.closing(run)]
    dependencies = call.dependencies(run) if is_waiting_for_reply(run) else MANUAL
    return outcome(run, one_turn=call.one_turn, warnings=warnings, dependencies=dependencies)


def answer_of(run: Run, call: Call) -> Json | msgspec.UnsetType:
    """What the caller answers, or UNSET. Standard input answers open questions only: it must not happen to settle what
    became of a lost effect, nor stand in for a model that this call has."""
    if call.input is not msgspec.UNSET:
        return call.input
    if call.stdin is None or run.state.tree.phase != "waiting":
        return msgspec.UNSET
    if is_waiting_for_reply(run) and may_call_model(run, call.dependencies(run)):
        return msgspec.UNSET
    with interruptible():
        data = call.stdin()
    if call.input_format == "text":
        return parse_text(data)
    return parse_model_reply(data) if is_waiting_for_reply(run) else parse_answer(data)


def _take(run: Run, said: Json, call: Call) -> Run:
    """The run with the answer taken, unless it is the one that was given before."""
    if is_effect_lost(run):
        run = _lost(run, call)
        call = replace(call, parent=None)
    answer = unwrap(run, said)
    if not answer.again and run.state.status != "waiting":
        raise not_waiting_error(run)
    if answer.again:
        return run
    with run.scope.locked(call.wait), shield():
        now = current(run)
        if now.event.get("waiting") == run.event.get("waiting"):
            now = _require_parent(now, call.parent)
            dependencies = call.dependencies(now)
            value, masked = as_event(now, answer.value)
            told = {"answered": fingerprint(now, answer.value)}
            happened = EventContext(event=Answered(value=value), dependencies=dependencies, told=told, masked=masked)
            return asked(take(now, happened), dependencies)
        if answer.named and unwrap(now, said).again:
            return now
        raise ConflictError(
            f"the run {run.id} went on while the answer was given; the answer was not taken",
            hint=f"`stateline exec status {run.id}` shows what it waits for now",
        )


def _lost(run: Run, call: Call) -> Run:
    """A run whose effect was started: with the lock ours, whoever performed it is gone, and nobody has called since."""
    with run.scope.locked(call.wait), shield():
        now = _require_parent(current(run), call.parent)
        return give_up(now)


def _turns(run: Run, call: Call) -> Run:
    while can_continue(run, call):
        with run.scope.locked(call.wait):
            run = _require_parent(current(run), call.parent)
            if not can_continue(run, call):
                break
            run = turn(run, call.watch, call.dependencies(run))
        call = replace(call, parent=None)
        # Standard input may hold an answer to the request that was open when the call began, never to one that the
        # call itself reaches: nobody can have seen that question.
        if call.one_turn:
            break
    return run


def can_continue(run: Run, call: Call) -> bool:
    """Whether there is something for this call to perform. Raises as ``call.means``."""
    return run.state.status == "running" or (is_waiting_for_reply(run) and may_call_model(run, call.dependencies(run)))


def _require_parent(run: Run, parent: str | None) -> Run:
    """``run``, if its head is the one that ``--parent`` demands. Raises ``ConflictError`` otherwise."""
    require_head(run.scope, run.snapshot, parent)
    return run
