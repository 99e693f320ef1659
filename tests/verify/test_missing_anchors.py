"""Reasons given for an anchor that is on no chain: what is known is reported, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_stores import HASH, KEY, Publish

from stateline.errors import NotFoundError
from stateline.store.store import Snapshot, Store
from stateline.verify import chain as chain_module
from stateline.verify.chain import ChainCheck
from stateline.verify.checker import verify
from stateline.verify.findings import NOTE, Finding, Report, ScopeReport

MISSING = "0" * 64


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    return [store.scope(KEY).save({"n": n}) for n in range(4)]


def anchor_finding(report: Report) -> Finding:
    """The one finding about an anchor."""
    [finding] = [finding for finding in report.findings if finding.code == "anchor"]
    assert (report.ok, finding.severity) == (False, "damage")
    return finding


def reason(store: Store, sha: str, key: str | None = None) -> str:
    return anchor_finding(verify(store, key, [sha])).message


def test_in_an_intact_store_a_missing_anchor_was_cut_off_or_belongs_elsewhere(
    store: Store, chain: list[Snapshot]
) -> None:
    assert "cut off, rewritten or removed, or this is another store" in reason(store, MISSING)
    other = store.scope("notes:y").save({"n": 0})
    assert f"only the scope {KEY} was read" in reason(store, other.sha256, KEY)


def test_an_anchor_beside_the_chain_is_reported_with_its_path(store: Store, chain: list[Snapshot], place: Path) -> None:
    (place / HASH / "latest.json").write_bytes(chain[2].pointer.encode())
    finding = anchor_finding(verify(store, None, [chain[3].sha256]))
    assert (finding.scope, finding.path) == (KEY, f"{HASH}/{chain[3].path}")
    assert "beside the chain" in finding.message
    assert "a repair cannot fix this" in finding.message
    (place / HASH / "latest.json").write_bytes(chain[1].pointer.encode())
    assert "fix the other findings first" in reason(store, chain[3].sha256), "a repair would reach it again"


def test_an_anchor_below_damage_is_not_called_beside_the_chain(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    (place / HASH / chain[2].path).write_bytes(b"{}")
    message = reason(store, chain[1].sha256)
    assert f"it is at {HASH}/{chain[1].path}, but what should lead there is missing or damaged" in message
    assert "beside the chain" not in message


def test_an_anchor_whose_own_file_cannot_be_read_is_reported_with_that_file(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    (place / HASH / chain[1].path).unlink()
    for pointer in (None, b"{}"):  # named by the chain, or by a snapshot beside it
        if pointer is not None:
            (place / HASH / "latest.json").write_bytes(pointer)
        finding = anchor_finding(verify(store, None, [chain[1].sha256]))
        assert finding.path == f"{HASH}/{chain[1].path}"
        assert "restore that file from a backup" in finding.message


def test_an_anchor_that_an_unread_file_may_hold_is_not_called_cut_off(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    (place / HASH / chain[1].path).write_bytes(b"{}")
    message = reason(store, MISSING)
    assert "missing, damaged or of a newer version were not read and may hold it" in message
    assert "cut off" not in message


def test_below_a_newer_version_no_anchor_is_called_cut_off(store: Store, chain: list[Snapshot], place: Path) -> None:
    pointer = place / HASH / "latest.json"
    pointer.write_bytes(pointer.read_bytes().replace(b'"version":"1"', b'"version":"2"'))
    assert "a newer version wrote what may lead there" in reason(store, chain[1].sha256)
    assert "were not read and may hold it" in reason(store, MISSING)
    (place / "stateline.json").write_bytes(b'{"format":"stateline/2"}')
    assert "were not read and may hold it" in reason(store, chain[1].sha256)


def test_a_missing_scope_is_a_finding_if_anchors_are_given(store: Store, chain: list[Snapshot]) -> None:
    store.backend.remove(HASH)
    report = verify(store, KEY, [chain[3].sha256])
    assert f"there is no scope {KEY}: it was removed" in anchor_finding(report).message
    [warning] = [finding for finding in report.findings if finding.code != "anchor"]
    assert (warning.severity, warning.code, warning.scope) == ("warning", "no_scope", KEY)
    with pytest.raises(NotFoundError):
        verify(store, KEY)


def test_the_note_says_what_anchors_bind_only_if_all_are_found_and_nothing_is_damaged(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    assert verify(store, None, [chain[1].sha256, chain[3].sha256]).note.startswith("Bound by 2 anchors: ")
    assert verify(store, None, [chain[3].sha256]).note.startswith("Bound by 1 anchor: ")
    assert verify(store).note == verify(store, None, [chain[3].sha256, MISSING]).note == NOTE
    (place / HASH / chain[0].path).write_bytes(b"{}")
    report = verify(store, None, [chain[3].sha256])
    assert (report.anchors[0].seq, report.note) == (3, NOTE)


def test_all_scopes_share_one_set_of_anchors_and_no_report_keeps_a_chain(
    store: Store, chain: list[Snapshot], monkeypatch: pytest.MonkeyPatch, publish: Publish
) -> None:
    """Otherwise memory would grow by the square of the store."""
    heads = [store.scope(f"notes:{n}").save({"n": n}).sha256 for n in range(5)]
    publish(store, KEY, head=False, seq=1, prev=chain[0].path, prev_sha=chain[0].sha256)
    checks: list[ChainCheck] = []
    reports: list[ScopeReport] = []
    run = ChainCheck.run

    def recorded(check: ChainCheck) -> ScopeReport:
        checks.append(check)
        reports.append(run(check))
        return reports[-1]

    monkeypatch.setattr(chain_module.ChainCheck, "run", recorded)
    verify(store, None, [*heads, MISSING])
    assert len({id(check._anchors) for check in checks}) == 1
    assert len(checks) > 5
    assert sum(len(report.anchors.on_chain) for report in reports) == 5
    assert not any(len(report.findings) > 1 for report in reports)
