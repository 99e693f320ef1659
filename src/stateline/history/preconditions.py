"""Optimistic concurrency of the command line: ``--parent`` names the head that a call may continue."""

from __future__ import annotations

import shlex

from stateline.errors import ConflictError
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot


def require_head(scope: Scope, head: Snapshot | None, parent: str | None) -> None:
    """Raise ``ConflictError`` unless ``head`` of ``scope`` is the revision ``parent``; None accepts any head.

    Raises ``NotFoundError`` and ``AmbiguousRevisionError`` for a revision that names no snapshot.
    """
    if parent is None:
        return
    from stateline.history.revision import find

    wanted = find(scope.store, parent).sha256
    if head is None or head.sha256 != wanted:
        if head is None:
            raise ConflictError(
                f"{scope.key} does not exist yet, so its head is not at {wanted}; nothing was changed",
                hint="leave --parent out to start it",
            )
        raise ConflictError(
            f"the head of {scope.key} is at {head.sha256}, not at {wanted}; nothing was changed",
            hint=f"`stateline log {shlex.quote(scope.key)}` shows the head; then repeat the call with it",
        )
