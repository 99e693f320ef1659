"""Findings of verify for paths that are not regular files, and for files that others may use or own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from sample_stores import HASH, Check, codes, copies, only

from stateline.bundle import naming
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify
from stateline.verify.findings import SHOWN


def test_a_path_that_is_not_a_regular_file_is_never_opened(chain: list[Snapshot], place: Path) -> None:
    paths = {
        "pointer": f"{HASH}/latest.json",
        "head": f"{HASH}/{chain[4].path}",
        "first": f"{HASH}/{chain[0].path}",
        "object": naming.object_path(chain[4].envelope.objects["/raw"].sha256),
        "store file": "stateline.json",
    }
    fresh = copies(place)
    for name, path in paths.items():
        for kind in ("symlink", "fifo", "directory"):
            copy = next(fresh)
            target = copy / path
            aside = target.with_name("ext-aside")
            target.rename(aside)
            if kind == "symlink":
                target.symlink_to(aside)
            elif kind == "fifo":
                os.mkfifo(target, 0o600)
            else:
                target.mkdir(0o700)
            found = {(f.severity, f.code) for f in verify(Store.open(copy)).findings if f.path == path}
            assert ("damage", "not_regular") in found, (name, kind)
            if name != "object":
                assert ("unsafe", "symlink" if kind == "symlink" else "not_regular") in found, (name, kind)


def test_a_scope_that_is_a_symlink_is_not_followed(
    chain: list[Snapshot], place: Path, check: Check, tmp_path: Path
) -> None:
    (place / chain[0].scope).rename(tmp_path / "aside")
    (place / chain[0].scope).symlink_to(tmp_path / "aside")
    found = codes(check())
    assert ("damage", "not_regular") in found
    assert ("unsafe", "symlink") in found


def test_files_that_others_may_use_are_unsafe_and_left_unchanged(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    scope = [HASH, f"{HASH}/latest.json", f"{HASH}/{chain[4].path}", f"{HASH}/scope.lock"]
    for path in ("", "stateline.json", "objects", *scope):
        before = (place / path).stat().st_mode
        (place / path).chmod(before | stat.S_IRGRP)
        report = check()
        finding = only(report)
        assert report.ok, path
        assert (finding.severity, finding.code, finding.path) == ("unsafe", "open_mode", path)
        assert "chmod" in finding.message, path
        (place / path).chmod(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_foreign_owned_copy_is_verified_and_reported_as_unsafe(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    for path in [place, *place.rglob("*")]:
        os.lchown(path, 65534, 65534)
    report = check()
    assert report.ok
    assert report.snapshots == 5
    assert {finding.code for finding in report.findings} == {"foreign_owner"}
    assert len(report.findings) <= SHOWN + 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_not_called_altered(chain: list[Snapshot], place: Path, check: Check) -> None:
    (place / chain[0].scope / chain[0].path).chmod(0)
    report = check()
    assert codes(report) == [("damage", "unreadable")]


def test_a_read_only_copy_is_verified(chain: list[Snapshot], place: Path) -> None:
    for path in [*place.rglob("*"), place]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        report = verify(Store.open(place))
        assert report.ok
        assert report.findings == ()
    finally:
        for path in [place, *place.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)
