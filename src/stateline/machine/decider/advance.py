"""The only decider: a run's state and an event give its next state. Pure: no file, no clock, no randomness.

``TABLE`` says which event is legal where, ``machine.handlers`` and ``machine.rounds`` what it does. What is not in the
table raises :class:`~stateline.errors.IllegalEventError`. Whatever raises, nothing has changed: states are never changed in
place.

Started is legal everywhere and begins the run anew; Replaced is legal wherever there is a run that is not complete, and
accepts a changed machine. The tables below are of the others.

    place                     Intended  Succeeded  Failed  Lost     Answered  Retried
    absent                    -         -          -       -        -         -
    ready, once               started   -          -       -        -         -
    ready, repeatable         -         settle     retry   -        -         -
    started                   -         settle     retry   unknown  -         -
    waiting                   -         -          -       -        settle    -
    unknown                   -         -          -       -        settle    perform again
    failed, ready             -         -          -       -        -         perform again
    failed, settling          -         -          -       -        -         settle again
    failed, routing           -         -          -       -        -         route again
    done                      -         -          -       -        -         -

An agent stage has places of its own: there a model's reply ends the effect, a person may stand in for the model, and
the calls of tools in a reply are effects as well.

    place                      Intended Asked Replied Failed CallsIntended CallEnded Lost    Unsent Answered Retried
    agent ready, once          started  wait  -       -      -             -         -       -      -        -
    agent ready, repeatable    started  wait  take    retry  -             -         -       -      -        -
    agent started, once        -        -     take    retry  -             -         unknown ready  -        -
    agent started, repeatable  -        -     take    retry  -             -         again   ready  -        -
    agent waiting, once        started  -     -       -      -             -         -       -      take     -
    agent waiting, repeatable  started  -     take    retry  -             -         -       -      take     -
    agent unknown              -        -     -       -      -             -         -       -      take     ask again
    calling                    -        -     -       -      started       keep      unknown -      -        -
    call unknown               -        -     -       -      -             -         -       -      keep     call again
    failed, calling            -        -     -       -      -             -         -       -      -        call
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from stateline.errors import IllegalEventError, MachineChangedError
from stateline.machine.decider import handlers, rounds
from stateline.machine.decider.run import (
    Answered,
    Asked,
    CallEnded,
    CallsIntended,
    Decision,
    Event,
    Facts,
    Failed,
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
from stateline.machine.problems import quoted
from stateline.machine.spec import Machine

Place = Literal[
    "absent",
    "ready, once",
    "ready, repeatable",
    "started",
    "waiting",
    "unknown",
    "agent ready, once",
    "agent ready, repeatable",
    "agent started, once",
    "agent started, repeatable",
    "agent waiting, once",
    "agent waiting, repeatable",
    "agent unknown",
    "calling",
    "call unknown",
    "failed, ready",
    "failed, calling",
    "failed, settling",
    "failed, routing",
    "done",
]
"""A phase, split where the legal events or their meaning differ: by whether a task, a person or an agent is at work
(only an agent has a conversation), ``ready`` and what an agent has by whether the stage's effect may be repeated,
``unknown`` by what was lost, ``failed`` by where a retry goes on. ``absent``: there is no run yet."""

Handler = Callable[[Machine, Any, Any, Facts], Decision]

TABLE: dict[tuple[Place, type], Handler] = {
    **{(place, Started): handlers.begin for place in get_args(Place)},
    **{(place, Replaced): handlers.accept for place in get_args(Place) if place not in ("absent", "done")},
    ("ready, once", Intended): handlers.intend,
    ("ready, repeatable", Succeeded): handlers.succeed,
    ("ready, repeatable", Failed): handlers.fail,
    ("started", Succeeded): handlers.succeed,
    ("started", Failed): handlers.fail,
    ("started", Lost): handlers.lose,
    ("waiting", Answered): handlers.answer,
    ("unknown", Answered): handlers.answer,
    ("unknown", Retried): handlers.rerun,
    ("failed, ready", Retried): handlers.retry,
    ("failed, settling", Retried): handlers.settle_again,
    ("failed, routing", Retried): handlers.route_again,
    ("agent ready, once", Intended): handlers.intend,
    ("agent ready, once", Asked): rounds.ask,
    ("agent ready, repeatable", Intended): handlers.intend,
    ("agent ready, repeatable", Asked): rounds.ask,
    ("agent ready, repeatable", Replied): rounds.reply,
    ("agent ready, repeatable", Failed): handlers.fail,
    ("agent started, once", Replied): rounds.reply,
    ("agent started, once", Failed): handlers.fail,
    ("agent started, once", Lost): handlers.lose,
    ("agent started, once", Unsent): handlers.take_back,
    ("agent started, repeatable", Replied): rounds.reply,
    ("agent started, repeatable", Failed): handlers.fail,
    ("agent started, repeatable", Lost): handlers.lose_again,
    ("agent started, repeatable", Unsent): handlers.take_back,
    ("agent waiting, once", Intended): handlers.intend,
    ("agent waiting, once", Answered): rounds.answer,
    ("agent waiting, repeatable", Intended): handlers.intend,
    ("agent waiting, repeatable", Replied): rounds.reply,
    ("agent waiting, repeatable", Failed): handlers.fail,
    ("agent waiting, repeatable", Answered): rounds.answer,
    ("agent unknown", Answered): rounds.answer,
    ("agent unknown", Retried): handlers.rerun,
    ("calling", CallsIntended): rounds.intend_calls,
    ("calling", CallEnded): rounds.end_call,
    ("calling", Lost): rounds.lose_calls,
    ("calling", Replaced): rounds.accept_calls,
    ("call unknown", Answered): rounds.answer_call,
    ("call unknown", Retried): rounds.rerun_calls,
    ("call unknown", Replaced): rounds.accept_calls,
    ("failed, calling", Retried): rounds.call_again,
}
"""The legal events. Tests hold the tables in the module's docstring against this one."""

_KINDS: dict[Place, tuple[str, ...]] = {
    "ready, once": ("task",),
    "ready, repeatable": ("task",),
    "started": ("task",),
    "waiting": ("human",),
    "unknown": ("task",),
    "agent ready, once": ("agent",),
    "agent ready, repeatable": ("agent",),
    "agent started, once": ("agent",),
    "agent started, repeatable": ("agent",),
    "agent waiting, once": ("agent",),
    "agent waiting, repeatable": ("agent",),
    "agent unknown": ("agent",),
    "calling": ("agent",),
    "call unknown": ("agent",),
    # The effect is to begin anew, whatever it is.
    "failed, ready": ("task", "agent"),
    "failed, calling": ("agent",),
    # The effect is over and only `set` and `routes` are left, which are the same for all kinds.
    "failed, settling": ("task", "agent", "human"),
    "failed, routing": ("task", "agent", "human"),
}
"""The kinds of stage that a run can stand at. The state does not repeat the kind; the place tells it."""

_MODEL = "answer in the model's stead with `exec resume RUN --input`"
_RETRY = "`exec resume RUN --retry` clears the error"
_HINTS: dict[Place, str] = {
    "absent": "start the run first",
    "ready, once": "save the effect's intent first, then perform it",
    "ready, repeatable": "perform the stage's effect and report how it ended",
    "started": "report how the effect ended, or that its outcome is unknown",
    "waiting": "answer with `exec resume RUN --input JSON`",
    "unknown": "give the effect's result with `exec resume RUN --input JSON`, or run it again with --retry",
    "agent ready, once": "save the intent of the model's call first, then make it",
    "agent ready, repeatable": "call the model and report its reply, or ask for an answer in its stead",
    "agent started, once": "report the model's reply, that its outcome is unknown, or that nothing was sent",
    "agent started, repeatable": "report how the call ended; if it was cut off, `exec resume RUN` makes it again",
    "agent waiting, once": _MODEL,
    "agent waiting, repeatable": _MODEL,
    "agent unknown": f"{_MODEL}, or ask again with --retry",
    "calling": "perform the tool calls and report their results",
    "call unknown": "give the call's result with `exec resume RUN --input JSON`, or run it again with --retry",
    "failed, ready": _RETRY,
    "failed, calling": _RETRY,
    "failed, settling": _RETRY,
    "failed, routing": _RETRY,
    "done": "start another run; `execute` and `run` begin this one anew with --id RUN --force",
}

_FAILED: dict[str, Place] = {
    "ready": "failed, ready",
    "calling": "failed, calling",
    "settling": "failed, settling",
    "routing": "failed, routing",
}


def advance(machine: Machine, state: RunState | None, event: Event, facts: Facts = Facts()) -> Decision:  # noqa: B008 (frozen)
    """Decide what ``event`` makes of ``state`` (None: there is no run yet).

    The same arguments always give equal decisions; ``facts`` are read for conditions and limits only and leave no
    trace of themselves in the state. What to do next stands in ``state.tree.phase``: ``ready`` means perform the
    effect of ``tree.stage`` (after :class:`Intended`, unless the stage is repeatable).

    Raises, with nothing changed: ``IllegalEventError`` for an event that ``TABLE`` does not have here; ``InvalidValueError``
    for an input, and ``InvalidAnswerError`` for an answer, that its schema forbids; ``MachineChangedError`` for a machine that
    lacks the current stage or has another kind of stage there; ``RequestError`` for repeating a lost effect that a
    limit forbids.
    """
    place = place_of(machine, state)
    if state is not None and not isinstance(event, Started):
        _require_stage(machine, state, place)
    handler = TABLE.get((place, type(event)))
    if handler is None:
        raise _illegal(place, state, event)
    return handler(machine, state, event, facts)


def place_of(machine: Machine, state: RunState | None) -> Place:
    """Where the run stands, as a row of ``TABLE``. A stage that the machine does not have counts as not repeatable."""
    if state is None:
        return "absent"
    tree = state.tree
    if tree.phase == "failed":
        return _FAILED[tree.resume]
    if tree.phase in ("calling", "done"):
        return tree.phase
    if not tree.conversation:
        return _ready(machine, tree.stage) if tree.phase == "ready" else tree.phase
    if tree.phase == "unknown":
        return "call unknown" if any(effect["type"] == "tool" for effect in tree.pending) else "agent unknown"
    repeatable = _is_repeatable(machine, tree.stage)
    if tree.phase == "started":
        return "agent started, repeatable" if repeatable else "agent started, once"
    if tree.phase == "ready":
        return "agent ready, repeatable" if repeatable else "agent ready, once"
    return "agent waiting, repeatable" if repeatable else "agent waiting, once"


def _ready(machine: Machine, stage: str) -> Place:
    return "ready, repeatable" if _is_repeatable(machine, stage) else "ready, once"


def _is_repeatable(machine: Machine, name: str) -> bool:
    stage = machine.stages.get(name)
    return stage is not None and stage.repeatable


def _illegal(place: Place, state: RunState | None, event: Event) -> IllegalEventError:
    if state is not None and isinstance(event, Retried):
        return IllegalEventError(f"{_nothing_to_retry(place, state)}; nothing changed", hint=_HINTS[place])
    name = type(event).__name__.lower()
    where = "there is no run yet" if state is None else f"stage {state.tree.stage!r} is {place}"
    return IllegalEventError(f"the event {name!r} is not legal while {where}; nothing changed", hint=_HINTS[place])


def _nothing_to_retry(place: Place, state: RunState) -> str:
    """Said to operators, who know of retries and not of events."""
    stage = quoted(state.tree.stage)
    if place == "agent started, repeatable":
        return f"the model's call of stage {stage} may still be under way, or was cut off: then it needs no retry"
    if place == "done":
        return f"the run is complete at stage {stage}, so there is nothing to retry"
    return f"stage {stage} has not failed, and no outcome of it is unknown, so there is nothing to retry"


def _require_stage(machine: Machine, state: RunState, place: Place) -> None:
    """The machine must have the place where the run stands; any other machine would be used by mistake."""
    name, kinds = state.tree.stage, _KINDS.get(place, ())
    stage = machine.stages.get(name)
    if place == "done" or (stage is not None and stage.kind in kinds):
        return
    have = "does not have" if stage is None else f"has as a stage of kind {stage.kind!r}, not {' or '.join(kinds)}"
    raise MachineChangedError(
        f"the run stands at stage {name!r}, which the machine {machine.name!r} {have}; nothing changed",
        hint="keep that stage in the machine file, or start another run with --id, or this one anew with --force",
    )
