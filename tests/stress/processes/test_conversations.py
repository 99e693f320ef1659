"""Conversations with a model and its tools, cut off by SIGKILL: `scripts/torture --suite talks` does it at length."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from stress.oracle import ViolationError
from stress.processes import conversations
from stress.processes.kills import Tally

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")

KILLS = 4


def test_killed_conversations_repeat_no_saved_reply_and_no_tool(tmp_path: Path) -> None:
    def check(tmp_path: Path, repeatable: bool) -> None:
        seed = os.environ.get("STATELINE_TEST_SEED") or str(random.randrange(2**32))
        try:
            summary = conversations.campaign(
                tmp_path, seed, repeatable=repeatable, kills=KILLS, until=time.monotonic() + 120, say=lambda text: None
            )
        except ViolationError as violated:
            violated.add_note(f"STATELINE_TEST_SEED={seed}")
            raise
        assert summary["kills"] >= KILLS
        assert summary["runs"] >= 1

    for_each(check, [True, False], root=tmp_path)


def test_six_processes_at_one_conversation_perform_each_effect_once(tmp_path: Path) -> None:
    assert conversations.at_once(tmp_path)["calls"] == conversations.PROCESSES


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    """Gives a conversation that is over and kept every promise, with a copy of its log to spoil."""
    place = tmp_path_factory.mktemp("talk")
    wanted = conversations.reference(place / "reference", repeatable=False)
    trial = conversations.Interrupted(place / "run", random.Random(1), wanted, Tally(), repeatable=False)
    trial.run(0, 0.0)
    log = trial.workflow.log.read_text()

    def fresh() -> Any:
        trial.workflow.log.write_text(log)
        trial.call += 1
        return trial

    return fresh


def test_an_effect_repeated_after_its_save_is_detected(over: Callable[[], Any]) -> None:
    def check(stage: str, why: str) -> None:
        trial = over()
        trial._check_tasks()
        key = next(note.key for note in trial.workflow.notes() if note.stage == stage)
        with trial.workflow.log.open("a") as log:
            log.write(f"{stage} {key} start 1 {trial.call}\n")
        with pytest.raises(ViolationError, match=why):
            trial._check_tasks()

    for_each(
        check, [("context", "saved, and asked for or run again"), ("model", "saved, and asked"), ("push", "run again")]
    )


def test_an_effect_started_unsaved_or_twice_is_detected(over: Callable[[], Any]) -> None:
    def check(line: str, why: str) -> None:
        trial = over()
        asked = next(note for note in trial.workflow.notes() if note.stage == "model")
        with trial.workflow.log.open("a") as log:
            log.write(line.format(call=trial.call, asked=asked.key, first=asked.call) + "\n")
        with pytest.raises(ViolationError, match=why):
            trial._check_tasks()

    for_each(
        check,
        [
            ("look talk:99:1:x start 1 {call}", "no snapshot has its key"),
            ("model {asked} start 1 {first}", "started twice in one call"),
        ],
    )


def test_a_context_changed_afterwards_is_detected(over: Callable[[], Any]) -> None:
    from stateline import Store
    from stateline.contexts.context import ContextRequest
    from stateline.contexts.plan import ContextOptions
    from stateline.contexts.prepare import prepare

    trial = over()
    store = Store.open(trial.workflow.state_dir)
    trial._require_same_end(store)
    prepare(store, ContextOptions(name="talk", context_request=ContextRequest(refine="Once more.")))
    with pytest.raises(ViolationError, match="the run goes by"):
        trial._require_same_end(Store.open(trial.workflow.state_dir))
