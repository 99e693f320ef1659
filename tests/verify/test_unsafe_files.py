"""What verify says of files that are none, and of files that others may use or own."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_stores import codes, only

from stateline.bundle import naming
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify
from stateline.verify.findings import SHOWN, Report


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
@pytest.mark.parametrize("which", ["pointer", "head", "first", "object", "store file"])
def test_what_is_not_a_regular_file_is_never_opened(
    chain: list[Snapshot], place: Path, check: Callable[[], Report], kind: str, which: str, tmp_path: Path
) -> None:
    path = {
        "pointer": place / chain[0].scope / "latest.json",
        "head": place / chain[0].scope / chain[4].path,
        "first": place / chain[0].scope / chain[0].path,
        "object": place / naming.object_path(chain[4].envelope.objects["/raw"].sha256),
        "store file": place / "stateline.json",
    }[which]
    aside = tmp_path / "aside"
    path.rename(aside)
    if kind == "symlink":
        path.symlink_to(aside)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.mkdir(0o700)
    found = {(f.severity, f.code) for f in check().findings if f.path == str(path.relative_to(place))}
    assert ("damage", "not_regular") in found
    if which != "object":
        assert ("unsafe", "symlink" if kind == "symlink" else "not_regular") in found


def test_a_scope_that_is_a_symlink_is_not_followed(
    chain: list[Snapshot], place: Path, check: Callable[[], Report], tmp_path: Path
) -> None:
    (place / chain[0].scope).rename(tmp_path / "aside")
    (place / chain[0].scope).symlink_to(tmp_path / "aside")
    found = codes(check())
    assert ("damage", "not_regular") in found
    assert ("unsafe", "symlink") in found


@pytest.mark.parametrize("name", ["", "scope", "pointer", "head", "lock", "stateline.json", "objects"])
def test_what_others_may_use_is_reported_as_unsafe_and_left_as_it_is(
    chain: list[Snapshot], place: Path, check: Callable[[], Report], name: str
) -> None:
    scope = chain[0].scope
    path = {
        "scope": scope,
        "pointer": f"{scope}/latest.json",
        "head": f"{scope}/{chain[4].path}",
        "lock": f"{scope}/scope.lock",
    }.get(name, name)
    before = (place / path).stat().st_mode
    (place / path).chmod(before | stat.S_IRGRP)
    report = check()
    assert report.ok
    finding = only(report)
    assert (finding.severity, finding.code, finding.path) == ("unsafe", "open_mode", path)
    assert "chmod" in finding.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_foreign_owned_copy_is_verified_and_reported_as_unsafe(
    chain: list[Snapshot], place: Path, check: Callable[[], Report]
) -> None:
    for path in [place, *place.rglob("*")]:
        os.lchown(path, 65534, 65534)
    report = check()
    assert report.ok
    assert report.snapshots == 5
    assert {finding.code for finding in report.findings} == {"foreign_owner"}
    assert len(report.findings) <= SHOWN + 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_told_from_what_is_altered(
    chain: list[Snapshot], place: Path, check: Callable[[], Report]
) -> None:
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
