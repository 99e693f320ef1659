"""The public store: what a caller sees of saving, loading, order, conflicts, objects and damage."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from each_case import each

from stateline import Artifact, Ref, Store
from stateline.bundle import canonical, naming
from stateline.bundle.envelope import JSON_TYPE, NODE_TYPE
from stateline.errors import (
    ConflictError,
    IntegrityError,
    InvalidValueError,
    NewerVersionError,
    NotFoundError,
    RequestError,
    StatelineError,
    StorageError,
    UsageError,
)
from stateline.redaction.redactor import Redactor
from stateline.store.actor import actor_of
from stateline.store.local.backend import LocalBackend
from stateline.store.memory import MemoryBackend
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
BIG = "x" * 5000
START = 1_795_166_819_123_456_789
"""2026-11-20T09:26:59.123456789Z [ns]"""


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(LocalBackend(str(tmp_path / "s")) if request.param == "local" else MemoryBackend())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "s"


def local(root: Path, clock: Any = None) -> Store:
    return Store(LocalBackend(str(root)), clock=clock)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != naming.LOCK}


# -- saving and loading ------------------------------------------------------------------------------------------------


def test_load_returns_what_was_saved(store: Store) -> None:
    state = {"n": 1, "t": "é\u2028", "f": -0.0, "big": BIG, "l": [None, True, 2**64 - 1, -(2**63)]}
    saved = store.scope(KEY).save(state, event={"why": "test"})
    loaded = store.scope(KEY).load()
    assert loaded == saved
    assert store.resolve(loaded.state) == state
    assert loaded.event == {"why": "test", "durability": "full", "actor": actor_of(None)}
    assert (loaded.seq, loaded.envelope.kind, loaded.envelope.scope) == (0, "notes", KEY)


@each("state", [None, 0, "", [], {}, "x" * 10_000, [[]], {"": {"": None}}])
def test_any_json_value_may_be_a_state(store: Store, state: Any) -> None:
    store.scope(KEY).save(state)
    assert store.resolve(store.scope(KEY).load().state) == state


def test_a_snapshot_names_its_parent_by_digest_and_file(store: Store) -> None:
    first = store.scope(KEY).save(1)
    second = store.scope(KEY).save(2)
    assert (first.envelope.prev_sha, first.envelope.prev) == (None, None)
    assert (second.envelope.prev_sha, second.envelope.prev) == (first.sha256, first.path)
    assert store.scope(KEY).parent(second) == first
    assert store.scope(KEY).parent(first) is None
    assert list(store.scope(KEY).walk()) == [second, first]
    assert list(store.scope(KEY).walk(first)) == [first]


def test_the_digest_is_that_of_the_files_exact_bytes(root: Path) -> None:
    saved = local(root).scope(KEY).save({"n": 1})
    data = (root / HASH / saved.path).read_bytes()
    assert hashlib.sha256(data).hexdigest() == saved.sha256
    assert saved.path.endswith(f"Z-{saved.sha256[:8]}.json")
    assert json.loads((root / HASH / "latest.json").read_bytes()) == {
        "version": "1",
        "path": saved.path,
        "sha256": saved.sha256,
    }


def test_an_absent_store_is_an_empty_one(root: Path) -> None:
    store = local(root)
    assert store.scope(KEY).head() is None
    assert list(store.heads()) == []
    assert list(store.scope(KEY).walk()) == []
    with pytest.raises(NotFoundError, match="no scope notes:x"):
        store.scope(KEY).load()
    assert not root.exists()


def test_heads_gives_the_newest_snapshot_of_every_scope(store: Store) -> None:
    for number in range(3):
        store.scope("notes:a").save(number)
    last = store.scope("notes:b").save("b")
    assert {head.envelope.scope: head.state for head in store.heads()} == {"notes:a": 2, "notes:b": "b"}
    assert last in list(store.heads())


def test_scopes_are_distinguished_by_their_whole_key(store: Store) -> None:
    for key in ("notes:x", "notes:X", "run:x", "notes:x ", "notes:x/../x"):
        store.scope(key).save(key)
    assert all(
        store.scope(key).load().state == key for key in ("notes:x", "notes:X", "run:x", "notes:x ", "notes:x/../x")
    )


@each("key", ["", "x", "notes:", "notes:\0", "../x:y"])
def test_a_malformed_key_is_refused_before_anything_happens(root: Path, key: str) -> None:
    with pytest.raises(UsageError):
        local(root).scope(key)
    assert not root.exists()


# -- parents and conflicts ---------------------------------------------------------------------------------------------


def test_a_required_parent_that_is_the_head_is_accepted(store: Store) -> None:
    first = store.scope(KEY).save(1, parent=None)
    assert store.scope(KEY).save(2, parent=first).seq == 1


def test_a_required_parent_that_is_not_the_head_is_a_conflict(store: Store) -> None:
    scope = store.scope(KEY)
    first = scope.save(1)
    second = scope.save(2)
    for parent in (first, None):
        with pytest.raises(ConflictError) as caught:
            scope.save(3, parent=parent)
        assert caught.value.exit_code == 4
        assert caught.value.hint
    assert scope.load() == second
    assert list(scope.walk()) == [second, first]


def test_a_required_parent_in_an_empty_scope_is_a_conflict(store: Store) -> None:
    foreign = store.scope("notes:other").save(1)
    with pytest.raises(ConflictError):
        store.scope(KEY).save(2, parent=foreign)
    assert store.scope(KEY).head() is None


def test_load_change_and_save_under_one_lock_loses_nothing(root: Path) -> None:
    import threading

    def work() -> None:
        scope = local(root).scope(KEY)
        for _ in range(5):
            with scope.locked(30):
                head = scope.head()
                scope.save({"n": head.state["n"] + 1 if head else 1}, parent=head)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert local(root).scope(KEY).load().state == {"n": 20}


# -- the clock ---------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, *times: int) -> None:
        self.times = iter(times)

    def __call__(self) -> int:
        return next(self.times)


def created(scope: Scope) -> list[str]:
    return [snapshot.envelope.created_at for snapshot in scope.walk()][::-1]


def test_created_at_is_the_clocks_time_to_the_microsecond(root: Path) -> None:
    saved = local(root, Clock(START)).scope(KEY).save(1)
    assert saved.envelope.created_at == "2026-11-20T09:26:59.123456Z"
    assert saved.path.startswith("state-2026-11-20T092659.123456Z-")


@each(
    "times",
    [
        (START, START, START, START),
        (START, START + 999, START + 1, START),
        (START, START - 10**18, START - 2 * 10**18, 0),
        (START, START + 10**18, START, START + 5),
    ],
)
def test_created_at_and_names_increase_under_any_clock(root: Path, times: tuple[int, ...]) -> None:
    scope = local(root, Clock(*times)).scope(KEY)
    paths = [scope.save(number).path for number in range(len(times))]
    assert paths == sorted(set(paths))
    found = created(scope)
    assert found == sorted(set(found))
    assert [snapshot.state for snapshot in scope.walk()] == [3, 2, 1, 0]


def test_a_new_process_with_a_clock_set_back_continues_after_the_head(root: Path) -> None:
    local(root, Clock(START)).scope(KEY).save(1)
    second = local(root, Clock(0)).scope(KEY).save(2)
    assert second.envelope.created_at == "2026-11-20T09:26:59.123457Z"


def test_times_a_day_and_a_year_apart_still_sort(root: Path) -> None:
    end_of_year = 1_798_761_599_999_999_000
    scope = local(root, Clock(end_of_year, 0)).scope(KEY)
    assert [scope.save(n).envelope.created_at for n in range(2)] == [
        "2026-12-31T23:59:59.999999Z",
        "2027-01-01T00:00:00.000000Z",
    ]


@each("last", ["9999-12-31T23:59:59.999999Z", "2026-02-31T00:00:00.000000Z"])
def test_a_head_whose_time_has_no_successor_is_damage_not_a_traceback(root: Path, last: str) -> None:
    write_snapshot(root, document(created_at=last))
    with pytest.raises(IntegrityError):
        local(root).scope(KEY).save(2)


# -- labels ------------------------------------------------------------------------------------------------------------


def test_a_label_that_is_taken_by_other_content_is_lengthened_and_nothing_is_overwritten(tmp_path: Path) -> None:
    times = (START, START + 1000)
    twin = local(tmp_path / "twin", Clock(*times)).scope(KEY)
    twin.save(1)
    expected = twin.save(2)
    long = naming.snapshot_name(expected.envelope.created_at, expected.sha256, 16)
    full = naming.snapshot_name(expected.envelope.created_at, expected.sha256, 64)
    for taken, path in (((expected.path,), long), ((expected.path, long), full)):
        root = tmp_path / str(len(taken))
        scope = local(root, Clock(*times)).scope(KEY)
        scope.save(1)
        for name in taken:
            (root / HASH / name).write_bytes(b"other content")
        saved = scope.save(2)
        assert (saved.path, saved.sha256) == (path, expected.sha256)
        assert all((root / HASH / name).read_bytes() == b"other content" for name in taken)
        assert local(root).scope(KEY).load() == saved
        assert local(root).scope(KEY).save(3).envelope.prev == path
        assert [s.seq for s in local(root).scope(KEY).walk()] == [2, 1, 0]


def test_where_all_labels_are_taken_nothing_is_written(tmp_path: Path) -> None:
    times = (START, START + 1000)
    twin = local(tmp_path / "twin", Clock(*times)).scope(KEY)
    twin.save(1)
    expected = twin.save(2)
    root = tmp_path / "s"
    scope = local(root, Clock(*times)).scope(KEY)
    first = scope.save(1)
    for label in (8, 16, 64):
        name = naming.snapshot_name(expected.envelope.created_at, expected.sha256, label)
        (root / HASH / name).write_bytes(b"other content")
    with pytest.raises(IntegrityError):
        scope.save(2)
    assert scope.load() == first


def test_the_same_content_at_the_same_time_is_the_same_file(tmp_path: Path) -> None:
    trees = []
    for name in ("a", "b"):
        scope = local(tmp_path / name, Clock(START, START + 5000)).scope(KEY)
        scope.save({"n": 1, "big": BIG})
        scope.save({"n": 2, "big": BIG})
        trees.append({k: v for k, v in tree(tmp_path / name).items() if k != "stateline.json"})
    assert trees[0] == trees[1]


# -- objects -----------------------------------------------------------------------------------------------------------


def test_large_values_are_objects_by_digest(root: Path) -> None:
    store = local(root)
    saved = store.scope(KEY).save({"big": BIG, "small": 1})
    ref = saved.envelope.objects["/big"]
    assert saved.envelope.state == {"big": None, "small": 1}
    assert saved.state == {"big": ref, "small": 1}
    assert (root / "objects" / ref.sha256[:2] / ref.sha256).read_bytes() == canonical.encode(BIG)
    assert store.get(ref) == canonical.encode(BIG)
    assert ref == Ref(hashlib.sha256(canonical.encode(BIG)).hexdigest(), 5002, JSON_TYPE)


def test_a_state_with_references_in_it_can_be_saved_again(store: Store) -> None:
    first = store.scope(KEY).save({"big": BIG, "n": 1, "deep": {"l": [BIG + "y"] * 3}})
    second = store.scope(KEY).save(first.state | {"n": 2})
    assert second.envelope.objects == first.envelope.objects
    assert store.resolve(second.state) == {"big": BIG, "n": 2, "deep": {"l": [BIG + "y"] * 3}}


def test_nodes_are_resolved_through_all_levels(store: Store) -> None:
    value = {"chat": [{"role": "user", "text": f"{number} " + "t" * 200} for number in range(64)]}
    deep = {"a": {"chat": value["chat"], "big": BIG} | {f"k{n}": "p" * 100 for n in range(60)}}
    saved = store.scope(KEY).save(deep)
    assert any(ref.media_type == NODE_TYPE for ref in saved.envelope.objects.values())
    assert store.resolve(saved.state) == deep


def test_an_artifact_is_kept_as_raw_bytes(root: Path) -> None:
    store = local(root)
    put = store.put(Artifact(b"\0raw", "image/png"))
    saved = store.scope(KEY).save({"direct": Artifact(b"more", "text/plain"), "put": put})
    assert (root / "objects" / put.sha256[:2] / put.sha256).read_bytes() == b"\0raw"
    loaded = store.resolve(local(root).scope(KEY).load().state)
    assert loaded == saved.state
    assert (store.get(loaded["put"]), store.get(loaded["direct"])) == (b"\0raw", b"more")
    assert loaded["put"].media_type == "image/png"


def test_a_reference_to_an_object_that_is_not_there_is_refused_before_the_save(store: Store) -> None:
    nowhere = Ref(hashlib.sha256(b"nowhere").hexdigest(), 7, "text/plain")
    head = store.scope(KEY).save(1)
    for state in ({"a": nowhere}, {"a": {f"k{n}": "p" * 100 for n in range(60)} | {"deep": nowhere}}):
        with pytest.raises(NotFoundError, match=nowhere.sha256):
            store.scope(KEY).save(state)
    assert store.scope(KEY).load() == head


def test_a_reference_with_a_wrong_size_is_refused_before_the_save(store: Store) -> None:
    ref = store.put(Artifact(b"1234567", "text/plain"))
    for size in (0, 6, 8):
        with pytest.raises(StatelineError):
            store.scope(KEY).save({"a": Ref(ref.sha256, size, ref.media_type)})
    assert store.scope(KEY).head() is None


def test_a_hostile_reference_reads_nothing_outside(root: Path) -> None:
    store = local(root)
    store.scope(KEY).save(1)
    (root.parent / "secret").write_bytes(b"secret")
    for name in ("../../secret", "/etc/passwd", "a/../../../secret"):
        with pytest.raises(UsageError):
            store.get(Ref(name, 6))


@each("change", ["missing", "altered", "truncated", "grown"])
def test_kinds_of_damaged_objects_are_distinguished_and_never_returned(root: Path, change: str) -> None:
    store = local(root)
    ref = store.scope(KEY).save({"big": BIG}).envelope.objects["/big"]
    path = root / naming.object_path(ref.sha256)
    data = path.read_bytes()
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes({"altered": data[:-2] + b'y"', "truncated": data[:-2], "grown": data + b" "}[change])
    with pytest.raises(IntegrityError) as caught:
        store.resolve(store.scope(KEY).load().state)
    assert caught.value.finding == {"grown": "too_large"}.get(change, change)
    assert caught.value.exit_code == 5


def test_a_damaged_object_in_the_way_stops_a_writer_and_is_left_for_the_auditor(root: Path) -> None:
    store = local(root)
    ref = store.scope(KEY).save({"big": BIG}).envelope.objects["/big"]
    path = root / naming.object_path(ref.sha256)
    path.write_bytes(b"altered")
    with pytest.raises(IntegrityError, match="other bytes"):
        local(root).scope("notes:other").save({"big": BIG})
    assert path.read_bytes() == b"altered"


# -- refusals on the way in --------------------------------------------------------------------------------------------


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


@each("bad", [float("nan"), 2**64, "\ud800", (1,), b"x", {1: 2}, nested(130), "x" * (16 * 1024 * 1024)])
def test_values_outside_the_format_are_refused_and_change_nothing(root: Path, bad: Any) -> None:
    scope = local(root).scope(KEY)
    scope.save(1)
    before = tree(root)
    for state, event in (
        (bad, {}),
        ({"a": bad} if not isinstance(bad, str) or len(bad) < 9 else bad, {}),
        (1, {"e": bad}),
    ):
        with pytest.raises(InvalidValueError):
            scope.save(state, event=event)
    assert tree(root) == before


def test_the_deepest_state_is_128_levels(store: Store) -> None:
    store.scope(KEY).save(nested(128))
    assert store.resolve(store.scope(KEY).load().state) == nested(128)
    with pytest.raises(InvalidValueError):
        store.scope(KEY).save(nested(129))


def test_the_given_state_is_not_changed_and_not_kept(store: Store) -> None:
    state = {"l": [1], "password": "hunter2-hunter2", "big": BIG}
    saved = store.scope(KEY).save(state)
    assert state == {"l": [1], "password": "hunter2-hunter2", "big": BIG}
    state["l"].append(2)
    assert saved.state["l"] == [1]
    assert store.scope(KEY).load().state["l"] == [1]


def test_secrets_are_masked_before_hashing_and_counted(root: Path) -> None:
    saved = local(root).scope(KEY).save({"password": "hunter2-hunter2", "n": 1}, event={"token": "tok-0123456789"})
    assert saved.event["redactions"] == 2
    everything = b"".join(tree(root).values())
    assert b"hunter2-hunter2" not in everything
    assert b"tok-0123456789" not in everything


def test_a_scope_whose_name_holds_a_secret_is_refused(root: Path) -> None:
    redactor = Redactor([("SOME_API_KEY", "abcdef-123456-secret")])
    store = Store.open(root, redactor=redactor)
    with pytest.raises(RequestError, match="name holds a secret") as caught:
        store.scope("notes:abcdef-123456-secret").save(1)
    assert "abcdef" not in str(caught.value)
    assert store.scope("notes:abcdef-123456-secret").head() is None
    assert not [name for name in tree(root) if "state-" in name]


def test_names_of_a_state_that_was_masked_by_its_caller_are_left_alone(root: Path) -> None:
    store = Store.open(root, redactor=Redactor([("SOME_API_KEY", "transitions")]))
    saved = store.scope(KEY).save({"transitions": 1}, event={"transitions": []}, masked=True)
    assert (saved.state, saved.event["transitions"]) == ({"transitions": 1}, [])
    assert "redactions" not in saved.event
    assert store.scope(KEY).save({"transitions": 1}).event["redactions"] == 1


@each(
    "event, masked",
    [({"redactions": "mine"}, False), ({"repaired": {"objects": []}}, False), ({"repaired": {"objects": []}}, True)],
)
def test_reserved_members_in_a_callers_event_are_refused(root: Path, event: dict[str, Any], masked: bool) -> None:
    store = Store.open(root)
    with pytest.raises(InvalidValueError, match="reserved") as caught:
        store.scope(KEY).save(1, event={"why": "so", **event}, masked=masked)
    assert caught.value.where == f"/{next(iter(event))}"
    assert not root.exists()


def test_a_caller_that_masked_gives_the_count_and_the_store_the_durability(root: Path) -> None:
    store = Store.open(root)
    saved = store.scope(KEY).save(1, event={"redactions": 3, "durability": "fast"}, masked=True)
    assert saved.event == {"redactions": 3, "durability": "full", "actor": actor_of(None)}


# -- versions ----------------------------------------------------------------------------------------------------------


def document(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1",
        "seq": 0,
        "created_at": "2026-11-20T09:26:59.123456Z",
        "tool_version": "9.9.9",
        "scope": KEY,
        "prev_sha": None,
        "prev": None,
        "kind": "notes",
        "event": {},
        "state": {"n": 1},
        "objects": {},
    } | changes


def write_snapshot(root: Path, bundle: dict[str, Any], pointer: dict[str, Any] | None = None) -> str:
    """A scope whose head is that bundle, written without the code under test; the snapshot's name."""
    (root / HASH).mkdir(parents=True, mode=0o700)
    os.chmod(root, 0o700)
    data = json.dumps(bundle, sort_keys=True, separators=(",", ":")).encode()
    sha = hashlib.sha256(data).hexdigest()
    name = f"state-{bundle['created_at'].replace(':', '')}-{sha[:8]}.json"
    head = {"version": "1", "path": name, "sha256": sha} | (pointer or {})
    files = {
        "stateline.json": b'{"format":"stateline/1","store_id":"' + b"0" * 32 + b'"}',
        f"{HASH}/{name}": data,
        f"{HASH}/latest.json": json.dumps(head, sort_keys=True, separators=(",", ":")).encode(),
    }
    for path, content in files.items():
        (root / path).write_bytes(content)
        os.chmod(root / path, 0o600)
    return name


def test_a_minor_version_is_read_with_its_unknown_fields_and_not_written_over(root: Path) -> None:
    write_snapshot(root, document(version="1.1", signature="abc"))
    head = local(root).scope(KEY).load()
    assert head.envelope.extra == {"signature": "abc"}
    assert head.envelope.version == "1.1"
    before = tree(root)
    with pytest.raises(NewerVersionError, match=r"version 1\.1") as caught:
        local(root).scope(KEY).save({"n": 2})
    assert caught.value.exit_code == 1
    assert tree(root) == before
    assert list(local(root).scope(KEY).walk()) == [head]


def test_a_newer_major_version_is_left_untouched(tmp_path: Path) -> None:
    for number, (bundle, pointer) in enumerate(((document(version="2", seq="?"), {}), (document(), {"version": "2"}))):
        root = tmp_path / str(number)
        write_snapshot(root, bundle, pointer)
        before = tree(root)
        scope = local(root).scope(KEY)
        for call in (scope.head, scope.load, lambda scope=scope: scope.save(1), lambda scope=scope: list(scope.walk())):
            with pytest.raises(NewerVersionError) as caught:
                call()
            assert caught.value.exit_code == 1
        assert tree(root) == before


# -- damage ------------------------------------------------------------------------------------------------------------


def save_three(root: Path) -> list[Snapshot]:
    scope = local(root).scope(KEY)
    return [scope.save({"n": number}) for number in range(3)]


DAMAGE = {
    "head missing": ("missing", lambda at, head: (at / head).unlink()),
    "head truncated": ("truncated", lambda at, head: os.truncate(at / head, 100)),
    "head empty": ("truncated", lambda at, head: os.truncate(at / head, 0)),
    "head altered": (
        "altered",
        lambda at, head: (at / head).write_bytes((at / head).read_bytes().replace(b'"n":2', b'"n":7')),
    ),
    "pointer empty": ("not_json", lambda at, head: os.truncate(at / "latest.json", 0)),
    "pointer garbage": ("not_json", lambda at, head: (at / "latest.json").write_bytes(b"\0" * 100)),
    "pointer without digest": (
        "malformed",
        lambda at, head: (at / "latest.json").write_bytes(f'{{"path":"{head}","sha256":"","version":"1"}}'.encode()),
    ),
    "pointer spelled otherwise": (
        "not_canonical",
        lambda at, head: (at / "latest.json").write_bytes((at / "latest.json").read_bytes() + b"\n"),
    ),
}


@each("name", DAMAGE)
def test_kinds_of_damage_are_distinguished_and_stop_a_writer_with_a_hint(root: Path, name: str) -> None:
    snapshots = save_three(root)
    finding, harm = DAMAGE[name]
    harm(root / HASH, snapshots[-1].path)
    before = tree(root)
    with pytest.raises(IntegrityError) as caught:
        local(root).scope(KEY).load()
    assert caught.value.finding == finding
    with pytest.raises(IntegrityError) as caught:
        local(root).scope(KEY).save(9)
    newest = snapshots[-1] if name.startswith("pointer") else snapshots[-2]
    assert newest.path in caught.value.message
    assert "repair" in caught.value.hint
    assert caught.value.exit_code == 5
    assert tree(root) == before


def test_a_lost_pointer_is_damage_and_never_a_new_beginning(root: Path) -> None:
    snapshots = save_three(root)
    (root / HASH / "latest.json").unlink()
    before = tree(root)
    with pytest.raises(IntegrityError, match="pointer") as caught:
        local(root).scope(KEY).save(9)
    assert snapshots[-1].path in caught.value.message
    assert tree(root) == before


def test_a_first_snapshot_never_acknowledged_is_residue(root: Path) -> None:
    first = local(root).scope(KEY).save({"n": "lost"})
    (root / HASH / "latest.json").unlink()
    again = local(root).scope(KEY).save({"n": "new"})
    assert (again.seq, local(root).scope(KEY).load().state) == (0, {"n": "new"})
    assert (root / HASH / first.path).exists(), "nothing is deleted"


def test_a_later_snapshot_never_acknowledged_is_residue(root: Path) -> None:
    snapshots = save_three(root)
    (root / HASH / "latest.json").write_bytes(snapshots[1].pointer.encode())
    again = local(root).scope(KEY).save({"n": "new"})
    assert (again.seq, again.envelope.prev_sha) == (2, snapshots[1].sha256)


def test_a_snapshot_in_another_scopes_place_is_misplaced(root: Path) -> None:
    store = local(root)
    head = store.scope("notes:other").save(1)
    other = naming.scope_hash("notes:other")
    os.rename(root / other, root / HASH)
    with pytest.raises(IntegrityError, match="notes:other") as caught:
        store.scope(KEY).load()
    assert caught.value.finding == "misplaced"
    os.rename(root / HASH, root / other)
    renamed = head.path.replace("Z-", "Z-ffffffff")[: -len("ffffffff.json")] + ".json"
    wrong = naming.snapshot_name("2000-01-01T00:00:00.000000Z", head.sha256)
    assert renamed != wrong
    os.rename(root / other / head.path, root / other / wrong)
    (root / other / "latest.json").write_bytes(canonical.encode({"version": "1", "path": wrong, "sha256": head.sha256}))
    with pytest.raises(IntegrityError, match="content does not fit"):
        store.scope("notes:other").load()


def test_a_chain_out_of_order_is_damage(root: Path) -> None:
    first = local(root).scope(KEY).save(1)
    for number, changes in enumerate(
        ({"seq": 5}, {"created_at": first.envelope.created_at}, {"created_at": "2000-01-01T00:00:00.000000Z"})
    ):
        bundle = document(
            **(
                {"seq": 1, "created_at": "2100-01-01T00:00:00.000000Z", "prev_sha": first.sha256, "prev": first.path}
                | changes
            )
        )
        data = canonical.encode(bundle)
        name = naming.snapshot_name(bundle["created_at"], canonical.sha256(data), 64)
        (root / HASH / name).write_bytes(data)
        pointer = {"version": "1", "path": name, "sha256": canonical.sha256(data)}
        (root / HASH / "latest.json").write_bytes(canonical.encode(pointer))
        scope = local(root).scope(KEY)
        assert scope.load().seq == bundle["seq"], number
        with pytest.raises(IntegrityError) as caught:
            list(scope.walk())
        assert caught.value.finding == "misordered"


def test_a_temporarily_unreadable_file_is_not_damage_and_not_renamed(root: Path) -> None:
    import errno

    from stateline.store.local.filesystem import Directory, Filesystem

    class Sick(Filesystem):
        def read(self, directory: Directory, name: str, limit: int) -> bytes:
            if name.startswith("state-"):
                raise OSError(errno.EIO, "Input/output error")
            return super().read(directory, name, limit)

    save_three(root)
    before = tree(root)
    sick = Store(LocalBackend(str(root), Sick()))
    for call in (sick.scope(KEY).load, lambda: sick.scope(KEY).save(1)):
        with pytest.raises(StorageError) as caught:
            call()
        assert not isinstance(caught.value, IntegrityError)
    assert tree(root) == before
    assert local(root).scope(KEY).save(4).seq == 3


def every(root: Path) -> Iterator[Path]:
    yield from (path for path in root.rglob("*.json") if path.parent.name == HASH)


def test_no_altered_byte_of_a_head_or_pointer_goes_unnoticed(root: Path) -> None:
    head = local(root).scope(KEY).save({"n": 1})
    for path in every(root):
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises((IntegrityError, NewerVersionError)):
                local(root).scope(KEY).load()
        path.write_bytes(data)
    assert local(root).scope(KEY).load() == head


def test_a_snapshot_saved_here_is_read_again_before_the_next_save(tmp_path: Path) -> None:
    scope = Store.open(tmp_path / "s").scope("notes:x")
    first = scope.save({"n": 1})
    path = tmp_path / "s" / scope.hash / first.path
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":7'))
    with pytest.raises(IntegrityError, match="altered"):
        scope.save({"n": 2})
    path.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        scope.save({"n": 2})
