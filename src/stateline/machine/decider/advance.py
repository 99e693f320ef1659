"""The only decider: a run's state and an event give the next state. Pure: no file, no clock, no randomness.

``TABLE`` lists the legal events, ``handlers`` and ``rounds`` carry them out. Any other event raises
:class:`~stateline.errors.IllegalEventError`. An error changes nothing: states are never modified in place.

Started is legal everywhere and restarts the run. Replaced, which accepts a changed machine, and Cancelled, which ends
the run, are legal in every run that is neither complete nor cancelled. The tables below show the other events.

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
    cancelled                 -         -          -       -        -         -

Agent stages have separate places: a model's reply ends the effect, a caller may answer instead of the model, and the
tool calls in a reply are effects as well.

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
from stateline.machine.decider import handlers, rounds, run
from stateline.machine.decider.run import Decision, Event, Facts, RunState
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
    "cancelled",
]
"""A phase, split where the legal events or their meaning differ: by the kind of stage (only an agent has a
conversation), by whether the effect may be repeated (``ready``, and all phases of an agent), by the lost effect
(``unknown``), by where a retry continues (``failed``). ``absent``: before the run."""

Handler = Callable[[Machine, Any, Any, Facts], Decision]

_OVER: tuple[Place, ...] = ("done", "cancelled")

TABLE: dict[tuple[Place, type], Handler] = {
    **{(place, run.Started): handlers.begin for place in get_args(Place)},
    **{(place, run.Replaced): handlers.accept for place in get_args(Place) if place not in ("absent", *_OVER)},
    **{(place, run.Cancelled): handlers.cancel for place in get_args(Place) if place not in ("absent", *_OVER)},
    ("ready, once", run.Intended): handlers.intend,
    ("ready, repeatable", run.Succeeded): handlers.succeed,
    ("ready, repeatable", run.Failed): handlers.fail,
    ("started", run.Succeeded): handlers.succeed,
    ("started", run.Failed): handlers.fail,
    ("started", run.Lost): handlers.lose,
    ("waiting", run.Answered): handlers.answer,
    ("unknown", run.Answered): handlers.answer,
    ("unknown", run.Retried): handlers.rerun,
    ("failed, ready", run.Retried): handlers.retry,
    ("failed, settling", run.Retried): handlers.settle_again,
    ("failed, routing", run.Retried): handlers.route_again,
    ("agent ready, once", run.Intended): handlers.intend,
    ("agent ready, once", run.Asked): rounds.ask,
    ("agent ready, repeatable", run.Intended): handlers.intend,
    ("agent ready, repeatable", run.Asked): rounds.ask,
    ("agent ready, repeatable", run.Replied): rounds.reply,
    ("agent ready, repeatable", run.Failed): handlers.fail,
    ("agent started, once", run.Replied): rounds.reply,
    ("agent started, once", run.Failed): handlers.fail,
    ("agent started, once", run.Lost): handlers.lose,
    ("agent started, once", run.Unsent): handlers.take_back,
    ("agent started, repeatable", run.Replied): rounds.reply,
    ("agent started, repeatable", run.Failed): handlers.fail,
    ("agent started, repeatable", run.Lost): handlers.lose_again,
    ("agent started, repeatable", run.Unsent): handlers.take_back,
    ("agent waiting, once", run.Intended): handlers.intend,
    ("agent waiting, once", run.Answered): rounds.answer,
    ("agent waiting, repeatable", run.Intended): handlers.intend,
    ("agent waiting, repeatable", run.Replied): rounds.reply,
    ("agent waiting, repeatable", run.Failed): handlers.fail,
    ("agent waiting, repeatable", run.Answered): rounds.answer,
    ("agent unknown", run.Answered): rounds.answer,
    ("agent unknown", run.Retried): handlers.rerun,
    ("calling", run.CallsIntended): rounds.intend_calls,
    ("calling", run.CallEnded): rounds.end_call,
    ("calling", run.Lost): rounds.lose_calls,
    ("calling", run.Replaced): rounds.accept_calls,
    ("call unknown", run.Answered): rounds.answer_call,
    ("call unknown", run.Retried): rounds.rerun_calls,
    ("call unknown", run.Replaced): rounds.accept_calls,
    ("failed, calling", run.Retried): rounds.call_again,
}
"""The legal events. A test compares the tables in the module's docstring with this one."""

_OF_TASKS: tuple[Place, ...] = ("ready, once", "ready, repeatable", "started", "unknown")
_KINDS: dict[Place, tuple[str, ...]] = {
    **dict.fromkeys(get_args(Place), ("agent",)),
    **dict.fromkeys(_OF_TASKS, ("task",)),
    "waiting": ("human",),
    # The effect is performed again, for both kinds.
    "failed, ready": ("task", "agent"),
    # Only `set` and `routes` are left, which are the same for all kinds.
    "failed, settling": ("task", "agent", "human"),
    "failed, routing": ("task", "agent", "human"),
}
"""The kinds of stage possible at each place. The state does not store the kind."""

_MODEL = "answer instead of the model with `exec resume RUN --answer`"
_RETRY = "`exec resume RUN --retry` clears the error"
_RESTART = "start another run; `execute` and `run` restart this one with --id RUN --force"
_HINTS: dict[Place, str] = {
    "absent": "start the run first",
    "ready, once": "save the effect's intent first, then perform it",
    "ready, repeatable": "perform the stage's effect and report how it ended",
    "started": "report how the effect ended, or that its outcome is unknown",
    "waiting": "answer with `exec resume RUN --answer JSON`",
    "unknown": "give the effect's result with `exec resume RUN --answer JSON`, or run it again with --retry",
    "agent ready, once": "save the intent of the model's call first, then make it",
    "agent ready, repeatable": "call the model and report its reply, or ask the caller for an answer",
    "agent started, once": "report the model's reply, that its outcome is unknown, or that nothing was sent",
    "agent started, repeatable": "report how the call ended; if it was cut off, `exec resume RUN` repeats it",
    "agent waiting, once": _MODEL,
    "agent waiting, repeatable": _MODEL,
    "agent unknown": f"{_MODEL}, or ask again with --retry",
    "calling": "perform the tool calls and report their results",
    "call unknown": "give the call's result with `exec resume RUN --answer JSON`, or run it again with --retry",
    "failed, ready": _RETRY,
    "failed, calling": _RETRY,
    "failed, settling": _RETRY,
    "failed, routing": _RETRY,
    "done": _RESTART,
    "cancelled": _RESTART,
}

_FAILED: dict[str, Place] = {
    "ready": "failed, ready",
    "calling": "failed, calling",
    "settling": "failed, settling",
    "routing": "failed, routing",
}


def advance(machine: Machine, state: RunState | None, event: Event, facts: Facts = Facts()) -> Decision:  # noqa: B008 (frozen)
    """Return the next state after ``event`` (``state`` None: before the run).

    The same arguments always give equal decisions. ``facts`` are read for conditions and limits only and are not
    stored. ``state.tree.phase`` says what to do next: ``ready`` means perform the effect of ``tree.stage`` (after
    :class:`Intended`, unless the stage is repeatable).

    Raises, with nothing changed: ``IllegalEventError`` for an event that ``TABLE`` does not have here;
    ``InvalidValueError`` for an input, and ``InvalidAnswerError`` for an answer, that its schema forbids;
    ``MachineChangedError`` for a machine without the current stage or with another kind of stage there;
    ``RequestError`` for repeating a lost effect that a limit forbids.
    """
    place = place_of(machine, state)
    if state is not None and not isinstance(event, run.Started):
        _require_stage(machine, state, place)
    handler = TABLE.get((place, type(event)))
    if handler is None:
        raise _illegal(place, state, event)
    return handler(machine, state, event, facts)


def place_of(machine: Machine, state: RunState | None) -> Place:
    """Return the row of ``TABLE`` for a run. A stage that the machine does not have counts as not repeatable."""
    if state is None:
        return "absent"
    tree = state.tree
    if tree.phase == "failed":
        return _FAILED[tree.resume]
    if tree.phase in ("calling", "done", "cancelled"):
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
    if state is not None and isinstance(event, run.Retried):
        return IllegalEventError(f"{_nothing_to_retry(place, state)}; nothing changed", hint=_HINTS[place])
    name = type(event).__name__.lower()
    where = "the run does not exist" if state is None else f"stage {state.tree.stage!r} is {place}"
    return IllegalEventError(f"the event {name!r} is not legal while {where}; nothing changed", hint=_HINTS[place])


def _nothing_to_retry(place: Place, state: RunState) -> str:
    """Return the message for operators, who know retries but not events."""
    stage = quoted(state.tree.stage)
    if place == "agent started, repeatable":
        return f"the model call of stage {stage} may still be running; if it was cut off, it needs no retry"
    if place in _OVER:
        return f"the run is {state.status} at stage {stage}, so there is nothing to retry"
    return f"stage {stage} has not failed and has no unknown outcome, so there is nothing to retry"


def _require_stage(machine: Machine, state: RunState, place: Place) -> None:
    """Raise ``MachineChangedError`` unless the machine has the current stage, with a kind that fits."""
    name, kinds = state.tree.stage, _KINDS.get(place, ())
    stage = machine.stages.get(name)
    if place in _OVER or (stage is not None and stage.kind in kinds):
        return
    problem = "does not have" if stage is None else f"has as a stage of kind {stage.kind!r}, not {' or '.join(kinds)}"
    raise MachineChangedError(
        f"the run is at stage {name!r}, which the machine {machine.name!r} {problem}; nothing changed",
        hint="keep that stage in the machine file, start another run with --id, or restart this one with --force",
    )
