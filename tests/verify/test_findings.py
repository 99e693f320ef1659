"""Findings of verify in scopes, pointers, snapshots and objects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_stores import BIG, HASH, KEY, NODE, Check, OpenStore, Publish, codes, only

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Link, Pointer, Ref
from stateline.bundle.objects import Artifact
from stateline.errors import NotFoundError
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify
from stateline.verify.findings import NOTE, SHOWN, Report


def test_a_good_store_is_ok_and_counted(store: Store, chain: list[Snapshot], check: Check) -> None:
    other = store.scope("notes:y").save({"n": 0})
    report = check()
    assert report.document() == {
        "ok": True,
        "scopes": 2,
        "snapshots": 6,
        "objects": 4,
        "findings": [],
        "heads": [
            {"scope": KEY, "seq": 4, "sha256": chain[4].sha256},
            {"scope": "notes:y", "seq": 0, "sha256": other.sha256},
        ],
        "anchors": [],
        "note": NOTE,
    }


def test_an_absent_store_is_reported_as_absent_and_stays_absent(place: Path, store: Store) -> None:
    """A mistyped path must not look like a store that was checked."""
    report = verify(store)
    assert (report.ok, report.scopes, report.snapshots, report.objects) == (True, 0, 0, 0)
    assert [(finding.severity, finding.code) for finding in report.findings] == [("warning", "no_store")]
    assert not place.exists()


def test_a_consistent_cut_is_not_found_and_the_note_says_so(store: Store, chain: list[Snapshot], place: Path) -> None:
    scope = place / chain[0].scope
    for snapshot in chain[3:]:
        (scope / snapshot.path).unlink()
    (scope / "latest.json").write_bytes(chain[2].pointer.encode())
    shutil.rmtree(place / "objects")
    report = verify(store)
    assert report.ok
    assert report.findings == ()
    assert "compare a head's sha" in report.note


def test_a_missing_snapshot_is_damage_and_cuts_off_its_past_once(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    for number in range(5):
        path = place / HASH / chain[number].path
        path.unlink()
        report = check()
        damage = [finding for finding in report.findings if finding.severity == "damage"]
        assert sorted(finding.code for finding in damage) == (["missing", "orphaned"] if number else ["missing"]), (
            number
        )
        assert damage[0].path == f"{HASH}/{chain[number].path}", number
        assert {finding.scope for finding in damage} == {KEY}, number
        assert (report.ok, report.snapshots) == (False, 4), number
        path.write_bytes(chain[number].data)
        path.chmod(0o600)


def test_altered_and_truncated_snapshots_are_told_apart(chain: list[Snapshot], place: Path, check: Check) -> None:
    for snapshot in chain:
        path = place / HASH / snapshot.path
        data = path.read_bytes()
        for bad, code in ((data.replace(b'"n":', b'"m":'), "altered"), (data[:-30], "truncated"), (b"", "truncated")):
            path.write_bytes(bad)
            found = {(finding.severity, finding.code) for finding in check().findings}
            assert ("damage", code) in found, (snapshot.seq, code)
            assert ("residue", "unreferenced") not in found, "an unreadable snapshot may name it"
        path.write_bytes(data)


def test_damage_in_several_places_is_all_found(store: Store, chain: list[Snapshot], place: Path, check: Check) -> None:
    other = store.scope("notes:y").save({"n": 0})
    (place / other.scope / other.path).write_bytes(b"{}")
    (place / chain[0].scope / chain[1].path).unlink()
    objects = sorted((place / "objects").rglob("*"))
    objects[-1].unlink()
    (place / "stateline.json").write_bytes(b"[]")
    (place / "notes.txt").write_bytes(b"")
    found = [finding.code for finding in check().findings if finding.severity == "damage"]
    assert sorted(found) == ["altered", "foreign_file", "malformed", "missing", "missing", "orphaned"]


def test_a_missing_pointer_is_damage_where_more_than_a_first_save_is(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    (place / chain[0].scope / "latest.json").unlink()
    report = check()
    assert codes(report) == [("damage", "missing"), ("damage", "orphaned")]
    assert report.scopes == 0
    assert "the 5 snapshots from 0 to 4" in next(f.message for f in report.findings if f.code == "orphaned")


def test_a_damaged_pointer_hides_neither_the_snapshots_nor_their_objects(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    pointer = place / chain[0].scope / "latest.json"
    for data, code in ((b"", "not_json"), (b"{ }", "not_canonical"), (b"{}", "malformed"), (b" " * 5000, "too_large")):
        pointer.write_bytes(data)
        report = check()
        assert codes(report) == sorted([("damage", code), ("damage", "orphaned")])
        assert (report.snapshots, report.objects) == (5, 4)


def test_a_pointer_that_names_no_snapshot_is_damage(chain: list[Snapshot], place: Path, check: Check) -> None:
    pointer = place / chain[0].scope / "latest.json"
    for path in ("../x", "latest.json", chain[4].path + "x"):
        pointer.write_bytes(canonical.encode({"version": "1", "path": path, "sha256": chain[4].sha256}))
        assert ("damage", "malformed") in codes(check())
    pointer.write_bytes(Pointer(chain[4].path, "0" * 64).encode())
    assert ("damage", "altered") in codes(check())


def test_a_pointer_set_back_by_one_looks_like_a_crash_and_by_two_is_damage(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    pointer = place / chain[0].scope / "latest.json"
    pointer.write_bytes(chain[3].pointer.encode())
    found = only(check())
    assert (found.severity, found.code, found.scope) == ("residue", "unacknowledged", KEY)
    assert found.path == f"{HASH}/{chain[4].path}"
    pointer.write_bytes(chain[2].pointer.encode())
    finding = only(check())
    assert (finding.severity, finding.code) == ("damage", "orphaned")
    assert "the 2 snapshots from 3 to 4" in finding.message


def test_first_snapshots_never_acknowledged_are_residue(store: Store, publish: Publish, check: Check) -> None:
    store.backend.prepare()
    publish(store, "notes:new", head=False, state=1)
    publish(store, "notes:new", head=False, state=2)
    report = check()
    assert report.ok
    assert codes(report) == [("residue", "unacknowledged")] * 2
    assert report.scopes == 0
    saved = store.scope("notes:new").save(3)
    store.scope("notes:new").save(4, parent=saved)
    assert codes(check()) == [("residue", "unacknowledged")] * 2


def test_a_sibling_of_a_snapshot_on_the_chain_is_residue_and_its_objects_are_named(
    store: Store, chain: list[Snapshot], publish: Publish, check: Check
) -> None:
    ref = store.put(Artifact(b"left over"))
    publish(
        store,
        KEY,
        head=False,
        seq=3,
        created_at=chain[3].envelope.created_at,
        prev=chain[2].path,
        prev_sha=chain[2].sha256,
        state={"a": None},
        objects={"/a": ref},
    )
    report = check()
    assert only(report).code == "unacknowledged"
    assert report.objects == 5


def test_a_sibling_that_does_not_follow_its_parent_is_damage(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish, check: Check
) -> None:
    follows: dict[str, object] = {
        "seq": 3,
        "created_at": "2030-01-01T00:00:00.000000Z",
        "prev": chain[2].path,
        "prev_sha": chain[2].sha256,
    }
    broken: list[dict[str, object]] = [
        {"seq": 4},
        {"seq": 2},
        {"created_at": "2020-01-01T00:00:00.000000Z"},
        {"prev": "state-2026-11-20T102000.000000Z-00000000.json"},
    ]
    for fields in broken:
        sibling = publish(store, KEY, head=False, **(follows | fields))
        assert codes(check()) == [("damage", "misordered")], fields
        (place / HASH / sibling.path).unlink()


def test_a_snapshot_with_an_unknown_parent_is_orphaned(
    store: Store, chain: list[Snapshot], publish: Publish, check: Check
) -> None:
    publish(store, KEY, head=False, seq=3, prev=chain[2].path, prev_sha="0" * 64)
    assert codes(check()) == [("damage", "orphaned")]


def test_a_chain_out_of_order_is_damage_and_is_walked_to_its_end(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish, check: Check
) -> None:
    head = chain[-1]
    follows: dict[str, object] = {
        "seq": 5,
        "created_at": "2030-01-01T00:00:00.000000Z",
        "prev": head.path,
        "prev_sha": head.sha256,
    }
    broken: list[dict[str, object]] = [{"seq": 6}, {"seq": 4}, {"created_at": "2020-01-01T00:00:00.000000Z"}]
    for fields in broken:
        child = publish(store, KEY, head=False, **(follows | fields))
        (place / HASH / "latest.json").write_bytes(child.encode())
        report = check()
        assert (only(report).code, report.snapshots) == ("misordered", 6), fields
        (place / HASH / child.path).unlink()


def test_snapshots_under_other_names_or_in_other_scopes_are_misplaced(
    store: Store, chain: list[Snapshot], place: Path, check: Check
) -> None:
    other = store.scope("notes:y").save({"n": 0})
    shutil.copy(place / chain[0].scope / chain[2].path, place / other.scope / chain[2].path)
    renamed = naming.snapshot_name("2026-01-01T00:00:00.000000Z", chain[2].sha256)
    shutil.copy(place / chain[0].scope / chain[2].path, place / chain[0].scope / renamed)
    relabelled = naming.snapshot_name(chain[2].envelope.created_at, "0" * 64)
    shutil.copy(place / chain[0].scope / chain[2].path, place / chain[0].scope / relabelled)
    assert codes(check()) == [("damage", "misplaced")] * 3


def test_a_missing_altered_truncated_or_grown_object_is_damage_once(
    store: Store, chain: list[Snapshot], place: Path, check: Check
) -> None:
    table = chain[4].envelope.objects
    inner = canonical.decode(store.get(table["/node"]))["objects"]["/body"]["sha256"]
    for sha in (table["/big"].sha256, table["/node"].sha256, inner, table["/raw"].sha256):
        path = place / naming.object_path(sha)
        data = path.read_bytes()
        bad = ((None, "missing"), (b"~" + data[1:], "altered"), (data[:-1], "truncated"), (data + b" ", "too_large"))
        for content, code in bad:
            path.unlink() if content is None else path.write_bytes(content)
            report = check()
            [finding] = [finding for finding in report.findings if finding.severity == "damage"]
            assert (report.ok, finding.code, finding.scope) == (False, code, KEY)
            assert finding.path == naming.object_path(sha)
        path.write_bytes(data)
        path.chmod(0o600)


def test_objects_that_do_not_fit_their_media_type_are_damage(store: Store, publish: Publish, check: Check) -> None:
    store.backend.prepare()
    bad = {"/a": (b"{ }", "application/json"), "/b": (b"[]", "application/vnd.stateline.node+json")}
    objects = {}
    for pointer, (data, media_type) in bad.items():
        sha = canonical.sha256(data)
        store.backend.put(naming.object_path(sha), data)
        objects[pointer] = Ref(sha, len(data), media_type)
    publish(store, KEY, head=True, state={"a": None, "b": None}, objects=objects)
    assert codes(check()) == [("damage", "malformed"), ("damage", "not_canonical")]


def test_an_object_of_a_type_of_a_later_version_is_a_warning(store: Store, publish: Publish, check: Check) -> None:
    store.backend.prepare()
    sha = canonical.sha256(b"?")
    store.backend.put(naming.object_path(sha), b"?")
    ref = Ref(sha, 1, "application/vnd.stateline.chunks+json")
    publish(store, KEY, head=True, state={"a": None}, objects={"/a": ref})
    report = check()
    assert report.ok
    assert codes(report) == [("warning", "newer_version")]


def test_unreferenced_objects_are_residue_unless_altered(
    store: Store, chain: list[Snapshot], place: Path, check: Check
) -> None:
    ref = store.put(Artifact(b"nobody's"))
    found = only(check())
    assert (found.severity, found.code, found.scope) == ("residue", "unreferenced", None)
    assert found.path == naming.object_path(ref.sha256)
    (place / naming.object_path(ref.sha256)).write_bytes(b"somebody's")
    assert codes(check()) == [("damage", "altered")]


def test_many_unreferenced_objects_are_counted(store: Store, chain: list[Snapshot], check: Check) -> None:
    for number in range(SHOWN + 5):
        store.put(Artifact(b"%d" % number))
    report = check()
    assert len(report.findings) == SHOWN + 1
    assert report.findings[-1].message.startswith("and 5 more ")


def test_foreign_names_are_damage_and_temporary_ones_are_residue(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    scope = place / chain[0].scope
    shelf = place / naming.object_path(chain[4].envelope.objects["/raw"].sha256)
    foreign = [
        "x",
        ".hidden",
        f"{scope.name}/x",
        f"{scope.name}/state-1.json",
        "objects/x",
        "objects/AB",
        f"objects/{shelf.parent.name}/x",
    ]
    foreign += [f"objects/{shelf.parent.name}/{'0' * 62}zz", "latest.json"]
    misplaced = "00" if shelf.parent.name != "00" else "01"
    (place / "objects" / misplaced).mkdir(mode=0o700, exist_ok=True)
    shutil.copy(shelf, place / "objects" / misplaced / shelf.name)
    for name in foreign:
        (place / name).touch(0o600)
    residue = [".tmp-1", f"{scope.name}/.tmp-1", f"objects/{shelf.parent.name}/.tmp-1"]
    for name in residue:
        (place / name).touch(0o600)
    (place / ".rm-0123-1").mkdir(mode=0o700)
    (place / "lost+found").mkdir(mode=0o700)
    report = check()
    damage = {finding.path for finding in report.findings if finding.severity == "damage"}
    assert damage == {*foreign, f"objects/{misplaced}/{shelf.name}"}
    assert {finding.code for finding in report.findings if finding.severity == "damage"} == {"foreign_file"}
    left = {finding.path: finding.code for finding in report.findings if finding.severity == "residue"}
    assert left == dict.fromkeys(residue, "temporary") | {".rm-0123-1": "removed"}


def test_a_store_file_that_is_missing_or_damaged_hides_nothing_else(
    chain: list[Snapshot], place: Path, check: Check
) -> None:
    path = place / "stateline.json"
    for data, code in (
        (b"junk", "not_json"),
        (b"{}", "malformed"),
        (b'{ "format":1}', "not_canonical"),
        (None, "missing"),
    ):
        path.unlink() if data is None else path.write_bytes(data)
        report = check()
        finding = only(report)
        assert (finding.severity, finding.code, finding.path) == ("damage", code, "stateline.json")
        assert report.snapshots == 5


def test_one_scope_can_be_checked_alone(store: Store, chain: list[Snapshot], place: Path, check: Check) -> None:
    other = store.scope("notes:y").save({"n": 0})
    (place / other.scope / other.path).write_bytes(b"{}")
    report = verify(store, KEY)
    assert (report.ok, report.scopes, report.snapshots, report.objects) == (True, 1, 5, 4)
    assert not verify(store, "notes:y").ok
    with pytest.raises(NotFoundError):
        verify(store, "notes:z")


def test_a_forks_origin_must_exist(
    store: Store, chain: list[Snapshot], place: Path, publish: Publish, check: Check
) -> None:
    publish(store, "notes:fork", head=True, origin=Link(KEY, 2, chain[2].sha256))
    assert check().findings == ()
    publish(store, "notes:wrong", head=True, origin=Link(KEY, 1, chain[2].sha256))
    assert only(check()).code == "misordered"
    store.backend.remove(naming.scope_hash("notes:wrong"))
    store.backend.remove(chain[0].scope)
    finding = next(f for f in check().findings if f.severity == "damage")
    assert (finding.code, finding.scope) == ("missing", "notes:fork")


def test_a_store_in_memory_can_be_verified(open_store: OpenStore) -> None:
    store = open_store()
    for number in range(3):
        store.scope(KEY).save({"n": number, "big": BIG})
    (head,) = store.heads()
    heads = (Link(KEY, 2, head.sha256),)
    assert verify(store) == Report(ok=True, scopes=1, snapshots=3, objects=1, findings=(), heads=heads)


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("flip") / "state dir"
    store = Store.open(place)
    for number in range(3):
        store.scope(KEY).save({"n": number, "big": BIG, "node": NODE, "raw": Artifact(b"raw bytes")})
    return place


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_flipped_byte_goes_unnoticed(flipped: Path, data: st.DataObject) -> None:
    """Only the store's random id has no digest."""
    files = sorted(
        path for path in flipped.rglob("*") if path.is_file() and path.name not in ("scope.lock", "stateline.json")
    )
    path = data.draw(st.sampled_from(files))
    original = path.read_bytes()
    at = data.draw(st.integers(0, len(original) - 1))
    flip = data.draw(st.integers(1, 255))
    try:
        path.write_bytes(original[:at] + bytes([original[at] ^ flip]) + original[at + 1 :])
        report = verify(Store.open(flipped))
        assert not report.ok or any(finding.code == "newer_version" for finding in report.findings)
    finally:
        path.write_bytes(original)
    assert verify(Store.open(flipped)).findings == ()
