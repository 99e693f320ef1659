"""The history of a run: turns with the model's text, tool calls and output; and what people did to the run.

Each snapshot is read separately, and only the end of a long conversation: the cost of a row does not depend on the
length of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Ref, read_chunk
from stateline.bundle.objects import with_refs
from stateline.bundle.repair_record import MEMBER
from stateline.contexts.stored import LITERAL, REFUSED
from stateline.engine.event_codec import MALFORMED_HINT, CallEnd, RunEvent, has_new_output, read_event
from stateline.engine.record import Run
from stateline.errors import IntegrityError, StatelineError
from stateline.history.diff import is_long_list, read_object
from stateline.store.snapshot import Snapshot, read_snapshot
from stateline.store.store import Store

_TURNS = ("started", "succeeded", "failed", "replied", "answered")
_OPERATOR = ("retried", "replaced", "cancelled", MEMBER)
"""Events by which a person changed what happens to a run; these and those above have a row."""
_REPEATING = (MEMBER, "replaced")
"""Events that leave a failed run failed, and say again how it did."""


_WARNINGS = 10
"""Most failures of one call that have a warning each."""
_MESSAGE = 200
"""Longest message of a failure in a warning [characters]."""


_EMPTY_ROW: dict[str, Json] = dict.fromkeys(
    ("turn", "at", "actor", "stage", "reason", "by", "text", "refused", "tools", "output", "error", "details")
) | {"tools": []}


class _CallEnd(msgspec.Struct, frozen=True):
    """The end of a tool call: the kind of its failure (None if it succeeded) and its result."""

    error: str | None
    result: Json
    by: str


class _Reply(msgspec.Struct, frozen=True):
    """The reply at a conversation's end: its text, the arguments of its calls by id, and the results that follow."""

    text: str = ""
    arguments: dict[str, Json] = {}
    results: dict[str, Json] = {}


def turns(store: Store, run: Run) -> list[dict[str, Json]]:
    """Return the rows of ``exec history``, oldest first. Walks the chain once.

    Raises ``IntegrityError`` for a snapshot that is damaged or does not hold a run's state.
    """
    rows: list[dict[str, Json]] = []
    ended: dict[str, _CallEnd] = {}
    for snapshot in run.scope.walk(run.snapshot):
        event = read_event(snapshot)
        if event.call is not None:  # newer than the reply that asked for it, so it is read first
            ended[event.call.id] = _ended(store, snapshot, event, event.call)
        # A lost call may end in a transition, or fail a run by a limit.
        failed = event.error is not None and event.type not in _REPEATING
        if event.type in (*_TURNS, *_OPERATOR) or event.transitions or failed:
            rows.append(_row(store, snapshot, event, ended) | {"by": _author(run, event)})
        if event.prepared and event.context is not None:
            rows += _context_rows(store, snapshot, event)
        if event.asked:
            ended = {}
    return rows[::-1]


def calls_of_turn(store: Store, run: Run) -> list[Json]:
    """Return the tool calls of the newest turn, as in its row of the history; [] if it called none."""
    ended: dict[str, _CallEnd] = {}
    for snapshot in run.scope.walk(run.snapshot):
        event = read_event(snapshot)
        if event.call is not None:
            ended[event.call.id] = _ended(store, snapshot, event, event.call)
        elif event.asked:
            return list(_row(store, snapshot, event, ended)["tools"])
        elif event.type not in ("calls_intended", "asked"):
            break
    return []


def _ended(store: Store, snapshot: Snapshot, event: RunEvent, call: CallEnd) -> _CallEnd:
    by = "person" if event.type == "answered" else "program"
    return _CallEnd(call.error, _result(store, snapshot, call.id), by)


def _author(run: Run, event: RunEvent) -> str | None:
    """Return the origin of an event's result: ``program``, ``model``, ``caller`` (in a model's place) or ``person``;
    ``operator`` for a change of the run itself. None for an event without a result."""
    if event.type in _OPERATOR:
        return "operator"
    if event.type == "answered":
        stage = run.machine.stages.get(event.stage)
        return "caller" if event.call is None and stage is not None and stage.kind == "agent" else "person"
    if event.type in ("succeeded", "failed", "replied"):
        return "program" if event.model is None else "model"
    return None


def _context_rows(store: Store, started: Snapshot, event: RunEvent) -> list[dict[str, Json]]:
    """Return a row for each snapshot of the context that the call which started the run made for it, newest first,
    except a derivation from flags alone; and for the refused attempts right before them. A context that cannot be read
    becomes a warning of the store."""
    rows: list[dict[str, Json]] = []
    place: Any = event.context
    try:
        scope = store.scope(str(store.resolve(started.state["context"])["scope"]))
        first = read_snapshot(store.backend, scope.hash, place)
        for number, snapshot in enumerate(scope.walk(first)):
            made = snapshot.event
            if number >= event.prepared and made.get("type") != REFUSED:
                break
            if made.get("type") == "derive" and made.get("by") == LITERAL:
                continue
            details = {"scope": scope.key, "seq": snapshot.seq, "sha256": snapshot.sha256}
            details |= {name: made.get(name) for name in ("by", "settings", "unset", "prompts")}
            rows.append(
                _EMPTY_ROW
                | {"turn": event.turn, "at": snapshot.envelope.created_at, "actor": made.get("actor")}
                | {"reason": made.get("type"), "by": "operator", "text": made.get("text"), "details": details}
                | {"refused": made.get("refused"), "error": made.get("error")}
            )
    except StatelineError as error:
        store.warnings.append(f"the context of the run cannot be read: {error.message}")
    return rows


def handled_failures(run: Run, count: int) -> list[str]:
    """Return a warning for each of the newest ``count`` failures that did not stop the run, oldest first."""
    found: list[str] = []
    for snapshot in run.scope.walk(run.snapshot):
        if not count:
            break
        event = read_event(snapshot)
        if event.error is None or event.type in _REPEATING:
            continue
        count -= 1
        if snapshot.state["status"] != "error":
            found.append(_handled(event, event.error))
    hidden = len(found) - _WARNINGS
    more = [f"{hidden} more failures were handled; `stateline exec history {run.id}` shows them"] if hidden > 0 else []
    return [*more, *found[:_WARNINGS][::-1]]


def _handled(event: RunEvent, error: dict[str, Json]) -> str:
    message = " ".join(str(error.get("message")).split())
    message = message if len(message) <= _MESSAGE else f"{message[:_MESSAGE]}..."
    target = next((step.target for step in event.transitions if step.reason in ("error", "limit")), None)
    way = "it was retried" if target is None else f"the run continued at stage {target!r}"
    return f"stage {event.stage!r} failed ({error.get('kind')}): {message}; {way}"


def _row(store: Store, snapshot: Snapshot, event: RunEvent, ended: dict[str, _CallEnd]) -> dict[str, Json]:
    reply = _last_reply(store, snapshot) if event.asked else _Reply()
    tools = []
    for call in event.asked:
        end = ended.get(call.id)
        # Instead of a result, a refused call gave the model an error. A call that is still pending has neither.
        result = reply.results.get(call.id, _pending_result(store, snapshot, call.id)) if end is None else end.result
        row: dict[str, Json] = {"id": call.id, "name": call.name, "arguments": reply.arguments.get(call.id)}
        row["status"] = "refused" if call.refused else "open" if end is None else "done"
        failure = call.refused or (end.error if end is not None else None)
        tools.append(row | {"result": result, "error": failure, "by": None if end is None else end.by})
    return _EMPTY_ROW | {
        "turn": event.turn,
        "at": snapshot.envelope.created_at,
        "actor": snapshot.event.get("actor"),
        "stage": event.stage,
        "reason": event.transitions[-1].reason if event.transitions else event.type,
        "text": reply.text or None,
        "refused": event.refused,
        "tools": tools,
        "output": _output(store, snapshot, event),
        "error": None if event.type in _REPEATING else event.error,
        "details": _details(snapshot, event),
    }


def _details(snapshot: Snapshot, event: RunEvent) -> Json:
    """Return what an operator changed; None for other events."""
    if event.replaced is not None:
        return msgspec.to_builtins(event.replaced)
    if event.type == MEMBER:
        record = snapshot.event.get(MEMBER)
        return {name: record.get(name) for name in ("from", "lost_count")} if isinstance(record, dict) else None
    return None


def _result(store: Store, snapshot: Snapshot, call: str) -> Json:
    """The result of a call that has just ended: with the pending calls, or after the last one in the conversation. None
    where the run left the stage with it: then no state has it."""
    found = _pending_result(store, snapshot, call)
    return _last_reply(store, snapshot).results.get(call) if found is None else found


def _pending_result(store: Store, snapshot: Snapshot, call: str) -> Json:
    pending = _part_of_tree(store, snapshot, "pending")
    for effect in pending if isinstance(pending, list) else []:
        effect = _opened(store, effect)
        if isinstance(effect, dict) and effect.get("id") == call:
            return store.resolve(effect.get("result"))
    return None


def _last_reply(store: Store, snapshot: Snapshot) -> _Reply:
    results: dict[str, Json] = {}
    for message in _backwards(store, _part_of_tree(store, snapshot, "conversation")):
        message = store.resolve(message)
        if not isinstance(message, dict):
            raise _malformed(snapshot, "an element of its conversation is not a message")
        if message.get("role") != "tool":
            calls = message.get("tool_calls")
            calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
            arguments = {str(call.get("id")): call.get("arguments") for call in calls}
            content = message.get("content")
            return _Reply(content if isinstance(content, str) else "", arguments, results)
        results[str(message.get("tool_call_id"))] = message.get("content")
    return _Reply()


def _backwards(store: Store, conversation: Json) -> Iterator[Json]:
    """The messages, with Refs, from the last to the first; a long list is read chunk by chunk."""
    while is_long_list(conversation):
        chunk = read_chunk(store.get(conversation), f"the object {conversation.sha256}")
        yield from reversed(with_refs(chunk.items, chunk.objects))
        conversation = chunk.before
    yield from reversed(conversation if isinstance(conversation, list) else [])


def _part_of_tree(store: Store, snapshot: Snapshot, name: str) -> Json:
    """A part of the root instance, whose own parts are not read; None without it."""
    state = _opened(store, snapshot.state)
    tree = _opened(store, state.get("tree")) if isinstance(state, dict) else None
    if not isinstance(tree, dict):
        raise _malformed(snapshot, "it has no tree")
    return _opened(store, tree.get(name))


def _opened(store: Store, value: Json) -> Json:
    return read_object(store, value) if isinstance(value, Ref) and not is_long_list(value) else value


def _output(store: Store, snapshot: Snapshot, event: RunEvent) -> Json:
    """Return the output of the turn; None without one."""
    if not has_new_output(event):
        return None
    state = snapshot.state
    outputs = state.get("outputs") if isinstance(state, dict) else None
    outputs = store.resolve(outputs) if isinstance(outputs, Ref) else outputs
    if not isinstance(outputs, dict):
        raise _malformed(snapshot, "it has no outputs")
    return store.resolve(outputs.get(event.output_of))


def _malformed(snapshot: Snapshot, why: str) -> IntegrityError:
    message = f"the snapshot {snapshot.path} does not hold a run's state: {why}"
    return IntegrityError(message, finding="malformed", hint=MALFORMED_HINT)
