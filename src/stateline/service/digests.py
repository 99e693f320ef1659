"""Digests that commands print and that are not those of snapshots: of objects, of scopes' keys, of contexts' states."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stateline.bundle import canonical
from stateline.engine.record import read_context
from stateline.errors import AmbiguousRevisionError, IntegrityError, StatelineError
from stateline.history.revision import SHORTEST
from stateline.store.snapshot import Snapshot, read_head
from stateline.store.store import Store

_hex = re.compile(f"[0-9a-f]{{{SHORTEST},64}}")


def find_digest(store: Store, text: str) -> Snapshot | bytes | None:
    """Return what the digest that begins with ``text`` names: an object's bytes, the head of the scope with that hash,
    or the snapshot of a context with a state of that digest; None for nothing.

    Raises ``AmbiguousRevisionError``; ``IntegrityError`` for an altered object.
    """
    prefix = text.lower()
    if not _hex.fullmatch(prefix):
        return None
    objects = [name for name in store.backend.list(f"objects/{prefix[:2]}") if name.startswith(prefix)]
    if len(objects) > 1:
        raise AmbiguousRevisionError(f"{prefix} is the beginning of {len(objects)} objects", hint="give more digits")
    return _object(store, objects[0]) if objects else next(_snapshots(store, prefix), None)


def _object(store: Store, name: str) -> bytes:
    data = store.backend.get(f"objects/{name[:2]}/{name}", canonical.OBJECT_LIMIT)
    if canonical.sha256(data) != name:
        raise IntegrityError(f"the object {name} is altered", finding="altered")
    return data


def _snapshots(store: Store, prefix: str) -> Iterator[Snapshot]:
    """Yield heads of scopes with that hash, then snapshots of contexts with a state of that digest."""
    contexts = []
    for scope in store.backend.scopes():
        try:
            head = read_head(store.backend, scope)
        except StatelineError:  # another command reports it
            continue
        if head is None:
            continue
        # The keys of machines and of default contexts are digests too.
        if scope.startswith(prefix) or head.envelope.scope.partition(":")[2].startswith(prefix):
            yield head
        elif head.envelope.kind == "context":
            contexts.append(head)
    for head in contexts:
        try:
            for snapshot in store.scope(head.envelope.scope).walk(head):
                if read_context(store, snapshot).sha256.startswith(prefix):
                    yield snapshot
        except StatelineError:
            continue
