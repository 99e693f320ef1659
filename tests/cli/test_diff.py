"""``stateline diff``: the patch for programs, and what people see."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from command_line import USER, Cli, Task

from stateline import Store
from stateline.bundle.objects import Artifact


@pytest.fixture
def store(cli: Cli) -> Store:
    """The store that the command line works on."""
    return Store.open(cli.state)


def said(cli: Cli, *words: str) -> list[str]:
    """The lines of ``diff`` below its two headlines, each of which may have a summary below."""
    result = cli("diff", *words)
    assert result.code == 0, result.err
    lines = result.out.decode().split("\n")
    assert lines.pop() == ""
    for sign in ("--- ", "+++ "):
        assert lines.pop(0)[:4] == sign
        if lines[0].startswith("    "):
            lines.pop(0)
    return lines


def between(cli: Cli, store: Store, old: Any, new: Any) -> list[str]:
    """The lines of ``diff`` for two states."""
    store.scope("notes:x").save(old)
    store.scope("notes:x").save(new)
    return said(cli, "notes:x~1", "notes:x")


# -- for programs -----------------------------------------------------------------------------------------------------


def test_the_document_is_a_patch_that_turns_the_first_resolved_state_into_the_second(cli: Cli, task: Task) -> None:
    machine = cli.machine("m", a=task('printf \'{"n": "%05000d"}\' 1', default_next="b"), b=task("echo '[1, 2.0]'"))
    cli.json("execute", machine, "--id", "one")
    cli.json("execute", machine, "--id", "two", "--input", '{"deep": ["x/y~z"]}')
    cli.json("run", "--state-scope", "c", "--system", "s")
    for old, new in (
        ("run:one@0", "run:one"),
        ("run:one", "run:two@1"),
        ("context:c", "run:two"),
        ("run:two", "run:two"),
    ):
        patch = cli.json("diff", old, new)
        assert isinstance(patch, list)
        before, after = (cli.json("show", revision, "--resolve")["state"] for revision in (old, new))
        assert json.dumps(jsonpatch.apply_patch(before, patch), sort_keys=True) == json.dumps(after, sort_keys=True)
        assert (patch == []) == (before == after)


def test_a_diff_exits_zero_whether_or_not_there_is_a_difference(cli: Cli, store: Store) -> None:
    store.scope("notes:x").save({"n": 1})
    store.scope("notes:y").save({"n": 1})
    store.scope("notes:x").save({"n": 2})
    assert said(cli, "notes:x", "notes:x") == ["no difference: both are the same snapshot"]
    assert said(cli, "notes:x~1", "notes:y") == ["no difference: both have the same state"]
    assert cli.json("diff", "notes:x~1", "notes:y") == []
    assert said(cli, "notes:x", "notes:y") == ["~ n  2 -> 1"]


def test_an_unknown_revision_and_a_missing_one_are_reported(cli: Cli, store: Store) -> None:
    store.scope("notes:x").save({})
    assert cli.refused("diff", "notes:x", "notes:z", exits=1)["code"] == "not_found"
    assert cli.refused("diff", "notes:x@7", "notes:x", exits=1)["code"] == "not_found"
    assert cli.refused("diff", "notes:x", exits=64)["code"] == "usage"


def test_damage_on_the_way_to_a_difference_is_exit_5(cli: Cli, store: Store) -> None:
    store.scope("notes:x").save({"v": "a" * 5000})
    store.scope("notes:x").save({"v": "b" * 5000})
    for path in Path(cli.state, "objects").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    assert cli.refused("diff", "notes:x~1", "notes:x", exits=5)["code"] == "integrity"
    assert cli("diff", "notes:x~1", "notes:x").code == 5
    assert cli.json("diff", "notes:x", "notes:x") == []


def test_a_diff_changes_nothing(cli: Cli, store: Store) -> None:
    store.scope("notes:x").save({"v": "a" * 5000})
    store.scope("notes:x").save({"v": ["b" * 5000]})
    before = cli.tree()
    said(cli, "notes:x~1", "notes:x")
    cli.json("diff", "notes:x~1", "notes:x")
    assert cli.tree() == before


# -- for people -------------------------------------------------------------------------------------------------------


def test_the_headlines_name_both_snapshots_with_time_and_reason(cli: Cli) -> None:
    cli.json("run", "--state-scope", "c", "--set", "temperature=0.7")
    cli.json("run", "--state-scope", "c", "--refine-text", "Be brief", "--set", "temperature=0.2")
    first, first_reason, second, second_reason = cli("diff", "context:c~1", "context:c").out.decode().split("\n")[:4]
    rows = cli.json("log", "context:c")["snapshots"]
    assert re.fullmatch(rf"--- context:c@0  {rows[1]['sha'][:12]}  (just now|[0-9] s ago)", first)
    assert first_reason == f"    derive by {USER}  temperature = 0.7"
    assert second.startswith(f"+++ context:c@1  {rows[0]['sha'][:12]}  ")
    assert second_reason == f"    refine by {USER}  temperature = 0.2  “Be brief”"


def test_a_refined_context_shows_prompts_and_settings_by_name_and_bookkeeping_last(cli: Cli) -> None:
    cli.json("run", "--state-scope", "c", "--system", "s", "--set", "temperature=0.7", "--set", "old=1")
    cli.json("run", "--state-scope", "c", "--refine-text", "Be brief", "--set", "temperature=0.2")
    lines = said(cli, "context:c~1", "context:c")
    assert lines[:2] == ['+ prompts.developer[0]  "Be brief"', "~ settings.temperature  0.7 -> 0.2"]
    assert len(lines) == 3
    assert lines[2].startswith("  bookkeeping: refinements.count 0 -> 1")


def test_a_turn_shows_status_state_and_outputs_before_bookkeeping(cli: Cli, task: Task) -> None:
    machine = cli.machine("m", _state={"n": 0}, a=task("echo '{\"k\": 7}'", set={"n": "output.k"}))
    cli.json("execute", machine, "--id", "r")
    lines = said(cli, "run:r~1", "run:r")
    assert lines[:3] == ['~ status  "running" -> "complete"', "~ state.n  0 -> 7", '+ outputs.a  {"k": 7}']
    assert len(lines) == 4
    assert lines[3].startswith("  bookkeeping: ")
    assert 'tree.phase "ready" -> "done"' in lines[3]


def test_paths_are_readable_and_strange_keys_are_quoted(cli: Cli, store: Store) -> None:
    old = {"todos": [1, 2, {"a": 1}], "a b": {"": 1, "x.y": 2, "\x1b[2J": 3}}
    new = {"todos": [1, 2, {"a": 2}, 4], "a b": {"": 2, "x.y": 3, "\x1b[2J": 4}}
    lines = between(cli, store, old, new)
    assert lines == [
        '~ ["a b"][""]  1 -> 2',
        '~ ["a b"]["\\u001b[2J"]  3 -> 4',
        '~ ["a b"]["x.y"]  2 -> 3',
        "~ todos[2].a  1 -> 2",
        "+ todos[3]  4",
    ]


def test_long_text_is_a_small_diff_of_its_lines(cli: Cli, store: Store) -> None:
    text = [f"line {number} of a text that does not fit" for number in range(40)]
    changed = [*text[:20], "another line", *text[21:]]
    assert between(cli, store, {"t": "\n".join(text)}, {"t": "\n".join(changed)}) == [
        "~ t",
        "    @ -20,3 +20,3",
        "      line 19 of a text that does not fit",
        "    - line 20 of a text that does not fit",
        "    + another line",
        "      line 21 of a text that does not fit",
    ]


def test_two_long_values_are_cut_so_that_the_difference_shows(cli: Cli, store: Store) -> None:
    path, old, new = between(
        cli, store, {"t": "w" * 300 + " brief " + "w" * 300}, {"t": "w" * 300 + " kind " + "w" * 300}
    )
    assert path == "~ t"
    assert old.startswith("    - (609 B) …www")
    assert new.startswith("    + (608 B) …www")
    assert " brief " in old
    assert " kind " in new
    assert max(len(old), len(new)) <= 80


def test_large_values_are_reported_by_size_and_first_words(cli: Cli, store: Store) -> None:
    added = {f"k{number}": "some words" for number in range(1000)}
    (line,) = between(cli, store, {"a": 1}, {"a": 1, "b": added})
    assert line.startswith('+ b  (21.9 KB) {"k0": "some words", ')
    assert len(line) <= 80


def test_a_very_large_object_is_shown_by_size_and_digest_and_not_read(cli: Cli, store: Store) -> None:
    ref = store.put_value({"t": "w" * 100_000})
    store.scope("notes:x").save({})
    store.scope("notes:x").save({"b": ref})
    path = Path(cli.state, "objects", ref.sha256[:2], ref.sha256)
    path.unlink()
    assert said(cli, "notes:x~1", "notes:x") == [f"+ b  <object of 100.0 KB, {ref.sha256[:12]}>"]


def test_of_an_object_that_names_others_only_itself_is_read(cli: Cli, store: Store) -> None:
    parts = {f"part {number:070}": {"t": "w" * 5000} for number in range(60)}
    messages = [{"text": "w" * 500}] * 40
    before = store.scope("notes:x").save({})
    after = store.scope("notes:x").save({"parts": parts, "messages": messages})
    kept = after.envelope.objects["/parts"]
    for path in Path(cli.state, "objects").rglob("*"):
        if path.is_file() and path.name != kept.sha256:
            path.unlink()
    shown = said(cli, before.sha256, after.sha256)
    assert shown[0] == f"+ messages  <long list, {after.envelope.objects['/messages'].sha256[:12]}>"
    assert '{"part 0' in shown[1]


def test_an_artifact_that_changed_is_reported_although_the_patch_is_empty(cli: Cli, store: Store) -> None:
    lines = between(cli, store, {"f": Artifact(b"one", "text/plain")}, {"f": Artifact(b"three", "text/plain")})
    assert [line[:33] for line in lines] == [
        "~ f",
        "    - <artifact text/plain, 3 B, ",
        "    + <artifact text/plain, 5 B, ",
    ]
    assert cli.json("diff", "notes:x~1", "notes:x") == []


def test_of_many_steps_in_one_container_the_first_are_shown_and_the_others_counted(cli: Cli, store: Store) -> None:
    lines = between(cli, store, {"l": [], "m": {}}, {"l": [*range(30)], "m": {f"k{number}": 1 for number in range(6)}})
    assert lines[:6] == [*(f"+ l[{number}]  {number}" for number in range(5)), "+ l  … 25 more"]
    assert lines[6:] == [f"+ m.k{number}  1" for number in range(6)]


def test_nothing_in_a_diff_acts_on_a_terminal(cli: Cli, store: Store) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\r\x00\x08\u202e\n"
    lines = between(
        cli, store, {"a": evil, "t": "x\n" * 50, evil: [evil]}, {"b": evil * 9, "t": "x\n" * 50 + evil, evil: [1]}
    )
    assert not set("\n".join(lines)) & set("\x1b\x07\x9b\x7f\r\x00\x08\u202e")
    assert any("owned" in line for line in lines)


def test_of_two_runs_the_context_and_settings_that_differ_come_first(cli: Cli) -> None:
    cli.json("run", "--state-scope", "c", "--system", "One.", "--set", "temperature=0.7")
    machine = cli.machine("m", _context="c", done={"end": {}})
    cli.json("execute", machine, "--id", "one")
    cli.json("run", "--state-scope", "c", "--refine-text", "Be brief", "--set", "temperature=0.2")
    cli.json("execute", machine, "--id", "two")
    cli.json("execute", cli.machine("m", done={"end": {}}), "--id", "three")
    heads = [row["sha"][:12] for row in cli.json("log", "context:c")["snapshots"]]
    assert said(cli, "run:one", "run:two") == [
        f"context:  context:c {heads[1]} -> context:c {heads[0]}",
        '    + prompts.developer[0]  "Be brief"',
        "    ~ settings.temperature  0.7 -> 0.2",
        "no difference: both have the same state",
    ]
    lines = said(cli, "run:two", "run:three")
    assert lines[0].startswith("machine:  m ")
    assert lines[1] == f"context:  context:c {heads[0]} -> none"
    assert '    - settings  {"temperature": 0.2}' in lines
    assert said(cli, "run:one", "run:one~0") == ["no difference: both are the same snapshot"]
    patch = cli.json("diff", "run:one", "run:two")
    assert [change["path"] for change in patch] == ["/context/sha256"]


def test_a_context_that_is_lost_does_not_hide_the_rest_of_a_difference(cli: Cli) -> None:
    cli.json("run", "--state-scope", "c", "--set", "temperature=0.7")
    cli.json("execute", cli.machine("m", _context="c", done={"end": {}}), "--id", "one")
    cli.json("execute", cli.machine("m", done={"end": {}}), "--id", "two")
    (row,) = [row for row in cli.json("scopes")["scopes"] if row["scope"] == "context:c"]
    next(Path(cli.state, row["hash"]).glob("state-*")).unlink()
    assert any(line.startswith("    cannot be read: ") for line in said(cli, "run:one", "run:two"))
