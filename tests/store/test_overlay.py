"""The overlay backend reads through to its base and keeps all writes to itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateline import Artifact, Store
from stateline.bundle import naming
from stateline.errors import ConflictError, UnsafePathError
from stateline.store.local.backend import LocalBackend
from stateline.store.memory import MemoryBackend
from stateline.store.overlay import OverlayBackend
from stateline.store.protocol import BlobExistsError, BlobMissingError

KEY = "notes:x"


def contents(store: Store) -> dict[str, object]:
    """The head and the states of every scope."""
    return {
        head.envelope.scope: [store.resolve(snapshot.state) for snapshot in store.scope(head.envelope.scope).walk()]
        for head in store.heads()
    }


def test_what_is_written_over_an_overlay_is_read_there_and_nowhere_else() -> None:
    base = Store(MemoryBackend())
    first = base.scope(KEY).save({"n": 1, "art": Artifact(b"raw")})
    before = contents(base)
    backend = OverlayBackend(base.backend)
    overlay = Store(backend, redactor=base.redactor, clock=base.clock)
    assert contents(overlay) == before
    second = overlay.scope(KEY).save({"n": 2, "text": "x" * 5000})
    other = overlay.scope("notes:y").save({"n": 3})
    assert second.envelope.prev_sha == first.sha256
    assert set(contents(overlay)) == {KEY, "notes:y"}
    assert backend.swaps == [(snapshot.scope, snapshot.pointer) for snapshot in (second, other)]
    assert set(backend.list(first.scope)) == {first.path, second.path}
    assert backend.has(f"{first.scope}/{second.path}", len(second.data))
    backend.settle([f"{first.scope}/{first.path}", f"{first.scope}/{second.path}"])
    backend.remove(first.scope)
    assert overlay.scope(KEY).head() is None
    assert set(contents(overlay)) == {"notes:y"}
    assert contents(base) == before


def test_an_overlay_keeps_the_promises_of_a_backend_about_names_and_heads() -> None:
    base = MemoryBackend()
    head = Store(base).scope(KEY).save(1)
    backend = OverlayBackend(base)
    name = f"{head.scope}/{head.path}"
    backend.put(name, head.data)
    for data in (b"other", head.data + b" "):
        with pytest.raises(BlobExistsError):
            backend.put(name, data)
    with pytest.raises(ConflictError):
        backend.swap(head.scope, None, head.pointer)
    missing = naming.object_path("0" * 64)
    with pytest.raises(BlobMissingError):
        backend.get(missing, 9)
    with pytest.raises(BlobMissingError):
        backend.settle([missing])


def test_an_overlay_refuses_what_a_writer_would_refuse_and_changes_nothing(tmp_path: Path) -> None:
    for number, place in enumerate(("", "scope", "pointer", "lock", "objects")):
        root = tmp_path / str(number)
        head = Store.open(root).scope(KEY).save({"text": "x" * 5000})
        places = {
            "": root,
            "scope": root / head.scope,
            "pointer": root / head.scope / naming.POINTER,
            "lock": root / head.scope / naming.LOCK,
            "objects": root / "objects",
        }
        places[place].chmod(0o755)
        before = {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in [root, *root.rglob("*")]}
        overlay = Store(OverlayBackend(LocalBackend(str(root))))
        with pytest.raises(UnsafePathError):
            overlay.scope(KEY).save({"text": "y" * 5000})
        after = {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in [root, *root.rglob("*")]}
        assert after == before, place
