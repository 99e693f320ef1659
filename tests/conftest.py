"""Fixtures and settings of every test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Makes what several directories of tests share importable (`from stress.processes import kills`); it is no
# installed package.
sys.path.insert(0, str(Path(__file__).resolve().parent))

# What is started in the background ignores these (`&` in a script, `nohup`), and so would all that a test starts.
if sys.platform != "win32":
    for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(_number) is signal.SIG_IGN:
            signal.signal(_number, _usual)

# No deadline, and no complaint about slow generation: examples touch the disk, and a busy machine is not a defect.
# Derandomized on a build server: the same commit gives the same answer.
_PATIENT = [HealthCheck.too_slow]
settings.register_profile("local", deadline=None, suppress_health_check=_PATIENT)
settings.register_profile("ci", deadline=None, suppress_health_check=_PATIENT, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# No test calls a real model: without a key nothing is sent to a provider's own endpoint, and without these base URLs
# and names tests reach only the servers that they start.
for _name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
    os.environ.pop(_name, None)
for _name in ("STATELINE_MODEL", "STATELINE_BASE_URL"):
    os.environ.pop(_name, None)


class Disk:
    """A small file system of its own, mounted at ``path``."""

    SIZE = 1 << 20

    def __init__(self, path: Path) -> None:
        self.path = path

    def leave(self, free: int) -> None:
        """Leave ``free`` [bytes], in whole pages."""
        found = os.statvfs(self.path)
        (self.path / "ballast").write_bytes(b"\0" * max(0, found.f_bavail * found.f_frsize - free))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A :class:`Disk` of 1 MiB; the test is skipped where none can be mounted."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if sys.platform != "linux" or os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("only root can mount a small disk, on Linux")
    place = tmp_path / "disk"
    place.mkdir()
    options = f"size={Disk.SIZE},mode=0700"
    done = subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting does not work here: {done.stderr.decode(errors='replace').strip()[:100]}")
    yield Disk(place)
    subprocess.run([umount, str(place)], check=True)


JQ_MEMO = """#!/bin/sh
# usage: jq OPTIONS FILTER FILE: answers from memory what was answered before. Other calls, and errors, go to {jq}.
[ $# -eq 3 ] && [ -f "$3" ] && key=$(printf '%s\\n' "$1" "$2" | sha256sum - "$3") || exec '{jq}' "$@"
set -- "$@" $key
answer=${{0%/*}}/$4-$6
[ -e "$answer" ] && exec cat "$answer"
'{jq}' "$1" "$2" "$3" > "$answer.$$"
code=$?
cat "$answer.$$"
[ $code -ne 0 ] || mv "$answer.$$" "$answer"
exit $code
"""


@pytest.fixture(scope="session")
def jq_memo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a ``jq`` that starts the real one once for each combination of options, filter and content."""
    place = tmp_path_factory.mktemp("jq")
    if jq := shutil.which("jq"):
        (place / "jq").write_text(JQ_MEMO.format(jq=jq))
        (place / "jq").chmod(0o755)
    return place


@pytest.fixture(scope="module")
def jq_memo(jq_memo_directory: Path) -> Iterator[None]:
    """Find the ``jq`` with a memory first. Scripts of auditors ask the same about hundreds of copies of one store, and
    jq 1.6 takes 20 ms to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(jq_memo_directory), os.environ.get("PATH", os.defpath)]))
        yield
