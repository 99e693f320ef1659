"""The state of a run, and the events that change it. Plain data; ``machine.advance`` is what decides.

A run is a tree of instances. Today the tree is one instance, the root, whose state is the run's own ``state``;
parallel branches and spawned children will be its ``children``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from stateline.machine.spec import Json

Phase = Literal["ready", "started", "calling", "waiting", "unknown", "failed", "done"]
"""Where an instance stands.

``ready``     its stage's effect may start (again)
``started``   the effect's intent was saved; if nothing follows, its outcome is unknown (a repeatable call is then made
            again)
``calling``   a model's reply was saved, and tools that it calls are to be performed (``pending`` says which)
``waiting``   an answer is awaited, of a human, or of whoever stands in for a model
``unknown``   a started effect was lost; a person must say what became of it
``failed``    nothing more happens until the operator retries (see ``Resume``)
``done``      complete
"""

Resume = Literal["ready", "calling", "settling", "routing"]
"""Where a failed instance goes on when the operator retries; a finished effect is never repeated.

``ready``     the effect itself failed, or was refused: perform it (again)
``calling``   a limit refused the tool calls of a reply that is kept: check the limits again, then perform the calls
``settling``  the effect's output is kept; ``set`` or ``routes`` failed: evaluate both again
``routing``   ``set`` was applied; a limit refused the way on: choose the way and check the limits again
"""

Status = Literal["running", "waiting", "complete", "error"]


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a stage failed. ``kind``: exit, timeout, output, spawn, prompt, model, reply, set, condition, limit ...;
    ``bound`` names the limit when ``kind`` is ``limit``."""

    stage: str
    kind: str
    message: str
    hint: str = ""
    bound: str = ""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A live position. ``attempt`` counts from 1 within a visit; ``first_attempt`` is where the present retry budget
    began (an operator's retry begins a new one). ``resume`` counts in phase ``failed`` only.

    ``conversation`` holds the messages of an agent stage since it was entered; it is empty at any other kind of stage,
    and where the prompt could not be rendered. ``pending`` holds the effects that are to be performed, in order: the
    stage's own, or the tool calls of the last reply with the results that there are (``{"type": "tool", "id", "name",
    "arguments", "position", "status", "result"?}``, where ``status`` is ``ready``, ``started`` or ``done``).

    ``error`` is this stage's own failure: of the last attempt while it is tried again, or the one the run stopped at.
    ``cause`` is the failure of an earlier stage that led here by ``error_next``; conditions, templates and tasks see
    it as ``error``. The two are kept apart so that a recovering stage that fails once still knows what it recovers.
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
    """``state`` of a run's snapshot, without ``machine`` (the engine keeps that beside it, as objects).

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
    """What ``advance`` may know of the world besides the event: meters so far, and the context's prompts and
    settings (None without a context). ``manual``: there is no model in this call, so whoever calls next answers for it.

    The meters hold what the event itself used: ``active`` [s] is active time spent by the run, ``llm_calls`` counts the
    calls of models that were made or answered for, ``tokens`` is what all of them used. Only ``tool_rounds`` does not
    count what the event may bring: it is the sum of ``Decision.tool_rounds`` of all decisions before."""

    active: float = 0.0
    llm_calls: int = 0
    tool_rounds: int = 0
    tokens: int = 0
    manual: bool = True
    context: Mapping[str, Any] | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A run begins, or begins again on the same chain. ``context`` is ``{"scope", "sha256"}`` or None."""

    input: Json = None
    context: Json = None
    labels: dict[str, str] = {}


class Intended(msgspec.Struct, frozen=True, kw_only=True, tag="intended"):
    """An effect is about to start: one that is not repeatable, or a model's call that is to be counted before."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag="asked"):
    """There is no model in this call: whoever calls next answers for it."""


class Replied(msgspec.Struct, frozen=True, kw_only=True, tag="replied"):
    """A model's whole reply. ``tool_calls`` are ``{"id", "name", "arguments"}``."""

    content: str
    tool_calls: list[Json] = []


class CallsIntended(msgspec.Struct, frozen=True, kw_only=True, tag="calls_intended"):
    """These tool calls, which are not repeatable, are about to start."""

    ids: list[str]


class CallEnded(msgspec.Struct, frozen=True, kw_only=True, tag="call_ended"):
    """A tool call has ended, well or not: a failure is a result too."""

    id: str
    result: Json


class Succeeded(msgspec.Struct, frozen=True, kw_only=True, tag="succeeded"):
    """The effect ended well with ``output``."""

    output: Json


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The effect ended badly, and is known to have ended. ``kind``: exit, timeout, output, spawn; of a model's call
    model, timeout, reply, output. ``bound`` is ``timeout`` where the run's bound on time ended a model's call."""

    kind: str
    message: str
    hint: str = ""
    bound: str = ""


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """A started effect's outcome is unknown (the process died before it could be saved, or the answer was lost on its
    way: ``message`` says how)."""

    message: str = ""


class Unsent(msgspec.Struct, frozen=True, kw_only=True, tag="unsent"):
    """The model's call that was about to start was stopped before anything was sent: it is as if it had not been
    intended."""


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag="answered"):
    """A human's answer, the reply of whoever stands in for a model (``{"content", "tool_calls"}``), or the result of an
    effect whose outcome was unknown."""

    value: Json


class Retried(msgspec.Struct, frozen=True, kw_only=True, tag="retried"):
    """The operator clears an error, or says that a lost effect shall run again."""


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
)


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One step of routing. ``source`` is None when a run begins, ``target`` None when it completes.

    ``reason``: start, default, routing, error, limit, complete (later also reintent, command). ``count`` is how
    often this edge has now been taken; 0 where there is no edge because one of its ends is None.
    """

    source: str | None
    target: str | None
    reason: str
    iteration: int
    count: int

    def document(self) -> dict[str, Json]:
        """As it stands in ``event.transitions``."""
        return {
            "from": self.source,
            "to": self.target,
            "reason": self.reason,
            "iteration": self.iteration,
            "edge_count": self.count,
        }


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What ``advance`` decided: the next state and the transitions on the way there. What to do next is read from
    ``state.tree.phase``: ``ready`` means perform the effect of ``tree.stage``, ``calling`` the calls of ``pending``
    that are not done. ``tool_rounds`` is 1 where a round of tool calls begins, for the meter of that name."""

    state: RunState
    transitions: tuple[Transition, ...] = ()
    tool_rounds: int = 0
