"""Lines that are repeated after a kill: `scripts/torture --suite lines` does it at length."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest
from stress.oracle import ViolationError
from stress.processes import repeated_lines

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")

SECONDS = 8


def test_each_line_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    seed = os.environ.get("STATELINE_TEST_SEED") or str(random.randrange(2**32))
    try:
        summary = repeated_lines.campaign(
            tmp_path, seed, trials=10, until=time.monotonic() + SECONDS, say=lambda text: None
        )
    except ViolationError as violated:
        violated.add_note(f"STATELINE_TEST_SEED={seed}")
        raise
    assert summary["lines"] == len(repeated_lines.LINES)
    assert summary["kills"] > summary["lines"] / 2
