"""Read stored contexts, and recognize the refinement that an interrupted call of the same run has made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Pointer
from stateline.contexts.context import ContextRequest, content_of, merge_settings
from stateline.errors import IntegrityError
from stateline.model.protocol import ToolSpec
from stateline.store.snapshot import Snapshot, read_snapshot
from stateline.store.store import Store

if TYPE_CHECKING:
    from stateline.engine.record import Run

REFUSED = "refused"
"""The type of the event that keeps a model's refused reply. Its snapshot has the state of the one before it, which is
null as long as there is no context."""
LITERAL = "literal"
"""The value of ``by`` in the event of a snapshot that was made without a model."""


class Prompts(msgspec.Struct, frozen=True):
    """Prompts of a context."""

    system: str | None
    developer: list[str]


class Refinements(msgspec.Struct, frozen=True):
    """Number of refinements of a context."""

    count: int


class ContextState(msgspec.Struct, frozen=True):
    """The members of a context's state that a refinement reads. Other members are kept unchanged."""

    model_id: str
    base_url: str
    prompts: Prompts
    settings: dict[str, Json]
    refinements: Refinements


def load_state(store: Store, head: Snapshot) -> dict[str, Json]:
    """Return the resolved state of a context's snapshot. Raises ``IntegrityError`` if it is damaged or not a
    context."""
    try:
        state: dict[str, Json] = store.resolve(head.state)
    except IntegrityError as error:
        from stateline.store.integrity import with_recovery_hint

        raise with_recovery_hint(store.backend, head.envelope.scope, error) from None
    try:
        msgspec.convert(state, ContextState)
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"the snapshot {head.path} does not hold a context: {error}",
            finding="malformed",
            hint="nothing was changed; was it written by stateline?",
        ) from None
    return state


def redact_request(store: Store, request: ContextRequest) -> tuple[ContextRequest, int]:
    """Return ``request`` as it will be stored, and the number of masked values. The task does not count: no context
    stores it."""
    counts = []

    def redact(value: Json) -> Json:
        value, count = store.redactor.redact(value)
        counts.append(count)
        return value

    # Member by member: the names of the members are Stateline's, and never a secret.
    tools = redact(msgspec.to_builtins(request.tools))
    redacted = ContextRequest(
        model=redact(request.model),
        base_url=request.base_url,
        toolset=request.toolset,
        tools=msgspec.convert(tools, list[ToolSpec]),
        system=redact(request.system),
        developer=redact(request.developer),
        settings=redact(request.settings),
        refine=redact(request.refine),
    )
    return replace(redacted, task=store.redactor.redact(request.task)[0]), sum(counts)


def was_refined(store: Store, run: Run, request: ContextRequest) -> bool:
    """Return whether the context that ``run`` began with is the refinement by ``request`` that was made for it. Raises
    ``IntegrityError`` if that context cannot be read."""
    context, place = run.began_with(), run.event.get("context")
    if context is None or not isinstance(place, dict) or not isinstance(run.state.context, dict):
        return False
    scope = store.scope(str(run.state.context["scope"]))
    head = read_snapshot(store.backend, scope.hash, Pointer(place["path"], place["sha256"]))
    return is_refinement(head, load_state(store, head), redact_request(store, request)[0], run.id)


def is_refinement(head: Snapshot, state: dict[str, Json], request: ContextRequest, run: str) -> bool:
    """Return whether the snapshot is the refinement by ``request`` that a call for ``run`` made."""
    event, last = head.event, state["refinements"].get("last")
    if (event.get("type"), event.get("run")) != ("refine", run) or not isinstance(last, dict):
        return False
    settings = request.settings
    if event.get("by") == LITERAL and last.get("settings") == {}:
        # A call that derived and refined has applied its settings when it derived.
        kept = content_of(state).settings
        if canonical.encode(merge_settings(kept, settings)) == canonical.encode(kept):
            settings = {}
    return canonical.encode(last) == canonical.encode({"text": request.refine, "settings": settings})
