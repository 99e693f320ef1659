"""``log --patch`` and ``diff`` over snapshots whose objects a repair has recorded as lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Cli
from each_case import Failures

from stateline import Store
from stateline.bundle import naming
from stateline.store.snapshot import Snapshot

KEY = "notes:x"


def make_chain(cli: Cli) -> list[Snapshot]:
    """Five snapshots, the values of the second and third large. The object of the second is lost, and a repair said
    so in snapshot 5."""
    scope = Store.open(cli.state).scope(KEY)
    states = [{"x": 1}, {"x": "a" * 6000}, {"x": "b" * 6000}, {"x": 2}, {"x": 3}]
    saved = [scope.save(state) for state in states]
    (ref,) = saved[1].envelope.objects.values()
    (Path(cli.state) / naming.object_path(ref.sha256)).unlink()
    assert cli.json("repair", "--apply")["ok"]
    return saved


@pytest.fixture
def chain(cli: Cli) -> list[Snapshot]:
    return make_chain(cli)


def test_what_is_lost_on_record_hides_nothing_that_is_older(cli: Cli, chain: list[Snapshot]) -> None:
    result = cli("log", "-p", KEY)
    assert (result.code, result.err) == (0, "")
    text = result.out.decode()
    assert text.count("cannot be shown: ") == 2
    assert f"it is lost, as the repair {KEY}@5 has recorded" in text
    assert text.endswith("    + x  1\n\n")


def test_a_patch_that_cannot_be_shown_is_null_and_says_why(cli: Cli, chain: list[Snapshot]) -> None:
    rows = cli.json("log", "-p", KEY)["snapshots"]
    assert [(row["seq"], row["patch"] is None) for row in rows if row["seq"] < 5] == [
        (4, False),
        (3, False),
        (2, True),
        (1, True),
        (0, False),
    ]
    assert [row["seq"] for row in rows if "unshown" in row] == [2, 1]
    assert all(f"the repair {KEY}@5 has recorded" in row["unshown"] for row in rows if "unshown" in row)
    older = cli.json("log", "-p", f"{KEY}@1")["snapshots"]
    assert [row["patch"] is None for row in older] == [True, False]


def test_a_diff_of_what_is_lost_names_the_repair(cli: Cli) -> None:
    failures = Failures()
    for pair in [("@0", "@1"), ("@1", "@2"), ("@1", "@4")]:
        with failures.case(pair), cli.fresh():
            make_chain(cli)
            words = [KEY + seq for seq in pair]
            error = cli.refused("diff", *words, exits=5)
            assert (cli("diff", *words).code, error["code"]) == (5, "integrity")
            assert f"it is lost, as the repair {KEY}@5 has recorded" in error["message"]
            assert "is the newest state of that time without losses" in error["hint"]
    failures.check()


def test_damage_that_no_repair_has_recorded_still_ends_the_log(cli: Cli, chain: list[Snapshot]) -> None:
    (ref,) = chain[2].envelope.objects.values()
    (Path(cli.state) / naming.object_path(ref.sha256)).unlink()
    result = cli("log", "-p", KEY)
    assert result.code == 5
    assert ref.sha256 in result.err
    assert cli.refused("diff", f"{KEY}@2", f"{KEY}@3", "--format", "json", exits=5)["code"] == "integrity"
