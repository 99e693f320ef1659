"""Many processes save to one scope although the lock does not hold, as on a broken network mount: nothing is ever
overwritten or taken away, and what comes to lie beside the chain is named."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress.invariants import lines_of
from stress.oracle import Chain, require
from stress.processes.fork_server import ForkServer

from stateline import Store
from stateline.bundle import naming
from stateline.errors import ConflictError, IntegrityError, StorageError
from stateline.verify.chain import ChainCheck
from stateline.verify.checker import verify
from stateline.verify.findings import Finding
from stateline.verify.objects import ObjectCheck

if TYPE_CHECKING:
    from stress.processes.kills import Say

KEY = "notes:torture"
_STALL = 120.0
"""[s] without an attempt at a save after which something must be wrong."""


def write(state_dir: str, writer: int, each: int) -> None:
    """Save the numbers up to ``each`` (exclusive) with a lock that everybody has at once. Prints the number and the
    sha of each acknowledged save, and ``refused`` and the error's type for each other attempt, which is repeated."""
    import filelock

    # The only thing that is changed. Whoever asks for the lock is told that it is theirs.
    filelock.lock_descriptor = lambda *words, **options: True  # type: ignore[assignment]
    scope = Store.open(state_dir).scope(KEY)
    for number in range(each):
        while True:
            try:
                saved = scope.save({"writer": writer, "number": number, "text": f"{writer}:{number} " * 1200})
            except (ConflictError, StorageError, IntegrityError) as error:
                # Between two looks of a writer at an empty scope, others may have saved: it sees snapshots without a
                # pointer, and refuses. With a lock that holds, it would see damage.
                if isinstance(error, IntegrityError) and scope.head() is None:
                    raise
                os.write(1, f"refused {type(error).__name__}\n".encode())
                continue
            os.write(1, f"{number} {saved.sha256}\n".encode())
            break


class Watch:
    """Remembers the digest of every snapshot and object when it is first seen."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._seen: dict[str, str] = {}

    def look(self) -> None:
        """Read what is new."""
        for path in self._files():
            name = str(path.relative_to(self._state_dir))
            if name not in self._seen:
                self._seen[name] = hashlib.sha256(path.read_bytes()).hexdigest()

    def require_unchanged(self) -> int:
        """Read all of it again; how many files there are. Raises ``ViolationError`` for one that changed or went
        away."""
        self.look()
        there = {str(path.relative_to(self._state_dir)): path for path in self._files()}
        for name, sha in self._seen.items():
            require(name in there, f"{name} was there and is gone")
            require(hashlib.sha256(there[name].read_bytes()).hexdigest() == sha, f"{name} was overwritten")
        return len(there)

    def _files(self) -> list[Path]:
        found = list(self._state_dir.glob("objects/??/*"))
        return found + list(self._state_dir.glob("?" * 64 + "/state-*"))


def campaign(root: Path, *, writers: int, each: int, until: float, say: Say) -> dict[str, Any]:
    """Let ``writers`` processes save ``each`` snapshots to one scope at once, without a lock; after ``until``
    [monotonic s] they are ended. Gives the summary. Raises ``ViolationError``."""
    began = time.monotonic()
    root.mkdir(parents=True)
    state_dir = root / "state dir"
    said = [root / f"said {name}" for name in range(writers)]
    watch = Watch(state_dir)
    with ForkServer.opened() as server:
        for name in range(writers):
            server.start(name, said[name], "unlocked", "write", str(state_dir), name, each)
        codes = _watched(server, watch, said, until=until, say=say)
    require(codes <= {0, -9}, f"the writers ended with {codes}")
    files = watch.require_unchanged()
    summary = _judge(state_dir, said)
    return {"writers": writers, **summary, "files": files, "seconds": round(time.monotonic() - began, 1)}


def _watched(server: ForkServer, watch: Watch, said: list[Path], *, until: float, say: Say) -> set[int]:
    """Look on until all writers have ended; their exit codes."""
    size, changed, told = -1, time.monotonic(), 0
    while True:
        codes = [server.code(name) for name in range(len(said))]
        running = [name for name, code in enumerate(codes) if code is None]
        if not running:
            return {code for code in codes if code is not None}
        now = time.monotonic()
        if now > until:
            for name in running:
                server.kill(name)
        watch.look()
        now_size = sum(file.stat().st_size for file in said if file.exists())
        size, changed = now_size, changed if now_size == size else now
        require(now - changed <= _STALL, f"nobody tried anything for {_STALL:g} s")
        lines = sum(len(lines_of(file)) for file in said)
        if lines // 500 > told // 500:
            say(f"{lines} attempts")
        told = lines
        time.sleep(0.05)


def _judge(state_dir: Path, said: list[Path]) -> dict[str, Any]:
    """All that was acknowledged is on disk; what is not on the chain is named as what it is."""
    lines = [line for file in said for line in lines_of(file)]
    refused = Counter(why for what, why in lines if what == "refused")
    told = {sha for what, sha in lines if what != "refused"}
    chain = Chain.read(state_dir, KEY)
    gone = told - chain.files.keys()
    require(not gone, f"acknowledged and not on disk: {gone}")
    for sha in chain.files:
        parent = chain.parent_of(sha)
        require(parent is None or parent in chain.files, f"{chain.names[sha]} follows what is not there")
    lost = told - chain.on_chain.keys()
    findings = _findings(state_dir)
    forks = _require_named(chain, findings)
    report = verify(Store.open(state_dir))
    unexpected = {f.code for f in findings} - {"temporary", "unacknowledged", "forked", "orphaned"}
    require(not unexpected, f"verify found {unexpected}")
    require(report.snapshots == len(chain.files), f"verify read {report.snapshots} snapshots of {len(chain.files)}")
    return {
        "acknowledged": len(told),
        "on the chain": len(chain.order),
        "beside it": len(chain.loose),
        "acknowledged, beside it": len(lost),
        "refused": dict(refused),
        "forks named": forks,
        "findings": dict(Counter(finding.code for finding in findings)),
    }


def _findings(state_dir: Path) -> list[Finding]:
    """Return the findings of ``verify`` in the scope, before harmless ones are merged."""
    store = Store.open(state_dir)
    return ChainCheck(store, naming.scope_hash(KEY), ObjectCheck(store, None)).run().findings


def _require_named(chain: Chain, findings: list[Finding]) -> int:
    """Require that each fork of the chain is reported, with both snapshots unless the second chain grew (orphaned);
    return the number of forks."""
    child = {chain.parent_of(sha): chain.names[sha] for sha in chain.order}
    reported = [finding.message + finding.path for finding in findings if finding.code != "temporary"]
    grown = any(finding.code == "orphaned" for finding in findings)
    forks = 0
    for sha in chain.loose:
        parent = chain.parent_of(sha)
        if parent in child:
            forks += 1
            named = grown or any(chain.names[sha] in text and child[parent] in text for text in reported)
            require(named, f"verify does not say that {chain.names[sha]} and {child[parent]} follow one snapshot")
    return forks
