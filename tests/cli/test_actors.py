"""The actor: ``--actor`` and ``STATELINE_ACTOR``, in events and where people read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import USER, Cli, Task

PERSON = {"user": USER, "host": os.uname().nodename, "name": "Ada"}


def snapshots(cli: Cli) -> Iterator[dict[str, Any]]:
    for scope in cli.json("scopes")["scopes"]:
        yield from cli.json("log", scope["scope"])["snapshots"]


def ask_and_ship(cli: Cli, task: Task) -> str:
    """A run that waits for a person."""
    machine = cli.machine(ask={"human": {"prompt": "Ship?"}, "default_next": "ship"}, ship=task("exit 1"))
    assert cli("execute", machine, "--id", "r").code == 3
    return machine


def test_every_event_of_every_scope_names_the_actor(cli: Cli, task: Task) -> None:
    cli.monkeypatch.setenv("STATELINE_ACTOR", "Ada")
    machine = ask_and_ship(cli, task)
    assert cli("execute", machine, "--id", "r", "--no-input").code == 3
    assert cli("exec", "resume", "r", stdin=b"true").code == 1
    assert cli("exec", "resume", "r", "--retry").code == 1
    cli.machine(ask={"human": {"prompt": "Ship?"}, "default_next": "ship"}, ship=task("echo 1"))
    assert cli("execute", machine, "--id", "r", "--accept-change").code == 1
    assert cli("run", "--state-scope", "c", "--system", "Be brief.").code == 0
    assert cli("run", "--state-scope", "c", "--refine-text", "Be brief indeed.").code == 0
    head = Path(cli.state) / cli.json("scopes")["scopes"][0]["hash"] / "latest.json"
    head.write_bytes(b"{}")
    assert cli("repair", "--apply").code == 0
    found = list(snapshots(cli))
    assert {row["event"]["type"] for row in found} >= {
        "started", "answered", "failed", "retried", "replaced", "run_started", "derive", "refine", "repaired"
    }  # fmt: skip
    assert [row["event"]["actor"] for row in found] == [PERSON] * len(found)


def test_the_state_does_not_depend_on_the_actor(cli: Cli, task: Task) -> None:
    states = []
    for name in ("Ada", "Grace"):
        with cli.fresh():
            ask_and_ship(cli, task)
            cli("--actor", name, "exec", "resume", "r", stdin=b"true")
            states.append(cli.json("show", "run:r", "--resolve")["state"])
    assert states[0] == states[1]


def test_the_log_and_the_status_show_who_answered_and_refined(cli: Cli, task: Task) -> None:
    cli.monkeypatch.setenv("STATELINE_ACTOR", "nobody")
    ask_and_ship(cli, task)
    assert cli("--actor", "Ada", "exec", "resume", "r", stdin=b"true").code == 1
    answered = next(line for line in cli("log", "run:r").out.decode().split("\n") if " answered" in line)
    assert " answered by Ada " in answered
    assert f"    by Ada ({USER}@{PERSON['host']})\n" in cli("log", "-p", "run:r").out.decode()
    assert cli.json("exec", "status", "r")["actor"] == PERSON
    status = cli("exec", "status", "r").out.decode()
    assert f"last actor: Ada ({USER}@{PERSON['host']})" in " ".join(status.split())
    cli("run", "--state-scope", "c", "--system", "Be brief.", "--actor", "Grace")
    assert "derive by Grace " in cli("log", "context:c").out.decode()


def test_a_secret_in_the_actors_name_reaches_neither_disk_nor_output(cli: Cli, task: Task) -> None:
    cli.monkeypatch.setenv("MY_API_KEY", "hunter2-hunter2")
    cli.monkeypatch.setenv("STATELINE_ACTOR", "Ada hunter2-hunter2")
    ask_and_ship(cli, task)
    for row in snapshots(cli):
        assert row["event"]["actor"]["name"] == "Ada [REDACTED]"
    assert all(b"hunter2" not in path.read_bytes() for path in Path(cli.state).rglob("*.json"))


def test_an_actor_that_is_no_line_of_text_is_a_usage_error(cli: Cli, task: Task) -> None:
    machine = cli.machine(a=task("echo 1"))
    assert cli.refused("--actor", "a\nb", "execute", machine, exits=64)["code"] == "usage"
    assert not Path(cli.state).exists()
