"""Options of the verbs that start and continue runs."""

from __future__ import annotations

from typing import Literal

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import MANUAL, Dependencies
from stateline.engine.dry_run_stop import Watch
from stateline.engine.record import Run
from stateline.service.answers import Reader
from stateline.store.scope import WAIT


def require_names(run: str | None, context: str | None = None) -> None:
    """Raise ``UsageError`` for a malformed run id or context name; None is not set."""
    if run is not None:
        naming.checked_id(run, "run id")
    if context is not None:
        naming.checked_id(context, "context name")


class ModelSource:
    """The models of one call. This one has none."""

    def dependencies(self, run: Run) -> Dependencies:
        """Return the dependencies for the effects of ``run`` as it is now; a run that is about to start has no
        snapshot.

        Called at the start of a call and before each turn, answer and retry. Raises a ``StatelineError`` for a model
        that cannot be used with this run.
        """
        return MANUAL

    def begin(self) -> Json:
        """Return ``event.exchanges`` of a run that starts; None for neither recording nor playback."""
        return None

    def closing_warnings(self, run: Run) -> list[str]:
        """Return warnings for the end of a call, which left ``run`` as it is now."""
        return []


NO_MODELS = ModelSource()


def _no_progress(run: Run, what: str) -> None:
    """Report nothing."""


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every call that advances a run.

    ``input`` is UNSET without ``--input``, ``answer`` without ``--answer``; ``request`` names the request that is
    answered. ``stdin`` reads an answer from standard input to its end, None if it must not be read; ``input_format`` is
    its format, ``text`` is never parsed as JSON. ``parent`` is the required head,
    a revision; ``wait`` bounds the wait for a lock [s]; ``watch`` is called for each attempt.
    """

    one_turn: bool = False
    input: Json | msgspec.UnsetType = msgspec.UNSET
    answer: Json | msgspec.UnsetType = msgspec.UNSET
    request: str | None = None
    stdin: Reader | None = None
    input_format: Literal["json", "text"] = "json"
    parent: str | None = None
    wait: float = WAIT
    watch: Watch = _no_progress
    models: ModelSource = NO_MODELS


class ExecuteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``execute``. ``run`` None: the last run of the machine file if it is unfinished, else a new one."""

    machine: str
    run: str | None = None
    force: bool = False
    accept_change: bool = False
    labels: dict[str, str] = {}
    context: str | None = None
    call: CallOptions = CallOptions()

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for a malformed run id or context name."""
        require_names(self.run, self.context)
