"""The real program against a real server that counts: `run -p`, killed before each publication of its store, pays for
no reply again that was saved; the pre-stage and a refinement included."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from killed_call import Program
from model_server import ModelServer, Say

from stateline import Store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL, and the tool is POSIX shell")

KEY = "sk-not-a-real-key-0123456789abcdef"
DERIVED = json.dumps({"prompts": {"system": "Be brief.", "developer": []}, "settings": {}})
REFINED = json.dumps({"prompts": {"system": "Be brief and kind.", "developer": []}, "settings": {}})
WORDS = ["run", "-p", "Look.", "--id", "r1", "--state-scope", "demo", "-m", "openai/m", "--refine-text", "Be kind."]
REPLIES = 4
"""A derivation, a refinement, a call of a tool, and the answer."""
MOST = 40


def answers(document: dict[str, Any]) -> Say:
    last = document["messages"][-1]
    if last["role"] == "tool":
        return Say("Done.")
    if last["content"] == "Look.":
        return Say(calls=[("look", {})], ids=["c1"])
    return Say(REFINED if "Be kind." in json.dumps(document) else DERIVED)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    started = Program()
    yield started
    started.close()


class Ended(NamedTuple):
    """The end of one call."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Place:
    """A state dir and a tool that notes each call."""

    def __init__(self, root: Path, server: ModelServer, program: Program) -> None:
        self.root, self.server, self.program = root, server, program
        root.mkdir(mode=0o700)
        tool = {"name": "look", "description": "Look.", "schema": {"type": "object"}}
        argv = ["sh", "-c", f"echo $STATELINE_IDEMPOTENCY_KEY >> '{root}/ran'; echo 1"]
        (root / "tools.json").write_text(json.dumps({"tools": [{**tool, "argv": argv}]}))

    def call(self, *words: str, nth: int = 0) -> Ended:
        """One call of the program, which dies before its ``nth`` publication; of 0 it never does."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("STATELINE_", "OPENAI_"))}
        environ |= {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": self.server.url,
            "STATELINE_STATE_DIR": str(self.root / "s"),
        }
        return Ended(*self.program.call(self.root, environ, *words, "--format", "json", nth=nth))

    def first(self, nth: int = 0) -> Ended:
        return self.call(*WORDS, "--tools", str(self.root / "tools.json"), nth=nth)

    def events(self, key: str) -> list[dict[str, Any]]:
        """The events of a scope, oldest first."""
        scope = Store.open(self.root / "s").scope(key)
        return [snapshot.event for snapshot in scope.walk()][::-1] if scope.head() is not None else []

    def saved(self) -> list[str]:
        """Return the replies of the model in the store."""
        return [event["type"] for key in ("context:demo", "run:r1") for event in self.events(key) if "request" in event]

    def go_on(self) -> dict[str, Any]:
        """Act like an operator who sees the process gone: continue the run if it exists, else call again."""
        done = self.call("run", "--id", "r1") if self.events("run:r1") else self.first()
        if done.returncode == 3:
            waits = json.loads(done.stdout)
            assert waits["reason"] == "unknown_outcome", "nothing else is asked of anybody"
            done = self.call("exec", "resume", "r1", "--retry")
        assert done.returncode == 0, (done.stdout, done.stderr)
        return dict(json.loads(done.stdout))


def ends_well(place: Place) -> None:
    assert place.saved() == ["derive", "refine", "replied", "replied"]
    store = Store.open(place.root / "s")
    context = store.resolve(store.scope("context:demo").load().state)
    assert (context["prompts"]["system"], context["refinements"]["count"]) == ("Be brief and kind.", 1)


def test_a_reply_that_was_saved_is_never_paid_again_wherever_the_program_is_killed(
    tmp_path: Path, program: Program
) -> None:
    died_with: set[tuple[bool, tuple[str, ...]]] = set()
    for nth in range(1, MOST):
        with ModelServer(otherwise=answers) as server:
            place = Place(tmp_path / str(nth), server, program)
            died = place.first(nth)
            if died.returncode == 0:
                assert server.count == REPLIES
                ends_well(place)
                break
            assert died.returncode == -signal.SIGKILL, (died.stdout, died.stderr)
            saved, paid = place.saved(), server.count
            died_with.add((bool(place.events("run:r1")), tuple(saved)))
            assert paid - len(saved) in (0, 1), "one reply is saved before the next is asked for"
            assert place.go_on()["output"] == "Done."
            assert server.count - paid == REPLIES - len(saved), (nth, saved)
            ends_well(place)
            keys = (place.root / "ran").read_text().split()
            assert len(set(keys)) == 1
            assert len(keys) <= 2
    else:
        raise AssertionError(f"the program published {MOST} times and more")
    made = ("derive", "refine")
    steps = [(False, ()), (False, made[:1]), (False, made), (True, made), (True, (*made, "replied"))]
    assert died_with == set(steps), "it died once at least between any two steps"


def test_a_refinement_is_made_again_where_a_run_has_begun_with_it(tmp_path: Path, program: Program) -> None:
    """A call that died differs from a new one in that its run has begun."""
    with ModelServer(otherwise=answers) as server:
        place = Place(tmp_path / "p", server, program)
        assert place.first().returncode == 0
        again = place.call(*WORDS, "--force", "--tools", str(place.root / "tools.json"))
        assert again.returncode == 0, (again.stdout, again.stderr)
        assert [event["type"] for event in place.events("context:demo")] == ["derive", "refine", "refine"]
        other = place.call(*[word.replace("r1", "r2") for word in WORDS], "--tools", str(place.root / "tools.json"))
        assert other.returncode == 0
        assert [event.get("run") for event in place.events("context:demo")] == [None, "r1", "r1", "r2"]
