"""Anchors show what a chain cannot: clean cuts, rewritten pasts, other stores."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest
from sample_stores import Publish
from stress.corruption import audit_script, forgeries, generated_stores

from stateline.bundle.envelope import Link, Pointer
from stateline.errors import UsageError
from stateline.service.repair import apply_repair
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify
from stateline.verify.findings import Anchor, Finding

KEY = "notes:x"
OTHER = "notes:y"


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    return [store.scope(KEY).save({"n": n, "text": f"{n}" * 5000}) for n in range(5)]


def anchor_findings(store: Store, *anchors: str, key: str | None = None) -> list[Finding]:
    """Findings about anchors; require that nothing else is damaged."""
    report = verify(store, key, anchors)
    damage = [finding for finding in report.findings if finding.severity == "damage"]
    assert [finding.code for finding in damage] == ["anchor"] * len(damage)
    assert report.ok is not bool(damage)
    return damage


def _after(parent: Snapshot) -> dict[str, Any]:
    at = "2030-01-01T00:00:00.000000Z"
    return {"seq": parent.seq + 1, "prev": parent.path, "prev_sha": parent.sha256, "created_at": at}


def test_intact_heads_are_reported_by_key(store: Store, chain: list[Snapshot], place: Path) -> None:
    other = store.scope("notes:a").save({})
    assert verify(store).heads == (Link("notes:a", 0, other.sha256), Link(KEY, 4, chain[4].sha256))
    assert verify(store, KEY).heads == (Link(KEY, 4, chain[4].sha256),)
    (place / chain[4].scope / chain[4].path).write_bytes(b"{}")
    assert verify(store, KEY).heads == ()


def test_anchors_on_a_chain_are_found_once_with_their_place_and_while_it_grows(
    store: Store, chain: list[Snapshot]
) -> None:
    other = store.scope(OTHER).save({"n": 0})
    report = verify(store, None, [chain[4].sha256, other.sha256, chain[0].sha256, chain[4].sha256])
    assert report.ok
    assert report.anchors == (
        Anchor(chain[4].sha256, KEY, 4),
        Anchor(other.sha256, OTHER, 0),
        Anchor(chain[0].sha256, KEY, 0),
    )
    store.scope(KEY).save({"n": "newer"})
    assert anchor_findings(store, chain[4].sha256) == []


def test_an_anchor_that_is_on_no_chain_is_damage(store: Store, chain: list[Snapshot]) -> None:
    (finding,) = anchor_findings(store, chain[2].sha256, "0" * 64)
    assert (finding.scope, finding.path) == (None, "")
    assert "0" * 64 in finding.message


def test_a_scope_has_only_its_own_anchors(store: Store, chain: list[Snapshot]) -> None:
    other = store.scope(OTHER).save({"n": 0})
    assert anchor_findings(store, chain[3].sha256, key=KEY) == []
    assert len(anchor_findings(store, other.sha256, key=KEY)) == 1


def test_an_unacknowledged_snapshot_is_not_an_anchor(store: Store, chain: list[Snapshot], place: Path) -> None:
    (place / chain[0].scope / "latest.json").write_bytes(chain[3].pointer.encode())
    assert len(anchor_findings(store, chain[4].sha256)) == 1


def test_an_absent_or_newer_store_has_no_anchor(store: Store, place: Path) -> None:
    assert len(anchor_findings(store, "0" * 64)) == 1
    assert not place.exists()
    head = store.scope(KEY).save({})
    (place / "stateline.json").write_bytes(b'{"format":"stateline/2"}')
    assert len(anchor_findings(store, head.sha256)) == 1


def test_a_removed_scope_is_missed_in_the_whole_store(store: Store, chain: list[Snapshot]) -> None:
    store.scope(OTHER).save({"n": 0})
    store.backend.remove(chain[0].scope)
    assert len(anchor_findings(store, chain[4].sha256)) == 1
    assert not verify(store, KEY, [chain[4].sha256]).ok


def test_only_a_whole_digest_is_an_anchor(store: Store) -> None:
    for text in ("", "abcd", "A" * 64, "g" * 64, "0" * 63, "0" * 65, KEY, "0" * 64 + "\n"):
        with pytest.raises(UsageError):
            verify(store, None, [text])


def test_a_snapshot_that_a_repair_recorded_as_lost_is_a_missing_anchor(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    """In the middle of the chain, and above its end: anybody who can write here can write that record."""
    (place / chain[0].scope / chain[1].path).unlink()
    (place / chain[0].scope / chain[4].path).write_bytes(b"{}")
    apply_repair(store, None)
    assert anchor_findings(store, chain[0].sha256, chain[2].sha256, chain[3].sha256) == []
    for lost in (chain[1].sha256, chain[4].sha256):
        (finding,) = anchor_findings(store, lost)
        assert finding.scope == KEY
        assert "a repair of this scope has recorded it as lost" in finding.message


def test_a_forged_declaration_of_loss_does_not_replace_an_anchor(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish
) -> None:
    """The anchored snapshot is removed, and a new head that follows it declares it lost."""
    gap = {
        "lost": {"seq": 4, "sha256": chain[4].sha256},
        "resumes": {"path": chain[3].path, "seq": 3, "sha256": chain[3].sha256},
    }
    (place / chain[0].scope / chain[4].path).unlink()
    follows = _after(chain[4])
    publish(store, KEY, head=True, event={"type": "repaired", "repaired": {"gaps": [gap]}}, **follows)
    assert verify(store).ok
    assert len(anchor_findings(store, chain[4].sha256)) == 1


def test_a_malformed_record_of_losses_is_ignored(store: Store, chain: list[Snapshot], publish: Publish) -> None:
    head = chain[4]
    follows = _after(head)
    publish(store, KEY, head=True, event={"repaired": {"lost": 7, "gaps": [{}]}}, **follows)
    (finding,) = anchor_findings(store, "0" * 64)
    assert finding.scope is None


def test_a_forged_past_below_a_gap_is_found_only_by_an_older_anchor(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish
) -> None:
    """The anchor of the head binds nothing below a gap that a newer head declares."""
    scope = place / chain[0].scope
    for snapshot in chain[:3]:
        (scope / snapshot.path).unlink()
    forged = publish(store, KEY, head=False, state={"n": "another past"})
    gap = {
        "lost": {"seq": 2, "sha256": chain[2].sha256},
        "resumes": {"path": forged.path, "seq": 0, "sha256": forged.sha256},
    }
    head = chain[4]
    follows = _after(head)
    publish(store, KEY, head=True, event={"type": "repaired", "repaired": {"gaps": [gap]}}, **follows)
    assert [finding.code for finding in verify(store).findings if finding.severity == "warning"] == ["lost"]
    assert anchor_findings(store, head.sha256) == []
    assert len(anchor_findings(store, chain[1].sha256)) == 1


def test_each_forgery_is_detected_with_an_anchor_and_none_without(tmp_path: Path) -> None:
    found = forgeries.campaign(
        tmp_path / "place", "anchors", stores=2, share=0.0, scripted=False, until=monotonic() + 600, say=print
    )["forgeries"]
    assert len(found) == 6
    for counts in found.values():
        assert counts["forged"] == counts["seen with an anchor"] > counts["seen without an anchor"] == 0


def test_the_auditor_reports_a_forgery_that_does_nothing(tmp_path: Path) -> None:
    """The campaign itself can fail: where nothing is forged, the anchor is found."""
    sample = generated_stores.build(tmp_path / "place", Random("lie"))
    auditor = forgeries.Auditor(sample, None, Random(0))
    scope = min(sample.chains)
    auditor.judge(forgeries.Corruption("nothing", scope, scope, frozenset(), lambda root: None), 0.0)
    assert len(auditor.wrong) == 1


@pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("sh", "jq", "sha256sum")), reason="the script needs jq and sha256sum"
)
def test_the_audit_script_takes_anchors_too(store: Store, chain: list[Snapshot], place: Path, tmp_path: Path) -> None:
    script = tmp_path / "audit.sh"
    script.write_text(audit_script.script(), encoding="utf-8")
    scope, head = chain[0].scope, chain[4].sha256
    assert audit_script.script_says(script, place, scope, head, chain[0].sha256) == "intact"
    assert audit_script.script_says(script, place, scope, "0" * 64) == "damage"
    (place / scope / chain[4].path).unlink()
    (place / scope / "latest.json").write_bytes(Pointer(chain[3].path, chain[3].sha256).encode())
    assert audit_script.script_says(script, place, scope) == audit_script.verify_says(place, KEY) == "intact"
    assert (
        audit_script.script_says(script, place, scope, head) == audit_script.verify_says(place, KEY, head) == "damage"
    )
