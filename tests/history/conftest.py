"""Stores to look back on. The clock is a counter, so that the same saves give the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from history.verified import BIG, KEY, NODE, tree

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Envelope, Link, Pointer
from stateline.bundle.objects import Artifact
from stateline.redaction.redactor import Redactor
from stateline.store.local.backend import LocalBackend
from stateline.store.memory import MemoryBackend
from stateline.store.store import Snapshot, Store
from stateline.verify.checker import verify
from stateline.verify.findings import Report

START = 1_795_170_000_000_000_000


@pytest.fixture
def open_store() -> Callable[..., Store]:
    """Opens a store at a path (none: in memory) with a clock of its own that starts where the last one was."""
    ticks = itertools.count(START, 1_000_000)

    def open_at(path: Path | None = None) -> Store:
        backend = MemoryBackend() if path is None else LocalBackend(str(path))
        return Store(backend, redactor=Redactor(), clock=lambda: next(ticks))

    return open_at


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a state dir may be; its path holds a space."""
    return tmp_path / "state dir"


@pytest.fixture
def store(open_store: Callable[..., Store], place: Path) -> Store:
    return open_store(place)


@pytest.fixture
def publish() -> Callable[..., Pointer]:
    """Puts a snapshot of any shape into a store, past the checks of ``save``; ``head`` also moves the pointer."""

    def put(store: Store, key: str, *, head: bool, **fields: Any) -> Pointer:
        scope = naming.scope_hash(key)
        origin: Link | None = fields.get("origin")
        shape: dict[str, Any] = {
            "seq": 0,
            "created_at": "2026-11-20T09:00:00.000000Z",
            "tool_version": "0.1.0",
            "scope": key,
            "prev_sha": origin.sha256 if origin else None,
            "prev": None,
            "kind": "notes",
            "event": {},
            "state": {},
        }
        envelope = Envelope(**(shape | fields))
        data = canonical.encode(envelope.document(), depth=canonical.FILE_DEPTH)
        sha = canonical.sha256(data)
        pointer = Pointer(naming.snapshot_name(envelope.created_at, sha), sha)
        store.backend.put(f"{scope}/{pointer.path}", data)
        if head:
            store.backend.swap(scope, store.backend.read(scope), pointer)
        return pointer

    return put


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    scope = store.scope(KEY)
    small = [scope.save({"n": n}) for n in range(3)]
    return [
        *small,
        scope.save({"n": 3, "big": BIG}),
        scope.save({"n": 4, "big": BIG, "node": NODE, "raw": Artifact(b"raw")}),
    ]


@pytest.fixture
def check(place: Path) -> Callable[[], Report]:
    """Verifies with a store opened anew, and checks that this wrote nothing."""

    def run() -> Report:
        before = tree(place)
        report = verify(Store.open(place))
        assert tree(place) == before
        return report

    return run
