"""What a call performs agent stages with. The caller of a verb provides it; nothing of it is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stateline.bundle.canonical import Json

JOBS = 8
"""How many tool calls of one reply run at the same time, if the caller does not say."""


class Dependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What performs model calls and tool calls.

    ``model`` is a ``model.protocol.Model``, None where whoever calls next answers for it; ``name`` the model that it is
    asked for. ``settings`` are laid over the context's by key, and null takes one out; ``system`` and ``developer``
    stand in the place of the context's prompts where they are not None. ``on_text`` hears a reply while it arrives, in
    another thread than the caller's. ``jobs`` bounds the tool calls that run at the same time. ``exchanges`` gives what
    the next event is to say under that name, after the calls made so far; without it the event repeats what the last
    one said. ``ready`` raises what is known beforehand to keep the model from being called. ``warn`` hears what the
    caller of the verb should be told.
    """

    model: Any = None
    name: str = "manual"
    settings: dict[str, Json] = {}
    system: str | None = None
    developer: list[str] | None = None
    on_text: Callable[[str], None] | None = None
    jobs: int = JOBS
    exchanges: Callable[[], Json] | None = None
    ready: Callable[[], None] | None = None
    warn: Callable[[str], None] | None = None

    @property
    def manual(self) -> bool:
        """Whether there is no model."""
        return self.model is None


MANUAL = Dependencies()
"""The means of a caller that has no model."""
