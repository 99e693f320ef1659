"""Snapshots that are sound for the store and that no Stateline would write: a typed error, and no effect is run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from command_line import Cli, Task
from each_case import Failures

from stateline import Store
from stateline.bundle import canonical

ABSENT = object()
Craft = Callable[[Any, dict[str, Any], dict[str, Any]], Any]


def at(document: Any, path: str, value: Any) -> None:
    """Put ``value`` at a dotted path, or remove what is there."""
    *way, last = path.split(".")
    for name in way:
        document = document[name]
    if value is ABSENT:
        del document[last]
    else:
        document[last] = value


def begun(cli: Cli, task: Task) -> str:
    """The run r1 after ``a``, before ``b``; whatever runs from now on is said in ``ran``."""
    machine = cli.machine(
        a=task("echo 1", default_next="b", error_next="c"),
        b=task("echo b >> ran; echo 2", default_next="ask", set={"n": "output"}),
        ask={"human": {"prompt": "?"}, "default_next": "c"},
        c=task("echo c >> ran; echo 3"),
    )
    cli.json("execute", "-i", machine, "--id", "r1")
    return str(machine)


def craft(cli: Cli, change: Craft) -> None:
    """Save a changed copy of the run's head on top of it, as any program could that has the library."""
    store = Store.open(cli.state)
    scope = store.scope("run:r1")
    head = scope.load()
    event, state = copy.deepcopy(head.event), copy.deepcopy(head.state)
    event.pop("durability")
    changed = change(store, event, state)
    scope.save(state if changed is None else changed, kind="run", event=event, masked=True)


def in_event(path: str, value: Any) -> Craft:
    return lambda store, event, state: at(event, path, value)


def in_state(path: str, value: Any) -> Craft:
    return lambda store, event, state: at(state, path, value)


def in_spec(path: str, value: Any) -> Craft:
    def change(store: Any, event: Any, state: Any) -> None:
        spec = canonical.decode(store.get(state["machine"]["spec"]))
        at(spec, path, value)
        state["machine"]["spec"] = store.put_value(spec)

    return change


def instead(state: Any) -> Craft:
    return lambda store, event, old: state


READERS = (
    ("exec", "list"),
    ("exec", "status"),
    ("exec", "status", "r1"),
    ("exec", "show", "r1"),
    ("exec", "history", "r1"),
    ("log", "run:r1"),
    ("log", "-p", "run:r1"),
    ("diff", "run:r1@0", "run:r1"),
    ("show", "run:r1"),
    ("verify",),
)
MOVERS = (
    ("execute", "MACHINE", "--dry-run"),
    ("execute", "MACHINE", "--id", "r1", "--dry-run"),
    ("execute", "MACHINE", "--id", "r1", "--answer", "1", "--dry-run"),
    ("execute", "-i", "MACHINE"),
    ("execute", "MACHINE", "--id", "r1"),
    ("execute", "MACHINE", "--id", "r1", "--accept-change"),
    ("exec", "resume", "r1"),
    ("exec", "resume", "r1", "--retry"),
    ("exec", "resume", "r1", "--answer", "1"),
)


def call_all(cli: Cli, machine: str, calls: Any) -> list[tuple[str, ...]]:
    """The calls that did not refuse. None may end by a bug, or perform an effect."""
    done = []
    for words in calls:
        result = cli(*(machine if word == "MACHINE" else word for word in words), "--format", "json")
        document = result.document
        assert "Traceback" not in result.err
        if isinstance(document, dict) and document.keys() == {"error"}:
            assert document["error"]["code"] not in ("internal", "usage"), (words, document)
            assert result.code in (1, 5), (words, document)
        else:
            done.append(words)
        if words in READERS[:2]:
            assert "bug in stateline" not in cli(*words).err
        assert cli.ran() == [], words
    return done


EVENTS = [
    *((name, ABSENT) for name in (
        "type", "run", "birth", "turn", "started_at", "stage", "machine", "machine.path", "machine.name",
        "machine.sha256", "meters", "meters.active", "meters.llm_calls", "transitions", "effect.key", "effect.attempt",
    )),
    *((name, 5) for name in ("type", "run", "birth", "started_at", "stage", "machine", "meters", "transitions")),
    *((name, None) for name in ("type", "run", "birth", "turn", "started_at", "stage", "machine", "meters")),
    *((name, 5) for name in ("machine.path", "machine.name", "machine.sha256", "context", "effect", "effect.key",
                             "waiting", "waiting", "answered", "output_of", "open", "error")),
    *((name, "x") for name in ("turn", "meters.active", "meters.llm_calls", "effect.attempt", "redactions", "open")),
    ("turn", True),
    ("turn", 1.5),
    ("turn", {}),
    ("transitions", {}),
    ("transitions", [5]),
    ("transitions", [{}]),
    ("transitions", [{"from": 5, "to": None, "reason": "default", "iteration": 0, "edge_count": 1}]),
    ("waiting", {}),
    ("waiting", {"requestId": None}),
    ("answered", {}),
    ("answered", {"requestId": "r1:1:0:00000000"}),
    ("answered", "r1:1"),
    ("error", []),
]  # fmt: skip


def test_an_event_that_is_not_a_runs_is_an_integrity_error(cli: Cli, task: Task) -> None:
    failures = Failures()
    for path, value in EVENTS:
        with failures.case(path, value), cli.fresh():
            machine = begun(cli, task)
            craft(cli, in_event(path, value))
            before = cli.tree()
            assert call_all(cli, machine, MOVERS[3:5] + MOVERS[6:8]) == []
            assert cli.json("execute", machine, "--dry-run")["exit"] == 5
            call_all(cli, machine, READERS)
            assert cli("exec", "status", "r1").code == 5
            assert {place: row[4] for place, row in cli.tree().items()} == {
                place: row[4] for place, row in before.items()
            }
    failures.check()


def outside(store: Any, event: Any, state: Any) -> None:
    event["context"] = {"path": "../../outside", "sha256": "0" * 64}
    state["context"] = {"scope": "context:x", "sha256": "0" * 64}


STATES: list[tuple[str, Craft]] = [
    ("list", instead([])),
    ("number", instead(5)),
    ("text", instead("x")),
    ("empty", instead({})),
    *((f"no {name}", in_state(name, ABSENT)) for name in ("status", "tree", "machine", "machine.spec", "machine.source",
                                                            "machine.format", "tree.stage", "tree.phase")),
    *((f"{name} is 5", in_state(name, 5)) for name in (
        "status", "tree", "machine", "machine.spec", "machine.source", "tree.stage", "tree.phase", "tree.state",
        "state", "outputs", "visits", "edges", "interrupts", "context", "labels", "tree.error", "tree.cause",
        "machine.format", "tree.resume", "tree.id",
    )),
    ("unknown stage", in_state("tree.stage", "nowhere")),
    ("unknown phase", in_state("tree.phase", "nowhere")),
    ("unknown status", in_state("status", "nowhere")),
    *((f"running and {phase}", in_state("tree.phase", phase)) for phase in ("waiting", "unknown", "failed", "done")),
    ("waiting and ready", in_state("status", "waiting")),
    ("complete and ready", in_state("status", "complete")),
    ("error and ready", in_state("status", "error")),
    ("ready at a question", in_state("tree.stage", "ask")),
    ("attempt is text", in_state("tree.attempt", "1")),
    ("iteration is text", in_state("iteration", "1")),
    ("visits are text", in_state("visits", {"a": "x"})),
    ("edges are numbers", in_state("edges", {"a": 5})),
    ("labels are numbers", in_state("labels", {"a": 5})),
    ("error is empty", in_state("tree.error", {})),
    ("context is empty", in_state("context", {})),
    ("context is a list", in_state("context", [])),
    ("context without a digest", in_state("context", {"scope": "context:x"})),
    ("context of no scope", in_state("context", {"scope": "no key", "sha256": "0" * 64})),
    ("context with no digest", in_state("context", {"scope": "context:x", "sha256": "../x"})),
    ("context that lies outside", outside),
    ("context that is not there", in_state("context", {"scope": "context:x", "sha256": "0" * 64})),
]  # fmt: skip
SPECS: list[tuple[str, Craft]] = [
    *((f"spec without {name}", in_spec(name, ABSENT)) for name in ("name", "start", "order", "stages", "stages.b",
                                                                     "stages.b.name", "stages.b.kind")),
    *((f"spec {name} is 5", in_spec(name, 5)) for name in (
        "name", "start", "order", "stages", "stages.b", "stages.b.kind", "stages.b.argv", "stages.b.set",
        "stages.b.routes", "stages.b.retry", "stages.b.env", "stages.b.default_next", "bounds", "edge_limits", "state",
        "stateline", "stages.b.repeatable",
    )),
    ("spec leads nowhere", in_spec("stages.b.default_next", "nowhere")),
    ("spec fails nowhere", in_spec("stages.b.error_next", "nowhere")),
    ("spec routes nowhere", in_spec("stages.b.routes", [{"when": "true", "to": "nowhere"}])),
    ("spec starts nowhere", in_spec("start", "nowhere")),
    ("spec of an empty command", in_spec("stages.b.argv", [])),
    ("spec of a command of numbers", in_spec("stages.b.argv", [5])),
    ("spec of an unknown kind", in_spec("stages.b.kind", "parallel")),
    ("spec with set of numbers", in_spec("stages.b.set", {"n": 5})),
    ("spec with set of nested numbers", in_spec("stages.b.set", {"n": {"m": [1]}})),
    ("spec in another order", in_spec("order", ["a"])),
    ("spec is a list", lambda store, event, state: at(state, "machine.spec", store.put_value([]))),
    ("spec is a text", lambda store, event, state: at(state, "machine.spec", store.put_value("x"))),
    ("spec is the source", lambda store, event, state: at(state, "machine.spec", state["machine"]["source"])),
]  # fmt: skip


def test_a_state_that_is_not_a_runs_is_an_error_and_runs_nothing(cli: Cli, task: Task) -> None:
    failures = Failures()
    for change in [row[1] for row in STATES + SPECS]:
        with failures.case(change), cli.fresh():
            machine = begun(cli, task)
            craft(cli, change)
            done = call_all(cli, machine, [*READERS, *MOVERS])
            assert not [words for words in done if words[0] == "exec" and words[1] == "resume"], done
            assert cli("exec", "clean").code == 0
            assert cli("exec", "list").code in (0, 5)
    failures.check()


def test_a_scope_that_only_says_it_is_a_run_is_never_taken_for_one(cli: Cli, task: Task) -> None:
    begun(cli, task)
    store = Store.open(cli.state)
    store.scope("notes:r1").save({"status": "complete"}, kind="run", event={"type": "x"})
    store.scope("notes:x").save({"status": "complete"}, kind="run", event={"type": "x"})
    store.scope("run:odd").save({"status": "complete"}, kind="notes", event={"type": "x"})
    assert [row["run"] for row in cli.json("exec", "list")["runs"]] == ["r1"]
    assert cli.json("exec", "clean")["removed"] == []
    assert cli.json("exec", "clean", "--all")["removed"] == ["r1"]
    assert {row["scope"] for row in cli.json("scopes")["scopes"]} >= {"notes:r1", "notes:x", "run:odd"}


def asked(cli: Cli, task: Task) -> str:
    """The run r1 waits for an answer."""
    machine = cli.machine(ask={"human": {"prompt": "?"}, "default_next": "c"}, c=task("echo c >> ran; echo 3"))
    cli.json("execute", machine, "--id", "r1", exits=3)
    return str(machine)


def test_a_question_that_was_tampered_with_runs_nothing(cli: Cli, task: Task) -> None:
    failures = Failures()
    for change in [
        in_event("waiting", None),
        in_event("waiting", {"requestId": 5}),
        in_event("answered", {"requestId": 5, "sha256": 5}),
        in_state("tree.stage", "c"),
        in_state("interrupts", 5),
        in_spec("stages.ask.schema", {"type": 5}),
        in_spec("stages.ask.prompt", 5),
        in_spec("stages.ask.kind", "task"),
    ]:
        with failures.case(change), cli.fresh():
            machine = asked(cli, task)
            craft(cli, change)
            call_all(cli, machine, READERS)
            named = '{"requestId": "r1:0:0:00000000", "answer": 1}'
            for words in (("exec", "resume", "r1"), ("exec", "resume", "r1", "--retry"), ("execute", machine),
                          ("exec", "resume", "r1", "--answer", named), ("execute", machine, "--answer", named),
                          ("execute", machine, "--answer", named, "--dry-run")):  # fmt: skip
                result = cli(*words, "--format", "json")
                assert (
                    result.document.get("error", {}) is None
                    or result.document.get("error", {}).get("code") != "internal"
                )
                assert cli.ran() == []
    failures.check()


def test_a_context_that_was_tampered_with_is_never_a_bug(cli: Cli, task: Task) -> None:
    failures = Failures()
    for path, value in [
        *(
            (name, value)
            for name in ("prompts", "settings", "refinements", "refinements.count", "prompts.developer")
            for value in (5, None, [], "x", ABSENT)
        ),
        ("model_id", ABSENT),
        ("base_url", ABSENT),
        ("model_id", 5),
        ("prompts.system", 5),
    ]:
        with failures.case(path, value), cli.fresh():
            cli.json("run", "--state-scope", "demo", "--set", "x=1", "--developer", "D")
            scope = Store.open(cli.state).scope("context:demo")
            state = copy.deepcopy(scope.load().state)
            at(state, path, value)
            scope.save(state, kind="context", event={"type": "derive"}, masked=True)
            machine = cli.machine(a=task("echo 1"))
            for words in (
                ("run", "--state-scope", "demo", "-m", "other"),
                ("run", "--state-scope", "demo", "--dry-run"),
                ("run", "--state-scope", "demo", "--set", "x=2", "--refine-text", "R", "--dry-run"),
                ("run", "--state-scope", "demo", "--set", "x=2", "--refine-text", "R"),
                ("execute", machine, "--state-scope", "demo", "--dry-run"),
                ("execute", machine, "--state-scope", "demo"),
                ("log", "context:demo"),
                ("show", "context:demo"),
            ):
                document = cli(*words, "--format", "json").document
                assert (document.get("error") or {}).get("code") != "internal", (words, document)
    failures.check()
