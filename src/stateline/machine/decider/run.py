"""The state of a run and the events that change it. Plain data for ``advance``.

A run is a tree of instances. Today the tree is one instance, the root, whose state is the run's own ``state``;
parallel branches and spawned children will be its ``children``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from stateline.machine.spec import Json

Phase = Literal["ready", "started", "calling", "waiting", "unknown", "failed", "done", "cancelled"]
"""The phase of an instance.

``ready``     its stage's effect may start (again)
``started``   the effect's intent was saved; if nothing follows, its outcome is unknown (a repeatable call is then
            repeated)
``calling``   a model's reply was saved, and its tool calls must be performed (``pending``)
``waiting``   an answer is awaited: of a person, or of a caller instead of a model
``unknown``   a started effect was lost; a person must give its outcome
``failed``    nothing more happens until the operator retries (see ``Resume``)
``done``      complete
``cancelled`` ended by the operator before it was complete
"""

Resume = Literal["ready", "calling", "settling", "routing"]
"""The step at which a failed instance continues when the operator retries; a finished effect is never repeated.

``ready``     the effect itself failed, or was refused: perform it (again)
``calling``   a limit refused the tool calls of a reply that is kept: check the limits again, then perform the calls
``settling``  the effect's output is kept; ``set`` or ``routes`` failed: evaluate both again
``routing``   ``set`` was applied; a limit refused the next stage: choose it and check the limits again
"""

Status = Literal["running", "waiting", "complete", "error", "cancelled"]
OVER: tuple[Status, ...] = ("complete", "cancelled")
"""The status of a run of which nothing more happens, unless it is restarted."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The failure of a stage. ``kind``: exit, timeout, output, spawn, prompt, model, reply, set, condition, limit ...;
    ``bound`` names the limit when ``kind`` is ``limit``."""

    stage: str
    kind: str
    message: str
    hint: str = ""
    bound: str = ""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a run. ``attempt`` counts from 1 within a visit; ``first_attempt`` is the first of the current
    retry budget (an operator's retry begins a new one). ``resume`` applies in phase ``failed`` only.

    ``conversation`` holds the messages of an agent stage since it was entered; it is empty at other kinds of stage, and
    if the prompt could not be rendered. ``pending`` holds the effects to perform, in order: the stage's effect, or the
    tool calls of the last reply with the results so far (``{"type": "tool", "id", "name",
    "arguments", "position", "status", "result"?}``, where ``status`` is ``ready``, ``started`` or ``done``).

    ``error`` is this stage's failure: of the last attempt while it is retried, or the one at which the run stopped.
    ``cause`` is the failure of an earlier stage that led here by ``error_next``; conditions, templates and tasks see
    it as ``error``. They are separate so that a recovering stage that fails once still has the cause.
    """

    id: str = "0"
    stage: str
    phase: Phase
    attempt: int = 1
    first_attempt: int = 1
    resume: Resume = "ready"
    error: Failure | None = None
    cause: Failure | None = None
    state: dict[str, Json] = {}
    conversation: list[Json] = []
    pending: list[Json] = []
    children: list[Json] = []


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """``state`` of a run's snapshot, without ``machine`` (which the engine stores as objects).

    ``edges`` counts transitions taken, by source, then target. Fields that a newer minor version added are kept by the
    engine (``engine.record.Run.extra``).
    """

    status: Status
    input: Json = None
    state: dict[str, Json] = {}
    outputs: dict[str, Json] = {}
    visits: dict[str, int] = {}
    edges: dict[str, dict[str, int]] = {}
    iteration: int = 0
    tree: Instance
    interrupts: list[Json] = []
    context: Json = None
    labels: dict[str, str] = {}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of ``advance`` besides the event: meters, and the context's prompts and settings (None without a context).
    ``manual``: this call has no model, so the next caller answers instead.

    The meters include the event's own usage: ``active`` [s] is the run's active time, ``llm_calls`` counts model calls
    made or answered by a caller, ``tokens`` is their usage. ``tool_rounds`` does not: it is the sum of
    ``Decision.tool_rounds`` of all earlier decisions."""

    active: float = 0.0
    llm_calls: int = 0
    tool_rounds: int = 0
    tokens: int = 0
    manual: bool = True
    context: Mapping[str, Any] | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A run begins, or restarts on the same chain. ``context`` is ``{"scope", "sha256"}`` or None."""

    input: Json = None
    context: Json = None
    labels: dict[str, str] = {}


class Intended(msgspec.Struct, frozen=True, kw_only=True, tag="intended"):
    """An effect is about to start: one that is not repeatable, or a model call, which is counted before it."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag="asked"):
    """This call has no model: the next caller answers instead."""


class Replied(msgspec.Struct, frozen=True, kw_only=True, tag="replied"):
    """A complete reply of a model. ``tool_calls`` are ``{"id", "name", "arguments"}``."""

    content: str
    tool_calls: list[Json] = []


class CallsIntended(msgspec.Struct, frozen=True, kw_only=True, tag="calls_intended"):
    """Tool calls that are not repeatable are about to start."""

    ids: list[str]


class CallEnded(msgspec.Struct, frozen=True, kw_only=True, tag="call_ended"):
    """A tool call has ended; a failure is a result too."""

    id: str
    result: Json


class Succeeded(msgspec.Struct, frozen=True, kw_only=True, tag="succeeded"):
    """The effect succeeded with ``output``."""

    output: Json


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The effect failed, and is known to have ended. ``kind``: exit, timeout, output, spawn; of a model call model,
    timeout, reply, output. ``bound`` is ``timeout`` if the run's bound on time ended a model call. ``permanent``: a
    provider refused a model call, and would refuse it again."""

    kind: str
    message: str
    hint: str = ""
    bound: str = ""
    permanent: bool = False


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """A started effect's outcome is unknown: the process died before it was saved, or the answer was lost in transit
    (``message``)."""

    message: str = ""


class Unsent(msgspec.Struct, frozen=True, kw_only=True, tag="unsent"):
    """A model call was stopped before anything was sent, as if it had not been intended."""


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag="answered"):
    """A person's answer, a caller's reply instead of a model's (``{"content", "tool_calls"}``), or the result of an
    effect whose outcome was unknown."""

    value: Json


class Retried(msgspec.Struct, frozen=True, kw_only=True, tag="retried"):
    """The operator clears an error, or runs a lost effect again."""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True, tag="cancelled"):
    """The operator ends a run that is not complete. An effect that was started is given up: its outcome stays
    unknown."""


class Replaced(msgspec.Struct, frozen=True, kw_only=True, tag="replaced"):
    """The operator accepts a changed machine; ``advance`` is called with the new one."""


Event = (
    Started
    | Intended
    | Asked
    | Replied
    | CallsIntended
    | CallEnded
    | Succeeded
    | Failed
    | Lost
    | Unsent
    | Answered
    | Retried
    | Replaced
    | Cancelled
)


class Transition(
    msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to", "count": "edge_count"}
):
    """A transition, as in ``event.transitions``. ``source`` is None when a run begins,
    ``target`` when it completes.

    ``reason``: start, default, routing, error, limit, complete (later also reintent, command). ``count`` is the
    number of times this edge has been taken; 0 if one of its ends is None.
    """

    source: str | None
    target: str | None
    reason: str
    iteration: int
    count: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``advance``: the next state and the transitions to it. ``state.tree.phase`` says what to do next:
    ``ready`` means perform the effect of ``tree.stage``, ``calling`` the calls of ``pending`` that are not done.
    ``tool_rounds`` is 1 if a round of tool calls begins, for the meter of that name. ``refused``: the stage cannot use
    the reply of the event, which is not part of the state."""

    state: RunState
    transitions: tuple[Transition, ...] = ()
    tool_rounds: int = 0
    refused: bool = False
