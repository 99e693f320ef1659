"""Every loader against documents made hostile: typed errors only, and what is read is written back.

The campaign of ``scripts/torture`` runs the same loaders for longer, guided by coverage. Here a few hundred documents
for each, and those that have brought down other people's readers.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from random import Random

from each_case import for_each
from hypothesis import given, note, settings
from hypothesis import strategies as st
from stress.input import fuzz_worker, fuzzing
from stress.input.loaders import LOADERS
from stress.input.mutations import LONGEST, mutate
from stress.oracle import ViolationError

NAMES = sorted(LOADERS)
SEEDS = {name: loader.seeds() for name, loader in LOADERS.items()}
SIZE = 16 * 1024
DEEP = [b"[", b'{"a":', b"(", b"{", b"- ", b"[[", b'[{"":', b"a.", b"!", b"-", b"&a ", b"? ", b"allOf:\n ", b"{{"]
MANY = [b"[1],", b'"\\u0041",', b"9", b"a = 1\n", b"[[a]]\n", b"[a.b]\nc.d=1\n", b"'", b'"', b"\\", b"\n", b"\r\n",
        b"#\n", b'"""', b"{{a}} ", b"1+", b"a&&", b"x: y\n", b"a=[", b"\0", b"\xff", b"%", b"~", b"@",
        b"\t", b"/"]  # fmt: skip


def test_a_loader_takes_every_good_document() -> None:
    def check(name: str) -> None:
        seeds = LOADERS[name].seeds()
        assert seeds
        for data in seeds:
            LOADERS[name].feed(data)

    for_each(check, NAMES)


@settings(max_examples=40)
@given(rng=st.randoms(use_true_random=False))
def test_loaders_meet_changed_documents_with_typed_errors_only(rng: Random) -> None:
    for name, loader in LOADERS.items():
        data = mutate(rng.choice(SEEDS[name]), rng, SEEDS[name])
        note(f"{name}: {data!r}")
        loader.feed(data)


@settings(max_examples=25)
@given(data=st.binary(max_size=64) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_every_loader_meets_any_bytes_with_typed_errors_only(data: bytes) -> None:
    for loader in LOADERS.values():
        loader.feed(data)


def test_bombs_of_depth_and_of_repetition_take_bounded_time_and_memory() -> None:
    """In a process of its own where native code reads: what it does at a depth that it cannot stand is not known."""

    def bombs(name: str) -> list[bytes]:
        documents = [piece * (SIZE // len(piece)) for piece in (*DEEP, *MANY)]
        return documents + [
            seed[: len(seed) // 2] + piece * 600 + seed[len(seed) // 2 :]
            for seed in LOADERS[name].seeds()[:1]
            for piece in DEEP
        ]

    def check(name: str) -> None:
        for data in bombs(name):
            begun = time.process_time()
            LOADERS[name].feed(data)
            assert time.process_time() - begun < 5  # a hundred times what is measured: what is above hangs

    native = [name for name in NAMES if LOADERS[name].native]
    for_each(check, [name for name in NAMES if name not in native])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *native],
        input=b"\x1d\x1d".join(b"\x1e\x1e".join(bombs(name)) for name in native),
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]


CHILD = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(fuzz_worker.__file__).parents[2])!r})
from stress.input.loaders import LOADERS
resource.setrlimit(resource.RLIMIT_AS, ({fuzz_worker.ADDRESS_SPACE}, {fuzz_worker.ADDRESS_SPACE}))
for name, bombs in zip(sys.argv[1:], sys.stdin.buffer.read().split(b"\\x1d\\x1d"), strict=True):
    print(name, file=sys.stderr, flush=True)  # the last one is to blame
    for data in bombs.split(b"\\x1e\\x1e"):
        signal.setitimer(signal.ITIMER_PROF, 20)  # of a processor: a busy machine changes nothing
        LOADERS[name].feed(data)
"""


def test_a_document_takes_memory_in_proportion_to_its_size() -> None:
    def check(name: str) -> None:
        LOADERS[name].feed(b"[]")
        peaks = []
        for size in (SIZE // 4, SIZE):
            worst = 0
            for piece in (b"[],", b'"",', b"1,", b'{"":[]},'):
                tracemalloc.start()
                LOADERS[name].feed(b"[" + piece * (size // len(piece)) + b"0]")
                worst = max(worst, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            peaks.append(worst)
        assert peaks[1] < 8 * peaks[0]  # four times the document: four times the memory, and some room
        assert peaks[1] < SIZE * 400 + (8 << 20)

    for_each(check, ["canonical files", "JSON text", "answers", "snapshots", "objects", "pointers"])


def test_parsing_takes_no_quadratic_number_of_steps() -> None:
    """Steps of the interpreter are counted, not seconds: a busy machine changes nothing."""

    def check(name: str) -> None:
        forms = [b"a = 1\n", b"- [x, {y: z}]\n", b"[[t]]\nb = 1\n", b'"k": "v",\n', b"x = [1, 2]\n", b"k.l.m = 1\n"]
        for form in forms:
            few, many = (_steps(name, form * count) for count in (60, 240))
            assert many < 8 * few + 20_000, form

    for_each(check, ["machines in YAML", "machines in TOML", "machines in JSON", "machines in Python", "expressions"])


def _steps(name: str, data: bytes) -> int:
    count = 0

    def step(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    LOADERS[name].feed(data)
    sys.setprofile(step)
    try:
        LOADERS[name].feed(data)
    finally:
        sys.setprofile(None)
    return count


def test_mutation_gives_the_same_documents_for_the_same_seed_and_never_long_ones() -> None:
    seeds = LOADERS["snapshots"].seeds()
    first, second = ([mutate(seeds[0], rng, seeds) for _ in range(300)] for rng in (Random("a"), Random("a")))
    assert first == second
    assert len(set(first)) > 250
    assert max(map(len, first)) <= LONGEST


def test_the_campaign_feeds_loaders_in_processes_of_their_own_and_counts(tmp_path: Path) -> None:
    done = fuzzing.campaign(
        tmp_path, "1", seconds=1.0, until=time.monotonic() + 60, say=lambda text: None, only=["pointers"], by="loop"
    )
    assert done["executions"] == done["by_loader"]["pointers"]["executions"] > 10


PLANTED = {
    "an error that is not typed": "return {}[data[:1]] if data.startswith(b'{') else None",
    "a process that ends": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV) if data.startswith(b'{') else None",
}


def test_the_campaign_finds_a_planted_fault_and_keeps_the_input(tmp_path: Path) -> None:
    """With a reader of pointers that is broken: in a copy of the tests' own tree."""

    def check(tmp_path: Path, body: str) -> None:
        import shutil

        tests = Path(fuzz_worker.__file__).parents[2]
        shutil.copytree(tests / "stress", tmp_path / "tests" / "stress", ignore=shutil.ignore_patterns("__pycache__"))
        loaders = tmp_path / "tests" / "stress" / "input" / "loaders.py"
        text = loaders.read_text()
        head = "def pointer(data: bytes) -> None:\n"
        assert head in text
        loaders.write_text(text.replace(head, f"{head}    {body}\n"))
        program = (
            "import sys, time, pathlib; sys.path.insert(0, sys.argv[1]); from stress.oracle import ViolationError\n"
            "from stress.input import fuzzing\n"
            "try: fuzzing.campaign(pathlib.Path(sys.argv[2]), '1', seconds=5, until=time.monotonic() + 60, say=print,\n"
            "    only=['pointers'], by='loop')\n"
            "except ViolationError as violated: print(violated); sys.exit(7)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "tests"), str(tmp_path / "out")],
            capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE":
            "1"},
        )  # fmt: skip
        assert done.returncode == 7, done.stderr
        assert (tmp_path / "out" / "pointers" / "finding").read_bytes().startswith(b"{")

    for_each(check, PLANTED.values(), root=tmp_path)


def test_a_broken_promise_is_an_error_even_without_assertions() -> None:
    """``python -O`` removes assertions; loaders raise ``ViolationError``."""
    for module in (fuzz_worker.__file__, fuzzing.__file__, sys.modules[LOADERS["pointers"].feed.__module__].__file__):
        tree = ast.parse(Path(str(module)).read_text())
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    assert issubclass(ViolationError, AssertionError)
