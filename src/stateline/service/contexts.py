"""The verb ``run`` without a prompt: derive a context from the flags, or refine the one that is there, and stop."""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.interrupts import Signals, shield
from stateline.errors import IntegrityError, RequestError
from stateline.prestage.context import Wishes, default_name, derive, drift, refine
from stateline.service.demands import demand_head
from stateline.service.outcome import Outcome
from stateline.store.store import WAIT, Scope, Snapshot, Store

_userinfo = re.compile(r"//[^/?#]*@")


class ContextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asked for. ``name`` None: the default context of the model, base URL and toolset. ``parent``
    demands a head by revision; ``wait`` [s]."""

    name: str | None = None
    wishes: Wishes = Wishes()
    parent: str | None = None
    wait: float = WAIT


class Change(msgspec.Struct, frozen=True):
    """One snapshot to append: its event (which gets its time when it is saved) and the context's whole new state."""

    event: dict[str, Json]
    state: dict[str, Json]


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


class Prepared(msgspec.Struct, frozen=True):
    """A context as it stands after the call: its scope's key, the head's ``seq``, and the outcome."""

    scope: str
    seq: int
    outcome: Outcome


def prepare(store: Store, options: ContextOptions) -> Prepared:
    """Derive, refine or restore a context. Raises a ``StatelineError``; nothing is saved then."""
    scope = context_scope(store, options)
    with Signals():
        head, changes, warnings = rehearse(store, scope, options)
        if changes:
            with scope.locked(options.wait), shield():
                # Somebody may have derived or refined it while we waited for the lock: go by what is there now.
                head, changes, warnings = rehearse(store, scope, options)
                for change in changes:
                    event = {**change.event, "started_at": store.now(None)}
                    head = scope.save(change.state, kind="context", event=event, parent=head, masked=True)
    reason = str(changes[-1].event["type"]) if changes else "restore"
    return _prepared(head or scope.load(), reason, [*store.warnings, *warnings])


def context_scope(store: Store, options: ContextOptions) -> Scope:
    """The context that is meant. Raises ``UsageError`` for a malformed name."""
    name = options.name
    if name is None:
        name = default_name(options.wishes.model, options.wishes.base_url)
    return store.scope(f"context:{naming.checked_id(name, 'context name')}")


def rehearse(store: Store, scope: Scope, options: ContextOptions) -> tuple[Snapshot | None, list[Change], list[str]]:
    """(the head, the snapshots that the call appends to it, warnings). Reads only.

    Raises ``RequestError`` for a context over the bound or a base URL with a secret in it, ``ConflictError`` when the
    head is not the one that is demanded, ``IntegrityError`` when it is damaged.
    """
    if store.redactor.find(options.wishes.base_url) or _userinfo.search(options.wishes.base_url):
        raise RequestError("the base URL holds a secret; nothing was saved", hint="pass keys by environment")
    wishes, masked = _masked(store, options.wishes)
    head = scope.head()
    if head is None:
        scope.demand_key_without_secrets()
    demand_head(scope, head, options.parent)
    before = None if head is None else _state(store, head)
    changes = _changes(before, wishes)
    if masked and changes:
        changes[0].event["redactions"] = masked
    return head, changes, [] if before is None else _unheeded(before, wishes)


def _changes(before: dict[str, Json] | None, wishes: Wishes) -> list[Change]:
    """Derive, refine, both or neither."""
    changes = []
    if before is None:
        before = derive(wishes)
        said = {"by": "literal", "text": None, "settings": wishes.settings}
        changes.append(Change({"type": "derive", **said}, before))
        # What was derived with these settings is not refined with them again.
        wishes = replace(wishes, settings={})
    if wishes.refine is not None or wishes.settings:
        said = {"by": "literal", "text": wishes.refine, "settings": wishes.settings}
        changes.append(Change({"type": "refine", **said}, refine(before, wishes)))
    return changes


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
    masked = Wishes(
        model=mask(wishes.model),
        base_url=wishes.base_url,
        system=mask(wishes.system),
        developer=mask(wishes.developer),
        settings=mask(wishes.settings),
        refine=mask(wishes.refine),
    )
    return masked, sum(counts)


def _unheeded(context: dict[str, Json], wishes: Wishes) -> list[str]:
    """Flags that count only when a context is derived."""
    warnings = drift(context, wishes)
    if wishes.system is not None or wishes.developer:
        warnings.append(
            "the context is there already: --system and --developer count when it is derived and were not stored; "
            "refine it with --refine-text or --set"
        )
    return warnings


def _prepared(head: Snapshot, reason: str, warnings: list[str]) -> Prepared:
    outcome = Outcome(
        run=None,
        status="complete",
        stage=None,
        turn=0,
        head=head.sha256,
        output=None,
        outputs={},
        reason=reason,
        waiting=None,
        warnings=warnings,
    )
    return Prepared(head.envelope.scope, head.seq, outcome)
