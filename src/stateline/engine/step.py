"""One step of a run: decide on an event, and save the decision as one snapshot.

Secrets are masked before the decision. A result that was obtained is saved even if the decision on it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import MANUAL, Dependencies
from stateline.engine.event_codec import FREE, Cost, is_calling_tools
from stateline.engine.next_event import carried, counts_call_first, describe
from stateline.engine.record import MachineRecord, Run, facts_of, mask_calls, mask_state, write_run
from stateline.errors import ConflictError, DurabilityUnknownError, InvalidValueError, StatelineError, StorageError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.handlers import keep_unsettled
from stateline.machine.decider.run import (
    Answered,
    CallEnded,
    CallsIntended,
    Decision,
    Event,
    Failed,
    Intended,
    Lost,
    Replaced,
    Replied,
    Succeeded,
    Unsent,
)
from stateline.machine.spec import Machine, Stage
from stateline.store.store import Store

SHOWN_RESULT = 4000
"""The largest part of an unsaved result that an error shows [characters]."""


class EventContext(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its cost, the dependencies of the call, and members for the snapshot's event, without secrets.
    ``partial`` is a reply that was not used, as far as it arrived. ``interrupted`` is a signal that arrived meanwhile,
    to be raised after the save."""

    event: Event
    cost: Cost = FREE
    dependencies: Dependencies = MANUAL
    members: dict[str, Json] = {}
    masked: int = 0
    partial: Json = None
    interrupted: Any = None  # a BaseException, which is not a msgspec type


def apply(run: Run, event: Event, dependencies: Dependencies = MANUAL) -> Run:
    """Decide, and save the decision, for an event that used nothing that is metered. See :func:`take`."""
    return take(run, EventContext(event=event, dependencies=dependencies))


def take(run: Run, context: EventContext) -> Run:
    """Decide, and save the decision.

    Raises as ``advance`` and ``Scope.save``; nothing has changed then. If it is the result of an effect that cannot be
    saved, the error says what the result was: it exists nowhere else.
    """
    store, given = run.scope.store, context
    event, masked = _masked(store, run, context.event)
    context = replace(context, event=event, cost=_full_cost(run, event, context.cost))
    decision = _decide(run, context)
    document = carried(run, event, context.cost) | context.members
    if "model" in document:
        document["model_used"] = document["model"]["name"]
    if decision.state.outputs is not run.state.outputs:  # an output was kept, even if it equals the previous one
        document["output_of"] = run.state.tree.stage
    state, found = mask_state(store.redactor, decision.state, run.state.tree)
    decision = replace(decision, state=state)
    masks = masked + found + context.masked
    refused = msgspec.to_builtins(event) if decision.refused else context.partial
    if refused is not None:
        from stateline.engine.refused_reply import refused_reply

        document["refused"], found = refused_reply(store, refused)
        masks += found
    if masks:
        document["redactions"] = masks
    try:
        return write_run(run, decision, describe(run, event, decision, document))
    except (StorageError, ConflictError, InvalidValueError) as error:
        if isinstance(event, Replied) and isinstance(error, InvalidValueError):
            # A lowered limit refuses the reply. As a failure it is not paid for again when the line is repeated.
            with suppress(InvalidValueError):
                return take(run, _over_limit(given, event, error))
        if isinstance(event, Succeeded | Replied | CallEnded) and not isinstance(error, DurabilityUnknownError):
            raise _unsaved(run, event, error) from None
        raise


def _over_limit(context: EventContext, event: Replied, error: StatelineError) -> EventContext:
    failed = Failed(
        kind="reply", message=f"the reply cannot be stored: {error.message}", hint=error.hint, permanent=True
    )
    return replace(context, event=failed, partial=msgspec.to_builtins(event))


def add_to(error: StatelineError, more: str) -> None:
    """Let ``error`` say what else went wrong."""
    error.message = f"{error.message}; and {more}"
    error.args = (error.message,)


def stage_of(run: Run) -> Stage:
    """Return the current stage."""
    return run.machine.stages[run.state.tree.stage]


def is_waiting_for_reply(run: Run) -> bool:
    """Return True if the run waits for a reply to a model request."""
    return run.state.tree.phase == "waiting" and stage_of(run).kind == "agent"


def is_effect_lost(run: Run) -> bool:
    """Return True if the pending effect may have been performed and must not be repeated: it was started without a
    saved result, or a repair has recorded that later snapshots are lost."""
    return bool(lost_effect_events(run))


def lost_effect_events(run: Run) -> list[Event]:
    """Return the events that make a run wait for the result of its lost effect; none if it is not lost."""
    tree = run.state.tree
    if tree.phase == "started":
        return [] if is_lost_call_repeatable(run) else [Lost()]
    if tree.phase == "calling":
        lost = unrepeatable_calls(run) if (run.event.get("calls") or {}).get("doubtful") is True else []
        if lost:
            return [CallsIntended(ids=lost), Lost()]
        return [Lost()] if any(call["status"] == "started" for call in tree.pending) else []
    doubtful = tree.phase == "ready" and (run.event.get("effect") or {}).get("doubtful") is True
    return [Intended(), Lost()] if doubtful and not stage_of(run).repeatable else []


def is_lost_call_repeatable(run: Run) -> bool:
    """Return True for a model call that was counted, has no saved outcome and may be repeated. The lock must be held,
    so that no other process is still making it."""
    stage = stage_of(run)
    return run.state.tree.phase == "started" and stage.kind == "agent" and stage.repeatable


def give_up(run: Run) -> Run:
    """Return the run, waiting for the result of its effect if that is lost. The lock must be held, so that no other
    process is still performing it."""
    for event in lost_effect_events(run):
        run = apply(run, event)
    return run


def unrepeatable_calls(run: Run) -> list[str]:
    """Return the ids of the pending tool calls that are ready and must not be performed twice."""
    tools = run.machine.toolset.tools if run.machine.toolset is not None else {}
    ready = [call for call in run.state.tree.pending if call["status"] == "ready"]
    return [call["id"] for call in ready if call["name"] not in tools or not tools[call["name"]].repeatable]


def replace_machine(run: Run, machine: Machine, record: MachineRecord, places: dict[str, Json]) -> Run:
    """Continue with a changed machine; ``places`` are the members ``machine`` and ``tools`` of the event. Raises
    ``MachineChangedError`` if it lacks the current stage, or the tools that are being called."""
    before = run.record.source.sha256
    decision = advance(machine, run.state, Replaced())
    changed = replace(run, machine=machine, record=record)
    document = carried(run, Replaced(), FREE)
    document.pop("tools", None)
    document |= places
    document["replaced"] = {"from": before, "to": record.source.sha256}
    return write_run(changed, decision, describe(changed, Replaced(), decision, document))


def _full_cost(run: Run, event: Event, cost: Cost) -> Cost:
    """Return the cost with model calls counted once: an answer to a model request counts as a call; a call that was
    counted before it was made is not counted again, and not at all if it was not sent."""
    calls = cost.llm_calls
    if isinstance(event, Answered) and stage_of(run).kind == "agent" and not is_calling_tools(run.state.tree):
        calls = 1
    if isinstance(event, Intended) and counts_call_first(run):
        calls = 1
    elif isinstance(event, Replied | Failed | Unsent | Answered):
        calls -= (run.event.get("effect") or {}).get("reserved") is True
    return replace(cost, llm_calls=calls)


def _decide(run: Run, context: EventContext) -> Decision:
    facts = facts_of(run, context.cost, manual=context.dependencies.manual)
    event = context.event
    try:
        return advance(run.machine, run.state, event, facts)
    except StatelineError:
        raise
    except Exception as error:
        # Out of memory, or a bug: the result is kept first.
        message = f"{type(error).__name__}: {error}"
        reply = _reply_in(run, event)
        if reply is not None:
            from stateline.machine.decider.rounds import keep_undecided

            return keep_undecided(run.machine, run.state, reply, message, facts)
        if is_calling_tools(run.state.tree) or not isinstance(event, Succeeded | Answered):
            raise
        output = event.output if isinstance(event, Succeeded) else event.value
        return keep_unsettled(run.machine, run.state, output, message, facts)


def _reply_in(run: Run, event: Event) -> Replied | None:
    if isinstance(event, Replied):
        return event
    if not isinstance(event, Answered) or stage_of(run).kind != "agent" or is_calling_tools(run.state.tree):
        return None
    return msgspec.convert(event.value, Replied)


def _unsaved(run: Run, event: Succeeded | Replied | CallEnded, error: StatelineError) -> StatelineError:
    stage = stage_of(run)
    result = canonical.encode(_result(event), depth=canonical.FILE_DEPTH).decode()
    shown = result if len(result) <= SHOWN_RESULT else f"{result[:SHOWN_RESULT]}... ({len(result)} characters)"
    what, repeatable = f"the task of stage {stage.name!r}", stage.repeatable
    if isinstance(event, Replied):
        what = f"the model of stage {stage.name!r}"
    elif isinstance(event, CallEnded):
        call = next(call for call in run.state.tree.pending if call["id"] == event.id)
        what, repeatable = f"the tool {call['name']!r} of stage {stage.name!r}", call["status"] == "ready"
    way = (
        "it is repeatable and will run again with the same key"
        if repeatable
        else f"`stateline exec resume {run.id}` asks for the result: give it with --answer"
    )
    return type(error)(
        f"{what} finished, but its result could not be saved: {error.message}. The result was: {shown}",
        hint=f"{error.hint}; then {way}",
    )


def _result(event: Succeeded | Replied | CallEnded) -> Json:
    if isinstance(event, Replied):
        return {"content": event.content, "tool_calls": event.tool_calls}
    return event.output if isinstance(event, Succeeded) else event.result


def _masked(store: Store, run: Run, event: Event) -> tuple[Event, int]:
    counts = []

    def mask(value: Any) -> Any:
        value, count = store.redactor.redact(value)
        counts.append(count)
        return value

    if isinstance(event, Succeeded):
        event = Succeeded(output=mask(event.output))
    elif isinstance(event, Answered) and stage_of(run).kind == "agent" and not is_calling_tools(run.state.tree):
        event = Answered(value=_mask_reply(mask, event.value))
    elif isinstance(event, Answered):
        event = Answered(value=mask(event.value))
    elif isinstance(event, Replied):
        event = Replied(
            content=mask(event.content), tool_calls=_with_unique_ids(run, mask_calls(mask, event.tool_calls))
        )
    elif isinstance(event, CallEnded):
        event = replace(event, result=mask(event.result))
    elif isinstance(event, Failed):
        message, hint = mask([event.message, event.hint])
        event = replace(event, message=message, hint=hint)
    return event, sum(counts)


def _mask_reply(mask: Callable[[Any], Any], value: Json) -> Json:
    """Mask a reply that an answer brings; its field names are kept."""
    if not isinstance(value, dict) or not isinstance(value.get("tool_calls", []), list):
        return mask(value)
    reply = {name: mask(part) for name, part in value.items() if name != "tool_calls"}
    return reply | {"tool_calls": mask_calls(mask, value["tool_calls"])} if "tool_calls" in value else reply


def _with_unique_ids(run: Run, calls: list[Json]) -> list[Json]:
    """Return the tool calls of a reply with unique ids: masked ids can be equal. Results refer to the ids returned
    here."""
    ids = [call.get("id") for call in calls if isinstance(call, dict)]
    if len(ids) < len(calls) or len({str(name) for name in ids}) == len(calls):
        return calls
    from stateline.model.reply_validation import new_ids

    return [call | {"id": name} for call, name in zip(calls, new_ids(ids, call_ids(run)), strict=True)]


def call_ids(run: Run) -> set[str]:
    """The ids of the tool calls in the conversation."""
    return {message["tool_call_id"] for message in run.state.tree.conversation if message["role"] == "tool"}
