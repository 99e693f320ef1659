"""``--dry-run`` of calls that ask models: the real call exits as its plan says, and writes only if its plan says so.

Drawn from all combinations of what a context, a run, the flags and the environment can be.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from model_server import ModelServer, Say

from stateline import Store
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare

KEY = "sk-not-a-real-key-0123456789abcdef"
DERIVED = json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {}})
THINK: dict[str, Any] = {"agent": {"prompt": "x"}}
MACHINES: dict[str, dict[str, Any]] = {
    "agent": {"think": THINK},
    "human": {"ask": {"human": {"prompt": "?"}, "default_next": "think"}, "think": THINK},
    "once": {"think": {**THINK, "repeatable": False}},
}


@dataclass(frozen=True)
class Case:
    """``verb``: run, or a machine for execute. ``context``: absent, literal (for no model) or made (for openai/m).
    ``status`` of the run r1: absent, waiting, running, complete or failed."""

    verb: str
    context: str
    status: str
    named: bool = False
    key: bool = False
    playback: str = ""
    more: tuple[str, ...] = ()
    parent: str = ""
    harm: str = ""


CASES = st.builds(
    Case,
    verb=st.sampled_from(["run", *MACHINES]),
    context=st.sampled_from(["absent", "literal", "made"]),
    status=st.sampled_from(["absent", "waiting", "running", "complete", "failed"]),
    named=st.booleans(),
    key=st.booleans(),
    playback=st.sampled_from(["", "", "there", "missing"]),
    more=st.sampled_from(
        [(), ("--refine-text", "R"), ("--force",), ("--answer", '"Yes."'), ("-i",), ("--set", "a=1"), ("--system", "T")]
    ),
    parent=st.sampled_from(["", "", "head", "stale"]),
    harm=st.sampled_from(["", "", "damaged run", "damaged context", "unsafe"]),
)


def answers(document: dict[str, Any]) -> Say:
    said = document["messages"][-1]["content"]
    return Say("nothing", status=400) if said == "fail" else Say("Done." if said == "x" else DERIVED)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(otherwise=answers) as server:
        yield server


class World:
    """A state dir, a machine and a recording in a place of their own."""

    def __init__(self, cli: Cli, case: Case, server: ModelServer, home: Path) -> None:
        self.cli, self.case, self.server = cli, case, server
        cli.home, cli.state = home, home / "state dir"
        cli.monkeypatch.setenv("STATELINE_STATE_DIR", str(cli.state))
        self.arm(True)
        if case.verb != "run":
            self.machine = cli.machine("m", **MACHINES[case.verb])
        if case.playback == "there":
            with_rec = ["-m", "openai/m", "--record", str(home / "rec")]
            assert cli("run", "-p", "x", "--ephemeral", "--state-scope", "demo", *with_rec).code == 0
        self._see_to_context()
        self._see_to_run()

    def arm(self, key: bool) -> None:
        """Set whether the environment has a key, and a server in the provider's place."""
        for name, value in (("OPENAI_API_KEY", KEY), ("OPENAI_BASE_URL", self.server.url)):
            self.cli.monkeypatch.setenv(name, value) if key else self.cli.monkeypatch.delenv(name, raising=False)

    def _see_to_context(self) -> None:
        if self.case.context != "absent":
            model = "openai/m" if self.case.context == "made" else ""
            prepare(
                Store.open(self.cli.state),
                ContextOptions(name="demo", context_request=ContextRequest(model=model, system="S")),
            )

    def _see_to_run(self) -> None:
        status, verb = self.case.status, self.case.verb
        if status == "absent":
            return
        prompt = "fail" if status == "failed" else "x"
        begin = ["run", "-p", prompt] if verb == "run" else ["execute", self.machine]
        scope = ["--state-scope", "demo"] if verb == "run" or self.case.context != "absent" else []
        words = [*begin, "--id", "r1", *scope]
        if status == "failed":
            if verb != "run":
                self.machine = self.cli.machine("m", **failing(MACHINES[verb]))
            self.cli(*words, "-m", "openai/m", stdin=b"")
            self._answer("-m", "openai/m")
            return
        self.cli(*words, "-m", "manual")
        if status == "running":  # as far as a call by one turn comes; of most machines the run waits then
            self.cli("exec", "resume", "-i", "r1", "--answer", '"Yes."', "-m", "openai/m")
        if status == "complete":
            self._answer("-m", "manual")
            self._answer("-m", "manual")

    def _answer(self, *more: str) -> None:
        self.cli("exec", "resume", "r1", "--answer", '"Yes."', *more)

    def harmed(self) -> None:
        if self.case.harm == "unsafe":
            self.cli.state.chmod(0o750)
        elif self.case.harm:
            key = {"damaged run": "run:r1", "damaged context": "context:demo"}[self.case.harm]
            (self.cli.state / hashlib.sha256(key.encode()).hexdigest() / "latest.json").write_bytes(b"{}")

    def words(self) -> list[str]:
        case = self.case
        words = ["run"] if case.verb == "run" else ["execute", self.machine]
        if case.verb == "run" and (case.status == "absent" or "--force" in case.more):
            words += ["-p", "x"]
        if case.status != "absent":
            words += ["--id", "r1"]
        if case.verb == "run" or case.context != "absent":
            words += ["--state-scope", "demo"]
        words += ["-m", "openai/m"] if case.named else []
        words += ["--playback", str(self.cli.home / "rec")] if case.playback else []
        if case.parent:
            key = "run:r1" if case.status != "absent" else "context:demo"
            words += ["--parent", key + ("~1" if case.parent == "stale" else "")]
        return [*words, *case.more]


def failing(stages: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(stages).replace('"prompt": "x"', '"prompt": "fail"')
    return dict(json.loads(text))


def written(cli: Cli) -> dict[str, bytes]:
    """Return the content of the state dir, but for locks and the directories that hold nothing else."""
    return {str(path): path.read_bytes() for path in cli.state.rglob("*") if path.is_file() and path.stat().st_size}


def sensible(case: Case) -> bool:
    """Return True if the words of a case are good grammar, and what they corrupt exists."""
    run = case.verb == "run"
    return (
        not (run and "-i" in case.more)
        and (run or case.more[:1] not in (("--refine-text",), ("--set",), ("--system",)))
        and not (case.harm == "damaged run" and case.status == "absent")
        and not (case.harm == "damaged context" and case.context == "absent" and not run)
        and not (case.harm and case.context == case.status == "absent")
        and not (case.harm == "damaged context" and run and case.context == case.status == "absent")
        and not (case.harm.startswith("damaged") and case.parent)
    )


def agree(world: World) -> None:
    cli, case = world.cli, world.case
    world.harmed()
    world.arm(case.key)
    words = world.words()
    before, asked = written(cli), world.server.count
    planned = cli(*words, "--dry-run", "--format", "json")
    assert (written(cli), world.server.count) == (before, asked), "a plan touches neither disk nor network"
    real = cli(*words, "--format", "json")
    if planned.code:
        assert (planned.code, planned.document) == (real.code, real.document), words
        assert written(cli) == before
        return
    plan, document = planned.document["plan"], real.document
    told = (words, case, plan, real.out, real.err)
    if document.keys() == {"error"} and document["error"]["code"] == "playback_miss":
        assert real.code == 1, "whether a recording holds a reply is known when it is asked for"
        return
    if case.status == "failed" and document.get("status") == "error":
        assert real.code in (planned.document["exit"], 1), "a model that fails again is no effect that succeeds"
    else:
        assert real.code == planned.document["exit"], told
    models = [effect for effect in plan["effects"] if effect["type"] == "model" and "exchanges" not in effect]
    assert world.server.count - asked == len(models), told
    if plan["action"] == "refuse":
        assert document["error"]["message"] in plan["reason"], told
        assert plan["effects"] == [], told
        assert written(cli) == before, told
        assert cli.state.exists() == bool(before), told
        return
    assert (document.keys() == {"error"}) == bool(plan["reason"]), told
    if plan["action"] in ("wait", "report"):
        assert written(cli) == before, told
    else:
        assert written(cli) != before, told


def made(cli: Cli, server: ModelServer, case: Case) -> None:
    home, state = cli.home, cli.state
    place = Path(tempfile.mkdtemp(dir=home))
    try:
        agree(World(cli, case, server, place))
    finally:
        cli.home, cli.state = home, state
        shutil.rmtree(place)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@example(Case("run", "made", "absent"))
@example(Case("run", "absent", "absent", named=True))
@example(Case("run", "literal", "absent", named=True, more=("--refine-text", "R")))
@example(Case("agent", "made", "absent"))
@example(Case("agent", "literal", "waiting", named=True))
@example(Case("once", "literal", "waiting", named=True))
@example(Case("human", "literal", "waiting", named=True, more=("--answer", '"Yes."')))
@example(Case("human", "made", "running"))
@example(Case("agent", "made", "complete", harm="damaged context"))
@example(Case("run", "absent", "absent", playback="there", more=("--refine-text", "R")))
@example(Case("agent", "absent", "failed", named=True, key=True, more=("--force",)))
@example(Case("run", "literal", "complete", playback="missing", more=("--force",)))
@given(case=CASES)
def test_a_call_does_what_its_plan_says(cli: Cli, server: ModelServer, case: Case) -> None:
    assume(sensible(case))
    made(cli, server, case)


def test_a_model_without_a_key_is_refused_before_anything_is_begun(cli: Cli, server: ModelServer) -> None:
    world = World(cli, Case("run", "made", "absent"), server, cli.home)
    world.arm(False)
    before = written(cli)
    error = cli.refused("run", "-p", "x", "--state-scope", "demo", "--id", "r1", exits=1)
    assert "OPENAI_API_KEY is not set" in error["message"]
    assert written(cli) == before
    assert cli.refused("exec", "status", "r1", exits=1)["code"] == "not_found"


def test_a_retry_whose_model_cannot_be_called_is_not_recorded(cli: Cli, server: ModelServer) -> None:
    world = World(cli, Case("agent", "literal", "failed"), server, cli.home)
    assert cli.json("exec", "status", "r1")["status"] == "error"
    world.arm(False)
    before = written(cli)
    error = cli.refused("exec", "resume", "r1", "--retry", "-m", "openai/m", exits=1)
    assert "OPENAI_API_KEY is not set" in error["message"]
    assert written(cli) == before


def test_a_lock_that_is_held_is_a_conflict_whatever_the_plan_and_nothing_is_written(
    cli: Cli, server: ModelServer
) -> None:
    for case in (
        Case("run", "literal", "waiting", more=("--answer", '"Yes."')),
        Case("run", "made", "waiting", named=True),
    ):
        place = Path(tempfile.mkdtemp(dir=cli.home))
        home = cli.home
        world = World(cli, case, server, place)
        plan = cli.json(*world.words(), "--dry-run")
        assert (plan["exit"], plan["plan"]["action"]) in ((0, "answer"), (0, "advance"))
        with Store.open(cli.state).scope("run:r1").locked(1):
            before, asked = written(cli), server.count
            result = cli.process(*world.words(), "--wait", "0.1", "--format", "json")
            assert (result.code, result.error["code"]) == (4, "locked"), result
            assert (written(cli), server.count) == (before, asked)
        assert cli.json(*world.words())["status"] == "complete"
        cli.home = home
