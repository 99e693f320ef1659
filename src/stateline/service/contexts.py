"""The verb ``run`` without a prompt: derive a context from the flags, or refine the one that is there, and stop."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.interrupts import Signals, shield
from stateline.errors import ConflictError, IntegrityError, RequestError
from stateline.prestage.context import Wishes, default_name, derive, drift, refine
from stateline.service.outcome import Outcome
from stateline.store.store import WAIT, Scope, Snapshot, Store


class ContextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asked for. ``name`` None: the default context of the model, base URL and toolset. ``parent``
    demands a head by revision; ``wait`` [s]."""

    name: str | None = None
    wishes: Wishes = Wishes()
    parent: str | None = None
    wait: float = WAIT


class Prepared(msgspec.Struct, frozen=True):
    """A context as it stands after the call: its scope's key, the head's ``seq``, and the outcome."""

    scope: str
    seq: int
    outcome: Outcome


def prepare(store: Store, options: ContextOptions) -> Prepared:
    """Derive, refine or restore a context. Raises a ``StatelineError``; nothing is saved then."""
    wishes = _masked(store, options.wishes)
    if store.redactor.find(options.wishes.base_url):
        raise RequestError("the base URL holds a secret; nothing was saved", hint="pass keys by environment")
    with Signals():
        scope = context_scope(store, options)
        steps = plan(wishes, scope.head())
        if steps == ["restore"]:
            return _prepared(scope.load(), "restore", _unheeded(scope.load(), store, wishes))
        with scope.locked(options.wait), shield():
            head = scope.head()
            if options.parent is not None:
                _demand(store, scope, head, options.parent)
            # Somebody may have derived or refined it while we waited for the lock: go by what is there now.
            steps = plan(wishes, head)
            warnings = [] if head is None else drift(_state(store, head), wishes)
            for step in steps:
                head = _save(store, scope, head, step, wishes)
                # What was derived with these settings is not refined with them again.
                wishes = replace(wishes, settings={})
    return _prepared(head or scope.load(), steps[-1], warnings)


def context_scope(store: Store, options: ContextOptions) -> Scope:
    """The context that is meant. Raises ``UsageError`` for a malformed name."""
    name = options.name or default_name(options.wishes.model, options.wishes.base_url)
    return store.scope(f"context:{naming.checked_id(name, 'context name')}")


def plan(wishes: Wishes, head: Snapshot | None) -> list[str]:
    """The steps that the call takes: derive, refine or restore. Each of the first two is a snapshot."""
    refines = wishes.refine is not None or bool(wishes.settings)
    if head is None:
        return ["derive"] if wishes.refine is None else ["derive", "refine"]
    return ["refine"] if refines else ["restore"]


def _save(store: Store, scope: Scope, head: Snapshot | None, step: str, wishes: Wishes) -> Snapshot:
    said = {"by": "literal", "text": wishes.refine if step == "refine" else None, "settings": wishes.settings}
    event: dict[str, Json] = {"type": step, "started_at": store.now(None), **said}
    if step == "derive":
        return scope.save(derive(wishes), kind="context", event=event, parent=None)
    if head is None:
        raise ConflictError(f"the context {scope.key} vanished; nothing was saved", hint="call again")
    return scope.save(refine(_state(store, head), wishes), kind="context", event=event, parent=head)


def _state(store: Store, head: Snapshot) -> dict[str, Json]:
    state = store.resolve(head.state)
    if not isinstance(state, dict) or not {"prompts", "settings", "refinements"} <= state.keys():
        raise IntegrityError(
            f"the snapshot {head.path} does not hold a context",
            finding="malformed",
            hint="nothing was changed; `stateline verify` lists all damage",
        )
    return state


def _masked(store: Store, wishes: Wishes) -> Wishes:
    """The wishes as they will be stored, so that a prompt that is restored equals the prompt that was given."""
    document, _ = store.redactor.redact(msgspec.to_builtins(wishes))
    return msgspec.convert(document, Wishes)


def _demand(store: Store, scope: Scope, head: Snapshot | None, parent: str) -> None:
    from stateline.history.revision import find

    wanted = find(store, parent).sha256
    if head is None or head.sha256 != wanted:
        raise ConflictError(
            f"the head of {scope.key} is {head.sha256 if head else 'not there'}, not {wanted}; nothing was saved",
            hint="look at the head again (`stateline log`), then repeat the call",
        )


def _unheeded(head: Snapshot, store: Store, wishes: Wishes) -> list[str]:
    """Flags that a restore does not store."""
    warnings = drift(_state(store, head), wishes)
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
