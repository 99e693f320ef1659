"""Make the event of the next snapshot from the last one and a decision. Unknown fields are kept."""

from __future__ import annotations

import os

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.event_codec import Cost, Tokens, is_calling_tools
from stateline.engine.record import Run
from stateline.machine.decider.run import (
    Answered,
    CallEnded,
    Decision,
    Event,
    Failed,
    Instance,
    Intended,
    Lost,
    Replaced,
    Replied,
    Retried,
    RunState,
    Started,
    Succeeded,
    Unsent,
)
from stateline.store.snapshot import Snapshot

_CARRIED = (
    "run",
    "birth",
    "started_at",
    "machine",
    "tools",
    "context",
    "prompt",
    "model_used",
    "answered",
    "output_of",
    "exchanges",
    "effect",
    "calls",
)
"""Fields that the next snapshot repeats: what the next call needs and no state may hold."""


def carried(run: Run, event: Event, cost: Cost) -> dict[str, Json]:
    """Return what the next event repeats of the last one, with turn and meters advanced by ``cost``."""
    last = run.event
    document = {name: last[name] for name in _CARRIED if name in last}
    document["meters"] = _metered(last["meters"], cost)
    begins_turn = not last.get("open") and isinstance(event, Intended | Succeeded | Failed | Replied | Answered)
    document["turn"] = last["turn"] + begins_turn
    if cost.seconds:
        document["seconds"] = round(cost.seconds, 6)
    if isinstance(event, Answered):
        digest = canonical.sha256(canonical.encode(event.value))
        document["answered"] = {"requestId": (last.get("waiting") or {}).get("requestId"), "sha256": digest}
    tree = run.state.tree
    if isinstance(event, CallEnded):
        document["call"] = _call_end(tree, event.id, event.result)
    elif isinstance(event, Answered) and is_calling_tools(tree):  # word of the first of the lost calls
        lost = next((call["id"] for call in tree.pending if call["status"] == "started"), "")
        document["call"] = _call_end(tree, lost, event.value)
    return document


def _metered(last: dict[str, Json], cost: Cost) -> dict[str, Json]:
    """The meters after an event. Those of tokens, tools and failures are there from their first use on."""
    meters = {**last, "active": round(last["active"] + cost.seconds, 6)}
    meters["llm_calls"] += cost.llm_calls
    if cost.tokens != Tokens():
        before = meters.get("tokens") or {}
        meters["tokens"] = {
            "input": before.get("input", 0) + cost.tokens.input,
            "output": before.get("output", 0) + cost.tokens.output,
        }
    return meters


def _call_end(tree: Instance, identity: str, result: Json) -> dict[str, Json]:
    name = next((call["name"] for call in tree.pending if call["id"] == identity), "")
    error = _error_kind(result)
    return {"id": identity, "name": name} | ({"error": error} if error else {})


def _error_kind(result: Json) -> str | None:
    error = result.get("error") if isinstance(result, dict) and result.keys() == {"error"} else None
    kind = error.get("kind") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) else None


def describe(run: Run, event: Event, decision: Decision, document: dict[str, Json]) -> dict[str, Json]:
    """``document`` completed: type, stage, transitions, failure, the keys of pending effects, what is awaited."""
    before: RunState | None = run.state if run.snapshot is not None else None
    after, entered = decision.state, _enters(before, event, decision)
    document["type"] = str(event.__struct_config__.tag)
    if before is None or isinstance(event, Started):
        document["stage"] = decision.transitions[0].target
    else:
        document["stage"] = before.tree.stage
    document["transitions"] = msgspec.to_builtins(list(decision.transitions))
    if decision.tool_rounds:
        rounds = document["meters"].get("tool_rounds", 0) + decision.tool_rounds
        document["meters"] = {**document["meters"], "tool_rounds": rounds}
    retrying = isinstance(event, Failed | Replied) and after.tree.phase == "ready" and not entered
    _add_failure(event, decision, document, retrying=retrying)
    if "error" in document and not isinstance(event, Replaced):  # which repeats the failure at which the run stopped
        document["meters"] = {**document["meters"], "failures": document["meters"].get("failures", 0) + 1}
    _add_effect(run, event, decision, document, entered=entered)
    _add_calls(run, after, document)
    if asked := _asked(before, after):
        document["asked"] = asked
    if after.status == "waiting":
        # The id of a model request is the key of its effect, which stays the same until it is answered.
        own = document.get("effect") if after.tree.phase == "waiting" else None
        document["waiting"] = {"requestId": own["key"] if own else _name(run, document, 0)}
        if isinstance(event, Replaced) and "waiting" in run.event:
            document["waiting"] = run.event["waiting"]
    lost = isinstance(event, Lost) and not decision.transitions and after.status != "error"
    if isinstance(event, Intended | Unsent) or lost or retrying or after.tree.phase == "calling":
        document["open"] = True
    return document


def counts_call_first(run: Run) -> bool:
    """Return True if a model call at the current stage is counted before it is made, so that a bound on calls holds
    across crashes."""
    return run.machine.stages[run.state.tree.stage].kind == "agent" and run.machine.bounds.max_llm_calls > 0


def _enters(before: RunState | None, event: Event, decision: Decision) -> bool:
    """Return True if the pending effect is new: of a stage that was entered, or of the next round of an agent."""
    if decision.transitions or isinstance(event, Started) or before is None:
        return True
    tree = decision.state.tree
    grown = len(tree.conversation) > len(before.tree.conversation)
    return grown and (tree.phase in ("ready", "waiting") or (tree.phase == "failed" and tree.resume == "ready"))


def _name(run: Run, document: dict[str, Json], position: int) -> str:
    """Return the key of an effect of the next snapshot. The nonce keeps it different from those of other runs with this
    id."""
    seq = run.snapshot.seq + 1 if run.snapshot is not None else 0
    return f"{run.id}:{seq}:{position}:{document['birth']}"


def _add_failure(event: Event, decision: Decision, document: dict[str, Json], *, retrying: bool) -> None:
    after = decision.state
    if isinstance(event, Failed):
        document["error"] = {"kind": event.kind, "message": event.message}
    elif retrying and after.tree.error is not None:  # the model replied, and with nothing of use
        document["error"] = {"kind": after.tree.error.kind, "message": after.tree.error.message}
    failure = failure_in(after, decision)
    if failure is not None:
        document["error"] = {field: failure[field] for field in ("kind", "message", "bound") if failure.get(field)}


def _add_effect(run: Run, event: Event, decision: Decision, document: dict[str, Json], *, entered: bool) -> None:
    """The key of the stage's own effect, while it is not done with. A failed stage keeps it, unless it failed on being
    entered: nothing was attempted then."""
    tree = decision.state.tree
    at_model = tree.phase == "waiting" and run.machine.stages[tree.stage].kind == "agent"
    failed = tree.phase == "failed" and not decision.transitions and not isinstance(event, Started)
    if is_calling_tools(tree) or not (tree.phase in ("ready", "started", "unknown") or at_model or failed):
        document.pop("effect", None)
        return
    if entered:
        # Fixed here, before the first attempt, so that every attempt of this visit bears the same key.
        document["effect"] = {"key": _name(run, document, 0)}
    if "effect" in document:  # a person's stage that failed has none
        document["effect"] = {**document["effect"], "attempt": tree.attempt}
        if not entered:
            document["effect"] |= _counted(run, event, tree, document["effect"])
        if not isinstance(event, Intended) and not (tree.phase == "unknown" or isinstance(event, Replaced)):
            document["effect"].pop("reserved", None)
        asked = run.snapshot is not None and run.state.tree.phase == "unknown"
        if isinstance(event, Succeeded | Failed | Replied | Answered) or (isinstance(event, Retried) and asked):
            # The effect was performed, or retried after the question about its result: the doubt is resolved.
            document["effect"].pop("doubtful", None)


def _counted(run: Run, event: Event, after: Instance, effect: dict[str, Json]) -> dict[str, Json]:
    """Return the effect's members for a model call that is made now, or whose reply was unusable."""
    if isinstance(event, Intended) and counts_call_first(run):
        return {"reserved": True}
    # A kept reply was usable, whatever failed afterwards.
    kept = after.phase == "failed" and after.resume != "ready"
    useless = (isinstance(event, Replied) and not kept) or (
        isinstance(event, Failed) and event.kind in ("reply", "output")
    )
    if useless and run.machine.stages[run.state.tree.stage].kind == "agent":
        return {"refused": effect.get("refused", 0) + 1}
    return {}


def _asked(before: RunState | None, after: RunState) -> list[Json]:
    said = after.tree.conversation[len(before.tree.conversation) :] if before is not None else []
    if not said or said[0]["role"] != "assistant":
        return []
    # Either some are performed, or all were refused and the model was informed.
    results = {call["id"]: call.get("result") for call in after.tree.pending if call["type"] == "tool"}
    results |= {message["tool_call_id"]: message["content"] for message in said[1:]}
    asked = []
    for call in said[0].get("tool_calls", []):
        refused = _error_kind(results.get(call["id"]))
        asked.append({"id": call["id"], "name": call["name"]} | ({"refused": refused} if refused else {}))
    return asked


def _add_calls(run: Run, after: RunState, document: dict[str, Json]) -> None:
    """The keys of a reply's tool calls, fixed with the reply, until all of them are done."""
    if not is_calling_tools(after.tree):
        document.pop("calls", None)
    elif "calls" not in document:
        calls = after.tree.pending
        document["calls"] = {"keys": {call["id"]: _name(run, document, call["position"] + 1) for call in calls}}
    elif run.state.tree.phase == "unknown" and after.tree.phase == "calling":
        document["calls"] = {"keys": document["calls"]["keys"]}  # a person has given the results of the doubtful calls


def after_repair(content: Snapshot, newer_lost: bool) -> dict[str, Json]:
    """Return the event of a repair's snapshot for a run that continues from ``content``: all that the next call needs.

    ``newer_lost``: the run had advanced further, or may have. Then its pending effect may have been performed, and a
    new nonce prevents duplicate keys, since the sequence numbers of lost snapshots are used again.
    """
    last = content.event
    document = {name: last[name] for name in _CARRIED if name in last}
    document |= {name: last[name] for name in ("meters", "turn", "open", "waiting") if name in last}
    state = content.envelope.state if isinstance(content.envelope.state, dict) else {}
    if state.get("status") == "error" and "error" in last:
        document["error"] = last["error"]
    tree = state.get("tree")
    stage = tree.get("stage") if isinstance(tree, dict) else None
    document["stage"] = stage if isinstance(stage, str) else last.get("stage")
    document["transitions"] = []
    document["birth"] = os.urandom(4).hex()
    if newer_lost:
        for pending in ("effect", "calls"):
            if isinstance(document.get(pending), dict):
                document[pending] = {**document[pending], "doubtful": True}
    return document


def failure_in(state: RunState, decision: Decision) -> dict[str, Json] | None:
    """The failure that this decision is about: the run's, or the one that took ``error_next``; None without one."""
    if state.status == "error" and state.tree.error is not None:
        return msgspec.to_builtins(state.tree.error)  # type: ignore[no-any-return]  # a Struct becomes a dict
    if state.tree.cause is not None and any(way.reason in ("error", "limit") for way in decision.transitions):
        return msgspec.to_builtins(state.tree.cause)  # type: ignore[no-any-return]  # a Struct becomes a dict
    return None
