"""The head of a scope as a reader finds it. An absent scope and one whose pointer was lost are told apart."""

from __future__ import annotations

from stateline.bundle import naming
from stateline.errors import IntegrityError
from stateline.store.store import Snapshot, Store


def head(store: Store, scope: str) -> Snapshot | None:
    """The head of the scope with that hash, or None for a scope that does not exist (a first snapshot that was never
    acknowledged makes none). Never writes.

    Raises ``IntegrityError`` when the pointer or what it names is damaged, or when the pointer is missing and
    snapshots are there that a first save cannot have left behind.
    """
    pointer = store.backend.read(scope)
    if pointer is None and store.holds_more_than_a_first(scope):
        # A first save may have ended since the pointer was looked for; only a second look tells.
        pointer = store.backend.read(scope)
        if pointer is None and store.holds_more_than_a_first(scope):
            raise IntegrityError(
                f"the pointer {scope}/{naming.POINTER} is missing, its snapshots are there; nothing was changed",
                finding="missing",
                hint="`stateline verify` lists all damage, `stateline repair` plans how to go on",
            )
    return None if pointer is None else store.read_snapshot(scope, pointer)
