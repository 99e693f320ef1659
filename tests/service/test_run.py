"""The machine of one stage that ``run`` builds equals the one of its stored source."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stateline import Store
from stateline.machine.decider.agents import prompt
from stateline.machine.decider.run import Facts, Instance, RunState
from stateline.machine.definition.check import Lookups, load
from stateline.service.run import RunOptions, machine_of_prompt


def state() -> RunState:
    return RunState(status="running", tree=Instance(stage="agent", phase="ready"))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip))
def test_the_stored_source_gives_the_machine_and_renders_to_the_prompt(text: str) -> None:
    asked = machine_of_prompt(Store.in_memory(), RunOptions(prompt=text))
    assert load(asked.machine_file.data, "run.json") == asked.machine
    if not asked.masks:
        assert prompt(asked.machine.stages["agent"], state(), Facts()) == text


@given(st.lists(st.sampled_from(["{{", "}}", "{", "}", "'", '"', " ", "state", "\\", "\n"]), min_size=1).map("".join))
def test_braces_are_never_read_as_expressions(text: str) -> None:
    if text.strip():
        asked = machine_of_prompt(Store.in_memory(), RunOptions(prompt=text))
        assert prompt(asked.machine.stages["agent"], state(), Facts()) == text


def test_the_stored_source_names_the_tools_and_their_manifest(tmp_path: Path) -> None:
    path = tmp_path / "my tools.txt"
    one = {"name": "one", "description": "One.", "schema": {"type": "object"}, "argv": ["true"]}
    path.write_text(json.dumps({"tools": [one]}))
    asked = machine_of_prompt(Store.in_memory(), RunOptions(prompt="x", tools=str(path)))
    toolset = asked.machine.toolset
    assert toolset is not None
    assert load(asked.machine_file.data, "run.json", Lookups(toolset=lambda _: toolset)) == asked.machine
    assert asked.machine.tools == "my tools.txt"
    assert asked.machine_file.directory == str(tmp_path.resolve())
    assert str(tmp_path).encode() not in asked.machine_file.data  # a state must not depend on where something lies
