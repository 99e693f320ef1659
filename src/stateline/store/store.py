"""The public store: scopes and objects in one place. Backends only keep bytes; their meaning is decided here."""

from __future__ import annotations

import os
from collections.abc import Iterator

from stateline.bundle import naming
from stateline.bundle.limits import DEFAULT, Limits
from stateline.redaction.redactor import Redactor
from stateline.store.objects import ObjectStore
from stateline.store.protocol import FULL, Durability
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot, read_snapshot


class Store(ObjectStore):
    """A place that holds scopes and objects. Opening touches nothing; the first save creates what is missing.

    A store may be used by several threads, and several stores and processes may use one directory at once.

    >>> from stateline import Store
    >>> from stateline.store.memory import MemoryBackend
    >>> store = Store(MemoryBackend())
    >>> first = store.scope("notes:demo").save({"n": 1}, event={"why": "first"})
    >>> store.scope("notes:demo").load().state
    {'n': 1}
    """

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        redactor: Redactor | None = None,
        durability: Durability = FULL,
        trust_parent: bool = False,
        actor: str | None = None,
        limits: Limits = DEFAULT,
    ) -> Store:
        """Return the store in the directory ``path``, which need not exist yet.

        ``redactor`` masks secrets before anything is written (default: the values of environment variables that are
        named like keys). With ``durability="fast"`` a save syncs nothing: what is acknowledged survives the death of
        every process, but a power loss may take the newest snapshots. ``trust_parent`` writes even if others may write
        to a directory above. ``actor`` names the person or agent that the process acts for; every event records it
        beside the process's user and host. ``limits`` lowers the limits of what is written. Raises ``UsageError`` for
        another durability or a malformed name.
        """
        from stateline.store.local.backend import LocalBackend

        backend = LocalBackend(os.fspath(path), durability=durability, trust_parent=trust_parent)
        return cls(backend, redactor=redactor or Redactor.from_environment(os.environ), actor=actor, limits=limits)

    @classmethod
    def in_memory(
        cls, *, redactor: Redactor | None = None, actor: str | None = None, limits: Limits = DEFAULT
    ) -> Store:
        """Return an empty store that ends with this process. The options are those of :meth:`open`."""
        from stateline.store.memory import MemoryBackend

        redactor = redactor or Redactor.from_environment(os.environ)
        return cls(MemoryBackend(), redactor=redactor, actor=actor, limits=limits)

    def scope(self, key: str) -> Scope:
        """Return the scope with that key (``KIND:NAME``), which need not exist. Raises ``UsageError`` for a bad key."""
        return Scope(self, naming.checked_key(key))

    def heads(self) -> Iterator[Snapshot]:
        """Yield the head of every scope that has one, in no order. Raises ``IntegrityError`` at a damaged one."""
        for scope in self.backend.scopes():
            pointer = self.backend.read(scope)
            if pointer is not None:
                yield read_snapshot(self.backend, scope, pointer)
