"""The same machine in YAML, JSON, TOML and Python gives the same canonical spec and the same mistakes."""

from __future__ import annotations

import json
import pprint
from typing import Any

import yaml

from stateline.bundle import canonical
from stateline.machine.definition.check import Lookups, check
from stateline.machine.definition.formats.python_text import Evaluated
from stateline.machine.spec import to_json

SMALL = {"stateline": 1, "name": "m", "stages": {"a": {"end": {}}}}
FULL = {
    "stateline": 1,
    "name": "triage",
    "start": "intake",
    "input": {"type": "object", "properties": {"n": {"type": "integer", "minimum": -3}}},
    "state": {
        "todos": [],
        "n": 1.5,
        "big": 2**64 - 1,
        "text": "é \"q\" 'q' \\ \t 😀\n# x",
        "yes": "no",
        "": {"": [[]]},
    },
    "state_schema": {"type": "object", "required": ["todos"]},
    "model": "openai/gpt-5-mini",
    "tools": "tools.json",
    "context": "docs-demo",
    "bounds": {
        "max_iterations": 50,
        "max_llm_calls": 10,
        "max_agent_hops": 21,
        "timeout": 300,
        "max_tokens": 9,
        "max_tool_rounds": 4,
    },
    "edge_limits": [{"from": "intake", "to": "intake", "max_count": 2}],
    "stages": {
        "ask.me": {"human": {"prompt": "Ship {{ state.todos }}?", "schema": True}, "default_next": "done"},
        "intake": {
            "task": ["./bin/intake", "--fast", ""],
            "timeout": 60,
            "retry": {"max_attempts": 3, "backoff": 1.5},
            "repeatable": True,
            "env": ["GITHUB_TOKEN"],
            "set": {"todos": "output.todos", "deep": {"er": "1 + 1"}},
            "routes": [{"when": "output.verdict == 'again'", "to": "intake"}, {"when": "true", "to": "ask.me"}],
            "default_next": "ask.me",
            "error_next": "recover",
            "max_visits": 3,
        },
        "recover": {"task": ["./bin/recover"], "default_next": "think"},
        "think": {
            "agent": {
                "prompt": "Rank {{ state.todos }}",
                "tools": ["search", "fetch_2"],
                "output_schema": {"type": "array", "items": {"type": "string"}},
                "model": "anthropic/y",
            },
            "timeout": 60.5,
            "retry": {"max_attempts": 2},
            "default_next": "done",
        },
        "done": {"end": {}},
    },
}
MISTAKEN = {
    "stateline": 1,
    "name": "a b",
    "modle": "x",
    "stages": {
        "a": {"task": [], "retry": {"max_attempts": 0}, "routes": [{"when": "output.", "to": "nowhere"}]},
        "b": {"end": {}, "timeout": 1.5, "default_next": "a"},
        "c": {"agent": {"prompt": "{{ x }}", "modle": "y"}},
    },
}


class Block(yaml.SafeDumper):
    """Quote all text: the dumper and the reader differ about which bare words are text."""


Block.add_representer(str, lambda dumper, x: dumper.represent_scalar("tag:yaml.org,2002:str", x, style='"'))


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{inline(key)} = {inline(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def toml(tree: dict[str, Any]) -> str:
    lines = [f"{key} = {inline(part)}" for key, part in tree.items() if key != "stages"]
    for name, stage in tree["stages"].items():
        lines += [f"[stages.{inline(name)}]", *(f"{key} = {inline(part)}" for key, part in stage.items())]
    return "\n".join(lines) + "\n"


def spellings(tree: dict[str, Any]) -> dict[str, str]:
    return {
        "m.yaml": yaml.dump(tree, Dumper=Block, sort_keys=False, allow_unicode=True),
        "m.json": json.dumps(tree, indent=1),
        "m.toml": toml(tree),
        "m.py": f"machine = {pprint.pformat(tree, sort_dicts=False)}\n",
    }


def run(source: str) -> Evaluated:
    """Evaluate in this process, unlike the engine: the source is known to be harmless."""
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 (written above)
    return Evaluated(value=names["machine"])


def test_all_formats_give_one_canonical_spec() -> None:
    for tree in (SMALL, FULL):
        specs = set()
        for name, text in spellings(tree).items():
            machine, problems = check(text.encode(), name, Lookups(evaluate=run))
            assert machine is not None, (name, problems)
            assert machine.order == list(tree["stages"])
            specs.add(canonical.encode(to_json(machine)))
        assert len(specs) == 1


def test_all_formats_report_the_same_mistakes_each_at_its_key() -> None:
    found = []
    for name, text in spellings(MISTAKEN).items():
        _, problems = check(text.encode(), name, Lookups(evaluate=run))
        lines = text.splitlines()
        for problem in problems if name != "m.toml" else ():  # tomllib gives no positions
            position, _, path = problem.where.partition(" ")
            line, column = map(int, position.split(":"))
            key = path.rpartition(".")[2].partition("[")[0]
            assert lines[line - 1][column - 1 :].lstrip("'\"{").startswith(key), (name, problem)
        found.append(sorted((problem.code, problem.where.partition(" ")[2]) for problem in problems))
    assert len(found[0]) == 12
    assert found == [found[0]] * 4
