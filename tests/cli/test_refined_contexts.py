"""Contexts in text: the result of a call, and the history of a chain of refinements."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from command_line import Cli, log_summaries
from model_server import ModelServer, Say

SYSTEM = "You summarize source repositories for engineers."
REVIEWERS = "Write for reviewers: they know the code.\nAnd make it repeatable, and say where it is not."


def says(system: str, *developer: str, **settings: Any) -> Say:
    """A reply that is a context."""
    return Say(json.dumps({"prompts": {"system": system, "developer": list(developer)}, "settings": settings}))


@pytest.fixture
def refined(cli: Cli) -> Any:
    """A context that a model has derived and refined twice, and the operator twice."""
    script = [
        says(SYSTEM, "Name files.", temperature=0.7, top_p=0.9),
        says(SYSTEM, "Name files.", "Risks first.", temperature=0.2),
        says(SYSTEM.replace("engineers", "reviewers"), "Risks first.", temperature=0.2, seed=7),
    ]
    cli.monkeypatch.setenv("STATELINE_ACTOR", "Ada")
    with ModelServer(*script) as server:
        for words in ([], ["--refine-text", "Tighten temperature to 0.2"], ["--refine-text", REVIEWERS]):
            cli.json("run", "--state-scope", "c", "-m", "openai/m", "--base-url", server.url, *words)
    cli.json("run", "--state-scope", "c", "-m", "manual", "--refine-text", "Cite.", "--set", "limit=3")
    cli.json("run", "--state-scope", "c", "--set", "temperature=0.1")
    return cli


def lines(cli: Cli, *words: str) -> list[str]:
    result = cli(*words)
    assert result.code == 0, result.err
    found: list[str] = result.out.decode().split("\n")[:-1]
    return found


def test_a_log_says_who_changed_what_and_in_whose_words(refined: Any) -> None:
    assert log_summaries(refined("log", "context:c").out.decode()) == [
        "refine by Ada  temperature = 0.1",
        "refine by Ada  limit = 3  “Cite.”",
        "refine by openai/m for Ada  seed = 7; new prompts "
        "“Write for reviewers: they know the code. And make it repeatable, and say where it is not.”",
        "refine by openai/m for Ada  temperature = 0.2; no top_p; new developer prompts  “Tighten temperature to 0.2”",
        f"derive by openai/m for Ada  temperature = 0.7; top_p = 0.9  “{SYSTEM}”",
    ]


def test_a_diff_shows_prompts_and_settings_and_the_instruction(refined: Any) -> None:
    *shown, kept = lines(refined, "diff", "context:c~3", "context:c~2")[4:]
    assert shown == [
        '- prompts.developer[0]  "Name files."',
        "~ prompts.system",
        f'    - "{SYSTEM}"',
        f'    + "{SYSTEM.replace("engineers", "reviewers")}"',
        "+ settings.seed  7",
    ]
    assert kept.startswith("  bookkeeping: refinements.count 1 -> 2; refinements.last.text ")
    changed, kept = lines(refined, "diff", "context:c~1", "context:c")[4:]
    assert changed == "~ settings.temperature  0.2 -> 0.1"
    assert kept.startswith("  bookkeeping: refinements.count 3 -> 4; ")


def test_a_log_with_patches_shows_each_step(refined: Any) -> None:
    said = "\n".join(lines(refined, "log", "-p", "context:c"))
    assert "    ~ settings.temperature  0.7 -> 0.2\n    - settings.top_p  0.9\n" in said
    assert "“Tighten temperature to 0.2”" in " ".join(said.split())
    assert '    + model_id  "openai/m"' in said
    assert f'    + prompts.system  "{SYSTEM}"\n    + prompts.developer[0]  "Name files."\n' in said
    assert '    + prompts.developer[1]  "Cite."\n' in said


def test_tools_are_shown_and_a_long_system_prompt_by_its_lines(cli: Cli) -> None:
    path = cli.home / "tools.json"
    written = [
        {"name": name, "description": "d", "schema": {"type": "object"}, "argv": ["true"]}
        for name in ("search", "fetch")
    ]
    path.write_text(json.dumps({"tools": written}))
    prompt = "Line one of the prompt.\nLine two of it."
    with ModelServer(says(prompt, "One."), Say("Done.")) as server:
        words = ["-m", "openai/m", "--base-url", server.url, "--tools", str(path)]
        cli.json("run", "--state-scope", "c", "-p", "x", *words)
    said = "\n".join(lines(cli, "log", "-p", "context:c"))
    assert "    + tool_caps  " in said
    _, *rest = said.split("    + prompts.system  (2 lines, 39 B)\n")
    assert rest[0].startswith(
        "        + Line one of the prompt.\n        + Line two of it.\n    + prompts.developer[0]"
    )


def test_a_call_says_how_the_context_stands(cli: Cli) -> None:
    with ModelServer(says(SYSTEM, "One.", "Two.\nTwo.", temperature=0.2, stop=["a", "b"])) as server:
        words = ["run", "--state-scope", "c", "-m", "openai/m", "--base-url", server.url]
        assert [line for line in lines(cli, *words) if "head:" not in line] == [
            "context:c derived (seq 0)",
            f"  system: {SYSTEM}",
            "  developer: 2 instructions, the last: Two. Two.",
            '  settings: temperature = 0.2, stop = ["a","b"]',
        ]
        assert [line for line in lines(cli, *words) if "head:" not in line] == ["context:c exists, unchanged (seq 0)"]


def test_a_models_text_does_not_control_a_terminal(cli: Cli) -> None:
    evil = "Be\x1b[2Jbrief\x9b1m\x07.\u202e"
    with ModelServer(says(evil, evil, stop=evil), says(evil, f"{evil}!", stop=f"{evil}!")) as server:
        words = ["run", "--state-scope", "c", "-m", "openai/m", "--base-url", server.url]
        out = [*lines(cli, *words), *lines(cli, *words, "--refine-text", evil)]
    out += [*lines(cli, "log", "-p", "context:c"), *lines(cli, "diff", "context:c~1", "context:c")]
    assert cli.json("show", "context:c")["state"]["prompts"]["system"] == evil
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", "\n".join(out))


def test_a_call_of_a_model_is_reported_while_it_lasts(cli: Cli) -> None:
    with ModelServer(says(SYSTEM), says(SYSTEM)) as server:
        words = ["run", "--state-scope", "c", "-m", "openai/m", "--base-url", server.url, "--refine-text", "R"]
        result = cli(*words, "-v")
    assert result.err.split("\n")[:2] == [
        "asking the model to derive the context ...",
        "asking the model to refine the context ...",
    ]
    assert "asking" not in cli("run", "--state-scope", "c", "-v").err


def test_a_plan_of_a_model_call_is_reported_in_words(cli: Cli) -> None:
    words = ["run", "--state-scope", "c", "-m", "openai/m", "--base-url", "http://127.0.0.1:9/v1", "--dry-run"]
    said = lines(cli, *words, "--refine-text", "R")
    assert said[0] == "would refine context:c and exit 0"
    assert [line for line in said if "effect" in line] == [
        "  effect: a call of openai/m to derive the context",
        "  effect: a snapshot (derive)",
        "  effect: a call of openai/m to refine the context",
        "  effect: a snapshot (refine)",
    ]
    assert not cli.state.exists()
