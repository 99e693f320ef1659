"""The loaders of machines and runs: files, stored specs, states, what tasks print, expressions and schemas."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import msgspec
from stress.oracle import require

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Envelope
from stateline.bundle.terminal import HARMFUL
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.engine import evaluate as evaluating
from stateline.engine import next_event
from stateline.engine.event_codec import Cost
from stateline.engine.record import facts_of, read_run
from stateline.errors import IntegrityError, InvalidValueError, StatelineError
from stateline.history import diff
from stateline.machine import spec
from stateline.machine.decider.advance import advance
from stateline.machine.decider.run import (
    Answered,
    Asked,
    CallEnded,
    Event,
    Failed,
    Intended,
    Lost,
    Replaced,
    Replied,
    Retried,
    Started,
    Succeeded,
    Unsent,
)
from stateline.machine.definition.check import Lookups, check
from stateline.machine.definition.formats.python_text import Evaluated
from stateline.machine.definition.formats.reader import read
from stateline.machine.expressions import cel, cel_errors, json_schema, templates
from stateline.process import child, program, task
from stateline.process.pipes import CapturedOutput
from stateline.redaction.redactor import Redactor
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.tools import runner

SECRET = "hunter2-hunter2"
TREE: dict[str, Any] = {
    "stateline": 1,
    "name": "triage",
    "start": "intake",
    "input": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"pattern": "^a+$"}}},
    "state": {"todos": [], "n": 1.0},
    "state_schema": {"type": "object", "required": ["todos"]},
    "bounds": {"max_iterations": 50, "max_llm_calls": 10, "max_agent_hops": 21, "timeout": 300},
    "edge_limits": [{"from": "intake", "to": "intake", "max_count": 2}],
    "stages": {
        "ask": {"human": {"prompt": "Ship {{ state.todos }}?", "schema": {"type": "object"}}, "default_next": "done"},
        "intake": {
            "task": ["./bin/intake", "--fast"],
            "timeout": 60,
            "retry": {"max_attempts": 3, "backoff": 1.5},
            "env": ["GITHUB_TOKEN"],
            "set": {"todos": "output.todos", "deep": {"er": "1 + 1"}},
            "routes": [{"when": "output.verdict == 'again'", "to": "intake"}],
            "default_next": "ask",
            "error_next": "done",
            "max_visits": 3,
        },
        "done": {"end": {}},
    },
}
YAML = b"""\
stateline: 1
name: triage  # a comment
state: {todos: [], n: 1.0}
state_schema:
  type: object
  required: [todos]
stages:
  intake:
    task: ["./bin/intake", '--fast']
    set: {n: "state.n + 1.0"}
    routes:
    - {when: "output.verdict == 'again'", to: intake}
    default_next: ask
  ask:
    human:
      prompt: |
        Ship {{ state.todos }}?
        Or not?
      schema: {type: object}
    default_next: done
  done: {end: {}}
"""
TOML = b'''\
stateline = 1
name = "triage"  # a comment
state = {todos = [], n = 1.0}
[state_schema]
type = "object"
required = ["todos"]
[stages.intake]
task = ["./bin/intake", '--fast']
set.n = "state.n + 1.0"
default_next = "ask"
[[stages.intake.routes]]
when = "output.verdict == 'again'"
to = "intake"
[stages.ask]
default_next = "done"
[stages.ask.human]
prompt = """
Ship {{ state.todos }}?\\
   Or not?"""
schema = {type = "object"}
[stages.done]
end = {}
'''
PYTHON = b"""\
done = {'end': {}}
machine: dict = {
    'stateline': 1,
    'stages': {'a': done, 'b': [done, {**done}]},
}
"""


def machine_file(name: str, data: bytes) -> None:
    """A check gives a machine or mistakes, and a machine is kept as it is. What is said can be printed."""
    evaluate = (lambda source: Evaluated(value=TREE)) if name.endswith(".py") else None
    machine, said = check(data, name, Lookups(evaluate=evaluate))
    require(
        (machine is None) == any(problem.severity == "error" for problem in said), "neither a machine nor a mistake"
    )
    for problem in said:
        words = f"{problem.where}{problem.message}{problem.hint}"
        require(not set(map(ord, words)) & HARMFUL, f"{problem.code} acts on a terminal: {words!a}")
        require(len(problem.message) < 1000, f"{problem.code} is too long")
    if machine is not None:
        kept = canonical.decode(canonical.encode(spec.to_json(machine)))
        require(spec.from_json(kept) == machine, "a machine is not kept as it is")
    if name.endswith(".json"):
        document = read(data, name)
        try:
            value = canonical.parse(data)
        except InvalidValueError:
            # What comes from outside lies deeper in a run's state than a machine's parts do, and may nest less.
            deep = canonical.deeper_than(data, canonical.OUTSIDE_DEPTH)
            require(document.findings.failed or deep, "taken by one reader of JSON only")
        else:
            require(document.value == value and not document.findings.failed, "the readers of JSON differ")


def evaluated(data: bytes) -> None:
    """Check arbitrary output of a Python machine's process, which its file controls."""
    output = CapturedOutput(canonical.TEXT_LIMIT)
    output.add_stdout(data)
    ended = child.Exit(reason="exited", code=0, alive=False, output=output)
    result = evaluating._meaning(ended, 1.0)
    machine, said = check(b"machine = 1\n", "m.py", Lookups(evaluate=lambda source: result))
    require(
        (machine is None) == any(problem.severity == "error" for problem in said), "neither a machine nor a mistake"
    )
    for problem in said:
        words = f"{problem.where}{problem.message}{problem.hint}"
        require(not set(map(ord, words)) & HARMFUL, f"{problem.code} acts on a terminal: {words!a}")


EVENTS: tuple[Event, ...] = (
    Started(input={"a": "aa"}),
    Intended(),
    Succeeded(output={"todos": [1], "verdict": "again"}),
    Succeeded(output=None),
    Failed(kind="exit", message="no"),
    Answered(value={"n": 1}),
    Lost(),
    Retried(),
    Replaced(),
)


def _decide_all(machine: spec.Machine, state: Any, facts: Any) -> None:
    for event in EVENTS:
        try:
            decision = advance(machine, state, event, facts)
        except StatelineError:
            continue
        require(decision.state.tree.stage in machine.stages, f"{event} leads to a stage that is not there")


def stored_spec(data: bytes) -> None:
    """A spec out of the store: whoever wrote it, the decider decides by it or refuses."""
    try:
        machine = spec.from_json(canonical.decode(data))
    except (IntegrityError, msgspec.ValidationError):
        return
    kept = canonical.encode(spec.to_json(machine), depth=canonical.FILE_DEPTH)
    require(spec.from_json(canonical.decode(kept)) == machine, "a spec is not kept as it is")
    try:
        begun = advance(machine, None, EVENTS[0]).state
    except StatelineError:
        return
    _decide_all(machine, begun, facts_of_nothing())


def facts_of_nothing() -> Any:
    from stateline.machine.decider.run import Facts

    return Facts()


@cache
def _store() -> tuple[Store, dict[str, Any]]:
    """A store that holds the machine, and the state of a run of it with the objects' places empty."""
    store = Store.in_memory()
    machine, said = check(json.dumps(TREE).encode(), "m.json")
    if machine is None:
        raise ValueError(said)
    kept = store.put_value(spec.to_json(machine))
    begun = advance(machine, None, Started(input={"a": "aa"}))
    state = {**msgspec.to_builtins(begun.state), "machine": {"format": "json", "source": None, "spec": None}}
    place = {"name": "triage", "path": "/home/me/m.json", "sha256": "ab" * 32}
    event = {
        "type": "started", "run": "r1", "birth": "0a0b0c0d", "turn": 0, "started_at": "2026-11-20T09:26:59.123456Z",
        "stage": "intake", "machine": place, "meters": {"active": 0.5, "llm_calls": 0}, "durability": "full",
        "transitions": [{"edge_count": 0, "from": None, "iteration": 0, "reason": "start", "to": "intake"}],
        "effect": {"key": "r1:0:0:0a0b0c0d", "attempt": 1},
    }  # fmt: skip
    return store, {"state": state, "event": event, "objects": {"/machine/source": kept, "/machine/spec": kept}}


def run_snapshot(data: bytes) -> None:
    """A run's state and event, as anybody could write them who can write snapshots: what is taken for a run can be
    decided on, and a repair can go on from it; all else is an ``IntegrityError``."""
    store, good = _store()
    try:
        crafted = canonical.decode(data)
        state, event = crafted["state"], crafted["event"]
    except (IntegrityError, KeyError, TypeError):
        return
    if not isinstance(event, dict):
        return
    envelope = Envelope(
        seq=0, created_at="2026-11-20T09:26:59.123456Z", tool_version="0", scope="run:r1", prev=None, prev_sha=None,
        kind="run", event=event, state=state, objects=copy.deepcopy(good["objects"]),
    )  # fmt: skip
    scope = store.scope("run:r1")
    name = naming.snapshot_name(envelope.created_at, "ab" * 32)
    head = Snapshot(scope.hash, name, "ab" * 32, b"", envelope)
    next_event.after_repair(head, True)
    try:
        run = read_run(store, scope, head)
    except StatelineError as error:
        require(error.exit_code in (1, 5), f"exit code {error.exit_code}")
        return
    except (KeyError, IndexError, TypeError, ValueError):
        # Where the table of objects has no place in the state, the envelope's reader has refused the file before.
        from stateline.bundle.envelope import table_problem

        if not table_problem(state, envelope.objects):
            raise
        return
    try:
        facts = facts_of(run)
    except StatelineError:
        return
    _decide_all(run.machine, run.state, facts)
    for done in (
        Intended(), Succeeded(output={"todos": []}), Answered(value={"n": 1}), Asked(), Replied(content="Hi."),
        CallEnded(id="a", result=None), Lost(), Unsent(),
    ):  # fmt: skip
        try:
            decision = advance(run.machine, run.state, done, facts)
            document = next_event.describe(run, done, decision, next_event.carried(run, done, Cost(seconds=0.25)))
            canonical.encode({"event": document, "state": msgspec.to_builtins(decision.state)})
        except StatelineError:
            continue


def _run_seeds() -> list[bytes]:
    _, good = _store()
    first = {"state": good["state"], "event": good["event"]}
    waiting = copy.deepcopy(first)
    waiting["state"] |= {"status": "waiting", "interrupts": [{"kind": "human", "stage": "ask"}]}
    waiting["state"]["tree"] |= {"stage": "ask", "phase": "waiting", "pending": []}
    waiting["event"] |= {"waiting": {"requestId": "r1:3:0:0a0b0c0d"}, "stage": "ask"}
    failed = copy.deepcopy(first)
    failed["state"]["status"] = "error"
    failed["state"]["tree"] |= {"phase": "failed", "error": {"stage": "intake", "kind": "exit", "message": "no"}}
    return [canonical.encode(one) for one in (first, waiting, failed)]


def context_state(data: bytes) -> None:
    """A context's state as anybody could write it: it is refined, restored, or refused."""
    try:
        state = canonical.decode(data, depth=canonical.DEPTH)
    except IntegrityError:
        return
    store = Store.in_memory()
    store.scope("context:c").save(state, kind="context", event={"type": "derive"}, masked=True)
    for context_request in (ContextRequest(), ContextRequest(refine="More.", settings={"a": 1}, model="m", system="s")):
        try:
            prepare(store, ContextOptions(name="c", context_request=context_request))
        except StatelineError as error:
            require(error.exit_code in (1, 5), f"exit code {error.exit_code}")


def _context_seeds() -> list[bytes]:
    store = Store.in_memory()
    context_request = ContextRequest(
        model="m", base_url="https://x", system="Be kind.", developer=["a"], settings={"k": 1}, refine="b"
    )
    prepare(store, ContextOptions(name="c", context_request=context_request))
    return [canonical.encode(store.resolve(store.scope("context:c").load().state))]


@cache
def _call() -> program.Program:
    redactor = Redactor([("password", SECRET)])
    return program.Program(
        argv=["x"], directory="/", document=b"", timeout=1.0, mask=lambda text: str(redactor.redact(text)[0])
    )


def _outcomes(data: bytes) -> Iterator[bytes | program.ProgramFailure]:
    """Return the results of a program that wrote ``data`` to both streams, for each way to end."""
    for reason, code in (("exited", 0), ("exited", 3), ("exited", -9), ("timeout", None), ("overflow", None)):
        output = CapturedOutput(canonical.TEXT_LIMIT)
        output.add_stdout(data)
        output.add_stderr(data)
        ended = child.Exit(reason=reason, code=code, alive=False, output=output)  # type: ignore[arg-type]
        yield program._outcome(_call(), ended)


def task_output(data: bytes) -> None:
    """Check the output of a task, on either stream and for any end: a value that can be stored, or a failure in words
    that can be printed and hold no secret."""
    call = _call()
    for outcome in _outcomes(data):
        event = task.to_event(call, outcome)
        if isinstance(event, Succeeded):
            canonical.encode(event.output, depth=canonical.OUTSIDE_DEPTH)
            continue
        words = event.message + event.hint
        words.encode()
        require(not set(map(ord, words)) & (HARMFUL - {9, 10}), "a failure that acts on a terminal")
        require(SECRET not in words, "a secret is shown")
        require(len(words) < 20_000, "a failure's words are too many")


def tool_output(data: bytes) -> None:
    """Check the output of a tool: a result that a message of a run can hold, or an error in words as those of a
    task."""
    for outcome in _outcomes(data):
        result = runner.to_result(outcome)
        canonical.encode({"tree": {"conversation": [{"role": "tool", "content": result}]}})
        if isinstance(outcome, bytes):
            require(outcome.strip(b" \t\r\n") != b"" or result is None, "white space is taken for a result")
            continue
        words = result["error"]["message"]
        require(not set(map(ord, words)) & (HARMFUL - {9, 10}), "an error that acts on a terminal")
        require(SECRET not in words, "a secret is shown")
        require(len(words) < 40_000, "an error's words are too many")


NAMES: dict[str, Any] = {
    "input": {"a": [1, 2.5, "x"], "t": "a" * 200},
    "state": {"n": 1.0, "todos": [{"id": 1}]},
    "outputs": {"intake": {"verdict": "again"}},
    "output": {"verdict": "again", "todos": [1, 2]},
    "context": None,
    "error": None,
    "visits": {"intake": 2},
}


def expression(data: bytes) -> None:
    """A CEL expression and a template of a machine file: a JSON value, a text, or a ``ExpressionError``."""
    text = data.decode("utf-8", "replace")
    said = cel.compile_error(text)
    try:
        value = cel.evaluate(text, NAMES)
    except cel_errors.ExpressionError as error:
        require(len(error.message) < 5000, "the words are too many")
    else:
        require(said is None, "evaluated although it does not compile")
        canonical.encode(value, depth=canonical.FILE_DEPTH)
    template = f"a {{{{{text}}}}} b"
    templates.template_problems(template)
    try:
        templates.render(template, NAMES).encode()
    except cel_errors.ExpressionError:
        pass


def schema(data: bytes) -> None:
    """A JSON Schema of a machine file, and a value that it is asked about: ``[schema, value]``."""
    try:
        document = canonical.parse(data)
    except InvalidValueError:
        return
    found, value = document if isinstance(document, list) and len(document) == 2 else (document, document)
    said = json_schema.problems(found)
    broken = json_schema.violations(found, value)
    require(not said or bool(broken), "a schema with mistakes lets a value pass")
    require(all(len(line) < 2000 for line in said + broken) and len(said + broken) <= 50, "the words are too many")


def difference(data: bytes) -> None:
    """Two values ``[old, new]`` out of snapshots: the patch between them leads from one to the other."""
    import jsonpatch

    try:
        old, new = canonical.decode(data, depth=canonical.DEPTH + 1)
    except (IntegrityError, TypeError, ValueError):
        return
    store = Store.in_memory()
    patch = diff.patch(store, diff.compare(store, old, new))
    require(jsonpatch.apply_patch(copy.deepcopy(old), patch) == new, "the patch leads somewhere else")


Parts = tuple[Callable[[bytes], None], Callable[[], list[bytes]], bool]

LOADERS: dict[str, Parts] = {
    "machines in YAML": (partial(machine_file, "m.yaml"), lambda: [YAML, json.dumps(TREE).encode()], True),
    "machines in JSON": (partial(machine_file, "m.json"), lambda: [json.dumps(TREE, indent=1).encode()], True),
    "machines in TOML": (partial(machine_file, "m.toml"), lambda: [TOML], True),
    "machines in Python": (partial(machine_file, "m.py"), lambda: [PYTHON], True),
    "what a Python machine's process prints": (
        evaluated,
        lambda: [
            json.dumps({"value": TREE}).encode(),
            b'{"code": "exception", "message": "no", "hint": "h", "line": 1, "path": ["a", 0]}',
        ],
        True,
    ),
    "stored specs": (stored_spec, lambda: [_spec_seed()], True),
    "snapshots of runs": (run_snapshot, _run_seeds, True),
    "contexts": (context_state, _context_seeds, False),
    "what tasks print": (
        task_output,
        lambda: [
            b'{"a":1}\n',
            f"failed: {SECRET}\x1b[0m\r\n".encode(),
            b'{"a":1,"a":2}',
            b"\xff" * 40,
            b'{"a":[1e999]}',
        ],
        False,
    ),
    "what tools print": (
        tool_output,
        lambda: [b'{"a":1}\n', b"two words\n", f"failed: {SECRET}\x1b[0m\r\n".encode(), b"\xff" * 40, b"[" * 200],
        False,
    ),
    "expressions": (
        expression,
        lambda: [
            b"output.verdict == 'again' && state.n > 1.0",
            b"input.a.map(x, string(x)).filter(s, s.size() > 0)",
            b"has(output.x) ? output.x : null",
            b"timestamp('2026-01-01T00:00:00Z') + duration('1h')",
            b"'a'.matches('^a+$') || \"b\" in {'b': b'\\xff'}",
            b"{'a': [1, 2u, 3.0, r'\\d'], 'b': visits['intake']}",
        ],
        True,
    ),
    "JSON Schemas": (
        schema,
        lambda: [
            json.dumps([TREE["input"], {"a": "aaa"}]).encode(),
            b'[{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"type":["object","null"],"maxProperties":2}}},{"a":1}]',
            b'[{"$schema":"http://json-schema.org/draft-07/schema#","items":{"format":"date","enum":["x"]}},["x",1]]',
        ],
        True,
    ),
    "differences": (
        difference,
        lambda: [b'[{"a":[1,2,3],"b":{"c":"x"}},{"a":[0,1,3],"b":{"d":"y"}}]', b"[[1],[1.0]]"],
        False,
    ),
}
"""By name: feed, seeds, native."""


def _spec_seed() -> bytes:
    store, good = _store()
    return store.get(good["objects"]["/machine/spec"])
