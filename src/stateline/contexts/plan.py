"""Decide what a call does to a context: restore, derive, refine, or derive and refine. Reads only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.contexts.context import (
    CONTEXT_WAIT,
    ContextRequest,
    content_of,
    default_name,
    derive,
    drift,
    merge_settings,
    refine,
)
from stateline.contexts.settings import require_settings
from stateline.contexts.stored import LITERAL, is_refinement, load_state, redact_request
from stateline.errors import NotFoundError, RequestError, StatelineError
from stateline.history.preconditions import require_head
from stateline.model.protocol import Model, ModelRequest
from stateline.store.scope import Scope, require_key_without_secret
from stateline.store.snapshot import Snapshot, read_head
from stateline.store.store import Store

_LISTED = 10
"""Most contexts that an error lists, the newest ones."""
_userinfo = re.compile(r"//[^/?#]*@")


class ContextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one call. ``name`` None: the default context of the model, base URL and toolset. ``parent`` is the
    required head, a revision; ``wait`` bounds the wait for the lock [s]. ``model`` derives and
    refines; without one the flags are taken as they are. ``ready`` raises what keeps the model from being called;
    ``on_call`` receives the purpose of each call before it is made. ``exchanges`` is "record" or "playback" where calls
    are recorded or played back. ``run`` is the id of the run that will begin with the context: a call that is repeated
    after a crash recognizes its own refinement by it. ``new_context``: a refinement may derive the default context
    although the store has others."""

    name: str | None = None
    context_request: ContextRequest = ContextRequest()
    parent: str | None = None
    wait: float = CONTEXT_WAIT
    model: Model | None = None
    ready: Callable[[], None] | None = None
    on_call: Callable[[str], None] | None = None
    exchanges: str = ""
    run: str | None = None
    new_context: bool = False


class ContextStep(msgspec.Struct, frozen=True):
    """One snapshot to append. ``by`` is the model's name, or ``literal``; ``request`` is what applies to this step."""

    type: Literal["derive", "refine"]
    by: str
    by_model: bool
    request: ContextRequest

    def effects(self, exchanges: str) -> list[Json]:
        """Return the effects of the step in order, for a dry run. ``exchanges``: "record", "playback" or ""."""
        snapshot: dict[str, Json] = {"type": "snapshot", "event": self.type}
        if not self.by_model:
            return [snapshot]
        mode = {"exchanges": exchanges} if exchanges else {}
        return [{"type": "model", "purpose": self.type, "model": self.by, **mode}, snapshot]

    def literal_state(self, state: dict[str, Json] | None) -> dict[str, Json]:
        """Return the state that the step makes of ``state`` without a model."""
        return derive(self.request) if state is None else refine(state, self.request)

    def model_request(self, state: dict[str, Json] | None) -> ModelRequest:
        """Return the call of a model that the step makes on ``state``."""
        from stateline.contexts.by_model import derivation, refinement

        return derivation(self.request) if state is None else refinement(state, self.request)


class ContextPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The head and its resolved state (None: there is no context yet), the snapshots to append, warnings, the request
    with secrets masked, and the number of masked values. ``repeated``: the head is the refinement that is asked for."""

    head: Snapshot | None
    state: dict[str, Json] | None
    steps: list[ContextStep]
    warnings: list[str]
    request: ContextRequest
    masked: int
    repeated: bool


def context_scope(store: Store, options: ContextOptions) -> Scope:
    """Return the scope of the context. Raises ``UsageError`` for a malformed name."""
    name = options.name
    if name is None:
        request = options.context_request
        name = default_name(request.model, request.base_url, request.toolset)
    return store.scope(f"context:{naming.checked_id(name, 'context name')}")


def plan_steps(store: Store, scope: Scope, options: ContextOptions) -> ContextPlan:
    """Plan the call as far as it does not depend on a model's reply.

    Raises ``RequestError`` for a context over the limit, a base URL with a secret in it, and a setting that belongs to
    each call, ``ConflictError`` if the head is not the required one, ``IntegrityError`` if it is damaged.
    """
    given = options.context_request
    if store.redactor.redact(given.base_url)[1] or _userinfo.search(given.base_url):
        raise RequestError("the base URL holds a secret; nothing was saved", hint="pass keys by environment")
    require_settings(given.settings)
    request, masked = redact_request(store, given)
    head = scope.head()
    if head is None:
        require_key_without_secret(store.redactor, scope.key)
    require_head(scope, head, options.parent)
    state = None if head is None or head.state is None else load_state(store, head)
    if state is None and options.name is None and request.refine is not None and not options.new_context:
        _require_no_other(store)
    steps = _steps(state, request, options.model is not None)
    warnings = [] if state is None else _unused_flags(state, request)
    repeated = head is not None and state is not None and _is_done(store, head, state, steps, options.run)
    if repeated:
        steps = []
        warnings.append(f"this refinement was saved before for the run {options.run}, and was not repeated")
    if any(step.type == "refine" and not step.by_model for step in steps) and not request.settings:
        warnings.append(
            "without a model a refinement adds an instruction and changes no setting; `--set KEY=VALUE` changes one, "
            "and -m PROVIDER/NAME lets a model refine"
        )
    _require_room(state, steps)
    return ContextPlan(
        head=head, state=state, steps=steps, warnings=warnings, request=request, masked=masked, repeated=repeated
    )


def require_ready(options: ContextOptions, plan: ContextPlan) -> None:
    """Raise ``RequestError`` if a model will be called, by a step or by the run that follows, and cannot be called."""
    calls_model = options.context_request.task is not None or any(step.by_model for step in plan.steps)
    if options.ready is not None and calls_model:
        options.ready()


def _require_no_other(store: Store) -> None:
    """Raise ``NotFoundError`` if the store has contexts: the refinement was most likely meant for one of them."""
    found = sorted(_contexts(store), reverse=True)
    if not found:
        return
    lines = [f"  {line}" for _, line in found[:_LISTED]]
    more = [f"  and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
    raise NotFoundError(
        "\n".join(
            ["no context was made for this model, base URL and toolset; nothing was refined. There are:", *lines, *more]
        ),
        hint="--state-scope NAME refines one of these; --new-context derives another one, and refines that",
    )


def _contexts(store: Store) -> Iterator[tuple[str, str]]:
    """Yield (time of the last change, line with name, model, base URL and toolset) of each context. One that cannot be
    read is left out."""
    for scope in store.backend.scopes():
        try:
            head = read_head(store.backend, scope)
            if head is None or head.envelope.kind != "context":
                continue
            state = load_state(store, head)
        except StatelineError:
            continue
        place = f" at {state['base_url']}" if state["base_url"] else ""
        tools = f", tools {state['toolset_hash'][:12]}" if state.get("toolset_hash") else ""
        name = head.envelope.scope.partition(":")[2]
        yield head.envelope.created_at, f"{name}\n    {state['model_id'] or 'no model'}{place}{tools}"


def _steps(state: dict[str, Json] | None, request: ContextRequest, by_model: bool) -> list[ContextStep]:
    by = (request.model or "a model without a name") if by_model else LITERAL
    if state is None:
        steps = [ContextStep("derive", by, by_model, request)]
        if request.refine is not None:
            # A literal derivation has applied the settings already; a model's refinement could lose them again.
            steps.append(ContextStep("refine", by, by_model, request if by_model else replace(request, settings={})))
        return steps
    stored = replace(request, system=None, developer=[])
    if request.refine is not None:
        return [ContextStep("refine", by, by_model, stored)]
    kept = content_of(state).settings
    changes = canonical.encode(merge_settings(kept, request.settings)) != canonical.encode(kept)
    if changes and request.task is None:
        # Settings alone need no model.
        return [ContextStep("refine", LITERAL, False, stored)]
    return []


def _is_done(store: Store, head: Snapshot, state: dict[str, Json], steps: list[ContextStep], run: str | None) -> bool:
    """Return whether the head is the planned refinement, saved by a call for the same run that crashed before the run
    began: its reply is paid for, and the instructions would be added twice."""
    if run is None or [step.type for step in steps] != ["refine"]:
        return False
    if head.event.get("by") != steps[0].by or not is_refinement(head, state, steps[0].request, run):
        return False
    run_head = store.scope(f"run:{run}").head()
    place = None if run_head is None else run_head.event.get("context")
    return not isinstance(place, dict) or place.get("sha256") != head.sha256


def _require_room(state: dict[str, Json] | None, steps: list[ContextStep]) -> None:
    """Raise what is known to be refused before anything is saved or paid for."""
    for step in steps:
        if step.by_model:
            step.model_request(state)
            return
        state = step.literal_state(state)


def _unused_flags(context: dict[str, Json], request: ContextRequest) -> list[str]:
    warnings, kept = drift(context, request), content_of(context)
    differ = request.system not in (None, kept.system) or any(text not in kept.developer for text in request.developer)
    if request.task is None and differ:
        warnings.append(
            "the context exists already: --system and --developer apply when it is derived and were not stored; "
            "refine it with --refine-text or --set"
        )
    return warnings
