"""A writer whose power is cut: it tells a scenario on a real file system, and prints what was acknowledged.

As a program (``doomed.py ORDERS``, a JSON document) it prints one JSON line for each acknowledgement, in one write, and
one for how it ended. With ``at`` it cuts the power itself, right before that call on the seam, and continues: what it
meets then must be a typed error.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
from stress.power.images import power_off, settle
from stress.scenarios import CHANGING, EPOCH, SCENARIOS, Note, Place

from stateline import Artifact
from stateline.errors import StatelineError
from stateline.store.local.filesystem import Directory, Filesystem
from stateline.store.protocol import FAST, FULL

KEYS = ("notes:stream", "notes:other", "run:stream")
"""Scopes of the growing stores."""


class Orders(msgspec.Struct, frozen=True):
    """Orders for a writer. ``scenario`` is the name of a scenario or "stream", ``switch`` where the power is cut and
    how (``flag``), ``at`` before which call (0: not by the writer). ``seed`` and ``saves`` are for a stream, ``mutant``
    is a name of :data:`MUTANTS`."""

    scenario: str
    state_dir: str
    switch: str
    flag: int = 2
    at: int = 0
    mutant: str = ""
    seed: str = ""
    saves: int = 0
    durability: str = FULL


class Ending(msgspec.Struct, frozen=True):
    """End of a writer: ``what`` is ``prepared`` or ``cut`` (it continues), ``done`` or ``error`` (of this name), after
    so many calls on the seam since it was prepared."""

    what: str
    calls: int
    name: str = ""
    message: str = ""


class Power:
    """Counts calls, and cuts the power before the one it was told; ``hear`` is told so first."""

    def __init__(self, orders: Orders, hear: Callable[[Ending], None]) -> None:
        self.orders = orders
        self.hear = hear
        self.calls = 0
        self.armed = False

    def tick(self) -> None:
        self.calls += 1
        if self.armed and self.calls == self.orders.at:
            self.hear(Ending("cut", self.calls))
            power_off(self.orders.switch, self.orders.flag)


class Watched(Filesystem):
    """The seam as it is, each changing call of which asks the power first."""

    def __init__(self, power: Power) -> None:
        self.power = power


def _watched(name: str) -> Callable[..., Any]:
    plain = getattr(Filesystem, name)

    def call(self: Watched, *arguments: Any) -> Any:
        self.power.tick()
        return plain(self, *arguments)

    return call


for _name in CHANGING:
    setattr(Watched, _name, _watched(_name))


class NoFileSync(Watched):
    """Bytes of files are never synced."""

    def sync_file(self, fd: int) -> None:
        self.power.tick()


class NoDirectorySync(Watched):
    """Names are never synced."""

    def sync_directory(self, directory: Directory) -> None:
        self.power.tick()


class NoSync(NoFileSync, NoDirectorySync):
    """Nothing is synced."""


class LateSync(Watched):
    """Names are synced when the next file is made: what was acknowledged is durable only then."""

    _owed: tuple[int, ...] = ()

    def sync_directory(self, directory: Directory) -> None:
        LateSync._owed += (os.dup(directory.fd),)

    def create(self, directory: Directory, name: str) -> int:
        owed, LateSync._owed = LateSync._owed, ()
        for fd in owed:
            os.fsync(fd)
            os.close(fd)
        return super().create(directory, name)


class InPlace(Watched):
    """The pointer is written where it is, over the old one, and synced."""

    def rename(self, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        if target != "latest.json":
            return super().rename(source_dir, source, target_dir, target)
        data, _ = self.read(source_dir, source, 4096)
        self.unlink(source_dir, source)
        self.power.tick()
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=target_dir.fd)
        self.write(fd, data)
        self.sync_file(fd)
        self.close_file(fd)
        return None


MUTANTS: dict[str, type[Watched]] = {
    "": Watched,
    "no file sync": NoFileSync,
    "no directory sync": NoDirectorySync,
    "no sync": NoSync,
    "late directory sync": LateSync,
    "pointer in place": InPlace,
}
"""ViolationError commits by name; "" is the real one."""


def stream(place: Place, orders: Orders) -> None:
    """Save many snapshots to some scopes, small and large, with objects, artifacts and a list that grows. A writer
    whose durability is ``fast`` makes every tenth save ``full``, or so."""
    rng = Random(orders.seed)
    stores = {name: place.open(name) for name in (FULL, FAST)}
    for number in range(orders.saves):
        full = orders.durability == FULL or rng.random() < 0.1
        scope = stores[FULL if full else FAST].scope(rng.choice(KEYS))
        text = f"{orders.seed}:{number} " * rng.choice((2, 2, 500, 4000))
        state: dict[str, Any] = {"number": number, "text": text, "same": "y" * 6000}
        if rng.random() < 0.2:
            state["raw"] = Artifact(rng.randbytes(rng.choice((10, 5000, 50_000))), "image/png")
        if rng.random() < 0.2:
            state["log"] = [{"said": f"{index} {text[:40]}" * 3} for index in range(rng.randrange(200))]
        scope.save(state, wait=60.0)


def tell(orders: Orders, hear: Callable[[Note | Ending], None], root: Path) -> Ending:
    """Tell the scenario; each acknowledgement is heard. ``root`` is a directory for other files, which keeps its
    power."""
    power = Power(orders, hear)
    fs = MUTANTS[orders.mutant]
    # A store that grows is written by one after the other, and of what a crash left beside the chain `verify` asks
    # whether it is older than what came after it.
    began = time.time_ns() if orders.scenario == "stream" else EPOCH
    place = Place(orders.state_dir, root, lambda: fs(power), hear, began)
    if orders.scenario == "stream":
        power.armed = True
        act: Callable[[Place], None] = lambda place: stream(place, orders)  # noqa: E731
    else:
        SCENARIOS[orders.scenario].prepare(place)
        settle(str(Path(orders.state_dir).parent))
        settle(orders.switch)
        act = SCENARIOS[orders.scenario].act
    power.calls, power.armed = 0, True
    hear(Ending("prepared", 0))
    try:
        act(place)
        # One call more than there is: the power goes when all is acknowledged.
        power.tick()
    except StatelineError as error:
        return Ending("error", power.calls, error.code, error.message)
    return Ending("done", power.calls)


def main(words: str) -> int:
    """Follow the orders. Gives 0 if the scenario was told to its end, 1 after a typed error."""
    orders = msgspec.json.decode(words, type=Orders)

    def hear(what: Note | Ending) -> None:
        os.write(1, msgspec.json.encode(what) + b"\n")

    with tempfile.TemporaryDirectory() as root:
        ending = tell(orders, hear, Path(root))
    hear(ending)
    return int(ending.what == "error")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
