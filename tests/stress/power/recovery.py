"""Judgement of a store after a real power loss, against the acknowledgements of its writers.

Chains are read by ``stress.oracle``, without the store's own code, which is asked afterwards: what it says
must agree.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

from stress import oracle
from stress.invariants import Acknowledged, require_among, require_only_residue
from stress.oracle import require, require_private
from stress.scenarios import NOTES, OTHER, Note

from stateline import Store
from stateline.bundle.naming import scope_hash
from stateline.cli.main import run
from stateline.errors import StatelineError
from stateline.service.repair import apply_repair
from stateline.store.protocol import FULL
from stateline.verify.checker import verify

_REMOVABLE = (scope_hash(NOTES), scope_hash("run:scenario"))
"""Scopes that the scenario "removal" takes away."""


class Case:
    """A store after a crash: where it is, what was promised of it, which scenario was told. ``exact``: every head was
    heard of, so the chain is what was acknowledged and at most one snapshot more."""

    def __init__(
        self, state_dir: Path, acknowledged: Acknowledged, scenario: str, *, fast: bool = False, exact: bool = True
    ) -> None:
        self.state_dir = state_dir
        self.acknowledged = acknowledged
        self.scenario = scenario
        self.exact = exact
        lacking = any(len(acknowledged.durable(scope)) < len(heads) for scope, heads in acknowledged.heads.items())
        # The scenario "settle" saves fast itself, and such a save may have been under way.
        self.lenient = fast or lacking or scenario == "settle"
        """Return whether something was acknowledged, or under way, that may be damaged."""
        self._tree: oracle.Tree = {}
        # The scenario "repair" has taken the third of five away itself.
        heads = acknowledged.heads.get(scope_hash(NOTES), [])
        self._taken = heads[2] if scenario == "repair" else None

    # -- judging ---------------------------------------------------------------------------------------------------

    def judge(self) -> Counter[str]:
        """Look at the store as the crash left it; nothing is written. Gives what it found: residue by code, and
        ``unheard`` for each head that nobody had been told of. Raises ``ViolationError``."""
        if not self.state_dir.exists():
            require(not self.acknowledged.heads and not self.acknowledged.kept, "the state dir is gone")
            return Counter()
        require_private(self.state_dir)
        self._tree = oracle.tree_of(self.state_dir)
        for name in sorted(self.acknowledged.kept):
            self._require_kept(name)
        found: Counter[str] = Counter()
        if self.lenient or self._half_repaired():
            self._require_promised()
            found.update(self._commands())
        else:
            found["unheard"] = sum(self._require_chain(scope) for scope in self._scopes())
            for scope, heads in self.acknowledged.heads.items():
                present = scope in self._scopes() or self._may_be_gone(scope)
                require(present or not heads, f"the scope {scope} is gone")
        return found + self._verified()

    def recover(self) -> Counter[str]:
        """Do what an operator does next: repair where that is needed, save, verify. What is there then is what the
        acknowledged promises. Gives how often there was something to repair. Raises ``ViolationError``."""
        done: Counter[str] = Counter()
        store = Store.open(self.state_dir)
        if self.state_dir.exists() and not verify(store).ok:
            require(self.lenient or self._half_repaired(), "there is something to repair")
            apply_repair(store, None)
            report = verify(Store.open(self.state_dir))
            require(report.ok, f"after a repair: {report.findings}")
            done["repaired"] += 1
            self.acknowledged.kept = set()
        self._tree = oracle.tree_of(self.state_dir)
        for scope in self._scopes():
            self._require_linked(scope)
        for key in (NOTES, OTHER):
            marked = (self.state_dir / scope_hash(key) / ".tmp-held").exists()
            saved = Store.open(self.state_dir).scope(key).save({"n": "after"})
            self._tree = oracle.tree_of(self.state_dir)
            chain = self.chain(saved.scope)
            require(chain[-1][1] == saved.sha256, f"the save after the crash is not the head: {chain[-1]}")
            litter = [path.name for path in (self.state_dir / saved.scope).iterdir() if path.name.startswith(".tmp-")]
            # btrfs may bring back a name that was synced later without the mark that was made before it; then nobody
            # sweeps, and `verify` continues telling of what lies there.
            require(not litter or not marked, f"the save after the crash left {litter}")
            done["left over without a mark"] += len(litter)
        report = verify(Store.open(self.state_dir))
        require(report.ok, f"after the next save: {report.findings}")
        require_private(self.state_dir)
        self._accept()
        return +done

    # -- what was promised -----------------------------------------------------------------------------------------

    def chain(self, scope: str) -> list[tuple[str, str]]:
        """(file name, sha) of each snapshot from the first to the head, as they were when last looked at. Raises
        ``ViolationError``."""
        return [(link.path, link.sha256) for link in oracle.chain_of(self._tree, scope)]

    def _scopes(self) -> list[str]:
        """The scopes that have a pointer."""
        return sorted(oracle.heads_of(self._tree))

    def _may_be_gone(self, scope: str) -> bool:
        return self.scenario == "removal" and scope in _REMOVABLE

    def _half_repaired(self) -> bool:
        """Return whether the damage that the scenario "repair" begins with may be there still: no head was moved
        yet."""
        heads = self.acknowledged.heads.get(scope_hash(NOTES), [])
        return self.scenario == "repair" and len(heads) <= 5

    def _require_chain(self, scope: str) -> int:
        """The pointer leads to what was acknowledged, or to one after it; how many nobody had been told of."""
        wanted = [(note.name, note.sha256) for note in self.acknowledged.heads.get(scope, []) if note != self._taken]
        chain = self.chain(scope)
        if not self.exact or self.scenario == "repair":
            require_among(wanted, chain, f"acknowledged and not on the chain of {scope}")
            return 0
        require(chain[: len(wanted)] == wanted, f"{scope} holds {chain[-3:]}, acknowledged were {wanted[-3:]}")
        require(len(chain) <= len(wanted) + 1, f"{scope} holds {len(chain)}, acknowledged were {len(wanted)}")
        return len(chain) - len(wanted)

    def _require_promised(self) -> None:
        """Require that everything a ``full`` save made durable exists and is linked, regardless of the pointer."""
        for scope in self.acknowledged.heads:
            wanted = [note for note in self.acknowledged.durable(scope) if note != self._taken]
            if self.scenario == "repair":
                for note in wanted:
                    oracle.snapshot_of(self._tree, scope, note.name, note.sha256)
            elif wanted:
                chain = oracle.chain_from(self._tree, scope, wanted[-1].name, wanted[-1].sha256)
                links = [(note.name, note.sha256) for note in wanted]
                own = [(link.path, link.sha256) for link in chain]
                require_among(links, own, f"settled and not on the chain of {scope}")

    def _require_linked(self, scope: str) -> None:
        """All that was promised is on the chain that the pointer leads to."""
        wanted = [(note.name, note.sha256) for note in self.acknowledged.durable(scope) if note != self._taken]
        require_among(wanted, self.chain(scope), f"promised and not on the chain of {scope}")

    def _require_kept(self, name: str) -> None:
        directory, _, base = name.rpartition("/")
        taken = self._taken is not None and base == self._taken.name
        if taken or (name not in self._tree and self._may_be_gone(directory)):
            return
        require(name in self._tree, f"{name} was acknowledged and is missing")
        sha = oracle.sha256(self._tree[name])
        label = base.rpartition("-")[2].removesuffix(".json")
        require(sha.startswith(label), f"{name} was acknowledged and has the digest {sha}")

    def _accept(self) -> None:
        """From now on the chains as they are there are what is promised: they were seen after a crash."""
        self.acknowledged.heads = {
            scope: [Note("head", scope, name, sha, FULL) for name, sha in self.chain(scope)] for scope in self._scopes()
        }

    # -- what the product says -------------------------------------------------------------------------------------

    def _verified(self) -> Counter[str]:
        store = Store.open(self.state_dir)
        lenient = self.lenient or self._half_repaired()
        report = verify(store) if lenient else require_only_residue(store, repaired=self.scenario == "repair")
        found = Counter(finding.code for finding in report.findings if finding.severity == "residue")
        damage = Counter(f"damage {finding.code}" for finding in report.findings if finding.severity == "damage")
        return found + damage

    def _commands(self) -> Counter[str]:
        """Every reading command gives an answer or a typed error; how often each exit code came."""
        codes: Counter[str] = Counter()
        keys = [NOTES, OTHER]
        words = [["scopes"], ["verify"], ["repair"], ["exec", "list"]]
        words += [[command, key] for command in ("log", "show", "verify") for key in keys]
        words += [["diff", f"{key}~1", key] for key in keys]
        for command in words:
            exits, document = called(self.state_dir, command)
            internal = isinstance(document, dict) and document.get("error", {}).get("code") == "internal"
            require(exits in (0, 1, 5) and not internal, f"{command} exits with {exits}: {document}")
            codes[f"exit {exits}"] += 1
        for key in keys:
            try:
                list(Store.open(self.state_dir).scope(key).walk())
            except StatelineError:
                codes["walk refused"] += 1
        return codes


def called(state_dir: Path, words: list[str]) -> tuple[int, Any]:
    """Run one command in this process: its exit code, and its JSON document."""
    said, told = io.BytesIO(), io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(said)), contextlib.redirect_stderr(io.TextIOWrapper(told)):
        code = run([*words, "--state-dir", str(state_dir), "--format", "json"])
        return code, json.loads(said.getvalue())
