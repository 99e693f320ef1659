"""A run in the store: read a snapshot into typed data, and write the next snapshot.

``state`` is what ``advance`` decides; what depends on clock, host or run id is in ``event``, which repeats what the
next call needs (the last paragraph of section "Runs" in ``docs/format.md`` lists its fields).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import VERSION, Pointer, Ref
from stateline.bundle.objects import Artifact, artifact_ref
from stateline.engine.event_codec import FREE, MALFORMED_HINT, Cost, is_calling_tools, read_event, restart_command
from stateline.errors import IntegrityError, NotFoundError, UsageError
from stateline.machine import spec
from stateline.machine.decider.conversation import conversation_problem
from stateline.machine.decider.run import Decision, Facts, Failure, Instance, RunState
from stateline.machine.spec import Machine
from stateline.redaction.redactor import Redactor
from stateline.store.protocol import FULL
from stateline.store.scope import Scope, make_durable
from stateline.store.snapshot import Snapshot, read_snapshot, require_known_version
from stateline.store.store import Store

_STATUS = {
    "ready": "running",
    "started": "running",
    "calling": "running",
    "waiting": "waiting",
    "unknown": "waiting",
    "failed": "error",
    "done": "complete",
    "cancelled": "cancelled",
}
"""The status of a run in each phase. Any other combination is refused: an effect could be performed at a wrong time."""


class MachineRecord(msgspec.Struct, frozen=True):
    """A machine as a run keeps it: the file's exact bytes and the canonical spec, both as objects."""

    format: str
    source: Ref
    spec: Ref


class ContextRef(msgspec.Struct, frozen=True):
    """The context with which a run started: its scope's key, and the digest of its state, which does not depend on the
    clock. The event names the snapshot."""

    scope: str
    sha256: str


class Context(msgspec.Struct, frozen=True):
    """The content of a context's snapshot: the SHA-256 of its state, prompts and settings, and the model, endpoint and
    toolset (a hash) that it was made for ("" for none, and for the provider's default endpoint)."""

    sha256: str
    facts: dict[str, Json]
    model: str = ""
    base_url: str = ""
    toolset: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one snapshot. ``extra`` keeps fields of ``state`` that a newer minor version wrote. ``began_with``
    returns the context with which it started (None without one), and reads it on the first call."""

    scope: Any  # store.Scope, which is not a msgspec type
    snapshot: Any  # store.Snapshot; None for a run that is about to begin
    record: MachineRecord
    machine: Machine
    state: RunState
    began_with: Callable[[], Context | None] = lambda: None
    extra: dict[str, Json] = {}

    def context(self) -> dict[str, Json] | None:
        """The prompts and settings of the context. Raises ``IntegrityError`` when that cannot be read."""
        found = self.began_with()
        return None if found is None else found.facts

    @property
    def id(self) -> str:
        return str(self.scope.key).partition(":")[2]

    @property
    def event(self) -> dict[str, Json]:
        """Of the snapshot; empty for a run that is about to begin."""
        event: dict[str, Json] = {} if self.snapshot is None else self.snapshot.event
        return event

    @property
    def sha256(self) -> str:
        """Of the snapshot."""
        return str(self.snapshot.sha256)

    @property
    def machine_sha(self) -> str:
        """Of the machine file's exact bytes."""
        return self.record.source.sha256


def run_scope(store: Store, run: str) -> Scope:
    """The scope of a run's chain."""
    return store.scope(f"run:{run}")


def keep_machine(store: Store, data: bytes, format: str, machine: Machine) -> MachineRecord:
    """Put a machine into the store, by digest. What is there already is not written again."""
    source = _source(data, format)
    return MachineRecord(format, store.put(source), store.put_value(spec.to_json(machine)))


def machine_record(data: bytes, format: str, machine: Machine) -> MachineRecord:
    """Return the record that :func:`keep_machine` would store; nothing is stored."""
    encoded = canonical.encode(spec.to_json(machine))
    return MachineRecord(format, artifact_ref(_source(data, format)), Ref(canonical.sha256(encoded), len(encoded)))


def _source(data: bytes, format: str) -> Artifact:
    from stateline.machine.definition.formats.reader import FORMATS

    return Artifact(data, {known.word: known.media_type for known in FORMATS}[format])


def read_run(store: Store, scope: Scope, snapshot: Snapshot) -> Run:
    """The run at ``snapshot``. Raises ``IntegrityError`` when a state is not a run's or an object is damaged."""
    whole = snapshot.state
    event = read_event(snapshot)
    try:
        record = msgspec.convert({name: whole["machine"][name] for name in ("format", "source", "spec")}, MachineRecord)
        machine = spec.from_json(canonical.decode(store.get(record.spec)))
        rest = store.resolve({name: value for name, value in whole.items() if name != "machine"})
        state = msgspec.convert(rest, RunState)
        if state.tree.stage not in machine.stages:
            raise KeyError(state.tree.stage)
        if state.status != _STATUS[state.tree.phase]:
            raise KeyError(f"status {state.status!r} in phase {state.tree.phase!r}")
        _require_performable(machine, state, snapshot.event)
        if state.context is not None:
            naming.checked_key(msgspec.convert(state.context, ContextRef).scope)
            if event.context is None or not naming.snapshot_parts(event.context.path):
                raise msgspec.ValidationError("its event does not name the snapshot of its context")
    except IntegrityError as error:
        from stateline.store.integrity import with_recovery_hint

        raise with_recovery_hint(scope.store.backend, scope.key, error) from None
    except (KeyError, TypeError, AttributeError, UsageError, msgspec.ValidationError) as error:
        if snapshot.envelope.version != VERSION:
            require_known_version(snapshot)
        raise IntegrityError(
            f"the snapshot {snapshot.path} does not hold a run's state: {error}",
            finding="malformed",
            hint=MALFORMED_HINT,
        ) from None
    known = set(RunState.__struct_fields__)
    restart = restart_command(scope.key.partition(":")[2], snapshot.event)
    return Run(
        scope=scope,
        snapshot=snapshot,
        record=record,
        machine=machine,
        state=state,
        # It stays the same for the whole chain, so it is read once in a call, however many turns that has.
        began_with=cache(partial(context_of, store, state.context, event.context, restart)),
        extra={name: value for name, value in rest.items() if name not in known},
    )


def _require_performable(machine: Machine, state: RunState, event: dict[str, Json]) -> None:
    """Raise ``KeyError`` for an effect without an idempotency key, or one that cannot be performed."""
    tree = state.tree
    problem = conversation_problem(state)
    if problem:
        raise KeyError(problem)
    if is_calling_tools(tree):
        keys = event["calls"]["keys"]
        tools = machine.toolset.tools if machine.toolset is not None else {}
        missing = [call["id"] for call in tree.pending if call["id"] not in keys]
        if tree.phase != "failed":  # a retry checks the calls again, with the machine of that time
            undone = [call["name"] for call in tree.pending if call["status"] != "done"]
            missing += [name for name in undone if name not in tools]
        if missing:
            raise KeyError(missing[0])
    at_model = tree.phase == "waiting" and machine.stages[tree.stage].kind == "agent"
    needed = at_model or tree.phase in ("ready", "started", "unknown")
    if needed and not is_calling_tools(tree) and "effect" not in event:
        raise KeyError("effect")


def load_run(store: Store, run: str) -> Run:
    """The run with that id at its head. Raises ``NotFoundError`` or ``IntegrityError``."""
    scope = run_scope(store, run)
    head = scope.head()
    if head is None:
        where = store.backend.describe()
        raise NotFoundError(f"there is no run {run} in {where}", hint="`stateline exec list` lists the runs there are")
    return read_run(store, scope, head)


def write_run(run: Run, decision: Decision, event: dict[str, Json]) -> Run:
    """Save a decision as the next snapshot; return the run as stored. Its state must have been masked.

    Raises as ``Scope.save``; ``ConflictError`` if the run is not the head any more.
    """
    state = {**run.extra, **msgspec.to_builtins(decision.state), "machine": asdict(run.record)}
    _settle_context(run, decision.state.context, event.get("context"))
    snapshot = run.scope.save(state, kind="run", event=event, parent=run.snapshot, masked=True)
    return replace(run, snapshot=snapshot, state=decision.state)


def _settle_context(run: Run, context: Json, place: Json) -> None:
    """Make the context durable before a snapshot names it. The context of the last full snapshot is durable already."""
    store, before = run.scope.store, run.snapshot
    if not isinstance(context, dict) or store.backend.durability != FULL:
        return
    if before is None or before.event.get("durability") != FULL or before.event.get("context") != place:
        scope = store.scope(str(context["scope"]))
        make_durable(scope, read_snapshot(store.backend, scope.hash, Pointer(place["path"], place["sha256"])))


def mask_state(redactor: Redactor, state: RunState, before: Instance | None = None) -> tuple[RunState, int]:
    """Return ``state`` with secrets masked in values from people and programs, and their number.

    Names of stages and fields are kept: a secret that equals one of them must not break a run. So outputs are masked
    one by one, without the stage's name as their key. Messages of ``before`` were masked when they were added. Pending
    calls consist of a reply and results that were masked before.
    """
    counts = []

    def mask(value: Json) -> Json:
        value, count = redactor.redact(value)
        counts.append(count)
        return value

    def mask_failure(failure: Failure | None) -> Failure | None:
        return failure and replace(failure, message=mask(failure.message), hint=mask(failure.hint))

    tree = replace(
        state.tree,
        error=mask_failure(state.tree.error),
        cause=mask_failure(state.tree.cause),
        conversation=_masked_conversation(mask, state.tree.conversation, before.conversation if before else []),
    )
    masked = replace(
        state,
        input=mask(state.input),
        state=mask(state.state),
        outputs={stage: mask(output) for stage, output in state.outputs.items()},
        labels={name: mask(value) for name, value in state.labels.items()},
        tree=tree,
    )
    return masked, sum(counts)


def _masked_conversation(mask: Callable[[Json], Json], messages: list[Json], known: list[Json]) -> list[Json]:
    held = 0
    while held < min(len(known), len(messages)) and known[held] is messages[held]:
        held += 1
    return [*messages[:held], *(message | {"content": mask(message["content"])} for message in messages[held:])]


def mask_calls(mask: Callable[[Json], Json], calls: list[Json]) -> list[Json]:
    """Return the tool calls of a reply with secrets masked in all values, and field names kept."""
    return [
        {name: mask(value) for name, value in call.items()} if isinstance(call, dict) else mask(call) for call in calls
    ]


def context_of(store: Store, context: Json, place: Pointer | None, restart: str) -> Context | None:
    """Return the context with which a run started, from the snapshot at ``place``; None without one. ``restart`` is the
    command for hints.

    Raises ``IntegrityError`` if it is missing or damaged, or if its digest is not the one in the run.
    """
    if not isinstance(context, dict) or place is None:
        return None
    scope = store.scope(str(context["scope"]))
    restart = f"a run whose context is lost can only be restarted: `{restart}`"
    try:
        found = read_context(store, read_snapshot(store.backend, scope.hash, place))
    except IntegrityError as error:
        from stateline.store.integrity import with_recovery_hint

        shown = with_recovery_hint(scope.store.backend, scope.key, error)
        # Once the scope is repaired, what was lost stays lost, and this run cannot do without it.
        raise IntegrityError(
            f"the context with which the run started cannot be read: {shown.message}",
            finding=error.finding,
            hint=f"{shown.hint}; {restart}",
        ) from None
    if found.sha256 != context["sha256"]:
        raise IntegrityError(
            f"the snapshot {place.path} of {scope.key} is not the context that the run began with: the SHA-256 of its "
            f"state is {found.sha256}, the run says {context['sha256']}; nothing was changed",
            finding="altered",
            hint=f"look for the snapshot with that state in a copy of the store; {restart}",
        )
    return found


def read_context(store: Store, context: Snapshot) -> Context:
    """Return the content of a context's snapshot; reads its objects. Raises ``IntegrityError`` if it is not a context.

    The digest is that of the canonical form of the resolved state, so equal contexts have equal digests in every store.
    An artifact is represented by its entry in the table of objects.
    """
    state = store.resolve(context.state)
    if not isinstance(state, dict) or not {"prompts", "settings"} <= state.keys():
        raise IntegrityError(
            f"the snapshot {context.path} of {context.envelope.scope} does not hold a context",
            finding="malformed",
            hint=MALFORMED_HINT,
        )
    whole = canonical.map_leaves(state, lambda leaf: leaf.document() if isinstance(leaf, Ref) else leaf)
    digest = canonical.sha256(canonical.encode(whole, depth=canonical.FILE_DEPTH))
    made_for = (state.get(name) for name in ("model_id", "base_url", "toolset_hash"))
    model, base_url, toolset = (name if isinstance(name, str) else "" for name in made_for)
    return Context(digest, {"prompts": state["prompts"], "settings": state["settings"]}, model, base_url, toolset)


def facts_of(run: Run, cost: Cost = FREE, *, manual: bool = True) -> Facts:
    """Return the facts for ``advance``: meters so far plus ``cost``, the context, and ``manual`` (no model)."""
    meters = run.event.get("meters") or {}
    tokens = meters.get("tokens") or {}
    return Facts(
        active=float(meters.get("active", 0.0)) + cost.seconds,
        llm_calls=int(meters.get("llm_calls", 0)) + cost.llm_calls,
        tool_rounds=int(meters.get("tool_rounds", 0)),
        tokens=sum(int(tokens.get(name, 0)) + getattr(cost.tokens, name) for name in ("input", "output")),
        manual=manual,
        context=run.context(),
    )
