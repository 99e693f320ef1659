"""The pre-stage of ``run``: derive a context, refine the stored one, or restore it, with or without a model.

The scope's lock is held while the context is loaded, the model is called and the result is saved, so that a concurrent
call refines the result of the first one. Each reply of a model is saved before the next call: none is paid for twice.
A reply that is refused is saved too, in the event of a snapshot that changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.contexts.context import ContextContent, ContextRequest, content_of, merge_settings
from stateline.contexts.plan import ContextOptions, ContextStep, context_scope, plan_steps, require_ready
from stateline.contexts.stored import REFUSED
from stateline.errors import NotFoundError, RequestError, StatelineError
from stateline.machine.problems import quoted
from stateline.model.protocol import Model, ModelRequest, Reply
from stateline.process.signals import Signals, shield
from stateline.store.objects import ObjectStore
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot, require_known_version
from stateline.store.store import Store
from stateline.store.timestamps import next_timestamp


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A context after the call: the scope's key, its head, the last action, the number of snapshots that were made for
    the call's run, the model calls of this call and their tokens, and the prompts and settings for the rest of this
    call, flags included. Flags that only apply to this call are not stored."""

    scope: str
    head: Snapshot
    action: Literal["derive", "refine", "restore"]
    made: int
    calls: int
    tokens: int
    warnings: list[str]
    effective: ContextContent


class _ModelStep(msgspec.Struct, frozen=True):
    """The result of a step by a model: the reply, the whole new state and the number of masked values."""

    reply: Reply
    state: dict[str, Json]
    masked: int


def prepare(store: Store, options: ContextOptions) -> Prepared:
    """Derive, refine or restore a context. Raises a ``StatelineError``; snapshots that were saved before it stay.

    A stored context that is not refined is restored: no call of the model, nothing written. A context that does not
    exist and is refined is derived first: two calls and two snapshots.
    """
    scope = context_scope(store, options)
    removals: list[str] = []
    used: list[dict[str, int]] = []
    with Signals():
        plan = plan_steps(store, scope, options)
        head, state = plan.head, plan.state
        require_ready(options, plan)
        if plan.steps:
            with scope.locked(options.wait), shield():
                # Another process may have changed the context while this one waited for the lock.
                plan = plan_steps(store, scope, options)
                head, state, masked = plan.head, plan.state, plan.masked
                if head is not None:
                    require_known_version(head)  # before anything is paid for
                for step in plan.steps:
                    if store.planned is not None:
                        store.planned += step.effects(options.exchanges)
                    event, changed = _perform(scope, step, (head, state), options)
                    if "request" in event:
                        used.append(event["usage"] or {})
                    masked += event.pop("redactions", 0)
                    if masked:
                        event["redactions"] = masked
                    event["started_at"] = next_timestamp(store.clock())
                    head = scope.save(changed, kind="context", event=event, parent=head, masked=True)
                    removals += _removal_warnings(scope, step, state, changed)
                    state, masked = changed, 0
    if head is None or state is None:  # without a head there is a step
        raise NotFoundError(f"there is no context {scope.key}; nothing was done", hint="repeat the call")
    return Prepared(
        scope=head.envelope.scope,
        head=head,
        action=plan.steps[-1].type if plan.steps else "restore",
        made=len(plan.steps) + plan.repeated,
        calls=len(used),
        tokens=sum(sum(usage.values()) for usage in used),
        warnings=[*store.warnings, *removals, *plan.warnings],
        effective=_effective(state, plan.request),
    )


def removed(before: ContextContent, after: ContextContent, changes: dict[str, Json]) -> list[tuple[str, str]]:
    """Return (kind, text) of each prompt of ``before`` that is not part of a prompt of ``after``, and of each setting
    that ``after`` lacks and ``changes`` does not name."""
    new = [after.system or "", *after.developer]
    prompts = [("system prompt", before.system)] if before.system and after.system is None else []
    prompts += [("developer instruction", text) for text in before.developer]
    missing = [(kind, text) for kind, text in prompts if not any(text in other for other in new)]
    settings = [name for name in before.settings if name not in after.settings and name not in changes]
    return [*missing, *(("setting", name) for name in settings)]


def _perform(
    scope: Scope, step: ContextStep, before: tuple[Snapshot | None, dict[str, Json] | None], options: ContextOptions
) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the event (without its time) and the state of the snapshot that a step appends. Calls the model, if the
    step needs one."""
    head, state = before
    text = step.request.refine if step.type == "refine" else None
    event: dict[str, Json] = {"type": step.type, "by": step.by, "text": text}
    if step.type == "refine" and options.run is not None:
        event["run"] = options.run
    if options.model is None or not step.by_model:
        return {**event, "settings": step.request.settings}, step.literal_state(state)
    if scope.store.planned is not None:  # a dry run calls no model: the flags stand for its reply
        return event, step.literal_state(None) if state is None else state
    seq = 0 if head is None else head.seq + 1
    request = step.model_request(state)
    # A recording recognizes by the key a call that was repeated after a crash. The mark is random, because another
    # store may use the same key, and no server must answer with the reply to another store's call.
    key = f"{scope.key}:{seq}:{request.digest()[:16]}"
    request = replace(request, key=key, mark=secrets.token_hex(8))
    if options.on_call is not None:
        options.on_call(step.type)
    run: dict[str, Json] = {} if options.run is None else {"run": options.run}
    refused = {**event, **run, "type": REFUSED, "settings": {}, "request": request.digest()}
    keep_refused = partial(_save_refused, scope, before, refused)
    done = _call_model(scope.store, options.model, request, (step, state), keep_refused)
    old = ContextContent() if state is None else content_of(state)
    event |= _changes(old, content_of(done.state))
    event |= {"usage": msgspec.to_builtins(done.reply.usage), "request": request.digest()}
    return event | ({"redactions": done.masked} if done.masked else {}), done.state


def _save_refused(
    scope: Scope,
    before: tuple[Snapshot | None, dict[str, Json] | None],
    event: dict[str, Json],
    reply: dict[str, Json],
    error: RequestError,
    usage: Json,
) -> None:
    """Save a reply that was refused, masked, in the event of a snapshot that leaves the state as it is (null before
    there is a context). Completes ``error``, whose message must be masked."""
    from stateline.engine.refused_reply import refused_reply

    head, state = before
    refused, masked = refused_reply(scope.store, reply)
    told = {**event, "usage": usage, "error": {"kind": "reply", "message": error.message}, "refused": refused}
    if masked:
        told["redactions"] = masked
    told["started_at"] = next_timestamp(scope.store.clock())
    try:
        scope.save(state, kind="context", event=told, parent=head, masked=True)
    except StatelineError as another:
        error.hint = f"{error.hint}; the reply could not be kept: {another.message}"
    else:
        error.hint = f"{error.hint}; `stateline show {scope.key}` shows the reply, in `event.refused`"


def _call_model(
    store: ObjectStore,
    model: Model,
    request: ModelRequest,
    target: tuple[ContextStep, dict[str, Json] | None],
    keep_refused: Callable[[dict[str, Json], RequestError, Json], None],
) -> _ModelStep:
    """Call the model and apply its proposal. A recorder keeps with the reply the reason why it was refused;
    ``keep_refused`` receives the reply, the error and the usage."""
    from stateline.contexts import by_model

    step, state = target

    def apply(reply: Reply) -> _ModelStep:
        try:
            content, masked = _redacted(store, by_model.proposal(request, reply))
        except RequestError as error:
            raise _redacted_error(store, error) from None
        if state is None:
            return _ModelStep(reply, by_model.derive(step.request, content), masked)
        return _ModelStep(reply, by_model.refine(state, step.request, content), masked)

    def judge(reply: Reply) -> str:
        try:
            apply(reply)
        except RequestError as error:
            return error.message
        return ""

    arrived: list[dict[str, Json]] = []
    try:
        reply = by_model.call(model, request, judge, arrived.append)
    except RequestError as error:
        error = _redacted_error(store, error)
        if arrived:
            keep_refused(arrived[0], error, None)
        raise error from None
    try:
        return apply(reply)
    except RequestError as error:
        calls = [msgspec.to_builtins(each) for each in reply.tool_calls]
        keep_refused({"content": reply.content, "tool_calls": calls}, error, msgspec.to_builtins(reply.usage))
        raise


def _redacted(store: ObjectStore, content: ContextContent) -> tuple[ContextContent, int]:
    # Member by member: the names of the members are Stateline's, and never a secret.
    parts = [store.redactor.redact(part) for part in (content.system, content.developer, content.settings)]
    return ContextContent(*(part for part, _ in parts)), sum(count for _, count in parts)


def _redacted_error(store: ObjectStore, error: RequestError) -> RequestError:
    """Return ``error`` with secrets masked: it may quote a provider or a reply. Subclasses quote neither."""
    if type(error) is not RequestError:
        return error
    message, hint = store.redactor.redact([error.message, error.hint])[0]
    return RequestError(message, hint=hint)


def _changes(old: ContextContent, new: ContextContent) -> dict[str, Json]:
    """Return the changes of a model for the log: settings with their values, prompts by name."""
    changed = {
        name: value
        for name, value in new.settings.items()
        if name not in old.settings or canonical.encode(old.settings[name]) != canonical.encode(value)
    }
    prompts = [name for name in ("system", "developer") if getattr(old, name) != getattr(new, name)]
    return {"settings": changed, "unset": sorted(old.settings.keys() - new.settings.keys()), "prompts": prompts}


def _removal_warnings(
    scope: Scope, step: ContextStep, before: dict[str, Json] | None, after: dict[str, Json]
) -> list[str]:
    if before is None or not step.by_model:
        return []
    redact = scope.store.redactor.redact
    return [
        f"the model removed the {kind} {quoted(redact(text)[0])} from the context; "
        f"`stateline diff {scope.key}~1 {scope.key}` shows all changes"
        for kind, text in removed(content_of(before), content_of(after), step.request.settings)
    ]


def _effective(state: dict[str, Json], request: ContextRequest) -> ContextContent:
    stored = content_of(state)
    return ContextContent(
        stored.system if request.system is None else request.system,
        [*stored.developer, *(text for text in request.developer if text not in stored.developer)],
        merge_settings(stored.settings, request.settings),
    )
