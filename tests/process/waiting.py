"""Wait for visible effects of another process."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
"""Longest wait [s] on a busy machine for an event that takes no time on an idle one."""


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return once the condition holds. Raises ``AssertionError`` after ``seconds`` [s]."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s in vain"
        time.sleep(0.01)


def number_in(path: Path) -> int | None:
    """The number that a script writes into a file, as in ``echo $$ > path``; None until the whole line is there."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


def child_has_ended(path: Path) -> bool:
    """Return true if the child that wrote its number into the file has ended. Its exit code is left to be taken."""
    number = number_in(path)
    if number is None:
        return False
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        listed = subprocess.run(["ps", "-o", "stat=", "-p", str(number)], capture_output=True, text=True, check=False)
        return listed.stdout.strip()[:1] in ("", "Z")
    try:
        return os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # somebody has taken it already
