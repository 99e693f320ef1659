"""The outcome of a verb on a run: the document of ``--format json``, an exit code, and files for ``--destination``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import MANUAL, Dependencies
from stateline.engine.event_codec import has_new_output, is_built_in, is_calling_tools, read_event
from stateline.engine.record import Run, facts_of
from stateline.engine.step import is_waiting_for_reply, stage_of
from stateline.errors import IntegrityError, StorageError
from stateline.machine.decider.evaluate_outputs import names
from stateline.machine.spec import Stage
from stateline.service.answers import answer_command, open_request, takes_input

if TYPE_CHECKING:
    from stateline.contexts.prepare import Prepared

Status = Literal["advanced", "complete", "waiting", "error", "cancelled"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run after a call. ``output`` is the newest output, ``head`` the newest snapshot's SHA-256, ``source`` the stage
    of the newest event ("from" in the document), ``tools`` the tool calls of the newest turn, ``waiting`` the open
    request (None unless ``status`` is waiting), ``error`` the run's failure or the one that took ``error_next``,
    ``counters`` what the run has used (None without a run), ``context`` what this call did with the context (None
    without one), ``exit_code`` that of the command. ``built_in``: ``run -p`` started the run, so it has no machine file
    (``machine_path``). ``kept``: the run is in the store. ``fresh``: the newest event made the output."""

    run: str | None = None
    status: Status = "complete"
    stage: str | None = None
    turn: int = 0
    head: str
    output: Json = None
    outputs: dict[str, Json] = {}
    source: str | None = None
    reason: str
    tools: list[Json] = []
    waiting: Json = None
    warnings: list[str]
    error: Json = None
    counters: Json = None
    context: Json = None
    fresh: bool = True
    exit_code: int = 0
    built_in: bool = False
    machine_path: str = ""
    takes_input: bool = False
    kept: bool = True

    def document(self) -> dict[str, Json]:
        """Return the JSON document; ``docs/commands.md`` describes it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        for name in ("exit_code", "built_in", "machine_path", "takes_input", "kept", "fresh"):
            del document[name]
        document["from"] = document.pop("source")
        return document


def outcome(run: Run, *, one_turn: bool, warnings: list[str], dependencies: Dependencies = MANUAL) -> Outcome:
    """Return the outcome of ``run`` as it is now, with a model request as these ``dependencies`` would make it. Exit
    codes: 0 advanced, complete or cancelled, 1 failed, 2 complete by ``one_turn``, 3 waiting."""
    state = run.state
    status: Status = "advanced" if state.status == "running" else state.status
    routed_away = any(way["reason"] in ("error", "limit") for way in run.event["transitions"])
    failure = state.tree.error if status == "error" else state.tree.cause if routed_away else None
    if masked := run.event.get("redactions", 0):
        warnings = [*warnings, f"values masked as secrets before anything was stored: {masked}"]
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
        tools=_tools(run),
        fresh=has_new_output(read_event(run.snapshot)),
        waiting=waiting(run, dependencies) if status == "waiting" else None,
        warnings=[*run.scope.store.warnings, *warnings],
        error=msgspec.to_builtins(failure) if failure else None,
        counters=counters_of(run),
        context=None if state.context is None else _context(state.context["scope"], run.event["context"], "restore"),
        exit_code={"advanced": 0, "complete": 2 if one_turn else 0, "waiting": 3, "error": 1, "cancelled": 0}[status],
        built_in=is_built_in(run.event),
        machine_path=run.event["machine"]["path"],
        takes_input=takes_input(run),
    )


def _tools(run: Run) -> list[Json]:
    if run.event["type"] != "asked" and not (run.event.get("asked") or run.event.get("call")):
        return []
    from stateline.service.run_history import calls_of_turn

    return calls_of_turn(run.scope.store, run)


def context_outcome(prepared: Prepared) -> Outcome:
    """Return the outcome of a call that was about a context and no run."""
    return Outcome(
        head=prepared.head.sha256,
        reason=prepared.action,
        warnings=list(prepared.warnings),
        context=context_of_call(prepared),
    )


def context_of_call(prepared: Prepared) -> dict[str, Json]:
    """Return the member ``context`` of the document of a call that prepared a context."""
    head = {"seq": prepared.head.seq, "sha256": prepared.head.sha256}
    return _context(prepared.scope, head, prepared.action, prepared.calls, prepared.tokens)


def _context(scope: str, place: dict[str, Json], action: str, calls: int = 0, tokens: int = 0) -> dict[str, Json]:
    document: dict[str, Json] = {"scope": scope, "seq": place.get("seq"), "head": place["sha256"], "action": action}
    return document | {"model_calls": calls, "tokens": tokens}


def counters_of(run: Run) -> dict[str, Json]:
    """Return what a run has used since it began."""
    meters = run.event["meters"]
    return {
        "turns": run.event["turn"],
        "model_calls": meters["llm_calls"],
        "tokens": sum((meters.get("tokens") or {}).values()),
        "seconds": meters["active"],
    }


def _reason(run: Run) -> str:
    """Return the kind of the failure, or the reason of the last transition."""
    tree = run.state.tree
    if run.state.status == "error" and tree.error is not None:
        return tree.error.kind
    if tree.phase == "unknown":
        return "unknown_outcome"
    if transitions := run.event["transitions"]:
        return str(transitions[-1]["reason"])
    if is_waiting_for_reply(run):
        return "llm_request"
    if run.state.status == "running" and run.event["type"] in _TOOL_EVENTS and tree.conversation:
        return "tools"
    return str(run.event["type"])


_TOOL_EVENTS = ("replied", "answered", "calls_intended", "call_ended")
"""Events in the middle of a conversation: tools were asked for, or have ended."""


def waiting(run: Run, dependencies: Dependencies = MANUAL) -> dict[str, Json]:
    """Return what a run waits for: an answer, a reply to a model request, or the result of a lost effect."""
    stage = stage_of(run)
    request = open_request(run)
    if run.state.tree.phase == "unknown":
        return _unknown(run, stage, request)
    if is_waiting_for_reply(run):
        return _request(run, request, dependencies)
    return {
        "type": "human",
        "requestId": request,
        "stage": stage.name,
        "prompt": _prompt(run, stage),
        # As stored: a machine that was just read has the key order of the file.
        "schema": canonical.decode(canonical.encode(stage.schema)),
    }


def _request(run: Run, request: Json, dependencies: Dependencies) -> dict[str, Json]:
    """Return the model request, which the next call may answer."""
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
    """Return the request for the result of an effect with an unknown outcome."""
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
        "hint": f"`stateline exec resume {run.id} --retry` runs {again} again; "
        f"`{answer_command(run.id, request, 'JSON')}` gives its result instead",
    }


def _doubt(run: Run, what: str) -> str:
    if any((run.event.get(pending) or {}).get("doubtful") is True for pending in ("effect", "calls")):
        reason = (
            f"newer snapshots of this run may have been lost before its repair, so {what} may have been done already"
        )
    else:
        reason = f"{what} was started and its outcome was never saved, so its program may still be running"
    return f"{reason}; it is not repeatable"


def _prompt(run: Run, stage: Stage) -> str:
    """Return the stage's prompt with its expressions rendered; the template with a note if that fails."""
    from stateline.machine.expressions.cel_errors import ExpressionError
    from stateline.machine.expressions.templates import render

    try:
        return render(stage.prompt, names(run.state, facts_of(run)))
    except ExpressionError as error:
        # The question can still be answered; the error is shown beside the template.
        return f"{stage.prompt} [not filled in: {error}]"


def write_outputs(outcome: Outcome, directory: str) -> list[str]:
    """Write ``output.json`` (the newest output) and ``outputs/<stage>.json`` below ``directory``, which is made if it
    is absent; the paths written. Each file replaces an older one at once. A run that is not complete writes nothing.

    Raises ``StorageError`` when the file system refuses; files before that one are written.
    """
    if outcome.status != "complete":
        return []
    files = {"output.json": outcome.output}
    for stage, output in sorted(outcome.outputs.items()):
        # Stage names come from a stored spec, which must not choose where a file is written.
        if not naming.is_id(stage):
            raise IntegrityError(f"the stage {stage[:40]!a} has no name that can be a file's; nothing was written")
        files[os.path.join("outputs", f"{stage}.json")] = output
    try:
        os.makedirs(os.path.join(directory, "outputs"), exist_ok=True)
        return [_write(os.path.join(directory, name), output) for name, output in files.items()]
    except (OSError, ValueError) as error:
        raise StorageError(
            f"cannot write the outputs to {directory}: {error}; the run itself is complete and saved",
            hint="choose another --destination and call again with --id",
        ) from None


def _write(path: str, output: Json) -> str:
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(output, order="sorted"), indent=2) + b"\n")
        os.replace(temporary, path)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    return path
