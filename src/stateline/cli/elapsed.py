"""The elapsed time, counted on the last line of a terminal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any


class Elapsed:
    """Counts the seconds since now, by ``write``, until :meth:`end` removes the line again."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self._ended = threading.Event()
        self._shown = ""
        self._thread = threading.Thread(target=self._count, name="stateline-elapsed", daemon=True)
        # A signal that another thread receives would not end a wait of the main thread.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        """Remove the line. Nothing is written afterwards."""
        self._ended.set()
        self._thread.join()
        if self._shown:
            self._write(f"\r{'':{len(self._shown)}}\r")

    def _count(self) -> None:
        begin = time.monotonic()
        while not self._ended.wait(1 - (time.monotonic() - begin) % 1):
            self._shown = f"  {duration(int(time.monotonic() - begin))}"
            self._write(f"\r{self._shown}")


def duration(seconds: int) -> str:
    """Seconds for people, as ``7 s``, ``2 min 07 s`` or ``1 h 02 min``."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"
