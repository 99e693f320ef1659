"""Anchors and forks in the text of `verify`, and the anchors that it accepts."""

from __future__ import annotations

import pytest
from command_line import Cli
from each_case import Failures

from stateline import Store
from stateline.bundle import naming
from stateline.store.local.backend import LocalBackend

GONE = "0" * 64


@pytest.fixture
def head(cli: Cli) -> str:
    """The head of a context with two snapshots."""
    cli.json("run", "--state-scope", "demo", "--set", "a=1")
    found: str = cli.json("run", "--state-scope", "demo", "--set", "a=2")["head"]
    return found


def test_the_verdict_counts_the_anchors_that_were_found(cli: Cli, head: str) -> None:
    assert "0 findings; 1 of 1 anchor found\n" in cli("verify", "--anchor", head).out.decode()
    assert "; 1 of 2 anchors found " in " ".join(cli("verify", "--anchor", head, "--anchor", GONE).out.decode().split())
    assert "anchors found" not in cli("verify").out.decode()


def test_a_scope_that_is_gone_exits_5_with_an_anchor_and_1_without(cli: Cli, head: str) -> None:
    document = cli.json("verify", "context:gone", "--anchor", head, exits=5)
    assert {finding["code"] for finding in document["findings"]} == {"anchor", "no_scope"}
    assert document["anchors"] == [{"sha256": head, "scope": None, "seq": None}]
    assert cli.refused("verify", "context:gone", exits=1)["code"] == "not_found"
    assert "plans how to go on" not in cli("verify", "context:gone", "--anchor", head).out.decode()


def test_a_file_gives_one_anchor_a_line(cli: Cli, head: str) -> None:
    path = cli.home / "anchors"
    path.write_text(f"{head}\n\n{GONE}\r\n")
    document = cli.json("verify", "--anchor", f"@{path}", "--anchor", head, exits=5)
    assert [anchor["sha256"] for anchor in document["anchors"]] == [head, GONE]


def test_a_file_without_anchors_is_a_usage_error(cli: Cli, head: str) -> None:
    failures = Failures()
    for content in [None, b"", b"\n\n", b"abcd\n", b"\xff\n"]:
        with failures.case(content):
            path = cli.home / "anchors"
            if content is not None:
                path.write_bytes(content)
            assert cli.refused("verify", "--anchor", f"@{path}", exits=64)["code"] == "usage"
    failures.check()


def test_a_fork_is_reported_in_the_verdict(cli: Cli, head: str) -> None:
    store = Store(LocalBackend(str(cli.state)))
    backend, hash_ = store.backend, naming.scope_hash("context:demo")
    scope = store.scope("context:demo")
    second = scope.load()
    backend.swap(hash_, second.pointer, next(s for s in scope.walk() if s.seq == 0).pointer)
    third = scope.save({"other": 1})
    backend.swap(hash_, third.pointer, second.pointer)
    result = cli("verify")
    assert result.code == 0
    assert "\nok, but forked: 1 snapshot beside the chain; 1 scope, 3 snapshots, " in result.out.decode()
    cli.state.chmod(0o755)
    (cli.state / "stateline.json").chmod(0o666)
    assert b"\nok, but unsafe and forked: " in cli("verify").out
