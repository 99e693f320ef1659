"""The check against hostile files: junk in every place, changed bytes, and sizes that make slow work show."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import yaml
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.definition.check import Lookups, check
from stateline.machine.definition.formats.reader import read
from stateline.machine.spec import Tool, Toolset, from_json, to_json

HEAD = "stateline: 1\nname: m\n"
END = "stages: {z: {end: {}}}\n"
TOOLS = Toolset(sha256="0" * 64, tools={"search": Tool(name="search", description="", schema={}, argv=["x"])})
FULL = """\
stateline: 1
name: triage
start: intake
input: {type: object}
state: {todos: [], n: 1.0}
state_schema: {type: object, required: [todos]}
model: openai/gpt-5-mini
tools: tools.json
context: docs-demo
bounds: {max_iterations: 50, max_llm_calls: 10, max_agent_hops: 21, timeout: 300, max_tool_rounds: 5}
edge_limits: [{from: intake, to: intake, max_count: 2}]
stages:
  ask: {human: {prompt: "Ship {{ state.todos }}?", schema: {type: object}}, default_next: done}
  think: {agent: {prompt: "Rank {{ state.todos }}", tools: [search], output_schema: {type: object}}, default_next: ask}
  intake:
    task: ["./bin/intake", "--fast"]
    timeout: 60
    retry: {max_attempts: 3, backoff: 1.5}
    repeatable: true
    env: [GITHUB_TOKEN]
    set: {todos: "output.todos", deep: {er: "1 + 1"}}
    routes: [{when: "output.verdict == 'again'", to: intake}]
    default_next: ask
    error_next: recover
    max_visits: 3
  recover: {task: ["./bin/recover"], default_next: done}
  done: {end: {}}
"""


def stage(*lines: str) -> str:
    """A machine whose stage `a` has these lines, from line 5 on."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"{HEAD}stages:\n  a:\n{body}  z: {{end: {{}}}}\n"


def task(*lines: str) -> str:
    """The same with a task in line 5 and a transition to `z` in line 6, so that only `lines` (from 7) have problems."""
    return stage("task: [x]", "error_next: z", *lines)


SCALARS = st.sampled_from([None, True, 0, -1, 2, 1.5, "", "z", "a", "output.x", "{{", "x y", [], {}, [1], {"a": 1}])
KEYS = st.sampled_from(
    [
        "stateline",
        "name",
        "start",
        "input",
        "state",
        "state_schema",
        "model",
        "tools",
        "context",
        "bounds",
        "edge_limits",
        "stages",
        "task",
        "human",
        "end",
        "agent",
        "timeout",
        "retry",
        "repeatable",
        "env",
        "set",
        "routes",
        "default_next",
        "error_next",
        "max_visits",
        "when",
        "to",
        "from",
        "max_count",
        "prompt",
        "schema",
        "max_iterations",
        "backoff",
        "max_attempts",
        "a",
        "z",
    ]
)
JUNK = st.recursive(SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=4))


@given(JUNK, st.lists(st.tuples(st.integers(0, 40), JUNK), max_size=3))
def test_any_json_in_any_place_of_a_machine_gives_problems_or_a_machine(
    root: Any, changes: list[tuple[int, Any]]
) -> None:
    """Every part of a good machine is replaced by junk in turn; the check never raises."""
    tree = yaml.safe_load(FULL)
    for number, junk in changes:
        places = _places(tree)
        container, key = places[number * 7 % len(places)]
        container[key] = copy.deepcopy(junk)  # the same junk twice must not become a circle
    for value in (root, tree):
        machine, problems = check(json.dumps(value).encode(), "m.json", Lookups(toolset=lambda _: TOOLS))
        assert (machine is None) == any(problem.severity == "error" for problem in problems)
        if machine is not None:
            assert from_json(to_json(machine)) == machine
            assert machine.start in machine.stages
            for stage in machine.stages.values():
                ways = [route.to for route in stage.routes] + [stage.default_next, stage.error_next]
                assert {way for way in ways if way is not None} <= set(machine.stages)


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(part, dict | list):
            found.extend(_places(part))
    return found


@given(st.integers(0, len(FULL) - 1), st.binary(max_size=3), st.integers(0, 4))
def test_a_machine_file_with_changed_bytes_gives_problems_or_a_machine(at: int, junk: bytes, cut: int) -> None:
    data = FULL.encode()
    machine, problems = check(data[:at] + junk + data[at + cut :], "m.yaml")
    assert (machine is None) == any(problem.severity == "error" for problem in problems)


def test_line_breaks_that_only_yaml_knows_never_change_a_text() -> None:
    def one_case(mark: str) -> None:
        document = read(f'a: "x {mark} y"\n'.encode(), "m.yaml")
        assert document.findings.failed or document.value == {"a": f"x {mark} y"}

    for_each(one_case, ["\u0085", "\u2028", "\u2029"])


def test_an_end_without_a_value_is_an_end() -> None:
    machine, problems = check((HEAD + "stages:\n  z:\n    end:\n").encode(), "m.yaml")
    assert problems == ()
    assert machine is not None
    assert machine.stages["z"].kind == "end"


def test_places_take_bounded_memory_and_a_part_without_one_has_its_parents() -> None:
    document = read(("x: [" + "1, " * 150_000 + "1e999]\n").encode(), "m.yaml")
    assert len(document.findings.positions) <= 100_000
    assert [problem.code for problem in document.findings.problems()] == ["number_range"]


MANY = range(20_000)
LARGE = {
    "unknown keys": HEAD + "".join(f"key{n}: 1\n" for n in MANY),
    "ways to nowhere": HEAD + "stages:\n" + "".join(f"  s{n}: {{task: [x], default_next: t{n}}}\n" for n in MANY),
    "a circle": HEAD + "stages:\n" + "".join(f"  s{n}: {{task: [x], default_next: s{n - 1}}}\n" for n in MANY),
    "edges to nowhere": HEAD + END + "edge_limits:\n" + "- {from: y, to: x, max_count: 1}\n" * 10_000,
    "bad conditions": task("routes:", *(f"- {{when: 'foo{n}', to: z}}" for n in range(10_000))),
    "bad templates": stage("human:", f'  prompt: "{"{{ foo }}" * 5_000}"', "default_next: z"),
}


def test_a_large_file_full_of_mistakes_is_answered_in_bounded_time_and_length() -> None:
    def one_case(text: str) -> None:
        begun = time.process_time()
        problems = check(text.encode(), "m.yaml")[1]
        assert time.process_time() - begun < 5  # measured: 1 with the bounds on guessing, 9 without
        assert len(problems) <= 501
        assert all(len(problem.message) < 1000 and len(problem.where) < 1000 for problem in problems)

    for_each(one_case, [(case,) for case in LARGE.values()])
