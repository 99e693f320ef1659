"""Contexts without a model: the literal deriver and the literal refiner. Pure; ``service.contexts`` saves the result.

A context is what the pre-stage yields: prompts and settings. The literal deriver takes them from the flags, the
literal refiner appends the operator's words as a developer instruction. What a user asks for never becomes one.
"""

from __future__ import annotations

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json, sha256
from stateline.errors import RequestError

LIMIT = 256 * 1024
"""Largest context [bytes of canonical JSON]: one that grows without bound ends up in every model call."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the flags say. ``refine`` is the operator's refinement text, None without one."""

    model: str = ""
    base_url: str = ""
    system: str | None = None
    developer: list[str] = []
    settings: dict[str, Json] = {}
    refine: str | None = None


def default_name(model: str, base_url: str, toolset: str = "") -> str:
    """The name of the context for a model, a base URL and a toolset's hash; different triples never share one.

    The three are encoded as a JSON array before hashing: joined by a separator, parts that hold it would collide.
    """
    return sha256(canonical.encode([model, base_url, toolset]))


def derive(wishes: Wishes) -> dict[str, Json]:
    """The state of a new context. Raises ``RequestError`` over ``LIMIT``."""
    return _bounded(
        {
            "model_id": wishes.model,
            "base_url": wishes.base_url,
            "toolset_hash": "",
            "prompts": {"system": wishes.system, "developer": list(wishes.developer)},
            "settings": dict(wishes.settings),
            "tool_caps": {},
            "context": {},
            "custom": {},
            "source_hash": default_name(wishes.model, wishes.base_url),
            "refinements": {"count": 0, "last": None},
        }
    )


def refine(context: dict[str, Json], wishes: Wishes) -> dict[str, Json]:
    """The whole new state: the refinement appended as a developer instruction, settings replaced key by key.

    Raises ``RequestError`` over ``LIMIT``; the chain keeps what was said before.
    """
    prompts = context["prompts"]
    developer = [*prompts["developer"], *([wishes.refine] if wishes.refine is not None else [])]
    return _bounded(
        {
            **context,
            "prompts": {**prompts, "developer": developer},
            "settings": {**context["settings"], **wishes.settings},
            "refinements": {
                "count": context["refinements"]["count"] + 1,
                "last": {"text": wishes.refine, "settings": dict(wishes.settings)},
            },
        }
    )


def drift(context: dict[str, Json], wishes: Wishes) -> list[str]:
    """How this call differs from what the context was made with, one sentence each; empty where nothing was said."""
    pairs = (("model", context["model_id"], wishes.model), ("base URL", context["base_url"], wishes.base_url))
    return [
        f"the context was made with the {what} {recorded or 'of no name'}, this call says {said}"
        for what, recorded, said in pairs
        if said and said != recorded
    ]


def _bounded(context: dict[str, Json]) -> dict[str, Json]:
    size = len(canonical.encode(context))
    if size > LIMIT:
        raise RequestError(
            f"the context would have {size} bytes, over the limit of {LIMIT}; nothing was saved",
            hint="begin a shorter one under another --state-scope; the chain keeps what was said",
        )
    return context
