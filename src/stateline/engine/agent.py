"""The effect of an agent stage: one model call, made from the run's state and the dependencies of this call.

The model replies in a separate thread, and a signal interrupts only the wait for it. So a reply that has arrived is
kept even if a signal follows, and no signal is raised inside a provider's library.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import Dependencies
from stateline.engine.event_codec import Cost, Tokens
from stateline.engine.next_event import counts_call_first
from stateline.engine.record import Run, facts_of
from stateline.engine.step import EventContext, stage_of
from stateline.errors import InvalidValueError
from stateline.machine.decider import agents
from stateline.machine.decider.run import Facts, Failed, Lost, Replied
from stateline.model.protocol import CallCost, ModelCallError, ModelRequest, Reply, ToolSpec
from stateline.process.child import TICK
from stateline.process.signals import interruptible

ESTIMATED = (
    "the server does not say how many tokens a call used; for bounds.max_tokens each byte that was sent and that came "
    "back was counted as one"
)
"""The warning, once per call of the program, that a bound on tokens uses an estimate."""


def request_of(run: Run, dependencies: Dependencies) -> ModelRequest:
    """Return the request to the model at the current stage. Raises ``InvalidValueError`` for settings or prompts of
    this call that format 1 cannot hold."""
    stage, facts, effect = stage_of(run), _with_overrides(facts_of(run), dependencies), run.event.get("effect") or {}
    agent, bound = stage.agent, run.machine.bounds.timeout
    asked: dict[str, Any] = {
        "messages": agents.messages(run.state, facts),
        "settings": (facts.context or {}).get("settings") or {},
        "output_schema": None if agent is None else agent.output_schema,
    }
    # As stored, including the order of keys: a value that this call made and one that it read must be equal.
    asked = canonical.decode(canonical.encode(asked, depth=canonical.FILE_DEPTH))
    return ModelRequest(
        model=dependencies.name,
        messages=asked["messages"],
        tools=tools_of(run),
        settings=asked["settings"],
        output_schema=asked["output_schema"],
        key=str(effect.get("key", "")),
        mark=str(effect.get("refused") or ""),
        timeout=stage.timeout,
        left=max(bound - facts.active, 0.001) if bound else 0.0,
        repeatable=stage.repeatable,
        single=counts_call_first(run),
    )


def tools_of(run: Run) -> list[ToolSpec]:
    """Return the tools of the stage as a model request has them."""
    return [
        ToolSpec(
            name=tool.name,
            description=tool.description,
            parameters=canonical.decode(canonical.encode(tool.schema, depth=canonical.FILE_DEPTH)),
        )
        for tool in agents.offered(run.machine, stage_of(run))
    ]


def ask(run: Run, dependencies: Dependencies, *, again: bool = False) -> EventContext:
    """Call the model once and return the event. ``again``: where calls are counted before they are made, a call whose
    reply was lost becomes ``Lost`` instead of a failure.

    Raises ``Interrupted`` for a signal during the wait; only the request is known then. A signal that arrives after the
    reply is returned with it. Raises ``StatelineError`` for an error before anything was sent that is not a failure of
    the stage, such as a missing recording.
    """
    began = time.monotonic()
    members: dict[str, Json] = {"model": _named(run, dependencies)}
    interrupted, partial, call_cost = None, None, CallCost()
    try:
        request = request_of(run, dependencies)
        members["request"] = request.digest()
        outcome, interrupted = _wait(dependencies.model, request, dependencies.on_text)
        if isinstance(outcome, BaseException):
            raise outcome
        event, call_cost = _replied(outcome)
        members |= _reply_members(run, outcome)
    except ModelCallError as failed:
        lost = again and failed.retryable and counts_call_first(run)
        event = Lost(message=failed.message) if lost else _failed(failed)
        call_cost, partial = failed.cost, failed.partial
        if call_cost.usage is not None:
            members["usage"] = msgspec.to_builtins(call_cost.usage)
    except InvalidValueError as refused:  # of the digest: nothing was sent
        event = Failed(kind="model", message=f"the request cannot be made: {refused.message}", hint=refused.hint)
    if dependencies.exchanges is not None:
        members["exchanges"] = dependencies.exchanges()
    tokens = Tokens() if call_cost.usage is None else Tokens(call_cost.usage.input, call_cost.usage.output)
    if run.machine.bounds.max_tokens and (unreported := call_cost.calls - (call_cost.usage is not None)) > 0:
        more = Tokens(
            unreported * len(canonical.encode(request.document(), depth=canonical.FILE_DEPTH)), call_cost.received
        )
        tokens = Tokens(tokens.input + more.input, tokens.output + more.output)
        members["estimated"] = msgspec.to_builtins(more)
        if dependencies.warn is not None:
            dependencies.warn(ESTIMATED)
    calls = 0 if isinstance(event, Lost) else call_cost.calls  # a lost call stays counted
    cost = Cost(llm_calls=calls, tokens=tokens, seconds=time.monotonic() - began)
    return EventContext(
        event=event, cost=cost, dependencies=dependencies, members=members, partial=partial, interrupted=interrupted
    )


def _replied(reply: Reply) -> tuple[Replied | Failed | Lost, CallCost]:
    calls = [msgspec.to_builtins(call) for call in reply.tool_calls]
    came = 0 if reply.usage is not None else len(canonical.encode([reply.content, calls], depth=canonical.FILE_DEPTH))
    return Replied(content=reply.content, tool_calls=calls), CallCost(
        calls=reply.calls, usage=reply.usage, received=came
    )


def _failed(error: ModelCallError) -> Failed:
    return Failed(kind=error.kind, message=error.message, hint=error.hint, bound=error.bound, permanent=error.permanent)


def _with_overrides(facts: Facts, dependencies: Dependencies) -> Facts:
    """Return ``facts`` with the settings and prompts of this call over those of the context."""
    context = facts.context or {}
    prompts = dict(context.get("prompts") or {})
    if dependencies.system is not None:
        prompts["system"] = dependencies.system
    if dependencies.developer is not None:
        prompts["developer"] = dependencies.developer
    own = dependencies.settings
    merged = (context.get("settings") or {}) | own
    settings = {name: value for name, value in merged.items() if value is not None or name not in own}
    return replace(facts, context={"prompts": prompts, "settings": settings})


def _named(run: Run, dependencies: Dependencies) -> dict[str, Json]:
    redact = run.scope.store.redactor.redact
    named: dict[str, Json] = {"name": redact(dependencies.name)[0]}
    if dependencies.settings:
        named["settings"] = redact(dependencies.settings)[0]
    return named


def _reply_members(run: Run, reply: Reply) -> dict[str, Json]:
    members: dict[str, Json] = {"finish": reply.finish}
    if reply.model:
        members["answered_by"] = run.scope.store.redactor.redact(reply.model)[0]
    if reply.usage is not None:
        members["usage"] = {"input": reply.usage.input, "output": reply.usage.output}
    return members


def _wait(
    model: Any, request: ModelRequest, on_text: Callable[[str], None] | None
) -> tuple[Reply | BaseException, BaseException | None]:
    """Return the reply or exception of the model, and the signal that arrived after it (or None). Raises a signal that
    arrived before."""
    outcome: list[Reply | BaseException] = []
    ended, closed = threading.Event(), threading.Event()

    def listen(text: str) -> None:
        if on_text is not None and not closed.is_set():
            on_text(text)

    def call() -> None:
        try:
            outcome.append(model.reply(request, None if on_text is None else listen))
        except BaseException as error:  # noqa: BLE001 (it is raised again where it is waited for)
            outcome.append(error)
        finally:
            ended.set()

    # A daemon thread: an abandoned call must not keep the process alive.
    thread = threading.Thread(target=call, name="stateline-model", daemon=True)
    thread.start()
    interrupted = None
    try:
        with interruptible():
            while not ended.wait(TICK):
                pass
    except BaseException as signal:
        if not ended.is_set():
            raise
        interrupted = signal
    finally:
        closed.set()
    thread.join()
    return outcome[0], interrupted
