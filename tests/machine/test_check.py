"""`machine check`: a good file becomes a machine, and all mistakes in a bad one are reported with their positions."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import yaml
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import InvalidMachineError, NotFoundError
from stateline.machine.definition.check import Lookups, Problem, check, load
from stateline.machine.spec import (
    Agent,
    Bounds,
    EdgeLimit,
    Machine,
    Retry,
    Route,
    Stage,
    Tool,
    Toolset,
    from_json,
    to_json,
)

GOOD = """\
stateline: 1
name: triage
start: intake
input: {type: object}
state: {todos: []}
state_schema: {type: object, required: [todos]}
model: openai/gpt-5-mini
tools: tools.json
context: docs-demo
bounds: {max_iterations: 50, max_llm_calls: 10, max_agent_hops: 21, timeout: 300, max_tool_rounds: 5, max_tokens: 1000}
edge_limits: [{from: critic, to: intake, max_count: 2}]
stages:
  intake:
    task: ["./bin/intake", "--fast"]
    timeout: 60
    retry: {max_attempts: 3, backoff: 1.5}
    repeatable: true
    env: [GITHUB_TOKEN]
    set: {todos: "output.todos", deep: {er: "1"}}
    routes: [{when: "output.verdict == 'again'", to: intake}]
    default_next: critic
    error_next: recover
    max_visits: 3
  critic: {human: {prompt: "Ship {{ state.todos }}?", schema: {type: object}}, default_next: think}
  think:
    agent: {prompt: "Rank {{ state.todos }}", tools: [search, fetch], output_schema: {type: array}, model: openai/x}
    timeout: 90
    retry: {max_attempts: 2}
    set: {todos: output}
    default_next: done
  recover: {task: [date], default_next: done}
  done: {end: {}}
"""


TOOLSET = Toolset(
    sha256="0" * 64,
    tools={
        name: Tool(name=name, description="", schema={"type": "object"}, argv=["x"])
        for name in ("fetch", "search", "other")
    },
)


def broken(data: str | bytes, name: str = "m.yaml") -> list[Problem]:
    machine, problems = check(data.encode() if isinstance(data, str) else data, name)
    errors = [problem for problem in problems if problem.severity == "error"]
    assert (machine is None) is bool(errors)
    return list(problems)


def test_a_good_file_becomes_the_machine_it_describes() -> None:
    machine, problems = check(GOOD.encode(), "m.yaml", Lookups(toolset=lambda name: {"tools.json": TOOLSET}[name]))
    assert problems == ()
    assert machine == Machine(
        name="triage",
        start="intake",
        order=["intake", "critic", "think", "recover", "done"],
        input={"type": "object"},
        state={"todos": []},
        state_schema={"type": "object", "required": ["todos"]},
        model="openai/gpt-5-mini",
        tools="tools.json",
        context="docs-demo",
        bounds=Bounds(
            max_iterations=50, max_llm_calls=10, max_agent_hops=21, timeout=300.0, max_tool_rounds=5, max_tokens=1000
        ),
        toolset=TOOLSET,
        edge_limits=[EdgeLimit(source="critic", target="intake", max_count=2)],
        stages={
            "intake": Stage(
                name="intake",
                kind="task",
                argv=["./bin/intake", "--fast"],
                timeout=60.0,
                retry=Retry(max_attempts=3, backoff=1.5),
                repeatable=True,
                env=["GITHUB_TOKEN"],
                set={"todos": "output.todos", "deep": {"er": "1"}},
                routes=[Route(when="output.verdict == 'again'", to="intake")],
                default_next="critic",
                error_next="recover",
                max_visits=3,
            ),
            "critic": Stage(
                name="critic",
                kind="human",
                prompt="Ship {{ state.todos }}?",
                schema={"type": "object"},
                default_next="think",
            ),
            "think": Stage(
                name="think",
                kind="agent",
                agent=Agent(
                    prompt="Rank {{ state.todos }}",
                    tools=["search", "fetch"],
                    output_schema={"type": "array"},
                    model="openai/x",
                ),
                timeout=90.0,
                retry=Retry(max_attempts=2),
                repeatable=True,
                set={"todos": "output"},
                default_next="done",
            ),
            "recover": Stage(name="recover", kind="task", argv=["date"], default_next="done"),
            "done": Stage(name="done", kind="end"),
        },
    )
    assert isinstance(machine.bounds.timeout, float)
    assert from_json(json.loads(json.dumps(to_json(machine)))) == machine


def test_the_smallest_machine_has_the_defaults() -> None:
    machine = load(b'{"stateline": 1, "name": "m", "stages": {"b": {"task": ["x"]}, "a": {"end": {}}}}', "m.json")
    assert (machine.start, machine.order) == ("b", ["b", "a"])
    assert machine.bounds == Bounds()
    assert machine.stages["b"] == Stage(name="b", kind="task", argv=["x"])
    assert (machine.input, machine.state, machine.state_schema, machine.model) == (None, {}, None, None)


def test_a_yaml_file_and_the_same_in_json_give_the_same_machine() -> None:
    tree = yaml.safe_load(GOOD)
    assert load(json.dumps(tree, indent=2).encode(), "m.json") == load(GOOD.encode(), "m.yaml")


HEAD = "stateline: 1\nname: m\n"
TASK = "    task: [x]\n"
AGENT = HEAD + "tools: t.json\nstages:\n  a:\n    agent: {prompt: x, "

TABLE: list[tuple[str, str, str]] = [
    # the file as a whole
    ("", "syntax", "1:1"),
    ("just text", "wrong_type", "1:1"),
    ("[]", "wrong_type", "1:1"),
    ("null", "wrong_type", "1:1"),
    ("name: m\nstages: {a: {end: {}}}", "missing_key", "1:1"),
    ("stateline: 1\nstages: {a: {end: {}}}", "missing_key", "1:1"),
    ("stateline: 1\nname: m\n", "missing_key", "1:1"),
    ("stateline: 2\nname: m\nnew_word: 1\n", "newer_version", "1:1 stateline"),
    ("stateline: 0\nname: m\nstages: {a: {end: {}}}", "bad_value", "1:1 stateline"),
    ("stateline: '1'\nname: m\nstages: {a: {end: {}}}", "wrong_type", "1:1 stateline"),
    ("stateline: true\nname: m\nstages: {a: {end: {}}}", "wrong_type", "1:1 stateline"),
    ("stateline: 1.0\nname: m\nstages: {a: {end: {}}}", "wrong_type", "1:1 stateline"),
    ("stateline: 1\nname: 'a b'\nstages: {a: {end: {}}}", "bad_name", "2:1 name"),
    ("stateline: 1\nname: ../../x\nstages: {a: {end: {}}}", "bad_name", "2:1 name"),
    ("stateline: 1\nname: 7\nstages: {a: {end: {}}}", "wrong_type", "2:1 name"),
    ("stateline: 1\nname: ''\nstages: {a: {end: {}}}", "bad_value", "2:1 name"),
    (f"stateline: 1\nname: {'n' * 65}\nstages: {{a: {{end: {{}}}}}}", "bad_name", "2:1 name"),
    (HEAD + "stage: {}\nstages: {a: {end: {}}}", "unknown_key", "3:1 stage"),
    (HEAD + "name: n\nstages: {a: {end: {}}}", "duplicate_key", "3:1 name"),
    (HEAD + "stages: {}", "no_stages", "3:1 stages"),
    (HEAD + "stages: [a]", "wrong_type", "3:1 stages"),
    (HEAD + "stages:\n", "wrong_type", "3:1 stages"),
    (HEAD + "stages: {a: {end: {}}}\nstart: b", "unknown_stage", "4:1 start"),
    (HEAD + "stages: {a: {end: {}}}\nstart: 1", "wrong_type", "4:1 start"),
    (HEAD + "stages: {a: {end: {}}}\nmodel: [x]", "wrong_type", "4:1 model"),
    (HEAD + "stages: {a: {end: {}}}\ntools: ''", "bad_value", "4:1 tools"),
    (HEAD + "stages: {a: {end: {}}}\ncontext: null", "wrong_type", "4:1 context"),
    (HEAD + "stages: {a: {end: {}}}\ninput: {type: objekt}", "bad_schema", "4:1 input"),
    (HEAD + "stages: {a: {end: {}}}\ninput: {$ref: 'http://127.0.0.1:1/x'}", "bad_schema", "4:1 input"),
    (HEAD + "stages: {a: {end: {}}}\nstate: [1]", "wrong_type", "4:1 state"),
    (HEAD + "stages: {a: {end: {}}}\nstate_schema: {type: 3}", "bad_schema", "4:1 state_schema"),
    (
        HEAD + "stages: {a: {end: {}}}\nstate: {n: x}\nstate_schema: {properties: {n: {type: integer}}}",
        "state_violates_schema",
        "4:1 state",
    ),
    (HEAD + "stages: {a: {end: {}}}\nstate_schema: {required: [n]}", "state_violates_schema", "4:1 state_schema"),
    # bounds and edge limits
    (HEAD + "stages: {a: {end: {}}}\nbounds: 5", "wrong_type", "4:1 bounds"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {max_iteration: 5}", "unknown_key", "4:10 bounds.max_iteration"),
    (HEAD + "stages: {a: {end: {}}}\nbounds:\n  max_iterations: -1", "bad_value", "5:3 bounds.max_iterations"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {max_iterations: 1.5}", "wrong_type", "4:10 bounds.max_iterations"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {max_iterations: true}", "wrong_type", "4:10 bounds.max_iterations"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {timeout: -0.5}", "bad_value", "4:10 bounds.timeout"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {timeout: 5m}", "wrong_type", "4:10 bounds.timeout"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {timeout: .inf}", "wrong_type", "4:10 bounds.timeout"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {timeout: 1e999}", "number_range", "4:19 bounds.timeout"),
    (HEAD + "stages: {a: {end: {}}}\nedge_limits: {from: a}", "wrong_type", "4:1 edge_limits"),
    (HEAD + "stages: {a: {end: {}}}\nedge_limits:\n  - x", "wrong_type", "5:5 edge_limits[0]"),
    (
        HEAD + "stages: {a: {end: {}}}\nedge_limits:\n  - {from: a, to: b, max_count: 1}",
        "unknown_stage",
        "5:15 edge_limits[0].to",
    ),
    (HEAD + "stages: {a: {end: {}}}\nedge_limits:\n  - {from: a, max_count: 1}", "missing_key", "5:5 edge_limits[0]"),
    (HEAD + "stages: {a: {end: {}}}\nedge_limits:\n  - {from: a, to: a}", "missing_key", "5:5 edge_limits[0]"),
    (
        HEAD + "stages: {a: {end: {}}}\nedge_limits:\n  - {from: a, to: a, max_count: -1}",
        "bad_value",
        "5:22 edge_limits[0].max_count",
    ),
    (
        HEAD + "stages: {a: {end: {}}}\nedge_limits:\n  - {from: a, to: a, max: 1, max_count: 1}",
        "unknown_key",
        "5:22 edge_limits[0].max",
    ),
    # stages
    (HEAD + "stages:\n  a b:\n    end: {}", "bad_name", "4:3 stages['a b']"),
    (HEAD + "stages:\n  _a: {end: {}}", "bad_name", "4:3 stages._a"),
    (HEAD + "stages:\n  a: task", "wrong_type", "4:3 stages.a"),
    (HEAD + "stages:\n  a:\n", "wrong_type", "4:3 stages.a"),
    (HEAD + "stages:\n  a: {}", "stage_kind", "4:3 stages.a"),
    (HEAD + "stages:\n  a: {task: [x], end: {}}", "stage_kind", "4:3 stages.a"),
    (HEAD + "stages:\n  a: {parallel: []}", "stage_not_available", "4:7 stages.a.parallel"),
    (HEAD + "stages:\n  a: {map: {}}", "stage_not_available", "4:7 stages.a.map"),
    (HEAD + "stages:\n  a: {end: {x: 1}}", "unknown_key", "4:13 stages.a.end.x"),
    (HEAD + "stages:\n  a:\n    end: {}\n    routes: []", "key_not_for_kind", "6:5 stages.a.routes"),
    (HEAD + "stages:\n  a:\n    end: {}\n    set: {}", "key_not_for_kind", "6:5 stages.a.set"),
    (HEAD + "stages:\n  a:\n    end: {}\n    timeout: 1", "key_not_for_kind", "6:5 stages.a.timeout"),
    (HEAD + "stages:\n  a:\n    human: {prompt: x}\n    retry: {}", "key_not_for_kind", "6:5 stages.a.retry"),
    (HEAD + "stages:\n  a:\n    human: {prompt: x}\n    env: []", "key_not_for_kind", "6:5 stages.a.env"),
    (HEAD + "stages:\n  a:\n" + TASK + "    tiemout: 5", "unknown_key", "6:5 stages.a.tiemout"),
    # tasks
    (HEAD + "stages:\n  a: {task: []}", "bad_value", "4:7 stages.a.task"),
    (HEAD + "stages:\n  a: {task: ['']}", "bad_value", "4:7 stages.a.task"),
    (HEAD + "stages:\n  a: {task: ls -l}", "wrong_type", "4:7 stages.a.task"),
    (HEAD + "stages:\n  a: {task: [head, 5]}", "wrong_type", "4:20 stages.a.task[1]"),
    (HEAD + 'stages:\n  a: {task: [x, "a\\0b"]}', "bad_value", "4:17 stages.a.task[1]"),
    (HEAD + "stages:\n  a:\n" + TASK + "    timeout: true", "wrong_type", "6:5 stages.a.timeout"),
    (HEAD + "stages:\n  a:\n" + TASK + "    timeout: -1", "bad_value", "6:5 stages.a.timeout"),
    (HEAD + "stages:\n  a:\n" + TASK + "    timeout: '60'", "wrong_type", "6:5 stages.a.timeout"),
    (HEAD + "stages:\n  a:\n" + TASK + "    timeout: 1:30", "wrong_type", "6:5 stages.a.timeout"),
    (HEAD + "stages:\n  a:\n" + TASK + "    retry: 3", "wrong_type", "6:5 stages.a.retry"),
    (HEAD + "stages:\n  a:\n" + TASK + "    retry: {max_attempts: 0}", "bad_value", "6:13 stages.a.retry.max_attempts"),
    (HEAD + "stages:\n  a:\n" + TASK + "    retry: {backoff: -1}", "bad_value", "6:13 stages.a.retry.backoff"),
    (HEAD + "stages:\n  a:\n" + TASK + "    retry: {attempts: 2}", "unknown_key", "6:13 stages.a.retry.attempts"),
    (HEAD + "stages:\n  a:\n" + TASK + "    repeatable: yes", "wrong_type", "6:5 stages.a.repeatable"),
    (HEAD + "stages:\n  a:\n" + TASK + "    env: TOKEN", "wrong_type", "6:5 stages.a.env"),
    (HEAD + "stages:\n  a:\n" + TASK + "    env: [TOKEN, A=b]", "bad_value", "6:18 stages.a.env[1]"),
    (HEAD + "stages:\n  a:\n" + TASK + "    max_visits: -1", "bad_value", "6:5 stages.a.max_visits"),
    # agents
    (HEAD + "stages:\n  a:\n    agent: {}", "missing_key", "5:5 stages.a.agent"),
    (HEAD + "stages:\n  a:\n    agent: 'Think.'", "wrong_type", "5:5 stages.a.agent"),
    (HEAD + "stages:\n  a:\n    agent: {prompt: ''}", "bad_value", "5:13 stages.a.agent.prompt"),
    (HEAD + "stages:\n  a:\n    agent: {prompt: '{{ stat }}'}", "bad_template", "5:13 stages.a.agent.prompt"),
    (HEAD + "stages:\n  a:\n    agent: {prompt: '{{ state'}", "bad_template", "5:13 stages.a.agent.prompt"),
    (HEAD + "stages:\n  a:\n    agent: {prompt: x, schema: true}", "unknown_key", "5:24 stages.a.agent.schema"),
    (AGENT + "output_schema: {type: x}}", "bad_schema", "6:24 stages.a.agent.output_schema"),
    (AGENT + "model: [x]}", "wrong_type", "6:24 stages.a.agent.model"),
    (AGENT + "model: ''}", "bad_value", "6:24 stages.a.agent.model"),
    (AGENT + "tools: search}", "wrong_type", "6:24 stages.a.agent.tools"),
    (AGENT + "tools: [search, 5]}", "wrong_type", "6:40 stages.a.agent.tools[1]"),
    (AGENT + "tools: ['a b']}", "bad_name", "6:32 stages.a.agent.tools[0]"),
    (AGENT + "tools: [1st]}", "bad_name", "6:32 stages.a.agent.tools[0]"),
    (AGENT + f"tools: [{'n' * 65}]}}", "bad_name", "6:32 stages.a.agent.tools[0]"),
    (AGENT + "tools: [a, b, a]}", "bad_value", "6:38 stages.a.agent.tools[2]"),
    (HEAD + "stages:\n  a:\n    agent: {prompt: x, tools: [search]}", "no_tools", "5:24 stages.a.agent.tools"),
    (AGENT + "tools: [a]}\n    env: [A]", "key_not_for_kind", "7:5 stages.a.env"),
    (AGENT + "tools: [a]}\n    repeatable: 1", "wrong_type", "7:5 stages.a.repeatable"),
    (AGENT + "tools: [a]}\n    default_next: a", "self_loop", "7:5 stages.a.default_next"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {max_tool_rounds: -1}", "bad_value", "4:10 bounds.max_tool_rounds"),
    (HEAD + "stages: {a: {end: {}}}\nbounds: {max_tokens: 1.5}", "wrong_type", "4:10 bounds.max_tokens"),
    # ways on
    (HEAD + "stages:\n  a:\n" + TASK + "    default_next: b", "unknown_stage", "6:5 stages.a.default_next"),
    (HEAD + "stages:\n  a:\n" + TASK + "    error_next: b", "unknown_stage", "6:5 stages.a.error_next"),
    (HEAD + "stages:\n  a:\n" + TASK + "    default_next: ''", "bad_value", "6:5 stages.a.default_next"),
    (HEAD + "stages:\n  a:\n" + TASK + "    default_next: a", "self_loop", "6:5 stages.a.default_next"),
    (HEAD + "stages:\n  a:\n" + TASK + "    routes: {when: 'true', to: a}", "wrong_type", "6:5 stages.a.routes"),
    (HEAD + "stages:\n  a:\n" + TASK + "    routes: [a]", "wrong_type", "6:14 stages.a.routes[0]"),
    (
        HEAD + "stages:\n  a:\n" + TASK + "    routes:\n      - {when: 'true', to: b}",
        "unknown_stage",
        "7:24 stages.a.routes[0].to",
    ),
    (
        HEAD + "stages:\n  a:\n" + TASK + "    max_visits: 1\n    routes:\n      - {to: a}",
        "missing_key",
        "8:9 stages.a.routes[0]",
    ),
    (HEAD + "stages:\n  a:\n" + TASK + "    routes:\n      - {when: 'true'}", "missing_key", "7:9 stages.a.routes[0]"),
    (
        HEAD + "stages:\n  a:\n    max_visits: 2\n" + TASK + "    routes:\n      - {when: true, to: a}",
        "wrong_type",
        "8:10 stages.a.routes[0].when",
    ),
    # expressions and templates
    (
        HEAD + "stages:\n  a:\n    max_visits: 2\n" + TASK + "    routes:\n      - {when: 'output.', to: a}",
        "bad_expression",
        "8:10 stages.a.routes[0].when",
    ),
    (
        HEAD + "stages:\n  a:\n    max_visits: 2\n" + TASK + "    routes:\n      - {when: 'out.x == 1', to: a}",
        "bad_expression",
        "8:10 stages.a.routes[0].when",
    ),
    (HEAD + "stages:\n  a:\n" + TASK + "    set: output", "wrong_type", "6:5 stages.a.set"),
    (HEAD + "stages:\n  a:\n" + TASK + "    set:\n      n: 5", "wrong_type", "7:7 stages.a.set.n"),
    (HEAD + "stages:\n  a:\n" + TASK + "    set:\n      n: {m: [x]}", "wrong_type", "7:11 stages.a.set.n.m"),
    (HEAD + "stages:\n  a:\n" + TASK + "    set:\n      n: {m: 'foo + 1'}", "bad_expression", "7:11 stages.a.set.n.m"),
    (HEAD + "stages:\n  a:\n" + TASK + "    set: {n: ''}", "bad_expression", "6:11 stages.a.set.n"),
    (HEAD + "stages:\n  a:\n    human: {}", "missing_key", "5:5 stages.a.human"),
    (HEAD + "stages:\n  a:\n    human: 'Ship?'", "wrong_type", "5:5 stages.a.human"),
    (HEAD + "stages:\n  a:\n    human:\n      prompt: 5", "wrong_type", "6:7 stages.a.human.prompt"),
    (HEAD + "stages:\n  a:\n    human:\n      prompt: '{{ stat }}'", "bad_template", "6:7 stages.a.human.prompt"),
    (HEAD + "stages:\n  a:\n    human:\n      prompt: '{{ state'", "bad_template", "6:7 stages.a.human.prompt"),
    (HEAD + "stages:\n  a:\n    human: {prompt: x, schema: {type: x}}", "bad_schema", "5:24 stages.a.human.schema"),
    (HEAD + "stages:\n  a:\n    human: {prompt: x, choices: []}", "unknown_key", "5:24 stages.a.human.choices"),
]


def test_a_mistake_is_reported_with_its_code_and_position_and_nothing_else() -> None:
    def one_case(data: str, code: str, where: str) -> None:
        problems = broken(data)
        assert [(problem.severity, problem.code, problem.where) for problem in problems] == [("error", code, where)]
        assert problems[0].message
        assert problems[0].message.isprintable()

    for_each(one_case, TABLE)


def test_the_table_is_long() -> None:
    assert len(TABLE) >= 50


def test_a_mistake_in_json_has_its_place_too() -> None:
    data = '{"stateline": 1, "name": "m",\n "stages": {"a": {"task": ["x"],\n  "default_next": "b"}}}'
    (problem,) = broken(data, "m.json")
    assert (problem.code, problem.where) == ("unknown_stage", "3:3 stages.a.default_next")


def test_ten_mistakes_are_reported_together_in_file_order() -> None:
    problems = broken(
        "stateline: 1\n"
        "name: 'a b'\n"
        "modle: x\n"
        "start: intak\n"
        "bounds: {timeout: -1}\n"
        "stages:\n"
        "  intake:\n"
        "    task: []\n"
        "    retry: {max_attempts: 0}\n"
        "    set: {n: 'foo'}\n"
        "    routes: [{when: 'output.', to: nowhere}]\n"
        "  done: {end: {}, timeout: 1}\n"
    )
    assert [(problem.code, problem.where.split()[0]) for problem in problems] == [
        ("bad_name", "2:1"),
        ("unknown_key", "3:1"),
        ("unknown_stage", "4:1"),
        ("bad_value", "5:10"),
        ("bad_value", "8:5"),
        ("bad_value", "9:13"),
        ("bad_expression", "10:11"),
        ("bad_expression", "11:15"),
        ("unknown_stage", "11:32"),
        ("key_not_for_kind", "12:19"),
    ]


def test_a_misspelling_is_answered_with_the_nearest_word() -> None:
    def one_case(data: str, guess: str) -> None:
        (problem,) = broken(data)
        assert f"did you mean '{guess}'?" in problem.hint + problem.message

    for_each(
        one_case,
        [
            (HEAD + "stages: {a: {end: {}}}\nbound: {}", "bounds"),
            (HEAD + "stages: {intake: {end: {}}}\nstart: intaek", "intake"),
            (HEAD + "stages: {a: {task: [x], defaultnext: b}}", "default_next"),
            (HEAD + "stages: {a: {human: {promt: x, prompt: y}}}", "prompt"),
            (HEAD + "stages: {a: {task: [x], set: {n: 'ouput.x'}}}", "output"),
        ],
    )


def test_mistakes_of_syntax_and_of_meaning_are_reported_together() -> None:
    problems = broken(HEAD + "stages:\n  a: {task: &x [], default_next: b}\n")
    assert [problem.code for problem in problems] == ["yaml_anchor", "bad_value", "unknown_stage"] or [
        problem.code for problem in problems
    ] == ["bad_value", "yaml_anchor", "unknown_stage"]


def test_a_file_that_breaks_off_is_not_checked_for_what_is_missing() -> None:
    assert [problem.code for problem in broken("stateline: 1\nstages: [")] == ["syntax"]


def graph(text: str, head: str = HEAD) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.code, problem.where) for problem in broken(head + "stages:\n" + text)]


def test_a_stage_that_is_never_reached_is_a_warning() -> None:
    stages = "  a: {task: [x]}\n  b: {task: [x], default_next: c}\n  c: {end: {}}\n"
    assert graph(stages) == [
        ("warning", "unreachable_stage", "5:3 stages.b"),
        ("warning", "unreachable_stage", "6:3 stages.c"),
    ]
    assert graph(stages, HEAD + "start: b\n") == [("warning", "unreachable_stage", "5:3 stages.a")]


def test_routes_and_error_next_reach_a_stage() -> None:
    assert (
        graph("  a: {task: [x], routes: [{when: 'true', to: b}], error_next: c}\n  b: {end: {}}\n  c: {end: {}}\n")
        == []
    )


CIRCLE = "  a: {task: [x], default_next: b}\n  b: {task: [x], routes: [{when: 'output.again', to: a}]}\n"


def test_an_unbounded_cycle_is_a_warning() -> None:
    assert graph(CIRCLE) == [("warning", "unbounded_cycle", "4:3 stages.a")]
    assert graph("  a: {task: [x], error_next: a}\n") == [("warning", "unbounded_cycle", "4:3 stages.a")]


def test_a_bound_of_the_run_bounds_every_cycle() -> None:
    def one_case(bound: str) -> None:
        assert graph(CIRCLE, HEAD + f"bounds: {{{bound}}}\n") == []

    for_each(one_case, ["max_iterations: 5", "max_agent_hops: 5", "timeout: 60"])


def test_model_calls_bound_no_cycle_of_tasks() -> None:
    assert len(graph(CIRCLE, HEAD + "bounds: {max_llm_calls: 5}\n")) == 1


def test_model_calls_bound_a_cycle_with_an_agent_in_it() -> None:
    circle = CIRCLE.replace("b: {task: [x]", "b: {agent: {prompt: x}")
    assert graph(circle) == [("warning", "unbounded_cycle", "4:3 stages.a")]
    assert graph(circle, HEAD + "bounds: {max_llm_calls: 5}\n") == []
    assert len(graph(circle, HEAD + "bounds: {max_tokens: 5, max_tool_rounds: 5}\n")) == 1
    itself = "  a: {agent: {prompt: x}, default_next: a}\n"
    assert [code for _, code, _ in graph(itself)] == ["self_loop"]
    assert graph(itself, HEAD + "bounds: {max_llm_calls: 5}\n") == []


def test_max_visits_edge_limits_and_people_bound_a_cycle() -> None:
    assert graph(CIRCLE.replace("default_next", "max_visits: 3, default_next")) == []
    assert graph(CIRCLE, HEAD + "edge_limits: [{from: b, to: a, max_count: 2}]\n") == []
    assert len(graph(CIRCLE, HEAD + "edge_limits: [{from: b, to: a, max_count: 0}]\n")) == 1
    assert graph(CIRCLE.replace("b: {task: [x]", "b: {human: {prompt: Again?}")) == []


def test_each_of_two_separate_cycles_is_reported() -> None:
    two = CIRCLE + "  c: {task: [x], default_next: d, error_next: a}\n  d: {task: [x], default_next: c}\n"
    assert [where for _, code, where in graph(two, HEAD + "start: c\n") if code == "unbounded_cycle"] == [
        "5:3 stages.a",
        "7:3 stages.c",
    ]


def test_a_stage_with_max_visits_may_follow_itself() -> None:
    assert graph("  a: {task: [x], max_visits: 3, default_next: a}\n") == []


def test_a_very_large_graph_is_checked_in_one_go() -> None:
    ring = {f"s{i}": {"task": ["x"], "default_next": f"s{(i + 1) % 5000}"} for i in range(5000)}
    problems = broken(json.dumps({"stateline": 1, "name": "m", "stages": ring}), "m.json")
    assert [problem.code for problem in problems] == ["unbounded_cycle"]


def test_zero_means_no_limit() -> None:
    machine = load(
        (
            HEAD + "bounds: {timeout: 0, max_iterations: 0}\nstages: {a: {task: [x], timeout: 0, max_visits: 0}}"
        ).encode(),
        "m.yaml",
    )
    assert (machine.bounds, machine.stages["a"].timeout) == (Bounds(), 0.0)


def test_a_missing_program_is_an_error_and_the_caller_is_asked_with_the_argv() -> None:
    asked: list[list[str]] = []

    def exists(argv: list[str]) -> str | None:
        asked.append(argv)
        return None if argv[0] == "date" else f"there is no program {argv[0]!r}"

    machine, problems = check(GOOD.encode(), "m.yaml", Lookups(exists=exists))
    assert machine is None
    assert [(p.code, p.where, p.message) for p in problems] == [
        ("program_missing", "14:5 stages.intake.task", "there is no program './bin/intake'")
    ]
    assert asked == [["./bin/intake", "--fast"], ["date"]]


def test_an_agent_is_repeatable_unless_the_file_says_otherwise() -> None:
    def one_case(lines: str, repeatable: bool) -> None:
        machine = load((HEAD + f"stages:\n  a:\n    agent: {{prompt: Think.}}\n    {lines}").encode(), "m.yaml")
        stage = Stage(name="a", kind="agent", agent=Agent(prompt="Think."), repeatable=repeatable)
        assert machine.stages["a"] == stage

    for_each(one_case, [("", True), ("repeatable: false", False), ("repeatable: true", True)])


def test_tools_are_looked_up_in_the_manifest_where_it_can_be_read() -> None:
    data = AGENT.encode() + b"tools: [search, serch, nope]}"
    assert check(data, "m.yaml")[1] == ()
    asked: list[str] = []

    def toolset(name: str) -> Toolset:
        asked.append(name)
        return TOOLSET

    machine, problems = check(data, "m.yaml", Lookups(toolset=toolset))
    assert machine is None
    assert asked == ["t.json"]
    assert [(p.code, p.where, p.message, p.hint) for p in problems] == [
        ("unknown_tool", "6:40 stages.a.agent.tools[1]", "unknown tool 'serch'", "did you mean 'search'?"),
        ("unknown_tool", "6:47 stages.a.agent.tools[2]", "unknown tool 'nope'", "tools: fetch, search, other"),
    ]


def test_a_manifest_that_cannot_be_read_is_a_mistake_and_never_no_tools() -> None:
    def toolset(name: str) -> Toolset:
        raise NotFoundError(f"there is no tools manifest {name!r}", hint="check the path")

    machine, problems = check(AGENT.encode() + b"tools: [search]}", "m.yaml", Lookups(toolset=toolset))
    assert machine is None
    assert [(p.code, p.where, p.message, p.hint) for p in problems] == [
        ("bad_tools", "3:1 tools", "there is no tools manifest 't.json'", "check the path")
    ]
    with pytest.raises(InvalidMachineError, match=r"no tools manifest 't\.json'"):
        load(AGENT.encode() + b"tools: [search]}", "m.yaml", Lookups(toolset=toolset))


def test_a_machine_without_a_manifest_asks_for_none() -> None:
    def toolset(name: str) -> Toolset:
        raise AssertionError(name)

    assert (
        load(b'{"stateline": 1, "name": "m", "stages": {"a": {"end": {}}}}', "m.json", Lookups(toolset=toolset)).toolset
        is None
    )


def spec_with(**changes: Any) -> Any:
    spec = to_json(load(GOOD.encode(), "m.yaml", Lookups(toolset=lambda _: TOOLSET)))
    for path, value in changes.items():
        place: Any = spec
        *way, last = path.split("__")
        for key in way:
            place = place[key]
        place[last] = value
    return spec


def test_a_stored_spec_in_which_an_agent_could_go_wrong_is_not_read() -> None:
    def one_case(changes: dict[str, Any]) -> None:
        assert from_json(spec_with()).toolset == TOOLSET
        with pytest.raises(msgspec.ValidationError):
            from_json(spec_with(**changes))

    for_each(
        one_case,
        [
            {"stages__think__agent": None},
            {"stages__recover__agent": {"prompt": "x"}},
            {"stages__think__agent__tools": ["nope"]},
            {"toolset": None},
            {"toolset__tools__search__argv": []},
            {"toolset__tools__search__name": "fetch"},
            {"toolset__tools__search__schema": True},
            {"stages__think__agent__prompt": None},
        ],
    )


def test_an_end_stage_may_bound_its_visits() -> None:
    assert graph("  a: {end: {}, max_visits: 1}\n") == []


def test_load_raises_all_problems_and_names_the_first_few() -> None:
    data = HEAD + "a: 1\nb: 2\nc: 3\nd: 4\nstages: {a: {end: {}}, z: {end: {}}}\n"
    with pytest.raises(InvalidMachineError) as caught:
        load(data.encode(), "dir/m.yaml")
    assert len(caught.value.problems) == 5
    assert caught.value.message.startswith("dir/m.yaml has 4 mistakes: 3:1 a: ")
    assert "and 1 more" in caught.value.message
    assert caught.value.hint


def test_load_takes_a_machine_with_warnings() -> None:
    assert load((HEAD + "stages: {a: {end: {}}, b: {end: {}}}").encode(), "m.yaml").order == ["a", "b"]


def test_a_problem_is_the_document_that_the_command_prints() -> None:
    (problem,) = broken(HEAD + "stages: {}")
    assert set(msgspec.to_builtins(problem)) == {"severity", "code", "where", "message", "hint"}


def test_no_report_contains_terminal_control_sequences() -> None:
    data = {
        "stateline": 1,
        "name": "\x1b[2J",
        "\x1b]0;x\x07": 1,
        "stages": {"\x1b": {"task": ["\x1b"], "default_next": "\x9b"}},
    }
    for problem in broken(json.dumps(data), "m.json"):
        assert (problem.where + problem.message + problem.hint).isprintable()


@given(st.binary(max_size=300), st.sampled_from(["m.yaml", "m.json", "m.toml", ""]))
def test_random_bytes_give_problems_and_never_raise(data: bytes, name: str) -> None:
    machine, problems = check(data, name)
    assert machine is None
    assert problems


WORDS = [
    "stateline", "name", "start", "input", "state", "state_schema", "model", "bounds", "edge_limits", "stages",
    "task", "human", "end", "agent", "prompt", "schema", "tools", "output_schema", "timeout", "retry", "max_attempts",
    "env", "set", "routes", "when", "to", "from", "max_count", "default_next", "error_next", "max_visits", "a", "b",
    "true", "{{ a }}", "output.x",
]  # fmt: skip
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(WORDS[:10]), anything), st.dictionaries(st.sampled_from("ab"), anything))
def test_random_trees_give_a_machine_or_problems_and_never_raise(tree: dict[str, Any], stages: dict[str, Any]) -> None:
    machine, problems = check(json.dumps({"stateline": 1, "name": "m", "stages": stages} | tree).encode(), "m.json")
    if machine is None:
        assert any(problem.severity == "error" for problem in problems)
    elif not any(stage.agent and stage.agent.tools for stage in machine.stages.values()):
        assert from_json(to_json(machine)) == machine


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
counts = st.integers(0, 9)


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    stages = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    target = st.sampled_from(stages)

    def stage() -> dict[str, Any]:
        kind = draw(st.sampled_from(["task", "agent", "human", "end"]))
        if kind == "end":
            return {"end": {}, "max_visits": draw(counts)}
        ways = {
            "default_next": draw(target),
            "error_next": draw(target),
            "max_visits": draw(st.integers(1, 9)),
            "routes": [{"when": "output.x == 'yes'", "to": draw(target)}],
            "set": {draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=5)): "output"},
        }
        if kind == "human":
            return ways | {
                "human": {"prompt": "Really?", "schema": {"type": draw(st.sampled_from(["object", "null"]))}}
            }
        if kind == "agent":
            return ways | {"agent": {"prompt": "Think.", "output_schema": True}, "repeatable": draw(st.booleans())}
        argv = draw(
            st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), min_size=1)
        )
        return ways | {"task": argv, "timeout": draw(st.floats(0, 1e6)), "repeatable": draw(st.booleans())}

    state = st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.none() | st.integers(0, 9) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        max_size=3,
    )
    return {
        "stateline": 1,
        "name": draw(names),
        "start": draw(target),
        "state": draw(state),
        "bounds": {"max_iterations": draw(counts)},
        "stages": {name: stage() for name in stages},
    }


@given(machines())
def test_a_random_machine_is_the_same_from_yaml_and_from_json(tree: dict[str, Any]) -> None:
    # JSON text is YAML too as far as strings in double quotes go; the block form is written by another program.
    block = yaml.dump(tree, Dumper=_Block, sort_keys=False)
    from_yaml, problems = check(block.encode(), "m.yaml")
    assert [problem for problem in problems if problem.severity == "error"] == []
    assert from_yaml == load(json.dumps(tree).encode(), "m.json")
    assert from_yaml is not None
    assert from_yaml.order == list(tree["stages"])


class _Block(yaml.SafeDumper):
    """Quotes all text: which bare words are text is YAML 1.1's decision in this dumper, and JSON's in the reader."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Block.add_representer(str, lambda dumper, x: dumper.represent_scalar("tag:yaml.org,2002:str", x, style='"'))
_Block.add_representer(float, lambda dumper, x: dumper.represent_scalar("tag:yaml.org,2002:float", f"{x:.17e}"))


def test_importing_the_check_loads_no_slow_library() -> None:
    slow = "{'yaml', 'cel_expr_python', 'jsonschema_rs', 'json', 'difflib', 'pathlib', 'dataclasses'}"
    code = "import sys; old = set(sys.modules); import stateline.machine.definition.check;"
    code += f"print({slow} & (set(sys.modules) - old))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_a_bounded_self_loop_is_legal() -> None:
    def one_case(bound: str) -> None:
        source = HEAD + "stages:\n  a:\n" + TASK + "    default_next: a\n" + bound
        _, problems = check(source.encode(), "m.yaml")
        assert "self_loop" not in {problem.code for problem in problems}

    for_each(
        one_case,
        [
            "    max_visits: 3\n",
            "    routes: [{when: 'true', to: b}]\n  b: {end: {}}\n",
            "  b: {end: {}}\nbounds: {max_iterations: 3}\n",
            "  b: {end: {}}\nedge_limits: [{from: a, to: a, max_count: 3}]\n",
        ],
    )


def test_an_alias_is_reported_once_and_not_also_as_a_wrong_type() -> None:
    def one_case(use: str) -> None:
        assert [problem.code for problem in broken(HEAD + use)] == ["yaml_alias"]

    for_each(
        one_case,
        [
            "stages:\n  a: {task: [x], default_next: *k}",
            "stages:\n  a: {task: *k}",
            "stages:\n  a: {human: {prompt: x, schema: *k}}",
            "stages: *k",
            "bounds: *k\nstages: {a: {end: {}}}",
        ],
    )


def test_a_value_that_must_be_an_object_is_reported_with_an_example() -> None:
    for data in ("stages: [a]", "stages:\n", "stages: {a: {end: {}}}\nstate: 5"):
        assert "{" in broken(HEAD + data)[0].hint


def test_a_property_is_masked_unless_all_of_its_types_are_never_masked() -> None:
    def codes(kind: str) -> list[str]:
        schema = f"{{type: object, properties: {{password: {{type: {kind}}}}}}}"
        text = HEAD + f"stages:\n  a: {{agent: {{prompt: x, output_schema: {schema}}}}}\n"
        return [problem.code for problem in check(text.encode(), "m.yaml")[1]]

    assert codes("[string, 'null']") == codes("string") == ["masked_property"]
    assert codes("[integer, 'null']") == codes("boolean") == []
