"""The pre-stage of ``run``: derive a context, refine the one that is there, or restore it, with or without a model.

The scope's lock is held over loading, asking and saving: whoever comes second refines what the first has made. Each
reply of a model is a snapshot before the next one is asked for, so nothing that was paid for is asked twice.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Pointer
from stateline.contexts.literal import (
    ContextRequest,
    Draft,
    default_name,
    derive,
    draft_of,
    drift,
    laid_over,
    left_out,
    refine,
    require_settings,
)
from stateline.errors import IntegrityError, NotFoundError, RequestError
from stateline.machine.problems import quoted
from stateline.model.protocol import Model, Reply, Request, ToolSpec
from stateline.process.signals import Signals, shield
from stateline.service.outcome import Outcome
from stateline.service.preconditions import require_head
from stateline.store.store import WAIT, Scope, Snapshot, Store, require_known_version

if TYPE_CHECKING:
    from stateline.engine.record import Run

_userinfo = re.compile(r"//[^/?#]*@")

LITERAL = "literal"
"""Who derives and refines where no model does: what the operator said is taken as it is."""
_NAMELESS = "a model without a name"


class ContextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asked for. ``name`` None: the default context of the model, base URL and toolset. ``parent``
    demands a head by revision; ``wait`` bounds the wait for the lock [s], None: as long as a model may take. ``model``
    is asked where there is something to understand; without one the flags are taken as they are. ``ready`` raises
    what is known to keep the model from being called; ``began`` is told the purpose of each call of it beforehand.
    ``run`` is the id that the caller gave to the run which is to begin with the context, so that a call by the same
    words, after one that died, refines nothing twice."""

    name: str | None = None
    wishes: ContextRequest = ContextRequest()
    parent: str | None = None
    wait: float | None = None
    model: Model | None = None
    ready: Callable[[], None] | None = None
    began: Callable[[str], None] | None = None
    run: str | None = None


class Step(msgspec.Struct, frozen=True):
    """One snapshot to append. ``by`` is the model's name, or ``literal``; ``wishes`` is what counts for this step."""

    type: Literal["derive", "refine"]
    by: str
    modelled: bool
    wishes: ContextRequest


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
    wishes: ContextRequest
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
    told: list[str] = []
    with Signals():
        found = rehearse(store, scope, options)
        head, state = found.head, found.state
        require_ready(options, found)
        if found.steps:
            with scope.locked(_patience(options)), shield():
                # Somebody may have derived or refined it while we waited for the lock: go by what is there now.
                found = rehearse(store, scope, options)
                head, state, masked = found.head, found.state, found.masked
                if head is not None:
                    require_known_version(head)  # as the save will; but before anything is paid for
                for step in found.steps:
                    change = _change(scope, step, (head, state), options)
                    counted = masked + change.event.get("redactions", 0)
                    event = {**change.event, **({"redactions": counted} if counted else {})}
                    event["started_at"] = store.now(None)
                    head = scope.save(change.state, kind="context", event=event, parent=head, masked=True)
                    told += _left_out(scope, step, state, change.state)
                    state, masked = change.state, 0
    if head is None or state is None:  # without a head there is a step
        raise NotFoundError(f"there is no context {scope.key}; nothing was done", hint="repeat the call")
    return _prepared(head, state, found, [*store.warnings, *told])


def _patience(options: ContextOptions) -> float:
    """How long the context's lock is waited for [s]: whoever holds it may be waiting for a model."""
    if options.wait is not None:
        return options.wait
    from stateline.contexts.by_model import TIMEOUT

    return TIMEOUT + WAIT


def _left_out(scope: Scope, step: Step, before: dict[str, Json] | None, after: dict[str, Json]) -> list[str]:
    """What a model that refines took out of the context without being told to by a flag, one sentence each."""
    if before is None or not step.modelled:
        return []
    way = f"`stateline diff {scope.key}~1 {scope.key}` shows all that changed"
    redact = scope.store.redactor.redact
    return [
        f"the model left out the {kind} {quoted(redact(text)[0])}, which the context had; {way}"
        for kind, text in left_out(draft_of(before), draft_of(after), step.wishes.settings)
    ]


def require_ready(options: ContextOptions, found: Rehearsal) -> None:
    """Raise ``RequestError`` for a model that is to be asked, by a step or by the run with the task that follows, and
    cannot be called, as far as that is known here."""
    asks = options.wishes.task is not None or any(step.modelled for step in found.steps)
    if options.ready is not None and asks:
        options.ready()


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
    require_settings(options.wishes.settings)
    wishes, masked = _masked(store, options.wishes)
    head = scope.head()
    if head is None:
        scope.require_key_without_secrets()
    require_head(scope, head, options.parent)
    state = None if head is None else _state(store, head)
    steps = _steps(state, wishes, options.model is not None)
    warnings = [] if state is None else _unheeded(state, wishes)
    if head is not None and state is not None and _is_made(store, head, state, steps, options.run):
        steps = []
        warnings.append(f"the context was refined by these words for the run {options.run} before, and was not again")
    _require_room(state, steps)
    return Rehearsal(head=head, state=state, steps=steps, warnings=warnings, wishes=wishes, masked=masked)


def _steps(state: dict[str, Json] | None, wishes: ContextRequest, modelled: bool) -> list[Step]:
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


def _is_made(store: Store, head: Snapshot, state: dict[str, Json], steps: list[Step], run: str | None) -> bool:
    """Whether the head is the very refinement that is asked for, by a call for the same run that died before it could
    begin: its reply is paid, and the words would be there twice."""
    if run is None or [step.type for step in steps] != ["refine"]:
        return False
    if head.event.get("by") != steps[0].by or not _is_refined(head, state, steps[0].wishes, run):
        return False
    begun = store.scope(f"run:{run}").head()
    place = None if begun is None else begun.event.get("context")
    return not isinstance(place, dict) or place.get("sha256") != head.sha256


def was_refined(store: Store, run: Run, wishes: ContextRequest) -> bool:
    """Whether the context that ``run`` began with is the refinement that was made for it by these very words. Raises
    ``IntegrityError`` when that context cannot be read."""
    context, place = run.began_with(), run.event.get("context")
    if context is None or not isinstance(place, dict) or not isinstance(run.state.context, dict):
        return False
    scope = store.scope(str(run.state.context["scope"]))
    head = store.read_snapshot(scope.hash, Pointer(place["path"], place["sha256"]))
    return _is_refined(head, _state(store, head), _masked(store, wishes)[0], run.id)


def _is_refined(head: Snapshot, state: dict[str, Json], wishes: ContextRequest, run: str) -> bool:
    """Whether the snapshot is the refinement by these words that a call for ``run`` made."""
    event, last = head.event, state["refinements"].get("last")
    if (event.get("type"), event.get("run")) != ("refine", run) or not isinstance(last, dict):
        return False
    settings = wishes.settings
    if event.get("by") == LITERAL and last.get("settings") == {}:
        # What one call derived and refined was derived with them, and they stand there.
        kept = draft_of(state).settings
        if canonical.encode(laid_over(kept, settings)) == canonical.encode(kept):
            settings = {}
    return canonical.encode(last) == canonical.encode({"text": wishes.refine, "settings": settings})


def _require_room(state: dict[str, Json] | None, steps: list[Step]) -> None:
    """Raise what can be known to be refused before anything is saved or paid for."""
    for step in steps:
        if step.modelled:
            _request(step, state)
            return
        state = _literally(step, state)


def _literally(step: Step, state: dict[str, Json] | None) -> dict[str, Json]:
    return derive(step.wishes) if state is None else refine(state, step.wishes)


def _request(step: Step, state: dict[str, Json] | None) -> Request:
    from stateline.contexts import by_model

    return by_model.derivation(step.wishes) if state is None else by_model.refinement(state, step.wishes)


def _change(
    scope: Scope, step: Step, before: tuple[Snapshot | None, dict[str, Json] | None], options: ContextOptions
) -> Change:
    """The snapshot that a step appends to the head and its state. Calls the model, if one is to be asked."""
    head, state = before
    text = step.wishes.refine if step.type == "refine" else None
    event: dict[str, Json] = {"type": step.type, "by": step.by, "text": text}
    if step.type == "refine" and options.run is not None:
        event["run"] = options.run
    if options.model is None or not step.modelled:
        return Change({**event, "settings": step.wishes.settings}, _literally(step, state))
    seq = 0 if head is None else head.seq + 1
    request = _request(step, state)
    # A recording tells by the key a call that was made again after a crash. But nothing of a reply outlives the
    # process, and another store may have the same key, so no server must give what it gave to another call.
    key = f"{scope.key}:{seq}:{request.digest()[:16]}"
    request = replace(request, key=key, mark=secrets.token_hex(8))
    if options.began is not None:
        options.began(step.type)
    reply, (after, masked) = _asked(scope.store, options.model, request, lambda draft: _taken(step, state, draft))
    event |= _told(None if state is None else draft_of(state), draft_of(after))
    event |= {"usage": msgspec.to_builtins(reply.usage), "request": request.digest()}
    return Change(event | ({"redactions": masked} if masked else {}), after)


def _taken(step: Step, state: dict[str, Json] | None, draft: Draft) -> dict[str, Json]:
    """The state that a proposal makes. Raises ``RequestError`` for one that is refused."""
    from stateline.contexts import by_model

    return by_model.derive(step.wishes, draft) if state is None else by_model.refine(state, step.wishes, draft)


def _asked(
    store: Store, asked: Model, request: Request, take: Callable[[Draft], dict[str, Json]]
) -> tuple[Reply, tuple[dict[str, Json], int]]:
    """The model's reply, the state that ``take`` makes of its proposal, and how often something was masked in it. A
    recording keeps with the reply why it was refused."""
    from stateline.contexts import by_model

    def made(reply: Reply) -> tuple[dict[str, Json], int]:
        draft, masked = _proposal(store, request, reply)
        return take(draft), masked

    def judge(reply: Reply) -> str:
        try:
            made(reply)
        except RequestError as error:
            return error.message
        return ""

    try:
        reply = by_model.ask(asked, request, judge)
    except RequestError as error:
        raise _unread(store, error) from None
    return reply, made(reply)


def _proposal(store: Store, request: Request, reply: Reply) -> tuple[Draft, int]:
    """What a reply proposes, as it may be stored, and how often something was masked."""
    from stateline.contexts import by_model

    try:
        draft = by_model.proposal(request, reply)
    except RequestError as error:
        raise _unread(store, error) from None
    # Part by part: the names of the parts are ours, and no secret even where one is spelled like them.
    parts = [store.redactor.redact(part) for part in (draft.system, draft.developer, draft.settings)]
    return Draft(*(part for part, _ in parts)), sum(count for _, count in parts)


def _unread(store: Store, error: RequestError) -> RequestError:
    """``error`` as it may be shown: a provider and a broken reply are quoted, and both may hold what nobody should
    read. What a recording lacks, and the like, has words of its own."""
    if type(error) is not RequestError:
        return error
    message, hint = store.redactor.redact([error.message, error.hint])[0]
    return RequestError(message, hint=hint)


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


def _masked(store: Store, wishes: ContextRequest) -> tuple[ContextRequest, int]:
    """The wishes as they will be stored, so that a prompt that is restored equals the prompt that was given; and how
    often something was masked."""
    counts = []

    def mask(value: Json) -> Json:
        value, count = store.redactor.redact(value)
        counts.append(count)
        return value

    # Part by part: the names of the parts are ours, and no secret even where one is spelled like them.
    tools = mask(msgspec.to_builtins(wishes.tools))
    masked = ContextRequest(
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


def _unheeded(context: dict[str, Json], wishes: ContextRequest) -> list[str]:
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


def _effective(state: dict[str, Json], wishes: ContextRequest) -> Effective:
    stored = draft_of(state)
    return Effective(
        stored.system if wishes.system is None else wishes.system,
        [*stored.developer, *(text for text in wishes.developer if text not in stored.developer)],
        laid_over(stored.settings, wishes.settings),
    )
