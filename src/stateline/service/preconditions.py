"""``--parent``: a call that may only go on from one snapshot."""

from __future__ import annotations

from stateline.errors import ConflictError
from stateline.store.store import Scope, Snapshot


def require_head(scope: Scope, head: Snapshot | None, parent: str | None) -> None:
    """Raise ``ConflictError`` unless ``head`` of ``scope`` is the revision ``parent``; None demands nothing.

    Raises ``NotFoundError`` and ``AmbiguousRevisionError`` for a revision that names no snapshot.
    """
    if parent is None:
        return
    from stateline.history.revision import find

    wanted = find(scope.store, parent).sha256
    if head is None or head.sha256 != wanted:
        now = "not there" if head is None else head.sha256
        raise ConflictError(
            f"the head of {scope.key} is {now}, not {wanted}; nothing was changed",
            hint="look at the head again (`stateline log`), then repeat the call",
        )
