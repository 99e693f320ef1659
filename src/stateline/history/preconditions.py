"""Optimistic concurrency of the command line: ``--parent`` names the head that a call may continue."""

from __future__ import annotations

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
        current = f"at {head.sha256}" if head is not None else "missing"
        raise ConflictError(
            f"the head of {scope.key} is {current}, not at {wanted}; nothing was changed",
            hint="look at the head again (`stateline log`), then repeat the call",
        )
