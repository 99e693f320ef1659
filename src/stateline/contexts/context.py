"""The state of a context: prompts, settings, and what it was made for; derived and refined by the flags alone. Pure.

A user's prompt never becomes an instruction: it is not part of a context.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json, sha256
from stateline.errors import RequestError
from stateline.model.protocol import ToolSpec

LIMIT = 256 * 1024
"""Largest context [bytes of canonical JSON]: each model call carries it. The record of the newest refinement does not
count, and has the same limit."""


MODEL_TIMEOUT = 120.0
"""Limit of a model's call to derive or refine a context, with all its attempts [s]."""
CONTEXT_WAIT = MODEL_TIMEOUT + 10.0
"""Longest wait for the lock of a context [s]: its holder may be waiting for a model."""


class ContextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of a call that are about its context. ``toolset`` is the hash of the tools manifest ("" without one),
    ``tools`` its content, ``refine`` the operator's refinement, ``task`` the user's prompt (None: the call has none).
    """

    model: str = ""
    base_url: str = ""
    toolset: str = ""
    tools: list[ToolSpec] = []
    system: str | None = None
    developer: list[str] = []
    settings: dict[str, Json] = {}
    refine: str | None = None
    task: str | None = None


class ContextContent(msgspec.Struct, frozen=True):
    """Prompts and settings: of a stored context, of a model's proposal, or as they hold for one call."""

    system: str | None = None
    developer: list[str] = []
    settings: dict[str, Json] = {}


def default_name(model: str, base_url: str, toolset: str = "") -> str:
    """Return the name of the context for a model, a base URL and a toolset's hash.

    The three are encoded as a JSON array before hashing: joined by a separator, parts that hold it would collide.
    """
    return sha256(canonical.encode([model, base_url, toolset]))


def content_of(context: dict[str, Json]) -> ContextContent:
    """Return the prompts and settings of a context's state."""
    prompts = context["prompts"]
    return ContextContent(prompts["system"], list(prompts["developer"]), dict(context["settings"]))


def merge_settings(settings: Mapping[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """Return ``settings`` with ``changes`` applied; null removes a setting."""
    merged = {**settings, **changes}
    return {name: value for name, value in merged.items() if value is not None or name not in changes}


def derive(request: ContextRequest) -> dict[str, Json]:
    """Return the state of a new context with the prompts and settings of the flags. Raises ``RequestError`` over
    ``LIMIT``."""
    settings = merge_settings({}, request.settings)
    return new_context(request, ContextContent(request.system, request.developer, settings))


def refine(context: dict[str, Json], request: ContextRequest) -> dict[str, Json]:
    """Return the whole refined state: the refinement appended as a developer instruction, settings replaced key by key
    and removed by null. Raises ``RequestError`` over ``LIMIT``."""
    old = content_of(context)
    developer = [*old.developer, *([] if request.refine is None else [request.refine])]
    content = ContextContent(old.system, developer, merge_settings(old.settings, request.settings))
    return refined_context(context, request, content)


def new_context(request: ContextRequest, content: ContextContent) -> dict[str, Json]:
    """Return the state of a new context with ``content``. Raises ``RequestError`` over ``LIMIT``."""
    return _bounded(
        {
            "model_id": request.model,
            "base_url": request.base_url,
            "toolset_hash": request.toolset,
            "prompts": _prompts(content),
            "settings": content.settings,
            # A list, not members by name: no tool's name may look like the name of a secret.
            "tool_caps": {"tools": [msgspec.to_builtins(tool) for tool in request.tools]} if request.tools else {},
            "context": {},
            "custom": {},
            "source_hash": default_name(request.model, request.base_url, request.toolset),
            "refinements": {"count": 0, "last": None},
        },
        hint="shorten --system, --developer and --set, or give fewer tools",
    )


def refined_context(context: dict[str, Json], request: ContextRequest, content: ContextContent) -> dict[str, Json]:
    """Return the whole refined state with ``content``; the model, base URL and toolset stay. Raises ``RequestError``
    over ``LIMIT``."""
    return _bounded(
        {
            **context,
            "prompts": {**context["prompts"], **_prompts(content)},
            "settings": content.settings,
            "refinements": {
                "count": context["refinements"]["count"] + 1,
                "last": {"text": request.refine, "settings": dict(request.settings)},
            },
        },
        hint="begin a shorter context under another --state-scope; the chain keeps this one",
    )


def drift(context: dict[str, Json], request: ContextRequest) -> list[str]:
    """Return the differences between a call and what its context was made for, one sentence each.

    With a task, a value that is missing counts as a difference too. Exceptions: a call without a model is not compared
    by model, and a context that was made for no model fits any. Without a task only the values that the call gives are
    compared.
    """
    has_task = request.task is not None
    fits_any_model = not context["model_id"] and not context["base_url"]
    parts = (
        ("model", context["model_id"], request.model, False),
        ("base URL", context["base_url"], request.base_url, has_task and bool(request.model)),
        ("toolset", context.get("toolset_hash", ""), request.toolset, has_task),
    )
    return [
        f"the context was made with {_named(name, recorded)}, this call has {_named(name, given)}"
        for name, recorded, given, missing_counts in parts
        if given != recorded and (given or missing_counts) and not (fits_any_model and name != "toolset")
    ]


def _named(name: str, value: Json) -> str:
    return f"the {name} {value}" if value else f"no {name}"


def _prompts(content: ContextContent) -> dict[str, Json]:
    return {"system": content.system, "developer": content.developer}


def _bounded(context: dict[str, Json], *, hint: str) -> dict[str, Json]:
    kept = {name: value for name, value in context.items() if name != "refinements"}
    for name, value in (("context", kept), ("record of the refinement", context["refinements"])):
        size = len(canonical.encode(value))
        if size > LIMIT:
            raise RequestError(
                f"the {name} would have {size} bytes, over the limit of {LIMIT}; it was not saved", hint=hint
            )
    return context
