"""Results that cannot be saved or decided on, and stores that a newer Stateline has written to."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task

from stateline.engine import step
from stateline.errors import StorageError
from stateline.machine.decider.run import Succeeded
from stateline.store.local.backend import LocalBackend


def once(cli: Cli, task: Task, **keys: Any) -> str:
    a = task("echo a >> ran; echo '{\"paid\": 7}'", repeatable=False, default_next="b", **keys)
    return str(cli.machine(a=a, b=task("echo b >> ran; echo 2")))


def refuse_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses the first snapshot of a result."""
    put = LocalBackend.put
    refused: list[str] = []

    def fake(self: LocalBackend, name: str, data: bytes) -> None:
        if not refused and b'"type":"succeeded"' in data:
            refused.append(name)
            raise StorageError("no space left on device", hint="make room")
        put(self, name, data)

    monkeypatch.setattr(LocalBackend, "put", fake)


def test_a_result_that_cannot_be_saved_is_shown_with_the_next_step(
    cli: Cli, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = once(cli, task)
    refuse_results(monkeypatch)
    error = cli.refused("execute", machine, "--id", "r1", exits=1)
    assert error["code"] == "storage"
    assert "'a'" in error["message"]
    assert '{"paid":7}' in error["message"]
    assert "`stateline exec resume r1` asks for the result: give it with --answer" in error["hint"]
    cli.json("exec", "resume", "r1", exits=3)
    document = cli.json("exec", "resume", "r1", "--answer", '{"paid": 7}')
    assert (document["status"], document["outputs"]) == ("complete", {"a": {"paid": 7}, "b": 2})
    assert cli.ran() == ["a", "b"]
    assert [each for each in cli.json("verify")["findings"] if each["severity"] != "residue"] == []


def test_a_repeatable_result_that_cannot_be_saved_says_that_it_runs_again(
    cli: Cli, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = cli.machine(a=task("echo a >> ran; echo 5"))
    refuse_results(monkeypatch)
    assert "run again" in cli.refused("execute", machine, "--id", "r1", exits=1)["hint"]
    assert cli.json("execute", machine)["output"] == 5
    assert cli.ran() == ["a", "a"]


def test_a_secret_in_a_result_that_cannot_be_saved_is_not_shown(
    cli: Cli, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "abcdef-123456-secret")
    machine = cli.machine(a={"task": ["sh", "-c", 'echo "\\"$SOME_API_KEY\\""'], "env": ["SOME_API_KEY"]})
    refuse_results(monkeypatch)
    error = cli.refused("execute", machine, exits=1)
    assert "[REDACTED]" in error["message"]
    assert "abcdef-123456-secret" not in str(error)


@pytest.mark.parametrize("broken", [MemoryError(), RecursionError("too deep"), ZeroDivisionError("a bug")])
def test_a_result_that_cannot_be_decided_on_is_kept_and_settled_by_a_retry(
    cli: Cli, task: Task, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    machine = once(cli, task)
    advance = step.advance

    def fake(machine: Any, state: Any, event: Any, *facts: Any) -> Any:
        if isinstance(event, Succeeded):
            raise broken
        return advance(machine, state, event, *facts)

    with monkeypatch.context() as patch:
        patch.setattr(step, "advance", fake)
        document = cli.json("execute", machine, "--id", "r1", exits=1)
    assert (document["status"], document["reason"]) == ("error", "internal")
    assert document["outputs"] == {"a": {"paid": 7}}
    assert type(broken).__name__ in document["error"]["message"]
    document = cli.json("exec", "resume", "r1", "--retry")
    assert (document["status"], document["outputs"]) == ("complete", {"a": {"paid": 7}, "b": 2})
    assert cli.ran() == ["a", "b"]


def upgrade(cli: Cli, key: str, **more: Any) -> None:
    """Rewrite the head of a scope as a newer minor version would have written it, without the code under test."""
    place = Path(cli.state / hashlib.sha256(key.encode()).hexdigest())
    pointer = json.loads((place / "latest.json").read_text())
    document = json.loads((place / pointer["path"]).read_text()) | {"version": "1.1", "signature": "s"} | more
    data = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    sha = hashlib.sha256(data).hexdigest()
    name = f"state-{document['created_at'].replace(':', '')}-{sha[:8]}.json"
    (place / pointer["path"]).unlink()
    pointer |= {"path": name, "sha256": sha}
    head = json.dumps(pointer, sort_keys=True, separators=(",", ":")).encode()
    for file, content in ((name, data), ("latest.json", head)):
        (place / file).write_bytes(content)
        os.chmod(place / file, 0o600)


def contents(cli: Cli) -> dict[str, Any]:
    return {path: row[4] for path, row in cli.tree().items() if row[4]}


@pytest.mark.parametrize("where", ["ready", "waiting", "failed"])
def test_a_run_of_a_newer_minor_version_is_read_and_not_continued(cli: Cli, task: Task, where: str) -> None:
    b = {"waiting": {"human": {"prompt": "?"}, "default_next": "c"}, "failed": task("false")}.get(
        where, task("echo b >> ran; echo 2")
    )
    machine = cli.machine(a=task("echo 1", default_next="b"), b=b, c=task("echo c >> ran; echo 3"))
    cli("execute", *([] if where == "failed" else ["-i"]), machine, "--id", "r1")
    upgrade(cli, "run:r1")
    before = contents(cli)
    assert cli.json("exec", "status", "r1")["run"] == "r1"
    assert cli.json("exec", "show", "r1")["outputs"] == {"a": 1}
    assert [row["run"] for row in cli.json("exec", "list")["runs"]] == ["r1"]
    assert cli.json("exec", "history", "r1")["history"]
    assert cli.json("log", "run:r1")["snapshots"]
    assert cli.json("show", "run:r1")
    words: dict[str, list[list[str]]] = {
        "ready": [["execute", machine], ["execute", "-i", machine], ["exec", "resume", "r1"]],
        "waiting": [["execute", machine, "--answer", "1"], ["exec", "resume", "r1", "--answer", "1"]],
        "failed": [["exec", "resume", "r1", "--retry"]],
    }
    for call in [*words[where], ["execute", machine, "--id", "r1", "--force"]]:
        assert cli.refused(*call, exits=1)["code"] == "newer_version", call
        assert cli.ran() == []
        assert contents(cli) == before


def test_a_context_of_a_newer_minor_version_is_read_and_not_refined(cli: Cli) -> None:
    cli.json("run", "--state-scope", "demo", "--set", "x=1")
    upgrade(cli, "context:demo")
    before = contents(cli)
    assert cli.json("run", "--state-scope", "demo")["status"] == "complete"
    assert cli.refused("run", "--state-scope", "demo", "--set", "x=2", exits=1)["code"] == "newer_version"
    assert contents(cli) == before


def test_a_dry_run_foresees_that_a_newer_minor_version_stops_the_call(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1", default_next="b"), b=task("echo b >> ran; echo 2"))
    cli.json("execute", "-i", machine, "--id", "r1")
    cli.json("run", "--state-scope", "demo", "--set", "x=1")
    upgrade(cli, "run:r1")
    upgrade(cli, "context:demo")
    assert cli.json("execute", machine, "--dry-run")["plan"]["action"] == "refuse"
    assert cli.json("execute", machine, "--id", "r1", "--force", "--dry-run")["plan"]["action"] == "refuse"
    assert cli.json("run", "--state-scope", "demo", "--set", "x=2", "--dry-run")["plan"]["action"] == "refuse"
