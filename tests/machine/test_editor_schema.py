"""The schema for editors: it refuses nothing that the check takes, and misses only what is listed here."""

from __future__ import annotations

import copy
import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.machine.definition.check import check
from stateline.machine.definition.editor_schema import machine_schema
from stateline.machine.definition.formats.reader import read
from stateline.machine.expressions.json_schema import problems

CHECKOUT = Path(__file__).parent.parent.parent
VALIDATOR = jsonschema_rs.validator_for(machine_schema())
_CORPUS = runpy.run_path(str(Path(__file__).with_name("test_check.py")))
_SPELLINGS = runpy.run_path(str(Path(__file__).with_name("test_formats_agree.py")))
ONLY_THE_CHECK_SEES = {
    "bad_expression",  # it knows CEL
    "bad_schema",  # ... and JSON Schema
    "bad_template",
    "duplicate_key",  # a tree has no such thing
    "no_tools",
    "number_range",
    "self_loop",
    "state_violates_schema",
    "unknown_stage",
}
WHOLE_NUMBERS = {"stateline: 1.0\nname: m\nstages: {a: {end: {}}}"}
"""To JSON Schema 1.0 is an integer."""


def test_the_schema_is_one_and_every_part_of_it_is_described() -> None:
    assert problems(machine_schema()) == []
    found = 0
    stack: list[Any] = [machine_schema()]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            for key, below in part.get("properties", {}).items():
                assert below.get("description"), key
                found += 1
        stack.extend(part.values() if isinstance(part, dict) else part if isinstance(part, list) else [])
    assert found > 40


def test_the_published_schema_is_the_one_that_the_command_prints() -> None:
    """Regenerate with: stateline machine schema > docs/machine.schema.json"""
    assert json.loads((CHECKOUT / "docs" / "machine.schema.json").read_text()) == machine_schema()


def test_every_good_machine_fits() -> None:
    good = [yaml.safe_load(_CORPUS["GOOD"]), _SPELLINGS["SMALL"], _SPELLINGS["FULL"]]
    examples = list((CHECKOUT / "examples").rglob("*.yaml"))
    good += [read(path.read_bytes(), path.name).value for path in examples]
    assert examples
    for tree in good:
        assert [error.message for error in VALIDATOR.iter_errors(tree)] == []


def test_every_mistake_is_refused_or_is_one_that_only_the_check_sees() -> None:
    missed = set()
    for text, code, _ in _CORPUS["TABLE"]:
        document = read(text.encode(), "m.yaml")
        if document.complete and text not in WHOLE_NUMBERS and VALIDATOR.is_valid(document.value):
            missed.add(code)
    assert missed == ONLY_THE_CHECK_SEES
    assert all(VALIDATOR.is_valid(read(text.encode(), "m.yaml").value) for text in WHOLE_NUMBERS)


JUNK = st.sampled_from(
    [None, True, 0, -1, 2, 1.5, 2**63, "", "a", "ask.me", "x y", "\0", "{{", [], {}, ["a"], {"a": "1"}]
)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 200), JUNK), min_size=1, max_size=2))
def test_what_the_check_takes_fits_and_what_does_not_fit_the_check_refuses(changes: list[tuple[int, Any]]) -> None:
    tree = copy.deepcopy(_SPELLINGS["FULL"])
    for number, junk in changes:
        places = _places(tree)
        container, key = places[number % len(places)]
        container[key] = copy.deepcopy(junk)
    machine, _ = check(json.dumps(tree).encode(), "m.json")
    if not VALIDATOR.is_valid(tree):
        assert machine is None


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(part, dict | list):
            found.extend(_places(part))
    return found
