"""Newer versions and extensions are not damage, and are not examined."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sample_stores import KEY, Check, OpenStore, Publish, codes, copies, only

from stateline.bundle import canonical, naming
from stateline.errors import NewerVersionError
from stateline.service.repair import apply_repair
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify
from stateline.verify.findings import SHOWN


def test_a_newer_store_is_a_warning_and_not_read(chain: list[Snapshot], place: Path, check: Check) -> None:
    (place / "stateline.json").write_bytes(b'{"format":"stateline/2","store_id":"0"}')
    (place / chain[0].scope / "latest.json").write_bytes(b"junk")
    report = check()
    assert report.ok
    assert only(report).code == "newer_version"
    assert report.snapshots == 0


def test_a_newer_pointer_is_a_warning_and_makes_nothing_else_damage(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    (place / chain[0].scope / "latest.json").write_bytes(canonical.encode({"version": "3", "path": 1}))
    report = check()
    assert report.ok
    assert only(report).code == "newer_version"
    assert report.snapshots == 5


def test_below_a_newer_head_a_declared_loss_is_not_damage(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish
) -> None:
    lost = chain[4].envelope.objects["/raw"].sha256
    (place / naming.object_path(lost)).unlink()
    apply_repair(store, KEY)
    head = store.scope(KEY).load()
    fresh = copies(place)
    for newer in ("pointer", "snapshot"):
        copy = next(fresh)
        if newer == "pointer":
            pointer = canonical.encode({"path": head.path, "sha256": head.sha256, "version": "2"})
            (copy / head.scope / "latest.json").write_bytes(pointer)
        else:
            at = "2030-01-01T00:00:00.000000Z"
            linked = {"seq": head.seq + 1, "prev": head.path, "prev_sha": head.sha256, "created_at": at}
            publish(Store.open(copy), KEY, head=True, version="2.1", **linked)
        report = verify(Store.open(copy))
        assert report.ok, (newer, report.findings)
        assert {("warning", "newer_version"), ("warning", "lost")} <= set(codes(report)), newer


def test_a_newer_snapshot_is_a_warning_and_makes_nothing_else_damage(
    store: Store, chain: list[Snapshot], publish: Publish, check: Check
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


def test_a_newer_minor_version_is_read(store: Store, publish: Publish, check: Check) -> None:
    store.backend.prepare()
    publish(store, KEY, head=True, version="1.7", extra={"future": [1]})
    report = check()
    assert report.findings == ()
    assert report.snapshots == 1


def test_an_extension_is_a_warning_and_not_examined(chain: list[Snapshot], place: Path, check: Check) -> None:
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


def test_a_name_that_only_resembles_an_extension_is_a_foreign_file(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    shelf = next(path for path in (place / "objects").iterdir())
    foreign = ["ext", "EXT-1", ".ext-1", f"{chain[0].scope}/ext", "objects/ext-1", f"objects/{shelf.name}/ext-1"]
    for name in foreign:
        (place / name).touch(0o600)
    report = check()
    assert not report.ok
    assert {(finding.code, finding.path) for finding in report.findings} == {("foreign_file", name) for name in foreign}


def test_many_extensions_are_counted(chain: list[Snapshot], place: Path, check: Check) -> None:
    """A newer version may sign every snapshot."""
    for number in range(SHOWN + 5):
        (place / chain[0].scope / f"ext-{number:02}").touch(0o600)
    report = check()
    assert report.ok
    assert len(report.findings) == SHOWN + 1
    assert report.findings[-1].message.startswith("and 5 more ")


def test_a_save_keeps_the_extensions_of_a_scope(store: Store, chain: list[Snapshot], place: Path, check: Check) -> None:
    kept = [place / "ext-1", place / chain[0].scope / "ext-1"]
    for path in kept:
        path.write_bytes(b"kept")
    Store.open(place).scope(KEY).save({"n": 5})
    assert [path.read_bytes() for path in kept] == [b"kept", b"kept"]
    assert check().snapshots == len(chain) + 1


def test_a_newer_minor_version_is_read_and_never_written_upon(open_store: OpenStore, publish: Publish) -> None:
    store = open_store()
    head = publish(store, "notes:x", head=True, version="1.3", event={"type": "dreamt"}, extra={"signed": "yes"})
    with pytest.raises(NewerVersionError) as raised:
        store.scope("notes:x").save({"n": 1})
    assert raised.value.code == "newer_version"
    assert raised.value.exit_code == 1
    found = store.scope("notes:x").load()
    assert (found.sha256, found.event["type"], found.envelope.extra) == (head.sha256, "dreamt", {"signed": "yes"})
