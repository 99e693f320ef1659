"""The backends of the package against the contract suite for backends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Filesystem
from stateline.store.memory import MemoryBackend
from stateline.store.protocol import Backend
from stateline.testing.backends import BackendContract


class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()

    def raw_get(self, backend: Backend, name: str) -> bytes | None:
        return backend._blobs.get(name)

    def raw_set(self, backend: Backend, name: str, data: bytes) -> None:
        backend._blobs[name] = data


class TestLocal(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        (tmp_path / "beside").write_bytes(b"not to be touched")
        return LocalBackend(str(tmp_path / "a state dir"), Filesystem())

    def raw_get(self, backend: Backend, name: str) -> bytes | None:
        path = Path(backend.describe(), name)
        return path.read_bytes() if path.exists() else None

    def raw_set(self, backend: Backend, name: str, data: bytes) -> None:
        path = Path(backend.describe(), name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(data)

    def another(self, backend: Backend) -> Backend:
        return LocalBackend(backend.describe(), Filesystem())

    def outside(self, backend: Backend) -> object:
        parent = Path(backend.describe()).parent
        return sorted(os.listdir(parent)), (parent / "beside").read_bytes(), sorted(os.listdir(backend.describe()))
