"""What a verb on a run came to, as the document of ``--format json`` and an exit code."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.record import Run, facts_of
from stateline.machine.settling import names
from stateline.machine.spec import Stage

Status = Literal["advanced", "complete", "waiting", "error"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands after a call. ``output`` is the newest output, ``head`` the newest snapshot's SHA-256,
    ``source`` the stage that the newest event was about ("from" in the document), ``waiting`` what is awaited (None
    unless ``status`` is waiting), ``error`` the run's failure or the one that took ``error_next``, ``exit_code`` what
    the command exits with."""

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

    def document(self) -> dict[str, Json]:
        """The JSON document, as ``docs/commands.md`` has it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        del document["exit_code"]
        document["from"] = document.pop("source")
        return document


def outcome(run: Run, *, one_turn: bool, warnings: list[str]) -> Outcome:
    """How ``run`` stands. Exit codes: 0 advanced or done, 1 failed, 2 complete by ``one_turn``, 3 waiting."""
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
        waiting=waiting(run) if status == "waiting" else None,
        warnings=[*run.scope.store.warnings, *warnings],
        error=msgspec.to_builtins(failure) if failure else None,
        exit_code={"advanced": 0, "complete": 2 if one_turn else 0, "waiting": 3, "error": 1}[status],
    )


def _reason(run: Run) -> str:
    """Why the run stands where it stands: the kind of its failure, or the reason of its last transition."""
    tree = run.state.tree
    if run.state.status == "error" and tree.error is not None:
        return tree.error.kind
    if tree.phase == "unknown":
        return "unknown_outcome"
    transitions = run.event["transitions"]
    return str(transitions[-1]["reason"]) if transitions else str(run.event["type"])


def waiting(run: Run) -> dict[str, Json]:
    """What an unfinished run waits for: a human's answer, or word of a lost effect."""
    stage = run.machine.stages[run.state.tree.stage]
    request = (run.event.get("waiting") or {}).get("requestId")
    if run.state.tree.phase == "unknown":
        return {
            "type": "interrupt",
            "kind": "unknown_outcome",
            "requestId": request,
            "stage": stage.name,
            "message": _unknown(run, stage),
            "hint": f"`stateline exec resume {run.id} --retry` runs it again; --input JSON gives its result instead",
        }
    return {
        "type": "human",
        "requestId": request,
        "stage": stage.name,
        "prompt": prompt(run, stage),
        # As it is stored: the machine of a call that read the file has the file's order.
        "schema": canonical.decode(canonical.encode(stage.schema)),
    }


def _unknown(run: Run, stage: Stage) -> str:
    """What is known of an effect of which nobody knows whether it was done."""
    if (run.event.get("effect") or {}).get("doubtful") is True:
        return (
            "newer snapshots of this run were lost, or may have been, before a repair of it; stage "
            f"{stage.name!r} may have been done already, and it is not repeatable"
        )
    return (
        f"stage {stage.name!r} was started and its outcome was never saved; its program may still be running, "
        "and it is not repeatable"
    )


def prompt(run: Run, stage: Stage) -> str:
    """The stage's prompt with its expressions filled in; the bare template, marked, where that fails."""
    from stateline.machine.conditions import ConditionError, render

    try:
        return render(stage.prompt, names(run.state, facts_of(run)))
    except ConditionError as error:
        # The person can still answer; what cannot be filled in is said beside the bare text.
        return f"{stage.prompt} [not filled in: {error}]"
