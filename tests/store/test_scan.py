"""Scans of a whole store: few system calls, and the same results as the ordinary backend."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stateline.bundle import naming
from stateline.errors import IntegrityError, StatelineError, UsageError
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem, Stat
from stateline.store.local.scan import ScanBackend, scan_backend
from stateline.store.protocol import BlobMissingError
from stateline.store.store import Store
from stateline.verify.checker import verify

KEY = "notes:x"
SAVES = 20


class Counting(Filesystem):
    """Counts what is done to the files of snapshots, and how often a scope's directory is opened."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def open_directory(self, parent: Directory, name: str) -> Directory:
        self.done["open_directory"] += 1
        return super().open_directory(parent, name)

    def open_file(self, directory: Directory, name: str) -> int:
        self.done["open_file"] += name.startswith("state-")
        return super().open_file(directory, name)

    def stat(self, directory: Directory, name: str = "") -> Stat:
        self.done["stat"] += name.startswith("state-")
        return super().stat(directory, name)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with one scope of ``SAVES`` snapshots."""
    path = tmp_path / "s"
    scope = Store.open(path).scope(KEY)
    for number in range(SAVES):
        scope.save({"n": number})
    return path


def test_verify_opens_each_snapshot_once_and_the_directory_of_a_scope_a_few_times(place: Path) -> None:
    fs = Counting()
    assert verify(Store(LocalBackend(str(place), fs))).snapshots == SAVES
    assert (fs.done["open_file"], fs.done["stat"]) == (SAVES, 0)
    # For each of the 257 places of objects one attempt more.
    assert fs.done["open_directory"] < 257 * 3 + 10


def test_a_scan_returns_what_the_backend_returns(place: Path) -> None:
    backend = LocalBackend(str(place))
    scan = ScanBackend(backend)
    scope = naming.scope_hash(KEY)
    names = sorted(scan.list(scope))
    assert names == sorted(backend.list(scope))
    (place / scope / names[-1]).chmod(0o640)
    (place / scope / names[-2]).unlink()
    (place / scope / names[-2]).symlink_to(names[0])
    for name in names:
        path = f"{scope}/{name}"
        outcomes: list[object] = []
        for each in (backend, scan):
            try:
                outcomes.append(each.get(path, 4000))
            except (StatelineError, BlobMissingError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]
        # Twice: the result that was kept from the scan, and a new look.
        assert scan.inspect(path) == scan.inspect(path) == backend.inspect(path)


def test_a_scan_checks_names_and_limits(place: Path) -> None:
    scan = ScanBackend(LocalBackend(str(place)))
    scope = naming.scope_hash(KEY)
    name = next(name for name in scan.list(scope) if name.startswith("state-"))
    for bad in (f"{scope}/..", f"{scope}/", "../x", f"{scope}/a\\b", f"{scope}/a\0"):
        with pytest.raises(UsageError):
            scan.get(bad, 10)
    with pytest.raises(IntegrityError, match="too large"):
        scan.get(f"{scope}/{name}", 10)
    with pytest.raises(BlobMissingError):
        scan.get(f"{scope}/nothing", 10)
    with pytest.raises(UsageError):
        next(scan.list("../x"))


def test_a_replaced_directory_is_seen_after_the_next_listing(place: Path, tmp_path: Path) -> None:
    scan = ScanBackend(LocalBackend(str(place)))
    scope = naming.scope_hash(KEY)
    list(scan.list(scope))
    (place / scope).rename(tmp_path / "aside")
    Store.open(place).scope(KEY).save({"n": "new"})
    assert sorted(scan.list(scope)) == sorted(path.name for path in (place / scope).iterdir())


def test_another_backend_is_scanned_as_it_is() -> None:
    store = Store.in_memory()
    assert scan_backend(store.backend) is store.backend
