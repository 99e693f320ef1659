"""The three pipes of a child: stdin is fed while stdout and stderr are drained, so that neither side waits for ever.

Two ways with one face (``open``, ``turn``, ``close``): polling, and threads where pipes cannot be polled (Windows).
Polling is the first choice: threads cost 0.3 ms more for a child, and a thread that reads from a pipe some stranger
holds open can neither be ended nor have its descriptor closed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import Popen

TAIL = 4096
"""How much of stderr is shown [bytes]: its end."""

KEPT = 128 * 1024
"""How much of stderr is kept [bytes]: its end, and far more than is shown, so that a secret at the cut of ``TAIL`` can
be found whole and masked before that cut is made."""

_PIECE = 65536  # what a pipe holds; a larger buffer only costs its allocation


class Written:
    """What a child has written, in bounded memory: stdout up to ``limit`` [bytes], of stderr the last ``KEPT``."""

    def __init__(self, limit: int) -> None:
        self.size = 0
        self.kept_cut = False
        self._limit = limit
        self._pieces: list[bytes] = []
        self._error = bytearray()

    def take_output(self, data: bytes) -> None:
        self.size += len(data)
        if not self.overflowed:
            self._pieces.append(data)

    def take_error(self, data: bytes) -> None:
        self._error += data
        self.kept_cut = self.kept_cut or len(self._error) > KEPT
        # Not at every call: a stderr of many small writes would be moved once for each of them.
        if len(self._error) > KEPT + _PIECE:
            del self._error[:-KEPT]

    @property
    def overflowed(self) -> bool:
        """Whether stdout was larger than the limit; it is then drained but no longer kept."""
        return self.size > self._limit

    @property
    def output(self) -> bytes:
        return b"".join(self._pieces)

    @property
    def kept(self) -> bytes:
        """The end of stderr; all of it unless ``kept_cut``."""
        return bytes(self._error[-KEPT:])


class PolledPipes:
    """Moves bytes in the calling thread."""

    def __init__(self, process: Popen[bytes], document: bytes, written: Written) -> None:
        import selectors

        stdin, stdout, stderr = _streams(process)
        self._streams = (stdin, stdout, stderr)
        self._stdin = stdin
        self._rest = memoryview(document)
        self._sinks = {stdout.fileno(): written.take_output, stderr.fileno(): written.take_error}
        # Not epoll or kqueue: these cost a descriptor, and three pipes are few.
        self._selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        os.set_blocking(stdin.fileno(), False)
        self._selector.register(stdin.fileno(), selectors.EVENT_WRITE)
        for descriptor in self._sinks:
            self._selector.register(descriptor, selectors.EVENT_READ)

    @property
    def open(self) -> bool:
        """Whether somebody still holds the writing end of stdout or stderr."""
        return bool(self._sinks)

    def turn(self, wait: float) -> None:
        """Move what can be moved now; return at once after that, or after ``wait`` [s] if nothing can."""
        for key, _ in self._selector.select(wait):
            if key.fd in self._sinks:
                self._read(key.fd, self._sinks[key.fd])
            else:
                self._write(key.fd)

    def close(self) -> None:
        """Let go of all three pipes."""
        self._selector.close()
        for stream in self._streams:
            stream.close()

    def _read(self, descriptor: int, sink: Callable[[bytes], None]) -> None:
        data = os.read(descriptor, _PIECE)
        sink(data)
        if not data:
            self._selector.unregister(descriptor)
            del self._sinks[descriptor]

    def _write(self, descriptor: int) -> None:
        try:
            self._rest = self._rest[os.write(descriptor, self._rest[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # a program need not read its document
            self._rest = self._rest[:0]
        if not self._rest:
            self._selector.unregister(descriptor)
            self._stdin.close()


class ThreadedPipes:
    """Moves bytes in three threads. A thread whose pipe is held open by a stranger outlives ``close``."""

    def __init__(self, process: Popen[bytes], document: bytes, written: Written) -> None:
        from threading import Thread

        stdin, stdout, stderr = _streams(process)
        self._readers = [
            Thread(target=_drain, args=(stdout, written.take_output), daemon=True),
            Thread(target=_drain, args=(stderr, written.take_error), daemon=True),
        ]
        self._writer = Thread(target=_feed, args=(stdin, document), daemon=True)
        for thread in (*self._readers, self._writer):
            thread.start()

    @property
    def open(self) -> bool:
        """Whether somebody still holds the writing end of stdout or stderr."""
        return any(thread.is_alive() for thread in self._readers)

    def turn(self, wait: float) -> None:
        """Wait for a pipe to reach its end, at most ``wait`` [s]."""
        for thread in self._readers:
            if thread.is_alive():
                thread.join(wait)
                return
        time.sleep(wait)

    def close(self) -> None:
        """Wait a moment for the threads, which close the pipes at their ends."""
        for thread in (*self._readers, self._writer):
            thread.join(0.1)


def _streams(process: Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if stdin is None or stdout is None or stderr is None:
        raise ValueError("the child was started without pipes")
    return stdin, stdout, stderr


def _drain(stream: IO[bytes], sink: Callable[[bytes], None]) -> None:
    with stream:
        while data := stream.read(_PIECE):
            sink(data)


def _feed(stream: IO[bytes], document: bytes) -> None:
    rest = memoryview(document)
    try:
        with stream:
            while rest:
                rest = rest[stream.write(rest[:_PIECE]) :]
    except OSError:  # a program need not read its document; Windows says EINVAL for it
        pass
