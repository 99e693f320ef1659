"""Whether anything that a command started is still alive."""

from __future__ import annotations

import os
from pathlib import Path


class Life:
    """A FIFO that a command and all its descendants hold open (``exec 3>life``): at its end when all are dead.

    Process numbers would not do: an orphan may stay a zombie for as long as the system's first process likes.
    """

    begin = "exec 3>life; printf x >&3; "

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def has_begun(self) -> bool:
        """Whether one command more has begun than was asked about before."""
        try:
            return os.read(self._descriptor, 1) == b"x"
        except BlockingIOError:
            return False

    def is_over(self) -> bool:
        """Whether nobody who has begun is left."""
        try:
            while os.read(self._descriptor, 4096):
                pass
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let go of the FIFO."""
        os.close(self._descriptor)
