"""docs/format.md, section "Runs, contexts and machine records", against what is written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from stateline.bundle import canonical
from stateline.bundle.envelope import VERSION
from stateline.contexts.context import LIMIT, ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.engine import event_codec, loop, next_event, step
from stateline.engine.record import Run, keep_machine
from stateline.machine import spec
from stateline.machine.decider import run as shapes
from stateline.machine.decider.run import (
    Answered,
    Asked,
    CallEnded,
    CallsIntended,
    Cancelled,
    Failed,
    Intended,
    Lost,
    Replied,
    Retried,
    Started,
    Succeeded,
    Unsent,
)
from stateline.machine.definition.check import Lookups, load
from stateline.redaction.redactor import Redactor
from stateline.service.create_run import NewRunOptions, create_run
from stateline.service.exchanges import Exchanges
from stateline.service.machine_files import machine_scope, read_machine_file
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")

MACHINE = """\
stateline: 1
name: demo
start: work
state: {n: 0}
stages:
  work:
    task: [/bin/true]
    retry: {max_attempts: 2}
    set: {n: "state.n + 1"}
    default_next: ask
  ask:
    human: {prompt: "Again?"}
    routes: [{when: "output == true", to: work}]
    default_next: done
  done: {end: {}}
"""

TALK = """\
stateline: 1
name: talk
tools: tools.json
stages:
  think: {agent: {prompt: "Say.", tools: [once]}}
"""
CALL = {"id": "a", "name": "once", "arguments": {}}


def members(heading: str) -> dict[str, str]:
    """Member -> meaning, of the table whose first columns have that heading."""
    lines = PAGE.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    found: dict[str, str] = {}
    for line in lines[start:]:
        if not line.startswith("|"):
            return found
        cells = line.strip("|").split(" | ")
        for name in re.findall(r"`([^`]+)`", cells[0]):
            assert name not in found
            found[name] = cells[-1].strip()
    raise AssertionError(heading)


STATE = members("member of a run's `state`")
INSTANCE = members("member of an instance")
EVENT = members("member of a run's `event`")
OPTIONAL = {name for name, meaning in EVENT.items() if re.match("only |once |the active time that", meaning)}
PHASES = members("`phase` | `status`")
TYPES = members("`type` | what happened")


def words(meaning: str) -> set[str]:
    return set(re.findall(r"`([a-z]+)`", meaning))


def fields(shape: Any) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(shape)}


def test_the_page_has_the_members_that_the_code_has() -> None:
    assert STATE.keys() == fields(shapes.RunState) | {"machine"}
    assert INSTANCE.keys() == fields(shapes.Instance)
    assert fields(event_codec.RunEvent) <= EVENT.keys()
    told = {"exchanges", "request", "answered_by", "finish", "estimated"}
    assert EVENT.keys() - fields(event_codec.RunEvent) - told == {"durability", "seconds"}
    assert members("member of a spec").keys() == fields(spec.Machine)
    assert members("member of a stage").keys() == fields(spec.Stage)


INNER_MEMBERS = [
    (spec.Retry, "retry", "member of a stage"),
    (spec.Route, "routes", "member of a stage"),
    (spec.Bounds, "bounds", "member of a spec"),
    (spec.EdgeLimit, "edge_limits", "member of a spec"),
    (event_codec.MachinePlace, "machine", "member of a run's `event`"),
    (event_codec.Meters, "meters", "member of a run's `event`"),
    (shapes.Transition, "transitions", "member of a run's `event`"),
    (event_codec.Effect, "effect", "member of a run's `event`"),
    (event_codec.ToolsPlace, "tools", "member of a run's `event`"),
    (event_codec.ContextPlace, "context", "member of a run's `event`"),
    (event_codec.Calls, "calls", "member of a run's `event`"),
    (event_codec.CallRecord, "asked", "member of a run's `event`"),
    (event_codec.CallEnd, "call", "member of a run's `event`"),
    (Exchanges, "exchanges", "member of a run's `event`"),
    (spec.Toolset, "toolset", "member of a spec"),
    (spec.Agent, "agent", "member of a stage"),
    (event_codec.Request, "waiting", "member of a run's `event`"),
    (event_codec.Replacement, "replaced", "member of a run's `event`"),
    (event_codec.AnswerRecord, "answered", "member of a run's `event`"),
]


def test_the_page_has_the_inner_members_that_the_code_has() -> None:
    for shape, member, table in INNER_MEMBERS:
        shown = re.search(r"`\{([^}]*)\}`", members(table)[member])
        assert shown is not None, member
        assert set(re.findall(r'"([^"]+)"', shown[1])) == fields(shape), member


def test_the_page_has_the_words_that_the_code_has() -> None:
    assert PHASES.keys() == set(get_args(shapes.Phase))
    assert words(STATE["status"]) == set(get_args(shapes.Status))
    assert words(INSTANCE["resume"]) == {*get_args(shapes.Resume), "failed", "set", "routes"}
    assert words(members("member of a stage")["kind"]) == set(get_args(spec.Kind))
    assert TYPES.keys() == {kind.__struct_config__.tag for kind in get_args(shapes.Event)} | {"repaired"}


# -- a run through all kinds of events ---------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Store:
    ticks = iter(range(10**18, 10**19, 10**9))
    return Store(MemoryBackend(), redactor=Redactor(), clock=lambda: next(ticks))


@pytest.fixture
def begin(memory: Store) -> Callable[[], Run]:
    """Begins the run of MACHINE, or begins it anew."""

    def start() -> Run:
        data = MACHINE.encode()
        machine = load(data, "m.yaml")
        record = keep_machine(memory, data, "yaml", machine)
        scope = memory.scope("run:r")
        with scope.locked(1.0):
            event = Started(input={"n": 1}, labels={"a": "b"})
            first = loop.begin(memory, machine, event, loop.Origin(machine_path="/m.yaml"), loop.StartFacts())
            return loop.start(scope, scope.head(), record, first)

    return start


@pytest.fixture
def chain(memory: Store, begin: Callable[[], Run]) -> list[Snapshot]:
    """The snapshots of a run that met every type of event but those of an agent's stage, oldest first."""
    run = begin()
    with run.scope.locked(1.0):
        run = step.apply(run, Intended())
        failed = Failed(kind="exit", message="no", hint="look")
        run = step.take(run, step.EventContext(event=failed, cost=event_codec.Cost(seconds=0.5)))
        run = step.apply(run, Intended())
        run = step.apply(run, Lost())
        run = step.apply(run, Answered(value={"given": True}))
        place = {**run.event["machine"], "path": "/elsewhere/m.yaml"}
        run = step.replace_machine(run, run.machine, run.record, {"machine": place})
        run = step.apply(run, Answered(value=True))
        for _ in range(2):
            run = step.apply(run, Intended())
            run = step.apply(run, Failed(kind="exit", message="no"))
        run = step.apply(run, Retried())
        run = step.apply(run, Intended())
        run = step.take(run, step.EventContext(event=Succeeded(output=3), cost=event_codec.Cost(seconds=1.5)))
        step.apply(run, Answered(value=False))
    step.apply(begin(), Cancelled())
    return [*run.scope.walk()][::-1]


@pytest.fixture
def talk(memory: Store) -> list[Snapshot]:
    """The snapshots of a run that asked a model, oldest first: one lost call of a tool, one that ended, an answer."""
    tool = spec.Tool(name="once", description="", schema={"type": "object"}, argv=["/bin/true"])
    data = TALK.encode()
    machine = load(data, "m.yaml", Lookups(toolset=lambda _: spec.Toolset(sha256="0" * 64, tools={"once": tool})))
    origin = loop.Origin(machine_path="/m.yaml", tools={"path": "/tools.json", "sha256": "0" * 64})
    scope = memory.scope("run:t")
    with scope.locked(1.0):
        first = loop.begin(memory, machine, Started(), origin, loop.StartFacts(manual=False))
        run = loop.start(scope, None, keep_machine(memory, data, "yaml", machine), first)
        run = step.apply(run, Asked())
        told = {"model": {"name": "m"}, "request": "0" * 64, "finish": "tool_calls", "usage": {"input": 1, "output": 2}}
        cost = event_codec.Cost(seconds=0.5, llm_calls=1, tokens=event_codec.Tokens(1, 2))
        reply = Replied(content="", tool_calls=[CALL])
        run = step.take(run, step.EventContext(event=reply, cost=cost, members=told))
        run = step.apply(run, CallsIntended(ids=["a"]))
        run = step.apply(run, Lost())
        run = step.apply(run, Answered(value=5))
        run = step.take(run, step.EventContext(event=Replied(content="", tool_calls=[{**CALL, "id": "b"}]), cost=cost))
        run = step.apply(run, CallsIntended(ids=["b"]))
        run = step.apply(run, CallEnded(id="b", result={"n": 1}))
        step.take(run, step.EventContext(event=Replied(content="Done."), cost=cost))
    return [*scope.walk()][::-1]


@pytest.fixture
def stopped(memory: Store) -> list[Snapshot]:
    """The snapshots of a run whose model was not called although that was intended, oldest first."""
    data = b"{stateline: 1, name: m, stages: {think: {agent: {prompt: Go.}, repeatable: false}}}"
    machine = load(data, "m.yaml")
    scope = memory.scope("run:u")
    with scope.locked(1.0):
        origin = loop.Origin(machine_path="/m.yaml")
        first = loop.begin(memory, machine, Started(), origin, loop.StartFacts(manual=False))
        run = loop.start(scope, None, keep_machine(memory, data, "yaml", machine), first)
        step.apply(step.apply(run, Intended()), Unsent())
    return [*scope.walk()][::-1]


def states(chain: list[Snapshot]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for snapshot in chain:
        yield canonical.decode(snapshot.data)["state"], snapshot.event


def test_every_type_of_event_is_met(chain: list[Snapshot], talk: list[Snapshot], stopped: list[Snapshot]) -> None:
    met = [*chain, *talk, *stopped]
    assert {snapshot.event["type"] for snapshot in met} == TYPES.keys() - {"repaired"}
    assert {snapshot.envelope.version for snapshot in met} == {VERSION}


def test_a_call_that_was_never_sent_leaves_the_run_ready_in_the_turn_that_its_intent_began(
    stopped: list[Snapshot],
) -> None:
    (before, _), _, (state, event) = states(stopped)
    assert state == before
    assert EVENT.keys() - OPTIONAL - {"redactions"} <= event.keys() <= EVENT.keys()
    assert (event["type"], event["turn"], event["open"]) == ("unsent", 1, True)
    assert event["effect"] == stopped[0].event["effect"]


def test_after_a_repair_an_event_has_the_members_of_the_page_and_no_other(
    chain: list[Snapshot], talk: list[Snapshot]
) -> None:
    given = {"type", "durability", "redactions", "actor"}
    for snapshot in [*chain, *talk]:
        event = next_event.after_repair(snapshot, newer_lost=True)
        assert EVENT.keys() - OPTIONAL - given <= event.keys() <= EVENT.keys()
        assert event["transitions"] == []
        assert event["birth"] != snapshot.event["birth"]
        assert ("effect" in event) == ("effect" in snapshot.event)
        assert ("waiting" in event) == ("waiting" in snapshot.event)


def test_a_runs_state_has_the_members_of_the_page_and_no_other(chain: list[Snapshot]) -> None:
    for state, _ in states(chain):
        assert state.keys() == STATE.keys()
        tree = state["tree"]
        assert tree.keys() == INSTANCE.keys()
        assert (tree["id"], tree["state"], tree["conversation"], tree["children"]) == ("0", {}, [], [])
        assert state["machine"] == {"format": "yaml", "source": None, "spec": None}


def test_phase_status_interrupts_and_pending_belong_together_as_the_page_says(chain: list[Snapshot]) -> None:
    status_of = dict(re.findall(r"^\| `(\w+)` \| `(running|waiting|error|complete|cancelled)` \|", PAGE, re.MULTILINE))
    met = set()
    for state, _ in states(chain):
        tree = state["tree"]
        met.add(tree["phase"])
        assert state["status"] == status_of[tree["phase"]]
        kind = {"waiting": "human", "unknown": "unknown_outcome"}.get(tree["phase"])
        assert state["interrupts"] == ([{"kind": kind, "stage": tree["stage"]}] if kind else [])
        effect = {"type": "task", "stage": tree["stage"], "position": 0}
        assert tree["pending"] == ([effect] if tree["phase"] in ("ready", "started", "unknown") else [])
    assert met == set(get_args(shapes.Phase)) - {"calling"}


def test_an_agents_stage_has_the_members_of_the_page_and_no_other(talk: list[Snapshot]) -> None:
    phases = []
    for state, event in states(talk):
        assert state.keys() == STATE.keys()
        tree = state["tree"]
        assert tree.keys() == INSTANCE.keys()
        assert EVENT.keys() - OPTIONAL - {"redactions"} <= event.keys() <= EVENT.keys()
        phases.append(tree["phase"])
        calls = [effect for effect in tree["pending"] if effect["type"] == "tool"]
        assert ("calls" in event) == bool(calls)
        assert ("effect" in event) == (tree["phase"] in ("ready", "waiting"))
        for call in calls:
            assert call.keys() - {"result"} == {"arguments", "id", "name", "position", "status", "type"}
            assert ("result" in call) == (call["status"] == "done")
        if tree["phase"] == "ready":
            assert tree["pending"] == [{"position": 0, "stage": "think", "type": "model"}]
        kinds = {"waiting": {"kind": "llm_request", "stage": "think"},
                 "unknown": {"kind": "unknown_outcome", "stage": "think", "call": "a", "tool": "once"}}  # fmt: skip
        assert state["interrupts"] == ([kinds[tree["phase"]]] if tree["phase"] in kinds else [])
    assert {"ready", "waiting", "calling", "unknown", "done"} == set(phases)
    roles = [message["role"] for message in talk[-1].envelope.state["tree"]["conversation"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    keys = [
        snapshot.event["calls"]["keys"]
        for snapshot in talk
        if snapshot.event["type"] == "replied" and "calls" in snapshot.event
    ]
    birth = talk[0].event["birth"]
    assert keys[0] == {"a": f"t:2:1:{birth}"}


def test_a_runs_event_has_the_members_of_the_page_and_no_other(chain: list[Snapshot]) -> None:
    for state, event in states(chain):
        assert EVENT.keys() - OPTIONAL - {"redactions"} <= event.keys() <= EVENT.keys()
        phase, status = state["tree"]["phase"], state["status"]
        assert ("effect" in event) == (phase in ("ready", "started", "unknown", "failed"))
        assert ("waiting" in event) == (status == "waiting")
        assert ("replaced" in event) == (event["type"] == "replaced")
        assert event.get("open", True) is True
        assert event["durability"] == "full"
        assert event["stage"] in ("work", "ask")


def test_turns_are_counted_as_the_page_says(chain: list[Snapshot]) -> None:
    before: dict[str, Any] = {}
    for _, event in states(chain):
        if event["type"] == "started":
            assert event["turn"] == 0
        else:
            begins = event["type"] in ("intended", "succeeded", "failed", "answered") and "open" not in before
            assert event["turn"] == before["turn"] + begins
        before = event


def test_keys_and_request_ids_name_run_snapshot_position_and_birth(chain: list[Snapshot]) -> None:
    entered, births, keys = 0, [], set()
    for snapshot in chain:
        state, event = snapshot.state, snapshot.event
        if event["type"] == "started":
            births.append(event["birth"])
        assert re.fullmatch("[0-9a-f]{8}", event["birth"])
        assert event["birth"] == births[-1]
        entered = snapshot.seq if event["transitions"] else entered
        if "effect" in event:
            assert event["effect"] == {"key": f"r:{entered}:0:{births[-1]}", "attempt": state["tree"]["attempt"]}
            keys.add(event["effect"]["key"])
        if "waiting" in event:
            since = snapshot.seq if event["type"] == "lost" else entered
            assert event["waiting"] == {"requestId": f"r:{since}:0:{births[-1]}"}
    assert len(births) == 2
    assert len(keys) == 3


def test_an_answer_is_named_by_its_request_and_the_digest_of_its_canonical_form(chain: list[Snapshot]) -> None:
    values = iter([{"given": True}, True, False])
    for before, after in itertools.pairwise(chain):
        if after.event["type"] == "answered":
            digest = canonical.sha256(canonical.encode(next(values)))
            assert after.event["answered"] == {"requestId": before.event["waiting"]["requestId"], "sha256": digest}
    assert next(values, None) is None


def test_the_machine_of_a_run_is_two_objects(memory: Store, chain: list[Snapshot]) -> None:
    table = chain[-1].envelope.objects
    assert (table["/machine/source"].media_type, table["/machine/spec"].media_type) == (
        "application/yaml",
        "application/json",
    )
    assert memory.get(table["/machine/source"]) == MACHINE.encode()
    assert table["/machine/source"].sha256 == chain[-1].event["machine"]["sha256"]
    document = canonical.decode(memory.get(table["/machine/spec"]))
    assert document["stateline"] == 1
    assert document.keys() == members("member of a spec").keys()
    for stage in document["stages"].values():
        assert stage.keys() == members("member of a stage").keys()


def test_a_large_spec_is_one_object_and_no_node(memory: Store) -> None:
    stages = "".join(f"  s{n}: {{task: [/bin/true, '{'x' * 5000}'], default_next: s{n + 1}}}\n" for n in range(3))
    data = f"stateline: 1\nname: big\nstart: s0\nstages:\n{stages}  s3: {{end: {{}}}}\n".encode()
    machine = load(data, "m.yaml")
    record = keep_machine(memory, data, "yaml", machine)
    assert record.spec.media_type == "application/json"
    assert canonical.decode(memory.get(record.spec)) == spec.to_json(machine)


# -- contexts, machine records, versions -------------------------------------------------------------------------------


def test_contexts_have_the_members_of_the_page_and_no_other(memory: Store) -> None:
    prepare(memory, ContextOptions(name="c", context_request=ContextRequest(model="m", system="s", settings={"a": 1})))
    prepare(memory, ContextOptions(name="c", context_request=ContextRequest(refine="more", settings={"a": 2})))
    newest, first = memory.scope("context:c").walk()
    assert (newest.event["type"], first.event["type"]) == ("refine", "derive")
    for snapshot in (newest, first):
        assert snapshot.state.keys() == members("member of a context's `state`").keys()
        modelled = {"unset", "prompts", "usage", "request", "run", "error", "refused"}
        assert snapshot.event.keys() == members("member of a context's `event`").keys() - {"redactions"} - modelled
        assert snapshot.event["by"] == "literal"
        triple = [snapshot.state["model_id"], snapshot.state["base_url"], snapshot.state["toolset_hash"]]
        assert snapshot.state["source_hash"] == canonical.sha256(canonical.encode(triple))
    assert newest.state["refinements"] == {"count": 1, "last": {"text": "more", "settings": {"a": 2}}}
    assert newest.state["prompts"] == {"system": "s", "developer": ["more"]}
    assert f"at most {LIMIT // 1024} KiB." in PAGE.replace("\n", " ")


def test_a_machine_record_has_the_members_of_the_page_and_no_other(memory: Store, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(MACHINE)
    machine_file = read_machine_file(str(path))
    first, _ = create_run(memory, NewRunOptions(run="one"), machine_file)
    create_run(memory, NewRunOptions(run="two", force=True), machine_file)
    newest, oldest = machine_scope(memory, machine_file).walk()
    assert newest.scope == canonical.sha256(f"machine:{canonical.sha256(machine_file.path.encode())}".encode())
    assert newest.state == {"machine": canonical.sha256(MACHINE.encode())}
    written = {f"event.{name}" for name in newest.event.keys() - {"durability"}} | newest.envelope.document().keys()
    assert members("member of a machine record").keys() <= written
    assert {name for name in written if name.startswith("event.")} <= members("member of a machine record").keys()
    assert (oldest.event["run"], newest.event["run"], newest.event["live"]) == ("one", "two", [first.id])
