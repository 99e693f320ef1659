"""Derive and refine a context without a model: the flags are taken as they are. Pure."""

from __future__ import annotations

from stateline.bundle.canonical import Json
from stateline.contexts.context import (
    ContextContent,
    ContextRequest,
    content_of,
    merge_settings,
    new_context,
    refined_context,
)


def derive(request: ContextRequest) -> dict[str, Json]:
    """Return the state of a new context with the prompts and settings of the flags. Raises ``RequestError`` over
    ``LIMIT``."""
    settings = merge_settings({}, request.settings)
    return new_context(request, ContextContent(request.system, list(request.developer), settings))


def refine(context: dict[str, Json], request: ContextRequest) -> dict[str, Json]:
    """Return the whole refined state: the refinement appended as a developer instruction, settings replaced key by key
    and removed by null. Raises ``RequestError`` over ``LIMIT``."""
    old = content_of(context)
    developer = [*old.developer, *([request.refine] if request.refine is not None else [])]
    content = ContextContent(old.system, developer, merge_settings(old.settings, request.settings))
    return refined_context(context, request, content)
