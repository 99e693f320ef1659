"""Fixtures and helpers for tests of verify, repair and history: stores with a counter as their clock.

The same saves give the same bytes.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Envelope, Link, Pointer
from stateline.bundle.objects import Artifact
from stateline.redaction.redactor import Redactor
from stateline.store.local.backend import LocalBackend
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify
from stateline.verify.findings import Finding, Report

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
BIG = "x" * 5000
NODE = {"body": "a" * 4094, "note": "b" * 3000, "tail": "c" * 3000}
START = 1_795_170_000_000_000_000

OpenStore = Callable[..., Store]
"""Opens a store at a path (none: in memory)."""
Publish = Callable[..., Pointer]
"""Puts a snapshot of any shape into a store."""
Check = Callable[[], Report]


def codes(report: Report) -> list[tuple[str, str]]:
    return sorted((finding.severity, finding.code) for finding in report.findings)


def only(report: Report) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def stats(place: Path) -> list[tuple[str, int, int, int]]:
    """Mode, time and size of every file, to see that nothing was written."""
    found = []
    for path in [place, *place.rglob("*")]:
        raw = path.lstat()
        found.append((str(path), raw.st_mode, raw.st_mtime_ns, raw.st_size))
    return sorted(found)


@pytest.fixture
def open_store() -> OpenStore:
    """Open stores whose clock starts where the last one's was."""
    ticks = itertools.count(START, 1_000_000)

    def open_at(path: Path | None = None) -> Store:
        backend = MemoryBackend() if path is None else LocalBackend(str(path))
        return Store(backend, redactor=Redactor(), clock=lambda: next(ticks))

    return open_at


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Path of a state dir that need not exist; it holds a space."""
    return tmp_path / "state dir"


@pytest.fixture
def store(open_store: OpenStore, place: Path) -> Store:
    return open_store(place)


@pytest.fixture
def publish() -> Publish:
    """Bypass the checks of ``save``; ``head`` also moves the pointer."""

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
    """Five snapshots, oldest first; the last two hold objects."""
    scope = store.scope(KEY)
    small = [scope.save({"n": n}) for n in range(3)]
    return [
        *small,
        scope.save({"n": 3, "big": BIG}),
        scope.save({"n": 4, "big": BIG, "node": NODE, "raw": Artifact(b"raw")}),
    ]


@pytest.fixture
def check(place: Path) -> Check:
    """Verify with a newly opened store, and require that this wrote nothing."""

    def run() -> Report:
        before = stats(place)
        report = verify(Store.open(place))
        assert stats(place) == before
        return report

    return run


def copies(place: Path) -> Iterator[Path]:
    """Endless copies of a store, one for each case of a test; the last one is removed for the next."""
    copy = place.with_name("copy")
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy, symlinks=True)
        yield copy
