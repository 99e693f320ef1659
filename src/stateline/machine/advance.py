"""The only decider: a run's state and an event give its next state. Pure: no file, no clock, no randomness.

``TABLE`` says which event is legal where, and ``machine.handlers`` what it does. What is not in the table raises
:class:`~stateline.errors.IllegalEvent`. Whatever raises, nothing has changed: states are never changed in place.

    place                  Started  Intended  Succeeded  Failed  Lost     Answered  Retried        Replaced
    absent                 begin    -         -          -       -        -         -              -
    ready, once            begin    started   -          -       -        -         -              accept
    ready, repeatable      begin    -         settle     retry   -        -         -              accept
    started                begin    -         settle     retry   unknown  -         -              accept
    waiting                begin    -         -          -       -        settle    -              accept
    unknown                begin    -         -          -       -        settle    perform again  accept
    failed, ready          begin    -         -          -       -        -         perform again  accept
    failed, settling       begin    -         -          -       -        -         settle again   accept
    failed, routing        begin    -         -          -       -        -         route again    accept
    done                   begin    -         -          -       -        -         -              -
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from stateline.errors import IllegalEvent, MachineChanged
from stateline.machine import handlers
from stateline.machine.run import (
    Answered,
    Decision,
    Event,
    Facts,
    Failed,
    Intended,
    Lost,
    Replaced,
    Retried,
    RunState,
    Started,
    Succeeded,
)
from stateline.machine.spec import Machine

Place = Literal[
    "absent",
    "ready, once",
    "ready, repeatable",
    "started",
    "waiting",
    "unknown",
    "failed, ready",
    "failed, settling",
    "failed, routing",
    "done",
]
"""A phase, split where the legal events or their meaning differ: ``ready`` by whether the stage's effect may be
repeated, ``failed`` by where a retry goes on. ``absent``: there is no run yet."""

Handler = Callable[[Machine, Any, Any, Facts], Decision]

TABLE: dict[tuple[Place, type], Handler] = {
    ("absent", Started): handlers.begin,
    ("ready, once", Started): handlers.begin,
    ("ready, once", Intended): handlers.intend,
    ("ready, once", Replaced): handlers.accept,
    ("ready, repeatable", Started): handlers.begin,
    ("ready, repeatable", Succeeded): handlers.succeed,
    ("ready, repeatable", Failed): handlers.fail,
    ("ready, repeatable", Replaced): handlers.accept,
    ("started", Started): handlers.begin,
    ("started", Succeeded): handlers.succeed,
    ("started", Failed): handlers.fail,
    ("started", Lost): handlers.lose,
    ("started", Replaced): handlers.accept,
    ("waiting", Started): handlers.begin,
    ("waiting", Answered): handlers.answer,
    ("waiting", Replaced): handlers.accept,
    ("unknown", Started): handlers.begin,
    ("unknown", Answered): handlers.answer,
    ("unknown", Retried): handlers.rerun,
    ("unknown", Replaced): handlers.accept,
    ("failed, ready", Started): handlers.begin,
    ("failed, ready", Retried): handlers.retry,
    ("failed, ready", Replaced): handlers.accept,
    ("failed, settling", Started): handlers.begin,
    ("failed, settling", Retried): handlers.settle_again,
    ("failed, settling", Replaced): handlers.accept,
    ("failed, routing", Started): handlers.begin,
    ("failed, routing", Retried): handlers.route_again,
    ("failed, routing", Replaced): handlers.accept,
    ("done", Started): handlers.begin,
}
"""The legal events. Tests hold the table in the module's docstring against this one."""

_KINDS: dict[Place, tuple[str, ...]] = {
    "ready, once": ("task",),
    "ready, repeatable": ("task",),
    "started": ("task",),
    "waiting": ("human",),
    "unknown": ("task",),
    "failed, ready": ("task",),
    # The effect is over and only `set` and `routes` are left, which are the same for both kinds.
    "failed, settling": ("task", "human"),
    "failed, routing": ("task", "human"),
}
"""The kinds of stage that a run can stand at. The state does not repeat the kind; the place tells it."""

_HINTS: dict[Place, str] = {
    "absent": "start the run first",
    "ready, once": "save the effect's intent first, then perform it",
    "ready, repeatable": "perform the stage's effect and report how it ended",
    "started": "report how the effect ended, or that its outcome is unknown",
    "waiting": "answer with `exec resume RUN --input JSON`",
    "unknown": "give the effect's result with `exec resume RUN --input JSON`, or run it again with --retry",
    "failed, ready": "`exec resume RUN --retry` clears the error",
    "failed, settling": "`exec resume RUN --retry` clears the error",
    "failed, routing": "`exec resume RUN --retry` clears the error",
    "done": "start another run, or restart this one with --force",
}

_FAILED: dict[str, Place] = {
    "ready": "failed, ready",
    "settling": "failed, settling",
    "routing": "failed, routing",
}


def advance(machine: Machine, state: RunState | None, event: Event, facts: Facts = Facts()) -> Decision:  # noqa: B008 (frozen)
    """Decide what ``event`` makes of ``state`` (None: there is no run yet).

    The same arguments always give equal decisions; ``facts`` are read for conditions and limits only and leave no
    trace of themselves in the state. What to do next stands in ``state.tree.phase``: ``ready`` means perform the
    effect of ``tree.stage`` (after :class:`Intended`, unless the stage is repeatable).

    Raises, with nothing changed: ``IllegalEvent`` for an event that ``TABLE`` does not have here; ``ValueRefused``
    for an input, and ``AnswerRefused`` for an answer, that its schema forbids; ``MachineChanged`` for a machine that
    lacks the current stage or has another kind of stage there; ``RequestError`` for repeating a lost effect that a
    limit forbids.
    """
    place = place_of(machine, state)
    if state is not None and not isinstance(event, Started):
        _demand_stage(machine, state, place)
    handler = TABLE.get((place, type(event)))
    if handler is None:
        raise _illegal(place, state, event)
    return handler(machine, state, event, facts)


def place_of(machine: Machine, state: RunState | None) -> Place:
    """Where the run stands, as a row of ``TABLE``. A stage that the machine does not have counts as not repeatable."""
    if state is None:
        return "absent"
    tree = state.tree
    if tree.phase == "ready":
        stage = machine.stages.get(tree.stage)
        return "ready, repeatable" if stage is not None and stage.repeatable else "ready, once"
    if tree.phase == "failed":
        return _FAILED[tree.resume]
    return tree.phase


def _illegal(place: Place, state: RunState | None, event: Event) -> IllegalEvent:
    name = type(event).__name__.lower()
    where = "there is no run yet" if state is None else f"stage {state.tree.stage!r} is {place}"
    return IllegalEvent(f"the event {name!r} is not legal while {where}; nothing changed", hint=_HINTS[place])


def _demand_stage(machine: Machine, state: RunState, place: Place) -> None:
    """The machine must have the place where the run stands; any other machine would be used by mistake."""
    name, kinds = state.tree.stage, _KINDS.get(place, ())
    stage = machine.stages.get(name)
    if place == "done" or (stage is not None and stage.kind in kinds):
        return
    have = "does not have" if stage is None else f"has as a stage of kind {stage.kind!r}, not {' or '.join(kinds)}"
    raise MachineChanged(
        f"the run stands at stage {name!r}, which the machine {machine.name!r} {have}; nothing changed",
        hint="keep that stage in the machine file, or start another run with --id, or this one anew with --force",
    )
