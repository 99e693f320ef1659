"""Help and version on a standard output that is full or closed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import BinaryIO

import pytest
from each_case import Failures

WORDS = [["--help"], ["execute", "--help"], ["--version"]]
CALLS = [(words, unbuffered) for words in WORDS for unbuffered in ("", "1")]


def call(words: list[str], unbuffered: str, stdout: BinaryIO | int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "stateline", *words],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_help_and_version_on_a_full_disk_are_an_error() -> None:
    failures = Failures()
    for words, unbuffered in CALLS:
        with failures.case(words, unbuffered):
            with open("/dev/full", "wb") as full:
                done = call(words, unbuffered, full)
            text = done.stderr.decode()
            assert done.returncode == 1
            assert "No space left on device" in text
            assert text.count("error:") == text.count("hint:") == 1
            assert "Traceback" not in text
    failures.check()


def test_help_and_version_into_a_closed_pipe_are_quiet() -> None:
    failures = Failures()
    for words, unbuffered in CALLS:
        with failures.case(words, unbuffered):
            read, write = os.pipe()
            os.close(read)
            try:
                done = call(words, unbuffered, write)
            finally:
                os.close(write)
            assert (done.returncode, done.stderr) == (0, b"")
    failures.check()
