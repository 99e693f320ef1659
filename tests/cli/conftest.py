"""Fixtures of the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Cli:
    """The command line, with a state dir of its own and nothing said by the environment."""
    for name in list(os.environ):
        if name.startswith("STATELINE_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    home = tmp_path / "a home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("STATELINE_STATE_DIR", str(home / "state dir"))
    return Cli(monkeypatch, capsysbinary, home)


@pytest.fixture
def task() -> Task:
    """Builds task stages; see :class:`command_line.Task`."""

    def build(script: str, **keys: Any) -> dict[str, Any]:
        return {"task": ["sh", "-c", script], "repeatable": True, **keys}

    return build
