"""Check the conversation and the pending effects of a stored run, which another program may have written. Pure.

``run`` has both as plain JSON, as they are stored; the decider relies on the shapes here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stateline.machine.decider.run import Instance, RunState
from stateline.machine.spec import Json


class _Call(msgspec.Struct):
    id: str
    name: str
    arguments: dict[str, Json]


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: str


class _Assistant(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str
    tool_calls: list[_Call] = []


class _Tool(msgspec.Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    name: str
    content: Json


class _PendingCall(msgspec.Struct):
    type: Literal["tool"]
    id: str
    name: str
    arguments: dict[str, Json]
    position: int
    status: Literal["ready", "started", "done"]
    result: Json | msgspec.UnsetType = msgspec.UNSET


class _PendingStage(msgspec.Struct):
    type: Literal["task", "model"]
    stage: str


def conversation_problem(state: RunState) -> str:
    """Return what would break the decider, or ""."""
    tree = state.tree
    try:
        msgspec.convert(tree.conversation, list[_User | _Assistant | _Tool])
        if _has_calls(tree):
            return _calls_problem(tree, msgspec.convert(tree.pending, list[_PendingCall]))
        msgspec.convert(tree.pending, list[_PendingStage])
    except msgspec.ValidationError as error:
        return f"the conversation or the pending effects have the wrong shape: {error}"
    return ""


def _has_calls(tree: Instance) -> bool:
    """Return True if tool calls are pending: by the phase, or if that is ambiguous, by the effects."""
    if tree.phase == "unknown" and tree.conversation:
        return any(isinstance(effect, dict) and effect.get("type") == "tool" for effect in tree.pending)
    return tree.phase == "calling" or (tree.phase == "failed" and tree.resume == "calling")


def _calls_problem(tree: Instance, calls: list[_PendingCall]) -> str:
    statuses = {call.status for call in calls}
    if not tree.conversation or not calls or len({call.id for call in calls}) < len(calls):
        return "tool calls are pending without a conversation, or with equal ids"
    if any((call.status == "done") is (call.result is msgspec.UNSET) for call in calls):
        return "a tool call is done without a result, or has one before it is done"
    if tree.phase == "calling" and statuses == {"done"}:
        return "the phase is calling, but all tool calls are done"
    if (tree.phase == "unknown") and "started" not in statuses:
        return "the phase is unknown, but no tool call was started"
    return ""
