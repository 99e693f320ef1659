"""``run`` without a prompt: contexts are derived, refined and restored, and handed to stages."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures
from model_server import ModelServer, Say

from stateline.bundle import canonical

CONTEXT = json.dumps({"prompts": {"system": "Be brief.", "developer": ["Cite."]}, "settings": {"temperature": 0.3}})
END: dict[str, Any] = {"end": {}}


def chain(cli: Cli, name: str = "demo") -> list[Any]:
    """The snapshots of a context, oldest first, as ``show`` gives them."""
    rows = cli.json("log", f"context:{name}")["snapshots"][::-1]
    return [cli.json("show", row["sha"], "--resolve") for row in rows]


def test_a_context_is_derived_from_the_flags(cli: Cli) -> None:
    document = cli.json(
        "run", "--state-scope", "demo", "--system", "Be brief.", "--developer", "One.", "--developer", "Two.",
        "--set", "limit=3", "--set", "name=plain", "--set", 'deep={"a": [1.5, null]}',
    )  # fmt: skip
    assert document["run"] is None
    assert (document["status"], document["reason"], document["waiting"]) == ("complete", "derive", None)
    (first,) = chain(cli)
    assert document["head"] == cli.json("log", "context:demo")["snapshots"][0]["sha"]
    state = first["state"]
    assert state["prompts"] == {"system": "Be brief.", "developer": ["One.", "Two."]}
    assert state["settings"] == {"limit": 3, "name": "plain", "deep": {"a": [1.5, None]}}
    assert (state["model_id"], state["base_url"], state["toolset_hash"]) == ("", "", "")
    assert state["refinements"] == {"count": 0, "last": None}
    assert state.keys() >= {"toolset_hash", "tool_caps", "context", "custom", "source_hash"}
    assert (first["kind"], first["event"]["type"], first["prev_sha"]) == ("context", "derive", None)


def test_each_refinement_is_a_snapshot_that_names_the_one_before(cli: Cli) -> None:
    heads = [cli.json("run", "--state-scope", "demo", "--system", "S", "--set", "a=1", "--set", "b=1")["head"]]
    heads.append(cli.json("run", "--state-scope", "demo", "--refine-text", "Cite sources.")["head"])
    (cli.home / "more.txt").write_text("From a file,\nü.\n")
    heads.append(cli.json("run", "--state-scope", "demo", "--refine-file", str(cli.home / "more.txt"))["head"])
    heads.append(cli.json("run", "--state-scope", "demo", "--set", "a=2")["head"])
    heads.append(cli.json("run", "--state-scope", "demo", "--set", "c=3", "--refine-text", "Both.")["head"])
    snapshots = chain(cli)
    assert [each["prev_sha"] for each in snapshots] == [None, *heads[:-1]]
    assert [each["seq"] for each in snapshots] == [0, 1, 2, 3, 4]
    last = snapshots[-1]["state"]
    assert last["prompts"] == {"system": "S", "developer": ["Cite sources.", "From a file,\nü.\n", "Both."]}
    assert last["settings"] == {"a": 2, "b": 1, "c": 3}
    assert last["refinements"] == {"count": 4, "last": {"text": "Both.", "settings": {"c": 3}}}
    assert [each["event"]["type"] for each in snapshots] == ["derive", *["refine"] * 4]


def test_deriving_and_refining_in_one_call_are_two_snapshots(cli: Cli) -> None:
    document = cli.json("run", "--state-scope", "demo", "--system", "S", "--set", "a=1", "--refine-text", "More.")
    first, second = chain(cli)
    assert document["reason"] == "refine"
    assert first["state"]["prompts"]["developer"] == []
    assert second["state"]["prompts"]["developer"] == ["More."]
    assert [each["state"]["settings"] for each in (first, second)] == [{"a": 1}, {"a": 1}]
    assert second["state"]["refinements"] == {"count": 1, "last": {"text": "More.", "settings": {}}}


def test_a_context_that_is_there_is_restored_and_nothing_is_written(cli: Cli) -> None:
    head = cli.json("run", "--state-scope", "demo", "--system", "S")["head"]
    before = cli.tree()
    document = cli.json("run", "--state-scope", "demo")
    assert (document["head"], document["reason"], document["warnings"]) == (head, "restore", [])
    assert cli.tree() == before


def test_prompts_given_for_a_context_that_is_there_give_a_warning(cli: Cli) -> None:
    failures = Failures()
    for more in [[], ["--set", "x=1"], ["--refine-text", "More."]]:
        with failures.case(more), cli.fresh():
            cli.json("run", "--state-scope", "demo", "--system", "S")
            warnings = cli.json("run", "--state-scope", "demo", "--system", "other", *more)["warnings"]
            assert any("--system" in warning for warning in warnings)
            assert chain(cli)[-1]["state"]["prompts"]["system"] == "S"
    failures.check()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model that gives a context to whoever asks for one, and a word to everybody else."""

    def answer(document: dict[str, Any]) -> Say:
        return Say(CONTEXT if "response_format" in document else "Done.")

    with ModelServer(otherwise=answer) as server:
        yield server


@pytest.mark.parametrize("more", [[], ["--set", "x=1"]], ids=str)
def test_another_model_or_url_is_reported(cli: Cli, server: ModelServer, more: list[str]) -> None:
    cli.json("run", "--state-scope", "demo", "-m", "one", "--base-url", server.url)
    other = ["-m", "two", "--base-url", server.url.replace("127.0.0.1", "localhost")]
    warnings = cli.json("run", "--state-scope", "demo", *other, *more)["warnings"]
    assert len(warnings) == 2
    assert "the model openai/one" in warnings[0]
    assert "the model openai/two" in warnings[0]
    assert server.url in warnings[1]
    assert cli.json("run", "--state-scope", "demo", "-m", "one", "--base-url", server.url)["warnings"] == []
    assert chain(cli)[-1]["state"]["model_id"] == "openai/one"
    assert server.count == 1


def test_the_default_context_is_a_hash_over_model_url_and_toolset(cli: Cli, server: ModelServer) -> None:
    (cli.home / "tools.json").write_text(
        json.dumps({"tools": [{"name": "t", "description": "D", "schema": {"type": "object"}, "argv": ["true"]}]})
    )
    tools = ["--tools", str(cli.home / "tools.json")]
    model = ["-m", "a", "--base-url", server.url]
    calls = [["-m", "manual"], tools, model, [*model, *tools], ["-m", "b", *model[2:]]]
    heads = {cli.json("run", *words)["head"] for words in calls}
    keys = {row["scope"] for row in cli.json("scopes")["scopes"]}
    assert len(heads) == len(keys) == len(calls)
    canonical = json.dumps(["openai/a", server.url, ""], separators=(",", ":")).encode()
    assert f"context:{hashlib.sha256(canonical).hexdigest()}" in keys
    assert {cli.json("run", *words)["reason"] for words in calls} == {"restore"}
    assert server.count == 3


@pytest.mark.parametrize(("signum", "exits"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_context_is_derived_saves_nothing(
    cli: Cli, server: ModelServer, signum: int, exits: int
) -> None:
    server.script.append(Say(CONTEXT, until=threading.Event()))
    words = ["run", "--state-scope", "demo", "-m", "one", "--base-url", server.url, "-p", "Why?"]
    process = cli.start(*words)
    server.wait(1)
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode == exits
    assert cli.json("scopes")["scopes"] == []
    assert cli.json("exec", "list")["runs"] == []
    assert cli.json(*words, "--wait", "0")["output"] == "Done."


def test_two_kinds_of_refinement_at_once_are_a_usage_error(cli: Cli) -> None:
    (cli.home / "f").write_text("x")
    cli.refused("run", "--refine-text", "x", "--refine-file", str(cli.home / "f"), exits=64)
    assert not cli.state.exists()


def test_a_refinement_file_that_cannot_be_used_is_a_usage_error(cli: Cli) -> None:
    (cli.home / "latin").write_bytes(b"caf\xe9")
    for path in (cli.home / "absent", cli.home, cli.home / "latin", "a\0b"):
        cli.refused("run", "--refine-file", str(path), exits=64)
    assert not cli.state.exists()


def test_a_malformed_setting_is_a_usage_error(cli: Cli) -> None:
    failures = Failures()
    for word in [
        "x",
        "=1",
        "",
        'x={"a":1,"a":2}',
        "x=NaN",
        "x=18446744073709551616",
        "x=" + "[" * 500 + "]" * 500,
        "x={bad",
        "x= [1, 2",
    ]:
        with failures.case(word), cli.fresh():
            cli.refused("run", "--set", word, exits=64)
            assert not cli.state.exists()
    failures.check()


def test_a_setting_is_json_else_a_string(cli: Cli) -> None:
    failures = Failures()
    for word, value in [("x=", ""), ("x=1e3", 1000.0), ("x=a{", "a{"), ('x="{a"', "{a"), ("x=a=b", "a=b"), ("x= 1", 1)]:
        with failures.case(word, value), cli.fresh():
            cli.json("run", "--state-scope", "demo", "--set", word)
            assert chain(cli)[0]["state"]["settings"] == {"x": value}
    failures.check()


def test_a_context_of_256_kib_is_the_largest(cli: Cli) -> None:
    text = cli.home / "text"
    text.write_bytes(b"x" * 200_000)  # which counts once, although it is the newest refinement's text as well
    cli.json("run", "--state-scope", "demo", "--refine-file", str(text))
    before = cli.tree()
    text.write_bytes(b"y" * 100_000)
    error = cli.refused("run", "--state-scope", "demo", "--refine-file", str(text), exits=1)
    assert "262144" in error["message"]
    text.write_bytes("ü".encode() * 200_000)
    assert "262144" in cli.refused("run", "--state-scope", "demo", "--refine-file", str(text), exits=1)["message"]
    assert {path: row[4] for path, row in cli.tree().items() if path.startswith(str(cli.state))} == {
        path: row[4] for path, row in before.items() if path.startswith(str(cli.state))
    }
    cli.refused("run", "--state-scope", "new", "--set", "x=" + "z" * 300_000, exits=1)
    assert {row["scope"] for row in cli.json("scopes")["scopes"]} == {"context:demo"}


def test_a_stale_parent_is_a_conflict(cli: Cli) -> None:
    failures = Failures()
    for more in [["--set", "x=2"], ["--refine-text", "More."], []]:
        with failures.case(more), cli.fresh():
            first = cli.json("run", "--state-scope", "demo", "--set", "x=0")["head"]
            second = cli.json("run", "--state-scope", "demo", "--set", "x=1", "--parent", first)["head"]
            before = cli.tree()
            error = cli.refused("run", "--state-scope", "demo", "--parent", first, *more, exits=4)
            assert error["code"] == "conflict"
            assert first in error["message"]
            assert second in error["message"]
            assert {path: row[4] for path, row in cli.tree().items()} == {path: row[4] for path, row in before.items()}
            assert cli.json("run", "--state-scope", "demo", "--parent", "context:demo", *more)["status"] == "complete"
    failures.check()


def test_a_parent_of_a_context_that_does_not_exist_is_refused(cli: Cli) -> None:
    assert cli.refused("run", "--state-scope", "demo", "--parent", "context:demo", exits=1)["code"] == "not_found"
    head = cli.json("run", "--state-scope", "other")["head"]
    assert cli.refused("run", "--state-scope", "demo", "--parent", head, exits=4)["code"] == "conflict"


def test_refiners_at_once_each_refine_the_new_head(cli: Cli) -> None:
    cli.json("run", "--state-scope", "demo", "--system", "S")
    processes = [cli.start("run", "--state-scope", "demo", "--refine-text", f"Number {n}.") for n in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    for process in processes:
        process.communicate()
    snapshots = chain(cli)
    assert [each["state"]["refinements"]["count"] for each in snapshots] == [0, 1, 2, 3, 4]
    assert sorted(snapshots[-1]["state"]["prompts"]["developer"]) == [f"Number {n}." for n in range(4)]
    assert cli.json("verify")["findings"] == []


def test_two_who_derive_at_once_make_one_context(cli: Cli) -> None:
    processes = [cli.start("run", "--state-scope", "demo", "--system", f"S{n}") for n in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    for process in processes:
        process.communicate()
    assert [each["event"]["type"] for each in chain(cli)] == ["derive"]


def test_secrets_are_masked_and_counted_before_they_are_kept(cli: Cli) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    cli.json("run", "--state-scope", "demo", "--system", "use abcdef-123456-secret", "--set", "password=hunter2hunter2")
    (first,) = chain(cli)
    assert first["state"]["prompts"]["system"] == "use [REDACTED]"
    assert first["state"]["settings"] == {"password": "[REDACTED]"}
    assert first["event"]["redactions"] >= 2
    held = b"".join(path.read_bytes() for path in cli.state.rglob("*") if path.is_file())
    assert b"abcdef-123456-secret" not in held
    assert b"hunter2hunter2" not in held


def test_a_secret_in_the_base_url_is_refused(cli: Cli) -> None:
    cli.monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    url = "https://u:abcdef-123456-secret@example.test"
    error = cli.refused("run", "--state-scope", "d", "-m", "openai/x", "--base-url", url, exits=1)
    assert "abcdef" not in error["message"] + error["hint"]
    assert not cli.state.exists()


def test_a_scope_that_holds_no_context_is_damage(cli: Cli, task: Task) -> None:
    from stateline import Store

    Store.open(cli.state).scope("context:demo").save({"x": 1})
    before = cli.tree()
    for words in (["run", "--state-scope", "demo", "--set", "x=1"], ["run", "--state-scope", "demo"]):
        assert cli.refused(*words, exits=5)["code"] == "integrity"
    assert cli.refused("execute", cli.machine(a=task("cat")), "--state-scope", "demo", exits=5)["code"] == "integrity"
    assert [path for path in cli.tree() if path.startswith(str(cli.state))] == [
        path for path in before if path.startswith(str(cli.state))
    ]


# -- contexts of runs ----------------------------------------------------------------------------------------------


def test_a_context_reaches_tasks_conditions_and_prompts(cli: Cli, task: Task) -> None:
    cli.json("run", "--state-scope", "demo", "--system", "S", "--set", "limit=3")
    machine = cli.machine(
        a=task("cat", routes=[{"when": "context.settings.limit == 3", "to": "ask"}], default_next="no"),
        ask={"human": {"prompt": "{{ context.prompts.system }} {{ context.settings.limit }}?"}},
        no=END,
    )
    document = cli.json("execute", machine, "--state-scope", "demo", exits=3)
    assert document["outputs"]["a"]["context"] == {
        "prompts": {"system": "S", "developer": []},
        "settings": {"limit": 3},
    }
    assert document["waiting"]["prompt"] == "S 3?"
    head = cli.json("log", "context:demo")["snapshots"][0]
    state = canonical.encode(cli.json("show", "context:demo", "--resolve")["state"])
    assert cli.json("exec", "show")["context"] == {"scope": "context:demo", "sha256": canonical.sha256(state)}
    run = "run:" + cli.json("exec", "status")["run"]
    assert cli.json("show", run)["event"]["context"] == {
        "path": Path(head["path"]).name,
        "sha256": head["sha"],
        "seq": 0,
    }


def test_a_machine_may_name_its_context_and_the_flag_wins(cli: Cli, task: Task) -> None:
    cli.json("run", "--state-scope", "one", "--set", "x=1")
    cli.json("run", "--state-scope", "two", "--set", "x=2")
    machine = cli.machine(_context="one", a=task("cat"))
    assert cli.json("execute", machine)["output"]["context"]["settings"] == {"x": 1}
    assert cli.json("execute", machine, "--state-scope", "two")["output"]["context"]["settings"] == {"x": 2}
    cli.monkeypatch.setenv("STATELINE_STATE_SCOPE", "two")
    assert cli.json("execute", machine)["output"]["context"]["settings"] == {"x": 2}


def test_a_context_that_does_not_exist_starts_nothing_and_says_how_to_derive_it(cli: Cli, task: Task) -> None:
    failures = Failures()
    for how in ["flag", "machine"]:
        with failures.case(how), cli.fresh():
            machine = cli.machine(a=task("cat"), **({"_context": "demo"} if how == "machine" else {}))
            error = cli.refused("execute", machine, *(["--state-scope", "demo"] if how == "flag" else []), exits=1)
            assert error["code"] == "not_found"
            assert "stateline run --state-scope demo" in error["hint"]
            assert not cli.state.exists()
    failures.check()


def test_a_run_keeps_the_context_it_began_with(cli: Cli, task: Task) -> None:
    cli.json("run", "--state-scope", "demo", "--set", "x=1")
    machine = cli.machine(a=task("cat", default_next="b"), b=task("cat"))
    cli.json("execute", "-i", machine, "--id", "old", "--state-scope", "demo")
    cli.json("run", "--state-scope", "demo", "--set", "x=2")
    document = cli.json("execute", machine, "--id", "old")
    assert document["outputs"]["b"]["context"]["settings"] == {"x": 1}
    document = cli.json("execute", machine, "--id", "new", "--state-scope", "demo")
    assert document["outputs"]["a"]["context"]["settings"] == {"x": 2}
    document = cli.json("execute", machine, "--id", "old", "--force", "--state-scope", "demo")
    assert document["outputs"]["a"]["context"]["settings"] == {"x": 2}


def test_another_context_for_a_run_that_began_gives_a_warning(cli: Cli, task: Task) -> None:
    cli.json("run", "--state-scope", "demo", "--set", "x=1")
    machine = cli.machine(a=task("cat", default_next="b"), b=task("cat"))
    cli.json("execute", "-i", machine)
    document = cli.json("execute", machine, "--state-scope", "demo")
    assert "--state-scope" in document["warnings"][0]
    assert document["output"]["context"] is None


def test_a_context_that_was_damaged_stops_the_run_with_exit_5(cli: Cli, task: Task) -> None:
    cli.json("run", "--state-scope", "demo", "--set", "x=1")
    machine = cli.machine(a=task("cat", default_next="b"), b=task("cat"))
    cli.json("execute", "-i", machine, "--state-scope", "demo")
    scope = hashlib.sha256(b"context:demo").hexdigest()
    (path,) = (cli.state / scope).glob("state-*")
    path.write_bytes(path.read_bytes().replace(b'"x":1', b'"x":2'))
    assert cli.refused("execute", machine, exits=5)["code"] == "integrity"
