"""Record answers by people, and replies that are given in a model's place; play back people's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import Dependencies
from stateline.engine.record import Run, facts_of
from stateline.engine.step import EventContext, stage_of, take
from stateline.errors import InvalidAnswerError
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import Answered
from stateline.service.answers import expects_reply, open_request, restart_commands
from stateline.service.run_document import waiting

if TYPE_CHECKING:
    from stateline.model.protocol import ModelRequest


def record_answer(run: Run, value: Json, dependencies: Dependencies) -> dict[str, Json]:
    """Record the answer to the open request, as ``advance`` takes it, if the run records; return what the event has of
    that. An answer that the run cannot take is not recorded, and a dry run records nothing. The lock must be held.

    Raises ``InvalidAnswerError`` also for an answer that differs from the recorded one: a process that crashed recorded
    that and did not save it. Raises as ``Recorder.reply``.
    """
    if dependencies.keep is None or run.state.tree.phase != "waiting":
        return {}
    from stateline.model.protocol import Reply

    dry = run.scope.store.planned is not None
    masked, _ = run.scope.store.redactor.redact(value)
    advance(run.machine, run.state, Answered(value=masked), facts_of(run, manual=dependencies.manual))
    if expects_reply(run):
        from stateline.engine.agent import request_of

        reply = msgspec.convert({**masked, "finish": "tool_calls" if "tool_calls" in masked else "stop"}, Reply)
        kept = dependencies.keep(request_of(run, dependencies), reply, dry)
    else:
        reply = Reply(content=canonical.encode(masked).decode())
        kept = dependencies.keep(_question(run), reply, dry)
    if (kept.content, kept.tool_calls) != (reply.content, reply.tool_calls):
        raise InvalidAnswerError(
            f"the request {open_request(run)!r} was answered and recorded before, and differently; the run still waits",
            hint="give the same answer, or remove the last file of the recording",
        )
    return {} if dependencies.exchanges is None else {"exchanges": dependencies.exchanges()}


def plays_answer(run: Run, dependencies: Dependencies) -> bool:
    """Return True if the run waits for a person, and plays back a recording with an answer that was not played yet."""
    at_person = run.state.tree.phase == "waiting" and stage_of(run).kind == "human"
    return at_person and dependencies.answers is not None and dependencies.answers.plays("answer")


def play_answer(run: Run, dependencies: Dependencies) -> Run:
    """Take the recorded answer to the open question. The run's lock must be held. Raises ``PlaybackMissError``, and as
    ``take``."""
    content = dependencies.answers.reply(_question(run)).content
    value = canonical.parse(content.encode(), what="the recorded answer")
    members = {} if dependencies.exchanges is None else {"exchanges": dependencies.exchanges()}
    try:
        return take(run, EventContext(event=Answered(value=value), dependencies=dependencies, members=members))
    except InvalidAnswerError as error:
        error.hint = f"the machine is not that of the recording; `{restart_commands(run)[0]}` starts another run"
        raise


def _question(run: Run) -> ModelRequest:
    """Return the open question in the form of a model request: its prompt is the only message."""
    from stateline.model.protocol import ModelRequest
    from stateline.model.recordings.exchange import MANUAL

    asked = waiting(run)
    return ModelRequest(
        model=MANUAL,
        messages=[{"role": "user", "content": asked["prompt"]}],
        output_schema=asked["schema"],
        purpose="answer",
        key=str(asked["requestId"]),
    )
