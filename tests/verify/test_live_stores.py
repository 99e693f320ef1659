"""Verify beside writers: a save in progress is never called damage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sample_stores import KEY

from stateline import Store
from stateline.bundle.envelope import Pointer
from stateline.history.log import entries, list_scopes
from stateline.history.revision import find
from stateline.store.local.backend import LocalBackend
from stateline.store.protocol import Backend
from stateline.store.snapshot import Snapshot
from stateline.store.timestamps import next_timestamp
from stateline.verify import chain as verify_chain
from stateline.verify.checker import verify

WRITERS = 4
SAVES = 60

WRITER = """
import sys
from stateline import Store
place, me, saves = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = Store.open(place)
for n in range(saves):
    for key in ("notes:shared", f"notes:own-{me}"):
        store.scope(key).save({"by": me, "n": n, "big": f"{me}-{n}" * 1500, "same": "s" * 5000}, wait=60)
"""

REMOVER = """
import sys
from stateline import Store
from stateline.bundle.naming import scope_hash
store = Store.open(sys.argv[1])
while True:
    for n in range(3):
        store.scope("notes:brief").save({"n": n, "big": "b" * 5000})
    store.backend.remove(scope_hash("notes:brief"))
"""


@contextmanager
def running(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    # The child can import what this process can.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_verify_finds_no_damage_while_four_processes_save(tmp_path: Path) -> None:
    place = tmp_path / "state dir"
    checks = 0
    with (
        running(WRITER, str(place), "0", str(SAVES)) as first,
        running(WRITER, str(place), "1", str(SAVES)) as second,
        running(WRITER, str(place), "2", str(SAVES)) as third,
        running(WRITER, str(place), "3", str(SAVES)) as fourth,
    ):
        writers = [first, second, third, fourth]
        while any(writer.poll() is None for writer in writers):
            report = verify(Store.open(place))
            assert {finding.severity for finding in report.findings} <= {"residue", "warning"}, report.findings
            assert all(finding.severity != "damage" for finding in list_scopes(Store.open(place)).findings)
            checks += 1
        assert [writer.returncode for writer in writers] == [0] * WRITERS
    assert checks >= 5
    store = Store.open(place)
    report = verify(store)
    assert report.findings == ()
    assert report.scopes == WRITERS + 1
    assert report.snapshots == 2 * WRITERS * SAVES
    assert [found.seq for found, _ in entries(store, find(store, "notes:shared"), None, with_changes=False)] == [
        *reversed(range(WRITERS * SAVES))
    ]


def test_a_scope_that_is_removed_and_made_again_is_never_damage(tmp_path: Path) -> None:
    place = tmp_path / "state dir"
    Store.open(place).scope("notes:steady").save({})
    with running(REMOVER, str(place)) as remover:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            report = verify(Store.open(place))
            assert report.ok, report.findings
            assert {finding.severity for finding in report.findings} <= {"residue", "warning"}, report.findings
        assert remover.poll() is None
    after = verify(Store.open(place))
    assert after.ok, after.findings


def test_a_scope_removed_while_it_is_read_is_not_damage(
    store: Store, chain: list[Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_snapshot = verify_chain.read_snapshot
    calls: list[str] = []

    def remove_third(backend: Backend, scope: str, pointer: Pointer) -> Snapshot:
        calls.append(pointer.path)
        if len(calls) == 3:
            store.backend.remove(scope)
        return read_snapshot(backend, scope, pointer)

    monkeypatch.setattr(verify_chain, "read_snapshot", remove_third)
    report = verify(store)
    assert report.ok
    assert report.scopes == 0


def test_a_save_that_finishes_while_the_chain_is_walked_leaves_no_finding(
    store: Store, chain: list[Snapshot], publish: Callable[..., Pointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published before the names are listed, acknowledged after the pointer was read."""
    head = chain[-1]
    moment = next_timestamp(store.clock(), head.envelope.created_at)
    pending = publish(
        store, KEY, head=False, seq=5, created_at=moment, prev=head.path, prev_sha=head.sha256, state={"n": 5}
    )
    read = LocalBackend.read
    monkeypatch.setattr(LocalBackend, "read", lambda backend, scope: _then(read(backend, scope), finish))

    def finish() -> None:
        monkeypatch.setattr(LocalBackend, "read", read)
        store.backend.swap(head.scope, head.pointer, pending)

    report = verify(store)
    assert report.findings == ()
    assert report.snapshots == 6


@pytest.mark.parametrize("moment", ["list", "read"])
def test_saves_between_two_reads_of_verify_leave_no_finding(
    store: Store, chain: list[Snapshot], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Two, since a pointer that is one behind the names would pass for a crash."""
    look = getattr(store.backend, moment)

    def look_and_save(scope: str) -> object:
        result = look(scope)
        if scope != chain[0].scope:
            return result
        monkeypatch.setattr(store.backend, moment, look)
        result = result if moment == "read" else iter([*result])
        for number in (5, 6):
            store.scope(KEY).save({"n": number})
        return result

    monkeypatch.setattr(store.backend, moment, look_and_save)
    assert verify(store).findings == ()
    assert verify(store).snapshots == 7


def _then(result: Pointer | None, action: Callable[[], None]) -> Pointer | None:
    action()
    return result
