"""What a context is, and how one is made without a model. Pure; ``service.contexts`` saves the result.

A context is what the pre-stage yields: prompts and settings. The literal deriver takes them from the flags, the
literal refiner appends the operator's words as a developer instruction; ``prestage.model`` asks a model instead. What a
user asks for never becomes an instruction.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.bundle.canonical import Json, sha256
from stateline.errors import RequestError
from stateline.model.protocol import CALLS_OWN, ToolSpec

LIMIT = 256 * 1024
"""Largest context [bytes of canonical JSON]: one that grows without bound ends up in every model call. What is kept of
the newest refinement ends up in none: it does not count, and has the same bound."""


class ContextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a call says. ``toolset`` is the hash of the tools manifest ("" without one), ``tools`` what it holds.
    ``refine`` is the operator's refinement, None without one; ``task`` is what the user asks for, None where nobody
    asks for anything yet."""

    model: str = ""
    base_url: str = ""
    toolset: str = ""
    tools: list[ToolSpec] = []
    system: str | None = None
    developer: list[str] = []
    settings: dict[str, Json] = {}
    refine: str | None = None
    task: str | None = None


class Draft(msgspec.Struct, frozen=True):
    """What a deriver or a refiner proposes."""

    system: str | None
    developer: list[str]
    settings: dict[str, Json]


def default_name(model: str, base_url: str, toolset: str = "") -> str:
    """The name of the context for a model, a base URL and a toolset's hash; different triples never share one.

    The three are encoded as a JSON array before hashing: joined by a separator, parts that hold it would collide.
    """
    return sha256(canonical.encode([model, base_url, toolset]))


def laid_over(settings: Mapping[str, Json], said: Mapping[str, Json]) -> dict[str, Json]:
    """``settings`` with those that were said in their place; null takes one out."""
    return {name: value for name, value in {**settings, **said}.items() if value is not None or name not in said}


def require_settings(said: Mapping[str, Json]) -> None:
    """Raise ``RequestError`` for a setting that would replace what each call says itself: no call could be made with
    it. To take one out is no such thing."""
    found = [name for name in CALLS_OWN if said.get(name) is not None]
    if found:
        raise RequestError(
            f"no context can have the setting {found[0]}: it belongs to each call; nothing was asked or saved",
            hint="leave it out of --set; -m names the model, --system the system prompt, --tools the tools",
        )


def draft_of(context: dict[str, Json]) -> Draft:
    """The prompts and settings of a context's state."""
    return Draft(context["prompts"]["system"], list(context["prompts"]["developer"]), dict(context["settings"]))


def derive(wishes: ContextRequest) -> dict[str, Json]:
    """The state of a new context as the flags say it. Raises ``RequestError`` over ``LIMIT``."""
    return derived(wishes, Draft(wishes.system, list(wishes.developer), laid_over({}, wishes.settings)))


def refine(context: dict[str, Json], wishes: ContextRequest) -> dict[str, Json]:
    """The whole new state: the refinement appended as a developer instruction, settings replaced key by key, and
    taken out by null.

    Raises ``RequestError`` over ``LIMIT``; the chain keeps what was said before.
    """
    old = draft_of(context)
    developer = [*old.developer, *([wishes.refine] if wishes.refine is not None else [])]
    draft = replace(old, developer=developer, settings=laid_over(old.settings, wishes.settings))
    return refined(context, wishes, draft)


def derived(wishes: ContextRequest, draft: Draft) -> dict[str, Json]:
    """The state of a new context with what ``draft`` proposes. Raises ``RequestError`` over ``LIMIT``."""
    return _bounded(
        {
            "model_id": wishes.model,
            "base_url": wishes.base_url,
            "toolset_hash": wishes.toolset,
            "prompts": _prompts(draft),
            "settings": draft.settings,
            # A list, not members by name: no tool's name may look like the name of a secret.
            "tool_caps": {"tools": [msgspec.to_builtins(tool) for tool in wishes.tools]} if wishes.tools else {},
            "context": {},
            "custom": {},
            "source_hash": default_name(wishes.model, wishes.base_url, wishes.toolset),
            "refinements": {"count": 0, "last": None},
        },
        hint="say less in --system, --developer and --set, or give fewer tools",
    )


def refined(context: dict[str, Json], wishes: ContextRequest, draft: Draft) -> dict[str, Json]:
    """The whole new state with what ``draft`` proposes; what the context was made for stays. Raises ``RequestError``
    over ``LIMIT``."""
    return _bounded(
        {
            **context,
            "prompts": {**context["prompts"], **_prompts(draft)},
            "settings": draft.settings,
            "refinements": {
                "count": context["refinements"]["count"] + 1,
                "last": {"text": wishes.refine, "settings": dict(wishes.settings)},
            },
        },
        hint="begin a shorter one under another --state-scope; the chain keeps what was said",
    )


def under(draft: Draft, wishes: ContextRequest) -> Draft:
    """``draft`` with what the flags say over it: their system prompt, their settings key by key; of the developer
    instructions theirs come first, and none is there twice."""
    given = wishes.developer
    return Draft(
        draft.system if wishes.system is None else wishes.system,
        [*given, *(text for text in draft.developer if text not in given)],
        laid_over(draft.settings, wishes.settings),
    )


def left_out(before: Draft, after: Draft, said: Mapping[str, Json]) -> list[tuple[str, str]]:
    """What ``before`` had and ``after`` has no more, each with its kind: prompts that stand nowhere in the new ones as
    they were, and settings that nobody took out by what was ``said``."""
    stays = [after.system or "", *after.developer]
    gone = [("system prompt", before.system)] if before.system and after.system is None else []
    gone += [("developer instruction", text) for text in before.developer]
    lost = [(kind, text) for kind, text in gone if not any(text in other for other in stays)]
    settings = [name for name in before.settings if name not in after.settings and name not in said]
    return [*lost, *(("setting", name) for name in settings)]


def drift(context: dict[str, Json], wishes: ContextRequest) -> list[str]:
    """How this call differs from what the context was made for, one sentence each.

    A call with a task differs where it has something else, or nothing where there was something; only without a model
    nothing is said about models, and a context that was made for no model fits any. Without a task a call is asked
    about what it says alone.
    """
    asks = wishes.task is not None
    fits_any = {"model", "base URL"} if not context["model_id"] and not context["base_url"] else {}
    parts = (
        ("model", context["model_id"], wishes.model, False),
        ("base URL", context["base_url"], wishes.base_url, asks and bool(wishes.model)),
        ("toolset", context.get("toolset_hash", ""), wishes.toolset, asks),
    )
    return [
        f"the context was made with {_named(what, recorded)}, this call has {_named(what, said)}"
        for what, recorded, said, exactly in parts
        if said != recorded and (said or exactly) and what not in fits_any
    ]


def _named(what: str, value: Json) -> str:
    return f"the {what} {value}" if value else f"no {what}"


def _prompts(draft: Draft) -> dict[str, Json]:
    return {"system": draft.system, "developer": draft.developer}


def _bounded(context: dict[str, Json], *, hint: str) -> dict[str, Json]:
    kept = {name: value for name, value in context.items() if name != "refinements"}
    for what, value in (("context", kept), ("record of the refinement", context["refinements"])):
        size = len(canonical.encode(value))
        if size > LIMIT:
            raise RequestError(
                f"the {what} would have {size} bytes, over the limit of {LIMIT}; it was not saved", hint=hint
            )
    return context
