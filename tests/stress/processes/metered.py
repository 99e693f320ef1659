"""Commands in a process of their own that is watched: what it reads and lists, how much memory it takes, how it ends.

Run as a program it is that process: ``observed.py REPORT`` takes a JSON array of argument lists on standard input, runs
them one after the other, and writes one line about each to the file REPORT.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec


class Command(msgspec.Struct, frozen=True):
    """Result of one command: exit ``code``, JSON ``document`` (of a long one its length), files of the state dir
    ``opened``, bytes ``read``, directories ``listed``, and the ``peak`` memory of the process until then [bytes]."""

    code: int
    document: Any
    opened: int
    read: int
    listed: int
    peak: int


class Seen(msgspec.Struct, frozen=True):
    """Observation of the process: its ``commands`` (fewer than requested if it was stopped early), whether
    it was ``late`` and killed for that, and what it ``said`` on stderr."""

    commands: tuple[Command, ...]
    late: bool
    said: str


def observe(report: Path, calls: Sequence[Sequence[str]], *, seconds: float, cwd: Path | None = None) -> Seen:
    """Run the commands in one watched process, which is killed after ``seconds`` [s]."""
    report.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, __file__, str(report)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=cwd,
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(calls).encode())
        process.stdin.close()
        said = process.stderr.read().decode("utf-8", "replace")
        process.stderr.close()
        process.wait()
    finally:
        timer.cancel()
    lines = report.read_bytes().splitlines() if report.exists() else []
    return Seen(tuple(msgspec.json.decode(line, type=Command) for line in lines), late.is_set(), said)


def _peak() -> int:
    """The most memory that this process has had [bytes]. Not from ``getrusage`` where that can be helped: on Linux that
    counts what the parent had when it forked."""
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


class _Meter:
    """Counts at the seam of the store."""

    def __init__(self) -> None:
        self.opened = self.read = self.listed = 0

    def attach(self) -> None:
        from stateline.store.local.filesystem import Filesystem

        open_file, names, read = Filesystem.open_file, Filesystem.names, os.read

        def counted_open(fs: Any, *arguments: Any) -> int:
            self.opened += 1
            return open_file(fs, *arguments)

        def counted_names(fs: Any, *arguments: Any) -> Any:
            self.listed += 1
            return names(fs, *arguments)

        def counted_read(fd: int, length: int) -> bytes:
            data = read(fd, length)
            self.read += len(data)
            return data

        setattr(Filesystem, "open_file", counted_open)  # noqa: B010 (an assignment would ask for an ignore)
        setattr(Filesystem, "names", counted_names)  # noqa: B010
        setattr(os, "read", counted_read)  # noqa: B010


def main(report: str) -> None:
    from stateline.cli.main import run

    meter = _Meter()
    meter.attach()
    with open(report, "ab", buffering=0) as told:
        for words in json.loads(sys.stdin.buffer.read()):
            sys.stdin = io.TextIOWrapper(io.BytesIO())
            out = io.BytesIO()
            before = (meter.opened, meter.read, meter.listed)
            with contextlib.redirect_stdout(io.TextIOWrapper(out)):
                code = run([*words, "--format", "json"])
                data = out.getvalue()
            after = (meter.opened, meter.read, meter.listed)
            counts = [now - then for now, then in zip(after, before, strict=True)]
            # A list of 100,000 would only be parsed to be thrown away.
            document = json.loads(data) if len(data) < 1_000_000 else len(data)
            told.write(msgspec.json.encode(Command(code, document, *counts, _peak())) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
