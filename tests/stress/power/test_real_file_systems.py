"""The power of real file systems is cut, with small budgets; `scripts/torture` does the same with large ones."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stress.invariants import Acknowledged
from stress.oracle import ViolationError
from stress.power import filesystems, images
from stress.power.crash_writer import Orders
from stress.power.images import KINDS, NOTHING, Image, Kind, Unavailable, powered, unavailable
from stress.power.outage import Cut, struck, undisturbed
from stress.power.recovery import Case

CRASHES = 2
EXT4, XFS = Kind("ext4", "data=ordered"), Kind("xfs")
SWITCHED = [kind for kind in KINDS if kind in (EXT4, XFS) or kind.way == "disk"]


@contextmanager
def mounted(root: Path, kind: Kind) -> Iterator[Image]:
    """An image with power; the test is skipped where there can be none."""
    missing = unavailable(kind)
    if missing:
        pytest.skip(missing)
    try:
        with powered(root, kind) as image:
            yield image
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    with mounted(tmp_path / "image", EXT4) as image:
        yield image


def mounts_below(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {path}/" in line]


@pytest.mark.parametrize("kind", SWITCHED, ids=lambda kind: kind.name)
def test_acknowledged_data_survives_a_power_loss_on_a_real_file_system(kind: Kind, tmp_path: Path) -> None:
    with mounted(tmp_path / "probe", kind):
        pass
    seed = os.environ.get("STATELINE_TEST_SEED") or str(random.randrange(2**32))
    until = time.monotonic() + 12
    try:
        summary = filesystems.campaign(
            tmp_path / "power", seed, crashes=CRASHES, until=until, say=lambda _: None, kinds=(kind,), tries=0
        )
    except ViolationError as violated:
        violated.add_note(f"STATELINE_TEST_SEED={seed}")
        raise
    assert summary["total"] == CRASHES or time.monotonic() > until
    assert mounts_below(tmp_path) == []


def test_unsynced_files_are_lost_in_a_power_loss(image: Image, tmp_path: Path) -> None:
    acknowledged = Acknowledged()
    state_dir = image.path / "store"
    orders = Orders("first save", str(state_dir), str(image.switch), mutant="no file sync")
    crash = struck(image, [orders], acknowledged, Cut("acknowledgement", 0.0, NOTHING, after=99))
    assert crash.heard == 1
    image.replay()
    with pytest.raises(ViolationError, match=r"not what|is missing|has the digest|is gone"):
        Case(state_dir, acknowledged, "first save").judge()


def test_unsynced_names_are_lost_in_a_power_loss(image: Image) -> None:
    acknowledged = Acknowledged()
    state_dir = image.path / "store"
    orders = Orders("saves", str(state_dir), str(image.switch), mutant="no directory sync")
    crash = struck(image, [orders], acknowledged, Cut("acknowledgement", 0.0, NOTHING, after=99))
    assert crash.heard == 5
    image.replay()
    with pytest.raises(ViolationError, match=r"acknowledged were"):
        Case(state_dir, acknowledged, "saves").judge()


def test_the_correct_protocol_loses_nothing_in_a_power_loss(image: Image) -> None:
    acknowledged = Acknowledged()
    state_dir = image.path / "store"
    orders = Orders("saves", str(state_dir), str(image.switch))
    assert struck(image, [orders], acknowledged, Cut("acknowledgement", 0.0, NOTHING, after=99)).heard == 5
    image.replay()
    case = Case(state_dir, acknowledged, "saves")
    assert +case.judge() == Counter()
    assert len(case.chain(next(iter(acknowledged.heads)))) == 5


@pytest.mark.parametrize("kind", [EXT4, XFS], ids=lambda kind: kind.name)
def test_a_save_whose_directory_was_not_synced_is_not_acknowledged_by_a_file_system_that_stopped(
    kind: Kind, tmp_path: Path
) -> None:
    # After it has stopped, XFS syncs a directory with success, and its new names are lost all the same.
    with mounted(tmp_path / "image", kind) as image:
        plain = Orders("first save", str(image.path / "plain"), str(image.switch))
        last = undisturbed(plain).calls
        # The syncs of the directory after the snapshot has its name, and after the pointer has moved.
        for at in (last - 5, last - 1):
            acknowledged = Acknowledged()
            orders = Orders("first save", str(image.path / f"store {at}"), str(image.switch), at=at)
            crash = struck(image, [orders], acknowledged, Cut("call", 0.0, NOTHING, at=at))
            assert crash.heard == 0, f"call {at} of {last}"
            image.replay()
            case = Case(image.path / f"store {at}", acknowledged, "first save")
            assert "unheard" not in +case.judge()


def test_images_are_unmounted_after_an_error(tmp_path: Path) -> None:
    def interrupted() -> None:
        with mounted(tmp_path / "image", EXT4) as image:
            assert mounts_below(tmp_path) != []
            images.power_off(str(image.switch), NOTHING)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert mounts_below(tmp_path) == []
    if (attached := subprocess.run(["losetup", "-a"], capture_output=True, check=False)).returncode == 0:
        assert str(tmp_path) not in attached.stdout.decode()


def test_mounting_without_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "only root" in unavailable(EXT4)
    with pytest.raises(Unavailable, match="only root"), powered(tmp_path / "image", EXT4):
        pass


def test_an_unavailable_file_system_is_skipped_and_named(tmp_path: Path) -> None:
    absent = Kind("nosuchfs")
    summary = filesystems.campaign(
        tmp_path / "power", "seed", crashes=1, until=time.monotonic() + 60, say=lambda _: None, kinds=(absent,)
    )
    assert list(summary["skipped"]) == ["nosuchfs"]
    assert summary["total"] == 0
