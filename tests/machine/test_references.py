"""Names that expressions read: the syntax tree of the CEL library, and the mistakes that `machine check` finds."""

from __future__ import annotations

import json
from typing import Any

from each_case import each

from stateline.machine.definition.check import check
from stateline.machine.expressions.references import references


@each(
    "expression, read, tested",
    [
        ("state.todos", ["state.todos"], []),
        ("state['todos'][0].name + \"x\"", ["state.todos"], []),
        ("outputs[state.which].x", ["outputs", "state.which"], []),
        ("outputs['a.b'].c.d", ["outputs.a.b.c.d"], []),
        ("has(state.a.b) && 'k' in state", ["state.a.b", "state.k"], ["state.a.b", "state.k"]),
        ("'state.x' == r\"a 'b' state.y\" || state.z // state.comment", ["state.z"], []),
        ("state.items.map(x, x.of + visits.b)", ["state.items", "visits.b"], []),
        ("{'a': input.state.b, output.k: state . k}", ["state.k"], []),
        ("size(state.a) > 1 ? state.b.startsWith('x') : !state.c", ["state.a", "state.b", "state.c"], []),
        ("state['']", ["state."], []),
        ("1 + 2 == 3.5 && b'x' == b'y' || 7u > 2u || null == true", [], []),
        ("state.", [], []),
    ],
)
def test_the_references_of_an_expression(expression: str, read: list[str], tested: list[str]) -> None:
    found = references(expression)
    assert sorted(".".join(each.path) for each in found) == sorted(read)
    assert sorted(".".join(each.path) for each in found if each.tested) == sorted(tested)


def problems(stages: dict[str, Any], **fields: Any) -> list[tuple[str, str, str]]:
    machine = {"stateline": 1, "name": "m", "stages": stages, **fields}
    _, found = check(json.dumps(machine).encode(), "m.json")
    return [(problem.severity, problem.code, problem.where.partition(" ")[2]) for problem in found]


def test_outputs_and_visits_of_unknown_stages_are_errors() -> None:
    stages = {
        "ask": {"human": {"prompt": "{{ outputs.tpyo }} of {{ outputs.ask }}"}, "default_next": "think"},
        "think": {
            "agent": {"prompt": "{{ visits['nowhere'] }}"},
            "set": {"deep": {"er": "outputs.gone.x"}},
            "routes": [{"when": "visits.think > 1 && has(outputs.never)", "to": "ask"}],
        },
    }
    assert problems(stages, bounds={"max_agent_hops": 9}) == [
        ("error", "unknown_stage", place)
        for place in (
            "stages.ask.human.prompt",
            "stages.think.agent.prompt",
            "stages.think.set.deep.er",
            "stages.think.routes[0].when",
        )
    ]


@each(
    "expression, expected",
    [
        ("state.typo", True),
        ("state['typo']", True),
        ("state.known.any", False),
        ("state.of_set.x", False),
        ("state.computed.any.thing", False),
        ("state.text.x", False),
        ("state[input.key]", False),
        ("has(state.typo)", False),
        ("has(state.typo) ? state.typo.x : 0", False),
        ("'typo' in state && state.typo", False),
        ("has(state.typo.x)", True),
        ("state == {}", False),
    ],
)
def test_state_that_nothing_sets_is_a_warning(expression: str, expected: bool) -> None:
    stages = {
        "a": {"task": ["x"], "set": {"of_set": {"x": "1"}, "computed": "output"}, "default_next": "b"},
        "b": {"task": ["x"], "set": {"result": expression}},
    }
    found = problems(stages, state={"known": {"inner": 1}, "text": "", "computed": {"x": 1}})
    assert found == ([("warning", "unset_state", "stages.b.set.result")] if expected else [])


def test_a_state_of_the_wrong_type_is_reported_once() -> None:
    stages = {"a": {"task": ["x"], "set": {"b": "state.c"}}}
    assert [code for _, code, _ in problems(stages, state=[])] == ["wrong_type"]
