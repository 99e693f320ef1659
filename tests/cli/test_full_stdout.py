"""Help and version, which pass no function that writes results, where standard output takes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import BinaryIO

import pytest

WORDS = [["--help"], ["execute", "--help"], ["--version"]]
UNBUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


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
@UNBUFFERED
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_help_and_version_on_a_full_disk_are_a_typed_error(words: list[str], unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = call(words, unbuffered, full)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert said.startswith("error: cannot write to standard output: No space left on device")
    assert said.count("error:") == said.count("hint:") == 1
    assert "Traceback" not in said
    assert "bug" not in said


@UNBUFFERED
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_help_and_version_into_a_closed_pipe_are_quiet(words: list[str], unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = call(words, unbuffered, write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
