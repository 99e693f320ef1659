"""An anchor that is on no chain: what is known of it is said, and what is not known is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stateline.bundle import naming
from stateline.errors import NotFoundError
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify import chain as chain_module
from stateline.verify.chain import ChainCheck
from stateline.verify.checker import verify
from stateline.verify.findings import NOTE, Finding, Report

KEY = "notes:x"
GONE = "0" * 64
GROWING = ("_names", "_sought", "_altered", "_chain")


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    return [store.scope(KEY).save({"n": n}) for n in range(4)]


def said(report: Report) -> Finding:
    """The one finding about an anchor."""
    [finding] = [finding for finding in report.findings if finding.code == "anchor"]
    assert (report.ok, finding.severity) == (False, "damage")
    return finding


def scope_of(place: Path) -> Path:
    return place / naming.scope_hash(KEY)


def test_of_a_whole_store_nothing_is_known_of_what_is_not_there(store: Store, chain: list[Snapshot]) -> None:
    message = said(verify(store, None, [GONE])).message
    assert "cut off, written anew or taken away, or this is another store" in message
    assert message.endswith("a repair cannot mend this: compare with a backup")


def test_one_beside_the_chain_is_told_with_its_place(store: Store, chain: list[Snapshot], place: Path) -> None:
    (scope_of(place) / "latest.json").write_bytes(chain[2].pointer.encode())
    finding = said(verify(store, None, [chain[3].sha256]))
    assert (finding.scope, finding.path) == (KEY, f"{chain[3].scope}/{chain[3].path}")
    assert (
        f"it lies at {finding.path}, beside the chain: a crash left it there, it is a fork, or the" in finding.message
    )
    assert "a repair does not mend this" in finding.message


def test_one_that_a_repair_would_reach_again_is_not_said_to_be_beyond_repair(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    (scope_of(place) / "latest.json").write_bytes(chain[1].pointer.encode())
    message = said(verify(store, None, [chain[3].sha256])).message
    assert "beside the chain" in message
    assert message.endswith("mend what the other findings tell first, and verify again")


def test_one_that_lies_below_damage_is_told_so(store: Store, chain: list[Snapshot], place: Path) -> None:
    (scope_of(place) / chain[2].path).write_bytes(b"{}")
    message = said(verify(store, None, [chain[1].sha256])).message
    assert f"it lies at {chain[1].scope}/{chain[1].path}, but what should lead there is missing or damaged" in message
    assert "beside the chain" not in message


@pytest.mark.parametrize("loosened", [False, True])
def test_one_whose_own_file_cannot_be_read_is_told_with_that_file(
    store: Store, chain: list[Snapshot], place: Path, loosened: bool
) -> None:
    """Named by the chain, or by what lies beside it."""
    (scope_of(place) / chain[1].path).unlink()
    if loosened:
        (scope_of(place) / "latest.json").write_bytes(b"{}")
    finding = said(verify(store, None, [chain[1].sha256]))
    assert finding.path == f"{chain[1].scope}/{chain[1].path}"
    assert f"{finding.path} should have it, and could not be read; put that file back from a backup" in finding.message


def test_one_that_a_damaged_file_may_have_is_not_called_cut_off(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    (scope_of(place) / chain[1].path).write_bytes(b"{}")
    message = said(verify(store, None, [GONE])).message
    assert "what is missing, damaged or of a newer version was not read and may have it" in message
    assert "cut off" not in message


def test_below_a_newer_version_nothing_is_called_cut_off(store: Store, chain: list[Snapshot], place: Path) -> None:
    pointer = scope_of(place) / "latest.json"
    pointer.write_bytes(pointer.read_bytes().replace(b'"version":"1"', b'"version":"2"'))
    assert "a newer version wrote what may lead there" in said(verify(store, None, [chain[1].sha256])).message
    assert "of a newer version was not read and may have it" in said(verify(store, None, [GONE])).message
    (place / "stateline.json").write_bytes(b'{"format":"stateline/2"}')
    assert "of a newer version was not read and may have it" in said(verify(store, None, [chain[1].sha256])).message


def test_of_one_scope_it_is_said_that_the_others_were_not_searched(store: Store, chain: list[Snapshot]) -> None:
    other = store.scope("notes:y").save({"n": 0})
    message = said(verify(store, KEY, [other.sha256])).message
    assert f"only the scope {KEY} was read, and without a KEY all are searched" in message


def test_a_scope_that_is_gone_is_a_finding_where_anchors_are_given(store: Store, chain: list[Snapshot]) -> None:
    store.backend.remove(chain[0].scope)
    report = verify(store, KEY, [chain[3].sha256])
    assert f"there is no scope {KEY}: it was taken away" in said(report).message
    [warning] = [finding for finding in report.findings if finding.code != "anchor"]
    assert warning == Finding("warning", "no_scope", KEY, "", f"there is no scope {KEY}")
    with pytest.raises(NotFoundError):
        verify(store, KEY)


def test_the_note_says_what_anchors_bind_only_if_all_are_found_and_nothing_is_damaged(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    note = verify(store, None, [chain[1].sha256, chain[3].sha256]).note
    assert note.startswith("Bound by 2 anchors: ")
    assert "newer than they are is bound by none" in note
    assert verify(store, None, [chain[3].sha256]).note.startswith("Bound by 1 anchor: ")
    assert verify(store).note == verify(store, None, [chain[3].sha256, GONE]).note == NOTE
    (scope_of(place) / chain[0].path).write_bytes(b"{}")
    report = verify(store, None, [chain[3].sha256])
    assert (report.anchors[0].seq, report.note) == (3, NOTE)


def test_all_scopes_are_checked_with_one_set_of_anchors_and_no_check_keeps_its_chain(
    store: Store, chain: list[Snapshot], monkeypatch: pytest.MonkeyPatch, publish: Callable[..., object]
) -> None:
    """A set for each scope, or a chain kept for each, would take memory by the square of the store."""
    heads = [store.scope(f"notes:{n}").save({"n": n}).sha256 for n in range(5)]
    publish(store, KEY, head=False, seq=1, prev=chain[0].path, prev_sha=chain[0].sha256)
    checks: list[ChainCheck] = []
    run = ChainCheck.run

    def noted(check: ChainCheck) -> ChainCheck:
        checks.append(check)
        return run(check)

    monkeypatch.setattr(chain_module.ChainCheck, "run", noted)
    verify(store, None, [*heads, GONE])
    assert len({id(check._anchors) for check in checks}) == 1
    assert len(checks) > 5
    for check in checks:
        assert [len(getattr(check, name)) for name in GROWING] == [0] * len(GROWING)
        assert (check._losses.gaps, check._losses.objects) == ({}, set())
    assert sum(len(check.anchored) for check in checks) == 5


def test_each_check_is_looked_through_once_for_all_anchors(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateline.verify import anchors

    reads = 0

    class Counted(ChainCheck):
        def __getattribute__(self, name: str) -> object:
            nonlocal reads
            reads += name in ("anchored", "given_up", "beside", "named")
            return super().__getattribute__(name)

    inventory = chain_module.Inventory(store, None)
    checks = [Counted(store, "0" * 64, inventory) for _ in range(20)]
    reads = 0
    moorings = anchors.AnchorIndex(checks)
    assert 20 * 4 <= reads < 20 * 8
    before = reads
    for number in range(50):
        digest = f"{number:064x}"
        assert moorings.finding(digest) is not None
        assert moorings.anchor(digest).scope is None
    assert reads == before
