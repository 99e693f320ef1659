"""What verify says of newer versions and of extensions: no damage, and nothing is looked into."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_stores import KEY, codes, only

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Pointer
from stateline.errors import NewerVersionError
from stateline.service.repair import apply_repair
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.findings import SHOWN, Report


def test_a_newer_store_is_a_warning_and_not_descended_into(
    chain: list[Snapshot], place: Path, check: Callable[[], Report]
) -> None:
    (place / "stateline.json").write_bytes(b'{"format":"stateline/2","store_id":"0"}')
    (place / chain[0].scope / "latest.json").write_bytes(b"junk")
    report = check()
    assert report.ok
    assert only(report).code == "newer_version"
    assert report.snapshots == 0


def test_a_newer_pointer_is_a_warning_and_makes_nothing_else_damage(
    chain: list[Snapshot], place: Path, check: Callable[[], Report]
) -> None:
    (place / chain[0].scope / "latest.json").write_bytes(canonical.encode({"version": "3", "path": 1}))
    report = check()
    assert report.ok
    assert only(report).code == "newer_version"
    assert report.snapshots == 5


@pytest.mark.parametrize("newer", ["pointer", "snapshot"])
def test_below_a_newer_head_what_a_repair_declared_lost_is_no_damage(
    store: Store,
    chain: list[Snapshot],
    place: Path,
    publish: Callable[..., Pointer],
    check: Callable[[], Report],
    newer: str,
) -> None:
    lost = chain[4].envelope.objects["/raw"].sha256
    (place / naming.object_path(lost)).unlink()
    apply_repair(store, KEY)
    head = store.scope(KEY).load()
    if newer == "pointer":
        pointer = canonical.encode({"path": head.path, "sha256": head.sha256, "version": "2"})
        (place / head.scope / "latest.json").write_bytes(pointer)
    else:
        at = "2030-01-01T00:00:00.000000Z"
        linked = {"seq": head.seq + 1, "prev": head.path, "prev_sha": head.sha256, "created_at": at}
        publish(store, KEY, head=True, version="2.1", **linked)
    report = check()
    assert report.ok, report.findings
    assert {("warning", "newer_version"), ("warning", "lost")} <= set(codes(report))


def test_a_newer_snapshot_is_a_warning_and_makes_nothing_else_damage(
    store: Store, chain: list[Snapshot], publish: Callable[..., Pointer], check: Callable[[], Report]
) -> None:
    head = chain[-1]
    publish(
        store,
        KEY,
        head=True,
        version="2.1",
        seq=5,
        prev=head.path,
        prev_sha=head.sha256,
        created_at="2030-01-01T00:00:00.000000Z",
    )
    report = check()
    assert report.ok
    assert only(report).code == "newer_version"
    assert report.snapshots == 5


def test_a_newer_minor_version_is_read(
    store: Store, publish: Callable[..., Pointer], check: Callable[[], Report]
) -> None:
    store.backend.prepare()
    publish(store, KEY, head=True, version="1.7", extra={"future": [1]})
    report = check()
    assert report.findings == ()
    assert report.snapshots == 1


def test_an_extension_is_a_warning_and_neither_damage_nor_looked_into(
    chain: list[Snapshot], place: Path, check: Callable[[], Report]
) -> None:
    """Names that newer minor versions may use, of any kind and mode, where the format reserves them."""
    scope = place / chain[0].scope
    for directory in (place, scope):
        (directory / "ext-signatures").mkdir(mode=0o777)
        (directory / "ext-signatures" / "anything").touch()
        (directory / "ext-pin.json").write_bytes(b"not JSON")
        (directory / "ext-").touch(0o666)
        (directory / "ext-link").symlink_to("/nowhere")
        os.mkfifo(directory / "ext-fifo")
    report = check()
    assert report.ok
    assert report.snapshots == len(chain)
    assert {(finding.severity, finding.code) for finding in report.findings} == {("warning", "extension")}
    names = ["ext-", "ext-fifo", "ext-link", "ext-pin.json", "ext-signatures"]
    expected = {*names, *(f"{scope.name}/{name}" for name in names)}
    assert {finding.path for finding in report.findings} == expected


def test_what_is_not_quite_an_extension_is_a_foreign_file(
    chain: list[Snapshot], place: Path, check: Callable[[], Report]
) -> None:
    shelf = next(path for path in (place / "objects").iterdir())
    foreign = ["ext", "EXT-1", ".ext-1", f"{chain[0].scope}/ext", "objects/ext-1", f"objects/{shelf.name}/ext-1"]
    for name in foreign:
        (place / name).touch(0o600)
    report = check()
    assert not report.ok
    assert {(finding.code, finding.path) for finding in report.findings} == {("foreign_file", name) for name in foreign}


def test_many_extensions_are_counted_and_not_all_told(
    chain: list[Snapshot], place: Path, check: Callable[[], Report]
) -> None:
    """A newer version may sign every snapshot."""
    for number in range(SHOWN + 5):
        (place / chain[0].scope / f"ext-{number:02}").touch(0o600)
    report = check()
    assert report.ok
    assert len(report.findings) == SHOWN + 1
    assert "and 5 more" in report.findings[-1].message


def test_a_scope_with_extensions_goes_on_and_keeps_them(
    store: Store, chain: list[Snapshot], place: Path, check: Callable[[], Report]
) -> None:
    kept = [place / "ext-1", place / chain[0].scope / "ext-1"]
    for path in kept:
        path.write_bytes(b"kept")
    Store.open(place).scope(KEY).save({"n": 5})
    assert [path.read_bytes() for path in kept] == [b"kept", b"kept"]
    assert check().snapshots == len(chain) + 1


def test_a_newer_minor_version_is_read_and_never_written_upon(
    open_store: Callable[..., Store], publish: Callable[..., Any]
) -> None:
    store = open_store()
    head = publish(store, "notes:x", head=True, version="1.3", event={"type": "dreamt"}, extra={"signed": "yes"})
    with pytest.raises(NewerVersionError) as raised:
        store.scope("notes:x").save({"n": 1})
    assert raised.value.code == "newer_version"
    assert raised.value.exit_code == 1
    found = store.scope("notes:x").load()
    assert (found.sha256, found.event["type"], found.envelope.extra) == (head.sha256, "dreamt", {"signed": "yes"})
