"""Unchanged data is not written again, and the n-th save costs as much as the first: counted at the seam."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from each_case import each

from stateline import Artifact, Store
from stateline.bundle import naming
from stateline.bundle.envelope import LIST_TYPE, NODE_TYPE, Ref
from stateline.bundle.objects import references
from stateline.errors import IntegrityError, InvalidValueError, NotFoundError
from stateline.redaction.redactor import Redactor
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory, Filesystem, Stat
from stateline.store.memory import MemoryBackend
from stateline.store.scope import Scope
from stateline.store.snapshot import Snapshot
from stateline.verify.checker import verify

KEY = "notes:grows"
MIB = "m" * 1024 * 1024


class Counting(Filesystem):
    """Counts the bytes written, and which objects are opened, made and synced."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.opened: list[str] = []

    def forget(self) -> None:
        self.counts.clear()
        self.opened.clear()

    def write(self, fd: int, data: bytes | memoryview) -> int:
        taken = super().write(fd, data)
        self.counts["bytes"] += taken
        return taken

    def create(self, directory: Directory, name: str) -> int:
        self.counts["files"] += 1
        return super().create(directory, name)

    def open_file(self, directory: Directory, name: str) -> int:
        fd = super().open_file(directory, name)
        if naming.is_sha256(name):
            self.opened.append(name)
        return fd

    def sync_file(self, fd: int) -> None:
        self.counts["syncs"] += 1  # counted only: nothing here loses power

    def sync_directory(self, directory: Directory) -> None:
        self.counts["syncs"] += 1


@pytest.fixture
def fs() -> Counting:
    return Counting()


@pytest.fixture
def scope(tmp_path: Path, fs: Counting) -> Scope:
    return again(tmp_path, fs)


def again(root: Path, fs: Filesystem) -> Scope:
    """The scope as another process sees it, which has put nothing yet."""
    return Store(LocalBackend(str(root / "s"), fs), redactor=Redactor()).scope(KEY)


def message(number: int, size: int = 500) -> dict[str, str]:
    text = f"{number} "
    return {"role": "user", "text": text + "x" * (size - len(text) - 26)}


def chat(count: int) -> list[Any]:
    return [message(number) for number in range(count)]


# -- saves -------------------------------------------------------------------------------------------------------------


def test_a_small_change_beside_a_large_value_writes_little_and_opens_no_object(
    scope: Scope, fs: Counting, tmp_path: Path
) -> None:
    scope.save({"n": 0, "big": MIB, "deep": {"big": MIB + "2", "l": chat(200)}})
    writer = again(tmp_path, fs)
    fs.forget()
    writer.save({"n": 1, "big": MIB, "deep": {"big": MIB + "2", "l": chat(200)}})
    assert fs.opened == []
    assert fs.counts["bytes"] < 4096
    assert fs.counts["files"] == 3, "the mark, the snapshot and the pointer"
    assert fs.counts["syncs"] == 4


def test_the_thousandth_message_costs_what_an_early_one_costs(scope: Scope, fs: Counting, tmp_path: Path) -> None:
    counts = []
    for total in (53, 999, 1007):
        scope.save({"chat": chat(total), "model": "m"})
        writer = again(tmp_path, fs)
        fs.forget()
        saved = writer.save({"chat": chat(total + 1), "model": "m"})
        assert fs.counts["bytes"] < 8192
        assert len(fs.opened) <= 2
        assert fs.counts["files"] == 4, "the mark, the last chunk, the snapshot and the pointer"
        counts.append((fs.counts["bytes"], len(fs.opened)))
        assert writer.store.resolve(saved.state) == {"chat": chat(total + 1), "model": "m"}
    (early, opened), _, (late, opened_late) = counts
    assert abs(early - late) < 50, "the same message of its chunk, early and late"
    assert opened == opened_late == 1


def test_a_message_that_begins_a_chunk_leaves_the_full_one_alone(scope: Scope, fs: Counting, tmp_path: Path) -> None:
    scope.save({"chat": chat(18)})
    writer = again(tmp_path, fs)
    fs.forget()
    saved = writer.save({"chat": chat(19)})
    assert saved.envelope.objects["/chat"].media_type == LIST_TYPE
    assert fs.opened == [], "both chunks before it are known"
    assert fs.counts["bytes"] < 2048


def test_only_the_changed_node_is_read_to_know_its_parts(scope: Scope, fs: Counting, tmp_path: Path) -> None:
    def state(note: str) -> Any:
        pad = {f"k{number}": "p" * 100 for number in range(60)}
        inner = pad | {"big": MIB, "list": chat(100), "artifact": Artifact(b"a" * 9000)}
        return {"outer": pad | {"note": note, "inner": inner, "other": MIB + "o"}}

    first = scope.save(state("one"))
    node = first.envelope.objects["/outer"]
    assert node.media_type == NODE_TYPE
    writer = again(tmp_path, fs)
    fs.forget()
    second = writer.save(state("two"))
    assert fs.opened == [node.sha256]
    assert fs.counts["files"] == 4, "the mark, the node, the snapshot and the pointer"
    assert second.envelope.objects["/outer"] != node


def test_a_process_writes_an_object_only_once(tmp_path: Path, fs: Counting) -> None:
    scope = again(tmp_path, fs)
    scope.save({"big": MIB})
    fs.forget()
    scope.store.scope("notes:other").save({"big": MIB})
    assert fs.opened == []
    assert fs.counts["bytes"] < 4096


@each("state", [{"big": MIB}, {"chat": chat(30)}, {"art": Artifact(b"raw" * 9)}])
def test_an_object_removed_meanwhile_is_written_again(tmp_path: Path, state: dict[str, Any]) -> None:
    scope = again(tmp_path, Filesystem())
    scope.save(state)
    scope.save({"n": 1})
    objects = [path for path in (tmp_path / "s" / "objects").rglob("*") if path.is_file()]
    for path in objects:
        path.unlink()
        scope.store.scope("notes:other").save(state)
        assert path.exists()
        scope.store.scope("notes:other").save({"n": 1})
        path.write_bytes(b"")
        with pytest.raises(IntegrityError, match="with other bytes"):
            scope.store.scope("notes:other").save(state)
        path.unlink()
        scope.store.scope("notes:other").save(state)
        scope.store.scope("notes:other").save({"n": 1})


def test_a_reference_to_an_object_removed_meanwhile_is_refused(tmp_path: Path) -> None:
    scope = again(tmp_path, Filesystem())
    ref = scope.store.put_value("kept")
    (tmp_path / "s" / naming.object_path(ref.sha256)).unlink()
    with pytest.raises(NotFoundError, match="there is no object"):
        scope.save({"ref": ref})


def test_known_objects_are_checked_only_where_they_are_named_again(tmp_path: Path) -> None:
    class Looking(Filesystem):
        looks = 0

        def stat(self, directory: Directory, name: str = "") -> Stat:
            self.looks += name.startswith("objects/")
            return super().stat(directory, name)

    fs = Looking()
    scope = again(tmp_path, fs)
    for number in range(20):
        scope.save({"n": number, "big": MIB, "chat": chat(90 + number)})
    assert fs.looks == 0, "the parent holds it"
    scope.store.scope("notes:other").save({"big": MIB})
    assert fs.looks == 1


def test_a_list_that_was_emptied_is_not_read_to_its_beginning(scope: Scope, fs: Counting, tmp_path: Path) -> None:
    scope.save({"chat": chat(1000)})
    writer = again(tmp_path, fs)
    fs.forget()
    writer.save({"chat": [], "new": "n" * 5000})
    assert len(fs.opened) <= 1, "there is one new object to find"


def test_a_damaged_object_that_the_new_state_does_not_need_is_ignored(scope: Scope, tmp_path: Path) -> None:
    old = scope.save({"chat": chat(30)}).envelope.objects["/chat"]
    path = tmp_path / "s" / naming.object_path(old.sha256)
    path.write_bytes(b"x")
    saved = again(tmp_path, Filesystem()).save({"chat": chat(31)})
    assert saved.seq == 1
    assert scope.store.resolve(saved.state) == {"chat": chat(31)}


def test_a_state_with_references_in_it_is_saved_without_reading_objects(
    scope: Scope, fs: Counting, tmp_path: Path
) -> None:
    scope.save({"n": 0, "chat": chat(100), "big": MIB})
    writer = again(tmp_path, fs)
    head = writer.load()
    fs.forget()
    writer.save(head.state | {"n": 1})
    assert fs.opened == []
    assert fs.counts["files"] == 3, "the mark, the snapshot and the pointer"


# -- appending ---------------------------------------------------------------------------------------------------------


def appended(scope: Scope, items: list[Any]) -> Snapshot:
    head = scope.load()
    return scope.save(head.state | {"chat": scope.store.append(head.state["chat"], items)})


def test_a_list_is_appended_to_by_reading_its_last_chunk_only(scope: Scope, fs: Counting, tmp_path: Path) -> None:
    scope.save({"chat": chat(999)})
    writer = again(tmp_path, fs)
    fs.forget()
    saved = appended(writer, [message(999)])
    assert len(fs.opened) == 1
    assert fs.counts["bytes"] < 8192
    assert saved.envelope.objects == again(tmp_path, fs).save({"chat": chat(1000)}).envelope.objects
    assert verify(scope.store).ok


def test_a_list_that_grows_by_one_each_time_has_the_objects_of_the_whole() -> None:
    store = Store(MemoryBackend(), redactor=Redactor())
    scope = store.scope(KEY)
    scope.save({"chat": chat(9)})
    for number in range(9, 60):
        appended(scope, [message(number)])
    assert store.resolve(scope.load().state) == {"chat": chat(60)}
    assert scope.load().envelope.objects == store.scope("notes:at-once").save({"chat": chat(60)}).envelope.objects


def test_an_appended_list_is_another_object_and_the_old_one_stays() -> None:
    store = Store(MemoryBackend(), redactor=Redactor())
    old = store.put_value(chat(3))
    new = store.append(old, [message(3), Artifact(b"raw"), store.put(Artifact(b"more"))])
    assert store.resolve(old) == chat(3)
    back = store.resolve(new)
    assert (back[:4], store.get(back[4]), store.get(back[5])) == (chat(4), b"raw", b"more")


def test_secrets_are_masked_in_appended_items() -> None:
    store = Store(MemoryBackend(), redactor=Redactor([("KEY", "sesame-open-12")]))
    ref = store.append(store.put_value([]), [{"say": "sesame-open-12"}, {"password": "x"}])
    assert store.resolve(ref) == [{"say": "[REDACTED]"}, {"password": "[REDACTED]"}]


def test_what_cannot_be_appended_is_refused_and_nothing_is_written(scope: Scope, tmp_path: Path) -> None:
    scope.save({"chat": chat(100), "text": "t" * 5000})
    before = sorted(path for path in tmp_path.rglob("*"))
    state = scope.load().state
    nowhere = Ref("ab" * 32, 7, "text/plain")
    for ref, item, error in (
        (state["text"], 1, InvalidValueError),
        (state["chat"], float("nan"), InvalidValueError),
        (state["chat"], nowhere, NotFoundError),
        (nowhere, 1, IntegrityError),
    ):
        with pytest.raises(error):
            scope.store.append(ref, [item])
    assert sorted(path for path in tmp_path.rglob("*")) == before


# -- reading -----------------------------------------------------------------------------------------------------------


def test_verify_follows_a_chain_of_chunks_and_finds_the_first_one_gone(scope: Scope, tmp_path: Path) -> None:
    ref = scope.save({"chat": chat(100)}).envelope.objects["/chat"]
    report = verify(scope.store)
    assert (report.ok, report.objects) == (True, 12)
    first = scope.store.resolve(ref)
    assert first == chat(100)
    chunks = sorted((tmp_path / "s" / "objects").rglob("[0-9a-f]" * 64))
    [beginning] = [path for path in chunks if path.read_bytes().startswith(b'{"before":null')]
    beginning.unlink()
    report = verify(again(tmp_path, Filesystem()).store)
    assert [(found.severity, found.code) for found in report.findings] == [("damage", "missing")]
    with pytest.raises(IntegrityError):
        again(tmp_path, Filesystem()).store.resolve(ref)


def test_verify_reads_a_chunk_as_one_though_the_same_bytes_are_an_artifact_too(tmp_path: Path) -> None:
    scope = again(tmp_path, Filesystem())
    ref = scope.save({"chat": chat(30)}).envelope.objects["/chat"]
    same = Artifact(scope.store.get(ref))
    before = references(same.data, ref)[-1]
    scope.store.scope("notes:both").save({"a": same, "chat": ref, "z": same})
    scope.store.backend.remove(scope.hash)
    (tmp_path / "s" / naming.object_path(before.sha256)).unlink()
    report = verify(again(tmp_path, Filesystem()).store)
    assert [found.code for found in report.findings if found.severity == "damage"] == ["missing"]
