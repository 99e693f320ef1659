"""Checks of the names in a call's options, before anything is read or written."""

from __future__ import annotations

from stateline.bundle import naming


def require_names(run: str | None, context: str | None = None) -> None:
    """Raise ``UsageError`` for a malformed run id or context name; None is not set."""
    if run is not None:
        naming.checked_id(run, "run id")
    if context is not None:
        naming.checked_id(context, "context name")
