"""Many processes save to one scope while one after the other is killed: what was acknowledged stays, in one chain.

Run as a program it is one writer: ``saves.py STATE_DIR WRITER FIRST LAST`` prints each snapshot's number and sha once
it is acknowledged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from stateline import Store

if TYPE_CHECKING:
    from campaigns.kills import Say

KEY = "notes:torture"
EVERY = 0.05
"""[s] from kill to kill."""
_STALL = 60.0
"""[s] without a finished save after which something must be wrong."""


def write(state_dir: str, writer: int, first: int, last: int) -> None:
    """Save the numbers ``first`` to ``last`` (exclusive), each with its writer and something that becomes an object."""
    scope = Store.open(state_dir).scope(KEY)
    for number in range(first, last):
        saved = scope.save({"writer": writer, "number": number, "text": f"{writer}:{number} " * 600}, wait=120.0)
        # One write: a kill cuts before or after the line, never in it.
        os.write(1, f"{number} {saved.sha256}\n".encode())


class Writer:
    """A writer that is started again, after its last acknowledged save, whenever it was killed."""

    def __init__(self, root: Path, name: int, each: int) -> None:
        self.root = root
        self.name = name
        self.each = each
        self.killed: Counter[int] = Counter()
        self.said = root / f"said {name}"
        self.process: subprocess.Popen[bytes] | None = None

    def acknowledged(self) -> list[tuple[int, str]]:
        """(number, sha) of each save that was acknowledged."""
        if not self.said.exists():
            return []
        lines = [line.split() for line in self.said.read_text().rpartition("\n")[0].splitlines()]
        return [(int(number), sha) for number, sha in lines]

    def start(self) -> None:
        words = [str(self.root / "state dir"), str(self.name), str(len(self.acknowledged())), str(self.each)]
        with self.said.open("ab") as said:
            self.process = subprocess.Popen([sys.executable, __file__, *words], stdout=said)

    def is_done(self) -> bool:
        """Whether it is through; one that died is started again. Raises ``Violated`` if it failed by itself."""
        from campaigns.chain import demand

        code = None if self.process is None else self.process.poll()
        if code is None and self.process is not None:
            return False
        demand(code in (None, 0, -signal.SIGKILL), f"the writer {self.name} ended with {code}")
        if code == 0:
            return True
        self.start()
        return False

    def kill(self) -> bool:
        """SIGKILL it if it runs; whether it died of that."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.process.kill()
        if self.process.wait() != -signal.SIGKILL:
            return False
        # The save that was under way may be on the chain although nobody was told.
        self.killed[len(self.acknowledged())] += 1
        return True


def campaign(root: Path, seed: str, *, writers: int, each: int, until: float, say: Say) -> dict[str, Any]:
    """Let ``writers`` processes save ``each`` snapshots to one scope, one of them killed every ``EVERY`` seconds, until
    ``until`` [monotonic s]; from then on nobody is killed. Gives the summary. Raises ``Violated``."""
    began = time.monotonic()
    root.mkdir(parents=True)
    rng = Random(seed)
    crew = [Writer(root, name, each) for name in range(writers)]
    kills = 0
    done, changed = 0, began
    try:
        while sum(writer.is_done() for writer in crew) < len(crew):  # every one is asked: asking starts it
            time.sleep(EVERY)
            now = time.monotonic()
            if now < until:
                kills += rng.choice(crew).kill()
            through = sum(len(writer.acknowledged()) for writer in crew)
            if through // 200 > done // 200:
                say(f"{through} saves, {kills} kills")
            changed = changed if through == done else now
            done = through
            if now - changed > _STALL:
                raise TimeoutError(f"no save was finished in {_STALL:g} s")
    finally:
        for writer in crew:
            writer.kill()
    return {**_judge(root, crew, each), "kills": kills, "seconds": round(time.monotonic() - began, 1)}


def _judge(root: Path, crew: list[Writer], each: int) -> dict[str, Any]:
    from campaigns.chain import demand, residue_of

    store = Store.open(root / "state dir")
    chain = list(store.scope(KEY).walk())[::-1]
    demand([snapshot.seq for snapshot in chain] == list(range(len(chain))), "the chain has gaps")
    shas = {snapshot.sha256 for snapshot in chain}
    found = Counter((snapshot.state["writer"], snapshot.state["number"]) for snapshot in chain)
    for writer in crew:
        acknowledged = writer.acknowledged()
        demand([number for number, _ in acknowledged] == list(range(each)), f"the writer {writer.name} left out saves")
        lost = [sha for _, sha in acknowledged if sha not in shas]
        demand(not lost, f"acknowledged and lost: {lost}")
        for number in range(each):
            times, most = found[writer.name, number], 1 + writer.killed[number]
            demand(1 <= times <= most, f"save {number} of the writer {writer.name} is there {times} times")
    for snapshot in chain:
        state = store.resolve(snapshot.state)
        demand(state["text"] == f"{state['writer']}:{state['number']} " * 600, f"{snapshot.path} holds something else")
    residue = residue_of(root / "state dir")
    return {"writers": len(crew), "saves": len(crew) * each, "snapshots": len(chain), "residue": dict(residue)}


if __name__ == "__main__":
    write(sys.argv[1], *(int(word) for word in sys.argv[2:5]))
