"""What a verb on a run came to, as the document of ``--format json`` and an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import MANUAL, Dependencies
from stateline.engine.event_codec import is_calling_tools
from stateline.engine.record import Run, facts_of
from stateline.engine.step import is_waiting_for_reply, stage_of
from stateline.machine.decider.evaluate_outputs import names
from stateline.machine.spec import Stage
from stateline.service.answers import is_built_in

if TYPE_CHECKING:
    from stateline.contexts.prepare import Prepared

Status = Literal["advanced", "complete", "waiting", "error"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands after a call. ``output`` is the newest output, ``head`` the newest snapshot's SHA-256,
    ``source`` the stage that the newest event was about ("from" in the document), ``waiting`` what is awaited (None
    unless ``status`` is waiting), ``error`` the run's failure or the one that took ``error_next``, ``exit_code`` what
    the command exits with. ``built_in``: the run is one of ``run``, and has no machine file."""

    run: str | None
    status: Status
    stage: str | None
    turn: int
    head: str
    output: Json
    outputs: dict[str, Json]
    source: str | None = None
    reason: str
    waiting: Json
    warnings: list[str]
    error: Json = None
    exit_code: int = 0
    built_in: bool = False

    def document(self) -> dict[str, Json]:
        """The JSON document, as ``docs/commands.md`` has it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        del document["exit_code"], document["built_in"]
        document["from"] = document.pop("source")
        return document


def outcome(run: Run, *, one_turn: bool, warnings: list[str], dependencies: Dependencies = MANUAL) -> Outcome:
    """How ``run`` stands; a model's request as these ``dependencies`` would make it. Exit codes: 0 advanced or done, 1 failed,
    2 complete by ``one_turn``, 3 waiting."""
    state = run.state
    status: Status = "advanced" if state.status == "running" else state.status
    routed_away = any(way["reason"] in ("error", "limit") for way in run.event["transitions"])
    failure = state.tree.error if status == "error" else state.tree.cause if routed_away else None
    masked = run.event.get("redactions", 0)
    if masked:
        said = "a value was" if masked == 1 else f"{masked} values were"
        warnings = [*warnings, f"{said} masked as secrets before anything was stored"]
    output_of = run.event.get("output_of")
    return Outcome(
        run=run.id,
        status=status,
        stage=state.tree.stage,
        turn=run.event["turn"],
        head=run.sha256,
        output=state.outputs.get(output_of) if output_of is not None else None,
        outputs=state.outputs,
        source=run.event["stage"],
        reason=_reason(run),
        waiting=waiting(run, dependencies) if status == "waiting" else None,
        warnings=[*run.scope.store.warnings, *warnings],
        error=msgspec.to_builtins(failure) if failure else None,
        exit_code={"advanced": 0, "complete": 2 if one_turn else 0, "waiting": 3, "error": 1}[status],
        built_in=is_built_in(run.event),
    )


def context_outcome(prepared: Prepared) -> Outcome:
    """Return the outcome of a call that was about a context and no run."""
    return Outcome(
        run=None,
        status="complete",
        stage=None,
        turn=0,
        head=prepared.head.sha256,
        output=None,
        outputs={},
        reason=prepared.action,
        waiting=None,
        warnings=list(prepared.warnings),
    )


def _reason(run: Run) -> str:
    """Why the run stands where it stands: the kind of its failure, or the reason of its last transition."""
    tree = run.state.tree
    if run.state.status == "error" and tree.error is not None:
        return tree.error.kind
    if tree.phase == "unknown":
        return "unknown_outcome"
    transitions = run.event["transitions"]
    if not transitions and is_waiting_for_reply(run):
        return "llm_request"
    if not transitions and run.state.status == "running" and run.event["type"] in _TOOL_EVENTS and tree.conversation:
        return "tools"
    return str(transitions[-1]["reason"]) if transitions else str(run.event["type"])


_TOOL_EVENTS = ("replied", "answered", "calls_intended", "call_ended")
"""Events after which a conversation goes on: tools were asked for, or have ended."""


def waiting(run: Run, dependencies: Dependencies = MANUAL) -> dict[str, Json]:
    """What an unfinished run waits for: a human's answer, a reply in a model's stead, or word of a lost effect."""
    stage = stage_of(run)
    request = (run.event.get("waiting") or {}).get("requestId")
    if run.state.tree.phase == "unknown":
        return _unknown(run, stage, request)
    if is_waiting_for_reply(run):
        return _request(run, request, dependencies)
    return {
        "type": "human",
        "requestId": request,
        "stage": stage.name,
        "prompt": prompt(run, stage),
        # As it is stored: the machine of a call that read the file has the file's order.
        "schema": canonical.decode(canonical.encode(stage.schema)),
    }


def _request(run: Run, request: Json, dependencies: Dependencies) -> dict[str, Json]:
    """What a model would be asked; whoever calls next may answer in its stead."""
    from stateline.engine.agent import request_of

    asked = request_of(run, dependencies)
    return {
        "type": "llm_request",
        "requestId": request,
        "stage": run.state.tree.stage,
        "prompt": run.state.tree.conversation[0]["content"],
        "messages": asked.messages,
        "tools": msgspec.to_builtins(asked.tools),
        "output_schema": asked.output_schema,
    }


def _unknown(run: Run, stage: Stage, request: Json) -> dict[str, Json]:
    """An effect of which nobody knows whether it was done."""
    document = {"type": "interrupt", "kind": "unknown_outcome", "requestId": request, "stage": stage.name}
    what, again = f"stage {stage.name!r}", "it"
    if is_calling_tools(run.state.tree):
        doubt = run.state.interrupts[0] if run.state.interrupts else {}
        document |= {name: doubt[name] for name in ("call", "tool") if name in doubt}
        lost = sum(call["status"] == "started" for call in run.state.tree.pending)
        what = f"the tool {doubt.get('tool')!r} at stage {stage.name!r}"
        again = "it" if lost == 1 else f"all {lost} lost calls"
    return document | {
        "message": _doubt(run, what),
        "hint": f"`stateline exec resume {run.id} --retry` runs {again} again; --input JSON gives its result instead",
    }


def _doubt(run: Run, what: str) -> str:
    event = run.event
    if any((event.get(pending) or {}).get("doubtful") is True for pending in ("effect", "calls")):
        return (
            "newer snapshots of this run were lost, or may have been, before a repair of it; "
            f"{what} may have been done already, and it is not repeatable"
        )
    return (
        f"{what} was started and its outcome was never saved; its program may still be running, "
        "and it is not repeatable"
    )


def prompt(run: Run, stage: Stage) -> str:
    """The stage's prompt with its expressions filled in; the bare template, marked, where that fails."""
    from stateline.machine.expressions.cel_errors import ExpressionError
    from stateline.machine.expressions.templates import render

    try:
        return render(stage.prompt, names(run.state, facts_of(run)))
    except ExpressionError as error:
        # The person can still answer; what cannot be filled in is said beside the bare text.
        return f"{stage.prompt} [not filled in: {error}]"
