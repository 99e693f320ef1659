"""Flowcharts: all of a machine is in the picture, and nothing in its words is syntax."""

from __future__ import annotations

import re
from typing import Any

from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.machine.decider.run import Instance, RunState
from stateline.machine.definition.check import load
from stateline.machine.draw import flowchart
from stateline.machine.spec import EdgeLimit, Machine, Route, Stage

TRIAGE = b"""\
stateline: 1
name: triage
edge_limits: [{from: check, to: intake, max_count: 2}]
stages:
  intake:
    task: [x]
    max_visits: 3
    routes: [{when: "output.verdict == 'again'", to: intake}]
    default_next: check
    error_next: ask
  check: {task: [x], routes: [{when: "!output.ok", to: intake}], default_next: ask}
  ask: {human: {prompt: "Ship?"}, default_next: think}
  think: {agent: {prompt: "Think."}, default_next: done}
  done: {end: {}, max_visits: 1}
"""


def test_a_machine_is_drawn_with_its_kinds_ways_and_limits() -> None:
    assert flowchart(load(TRIAGE, "m.yaml")) == (
        "flowchart TD\n"
        "    begin((start)) --> s0\n"
        '    s0["intake<br/>at most 3 visits"]\n'
        '    s1["check"]\n'
        '    s2[/"ask"/]\n'
        '    s3{{"think"}}\n'
        '    s4(["done<br/>at most 1 visit"])\n'
        "    s0 -->|\"output.verdict == 'again'\"| s0\n"
        "    s0 --> s1\n"
        '    s0 -.->|"error"| s2\n'
        '    s1 -->|"!output.ok<br/>at most 2"| s0\n'
        "    s1 --> s2\n"
        "    s2 --> s3\n"
        "    s3 --> s4\n"
    )


def test_the_path_of_a_run_is_thick_and_counted_and_its_stage_is_marked() -> None:
    state = RunState(
        status="waiting",
        visits={"intake": 2, "ask": 1},
        edges={"intake": {"intake": 1, "ask": 1}},
        tree=Instance(stage="ask", phase="waiting"),
    )
    lines = flowchart(load(TRIAGE, "m.yaml"), state).splitlines()
    assert '    s0["intake<br/>at most 3 visits<br/>visited 2"]' in lines
    assert "    s0 -->|\"output.verdict == 'again'<br/>taken 1\"| s0" in lines
    assert '    s0 -.->|"error<br/>taken 1"| s2' in lines
    assert lines[-3:] == [
        "    class s0,s2 visited",
        "    class s2 here",
        "    linkStyle 0,1,3 stroke-width:4px",
    ]


HOSTILE = [
    "end",
    'a"b',
    "`md`",
    "graph TD",
    '%%{init: {"theme": "dark"}}%%',
    "<script>alert(1)</script>",
    "a\nb",
    "-->|x|",
    "style a:#f00;",
    'click s0 "javascript:alert(1)"',
    "#quot;",
    "&amp;",
    "ü\u202e😀",
    "---\ntitle: x",
    "$$x$$",
    "a;b",
    "@{ shape: x }",
    "\x00\x1b[2J\ud800",
    "x" * 1000,
]
_LABEL = r"(?:[^\W_]|[ _.,()'!?=+/|…\ufffd-]|#[0-9]+;|<br/>)*"
_LINE = re.compile(
    rf'flowchart TD|    begin\(\(start\)\) --> s\d+|    s\d+(?:\["{_LABEL}"\]|\[/"{_LABEL}"/\]|\(\["{_LABEL}"\]\))'
    rf'|    s\d+\{{\{{"{_LABEL}"\}}\}}'
    rf'|    s\d+ -\.?->(?:\|"{_LABEL}"\|)? s\d+'
)


def machine_of(names: list[str], conditions: list[str]) -> Machine:
    kinds: Any = ["task", "human", "end", "agent"]
    stages = {
        name: Stage(
            name=name,
            kind=kinds[index % 4],
            routes=[Route(when=when, to=names[0]) for when in conditions],
            default_next=names[-1],
            error_next=names[0],
        )
        for index, name in enumerate(names)
    }
    limit = EdgeLimit(source=names[0], target=names[-1], max_count=2)
    return Machine(name="m", start=names[0], order=names, stages=stages, edge_limits=[limit])


def structural(names: list[str], conditions: list[str]) -> None:
    lines = flowchart(machine_of(names, conditions)).splitlines()
    for line in lines:
        assert _LINE.fullmatch(line), line
    assert len(lines) == 2 + len(names) + len(names) * (len(conditions) + 2)


def test_no_word_of_a_machine_is_syntax() -> None:
    def one_case(text: str) -> None:
        structural([text, "b", "c"], [text])

    for_each(one_case, [(case,) for case in HOSTILE])


@given(st.lists(st.text(max_size=9), min_size=1, max_size=4, unique=True), st.lists(st.text(max_size=9), max_size=2))
def test_any_names_and_conditions_give_lines_of_the_same_form(names: list[str], conditions: list[str]) -> None:
    structural(names, conditions)
