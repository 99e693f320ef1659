"""Number of syncs of one save, counted by strace where it can run, and always at the seam.

``SYNCS`` are the numbers that ``docs/format.md`` states.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stateline import Store
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.protocol import Durability

SYNCS = {
    # snapshot, its directory, pointer, its directory again
    "a save": 4,
    # the object, its directory (which is there and in use)
    "each new object": 2,
    # the same from another writer, which may have synced nothing
    "each object that is there": 2,
    # objects/, where objects/1a is made
    "the first object under its first two digits": 1,
    # the state dir, where the scope's directory is made
    "the first save of a scope": 1,
    # the parent of the state dir, its parent (which another process may have made), stateline.json, the state dir
    "the first save of a store": 4,
    # the state dir, where objects/ is made
    "the first object of a store": 1,
}
FAST = {**SYNCS, "a save": 0, "each new object": 0, "each object that is there": 0}
"""Syncs of what is made once, with either durability."""

WORK = """
import os, sys
from stateline import Store
from stateline.store.local.backend import LocalBackend
store = Store(LocalBackend(sys.argv[1], durability=sys.argv[2]))
for number, (key, text) in enumerate(zip(sys.argv[3::2], sys.argv[4::2])):
    os.access(f"/save-{number}", os.F_OK)
    store.scope(key).save({"n": number, "text": text * 5000})
"""


def twins() -> tuple[str, str]:
    """Two letters whose objects share their first two digits: the second finds the directory of the first."""
    import hashlib

    seen: dict[str, str] = {}
    for number in range(0x4E00, 0x9FFF):
        first = hashlib.sha256(f'"{chr(number) * 5000}"'.encode()).hexdigest()[:2]
        if first in seen:
            return seen[first], chr(number)
        seen[first] = chr(number)
    raise AssertionError("two of 20,000 digests share their first byte")


ONE, TWIN = twins()
STEPS = [
    ("notes:a", "", ["a save", "the first save of a scope", "the first save of a store"]),
    ("notes:a", "", ["a save"]),
    ("notes:b", "", ["a save", "the first save of a scope"]),
    (
        "notes:a",
        ONE,
        ["a save", "each new object", "the first object under its first two digits", "the first object of a store"],
    ),
    ("notes:a", ONE, ["a save"]),
    ("notes:a", TWIN, ["a save", "each new object"]),
]
EXPECTED: dict[Durability, list[int]] = {
    "full": [sum(SYNCS[part] for part in parts) for _, _, parts in STEPS],
    "fast": [sum(FAST[part] for part in parts) for _, _, parts in STEPS],
}
both = pytest.mark.parametrize("durability", ["full", "fast"])


@both
def test_the_seam_counts_the_documented_syncs(tmp_path: Path, durability: Durability) -> None:
    class Counting(Filesystem):
        count = 0

        def sync_file(self, fd: int) -> None:
            Counting.count += 1

        def sync_directory(self, directory: Directory) -> None:
            Counting.count += 1

    store = Store(LocalBackend(str(tmp_path / "s"), Counting(), durability=durability))
    counted = []
    for number, (key, text, _) in enumerate(STEPS):
        Counting.count = 0
        store.scope(key).save({"n": number, "text": text * 5000})
        counted.append(Counting.count)
    assert counted == EXPECTED[durability]
    Counting.count = 0
    again = Store(LocalBackend(str(tmp_path / "s"), Counting(), durability=durability))
    again.put_value(ONE * 5000)
    assert Counting.count == (SYNCS if durability == "full" else FAST)["each object that is there"]


@both
@pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")
def test_strace_counts_the_documented_syncs(tmp_path: Path, durability: Durability) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([strace, "-f", "-o", os.devnull, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace cannot run here: {probe.stderr.decode()[:100]}")
    trace = tmp_path / "trace"
    args = [durability, *(word for key, text, _ in STEPS for word in (key, text))]
    calls = "trace=fsync,fdatasync,sync,syncfs,msync,sync_file_range,access,faccessat,faccessat2"
    command = [strace, "-f", "-o", str(trace), "-e", calls, sys.executable, "-c", WORK, str(tmp_path / "s"), *args]
    subprocess.run(command, check=True, timeout=60)
    counted: list[int] = []
    for line in trace.read_text().splitlines():
        if '"/save-' in line:
            counted.append(0)
        elif "sync" in line and counted:
            counted[-1] += 1
    assert counted == EXPECTED[durability]
