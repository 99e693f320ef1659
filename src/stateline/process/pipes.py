"""The three pipes of a child: stdin is fed while stdout and stderr are drained, so that neither side waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import Popen

TAIL_KEPT = 128 * 1024
"""Size of the end of stderr that is kept [bytes]: far more than is shown, so that a secret at the end of what
is shown is complete and can be masked before the text is cut."""

_BUFFER = 65536  # capacity of a pipe; a larger buffer only costs its allocation


class CapturedOutput:
    """Output of a child in bounded memory: up to ``limit`` [bytes] of stdout, and the last ``TAIL_KEPT`` of stderr."""

    def __init__(self, limit: int) -> None:
        self.stderr_cut = False
        self._limit = limit
        self._size = 0
        self._pieces: list[bytes] = []
        self._stderr = bytearray()

    def add_stdout(self, data: bytes) -> None:
        self._size += len(data)
        if not self.overflowed:
            self._pieces.append(data)

    def add_stderr(self, data: bytes) -> None:
        self._stderr += data
        self.stderr_cut = self.stderr_cut or len(self._stderr) > TAIL_KEPT
        # Not at every call: a stderr of many small writes would be moved once for each of them.
        if len(self._stderr) > TAIL_KEPT + _BUFFER:
            del self._stderr[:-TAIL_KEPT]

    @property
    def overflowed(self) -> bool:
        """True if stdout was larger than the limit; it is then drained but no longer kept."""
        return self._size > self._limit

    @property
    def stdout(self) -> bytes:
        return b"".join(self._pieces)

    @property
    def stderr_tail(self) -> bytes:
        """The end of stderr; all of it unless ``stderr_cut``."""
        return bytes(self._stderr[-TAIL_KEPT:])


class Pipes:
    """Moves bytes in the calling thread by polling."""

    def __init__(self, process: Popen[bytes], document: bytes, output: CapturedOutput) -> None:
        import selectors

        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        if stdin is None or stdout is None or stderr is None:
            raise ValueError("the child was started without pipes")
        self._streams = (stdin, stdout, stderr)
        self._stdin = stdin
        self._rest = memoryview(document)
        self._sinks = {stdout.fileno(): output.add_stdout, stderr.fileno(): output.add_stderr}
        # Not epoll or kqueue: these cost a descriptor, and three pipes are few.
        self._selector = selectors.PollSelector()
        os.set_blocking(stdin.fileno(), False)
        self._selector.register(stdin.fileno(), selectors.EVENT_WRITE)
        for descriptor in self._sinks:
            self._selector.register(descriptor, selectors.EVENT_READ)

    @property
    def open(self) -> bool:
        """True while some process holds the writing end of stdout or stderr."""
        return bool(self._sinks)

    def transfer(self, wait: float) -> None:
        """Move the bytes that can be moved now, or return after ``wait`` [s] if there are none."""
        for key, _ in self._selector.select(wait):
            if key.fd in self._sinks:
                self._read(key.fd, self._sinks[key.fd])
            else:
                self._write(key.fd)

    def close(self) -> None:
        """Close all three pipes."""
        self._selector.close()
        for stream in self._streams:
            stream.close()

    def _read(self, descriptor: int, sink: Callable[[bytes], None]) -> None:
        data = os.read(descriptor, _BUFFER)
        sink(data)
        if not data:
            self._selector.unregister(descriptor)
            del self._sinks[descriptor]

    def _write(self, descriptor: int) -> None:
        try:
            self._rest = self._rest[os.write(descriptor, self._rest[:_BUFFER]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # a program need not read its document
            self._rest = self._rest[:0]
        if not self._rest:
            self._selector.unregister(descriptor)
            self._stdin.close()
