"""Fixtures for several directories of tests: the directory of commands, and a detector of their descendants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from process.life import Life


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of the file that names the command, with a space in its name."""
    directory = tmp_path / "a place"
    directory.mkdir()
    return directory


@pytest.fixture
def life(place: Path) -> Iterator[Life]:
    """For commands that run in ``place``."""
    life = Life(place / "life")
    yield life
    life.close()
