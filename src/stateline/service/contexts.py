"""The pre-stage of ``run``: derive a context, refine the one that is there, or restore it, with or without a model.

The scope's lock is held over loading, asking and saving: whoever comes second refines what the first has made. Each
reply of a model is a snapshot before the next one is asked for, so nothing that was paid for is asked twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.errors import IntegrityError, NotFound, RequestError
from stateline.model.protocol import Model, Reply, Request, ToolSpec
from stateline.prestage.context import (
    Draft,
    Wishes,
    default_name,
    demand_settings,
    derive,
    draft_of,
    drift,
    laid_over,
    refine,
)
from stateline.process.interrupts import Signals, shield
from stateline.service.demands import demand_head
from stateline.service.outcome import Outcome
from stateline.store.store import WAIT, Scope, Snapshot, Store, demand_known_version

_userinfo = re.compile(r"//[^/?#]*@")

LITERAL = "literal"
"""Who derives and refines where no model does: what the operator said is taken as it is."""
_NAMELESS = "a model without a name"


class ContextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asked for. ``name`` None: the default context of the model, base URL and toolset. ``parent``
    demands a head by revision; ``wait`` [s]. ``model`` is asked where there is something to understand; without one
    the flags are taken as they are. ``began`` is told the purpose of each call of it beforehand."""

    name: str | None = None
    wishes: Wishes = Wishes()
    parent: str | None = None
    wait: float = WAIT
    model: Model | None = None
    began: Callable[[str], None] | None = None


class Step(msgspec.Struct, frozen=True):
    """One snapshot to append. ``by`` is the model's name, or ``literal``; ``wishes`` is what counts for this step."""

    type: Literal["derive", "refine"]
    by: str
    modelled: bool
    wishes: Wishes


class Change(msgspec.Struct, frozen=True):
    """A snapshot's event (which gets its time when it is saved) and the context's whole new state."""

    event: dict[str, Json]
    state: dict[str, Json]


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What a call would do: the head and its resolved state (None where the context is not there yet), the snapshots to
    append, warnings, the wishes as they may be stored, and how often something in them was masked."""

    head: Snapshot | None
    state: dict[str, Json] | None
    steps: list[Step]
    warnings: list[str]
    wishes: Wishes
    masked: int

    def effects(self) -> list[Json]:
        """What the call does, in order, as a plan shows it."""
        effects: list[Json] = []
        for step in self.steps:
            if step.modelled:
                effects.append({"type": "model", "purpose": step.type, "model": step.by})
            effects.append({"type": "snapshot", "event": step.type})
        return effects


class Prompts(msgspec.Struct, frozen=True):
    """The prompts of a context."""

    system: str | None
    developer: list[str]


class Refinements(msgspec.Struct, frozen=True):
    """How often a context was refined."""

    count: int


class ContextState(msgspec.Struct, frozen=True):
    """What a refinement relies on in a context's state, whoever wrote it. Other fields are let be."""

    model_id: str
    base_url: str
    prompts: Prompts
    settings: dict[str, Json]
    refinements: Refinements


class Effective(msgspec.Struct, frozen=True):
    """The prompts and settings for this call: the context's, and over them what the flags of this call say. Nothing of
    the latter is stored: the system prompt and settings replace the context's, instructions are added to it."""

    system: str | None
    developer: list[str]
    settings: dict[str, Json]


class Prepared(msgspec.Struct, frozen=True):
    """A context as it stands after the call: its scope's key, its head and the head's ``seq``, the outcome, and what
    holds for the rest of this call."""

    scope: str
    seq: int
    outcome: Outcome
    head: Snapshot
    effective: Effective


def prepare(store: Store, options: ContextOptions) -> Prepared:
    """Derive, refine or restore a context. Raises a ``StatelineError``; what was saved before it stays.

    A context that is there and is not refined is restored without a call of the model, and nothing is written. One that
    is not there and is refined is derived first: two calls and two snapshots.
    """
    scope = context_scope(store, options)
    with Signals():
        found = rehearse(store, scope, options)
        head, state = found.head, found.state
        if found.steps:
            with scope.locked(options.wait), shield():
                # Somebody may have derived or refined it while we waited for the lock: go by what is there now.
                found = rehearse(store, scope, options)
                head, state, masked = found.head, found.state, found.masked
                if head is not None:
                    demand_known_version(head)  # as the save will; but before anything is paid for
                for step in found.steps:
                    change = _change(scope, step, (head, state), options)
                    counted = masked + change.event.get("redactions", 0)
                    event = {**change.event, **({"redactions": counted} if counted else {})}
                    event["started_at"] = store.now(None)
                    head = scope.save(change.state, kind="context", event=event, parent=head, masked=True)
                    state, masked = change.state, 0
    if head is None or state is None:  # without a head there is a step
        raise NotFound(f"there is no context {scope.key}; nothing was done", hint="repeat the call")
    return _prepared(head, state, found, store.warnings)


def context_scope(store: Store, options: ContextOptions) -> Scope:
    """The context that is meant. Raises ``UsageError`` for a malformed name."""
    name = options.name
    if name is None:
        wishes = options.wishes
        name = default_name(wishes.model, wishes.base_url, wishes.toolset)
    return store.scope(f"context:{naming.checked_id(name, 'context name')}")


def rehearse(store: Store, scope: Scope, options: ContextOptions) -> Rehearsal:
    """What the call does, as far as it hangs on no model's reply. Reads only.

    Raises ``RequestError`` for a context over the bound, a base URL with a secret in it, and a setting that belongs to
    the call, ``ConflictError`` when the head is not the one that is demanded, ``IntegrityError`` when it is damaged.
    """
    if store.redactor.redact(options.wishes.base_url)[1] or _userinfo.search(options.wishes.base_url):
        raise RequestError("the base URL holds a secret; nothing was saved", hint="pass keys by environment")
    demand_settings(options.wishes.settings)
    wishes, masked = _masked(store, options.wishes)
    head = scope.head()
    if head is None:
        scope.demand_key_without_secrets()
    demand_head(scope, head, options.parent)
    state = None if head is None else _state(store, head)
    steps = _steps(state, wishes, options.model is not None)
    _demand_room(state, steps)
    warnings = [] if state is None else _unheeded(state, wishes)
    return Rehearsal(head=head, state=state, steps=steps, warnings=warnings, wishes=wishes, masked=masked)


def _steps(state: dict[str, Json] | None, wishes: Wishes, modelled: bool) -> list[Step]:
    """Derive, refine, both or neither."""
    by = (wishes.model or _NAMELESS) if modelled else LITERAL
    if state is None:
        steps = [Step("derive", by, modelled, wishes)]
        if wishes.refine is not None:
            # What was derived with these settings is not refined with them again; a model must be held to them.
            steps.append(Step("refine", by, modelled, wishes if modelled else replace(wishes, settings={})))
        return steps
    kept = replace(wishes, system=None, developer=[])
    if wishes.refine is not None:
        return [Step("refine", by, modelled, kept)]
    if wishes.settings and wishes.task is None:
        # There are no words to understand.
        return [Step("refine", LITERAL, False, kept)]
    return []


def _demand_room(state: dict[str, Json] | None, steps: list[Step]) -> None:
    """Raise what can be known to be refused before anything is saved or paid for."""
    for step in steps:
        if step.modelled:
            _request(step, state)
            return
        state = _literally(step, state)


def _literally(step: Step, state: dict[str, Json] | None) -> dict[str, Json]:
    return derive(step.wishes) if state is None else refine(state, step.wishes)


def _request(step: Step, state: dict[str, Json] | None) -> Request:
    from stateline.prestage import model

    return model.derivation(step.wishes) if state is None else model.refinement(state, step.wishes)


def _change(
    scope: Scope, step: Step, before: tuple[Snapshot | None, dict[str, Json] | None], options: ContextOptions
) -> Change:
    """The snapshot that a step appends to the head and its state. Calls the model, if one is to be asked."""
    head, state = before
    text = step.wishes.refine if step.type == "refine" else None
    event: dict[str, Json] = {"type": step.type, "by": step.by, "text": text}
    if options.model is None or not step.modelled:
        return Change({**event, "settings": step.wishes.settings}, _literally(step, state))
    from stateline.prestage import model

    seq = 0 if head is None else head.seq + 1
    request = _request(step, state)
    # A call that was cut off by a crash is made again with the same key.
    request = replace(request, key=f"{scope.key}:{seq}:{request.digest()[:16]}")
    if options.began is not None:
        options.began(step.type)
    draft, reply, masked = _proposal(scope.store, options.model, request)
    after = model.derive(step.wishes, draft) if state is None else model.refine(state, step.wishes, draft)
    event |= _told(None if state is None else draft_of(state), draft_of(after))
    event |= {"usage": msgspec.to_builtins(reply.usage), "request": request.digest()}
    return Change(event | ({"redactions": masked} if masked else {}), after)


def _proposal(store: Store, asked: Model, request: Request) -> tuple[Draft, Reply, int]:
    """What the model proposes, as it may be stored, its reply, and how often something was masked."""
    from stateline.prestage import model

    try:
        reply = model.ask(asked, request)
        draft = model.proposal(request, reply)
    except RequestError as error:
        if type(error) is not RequestError:  # what a recording lacks, and the like, has words of its own
            raise
        # A provider and a broken reply are quoted, and both may hold what nobody should read.
        message, hint = store.redactor.redact([error.message, error.hint])[0]
        raise RequestError(message, hint=hint) from None
    # Part by part: the names of the parts are ours, and no secret even where one is spelled like them.
    parts = [store.redactor.redact(part) for part in (draft.system, draft.developer, draft.settings)]
    return Draft(*(part for part, _ in parts)), reply, sum(count for _, count in parts)


def _told(old: Draft | None, new: Draft) -> dict[str, Json]:
    """What a model changed, for whoever reads the log: settings with their values, prompts by name."""
    before = old or Draft(None, [], {})
    prompts = [name for name in ("system", "developer") if getattr(before, name) != getattr(new, name)]
    changed = {
        name: value
        for name, value in new.settings.items()
        if name not in before.settings or canonical.encode(before.settings[name]) != canonical.encode(value)
    }
    return {"settings": changed, "unset": sorted(before.settings.keys() - new.settings.keys()), "prompts": prompts}


def _state(store: Store, head: Snapshot) -> dict[str, Json]:
    try:
        state: dict[str, Json] = store.resolve(head.state)
    except IntegrityError as error:
        raise store.scope(head.envelope.scope).with_way_out(error) from None
    try:
        msgspec.convert(state, ContextState)
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"the snapshot {head.path} does not hold a context: {error}",
            finding="malformed",
            hint="nothing was changed; was it written by stateline?",
        ) from None
    return state


def _masked(store: Store, wishes: Wishes) -> tuple[Wishes, int]:
    """The wishes as they will be stored, so that a prompt that is restored equals the prompt that was given; and how
    often something was masked."""
    counts = []

    def mask(value: Json) -> Json:
        value, count = store.redactor.redact(value)
        counts.append(count)
        return value

    # Part by part: the names of the parts are ours, and no secret even where one is spelled like them.
    tools = mask(msgspec.to_builtins(wishes.tools))
    masked = Wishes(
        model=mask(wishes.model),
        base_url=wishes.base_url,
        toolset=wishes.toolset,
        tools=msgspec.convert(tools, list[ToolSpec]),
        system=mask(wishes.system),
        developer=mask(wishes.developer),
        settings=mask(wishes.settings),
        refine=mask(wishes.refine),
    )
    # The task is shown to a model as it will be kept by the run, and is itself not kept here.
    task = store.redactor.redact(wishes.task)[0]
    return replace(masked, task=task), sum(counts)


def _unheeded(context: dict[str, Json], wishes: Wishes) -> list[str]:
    """Flags that count only when a context is derived."""
    warnings = drift(context, wishes)
    if wishes.task is None and (wishes.system is not None or wishes.developer):
        warnings.append(
            "the context is there already: --system and --developer count when it is derived and were not stored; "
            "refine it with --refine-text or --set"
        )
    return warnings


def _prepared(head: Snapshot, state: dict[str, Json], found: Rehearsal, warnings: list[str]) -> Prepared:
    outcome = Outcome(
        run=None,
        status="complete",
        stage=None,
        turn=0,
        head=head.sha256,
        output=None,
        outputs={},
        reason=found.steps[-1].type if found.steps else "restore",
        waiting=None,
        warnings=[*warnings, *found.warnings],
    )
    return Prepared(head.envelope.scope, head.seq, outcome, head, _effective(state, found.wishes))


def _effective(state: dict[str, Json], wishes: Wishes) -> Effective:
    stored = draft_of(state)
    return Effective(
        stored.system if wishes.system is None else wishes.system,
        [*stored.developer, *(text for text in wishes.developer if text not in stored.developer)],
        laid_over(stored.settings, wishes.settings),
    )
