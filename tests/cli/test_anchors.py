"""`verify` gives heads to keep elsewhere, and takes them back as anchors."""

from __future__ import annotations

import shutil

import pytest
from command_line import Cli


@pytest.fixture
def head(cli: Cli) -> str:
    """The head of a context with two snapshots."""
    cli.json("run", "--state-scope", "demo", "--set", "a=1")
    found: str = cli.json("run", "--state-scope", "demo", "--set", "a=2")["head"]
    return found


def test_verify_prints_each_head_and_where_an_anchor_is(cli: Cli, head: str) -> None:
    lines = cli("verify", "--anchor", head).out.decode().splitlines()
    assert lines[:4] == [f"head {head}", "  context:demo@1", f"anchor {head}", "  context:demo@1"]
    assert [line for line in lines if line.startswith("anchor")] == [f"anchor {head}"]


def test_an_anchor_that_is_missing_exits_5_and_asks_for_no_repair(cli: Cli, head: str) -> None:
    result = cli("verify", "--anchor", "0" * 64, "--anchor", head)
    text = result.out.decode()
    assert result.code == 5
    assert f"damage anchor: the anchor\n  {'0' * 64}" in text
    assert "\nDAMAGED: " in text
    assert "plans how to go on" not in text
    document = cli.json("verify", "--anchor", "0" * 64, "--anchor", head, exits=5)
    assert document["ok"] is False
    assert document["heads"] == [{"scope": "context:demo", "seq": 1, "sha256": head}]
    assert document["anchors"] == [
        {"sha256": "0" * 64, "scope": None, "seq": None},
        {"sha256": head, "scope": "context:demo", "seq": 1},
    ]
    assert [(finding["severity"], finding["code"]) for finding in document["findings"]] == [("damage", "anchor")]


def test_a_store_that_was_exchanged_is_shown_by_the_anchor(cli: Cli, head: str) -> None:
    shutil.rmtree(cli.state)
    cli.json("run", "--state-scope", "demo", "--set", "a=1")
    assert cli("verify").code == 0
    assert cli("verify", "--anchor", head).code == 5


def test_what_is_not_a_whole_digest_is_a_usage_error(cli: Cli, head: str) -> None:
    result = cli("verify", "--anchor", head[:16])
    assert result.code == 64
    assert "64 lower-case hex digits" in result.err


def test_of_many_heads_people_are_shown_the_number_and_programs_all(cli: Cli) -> None:
    for number in range(11):
        cli.json("run", "--state-scope", f"demo-{number}", "--set", "a=1")
    text = cli("verify").out.decode()
    assert "\nhead " not in f"\n{text}"
    assert "11 heads: `stateline verify --format json` lists them\n" in text
    assert len(cli.json("verify")["heads"]) == 11


def test_the_note_names_all_that_cannot_be_seen(cli: Cli, head: str) -> None:
    note = cli.json("verify")["note"]
    for unseen in ("cut off its end", "--anchor"):
        assert unseen in note
    assert note in " ".join(cli("verify").out.decode().split())
