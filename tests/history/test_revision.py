"""Revisions: names of snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_stores import OpenStore, Publish

from stateline.errors import AmbiguousRevisionError, IntegrityError, NotFoundError, RequestError
from stateline.history.revision import find
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    return [store.scope("notes:x").save({"n": n}) for n in range(5)]


def test_a_key_names_the_head(store: Store, chain: list[Snapshot]) -> None:
    assert find(store, "notes:x").sha256 == chain[-1].sha256


def test_steps_back_and_seqs_name_the_same_snapshots(store: Store, chain: list[Snapshot]) -> None:
    for back in range(5):
        assert find(store, f"notes:x~{back}").sha256 == chain[4 - back].sha256
        assert find(store, f"notes:x@{4 - back}").sha256 == chain[4 - back].sha256


def test_the_first_digits_of_a_sha_name_a_snapshot_of_any_scope(store: Store, chain: list[Snapshot]) -> None:
    other = store.scope("notes:y").save({"n": 0})
    for digits in (4, 7, 8, 9, 16, 40, 64):
        for snapshot in (*chain, other):
            assert find(store, snapshot.sha256[:digits]).sha256 == snapshot.sha256
        assert find(store, other.sha256[:digits].upper()).sha256 == other.sha256


def test_walking_back_never_lists_the_scopes_directory(
    store: Store, chain: list[Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(place: str = "") -> Iterator[str]:
        assert place not in ("", chain[0].scope)
        return iter(())

    monkeypatch.setattr(store.backend, "list", listed)
    monkeypatch.setattr(store.backend, "scopes", listed)
    assert find(store, "notes:x~4").seq == 0
    assert find(store, "notes:x@1").seq == 1


def test_names_of_snapshots_and_checkpoints_that_do_not_exist_are_not_found(
    store: Store, chain: list[Snapshot]
) -> None:
    beyond = ["notes:x~5", "notes:x@5", "notes:x~999999999999", "notes:x@999999999999"]
    for text in (*beyond, "notes:x@release", "notes:x@", "notes:x@-1"):
        with pytest.raises(NotFoundError) as caught:
            find(store, text)
        assert "notes:x" in caught.value.message, text
        assert "notes:x" in caught.value.hint, text


def test_a_scope_whose_key_is_exactly_the_text_wins(store: Store, chain: list[Snapshot]) -> None:
    for key in ("notes:x@3", "notes:x~1", "notes:x@name", "notes:@", "notes:~2", "notes:a@b~c@4"):
        saved = store.scope(key).save({"odd": True})
        assert find(store, key).sha256 == saved.sha256
        assert find(store, f"{key}~0").sha256 == saved.sha256
        assert find(store, f"{key}@0").sha256 == saved.sha256


def test_text_that_is_not_a_revision_is_not_found(store: Store, chain: list[Snapshot]) -> None:
    odd = ["", ":", "~", "@", "~1", "@1", "notes:", "a\0:b", "run:\ud800", "../../x", "notes:x\n", "g" * 40, "0" * 65]
    for text in odd:
        with pytest.raises(NotFoundError) as caught:
            find(store, text)
        assert caught.value.message.isprintable(), text


def test_fewer_than_four_digits_are_refused(store: Store, chain: list[Snapshot]) -> None:
    for text in ("a", "ab", "abc", "ABC"):
        with pytest.raises(RequestError) as caught:
            find(store, text)
        assert caught.value.exit_code == 1


def test_a_prefix_of_several_snapshots_lists_them(open_store: OpenStore, publish: Publish) -> None:
    store = open_store()
    seen: dict[str, str] = {}
    for number in range(2000):
        sha = publish(store, "notes:many", head=False, state={"n": number}).sha256
        if sha[:4] in seen:
            break
        seen[sha[:4]] = sha
    else:
        pytest.fail("no two of 2,000 digests share four digits")
    with pytest.raises(AmbiguousRevisionError) as caught:
        find(store, sha[:4])
    assert sha in caught.value.message
    assert seen[sha[:4]] in caught.value.message
    assert find(store, sha[:12]).sha256 == sha


def test_a_prefix_longer_than_the_label_is_checked_on_the_content(store: Store, chain: list[Snapshot]) -> None:
    wrong = chain[2].sha256[:8] + ("0" if chain[2].sha256[8] != "0" else "1")
    with pytest.raises(NotFoundError):
        find(store, wrong)


def test_a_prefix_of_a_damaged_snapshot_is_an_integrity_error(store: Store, chain: list[Snapshot], place: Path) -> None:
    path = place / chain[1].scope / chain[1].path
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":7'))
    for text in (chain[1].sha256[:6], chain[1].sha256, "notes:x~3"):
        with pytest.raises(IntegrityError):
            find(store, text)
    assert find(store, "notes:x~2").seq == 2


def test_a_lost_pointer_is_not_an_unknown_scope(store: Store, chain: list[Snapshot], place: Path) -> None:
    (place / chain[0].scope / "latest.json").unlink()
    with pytest.raises(IntegrityError) as caught:
        find(store, "notes:x")
    assert caught.value.finding == "missing"


def test_a_first_snapshot_that_was_never_acknowledged_makes_no_scope(store: Store, publish: Publish) -> None:
    pointer = publish(store, "notes:new", head=False)
    with pytest.raises(NotFoundError):
        find(store, "notes:new")
    assert find(store, pointer.sha256).seq == 0


def test_an_absent_store_is_an_empty_one_and_stays_absent(store: Store, place: Path) -> None:
    for text in ("notes:x", "notes:x~1", "abcd1234"):
        with pytest.raises(NotFoundError):
            find(store, text)
    assert not place.exists()


def test_a_damaged_scope_does_not_hide_the_others(store: Store, chain: list[Snapshot], place: Path) -> None:
    broken = store.scope("notes:broken").save({})
    (place / broken.scope / "latest.json").write_bytes(b"junk")
    (place / ("f" * 64)).symlink_to(place)
    assert find(store, chain[3].sha256[:10]).seq == 3
    with pytest.raises(NotFoundError):
        find(store, "notes:z")


def test_revisions_work_in_memory_too(open_store: OpenStore) -> None:
    store = open_store()
    saved = [store.scope("notes:m").save({"n": n}) for n in range(3)]
    assert find(store, "notes:m~2").sha256 == saved[0].sha256
    assert find(store, saved[1].sha256[:8]).seq == 1
