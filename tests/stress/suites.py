"""Table of the suites of ``scripts/torture``, each with its share of the time.

``oracle`` and ``invariants`` judge. The suites are in ``power`` (simulated and real power losses), ``faults`` (kills
and errors at every call), ``processes`` (runs, saves, races), ``corruption`` (corrupted, forged and repaired stores)
and ``input`` (fuzzing). ``report`` stores the figures.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from stress import limits
from stress.corruption import audit_script, detection, forgeries, repairs, tampering
from stress.faults import error_campaign, kill_campaign
from stress.input import fuzzing
from stress.power import filesystems, model_campaign
from stress.processes import contests, conversations, kills, races, repeated_lines, saves, unlocked
from stress.scenarios import SCENARIOS

Say = Callable[[str], None]


class Amounts(msgspec.Struct, frozen=True):
    """Amounts: distinct disks after ``power`` losses, ``crashes`` of real file systems, ``kills`` of
    each kind, bytes changed (``cases``; other suites take a part of it), ``scopes`` of one store."""

    states: int = 1_000_000
    crashes: int = 300
    kills: int = 200
    cases: int = 100_000
    scopes: int = 100_000


class Call(msgspec.Struct, frozen=True):
    """One run of a suite: its own directory ``root``, which does not exist yet, and ``until`` [monotonic s] its end.
    ``scenarios`` selects some of a suite; empty: all of them."""

    root: Path
    seed: str
    until: float
    say: Say
    amounts: Amounts
    scenarios: tuple[str, ...] = ()


class Suite(msgspec.Struct, frozen=True):
    """One suite. ``share``: its part of the time; ``needs``: required programs; ``scenarios``: names to choose from."""

    about: str
    share: float
    run: Callable[[Call], dict[str, Any]]
    needs: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()

    def perform(self, call: Call) -> dict[str, Any]:
        """Run the suite and return the summary. Raises ``ViolationError`` if an invariant does not hold."""
        missing = [program for program in self.needs if shutil.which(program) is None]
        if missing:
            return {"skipped": f"{' and '.join(missing)} not installed"}
        return self.run(call)


def _usual(campaign: Callable[..., dict[str, Any]], **fixed: Any) -> Callable[[Call], dict[str, Any]]:
    return lambda call: campaign(call.root, call.seed, until=call.until, say=call.say, **fixed)


def _selectable(campaign: Callable[..., dict[str, Any]]) -> Callable[[Call], dict[str, Any]]:
    return lambda call: _usual(campaign, scenarios=call.scenarios)(call)


def _kills(*, repeatable: bool, points: bool = False) -> Callable[[Call], dict[str, Any]]:
    return lambda call: _usual(kills.campaign, repeatable=repeatable, points=points, kills=call.amounts.kills)(call)


def _talks(*, repeatable: bool) -> Callable[[Call], dict[str, Any]]:
    return lambda call: _usual(conversations.campaign, repeatable=repeatable, kills=call.amounts.kills)(call)


SUITES: dict[str, Suite] = {
    "power": Suite(
        "simulated power losses: every state that one may leave",
        8,
        lambda call: _usual(model_campaign.campaign, states=call.amounts.states, scenarios=call.scenarios)(call),
        scenarios=tuple(SCENARIOS),
    ),
    "mutants": Suite(
        "broken commit protocols, which the model must detect",
        1,
        lambda call: model_campaign.mutants(call.seed, until=call.until, say=call.say),
    ),
    "filesystems": Suite(
        "power losses on real file systems (root, Linux)",
        4,
        lambda call: filesystems.campaign(
            call.root, call.seed, crashes=call.amounts.crashes, until=call.until, say=call.say
        ),
    ),
    "syscalls": Suite(
        "SIGKILL before and after every call of every scenario",
        3,
        _selectable(kill_campaign.campaign),
        scenarios=tuple(kill_campaign.SCENARIOS),
    ),
    "errors": Suite(
        "every kind of error at every call of every scenario",
        5,
        _selectable(error_campaign.campaign),
        scenarios=tuple(error_campaign.CHOICES),
    ),
    "strace": Suite(
        "the same with strace, in the real program", 2, _usual(error_campaign.strace_campaign), ("strace",)
    ),
    "kills": Suite("runs killed at random moments", 1, _kills(repeatable=True)),
    "kills-once": Suite("the same with effects that must not be repeated", 1, _kills(repeatable=False)),
    "points": Suite("runs killed at one call after the other", 1, _kills(repeatable=True, points=True), ("strace",)),
    "points-once": Suite(
        "the same with effects that must not be repeated", 1, _kills(repeatable=False, points=True), ("strace",)
    ),
    "talks": Suite("conversations with a model, killed at random moments", 1, _talks(repeatable=True)),
    "talks-once": Suite("the same with a model and tools that must not be called again", 1, _talks(repeatable=False)),
    "lines": Suite(
        "command lines killed once and repeated",
        1,
        lambda call: _usual(repeated_lines.campaign, trials=call.amounts.kills)(call),
    ),
    "runs": Suite(
        "six processes on one run or one conversation",
        1,
        lambda call: races.campaign(call.root, rounds=5, until=call.until, say=call.say),
    ),
    "contests": Suite(
        "two commands on one run, one context, one store",
        1,
        lambda call: contests.campaign(call.root, rounds=5, until=call.until, say=call.say),
    ),
    "saves": Suite(
        "16 processes save 1,000 times each, one killed every 50 ms", 3, _usual(saves.campaign, writers=16, each=1000)
    ),
    "saves-fast": Suite(
        "the same in `fast`, with readers",
        1,
        _usual(saves.campaign, writers=16, each=100, durability="fast", readers=2),
    ),
    "unlocked": Suite(
        "the same without a working lock",
        1,
        lambda call: unlocked.campaign(call.root, writers=16, each=100, until=call.until, say=call.say),
    ),
    "damage": Suite(
        "every byte of a store changed, and all other corruptions",
        3,
        lambda call: _usual(detection.campaign, cases=call.amounts.cases)(call),
    ),
    "tampering": Suite(
        "the same with random stores, comparing the auditor's script with `verify`",
        6,
        lambda call: _usual(tampering.campaign, stores=20, cases=call.amounts.cases // 13, each=6, compared=70)(call),
        ("jq",),
    ),
    "forgeries": Suite(
        "forgeries that no chain can reveal, without and with an anchor",
        2,
        _usual(forgeries.campaign, stores=20, share=0.05, scripted=True),
        ("jq",),
    ),
    "audits": Suite(
        "the auditor's script compared with `verify` on one store",
        2,
        lambda call: _usual(audit_script.campaign, cases=call.amounts.cases // 100)(call),
        ("jq",),
    ),
    "repairs": Suite(
        "repairs of corrupted stores", 2, lambda call: _usual(repairs.campaign, cases=call.amounts.cases // 200)(call)
    ),
    "limits": Suite(
        "a store with very many scopes",
        2,
        lambda call: limits.campaign(call.root, count=call.amounts.scopes, say=call.say),
    ),
    "fuzzing": Suite("fuzzing of everything that reads bytes from outside", 5, lambda call: _fuzz(call)),
}


def _fuzz(call: Call) -> dict[str, Any]:
    import time

    left = max(1.0, call.until - time.monotonic())
    return fuzzing.campaign(call.root, call.seed, seconds=0.9 * left, until=call.until, say=call.say)
