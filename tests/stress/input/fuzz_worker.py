"""The process that feeds one loader: ``fuzzed.py LOADER ENGINE SEED SECONDS PLACE``.

ENGINE is ``atheris`` (guided by coverage) or ``loop`` (mutations alone). In the directory PLACE it keeps ``progress``
(how many inputs there were, the slowest [s], the input at hand: also known when the process is killed) and, when a
promise is broken, ``finding`` (the input, made as small as it could be) and ``trace``. It then exits with 1.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

LONGEST = 64 * 1024
SECONDS_EACH = 20
"""Far more than any input of ``LONGEST`` bytes may take [s]: what is above hangs, or takes quadratic time."""
ADDRESS_SPACE = 3 << 30
MEMORY = 768
"""Far more memory than such an input may take [MiB]."""
HEAD = struct.Struct("<QdI")


class Watched:
    """A loader whose inputs are noted before they are read."""

    def __init__(self, feed: Any, place: Path) -> None:
        self._feed = feed
        self._place = place
        self._count, self._slowest = 0, 0.0
        with open(place / "progress", "w+b") as file:
            file.truncate(HEAD.size + LONGEST)
            self._page = mmap.mmap(file.fileno(), HEAD.size + LONGEST)

    def __call__(self, data: bytes) -> None:
        data = data[:LONGEST]
        self._page[HEAD.size : HEAD.size + len(data)] = data
        self._note(len(data))
        begun = time.monotonic()
        try:
            self._feed(data)
        except BaseException as error:  # noqa: BLE001 (whatever is not typed is the finding)
            self._found(data, error)
        self._count += 1
        took = time.monotonic() - begun
        if took > self._slowest:
            self._slowest = took
            (self._place / "slowest").write_bytes(data)
        self._note(0)

    def _note(self, size: int) -> None:
        HEAD.pack_into(self._page, 0, self._count, self._slowest, size)

    def _found(self, data: bytes, error: BaseException) -> None:
        (self._place / "finding").write_bytes(data)
        (self._place / "trace").write_text("".join(traceback.format_exception(error)), "utf-8", "backslashreplace")
        small = self._smaller(data, _kind(error))
        (self._place / "finding").write_bytes(small)
        os._exit(1)

    def _smaller(self, data: bytes, kind: tuple[str, ...]) -> bytes:
        """A smaller input with the same end, found by leaving pieces out."""
        until = time.monotonic() + 20
        size = max(1, len(data) // 2)
        while size and time.monotonic() < until:
            at = 0
            while at < len(data) and time.monotonic() < until:
                shorter = data[:at] + data[at + size :]
                if self._ends(shorter) == kind:
                    data = shorter
                else:
                    at += size
            size //= 2
        return data

    def _ends(self, data: bytes) -> tuple[str, ...]:
        try:
            self._feed(data)
        except BaseException as error:  # noqa: BLE001 (the same as above)
            return _kind(error)
        return ()


def _kind(error: BaseException) -> tuple[str, ...]:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, last.name, str(last.lineno), str(error)[:20]


def _loop(feed: Watched, seeds: list[bytes], mutate: Any, seed: str, seconds: float) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    rng, until = Random(seed), time.monotonic() + seconds
    changed: deque[bytes] = deque(maxlen=200)
    while time.monotonic() < until:
        # The default action of the alarm ends the process also in the middle of native code.
        signal.setitimer(signal.ITIMER_REAL, SECONDS_EACH)
        data = mutate(rng.choice(changed if changed and rng.random() < 0.5 else seeds), rng, seeds)
        feed(data)
        # Without coverage nobody knows what was worth keeping: some are, and changed again.
        if rng.random() < 0.05 and len(data) < 8192:
            changed.append(data)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _guided(feed: Watched, seeds: list[bytes], mutate: Any, seed: str, seconds: float, place: Path) -> None:
    import atheris

    corpus = place / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds):
        (corpus / str(number)).write_bytes(data)

    def changed(data: bytes, most: int, number: int) -> bytes:
        rng = Random(number)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return bytes(mutate(bytes(data), rng, seeds)[:most])

    options = {
        "max_total_time": max(1, int(seconds)),
        "seed": Random(seed).randrange(1, 2**31),
        "max_len": LONGEST,
        "timeout": SECONDS_EACH,
        "rss_limit_mb": MEMORY,
        "verbosity": 0,
        "artifact_prefix": f"{place}/native-",
    }
    words = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *words, str(corpus)], feed, custom_mutator=changed)
    atheris.Fuzz()


def main() -> None:
    name, engine, seed, seconds, place = sys.argv[1:]
    if engine == "atheris":
        import atheris

        instrumented: Any = atheris.instrument_imports(include=["stateline"], enable_loader_override=False)
    else:
        instrumented = contextlib.nullcontext()
    with instrumented:
        from stress.input.loaders import LOADERS
        from stress.input.mutations import mutate
    loader = LOADERS[name]
    feed, seeds = Watched(loader.feed, Path(place)), loader.seeds()
    for data in seeds:
        feed(data)
    if engine == "atheris":
        _guided(feed, seeds, mutate, seed, float(seconds), Path(place))
    else:
        _loop(feed, seeds, mutate, seed, float(seconds))


if __name__ == "__main__":
    main()
