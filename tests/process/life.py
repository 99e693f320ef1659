"""Detect if any descendant of a command is alive."""

from __future__ import annotations

import os
from pathlib import Path


class Life:
    """A FIFO that a command and all its descendants hold open (``exec 3>life``): it reaches its end when all are dead.

    Process numbers would not do: an orphan may stay a zombie until the system's first process reaps it.
    """

    begin = "exec 3>life; printf x >&3; "

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def has_begun(self) -> bool:
        """Return true once for each command that has begun."""
        try:
            return os.read(self._descriptor, 1) == b"x"
        except BlockingIOError:
            return False

    def is_over(self) -> bool:
        """Return true if all commands that have begun are dead."""
        try:
            while os.read(self._descriptor, 4096):
                pass
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the FIFO."""
        os.close(self._descriptor)
