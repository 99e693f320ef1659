"""The public types as mypy sees them: a change here is a change of the API. Checked by ``mypy --strict``, not run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, assert_type

from stateline import (
    LATEST,
    Artifact,
    ConflictError,
    IntegrityError,
    Link,
    LockTimeoutError,
    NotFoundError,
    PlaybackMissError,
    Pointer,
    Redactor,
    Ref,
    Scope,
    Snapshot,
    StatelineError,
    Store,
    __version__,
)


def stores(path: Path, redactor: Redactor) -> None:
    assert_type(Store.open(path), Store)
    assert_type(Store.open("state", redactor=redactor, durability="fast", trust_parent=True), Store)
    store = Store.in_memory(redactor=redactor)
    assert_type(store, Store)
    assert_type(store.warnings, list[str])
    assert_type(store.scope("notes:demo"), Scope)
    for head in store.heads():
        assert_type(head, Snapshot)
    Store.open(path, durability="none")  # type: ignore[arg-type]  # only full and fast


def objects(store: Store) -> None:
    ref = store.put(Artifact(b"bytes", "text/plain"))
    assert_type(ref, Ref)
    assert_type(store.put_value([1]), Ref)
    assert_type(store.append(ref, [2]), Ref)
    assert_type(store.get(ref), bytes)
    assert_type(store.resolve({"list": ref}), Any)
    assert_type((ref.sha256, ref.size, ref.media_type), tuple[str, int, str])


def scopes(scope: Scope) -> None:
    assert_type((scope.key, scope.hash), tuple[str, str])
    assert_type(scope.locked(), AbstractContextManager[None])
    assert_type(scope.locked(wait=2.5), AbstractContextManager[None])
    assert_type(scope.head(), Snapshot | None)
    head = scope.load()
    assert_type(head, Snapshot)
    assert_type(scope.parent(head), Snapshot | None)
    for snapshot in scope.walk():
        assert_type(snapshot, Snapshot)
    assert_type(LATEST, Literal["latest"])
    assert_type(scope.save({"n": 1}), Snapshot)
    assert_type(scope.save({"n": 1}, kind="notes", event={"why": "so"}, parent=LATEST, wait=1.0, masked=True), Snapshot)
    scope.save(1, parent=head)
    scope.save(1, parent=None)
    scope.save(1, parent="newest")  # type: ignore[arg-type]  # no other string


def snapshots(snapshot: Snapshot) -> None:
    assert_type((snapshot.scope, snapshot.path, snapshot.sha256), tuple[str, str, str])
    assert_type((snapshot.seq, snapshot.data), tuple[int, bytes])
    assert_type(snapshot.event, dict[str, Any])
    assert_type(snapshot.state, Any)
    assert_type(snapshot.pointer, Pointer)
    assert_type(snapshot.envelope.origin, Link | None)
    snapshot.path = "another"  # type: ignore[misc]  # snapshots are immutable


def errors(error: StatelineError, damage: IntegrityError, miss: PlaybackMissError) -> None:
    assert_type((error.code, error.exit_code, error.message, error.hint), tuple[str, int, str, str])
    assert_type(damage.finding, str)
    assert_type(miss.nearest, int | None)
    lookup: LookupError = NotFoundError("")
    timeout: TimeoutError = LockTimeoutError("")
    conflict: ConflictError = LockTimeoutError("")
    del lookup, timeout, conflict
    assert_type(__version__, str)
