"""Dependencies of one call: model, tools, recorder. The caller of a verb provides them; they are not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stateline.bundle.canonical import Json

JOBS = 8
"""The default number of tool calls of one reply that run in parallel."""


class Dependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of model calls and tool calls.

    ``model`` is a ``model.protocol.Model``, None if the next call brings the reply; ``name`` is the requested model.
    ``settings`` override the context's by key, and null removes one; ``system`` and ``developer`` replace the context's
    prompts if they are not None. ``on_text`` receives a reply while it arrives, in another thread. ``jobs`` is the
    largest number of tool calls in parallel. ``exchanges`` returns that member of the next event; without it the event
    repeats the last one. ``ready`` raises what is known to prevent a model call. ``warn`` receives warnings for the
    caller of the verb. ``keep`` records a reply that the caller gives; with True it only checks the directory.
    ``answers`` is the ``Playback`` of the run, which answers for people. Both are None without a recording.
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
    keep: Callable[[Any, Any, bool], Any] | None = None
    answers: Any = None

    @property
    def manual(self) -> bool:
        """True without a model."""
        return self.model is None


MANUAL = Dependencies()
"""The dependencies of a caller without a model."""
